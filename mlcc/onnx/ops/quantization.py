"""Conversions of element types, and integers with scales."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mlcc._errors import Error
from mlcc.onnx.dtypes import DTYPES, FLOAT4, FLOAT8, NARROW_INTEGERS
from mlcc.onnx.ops.convolutions import convolve
from mlcc.onnx.ops.shapes import normalized
from mlcc.onnx.program import Node, as_tensor
from mlcc.onnx.registry import op
from mlcc.onnx.sizes import Sizes

_FLOAT4_STEPS = ((2.0, 0.5), (4.0, 1.0), (6.0, 2.0))  # below a value: the distance of neighbours


def convert(x: Tensor, code: int, saturate: bool = True, rounding: str = "up") -> Tensor:
    """The values as the element type `code` has them."""
    if code not in DTYPES:
        raise Error(f"onnx: Cast to element type {code} is not supported")
    dtype = DTYPES[code]
    if code in NARROW_INTEGERS:
        low, high = NARROW_INTEGERS[code]
        return (((x.to(torch.int64) - low) & (high - low)) + low).to(dtype)
    if code == FLOAT4:
        return _as_float4(x.to(torch.float32))
    if code == 24:
        return _as_e8m0(x.to(torch.float32), saturate, rounding)
    if code in FLOAT8:
        x = x if x.dtype == torch.float32 else x.to(torch.float32)
        highest = torch.finfo(dtype).max
        if saturate:
            x = x.clamp(-highest, highest)
        elif code == 17:  # torch has the largest value for what is beyond it
            x = torch.where(x.abs() > highest + 2.0**4, torch.nan, x)
        return x.to(dtype)
    if x.dtype.is_floating_point and x.dtype.itemsize == 1:
        x = x.to(torch.float32)
    if x.dtype.is_floating_point and code in (
        4,
        12,
        13,
    ):  # numbers below zero keep their lower bits
        return x.to(torch.int64).to(dtype) if code != 13 else x.to(dtype)
    return x.to(dtype)


def _as_float4(x: Tensor) -> Tensor:
    size = x.abs().clamp(max=6.0)
    step = torch.full_like(x, _FLOAT4_STEPS[-1][1])
    for limit, distance in reversed(_FLOAT4_STEPS):
        step = torch.where(size < limit, distance, step)
    return torch.copysign(torch.round(size / step) * step, x)


def _as_e8m0(x: Tensor, saturate: bool, rounding: str) -> Tensor:
    bits = x.abs().view(torch.int32)
    exponent, rest = bits >> 23, bits & 0x7FFFFF
    if rounding == "up":
        up = rest > 0
    elif rounding == "nearest":
        up = rest >= 0x400000
    else:
        up = torch.zeros_like(rest, dtype=torch.bool)
    found = exponent + up.to(torch.int32)
    found = torch.where((exponent == 0) & (rest > 0x400000) & (rounding != "down"), 1, found)
    found = torch.where((exponent == 0) & (rest <= 0x400000), 0, found)
    found = torch.where(found >= 255, 254 if saturate else 255, found)
    found = torch.where(torch.isnan(x), 255, found)
    return found.to(torch.uint8).view(torch.float8_e8m0fnu)


@op("Cast", sizes=True, unsigned=True)
def cast(node: Node, x: Any) -> Any:
    code = node.get("to")
    if (
        isinstance(x, Tensor)
        and 0 in node.constants
        and code in (6, 7)
        and not x.dtype.is_floating_point
    ):
        x = node.constants[0]
    if isinstance(x, Sizes):
        if code in (1, 6, 7, 9, 11):
            return x.cast(DTYPES[code])
        x = x.tensor()
    return convert(x, code, bool(node.get("saturate", 1)), node.get("round_mode", "up"))


@op("CastLike", sizes=True, unsigned=True)
def cast_like(node: Node, x: Any, like: Any) -> Any:
    x = as_tensor(x)
    code = node.get("like_type", 0) or next(c for c, d in DTYPES.items() if d == like.dtype)
    return convert(x, code, bool(node.get("saturate", 1)), node.get("round_mode", "up"))


@op("BitCast", unsigned=True)
def bit_cast(node: Node, x: Tensor) -> Tensor:
    return x.view(DTYPES[node.get("to")])


def _along(x: Tensor, parameter: Tensor, axis: int, block: int) -> Tensor:
    """A scale or a zero point, shaped so that it meets the elements that it belongs to."""
    if parameter.dim() == 0 or (parameter.dim() == 1 and parameter.numel() == 1 and not block):
        return parameter.reshape(())
    axis = normalized(axis, x.dim())
    if parameter.dim() == 1 and not block:
        return parameter.reshape([-1 if i == axis else 1 for i in range(x.dim())])
    count = block or -(-x.shape[axis] // parameter.shape[axis])
    return parameter.repeat_interleave(count, axis).narrow(axis, 0, x.shape[axis])


def _shift(node: Node, x: Tensor, zero: Tensor | None, dtype: torch.dtype) -> Tensor | int:
    """The zero point beside the elements: a number where the file tells one, so that programs see that it is 0."""
    known = node.constants.get(2)
    if zero is None:
        return 0
    if known is not None and known.items and len(set(known.items)) == 1:
        return int(known.number)
    return _along(x, zero.to(dtype), node.get("axis", 1), node.get("block_size", 0))


def _limits(code: int) -> tuple[int, int]:
    if code in NARROW_INTEGERS:
        return NARROW_INTEGERS[code]
    facts = torch.iinfo(DTYPES[code])
    return facts.min, facts.max


@op("QuantizeLinear", unsigned=True)
def quantize(node: Node, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    axis, block = node.get("axis", 1), node.get("block_size", 0)
    code = node.get("output_dtype", 0) or node.get("zero_type", 0)
    if not code:
        code = 2 if zero is None else next(c for c, d in DTYPES.items() if d == zero.dtype)
    precision = DTYPES[node.get("precision", 0)] if node.get("precision", 0) else scale.dtype
    precision = torch.float32 if precision.itemsize == 1 else precision
    y = x.to(precision) / _along(x, scale, axis, block).to(precision)
    if code in FLOAT8 or code == FLOAT4:
        return convert(y if zero is None else y + _along(x, zero.to(y.dtype), axis, block), code)
    y = torch.round(y.to(torch.float32) if y.dtype != torch.float64 else y)
    shift = _shift(node, x, zero, torch.int32)
    if isinstance(shift, Tensor) or shift != 0:
        y = y + shift
    low, high = _limits(code)
    return y.clamp(low, high).to(torch.int32).to(DTYPES[code])


@op("DequantizeLinear", unsigned=True)
def dequantize(node: Node, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    axis, block = node.get("axis", 1), node.get("block_size", 0)
    code = node.get("output_dtype", 0)
    dtype = DTYPES[code] if code else scale.dtype
    dtype = torch.float32 if dtype.itemsize == 1 else dtype
    if not x.dtype.is_floating_point:
        wide = x.to(torch.int32)
        shift = _shift(node, x, zero, torch.int32)
        if isinstance(shift, Tensor) or shift != 0:
            wide = wide - shift
    else:
        wide = x.to(torch.float32)
        if zero is not None:
            wide = wide - _along(x, zero.to(torch.float32), axis, block)
    factor = _along(x, scale, axis, block)
    if factor.dtype.itemsize == 1:
        factor = factor.to(torch.float32)
    return (wide.to(factor.dtype) * factor).to(dtype)


@op("DynamicQuantizeLinear")
def dynamic_quantize(node: Node, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    low, high = torch.clamp(torch.amin(x), max=0), torch.clamp(torch.amax(x), min=0)
    scale = (high - low) / 255
    safe = torch.where(scale == 0, torch.ones_like(scale), scale)
    zero = torch.round((0 - low / safe).clamp(0, 255))
    y = (torch.round(x / safe) + zero).clamp(0, 255)
    return y.to(torch.uint8), scale, zero.to(torch.uint8)


def _centered(x: Tensor, zero: Tensor | None, axis: int) -> Tensor:
    wide = x.to(torch.int32)
    if zero is None:
        return wide
    zero = zero.to(torch.int32)
    if zero.dim() == 1 and zero.numel() > 1:
        zero = zero.reshape([-1 if i == axis % x.dim() else 1 for i in range(x.dim())])
    return wide - (zero.reshape(()) if zero.numel() == 1 else zero)


@op("MatMulInteger")
def matmul_integer(
    node: Node, a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None
) -> Tensor:
    return torch.matmul(_centered(a, a_zero, -2), _centered(b, b_zero, -1))


def _convolve_integers(node: Node, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    """By floats that hold all sums exactly."""
    terms = w[0].numel()
    dtype = torch.float32 if terms * 2**16 < 2**24 and bias is None else torch.float64
    return convolve(node, x.to(dtype), w.to(dtype), None if bias is None else bias.to(dtype))


@op("ConvInteger")
def conv_integer(
    node: Node, x: Tensor, w: Tensor, x_zero: Tensor | None = None, w_zero: Tensor | None = None
) -> Tensor:
    y = _convolve_integers(node, _centered(x, x_zero, 0), _centered(w, w_zero, 0))
    return torch.round(y).to(torch.int32)


def _requantized(y: Tensor, factor: Tensor, zero: Tensor) -> Tensor:
    facts = torch.iinfo(zero.dtype)
    rounded = torch.round(y * factor) + zero.to(torch.int32)
    return rounded.clamp(facts.min, facts.max).to(torch.int32).to(zero.dtype)


@op("QLinearMatMul")
def qlinear_matmul(
    node: Node, a: Tensor, a_scale: Tensor, a_zero: Tensor, b: Tensor, b_scale: Tensor, b_zero: Tensor,
    y_scale: Tensor, y_zero: Tensor,
) -> Tensor:  # fmt: skip
    def column(t: Tensor) -> Tensor:
        return (
            t.unsqueeze(-1)
            if t.dim() == 1 and t.numel() > 1
            else t.reshape(())
            if t.numel() == 1
            else t
        )

    a_wide, b_wide = a.to(torch.int32) - column(a_zero.to(torch.int32)), _centered(b, b_zero, -1)
    y = torch.matmul(a_wide, b_wide).to(torch.float32)
    factor = column(a_scale) * (b_scale.reshape(()) if b_scale.numel() == 1 else b_scale) / y_scale
    return _requantized(y, factor.to(torch.float32), y_zero)


@op("QLinearConv")
def qlinear_conv(
    node: Node, x: Tensor, x_scale: Tensor, x_zero: Tensor, w: Tensor, w_scale: Tensor, w_zero: Tensor,
    y_scale: Tensor, y_zero: Tensor, bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    y = _convolve_integers(node, _centered(x, x_zero, 0), _centered(w, w_zero, 0), bias)
    factor = x_scale.reshape(()) * w_scale / y_scale.reshape(())
    factor = factor.reshape(()) if factor.numel() == 1 else factor.reshape(-1, *[1] * (x.dim() - 2))
    return _requantized(y, factor, y_zero.reshape(()))
