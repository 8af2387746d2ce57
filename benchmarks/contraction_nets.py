"""The networks of benchmarks/contraction_models.py: whole models with random weights whose sizes are arguments.

net = NETS["bert"].build(batch=8, size=128, width=768)
net.module(*net.inputs)         # a tensor or a tuple of tensors; inputs of net.in_place change

What `transformers` has comes from there; a decode step, MobileNet, U-Net and the recurrent ones are plain modules.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded

HEAD = 64  # of each attention head
VOCABULARY_OF_GPT2, VOCABULARY_OF_LLAMA = 50257, 32000
LAYERS_OF_GPT2, LAYERS_OF_LLAMA = 12, 6


@dataclass(frozen=True)
class Net:
    """A module in eval mode and what it is called with."""

    module: nn.Module
    inputs: tuple[Tensor, ...]
    in_place: tuple[int, ...] = ()


@dataclass(frozen=True)
class Kind:
    """How a net is built, and the sizes it has where nothing else is asked for."""

    title: str
    make: Callable[[int, int, int], Net]
    width: int  # of the first hidden layer: features, or channels
    sizes: tuple[str, ...]  # batch x length, side of the image, or length of the cache
    group: str  # whose rows are told together
    has_roofline: bool = True  # whether it is judged by its share

    def build(self, batch: int, size: int, width: int) -> Net:
        """With random weights and inputs, the same at each call."""
        torch.manual_seed(0)
        net = self.make(batch, size, width)
        net.module.eval()
        _randomize_statistics(net.module)
        return net


def _randomize_statistics(module: nn.Module) -> None:
    """Batch norms as after training."""
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.normal_(layer.running_mean, std=0.1)
            nn.init.uniform_(layer.running_var, 0.5, 1.5)


class Attribute(nn.Module):
    """A model of `transformers` whose result is one of its tensors."""

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        self.model = model
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        """The tensor of that name."""
        result: Tensor = getattr(self.model(x), self.name)
        return result


# -- of transformers


def _bert(batch: int, size: int, width: int) -> Net:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=width,
        num_attention_heads=width // HEAD,
        intermediate_size=4 * width,
        max_position_embeddings=max(512, size),
    )
    ids = torch.randint(0, config.vocab_size, (batch, size))
    return Net(Attribute(BertModel(config), "last_hidden_state"), (ids,))


def _gpt2(batch: int, size: int, width: int) -> Net:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_embd=width, n_head=width // HEAD, n_positions=max(1024, size), use_cache=False
    )
    ids = torch.randint(0, config.vocab_size, (batch, size))
    return Net(Attribute(GPT2LMHeadModel(config), "logits"), (ids,))


def _llama(batch: int, size: int, width: int) -> Net:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY_OF_LLAMA,
        hidden_size=width,
        num_hidden_layers=LAYERS_OF_LLAMA,
        num_attention_heads=width // HEAD,
        num_key_value_heads=max(1, width // HEAD // 3),
        intermediate_size=_gated_width(width),
        use_cache=False,
    )
    ids = torch.randint(0, config.vocab_size, (batch, size))
    return Net(Attribute(LlamaForCausalLM(config), "logits"), (ids,))


def _gated_width(width: int) -> int:
    return width * 8 // 3


def _vit(batch: int, size: int, width: int) -> Net:
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(
        hidden_size=width,
        num_attention_heads=width // HEAD,
        intermediate_size=4 * width,
        image_size=size,
    )
    model = ViTModel(config, add_pooling_layer=False)
    return Net(Attribute(model, "last_hidden_state"), (torch.randn(batch, 3, size, size),))


def _resnet(layer: str, depths: list[int], expansion: int) -> Callable[[int, int, int], Net]:
    def make(batch: int, size: int, width: int) -> Net:
        from transformers import ResNetConfig, ResNetForImageClassification

        config = ResNetConfig(
            depths=depths,
            hidden_sizes=[width * expansion * 2**stage for stage in range(4)],
            embedding_size=width,
            layer_type=layer,
            num_labels=1000,
        )
        model = ResNetForImageClassification(config)
        return Net(Attribute(model, "logits"), (torch.randn(batch, 3, size, size),))

    return make


# -- one step of decoding


class DecodeLayer(nn.Module):
    """A layer of GPT-2, or with `is_gated` one of Llama, for one new token and a cache that it is written to."""

    def __init__(self, width: int, is_gated: bool) -> None:
        super().__init__()
        self.heads = width // HEAD
        self.groups = max(1, self.heads // 3) if is_gated else self.heads
        self.is_gated = is_gated
        self.before_attention, self.before_mlp = _norm(width, is_gated), _norm(width, is_gated)
        bias = not is_gated
        self.query = nn.Linear(width, width, bias=bias)
        self.key = nn.Linear(width, self.groups * HEAD, bias=bias)
        self.value = nn.Linear(width, self.groups * HEAD, bias=bias)
        self.out = nn.Linear(width, width, bias=bias)
        inner = _gated_width(width) if is_gated else 4 * width
        self.up = nn.Linear(width, inner, bias=bias)
        self.down = nn.Linear(inner, width, bias=bias)
        if is_gated:
            self.gate = nn.Linear(width, inner, bias=False)

    def forward(
        self, x: Tensor, place: Tensor, mask: Tensor, rotation: Tensor, keys: Tensor, values: Tensor
    ) -> Tensor:
        """The hidden state [batch, 1, width] after the layer."""
        hidden = self.before_attention(x)
        query = self._split(self.query(hidden), self.heads)
        key, value = (self._split(one(hidden), self.groups) for one in (self.key, self.value))
        if self.is_gated:
            query, key = _rotate(query, rotation), _rotate(key, rotation)
        keys.index_copy_(2, place, key)
        values.index_copy_(2, place, value)
        attended = functional.scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, enable_gqa=self.groups != self.heads
        )
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        hidden = self.before_mlp(x)
        if self.is_gated:
            return x + self.down(functional.silu(self.gate(hidden)) * self.up(hidden))
        return x + self.down(functional.gelu(self.up(hidden), approximate="tanh"))

    @staticmethod
    def _split(x: Tensor, heads: int) -> Tensor:
        return x.unflatten(-1, (heads, HEAD)).transpose(1, 2)


def _norm(width: int, is_gated: bool) -> nn.Module:
    """The epsilon of RMSNorm is given: that of its default depends on the dtype, which compilers read differently."""
    return nn.RMSNorm(width, eps=1e-6) if is_gated else nn.LayerNorm(width)


def _rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """By the angles of the token's place."""
    cos, sin = rotation.cos(), rotation.sin()
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)


class DecodeStep(nn.Module):
    """One token to its logits; keys and values of all layers are in caches that the step writes to."""

    def __init__(self, vocabulary: int, layers: int, width: int, length: int, is_gated: bool):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = None if is_gated else nn.Embedding(length, width)
        self.layers = nn.ModuleList(DecodeLayer(width, is_gated) for _ in range(layers))
        self.norm = _norm(width, is_gated)
        self.head = nn.Linear(width, vocabulary, bias=False)
        if not is_gated:
            self.head.weight = self.tokens.weight
        self.register_buffer("even", torch.arange(0, HEAD, 2))  # integers: angles stay float32
        self.register_buffer("all_places", torch.arange(length))

    def forward(self, ids: Tensor, place: Tensor, *caches: Tensor) -> Tensor:
        """`ids` [batch, 1], `place` [1], then a cache of keys and one of values for each layer."""
        x = self.tokens(ids)
        if self.places is not None:
            x = x + self.places(place)
        mask = (self.all_places <= place)[None, None, None]
        rotation = place * 10000.0 ** -(self.even / HEAD)
        for number, layer in enumerate(self.layers):
            keys, values = caches[2 * number : 2 * number + 2]
            x = layer(x, place, mask, rotation, keys, values)
        logits: Tensor = self.head(self.norm(x))
        return logits


def _decode(vocabulary: int, count: int, is_gated: bool) -> Callable[[int, int, int], Net]:
    def make(batch: int, size: int, width: int) -> Net:
        module = DecodeStep(vocabulary, count, width, size, is_gated)
        for parameter in module.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
        layer = module.layers[0]
        assert isinstance(layer, DecodeLayer)
        shape = (batch, layer.groups, size, HEAD)
        caches = [torch.randn(shape) for _ in range(2 * count)]
        ids = torch.randint(0, vocabulary, (batch, 1))
        inputs = (ids, torch.tensor([size - 1]), *caches)
        return Net(module, inputs, tuple(range(2, len(inputs))))

    return make


# -- of convolutions


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> Any:
    padding = kernel // 2
    layer = nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs))


class InvertedResidual(nn.Module):
    """Wider, depthwise, narrower; added to its input where the shapes allow."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = inputs * expansion
        self.is_residual = stride == 1 and inputs == outputs
        widen = [_convolution(inputs, inner, 1), nn.ReLU6()] if expansion > 1 else []
        depthwise = [_convolution(inner, inner, 3, stride, groups=inner), nn.ReLU6()]
        self.layers = nn.Sequential(*widen, *depthwise, _convolution(inner, outputs, 1))

    def forward(self, x: Tensor) -> Tensor:
        """The block."""
        y: Tensor = self.layers(x)
        return x + y if self.is_residual else y


# Expansion, width, blocks, stride, where the first layer has 32 channels: the table of the paper on MobileNetV2.
_MOBILENET = (
    *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
    *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
)


def _mobilenet(batch: int, size: int, width: int) -> Net:
    layers: list[nn.Module] = [_convolution(3, width, 3, 2), nn.ReLU6()]
    inputs = width
    for expansion, outputs_of_32, blocks, first_stride in _MOBILENET:
        outputs = outputs_of_32 * width // 32
        for block in range(blocks):
            stride = first_stride if block == 0 else 1
            layers.append(InvertedResidual(inputs, outputs, stride, expansion))
            inputs = outputs
    last = 40 * width
    layers += [_convolution(inputs, last, 1), nn.ReLU6()]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, 1000)]
    return Net(nn.Sequential(*layers), (torch.randn(batch, 3, size, size),))


class UNet(nn.Module):
    """Three levels down and up again, what is on the way down joined on the way up; transposed convolutions go up."""

    def __init__(self, width: int, levels: int = 3) -> None:
        super().__init__()
        widths = [width << level for level in range(levels + 1)]
        self.down = nn.ModuleList(
            self._pair(inputs, outputs)
            for inputs, outputs in zip([3, *widths[:-1]], widths, strict=True)
        )
        pairs = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in pairs)
        self.join = nn.ModuleList(self._pair(a, b) for a, b in pairs)
        self.last = nn.Conv2d(width, 2, 1)

    @staticmethod
    def _pair(inputs: int, outputs: int) -> nn.Module:
        first, second = _convolution(inputs, outputs, 3), _convolution(outputs, outputs, 3)
        return nn.Sequential(first, nn.ReLU(), second, nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        """Two numbers for each pixel; the sides are multiples of 8."""
        kept = []
        for level, layer in enumerate(self.down):
            x = layer(functional.max_pool2d(x, 2) if level else x)
            kept.append(x)
        kept.pop()
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat((up(x), kept.pop()), 1))
        result: Tensor = self.last(x)
        return result


def _unet(batch: int, size: int, width: int) -> Net:
    return Net(UNet(width), (torch.randn(batch, 3, size, size),))


# -- recurrent


class Recurrent(nn.Module):
    """The outputs of all steps."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """`x` [batch, length, width]."""
        outputs: Tensor = self.layer(x)[0]
        return outputs


def _recurrent(layer: Callable[..., nn.Module]) -> Callable[[int, int, int], Net]:
    def make(batch: int, size: int, width: int) -> Net:
        module = Recurrent(layer(width, width, batch_first=True))
        return Net(module, (torch.randn(batch, size, width),))

    return make


_GPT2_STEP = _decode(VOCABULARY_OF_GPT2, LAYERS_OF_GPT2, is_gated=False)
_LLAMA_STEP = _decode(VOCABULARY_OF_LLAMA, LAYERS_OF_LLAMA, is_gated=True)
_RESNET_18 = _resnet("basic", [2, 2, 2, 2], 1)
_RESNET_50 = _resnet("bottleneck", [3, 4, 6, 3], 4)

NETS: dict[str, Kind] = {
    "bert": Kind("BERT-base", _bert, 768, ("1x128", "8x128"), "gemm"),
    "gpt2": Kind("GPT-2 small", _gpt2, 768, ("1x128",), "gemm"),
    "gpt2_decode": Kind("GPT-2 small, a step", _GPT2_STEP, 768, ("1x512",), "decode"),
    "llama": Kind("Llama-style, 6 layers", _llama, 768, ("1x128",), "gemm"),
    "llama_decode": Kind("Llama-style, a step", _LLAMA_STEP, 768, ("1x512",), "decode"),
    "vit": Kind("ViT-B/16", _vit, 768, ("1x224",), "gemm"),
    "resnet18": Kind("ResNet-18", _RESNET_18, 64, ("1x224",), "conv"),
    "resnet50": Kind("ResNet-50", _RESNET_50, 64, ("1x224",), "conv"),
    "mobilenet": Kind("MobileNet-style", _mobilenet, 32, ("1x224",), "conv"),
    "unet": Kind("U-Net", _unet, 32, ("1x128",), "conv", has_roofline=False),
    "gru": Kind("GRU", _recurrent(nn.GRU), 256, ("8x32",), "recurrent", has_roofline=False),
    "lstm": Kind("LSTM", _recurrent(nn.LSTM), 256, ("8x32",), "recurrent", has_roofline=False),
}
