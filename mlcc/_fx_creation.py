"""How constants and ranges become nodes of the graph IR."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from mlcc._fx_index_maps import result_shape
from mlcc._fx_types import DTYPES, FLOATS, Tensor, Unsupported, device_of

if TYPE_CHECKING:
    from mlcc.fx_import import Importer


def full(importer: Importer, node: Node) -> Tensor:
    """full, full_like and scalar_tensor: the fake result says shape and dtype."""
    bound = importer.bind(node)
    name = "s" if "s" in bound else "fill_value"
    if bound.get("pin_memory"):
        raise Unsupported("pinned memory")
    dtype = DTYPES[node.meta["val"].dtype]
    value = importer.fake(bound[name])
    shape, device = result_shape(importer, node), device_of(node.meta["val"])
    if isinstance(value, bool | int | float):
        if dtype not in FLOATS and dtype != "bool":
            value = int(value)
        return Tensor(importer.full(shape, dtype, value, device), dtype)
    number = importer.number(value, dtype, device)
    return importer.copy(importer.expand(number, shape)) if shape else number


def empty(importer: Importer, node: Node) -> Tensor:
    """Memory without values: zeros, which fold into whoever reads them. What is written over is never filled.

    As eager does it, NaN and largest integers where torch's algorithms are to be deterministic.
    """
    if importer.bind(node).get("pin_memory"):
        raise Unsupported("pinned memory")
    fake = node.meta["val"]
    dtype = DTYPES[fake.dtype]
    value: float = 0
    if (
        torch.are_deterministic_algorithms_enabled()
        and torch.utils.deterministic.fill_uninitialized_memory
    ):
        if dtype in FLOATS:
            value = math.nan
        else:
            value = True if dtype == "bool" else torch.iinfo(fake.dtype).max
    return Tensor(importer.full(result_shape(importer, node), dtype, value, device_of(fake)), dtype)


def arange(importer: Importer, node: Node) -> Tensor:
    """arange.start_step: integers exactly, floats as start + step * i in f64, as eager does.

    A range of integers takes the integral part of its start and step, as eager does.
    """
    bound = importer.bind(node)
    start, step = importer.fake(bound["start"]), importer.fake(bound["step"])
    dtype = DTYPES[node.meta["val"].dtype]
    if dtype not in FLOATS:
        start, step = (int(v) if isinstance(v, float) else v for v in (start, step))
    (length,) = result_shape(importer, node)
    device = device_of(node.meta["val"])
    if all(isinstance(v, int | torch.SymInt) for v in (start, step)):
        first, distance = importer.size(start), importer.size(step)
        handle = importer.builder.iota(length, "i64", first, distance, device)
        return importer.cast(Tensor(handle, "i64"), dtype)
    if dtype not in FLOATS:
        raise Unsupported("integers from a step that the trace does not know")
    numbers = Tensor(importer.builder.iota(length, "i64", 0, 1, device), "i64")
    return _float_range(importer, numbers, start, step, dtype)


def _float_range(importer: Importer, numbers: Tensor, start: Any, step: Any, dtype: str) -> Tensor:
    index = importer.cast(numbers, "f64")
    scaled = importer.pointwise("mul", index, importer.number(step, "f64"))
    return importer.cast(importer.pointwise("add", scaled, importer.number(start, "f64")), dtype)


def iota(importer: Importer, node: Node) -> Tensor:
    """prims.iota(length, start=, step=, dtype=)."""
    bound = importer.bind(node)
    (length,) = result_shape(importer, node)
    start, step = importer.size(bound["start"]), importer.size(bound["step"])
    handle = importer.builder.iota(length, "i64", start, step, device_of(node.meta["val"]))
    return importer.cast(Tensor(handle, "i64"), DTYPES[node.meta["val"].dtype])
