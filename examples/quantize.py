"""A ResNet-18 and a BERT of 8 bits: how large, how fast and how close to their float models they are.

usage: python examples/quantize.py [--small]      needs torchao, and transformers for the models

PyTorch quantizes: `torch.export`, then `prepare_pt2e` and `convert_pt2e` of torchao, here with observers that look at
one batch. `torch.compile(..., backend="mlcc")` needs nothing else; linear layers and convolutions multiply integers.
"""

from __future__ import annotations

import argparse
import copy
import logging
import math
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

logging.disable(logging.WARNING)  # torchao tells of libraries for GPUs
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86
logging.disable(logging.NOTSET)


class Output(nn.Module):
    """One tensor of what a model of transformers gives."""

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        self.model, self.name = model, name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What the model makes of images [N, 3, H, W], or of embeddings [N, length, width]."""
        result: torch.Tensor = getattr(self.model(x), self.name)
        return result


class Encoder(nn.Module):
    """The layers of a BERT, behind its embeddings."""

    def __init__(self, small: bool) -> None:
        super().__init__()
        import transformers

        layers, width = (1, 64) if small else (6, 768)
        config = transformers.BertConfig(
            num_hidden_layers=layers,
            hidden_size=width,
            num_attention_heads=width // 64,
            intermediate_size=4 * width,
            attn_implementation="sdpa",
        )
        self.layers = transformers.BertModel(config).encoder

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of embeddings [N, length, width]."""
        result: torch.Tensor = self.layers(x)[0]
        return result


def resnet(small: bool) -> tuple[nn.Module, torch.Tensor]:
    """The classifier, and an image."""
    import transformers

    config = transformers.ResNetConfig(
        depths=[1, 1] if small else [2, 2, 2, 2],
        hidden_sizes=[16, 32] if small else [64, 128, 256, 512],
        embedding_size=16 if small else 64,
        layer_type="basic",
    )
    model = transformers.ResNetForImageClassification(config)
    return Output(model, "logits").eval(), torch.randn(1, 3, 64 if small else 224, 224)


def bert(small: bool) -> tuple[nn.Module, torch.Tensor]:
    """The encoder, and embeddings of 128 tokens."""
    return Encoder(small).eval(), torch.randn(1, 128, 64 if small else 768)


def quantize(model: nn.Module, x: torch.Tensor) -> Any:
    """The model with weights and activations of 8 bits, whose scales are those of `x`."""
    exported = torch.export.export(copy.deepcopy(model), (x,)).module()
    config = x86.get_default_x86_inductor_quantization_config()
    prepared = prepare_pt2e(exported, x86.X86InductorQuantizer().set_global(config))
    prepared(x)
    return convert_pt2e(prepared)


def mebibytes(model: nn.Module) -> float:
    """Of parameters and buffers, as far as a traced model reads them."""
    tensors = dict([*model.named_parameters(), *model.named_buffers()])
    if isinstance(model, torch.fx.GraphModule):
        read = {str(node.target) for node in model.graph.find_nodes(op="get_attr") if node.users}
        tensors = {name: one for name, one in tensors.items() if name in read}
    return sum(one.numel() * one.element_size() for one in tensors.values()) / 2**20


def milliseconds(model: Callable[[torch.Tensor], Any], x: torch.Tensor, calls: int) -> float:
    """The best of so many calls."""
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        model(x)
        times.append(time.perf_counter() - start)
    return min(times) * 1e3


def decibels(signal: torch.Tensor, other: torch.Tensor) -> float:
    """Signal over noise."""
    return 10 * math.log10(float(signal.square().sum() / (signal - other).square().sum()))


def row(name: str, model: nn.Module, x: torch.Tensor, calls: int) -> str:
    """Of the table."""
    of_bytes = quantize(model, x)
    compiled = torch.compile(model, backend="mlcc")
    quick = torch.compile(of_bytes, backend="mlcc")
    compiled(x)
    noise = decibels(model(x), quick(x))
    times = [milliseconds(one, x, calls) for one in (model, compiled, quick)]
    sizes = f"{mebibytes(model):6.1f} > {mebibytes(of_bytes):5.1f}"
    return f"{name:8s} {sizes} {times[0]:9.2f} {times[1]:8.2f} {times[2]:9.2f} {noise:8.1f}"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--small", action="store_true", help="models that take no time")
    small = parser.parse_args().small
    print(
        f"{'model':8s} {'MiB':>14s} {'eager ms':>9s} {'mlcc ms':>8s} {'8 bits ms':>9s} {'SQNR dB':>8s}"
    )
    with torch.no_grad():
        for name, make in (("resnet", resnet), ("bert", bert)):
            torch.manual_seed(0)
            print(row(name, *make(small), calls=3 if small else 30))


if __name__ == "__main__":
    main()
