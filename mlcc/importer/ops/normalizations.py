"""How norms and softmax, which torch's traces take whole, become nodes of the graph IR.

16-bit floats are computed in f32 and rounded once. Numbers of other dtypes are left to eager, which refuses them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node

from mlcc.importer.context import Context, is_row_major
from mlcc.importer.ops.reductions import extreme_of, variance_of
from mlcc.ir.sizes import Size
from mlcc.ir.types import (
    DTYPES,
    FLOATS,
    OPMATH,
    Tensor,
    Unsupported,
    device_of,
    source_line,
)
from mlcc.torch_private import symints


class _Parts:
    """The nodes that one op becomes. Each knows where the user wrote the op."""

    def __init__(self, context: Context, node: Node) -> None:
        self.context = context
        self.bound = context.bind(node)
        self.results = node.meta["val"]
        self._node = node
        self._source = source_line(node)

    def fake(self, name: str) -> Any:
        """The fake tensor of the argument of this name, or None."""
        return self.context.fake(self.bound[name])

    def wide(self, name: str) -> str:
        """The dtype that the argument is computed in."""
        dtype = DTYPES[self.fake(name).dtype]
        if dtype not in FLOATS:
            raise Unsupported(f"a norm of {dtype}")
        return OPMATH.get(dtype, dtype)

    def has(self, name: str) -> bool:
        """Whether the argument is given."""
        return self.bound[name] is not None

    def argument(self, name: str, dtype: str) -> Tensor:
        """A tensor argument rounded to the dtype."""
        return self.cast(self.context.tensor(self.bound[name]), dtype)

    def row_major(self, name: str, dtype: str) -> Tensor:
        """The same, of a copy where it does not lie in row-major order."""
        x = self.context.tensor(self.bound[name])
        if not _is_contiguous(self.fake(name)):
            x = self._noted(self.context.copy(x))
        return self.cast(x, dtype)

    def strides(self, name: str) -> list[Size] | None:
        """How an argument lies that is not in row-major order."""
        return self.context.tensor_type(self._node, self.fake(name)).strides

    def laid(self, x: Tensor, strides: list[Size] | None) -> Tensor:
        """A node made here, in these strides."""
        if strides is not None:
            self.context.builder.set_strides(x.handle, strides)
        return x

    def cast(self, x: Tensor, dtype: str) -> Tensor:
        """The value rounded to the dtype."""
        return x if x.dtype == dtype else self._noted(self.context.cast(x, dtype))

    def rounded(self, x: Tensor, place: int) -> Tensor:
        """The value in the dtype of the op's result at `place`."""
        return self.cast(x, DTYPES[self.results[place].dtype])

    def op(self, name: str, *operands: Tensor) -> Tensor:
        """A pointwise op of floats, computed in the widest dtype among the operands."""
        dtype = "f64" if any(x.dtype == "f64" for x in operands) else operands[0].dtype
        cast = [self.cast(x, dtype) for x in operands]
        return self._noted(self.context.pointwise(name, *cast))

    def plus(self, x: Tensor, number: Any) -> Tensor:
        """The sum with a number."""
        return self.op("add", x, self.context.number(number, x.dtype))

    def reduce(self, op: str, x: Tensor, dims: Sequence[int]) -> Tensor:
        """A reduction that keeps dimensions."""
        return self._noted(self.context.reduce(op, x, dims, True))

    def reshape(self, x: Tensor, shape: Sequence[Size]) -> Tensor:
        """The same elements in row-major order."""
        return self._noted(self.context.reshape(x, shape))

    def filled(self, place: int, number: float = 0) -> Tensor:
        """The op's result at `place` as a constant."""
        fake = self.results[place]
        dtype = DTYPES[fake.dtype]
        shape = self.context.shape(fake)
        return Tensor(self.context.full(shape, dtype, number, device_of(fake)), dtype)

    def _noted(self, x: Tensor) -> Tensor:
        if self._source:
            self.context.builder.set_source(x.handle, self._source)
        return x


def _is_contiguous(fake: torch.Tensor) -> bool:
    """By what the trace has assumed so far; adds no guard."""
    if is_row_major(fake) or any(symints.is_known(size == 0) for size in fake.shape):
        return True
    expected: Any = 1
    for size, stride in zip(reversed(fake.shape), reversed(fake.stride()), strict=True):
        if not symints.is_known(size == 1) and not symints.is_known(stride == expected):
            return False
        expected = expected * size
    return True


# -- batch norms


def batch_norm_without_training(context: Context, node: Node) -> list[Tensor]:
    """_native_batch_norm_legit_no_training and _batch_norm_no_update, by the steps of eager's kernel for the device."""
    parts = _Parts(context, node)
    is_cpu = parts.fake("input").device.type == "cpu"
    result, *saved = (_by_factors if is_cpu else _by_steps)(parts)
    results = [parts.rounded(result, 0), *saved]
    return results + [parts.filled(place) for place in range(len(results), len(parts.results))]


def _by_factors(parts: _Parts) -> list[Tensor]:
    """A factor and an offset for each channel, which depend on parameters and buffers alone. Nothing is saved."""
    wide = parts.wide("input")
    factor = _inverse_deviation(parts, parts.argument("running_var", wide))
    if parts.has("weight"):
        factor = parts.op("mul", factor, parts.argument("weight", wide))
    mean = parts.op("neg", parts.argument("running_mean", wide))
    offset = parts.op("mul", mean, factor)
    if parts.has("bias"):
        offset = parts.op("add", offset, parts.argument("bias", wide))
    layout = parts.strides("input")
    x = _image(parts, wide, layout)
    x = parts.laid(parts.op("mul", x, _of_channels(parts, factor)), layout)
    return [parts.laid(parts.op("add", x, _of_channels(parts, offset)), layout)]


def _by_steps(parts: _Parts) -> list[Tensor]:
    """The result and, as kernels for GPUs save them, the mean and the inverse of the standard deviation."""
    wide = parts.wide("input")
    mean = parts.argument("running_mean", wide)
    inverse = _inverse_deviation(parts, parts.argument("running_var", wide))
    layout = parts.strides("input")
    x = _image(parts, wide, layout)
    steps = [("sub", mean), ("mul", inverse)]
    steps += [
        (op, parts.argument(name, wide))
        for op, name in (("mul", "weight"), ("add", "bias"))
        if parts.has(name)
    ]
    for op, operand in steps:
        x = parts.laid(parts.op(op, x, _of_channels(parts, operand)), layout)
    return [x, parts.rounded(parts.context.copy(mean), 1), parts.rounded(inverse, 2)]


def _inverse_deviation(parts: _Parts, variance: Tensor) -> Tensor:
    return parts.op("reciprocal", parts.op("sqrt", parts.plus(variance, parts.bound["eps"])))


def _image(parts: _Parts, dtype: str, layout: list[Size] | None) -> Tensor:
    x = parts.argument("input", dtype)
    is_made = DTYPES[parts.fake("input").dtype] != dtype
    return parts.laid(x, layout) if is_made else x


def _of_channels(parts: _Parts, x: Tensor) -> Tensor:
    """One number for each channel of the input, as an operand beside it."""
    fake = parts.fake("input")
    channels = parts.context.size(fake.shape[1])
    return parts.reshape(x, [1, channels, *[1] * (fake.dim() - 2)])


# -- norms of elements that lie together


def layer_norm(context: Context, node: Node) -> list[Tensor]:
    """native_layer_norm: the result, the mean and the inverse of the standard deviation."""
    parts = _Parts(context, node)
    wide = parts.wide("input")
    x = parts.row_major("input", wide)
    fake = parts.fake("input")
    dims = _last_dims(fake, parts.bound["normalized_shape"])
    variance, mean = variance_of(context, x, fake, dims, True)
    inverse = parts.op("rsqrt", parts.plus(variance, parts.bound["eps"]))
    result = parts.op("mul", parts.op("sub", x, mean), inverse)
    for op, name in (("mul", "weight"), ("add", "bias")):
        if parts.has(name):
            result = parts.op(op, result, _parameter(parts, name, result))
    return [parts.rounded(value, place) for place, value in enumerate((result, mean, inverse))]


def _last_dims(fake: torch.Tensor, shape: Sequence[Any]) -> list[int]:
    return list(range(fake.dim() - len(shape), fake.dim()))


def _parameter(parts: _Parts, name: str, beside: Tensor) -> Tensor:
    dtype = DTYPES[parts.fake(name).dtype]
    if dtype not in FLOATS:
        raise Unsupported(f"{name} is {dtype}")
    return parts.row_major(name, "f64" if dtype == "f64" else beside.dtype)


# -- softmax


def softmax(context: Context, node: Node) -> Tensor:
    """_softmax."""
    return _softmax(_Parts(context, node), _quotient)


def log_softmax(context: Context, node: Node) -> Tensor:
    """_log_softmax."""
    return _softmax(_Parts(context, node), _difference)


def _softmax(parts: _Parts, finish: Callable[[_Parts, Tensor, list[int]], Tensor]) -> Tensor:
    dim = parts.bound["dim"]
    wide = parts.wide("self")
    x = parts.row_major("self", wide)
    return parts.cast(_of_shifted(parts, x, dim, finish), DTYPES[parts.results.dtype])


def _of_shifted(
    parts: _Parts, x: Tensor, dim: int, finish: Callable[[_Parts, Tensor, list[int]], Tensor]
) -> Tensor:
    """What `finish` makes of x less the largest along `dim`, and of the dims that are added up."""
    fake = parts.fake("self")
    dims = [dim % fake.dim()] if fake.dim() else []
    return finish(parts, parts.op("sub", x, _largest(parts, x, fake, dims)), dims)


def _largest(parts: _Parts, x: Tensor, fake: torch.Tensor, dims: list[int]) -> Tensor:
    """The maximum, also of what may be empty: beside one -inf more."""
    if not all(symints.is_known(fake.shape[d] > 0) for d in dims):
        shape = parts.context.shape(fake)
        shape[dims[0]] = 1
        least = parts.context.full(shape, x.dtype, -math.inf, device_of(fake))
        x = parts.context.cat([x, Tensor(least, x.dtype)], dims[0])
    return extreme_of(parts.context, "max", x, dims, True)


def _quotient(parts: _Parts, x: Tensor, dims: list[int]) -> Tensor:
    powers = parts.op("exp", x)
    return parts.op("div", powers, parts.reduce("sum", powers, dims))


def _difference(parts: _Parts, x: Tensor, dims: list[int]) -> Tensor:
    sums = parts.reduce("sum", parts.op("exp", x), dims)
    return parts.op("sub", x, parts.op("log", sums))


def safe_softmax(context: Context, node: Node) -> Tensor:
    """_safe_softmax: zeros where a row is nothing but -inf."""
    parts = _Parts(context, node)
    result = DTYPES[parts.results.dtype]
    if result not in FLOATS:
        raise Unsupported(f"softmax of {result}")
    wide = OPMATH.get(result, result)
    x = parts.row_major("self", result)
    weights = _of_shifted(parts, parts.cast(x, wide), parts.bound["dim"], _quotient)
    weights = parts.cast(weights, result)
    compared = parts.argument("self", "f64" if parts.fake("self").dtype == torch.float64 else "f32")
    least = context.number(-math.inf, compared.dtype)
    is_masked = context.pointwise("eq", compared, least, dtype="bool")
    parts.laid(is_masked, parts.strides("self"))
    dims = [parts.bound["dim"] % parts.results.dim()] if parts.results.dim() else []
    rows = parts.reduce("all", is_masked, dims)
    shape = context.shape(parts.results)
    zeros = Tensor(context.full(shape, result, 0, device_of(parts.results)), result)
    return context.pointwise("where", rows, zeros, weights, dtype=result)
