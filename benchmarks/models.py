"""The workloads of `make demo`, and small ones of the same kind for tests. All weights are random, by a fixed seed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded


@dataclass(frozen=True)
class Workload:
    """A module and how to call it at some sizes."""

    name: str
    title: str
    module: nn.Module
    make_input: Callable[[int], torch.Tensor]
    size_name: str
    sizes: Sequence[int]  # the first is the main one; the third must find everything compiled
    trains: bool = False

    def input(self, size: int) -> torch.Tensor:
        """The input of one size; the same at each call."""
        torch.manual_seed(size)
        return self.make_input(size)


class LanguageModelLoss(nn.Module):
    """Token ids to the cross-entropy of predicting each next token."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The mean loss."""
        logits = self.model(ids).logits[:, :-1]
        return functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


class PointwiseChain(nn.Module):
    """A chain that fuses into one kernel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(width))
        self.shift = nn.Parameter(torch.randn(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """gelu, sigmoid and tanh over an affine map."""
        y = x * self.scale + self.shift
        return functional.gelu(y) * torch.sigmoid(x) + torch.tanh(y)


def _token_ids(vocabulary: int, batch: int) -> Callable[[int], torch.Tensor]:
    return lambda length: torch.randint(0, vocabulary, (batch, length))


def _bert(small: bool) -> Workload:
    from transformers import BertConfig, BertModel

    config = BertConfig()
    if small:
        config = BertConfig(
            vocab_size=199,
            hidden_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=96,
        )
    ids = _token_ids(config.vocab_size, 1)
    sizes = (12, 20, 9) if small else (128, 160, 96)
    return Workload("bert", "BERT-base", BertModel(config), ids, "S", sizes)


def _gpt2(small: bool) -> Workload:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = _gpt2_config(199, 48, 4) if small else GPT2Config(use_cache=False)
    ids = _token_ids(config.vocab_size, 1)
    sizes = (12, 20, 9) if small else (128, 160, 96)
    return Workload("gpt2", "GPT-2 small", GPT2LMHeadModel(config), ids, "S", sizes)


def _gpt2_config(vocabulary: int, hidden: int, heads: int) -> Any:
    """Two layers, no dropout."""
    from transformers import GPT2Config

    return GPT2Config(
        vocab_size=vocabulary,
        n_embd=hidden,
        n_layer=2,
        n_head=heads,
        use_cache=False,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )


def _llama(small: bool) -> Workload:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=199 if small else 32000,
        hidden_size=48 if small else 768,
        num_hidden_layers=2 if small else 6,
        num_attention_heads=4 if small else 12,
        num_key_value_heads=2 if small else 4,
        intermediate_size=96 if small else 2048,
        use_cache=False,
    )
    ids = _token_ids(config.vocab_size, 1)
    sizes = (12, 20, 9) if small else (128, 160, 96)
    return Workload("llama", "Llama-style, 6 layers", LlamaForCausalLM(config), ids, "S", sizes)


def _resnet(small: bool) -> Workload:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(
        depths=[1, 1, 1, 1] if small else [2, 2, 2, 2],
        hidden_sizes=[8, 8, 16, 16] if small else [64, 128, 256, 512],
        embedding_size=8 if small else 64,
        layer_type="basic",
        num_labels=10 if small else 1000,
    )
    module = ResNetForImageClassification(config)
    _randomize_statistics(module)
    # The last feature map has more than one pixel at each size: torch guards on that.
    sizes = (40, 72, 56) if small else (224, 192, 256)

    def image(size: int) -> torch.Tensor:
        return torch.randn(1, 3, size, size)

    return Workload("resnet", "ResNet-18", module, image, "image", sizes)


def _randomize_statistics(module: nn.Module) -> None:
    """Batch norms as after training: fresh ones would let errors in the statistics pass."""
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.normal_(layer.running_mean, std=0.1)
            nn.init.uniform_(layer.running_var, 0.5, 1.5)


def _training(small: bool) -> Workload:
    from transformers import GPT2LMHeadModel

    config = _gpt2_config(199, 48, 4) if small else _gpt2_config(8192, 256, 4)
    length = 12 if small else 128

    def batch(size: int) -> torch.Tensor:
        return torch.randint(0, config.vocab_size, (size, length))

    module = LanguageModelLoss(GPT2LMHeadModel(config))
    sizes = (4, 3, 2) if small else (8, 6, 4)
    return Workload("training", "GPT, training step", module, batch, "batch", sizes, trains=True)


def _pointwise(small: bool) -> Workload:
    width = 48 if small else 768

    def rows(count: int) -> torch.Tensor:
        return torch.randn(count, width)

    sizes = (12, 20, 9) if small else (512, 640, 384)
    return Workload("pointwise", "one pointwise chain", PointwiseChain(width), rows, "rows", sizes)


_BUILDERS: dict[str, Callable[[bool], Workload]] = {
    "pointwise": _pointwise,
    "bert": _bert,
    "gpt2": _gpt2,
    "llama": _llama,
    "resnet": _resnet,
    "training": _training,
}
NAMES = tuple(_BUILDERS)


def build(name: str, *, small: bool = False) -> Workload:
    """The workload of that name; in eval mode unless it trains."""
    torch.manual_seed(0)
    workload = _BUILDERS[name](small)
    workload.module.train(workload.trains)
    return workload


def outputs(result: Any) -> list[torch.Tensor]:
    """The tensors of what a model returns."""
    if isinstance(result, torch.Tensor):
        return [result]
    return [value for value in result.to_tuple() if isinstance(value, torch.Tensor)]


def evaluate(
    workload: Workload, module: Callable[..., Any], parameters: Sequence[nn.Parameter], size: int
) -> list[torch.Tensor]:
    """What is judged: the outputs, or for training the loss and the gradients of `parameters`.

    `module` is the workload's module, a copy of it in another dtype, or the compiled one.
    """
    x = workload.input(size)
    if x.is_floating_point() and parameters:
        x = x.to(parameters[0].dtype)
    if not workload.trains:
        with torch.no_grad():
            return outputs(module(x))
    loss = module(x)
    return [loss.detach(), *torch.autograd.grad(loss, list(parameters))]
