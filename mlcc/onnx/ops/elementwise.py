"""Ops of single elements."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from mlcc.onnx.dtypes import WIDE_UNSIGNED
from mlcc.onnx.program import Node, as_tensor, device_of
from mlcc.onnx.registry import op
from mlcc.onnx.sizes import Sizes, by_integers, combine, divide


def _unary(
    name: str, function: Callable[[Tensor], Tensor], on_numbers: Callable[[Any], Any] | None = None
) -> None:
    def handler(node: Node, x: Any) -> Any:
        if isinstance(x, Sizes):
            if on_numbers is not None:
                return Sizes([on_numbers(item) for item in x.items], dtype=x.dtype, shape=x.shape)
            x = x.tensor()
        return function(x)

    op(name, sizes=True)(handler)


def _sign(x: Tensor) -> Tensor:
    return (
        torch.where(torch.isnan(x), x, torch.sign(x))
        if x.dtype.is_floating_point
        else torch.sign(x)
    )


def _rounded(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def on_number(item: Any) -> Any:
        return item if isinstance(item, (int, torch.SymInt)) else torch.sym_float(function(item))

    return on_number


_unary("Abs", torch.abs, lambda v: v if not isinstance(v, (int, float)) else abs(v))
_unary("Neg", torch.neg, lambda v: -v)
_unary("Ceil", torch.ceil, _rounded(math.ceil))
_unary("Floor", torch.floor, _rounded(math.floor))
_unary("Round", torch.round)
_unary("Sqrt", torch.sqrt)
_unary("Exp", torch.exp)
_unary("Log", torch.log)
_unary("Sin", torch.sin)
_unary("Cos", torch.cos)
_unary("Tan", torch.tan)
_unary("Asin", torch.asin)
_unary("Acos", torch.acos)
_unary("Atan", torch.atan)
_unary("Sinh", torch.sinh)
_unary("Cosh", torch.cosh)
_unary("Tanh", torch.tanh)
_unary("Asinh", torch.asinh)
_unary("Acosh", torch.acosh)
_unary("Atanh", torch.atanh)
_unary("Erf", torch.erf)
_unary("Sign", _sign)
_unary("Sigmoid", torch.sigmoid)
_unary("Relu", torch.relu)
_unary("Softsign", F.softsign)
_unary("Mish", F.mish)
_unary("HardSwish", lambda x: x * torch.clamp(x / 6 + 0.5, 0, 1))
_unary("IsNaN", torch.isnan)
_unary("Not", torch.logical_not, lambda v: not v)
_unary("Reciprocal", torch.reciprocal)


@op("Identity", sizes=True, unsigned=True)
def identity(node: Node, x: Any) -> Any:
    return x


@op("BitwiseNot")
def bitwise_not(node: Node, x: Tensor) -> Tensor:
    return torch.bitwise_not(x)


@op("IsInf")
def is_inf(node: Node, x: Tensor) -> Tensor:
    positive, negative = node.get("detect_positive", 1), node.get("detect_negative", 1)
    if positive and negative:
        return torch.isinf(x)
    if not positive and not negative:
        return torch.zeros_like(x, dtype=torch.bool)
    return torch.isposinf(x.float()) if positive else torch.isneginf(x.float())


def _binary(
    name: str, function: Callable[[Tensor, Tensor], Tensor], on_numbers: Any, to_bool: bool = False
) -> None:
    def handler(node: Node, a: Any, b: Any) -> Any:
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            return function(a, b)
        known = node.as_sizes(a, b)
        if known is not None and on_numbers is not None:
            if name == "Div" and known[0].dtype.is_floating_point:
                return combine(lambda x, y: x / y, *known)
            return combine(on_numbers, *known, dtype=torch.bool if to_bool else None)
        device = device_of((a, b))
        return function(as_tensor(a, device), as_tensor(b, device))

    op(name, sizes=True)(handler)


def _divide(a: Tensor, b: Tensor) -> Tensor:
    if a.dtype.is_floating_point or a.dtype.is_complex:
        return torch.div(a, b)
    return torch.div(a, b, rounding_mode="trunc")


def _truth(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], bool]:
    return lambda a, b: bool(function(a, b))


_binary("Add", torch.add, by_integers(lambda a, b: a + b))
_binary("Sub", torch.sub, by_integers(lambda a, b: a - b))
_binary("Mul", torch.mul, by_integers(lambda a, b: a * b))
_binary("Div", _divide, divide)
_binary("And", torch.logical_and, _truth(lambda a, b: a and b), True)
_binary("Or", torch.logical_or, _truth(lambda a, b: a or b), True)
_binary("Xor", torch.logical_xor, _truth(lambda a, b: bool(a) != bool(b)), True)
_binary("Equal", torch.eq, _truth(lambda a, b: a == b), True)
_binary("Greater", torch.gt, _truth(lambda a, b: a > b), True)
_binary("GreaterOrEqual", torch.ge, _truth(lambda a, b: a >= b), True)
_binary("Less", torch.lt, _truth(lambda a, b: a < b), True)
_binary("LessOrEqual", torch.le, _truth(lambda a, b: a <= b), True)
_binary("BitwiseAnd", torch.bitwise_and, None)
_binary("BitwiseOr", torch.bitwise_or, None)
_binary("BitwiseXor", torch.bitwise_xor, None)


@op("Mod", sizes=True)
def mod(node: Node, a: Any, b: Any) -> Any:
    known = node.as_sizes(a, b)
    if known is not None and not node.get("fmod", 0):
        return combine(lambda x, y: x % y, *known)
    device = device_of((a, b))
    function = torch.fmod if node.get("fmod", 0) else torch.remainder
    return function(as_tensor(a, device), as_tensor(b, device))


@op("Pow")
def power(node: Node, a: Tensor, b: Tensor) -> Tensor:
    if 1 in node.constants and b.dim() == 0:
        exponent = node.constants[1].number
        if (
            not a.dtype.is_floating_point
            and isinstance(exponent, float)
            and exponent != int(exponent)
        ):
            return torch.pow(a.double(), exponent).to(a.dtype)
        return torch.pow(a, exponent if a.dtype.is_floating_point else int(exponent))
    return torch.pow(a, b).to(a.dtype)


@op("BitShift", unsigned=True)
def bit_shift(node: Node, a: Tensor, b: Tensor) -> Tensor:
    wide, count = a.to(torch.int64), b.to(torch.int64)
    if node.get("direction") == "LEFT":
        return (wide << count).to(a.dtype)
    if a.dtype == torch.uint64:  # a logical shift of what i64 takes for a sign
        shifted = (wide >> count) & ~(torch.full_like(wide, -1) << (64 - count).clamp(max=63))
        return torch.where(count == 0, wide, shifted).to(a.dtype)
    return (wide >> count).to(a.dtype)


def _variadic(name: str, function: Callable[[Tensor, Tensor], Tensor], on_numbers: Any) -> None:
    def handler(node: Node, *values: Any) -> Any:
        known = node.as_sizes(*values)
        if known is not None:
            return functools.reduce(lambda a, b: combine(on_numbers, a, b), known)
        device = device_of(values)
        return functools.reduce(function, [as_tensor(value, device) for value in values])

    op(name, sizes=True)(handler)


_variadic("Sum", torch.add, lambda a, b: a + b)
_variadic("Max", torch.maximum, torch.sym_max)
_variadic("Min", torch.minimum, torch.sym_min)


@op("Mean")
def mean(node: Node, *values: Tensor) -> Tensor:
    return functools.reduce(torch.add, values) / len(values)


@op("Where", sizes=True, unsigned=True)
def where(node: Node, condition: Any, a: Any, b: Any) -> Any:
    known = node.as_sizes(condition, a, b)
    if known is not None:
        return combine(lambda c, x, y: x if c else y, *known, dtype=known[1].dtype)
    device = device_of((condition, a, b))
    condition, a, b = (as_tensor(value, device) for value in (condition, a, b))
    if a.dtype in WIDE_UNSIGNED:
        return torch.where(condition, a.to(torch.int64), b.to(torch.int64)).to(a.dtype)
    return torch.where(condition, a, b)


# Activations with attributes.


@op("LeakyRelu")
def leaky_relu(node: Node, x: Tensor) -> Tensor:
    return F.leaky_relu(x, node.get("alpha", 0.01))


@op("Elu")
def elu(node: Node, x: Tensor) -> Tensor:
    return F.elu(x, node.get("alpha", 1.0))


@op("Celu")
def celu(node: Node, x: Tensor) -> Tensor:
    return F.celu(x, node.get("alpha", 1.0))


@op("Selu")
def selu(node: Node, x: Tensor) -> Tensor:
    alpha, gamma = (
        node.get("alpha", 1.67326319217681884765625),
        node.get("gamma", 1.05070102214813232421875),
    )
    return gamma * torch.where(x > 0, x, alpha * (torch.exp(x) - 1))


@op("HardSigmoid")
def hard_sigmoid(node: Node, x: Tensor) -> Tensor:
    return torch.clamp(node.get("alpha", 0.2) * x + node.get("beta", 0.5), 0, 1)


@op("Softplus")
def softplus(node: Node, x: Tensor) -> Tensor:
    return F.softplus(x, threshold=60.0)


@op("ThresholdedRelu")
def thresholded_relu(node: Node, x: Tensor) -> Tensor:
    return torch.where(x > node.get("alpha", 1.0), x, torch.zeros_like(x))


@op("Shrink")
def shrink(node: Node, x: Tensor) -> Tensor:
    lambd, bias = node.get("lambd", 0.5), node.get("bias", 0.0)
    zero = torch.zeros_like(x)
    return torch.where(x < -lambd, x + bias, torch.where(x > lambd, x - bias, zero)).to(x.dtype)


@op("Gelu")
@op("Gelu", domain="com.microsoft")
def gelu(node: Node, x: Tensor) -> Tensor:
    return F.gelu(x, approximate=node.get("approximate", "none"))


@op("Swish")
def swish(node: Node, x: Tensor) -> Tensor:
    alpha = node.get("alpha", 1.0)
    return F.silu(x) if alpha == 1.0 else x * torch.sigmoid(alpha * x)


@op("PRelu")
def prelu_of_channels(node: Node, x: Tensor, slope: Tensor) -> Tensor:
    """Before version 7 a slope of rank 1 was one per channel."""
    if slope.dim() == 1 and slope.numel() > 1:
        slope = slope.reshape(-1, *[1] * (x.dim() - 2))
    return torch.where(x < 0, x * slope, x)


@op("PRelu", since=7)
def prelu(node: Node, x: Tensor, slope: Tensor) -> Tensor:
    return torch.where(x < 0, x * slope, x)


@op("Clip")
def clip_by_attributes(node: Node, x: Tensor) -> Tensor:
    return torch.clamp(x, node.get("min", -math.inf), node.get("max", math.inf))


@op("Clip", since=11)
def clip(node: Node, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    if (low is None or 1 in node.constants) and (high is None or 2 in node.constants):
        lowest = None if low is None else node.constants[1].number
        highest = None if high is None else node.constants[2].number
        if lowest is None and highest is None:
            return x
        if lowest is not None and highest is not None:
            lowest = min(lowest, highest)  # ONNX: the maximum wins
        return torch.clamp(x, lowest, highest)
    if low is not None:
        x = torch.maximum(x, low)
    return x if high is None else torch.minimum(x, high)
