"""How constants and ranges become nodes of the graph IR."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import Node

from mlcc.importer.context import Context
from mlcc.importer.ops.index_maps import result_shape
from mlcc.ir.types import DTYPES, FLOATS, Tensor, Unsupported, device_of


def full(context: Context, node: Node) -> Tensor:
    """full, full_like and scalar_tensor: the fake result says shape and dtype."""
    bound = context.bind(node)
    name = "s" if "s" in bound else "fill_value"
    if bound.get("pin_memory"):
        raise Unsupported("pinned memory")
    dtype = DTYPES[node.meta["val"].dtype]
    value = context.fake(bound[name])
    shape, device = result_shape(context, node), device_of(node.meta["val"])
    if isinstance(value, bool | int | float):
        if dtype not in FLOATS and dtype != "bool":
            value = int(value)
        return Tensor(context.full(shape, dtype, value, device), dtype)
    number = context.number(value, dtype, device)
    return context.copy(context.expand(number, shape)) if shape else number


def empty(context: Context, node: Node) -> Tensor:
    """Memory without values: zeros, which fold into whoever reads them. What is written over is never filled.

    As eager does it, NaN and largest integers where torch's algorithms are to be deterministic.
    """
    if context.bind(node).get("pin_memory"):
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
    return Tensor(context.full(result_shape(context, node), dtype, value, device_of(fake)), dtype)


def arange(context: Context, node: Node) -> Tensor:
    """arange.start_step: integers exactly, floats as start + step * i in f64, as eager does.

    A range of integers takes the integral part of its start and step, as eager does.
    """
    bound = context.bind(node)
    start, step = context.fake(bound["start"]), context.fake(bound["step"])
    dtype = DTYPES[node.meta["val"].dtype]
    if dtype not in FLOATS:
        start, step = (int(v) if isinstance(v, float) else v for v in (start, step))
    (length,) = result_shape(context, node)
    device = device_of(node.meta["val"])
    if all(isinstance(v, int | torch.SymInt) for v in (start, step)):
        first, distance = context.size(start), context.size(step)
        handle = context.builder.iota(length, "i64", first, distance, device)
        return context.cast(Tensor(handle, "i64"), dtype)
    if dtype not in FLOATS:
        raise Unsupported("integers from a step that the trace does not know")
    numbers = Tensor(context.builder.iota(length, "i64", 0, 1, device), "i64")
    return _float_range(context, numbers, start, step, dtype)


def _float_range(context: Context, numbers: Tensor, start: Any, step: Any, dtype: str) -> Tensor:
    index = context.cast(numbers, "f64")
    scaled = context.pointwise("mul", index, context.number(step, "f64"))
    return context.cast(context.pointwise("add", scaled, context.number(start, "f64")), dtype)


def iota(context: Context, node: Node) -> Tensor:
    """prims.iota(length, start=, step=, dtype=)."""
    bound = context.bind(node)
    (length,) = result_shape(context, node)
    start, step = context.size(bound["start"]), context.size(bound["step"])
    handle = context.builder.iota(length, "i64", start, step, device_of(node.meta["val"]))
    return context.cast(Tensor(handle, "i64"), DTYPES[node.meta["val"].dtype])
