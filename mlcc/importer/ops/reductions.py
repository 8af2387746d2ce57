"""How reductions become nodes of the graph IR."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from mlcc.importer.context import Context
from mlcc.ir.types import DTYPES, OPMATH, Handler, Tensor, Unsupported, device_of
from mlcc.torch_private import symints


def _dims(context: Context, node: Node, name: str = "dim") -> tuple[list[int], bool]:
    """(dims counted from the front, keepdim); no dims given means all."""
    bound = context.bind(node)
    rank = context.fake(node.args[0]).dim()
    dims = bound.get(name)
    if dims is None or dims == []:
        dims = list(range(rank))
    elif isinstance(dims, int):
        dims = [dims]
    dims = sorted({d % rank for d in dims}) if rank else []
    return dims, bool(bound.get("keepdim", False))


def _summed(context: Context, node: Node, op: str) -> tuple[Tensor, list[int]]:
    """sum or prod in the dtype that eager accumulates in; and the dims."""
    x = context.tensor(node.args[0])
    result = DTYPES[node.meta["val"].dtype]
    x = context.cast(context.cast(x, result), OPMATH.get(result, result))
    dims, keepdim = _dims(context, node)
    return context.reduce(op, x, dims, keepdim), dims


def sum_(context: Context, node: Node) -> Tensor:
    """sum with and without dims."""
    x, _ = _summed(context, node, "sum")
    return context.cast(x, DTYPES[node.meta["val"].dtype])


def prod(context: Context, node: Node) -> Tensor:
    """prod with and without dim."""
    dtype = DTYPES[node.meta["val"].dtype]
    if dtype == "bool":
        dims, keepdim = _dims(context, node)
        x = context.cast(context.tensor(node.args[0]), "bool")
        return context.reduce("all", x, dims, keepdim)
    x, _ = _summed(context, node, "prod")
    return context.cast(x, dtype)


def mean(context: Context, node: Node) -> Tensor:
    """mean: the sum over the count, in the dtype of the sum."""
    x, dims = _summed(context, node, "sum")
    count = element_count(context, context.fake(node.args[0]), dims, x.dtype)
    return context.cast(context.pointwise("div", x, count), DTYPES[node.meta["val"].dtype])


def element_count(
    context: Context, fake: torch.Tensor, dims: Sequence[int], dtype: str, less: float = 0
) -> Tensor:
    """How many elements a reduction over `dims` takes in, less a correction (not below 0), as a 0-d constant."""
    count: Any = math.prod([fake.shape[d] for d in dims])
    size = context.size(count)
    if isinstance(size, int):
        return context.number(max(0, size - less), dtype)
    if less and int(less) != less:
        raise Unsupported("correction is no integer")
    text = f"max(0, {size} - {int(less)})" if less else size
    return context.cast(Tensor(context.builder.size_value(text), "i64"), dtype)


def _check_extent(fake: torch.Tensor, dims: Sequence[int]) -> None:
    """Unsupported where there may be nothing to choose from: eager's kernel says what is wrong."""
    if not all(symints.is_known(fake.shape[d] != 0) for d in dims):
        raise Unsupported("an extreme of what may be empty")


def extreme(op: str) -> Handler:
    """amax, amin, max and min of all elements."""

    def handler(context: Context, node: Node) -> Tensor:
        x = context.tensor(node.args[0])
        dims, keepdim = _dims(context, node)
        _check_extent(context.fake(node.args[0]), dims)
        return extreme_of(context, op, x, dims, keepdim)

    return handler


def extreme_of(context: Context, op: str, x: Tensor, dims: Sequence[int], keepdim: bool) -> Tensor:
    """Reduction max or min of any dtype: the core compares floats in f32 and f64."""
    if x.dtype == "bool":
        return context.reduce({"max": "any", "min": "all"}[op], x, dims, keepdim)
    wide = context.cast(x, OPMATH.get(x.dtype, x.dtype))
    return context.cast(context.reduce(op, wide, dims, keepdim), x.dtype)


def extreme_index_of(
    context: Context, op: str, x: Tensor, dims: Sequence[int], keepdim: bool
) -> Tensor:
    """Reduction argmax or argmin of any dtype."""
    comparable = context.cast(x, "u8" if x.dtype == "bool" else OPMATH.get(x.dtype, x.dtype))
    return context.reduce(op, comparable, dims, keepdim)


def extreme_with_index(op: str) -> Handler:
    """max.dim and min.dim: values and the first index of each."""

    def handler(context: Context, node: Node) -> list[Tensor]:
        x = context.tensor(node.args[0])
        dims, keepdim = _dims(context, node)
        if not dims:
            zero = context.number(0, "i64", device_of(node.meta["val"][1]))
            return [context.copy(x), zero]
        _check_extent(context.fake(node.args[0]), dims)
        values = extreme_of(context, op, x, dims, keepdim)
        return [values, extreme_index_of(context, f"arg{op}", x, dims, keepdim)]

    return handler


def extreme_index(op: str) -> Handler:
    """argmax and argmin; without dim over all elements in row-major order."""

    def handler(context: Context, node: Node) -> Tensor:
        bound = context.bind(node)
        x = context.tensor(bound["self"])
        fake = context.fake(bound["self"])
        shape = context.shape(node.meta["val"])
        if x.dtype == "bool":
            raise Unsupported("eager refuses bools")
        if fake.dim() == 0:
            return Tensor(context.full(shape, "i64", 0, device_of(fake)), "i64")
        _check_extent(fake, range(fake.dim()) if bound["dim"] is None else [bound["dim"]])
        if bound["dim"] is None:
            flat = context.reshape(x, [context.size(math.prod(fake.shape))])
            index = extreme_index_of(context, op, flat, [0], False)
            return context.reshape(index, shape) if shape else index
        return extreme_index_of(context, op, x, [bound["dim"] % fake.dim()], bool(bound["keepdim"]))

    return handler


def truth(op: str) -> Handler:
    """any and all; of u8 tensors eager gives u8."""

    def handler(context: Context, node: Node) -> Tensor:
        x = context.cast(context.tensor(node.args[0]), "bool")
        dims, keepdim = _dims(context, node)
        return context.cast(context.reduce(op, x, dims, keepdim), DTYPES[node.meta["val"].dtype])

    return handler


def _variance(context: Context, node: Node) -> tuple[Tensor, Tensor]:
    """(variance, mean) by two passes, in f32 or f64, in the shape that keepdim asks for."""
    bound = context.bind(node)
    fake = context.fake(bound["self"])
    dtype = DTYPES[fake.dtype]
    computed = OPMATH.get(dtype, dtype)
    if computed not in ("f32", "f64"):
        raise Unsupported(f"variance of {dtype}")
    x = context.cast(context.tensor(bound["self"]), computed)
    dims, keepdim = _dims(context, node)
    variance, centre = variance_of(context, x, fake, dims, keepdim, _correction(bound))
    shape = context.shape(_first(node.meta["val"]))
    return variance, centre if keepdim or not dims else context.reshape(centre, shape)


def variance_of(
    context: Context,
    x: Tensor,
    fake: torch.Tensor,
    dims: Sequence[int],
    keepdim: bool,
    correction: float = 0,
) -> tuple[Tensor, Tensor]:
    """(variance, mean) by two passes in the dtype of `x`, f32 or f64; `fake` has its shape. The mean keeps dims."""
    count = element_count(context, fake, dims, x.dtype)
    centre = context.pointwise("div", context.reduce("sum", x, dims, True), count)
    squares = context.pointwise("square", context.pointwise("sub", x, centre))
    total = context.reduce("sum", squares, dims, keepdim)
    divisor = element_count(context, fake, dims, x.dtype, correction) if correction else count
    return context.pointwise("div", total, divisor), centre


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list | tuple) else value


def _correction(bound: dict[str, Any]) -> float:
    if "unbiased" in bound:
        return 1 if bound["unbiased"] else 0
    correction = bound["correction"]
    if correction is None:
        return 1
    if not isinstance(correction, int | float):
        raise Unsupported("correction is no constant")
    return correction


def var(context: Context, node: Node) -> Tensor:
    """var in all its overloads."""
    variance, _ = _variance(context, node)
    return context.cast(variance, DTYPES[node.meta["val"].dtype])


def std(context: Context, node: Node) -> Tensor:
    """std in all its overloads."""
    variance, _ = _variance(context, node)
    return context.cast(context.pointwise("sqrt", variance), DTYPES[node.meta["val"].dtype])


def var_mean(context: Context, node: Node) -> list[Tensor]:
    """var_mean in all its overloads."""
    dtype = DTYPES[node.meta["val"][0].dtype]
    return [context.cast(x, dtype) for x in _variance(context, node)]


def std_mean(context: Context, node: Node) -> list[Tensor]:
    """std_mean in all its overloads."""
    dtype = DTYPES[node.meta["val"][0].dtype]
    variance, centre = _variance(context, node)
    return [
        context.cast(context.pointwise("sqrt", variance), dtype),
        context.cast(centre, dtype),
    ]
