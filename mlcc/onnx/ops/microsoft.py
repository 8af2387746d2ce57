"""Ops of com.microsoft that ONNX Runtime's tools write: fused layers, and products of quantized weights."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from mlcc._errors import Error
from mlcc.onnx.ops import quantization
from mlcc.onnx.ops.convolutions import convolve
from mlcc.onnx.ops.shapes import normalized, product
from mlcc.onnx.program import Node
from mlcc.onnx.registry import MICROSOFT, op

op("QuantizeLinear", domain=MICROSOFT, unsigned=True)(quantization.quantize)
op("DequantizeLinear", domain=MICROSOFT, unsigned=True)(quantization.dequantize)


@op("FastGelu", domain=MICROSOFT)
def fast_gelu(node: Node, x: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.gelu(x if bias is None else x + bias, approximate="tanh")


@op("BiasGelu", domain=MICROSOFT)
def bias_gelu(node: Node, x: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(x + bias)


@op("QuickGelu", domain=MICROSOFT)
def quick_gelu(node: Node, x: Tensor) -> Tensor:
    return x * torch.sigmoid(node.get("alpha", 1.702) * x)


def _activated(node: Node, x: Tensor) -> Tensor:
    name, parameters = node.get("activation", ""), node.get("activation_params") or []
    first = parameters[0] if parameters else node.get("activation_alpha")
    second = parameters[1] if len(parameters) > 1 else node.get("activation_beta")
    if name == "":
        return x
    if name == "Relu":
        return torch.relu(x)
    if name == "Sigmoid":
        return torch.sigmoid(x)
    if name == "Tanh":
        return torch.tanh(x)
    if name == "LeakyRelu":
        return F.leaky_relu(x, 0.01 if first is None else first)
    if name == "Clip":
        return torch.clamp(x, first, second)
    if name == "HardSigmoid":
        alpha, beta = 0.2 if first is None else first, 0.5 if second is None else second
        return torch.clamp(alpha * x + beta, 0, 1)
    raise Error(f"onnx: {node.op} {node.name!r}: activation {name!r} is not known")


@op("FusedConv", domain=MICROSOFT)
def fused_conv(
    node: Node, x: Tensor, w: Tensor, b: Tensor | None = None, z: Tensor | None = None
) -> Tensor:
    y = convolve(node, x, w, b)
    return _activated(node, y if z is None else y + z)


@op("FusedGemm", domain=MICROSOFT)
def fused_gemm(node: Node, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    a = a.t() if node.get("transA", 0) else a
    b = b.t() if node.get("transB", 0) else b
    y = torch.matmul(a, b) * node.get("alpha", 1.0)
    return _activated(node, y if c is None else y + c * node.get("beta", 1.0))


@op("FusedMatMul", "TransposeMatMul", domain=MICROSOFT)
def fused_matmul(node: Node, a: Tensor, b: Tensor) -> Tensor:
    def arranged(x: Tensor, batch: int, last: int) -> Tensor:
        if batch and x.dim() > 2:  # [rows, batch..., columns]
            x = x.movedim(0, -2)
        return x.transpose(-1, -2) if last and x.dim() > 1 else x

    a = arranged(a, node.get("transBatchA", 0), node.get("transA", 0))
    b = arranged(b, node.get("transBatchB", 0), node.get("transB", 0))
    y = torch.matmul(a, b)
    return y if node.get("alpha", 1.0) == 1.0 else y * node.get("alpha", 1.0)


@op("SimplifiedLayerNormalization", domain="")
@op("SimplifiedLayerNormalization", domain=MICROSOFT)
def simplified_layer_normalization(node: Node, x: Tensor, scale: Tensor) -> Any:
    return _rms(node, x, scale, node.get("axis", -1))


def _rms(node: Node, x: Tensor, scale: Tensor, axis: int = -1) -> tuple[Tensor, Tensor]:
    wide = x.to(torch.float32)
    axes = list(range(axis % x.dim(), x.dim()))
    inverse = torch.rsqrt(torch.mean(wide * wide, axes, keepdim=True) + node.get("epsilon", 1e-5))
    return (wide * inverse).to(x.dtype) * scale, inverse


@op("SkipLayerNormalization", domain=MICROSOFT)
def skip_layer_normalization(
    node: Node,
    x: Tensor,
    skip: Tensor,
    gamma: Tensor,
    beta: Tensor | None = None,
    bias: Tensor | None = None,
) -> tuple[Any, ...]:
    total = x + skip if bias is None else x + skip + bias
    y = F.layer_norm(total, [total.shape[-1]], gamma, beta, node.get("epsilon", 1e-12))
    return y, None, None, total


@op("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_simplified_layer_normalization(
    node: Node, x: Tensor, skip: Tensor, gamma: Tensor, bias: Tensor | None = None
) -> tuple[Any, ...]:
    total = x + skip if bias is None else x + skip + bias
    y, inverse = _rms(node, total, gamma)
    return y, None, inverse, total


@op("EmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_normalization(
    node: Node, ids: Tensor, segments: Tensor | None, words: Tensor, places: Tensor, kinds: Tensor | None,
    gamma: Tensor, beta: Tensor, mask: Tensor | None = None, positions: Tensor | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    count = ids.shape[1]
    placed = places[:count] if positions is None else F.embedding(positions.to(torch.int64), places)
    total = F.embedding(ids.to(torch.int64), words) + placed
    if segments is not None and kinds is not None:
        total = total + F.embedding(segments.to(torch.int64), kinds)
    y = F.layer_norm(total, [total.shape[-1]], gamma, beta, node.get("epsilon", 1e-12))
    lengths = mask.sum(1) if mask is not None else torch.zeros(ids.shape[0], device=ids.device)
    return y, lengths.to(torch.int32), total


# Quantized weights.


def _unpacked(packed: Tensor, bits: int) -> Tensor:
    """Numbers of few bits; the lowest bits of a byte come first. The last axis grows."""
    if bits == 8:
        return packed
    mask = (1 << bits) - 1
    parts = [(packed >> shift) & mask for shift in range(0, 8, bits)]
    return torch.stack(parts, -1).flatten(-2)


@op("MatMulNBits", domain=MICROSOFT)
def matmul_n_bits(
    node: Node, x: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor | None = None,
    groups: Tensor | None = None, bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    k, n, bits, block = node.get("K"), node.get("N"), node.get("bits", 4), node.get("block_size")
    if bits not in (2, 4, 8):
        raise Error(f"onnx: MatMulNBits {node.name!r}: weights of {bits} bits are not supported")
    blocks = -(-k // block)
    levels = _unpacked(packed.reshape(n, blocks, -1), bits)  # [n, blocks, block]
    scales = scales.reshape(n, blocks, 1)
    if zeros is None:
        zero: Any = 1 << (bits - 1)
    elif zeros.dtype == torch.uint8:
        zero = _unpacked(zeros.reshape(n, -1), bits)[:, :blocks].unsqueeze(-1).to(scales.dtype)
    else:
        zero = zeros.reshape(n, blocks, 1)
    if groups is not None and groups.numel() == k:  # columns are in blocks of their own
        flat, of = levels.reshape(n, -1)[:, :k].to(scales.dtype), groups.to(torch.int64)
        shift = zero if not isinstance(zero, Tensor) else zero[:, :, 0].index_select(1, of)
        weight = (flat - shift) * scales[:, :, 0].index_select(1, of)
    else:
        weight = ((levels.to(scales.dtype) - zero) * scales).reshape(n, -1)[:, :k]
    return F.linear(x, weight.to(x.dtype), bias)


@op("MatMulIntegerToFloat", domain=MICROSOFT)
def matmul_integer_to_float(
    node: Node, a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, a_zero: Tensor | None = None,
    b_zero: Tensor | None = None, bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    y = quantization.matmul_integer(node, a, b, a_zero, b_zero).to(a_scale.dtype) * (
        a_scale * b_scale
    )
    return y if bias is None else y + bias


@op("DynamicQuantizeMatMul", domain=MICROSOFT)
def dynamic_quantize_matmul(
    node: Node,
    a: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    levels, scale, zero = quantization.dynamic_quantize(node, a)
    return matmul_integer_to_float(node, levels, b, scale, b_scale, zero, b_zero, bias)


def _real(x: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    wide = x.to(torch.int32)
    if zero is not None:
        wide = wide - zero.to(torch.int32)
    return wide.to(torch.float32) * scale


def _levels(y: Tensor, scale: Tensor, zero: Tensor | None, like: Tensor) -> Tensor:
    facts = torch.iinfo(like.dtype)
    levels = torch.round(y / scale)
    if zero is not None:
        levels = levels + zero.to(torch.int32)
    return levels.clamp(facts.min, facts.max).to(torch.int32).to(like.dtype)


@op("QLinearAdd", "QLinearMul", domain=MICROSOFT)
def qlinear_binary(
    node: Node, a: Tensor, a_scale: Tensor, a_zero: Tensor | None, b: Tensor, b_scale: Tensor,
    b_zero: Tensor | None, scale: Tensor, zero: Tensor | None = None,
) -> Tensor:  # fmt: skip
    left, right = _real(a, a_scale, a_zero), _real(b, b_scale, b_zero)
    return _levels(left + right if node.op == "QLinearAdd" else left * right, scale, zero, a)


@op("QLinearSigmoid", "QLinearLeakyRelu", domain=MICROSOFT)
def qlinear_activation(
    node: Node,
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor | None,
    scale: Tensor,
    zero: Tensor | None = None,
) -> Tensor:
    real = _real(x, x_scale, x_zero)
    y = (
        torch.sigmoid(real)
        if node.op == "QLinearSigmoid"
        else F.leaky_relu(real, node.get("alpha", 0.01))
    )
    return _levels(y, scale, zero, x)


@op("QLinearSoftmax", domain=MICROSOFT)
def qlinear_softmax(
    node: Node,
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor | None,
    scale: Tensor,
    zero: Tensor | None = None,
) -> Tensor:
    """`opset`: of Softmax, which before 13 is over all axes from `axis` on."""
    is_old = node.get("opset", 13) < 13
    axis = normalized(node.get("axis", 1 if is_old else -1), x.dim())
    real = _real(x, x_scale, x_zero)
    if is_old:
        return _levels(torch.softmax(real.flatten(axis), axis).reshape(x.shape), scale, zero, x)
    return _levels(torch.softmax(real, axis), scale, zero, x)


@op("QLinearGlobalAveragePool", domain=MICROSOFT)
def qlinear_global_average_pool(
    node: Node, x: Tensor, x_scale: Tensor, x_zero: Tensor, scale: Tensor, zero: Tensor
) -> Tensor:
    first = 1 if node.get("channels_last", 0) else 2
    last = x.dim() - 1 if node.get("channels_last", 0) else x.dim()
    real = torch.mean(_real(x, x_scale, x_zero), list(range(first, last)), keepdim=True)
    return _levels(real, scale, zero, x)


@op("QLinearConcat", domain=MICROSOFT)
def qlinear_concat(node: Node, scale: Tensor, zero: Tensor, *values: Tensor) -> Tensor:
    parts = [_real(*values[i : i + 3]) for i in range(0, len(values), 3)]
    return _levels(torch.cat(parts, node.get("axis")), scale, zero, values[0])


@op("QGemm", domain=MICROSOFT)
def qgemm(
    node: Node, a: Tensor, a_scale: Tensor, a_zero: Tensor, b: Tensor, b_scale: Tensor, b_zero: Tensor,
    c: Tensor | None = None, scale: Tensor | None = None, zero: Tensor | None = None,
) -> Tensor:  # fmt: skip
    left, right = a.to(torch.int32) - a_zero.to(torch.int32), b.to(torch.int32)
    left = left.t() if node.get("transA", 0) else left
    if node.get("transB", 0):
        right = right.t()
    total = torch.matmul(left, right - b_zero.to(torch.int32))
    if c is not None:
        total = total + c
    y = total.to(torch.float32) * (node.get("alpha", 1.0) * a_scale * b_scale)
    return y if scale is None else _levels(y, scale, zero, a)


def heads_of(x: Tensor, count: int) -> Tensor:
    """[batch, length, heads * size] as [batch, heads, length, size]."""
    batch, length, width = x.shape
    return x.reshape(batch, length, count, width // count).transpose(1, 2)


def merged(x: Tensor) -> Tensor:
    batch, heads, length, size = x.shape
    return x.transpose(1, 2).reshape(batch, length, product((heads, size)))
