"""How padding becomes index maps that go on beyond an operand's ends, and its gradients sums of pieces."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from mlcc.importer.context import Context
from mlcc.importer.ops.index_maps import is_below_zero, result_shape
from mlcc.importer.ops.windows import padded, scaled
from mlcc.ir.sizes import Size
from mlcc.ir.types import FLOATS, LIMITS, OPMATH, Tensor, Unsupported


def constant_pad(context: Context, node: Node) -> Tensor:
    """constant_pad_nd; negative padding cuts off."""
    bound = context.bind(node)
    x = context.tensor(bound["self"])
    fake = context.fake(bound["self"])
    value = bound["value"]
    if not isinstance(value, int | float):
        raise Unsupported("padding is no constant number")
    number = _as_number(value, x.dtype)
    shape = result_shape(context, node)
    padding = [context.fake(p) for p in bound["pad"]]
    for i, (before, after) in enumerate(zip(padding[::2], padding[1::2], strict=True), start=1):
        dim = fake.dim() - i
        if context.size(before) == 0 and context.size(after) == 0:
            continue
        if isinstance(before, int):
            x = padded(context, x, dim, before, shape[dim], number)
        else:
            x = _padded_in_front(context, x, dim, before, shape[dim], number)
    return context.copy(x)


def _padded_in_front(
    context: Context, x: Tensor, dim: int, before: torch.SymInt, extent: Size, number: float
) -> Tensor:
    """`padded` where `before` is symbolic."""
    shape: list[Size] = x.handle.shape
    if is_below_zero(before) is False:
        front = context.size(before)
        behind = padded(context, x, dim, 0, f"({extent}) - ({front})", number)
        shape[dim] = front
        filled = Tensor(context.full(shape, x.dtype, number, x.handle.device), x.dtype)
        return context.cat([filled, behind], dim)
    if is_below_zero(-before) is False:
        removed = context.size(-before)
        rest = context.slice(x, dim, removed, f"({shape[dim]}) - ({removed})")
        return padded(context, rest, dim, 0, extent, number)
    raise Unsupported("the sign of the padding is unknown")


def _as_number(value: float, dtype: str) -> float:
    if dtype in FLOATS:
        return float(value)
    if dtype == "bool":
        return int(bool(value))
    low, high = LIMITS[dtype]
    if int(value) != value or not low <= value <= high:
        raise Unsupported(f"padding of {dtype} by {value}")
    return int(value)


def _amounts(context: Context, node: Node, fake: torch.Tensor) -> list[tuple[int, int, int]]:
    """(dim, before, after) of each padded dimension, innermost first."""
    bound = context.bind(node)
    padding = [context.fake(p) for p in bound["pad" if "pad" in bound else "padding"]]
    if not all(isinstance(p, int) for p in padding):
        raise Unsupported("padding is no constant")
    pairs = zip(padding[::2], padding[1::2], strict=True)
    dims = enumerate(pairs, start=1)
    return [(fake.dim() - i, *pair) for i, pair in dims if pair != (0, 0)]


_OF_ROWS = 2  # numbers of a padding that are of rows alone


def extended(mode: str) -> Any:
    """reflection_pad and replication_pad; those of images stay calls where there may be any."""

    def handler(context: Context, node: Node) -> Tensor:
        bound = context.bind(node)
        x = context.tensor(bound["self"])
        fake = context.fake(bound["self"])
        amounts = list(_amounts(context, node, fake))
        if context.may_call and len(bound["padding"]) > _OF_ROWS:
            raise Unsupported("eager copies short rows of images faster")
        for dim, before, after in amounts:
            extent = scaled(context.size(fake.shape[dim]), 1, before + after)
            handle = context.builder.extend(x.handle, dim, before, extent, mode)
            x = Tensor(handle, x.dtype)
        return context.copy(x)

    return handler


def reflected_backward(context: Context, node: Node) -> Tensor:
    """Each element gets its own gradient and those of its images beyond the ends."""
    return _folded(context, node, _reflected)


def replicated_backward(context: Context, node: Node) -> Tensor:
    """The elements at the ends get the gradients of all that lies beyond."""
    return _folded(context, node, _replicated)


def _folded(context: Context, node: Node, images: Any) -> Tensor:
    bound = context.bind(node)
    fake = context.fake(bound["self"])
    gradient = context.tensor(bound["grad_output"])
    x = context.cast(gradient, OPMATH.get(gradient.dtype, gradient.dtype))
    for dim, before, after in _amounts(context, node, fake):
        if before < 0 or after < 0:
            raise Unsupported("negative padding")
        extent = context.size(fake.shape[dim])
        total = context.slice(x, dim, before, extent)
        for image in images(context, x, dim, before, after, extent):
            total = context.pointwise("add", total, image)
        x = total
    return context.copy(context.cast(x, gradient.dtype))


def _reflected(
    context: Context, x: Tensor, dim: int, before: int, after: int, extent: Size
) -> list[Tensor]:
    def flipped(start: Size, length: int) -> Tensor:
        piece = context.slice(x, dim, start, length)
        return Tensor(context.builder.flip(piece.handle, [dim]), x.dtype)

    images = []
    if before > 0:
        images.append(padded(context, flipped(0, before), dim, 1, extent, 0))
    if after > 0:
        image = flipped(scaled(extent, 1, before), after)
        images.append(_at_end(context, image, dim, extent, after, 1))
    return images


def _replicated(
    context: Context, x: Tensor, dim: int, before: int, after: int, extent: Size
) -> list[Tensor]:
    def sum_of(start: Size, length: int) -> Tensor:
        return context.reduce("sum", context.slice(x, dim, start, length), [dim], True)

    images = []
    if before > 0:
        images.append(padded(context, sum_of(0, before), dim, 0, extent, 0))
    if after > 0:
        image = sum_of(scaled(extent, 1, before), after)
        images.append(_at_end(context, image, dim, extent, 1, 0))
    return images


def _at_end(
    context: Context, x: Tensor, dim: int, extent: Size, length: int, behind: int
) -> Tensor:
    """`x`, `length` long along `dim`, as the last of `extent` places but for `behind`; 0 before and behind it."""
    if not isinstance(extent, int):
        raise Unsupported("gradients of padded dynamic sizes")
    return padded(context, x, dim, extent - length - behind, extent, 0)
