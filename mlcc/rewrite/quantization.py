"""PyTorch's operators of quantized models, taken apart into plain operators.

`torch.export` and `convert_pt2e` put those of `quantized_decomposed` around products and convolutions. In the graph IR
a quantized tensor is what these operators compute: integers, scales and zero points (decisions 0043 and 0044).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

# Whoever uses the operators has imported what defines them.
_DEFINED_BY = "torch.ao.quantization.fx._decomposed"

_Number: TypeAlias = torch.Tensor | float
_Integer: TypeAlias = torch.Tensor | int


def _quantized(
    x: torch.Tensor, inverse: _Number, zero: _Integer, low: int, high: int, dtype: torch.dtype
) -> torch.Tensor:
    return torch.clamp(torch.round(x.float() * inverse) + zero, low, high).to(dtype)


def quantize_per_tensor(
    x: torch.Tensor,
    scale: _Number,
    zero_point: _Integer,
    quant_min: _Integer,
    quant_max: _Integer,
    dtype: torch.dtype,
) -> Any:
    """Integers of `dtype` for `x` of f32, bf16 or f16; scale and zero point are numbers, or tensors of one element."""
    if isinstance(quant_min, torch.Tensor) or isinstance(quant_max, torch.Tensor):
        return NotImplemented
    if x.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return NotImplemented  # which eager refuses
    if isinstance(scale, torch.Tensor) and isinstance(zero_point, torch.Tensor):
        # Eager computes with Python's number, a double.
        inverse = (1.0 / scale.double().reshape([])).float()
        zero = zero_point.reshape([])
        return _quantized(x, inverse, zero, quant_min, quant_max, dtype)
    return _quantized(x, 1.0 / scale, zero_point, quant_min, quant_max, dtype)


def dequantize_per_tensor(
    x: torch.Tensor,
    scale: _Number,
    zero_point: _Integer,
    quant_min: _Integer,
    quant_max: _Integer,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> Any:
    """(x - zero point) * scale in `out_dtype`, float32 if not given."""
    del quant_min, quant_max
    if x.dtype != dtype:
        return NotImplemented
    wide = out_dtype or torch.float32
    if isinstance(scale, torch.Tensor):
        if wide != torch.float32:
            return NotImplemented  # eager multiplies by Python's number, which is not rounded
        scale = scale.reshape([]).float()
    if isinstance(zero_point, torch.Tensor):
        zero_point = zero_point.reshape([])
    return (x.to(wide) - zero_point) * scale


def choose_qparams(
    x: torch.Tensor, quant_min: int, quant_max: int, eps: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """A scale (float64, [1]) and a zero point (int64, [1]) for all that is in `x`.

    Eager's kernel raises where `x` has NaN; this gives NaN then.
    """
    del dtype
    low, high = torch.aminmax(x)
    low, high = low.clamp(max=0), high.clamp(min=0)
    least = torch.full([1], eps, dtype=torch.float32, device=x.device)
    scale = torch.maximum((high - low) / float(quant_max - quant_min), least)
    zero = quant_min - torch.round(low / scale).to(torch.int32)
    return scale.double(), torch.clamp(zero, quant_min, quant_max).long()


def choose_qparams_symmetric(
    x: torch.Tensor, quant_min: int, quant_max: int, eps: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same with zero points of 0, or 128 of uint8."""
    low, high = torch.aminmax(x)
    high = torch.maximum(-low.clamp(max=0), high.clamp(min=0))
    least = torch.full([1], eps, dtype=torch.float32, device=x.device)
    scale = torch.maximum(high / (float(quant_max - quant_min) / 2), least)
    zero = 128 if dtype == torch.uint8 else 0
    return scale.double(), torch.full([1], zero, dtype=torch.int64, device=x.device)


def _along(values: torch.Tensor, axis: int, x: torch.Tensor) -> torch.Tensor:
    shape = [1] * x.dim()
    shape[axis] = -1
    return values.reshape(shape)


def quantize_per_channel(
    x: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> Any:
    """Integers of `dtype`; a scale and a zero point for each place along `axis`."""
    if x.dtype not in (torch.float32, torch.bfloat16, torch.float16) or axis >= x.dim():
        return NotImplemented
    inverse, zero = 1.0 / _along(scales, axis, x), _along(zero_points, axis, x)
    return _quantized(x, inverse, zero, quant_min, quant_max, dtype)


def dequantize_per_channel(
    x: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor | None,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> Any:
    """(x - zero point) * scale for each place along `axis`, in `out_dtype`, float32 if not given."""
    del quant_min, quant_max
    if x.dtype != dtype or axis >= x.dim():
        return NotImplemented
    values = x if zero_points is None else x - _along(zero_points, axis, x)
    return (values * _along(scales, axis, x)).to(out_dtype or torch.float32)


def weight_int8pack_mm(x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor) -> Any:
    """`x` [rows, terms] times `weight` [columns, terms] of int8, each column scaled, summed in f32, as `x` has it."""
    if x.device.type != "cpu":
        return NotImplemented
    return ((x.float() @ weight.float().t()) * scales.float()).to(x.dtype)


# Numbers from here on do not fit into the integer that eager's kernel for channels makes of them.
_NO_INTEGER = 2.0**63
# Differences of integers up to here, and of a zero point among them, are exact in f32.
_MOST_EXACT = 2**23


def _is_faked(x: torch.Tensor, quant_min: int, quant_max: int) -> bool:
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    return x.dtype in dtypes and -_MOST_EXACT <= quant_min <= quant_max <= _MOST_EXACT


def _fake_quantized(
    x: torch.Tensor,
    scale: torch.Tensor,
    zero: _Integer,
    low: int,
    high: int,
    *,
    limit: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`x` rounded to multiples of the scale (f32), and where it is between the integers.

    NaN becomes the lowest of them, as in eager's kernels, and so does what reaches the `limit`.
    """
    numbers = torch.round(x.float() * (1.0 / scale)) + zero
    is_number = numbers == numbers if limit is None else numbers.abs() < limit
    clamped = torch.clamp(torch.where(is_number, numbers, float(low)), low, high)
    is_inside = is_number & (numbers >= low) & (numbers <= high)
    return ((clamped - zero) * scale).to(x.dtype), is_inside


def fake_quantize_per_tensor(
    x: torch.Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int
) -> Any:
    """`x` of f32, bf16 or f16 rounded to a scale's multiples, in its dtype, and a mask of what was in the range."""
    if not _is_faked(x, quant_min, quant_max):
        return NotImplemented
    exact = torch.full([], scale, dtype=torch.float32, device=x.device)
    return _fake_quantized(x, exact, zero_point, quant_min, quant_max)


def fake_quantize_per_tensor_if(
    x: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    enabled: torch.Tensor,
    quant_min: int,
    quant_max: int,
) -> Any:
    """The same with tensors of one element, where `enabled` is not 0; else `x` itself, all of it in the range."""
    if not _is_faked(x, quant_min, quant_max) or scale.dtype != torch.float32:
        return NotImplemented
    zero = zero_point.reshape([]).float()
    rounded, is_inside = _fake_quantized(x, scale.reshape([]), zero, quant_min, quant_max)
    is_off = enabled.reshape([]) == 0
    return torch.where(is_off, x, rounded), is_off | is_inside


def fake_quantize_per_channel(
    x: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
) -> Any:
    """The same with a scale and a zero point for each place along `axis`."""
    if not _is_faked(x, quant_min, quant_max) or scale.dtype != torch.float32:
        return NotImplemented
    if zero_point.dtype != torch.int32:
        return NotImplemented  # of what is no integer eager cuts off the fraction
    zero = _along(zero_point, axis, x).float()
    return _fake_quantized(x, _along(scale, axis, x), zero, quant_min, quant_max, limit=_NO_INTEGER)


_DECOMPOSITIONS: dict[str, Callable[..., Any]] = {
    "choose_qparams.tensor": choose_qparams,
    "choose_qparams_symmetric.tensor": choose_qparams_symmetric,
    "quantize_per_tensor.default": quantize_per_tensor,
    "quantize_per_tensor.tensor": quantize_per_tensor,
    "dequantize_per_tensor.default": dequantize_per_tensor,
    "dequantize_per_tensor.tensor": dequantize_per_tensor,
    "quantize_per_channel.default": quantize_per_channel,
    "dequantize_per_channel.default": dequantize_per_channel,
}


def table() -> dict[Any, Callable[..., Any]]:
    """Operator -> function that computes it by others, of those that this process has."""
    if _DEFINED_BY not in sys.modules:
        return {}
    found = {}
    for name, function in _DECOMPOSITIONS.items():
        packet, _, overload = name.partition(".")
        found[getattr(getattr(torch.ops.quantized_decomposed, packet), overload)] = function
    return found
