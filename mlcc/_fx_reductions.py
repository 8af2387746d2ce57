"""How reductions become nodes of the graph IR."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from mlcc import _torch_sizes
from mlcc._fx_types import DTYPES, OPMATH, Handler, Tensor, Unsupported, device_of

if TYPE_CHECKING:
    from mlcc.fx_import import Importer


def _dims(importer: Importer, node: Node, name: str = "dim") -> tuple[list[int], bool]:
    """(dims counted from the front, keepdim); no dims given means all."""
    bound = importer.bind(node)
    rank = importer.fake(node.args[0]).dim()
    dims = bound.get(name)
    if dims is None or dims == []:
        dims = list(range(rank))
    elif isinstance(dims, int):
        dims = [dims]
    dims = sorted({d % rank for d in dims}) if rank else []
    return dims, bool(bound.get("keepdim", False))


def _summed(importer: Importer, node: Node, op: str) -> tuple[Tensor, list[int]]:
    """sum or prod in the dtype that eager accumulates in; and the dims."""
    x = importer.tensor(node.args[0])
    result = DTYPES[node.meta["val"].dtype]
    x = importer.cast(importer.cast(x, result), OPMATH.get(result, result))
    dims, keepdim = _dims(importer, node)
    return importer.reduce(op, x, dims, keepdim), dims


def sum_(importer: Importer, node: Node) -> Tensor:
    """sum with and without dims."""
    x, _ = _summed(importer, node, "sum")
    return importer.cast(x, DTYPES[node.meta["val"].dtype])


def prod(importer: Importer, node: Node) -> Tensor:
    """prod with and without dim."""
    dtype = DTYPES[node.meta["val"].dtype]
    if dtype == "bool":
        dims, keepdim = _dims(importer, node)
        x = importer.cast(importer.tensor(node.args[0]), "bool")
        return importer.reduce("all", x, dims, keepdim)
    x, _ = _summed(importer, node, "prod")
    return importer.cast(x, dtype)


def mean(importer: Importer, node: Node) -> Tensor:
    """mean: the sum over the count, in the dtype of the sum."""
    x, dims = _summed(importer, node, "sum")
    count = element_count(importer, importer.fake(node.args[0]), dims, x.dtype)
    return importer.cast(importer.pointwise("div", x, count), DTYPES[node.meta["val"].dtype])


def element_count(
    importer: Importer, fake: torch.Tensor, dims: Sequence[int], dtype: str, less: float = 0
) -> Tensor:
    """How many elements a reduction over `dims` takes in, less a correction (not below 0), as a 0-d constant."""
    count: Any = math.prod([fake.shape[d] for d in dims])
    if isinstance(count, int):
        return importer.number(max(0, count - less), dtype)
    size = importer.size(count)
    if less and int(less) != less:
        raise Unsupported("correction is no integer")
    text = f"max(0, {size} - {int(less)})" if less else size
    return importer.cast(Tensor(importer.builder.size_value(text), "i64"), dtype)


def _check_extent(fake: torch.Tensor, dims: Sequence[int]) -> None:
    """Unsupported where there may be nothing to choose from: eager's kernel says what is wrong."""
    if not all(_torch_sizes.is_known(fake.shape[d] != 0) for d in dims):
        raise Unsupported("an extreme of what may be empty")


def extreme(op: str) -> Handler:
    """amax, amin, max and min of all elements."""

    def handler(importer: Importer, node: Node) -> Tensor:
        x = importer.tensor(node.args[0])
        dims, keepdim = _dims(importer, node)
        _check_extent(importer.fake(node.args[0]), dims)
        return extreme_of(importer, op, x, dims, keepdim)

    return handler


def extreme_of(
    importer: Importer, op: str, x: Tensor, dims: Sequence[int], keepdim: bool
) -> Tensor:
    """Reduction max or min of any dtype: the core compares floats in f32 and f64."""
    if x.dtype == "bool":
        return importer.reduce({"max": "any", "min": "all"}[op], x, dims, keepdim)
    wide = importer.cast(x, OPMATH.get(x.dtype, x.dtype))
    return importer.cast(importer.reduce(op, wide, dims, keepdim), x.dtype)


def extreme_index_of(
    importer: Importer, op: str, x: Tensor, dims: Sequence[int], keepdim: bool
) -> Tensor:
    """Reduction argmax or argmin of any dtype."""
    comparable = importer.cast(x, "u8" if x.dtype == "bool" else OPMATH.get(x.dtype, x.dtype))
    return importer.reduce(op, comparable, dims, keepdim)


def extreme_with_index(op: str) -> Handler:
    """max.dim and min.dim: values and the first index of each."""

    def handler(importer: Importer, node: Node) -> list[Tensor]:
        x = importer.tensor(node.args[0])
        dims, keepdim = _dims(importer, node)
        if not dims:
            zero = importer.number(0, "i64", device_of(node.meta["val"][1]))
            return [importer.copy(x), zero]
        _check_extent(importer.fake(node.args[0]), dims)
        values = extreme_of(importer, op, x, dims, keepdim)
        return [values, extreme_index_of(importer, f"arg{op}", x, dims, keepdim)]

    return handler


def extreme_index(op: str) -> Handler:
    """argmax and argmin; without dim over all elements in row-major order."""

    def handler(importer: Importer, node: Node) -> Tensor:
        bound = importer.bind(node)
        x = importer.tensor(bound["self"])
        fake = importer.fake(bound["self"])
        shape = importer.shape(node.meta["val"])
        if x.dtype == "bool":
            raise Unsupported("eager refuses bools")
        if fake.dim() == 0:
            return Tensor(importer.full(shape, "i64", 0, device_of(fake)), "i64")
        _check_extent(fake, range(fake.dim()) if bound["dim"] is None else [bound["dim"]])
        if bound["dim"] is None:
            flat = importer.reshape(x, [importer.size(math.prod(fake.shape))])
            index = extreme_index_of(importer, op, flat, [0], False)
            return importer.reshape(index, shape) if shape else index
        return extreme_index_of(
            importer, op, x, [bound["dim"] % fake.dim()], bool(bound["keepdim"])
        )

    return handler


def truth(op: str) -> Handler:
    """any and all; of u8 tensors eager gives u8."""

    def handler(importer: Importer, node: Node) -> Tensor:
        x = importer.cast(importer.tensor(node.args[0]), "bool")
        dims, keepdim = _dims(importer, node)
        return importer.cast(importer.reduce(op, x, dims, keepdim), DTYPES[node.meta["val"].dtype])

    return handler


def _variance(importer: Importer, node: Node) -> tuple[Tensor, Tensor]:
    """(variance, mean) by two passes, in f32 or f64, in the shape that keepdim asks for."""
    bound = importer.bind(node)
    fake = importer.fake(bound["self"])
    dtype = DTYPES[fake.dtype]
    computed = OPMATH.get(dtype, dtype)
    if computed not in ("f32", "f64"):
        raise Unsupported(f"variance of {dtype}")
    x = importer.cast(importer.tensor(bound["self"]), computed)
    dims, keepdim = _dims(importer, node)
    count = element_count(importer, fake, dims, computed)
    centre = importer.pointwise("div", importer.reduce("sum", x, dims, True), count)
    squares = importer.pointwise("square", importer.pointwise("sub", x, centre))
    total = importer.reduce("sum", squares, dims, keepdim)
    correction = _correction(bound)
    divisor = element_count(importer, fake, dims, computed, correction) if correction else count
    shape = importer.shape(_first(node.meta["val"]))
    centre = centre if keepdim or not dims else importer.reshape(centre, shape)
    return importer.pointwise("div", total, divisor), centre


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


def var(importer: Importer, node: Node) -> Tensor:
    """var in all its overloads."""
    variance, _ = _variance(importer, node)
    return importer.cast(variance, DTYPES[node.meta["val"].dtype])


def std(importer: Importer, node: Node) -> Tensor:
    """std in all its overloads."""
    variance, _ = _variance(importer, node)
    return importer.cast(importer.pointwise("sqrt", variance), DTYPES[node.meta["val"].dtype])


def var_mean(importer: Importer, node: Node) -> list[Tensor]:
    """var_mean in all its overloads."""
    dtype = DTYPES[node.meta["val"][0].dtype]
    return [importer.cast(x, dtype) for x in _variance(importer, node)]


def std_mean(importer: Importer, node: Node) -> list[Tensor]:
    """std_mean in all its overloads."""
    dtype = DTYPES[node.meta["val"][0].dtype]
    variance, centre = _variance(importer, node)
    return [
        importer.cast(importer.pointwise("sqrt", variance), dtype),
        importer.cast(centre, dtype),
    ]
