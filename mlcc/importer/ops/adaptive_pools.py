"""How adaptive pooling becomes reductions over windows that are spread evenly and differ in size by one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from mlcc.importer.context import Context
from mlcc.importer.ops.reductions import extreme_index_of, extreme_of
from mlcc.importer.ops.windows import along
from mlcc.ir.types import OPMATH, Tensor, Unsupported, device_of

# Windows of two sizes along a row: their elements are gathered.
_MOST_IN_A_ROW = 16


@dataclass(frozen=True)
class Spread:
    """`count` windows along `dim`: o is [o * extent // count, ceil((o + 1) * extent / count))."""

    dim: int
    extent: int
    count: int

    @property
    def size(self) -> int:
        """Of the largest window."""
        ends = (-(-(o + 1) * self.extent // self.count) for o in range(self.count))
        return max(end - o * self.extent // self.count for o, end in enumerate(ends))

    @property
    def is_even(self) -> bool:
        """Whether all windows are of one size."""
        return self.extent % self.count == 0 or self.size == 1


def _spreads(pooled: torch.Tensor, result: torch.Tensor, rank: int) -> list[Spread]:
    spreads = []
    for dim in range(pooled.dim() - rank, pooled.dim()):
        extent, count = pooled.shape[dim], result.shape[dim]
        if not isinstance(extent, int) or not isinstance(count, int):
            raise Unsupported("sizes are no constants")
        if extent == 0 or count == 0:
            raise Unsupported("nothing to pool")
        spreads.append(Spread(dim, extent, count))
    return spreads


def _begins(context: Context, s: Spread, rank: int, device: str) -> Tensor:
    """Where each window begins, along dimension s.dim of `rank`."""
    return _quotients(context, s, rank, 0, device)


def _sizes(context: Context, s: Spread, rank: int, device: str) -> Tensor:
    """How many elements each window has, along dimension s.dim of `rank`."""
    if s.is_even:
        return context.number(s.size, "i64", device)
    ends = _quotients(context, s, rank, s.extent + s.count - 1, device)
    return context.pointwise("sub", ends, _begins(context, s, rank, device))


def _quotients(context: Context, s: Spread, rank: int, start: int, device: str) -> Tensor:
    """(o * extent + start) // count for each window o."""
    scaled = along(context, s.count, s.dim, rank, start, s.extent, device)
    if s.count == 1:
        return scaled
    count = context.number(s.count, "i64", device)
    return context.pointwise("div_floor_integer", scaled, count)


def _elements(context: Context, x: Tensor, s: Spread) -> Tensor:
    """The elements of all windows along a new last dimension; the last one again where a window is shorter."""
    if s.extent % s.count == 0:
        handle = context.builder.window(x.handle, s.dim, s.count, s.size, s.size, 1)
        return Tensor(handle, x.dtype)
    return Tensor(context.builder.spread(x.handle, s.dim, s.count, s.size), x.dtype)


def _repeated(context: Context, x: Tensor, s: Spread) -> Tensor:
    """What each window gives, for each of its elements; no windows share elements."""
    shape = list(x.handle.shape)
    head, tail = shape[: s.dim + 1], shape[s.dim + 1 :]
    x = context.expand(context.reshape(x, [*head, 1, *tail]), [*head, s.size, *tail])
    return context.reshape(x, [*head[:-1], s.extent, *tail])


def _sums(context: Context, x: Tensor, spreads: Sequence[Spread], device: str) -> Tensor:
    """The sums over windows that are spread along several dimensions."""
    rank = len(x.handle.shape)
    full = rank + len(spreads)
    zero = context.number(0, x.dtype, device)
    for s in spreads:
        x = _elements(context, x, s)
    for place, s in enumerate(spreads, start=rank):
        if s.is_even:
            continue
        k = along(context, s.size, place, full, 0, 1, device)
        is_inside = context.pointwise("lt", k, _sizes(context, s, full, device), dtype="bool")
        x = context.pointwise("where", is_inside, x, zero)
    return context.reduce("sum", x, list(range(rank, full)), False)


def _is_row_major(context: Context, node: Node) -> bool:
    return context.tensor_type(node, node.meta["val"]).strides is None


def _sums_in_turn(context: Context, x: Tensor, spreads: Sequence[Spread], node: Node) -> Tensor:
    """The same; of row-major images one dimension after the other, so that all but the last reads whole rows."""
    device = device_of(node.meta["val"])
    if not _is_row_major(context, node):
        return _sums(context, x, spreads, device)
    for s in spreads:
        x = _sums(context, x, [s], device)
    return x


def _shared(context: Context, x: Tensor, spreads: Sequence[Spread], device: str) -> Tensor:
    """One value for each window, divided by the number of the window's elements."""
    rank = len(x.handle.shape)
    count = _sizes(context, spreads[0], rank, device)
    for s in spreads[1:]:
        count = context.pointwise("mul", count, _sizes(context, s, rank, device))
    return context.pointwise("div", x, context.cast(count, x.dtype))


def _is_faster_in_eager(spreads: Sequence[Spread], is_row_major: bool) -> bool:
    """Of windows that differ in size: along rows alone, many in a row, of channels-last images (decision 0033)."""
    *outer, last = spreads
    if all(s.is_even for s in spreads):
        return False
    if is_row_major:
        is_of_rows = last.count > _MOST_IN_A_ROW or all(s.size == 1 for s in outer)
        return not last.is_even and is_of_rows
    return len(spreads) == 2


def adaptive_avg_pool(rank: int) -> Any:
    """_adaptive_avg_pool2d and 3d: sums of 16-bit floats in f32."""

    def handler(context: Context, node: Node) -> Tensor:
        bound = context.bind(node)
        fake, x = context.fake(bound["self"]), context.tensor(bound["self"])
        spreads = _spreads(fake, node.meta["val"], rank)
        if context.may_call and _is_faster_in_eager(spreads, _is_row_major(context, node)):
            raise Unsupported("eager's kernel for such rows or this memory format is faster")
        wide = context.cast(x, OPMATH.get(x.dtype, x.dtype))
        total = _sums_in_turn(context, wide, spreads, node)
        return context.cast(_shared(context, total, spreads, device_of(fake)), x.dtype)

    return handler


def adaptive_avg_pool_backward(rank: int) -> Any:
    """For each element what the one window that it lies in gives each of its elements.

    Where elements lie in several windows, sums over these ran at 0.1 to 0.5 of eager's kernels, which add to places.
    """

    def handler(context: Context, node: Node) -> Tensor:
        bound = context.bind(node)
        fake, gradient = context.fake(bound["self"]), context.tensor(bound["grad_output"])
        spreads = _spreads(fake, context.fake(bound["grad_output"]), rank)
        if any(s.extent % s.count != 0 for s in spreads) or not _is_row_major(context, node):
            raise Unsupported("eager's kernel for uneven windows or this memory format is faster")
        wide = context.cast(gradient, OPMATH.get(gradient.dtype, gradient.dtype))
        share = _shared(context, wide, spreads, device_of(fake))
        for s in spreads:
            share = _repeated(context, share, s)
        return context.copy(context.cast(share, gradient.dtype))

    return handler


def adaptive_max_pool(rank: int) -> Any:
    """adaptive_max_pool2d and 3d: the largest elements and their row-major places in the last `rank` dimensions."""

    def handler(context: Context, node: Node) -> list[Tensor]:
        bound = context.bind(node)
        fake, result = context.fake(bound["self"]), node.meta["val"][0]
        spreads = _spreads(fake, result, rank)
        shape = context.shape(result)
        elements = context.tensor(bound["self"])
        if elements.dtype not in OPMATH and elements.dtype not in ("f32", "f64"):
            raise Unsupported("eager pools floats only")
        for s in spreads:
            elements = _elements(context, elements, s)
        elements = context.reshape(elements, [*shape, math.prod(s.size for s in spreads)])
        values = extreme_of(context, "max", elements, [len(shape)], False)
        which = extreme_index_of(context, "argmax", elements, [len(shape)], False)
        return [values, _places(context, which, spreads, fake)]

    return handler


def _places(
    context: Context, which: Tensor, spreads: Sequence[Spread], fake: torch.Tensor
) -> Tensor:
    """Places in the operand of the elements number `which` of their windows; repeated ones never come first."""
    device = device_of(fake)

    def computed(op: str, a: Tensor, number: int) -> Tensor:
        return context.pointwise(op, a, context.number(number, "i64", device))

    place: Tensor | None = None
    inner = math.prod(s.size for s in spreads)
    for s in spreads:
        inner //= s.size
        k = computed("div_floor_integer", which, inner) if inner > 1 else which
        k = computed("remainder_integer", k, s.size) if place is not None else k
        at = context.pointwise("add", _begins(context, s, fake.dim(), device), k)
        if place is not None:
            at = context.pointwise("add", computed("mul", place, s.extent), at)
        place = at
    assert place is not None
    return place
