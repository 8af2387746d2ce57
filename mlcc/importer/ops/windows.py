"""How ops that read overlapping windows become windows of the graph IR and reductions over them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Node

from mlcc.importer.context import Context
from mlcc.importer.ops.index_maps import result_shape
from mlcc.importer.ops.reductions import extreme_index_of, extreme_of
from mlcc.ir.sizes import Size
from mlcc.ir.types import LIMITS, OPMATH, Tensor, Unsupported, device_of

# Terms that a sum is written out in where its windows move against what they read.
_MOST_TERMS = 16


@dataclass(frozen=True)
class Windows:
    """Windows along one dimension; element k of window o is operand o * step + k * dilation - before."""

    dim: int
    extent: Size  # of the operand
    count: Size
    size: int
    step: int
    before: int
    dilation: int = 1
    is_inside: bool = False  # no window reaches beyond the operand


def scaled(size: Size, factor: int, plus: int) -> Size:
    """size * factor + plus."""
    if isinstance(size, int):
        return size * factor + plus
    return f"({size}) * {factor} + ({plus})"


def padded(
    context: Context, x: Tensor, dim: int, before: int, extent: Size, number: float
) -> Tensor:
    """[.., i, ..] = x[.., i - before, ..], a number outside of it."""
    return Tensor(context.builder.pad(x.handle, dim, before, extent, number), x.dtype)


def windowed(context: Context, x: Tensor, windows: Sequence[Windows], number: float) -> Tensor:
    """The elements of all windows along new last dimensions; `number` beyond the operand."""
    for w in windows:
        if not w.is_inside:
            reach = scaled(w.count, w.step, (w.size - 1) * w.dilation + 1 - w.step)
            x = padded(context, x, w.dim, w.before, reach, number)
    for w in windows:
        handle = context.builder.window(x.handle, w.dim, w.count, w.size, w.step, w.dilation)
        x = Tensor(handle, x.dtype)
    return x


def _each(argument: Any, count: int, otherwise: Sequence[int] | None = None) -> list[int]:
    """An int[] argument with one number for each dimension; all of them constants."""
    values = list(argument) if isinstance(argument, list | tuple) else [argument]
    values = values or list(otherwise or [])
    values = values * count if len(values) == 1 else values
    if len(values) != count or not all(isinstance(v, int) for v in values):
        raise Unsupported("sizes of the windows are no constants")
    return values


def _pool_windows(
    context: Context, bound: dict[str, Any], fake: torch.Tensor, result: torch.Tensor, rank: int
) -> list[Windows]:
    """The windows of a pooling op with arguments `bound` over the last `rank` dimensions."""
    sizes = _each(bound["kernel_size"], rank)
    steps = _each(bound["stride"], rank, sizes)
    before = _each(bound["padding"], rank)
    dilations = _each(bound.get("dilation", 1), rank)
    windows = []
    for i in range(rank):
        dim = fake.dim() - rank + i
        is_inside = before[i] == 0 and not bound.get("ceil_mode", False)
        extent, count = context.size(fake.shape[dim]), context.size(result.shape[dim])
        windows.append(
            Windows(dim, extent, count, sizes[i], steps[i], before[i], dilations[i], is_inside)
        )
    return windows


def _trimmed(windows: Sequence[Windows]) -> list[Windows]:
    """Without what a window that is alone in its dimension has beyond the operand: it may be far larger than that."""
    return [
        replace(w, size=min(w.size - w.before, w.extent), before=0, is_inside=True)
        if w.count == 1 and w.dilation == 1 and isinstance(w.extent, int)
        else w
        for w in windows
    ]


# -- extremes


def _lowest(dtype: str) -> float:
    return LIMITS[dtype][0] if dtype in LIMITS else -math.inf


def max_pool(rank: int) -> Any:
    """max_pool2d_with_indices and max_pool3d_with_indices."""

    def handler(context: Context, node: Node) -> list[Tensor]:
        bound = context.bind(node)
        fake = context.fake(bound["self"])
        windows = _pool_windows(context, bound, fake, node.meta["val"][0], rank)
        return _largest(context, node, context.tensor(bound["self"]), _trimmed(windows))

    return handler


def _largest(context: Context, node: Node, x: Tensor, windows: Sequence[Windows]) -> list[Tensor]:
    """The largest elements of windows and their places in the operand's last dimensions."""
    if x.dtype == "bool":
        raise Unsupported("pooling of bool")
    shape = context.shape(node.meta["val"][0])
    elements = windowed(context, x, windows, _lowest(x.dtype))
    elements = context.reshape(elements, [*shape, math.prod(w.size for w in windows)])
    dim = len(shape)
    values = extreme_of(context, "max", elements, [dim], False)
    which = extreme_index_of(context, "argmax", elements, [dim], False)
    return [values, _places(context, which, windows, device_of(node.meta["val"][0]), dim)]


def _places(
    context: Context, which: Tensor, windows: Sequence[Windows], device: str, rank: int
) -> Tensor:
    """Row-major places in the operand of the elements number `which` of their windows.

    Where all elements are the lowest number the first one won, which may lie before the operand: then the first
    one inside counts.
    """

    def number(value: int) -> Tensor:
        return context.number(value, "i64", device)

    place: Tensor | None = None
    inner = math.prod(w.size for w in windows)
    for w in windows:
        inner //= w.size
        k = context.pointwise("div_floor_integer", which, number(inner)) if inner > 1 else which
        if place is not None:
            k = context.pointwise("remainder_integer", k, number(w.size))
        if w.dilation > 1:
            k = context.pointwise("mul", k, number(w.dilation))
        first = along(context, w.count, w.dim, rank, -w.before, w.step, device)
        at = context.pointwise("add", first, k)
        if w.before > 0 and w.dilation == 1:
            at = context.pointwise("maximum", at, number(0))
        elif w.before > 0:
            inside = context.pointwise("remainder_integer", at, number(w.dilation))
            is_before = context.pointwise("lt", at, number(0), dtype="bool")
            at = context.pointwise("where", is_before, inside, at)
        if place is None:
            place = at
            continue
        extent = Tensor(context.builder.size_value(w.extent, device), "i64")
        place = context.pointwise("add", context.pointwise("mul", place, extent), at)
    assert place is not None
    return place


def along(
    context: Context,
    extent: Size,
    dim: int,
    rank: int,
    start: Size,
    step: int,
    device: str,
    dtype: str = "i64",
) -> Tensor:
    """start + step * i for place i of dimension `dim` of `rank`, to be broadcast."""
    places = Tensor(context.builder.iota(extent, dtype, start, step, device), dtype)
    behind = rank - dim - 1
    return context.reshape(places, [extent, *[1] * behind]) if behind else places


# -- averages


def avg_pool(rank: int) -> Any:
    """avg_pool2d and avg_pool3d: sums in the dtype that eager sums in, over the elements that count."""

    def handler(context: Context, node: Node) -> Tensor:
        bound = context.bind(node)
        fake = context.fake(bound["self"])
        x = context.tensor(bound["self"])
        result = node.meta["val"]
        windows = _pool_windows(context, bound, fake, result, rank)
        divisor = _divisor(context, bound, windows, x.dtype, fake)
        total = _window_sums(context, x, _trimmed(windows))
        return context.cast(_divided(context, total, divisor), x.dtype)

    return handler


def _window_sums(context: Context, x: Tensor, windows: Sequence[Windows]) -> Tensor:
    elements = context.cast(windowed(context, x, windows, 0), OPMATH.get(x.dtype, x.dtype))
    rank = len(elements.handle.shape)
    return context.reduce("sum", elements, list(range(rank - len(windows), rank)), False)


def _divided(context: Context, total: Tensor, divisor: Tensor) -> Tensor:
    op = "div" if total.dtype in ("f32", "f64") else "div_trunc_integer"
    return context.pointwise(op, total, divisor)


def _divisor(
    context: Context,
    bound: dict[str, Any],
    windows: Sequence[Windows],
    dtype: str,
    fake: torch.Tensor,
) -> Tensor:
    """By what the sum of each window is divided: a number, or one for each window."""
    wide, device = OPMATH.get(dtype, dtype), device_of(fake)
    override = bound["divisor_override"]
    if override is not None:
        return context.number(_each(override, 1)[0], wide, device)
    has_padding = any(w.before > 0 for w in windows)
    is_same = not bound["ceil_mode"] and (bound["count_include_pad"] or not has_padding)
    if is_same:
        return context.number(math.prod(w.size for w in windows), wide, device)
    counts = [_counted(context, w, bound["count_include_pad"], fake.dim(), device) for w in windows]
    product = counts[0]
    for count in counts[1:]:
        product = context.pointwise("mul", product, count)
    return context.cast(product, wide)


def _counted(context: Context, w: Windows, with_padding: bool, rank: int, device: str) -> Tensor:
    """How many elements of each window count."""

    def size(value: Size) -> Tensor:
        return Tensor(context.builder.size_value(value, device), "i64")

    last = scaled(w.extent, 1, w.before)
    begin = along(context, w.count, w.dim, rank, -w.before, w.step, device)
    end = along(context, w.count, w.dim, rank, w.size - w.before, w.step, device)
    end = context.pointwise("minimum", end, size(last))
    if not with_padding:
        begin = context.pointwise("maximum", begin, size(0))
        end = context.pointwise("minimum", end, size(w.extent))
    return context.pointwise("sub", end, begin)


def avg_pool_backward(rank: int) -> Any:
    """For each element the gradients of the windows that it lies in."""

    def handler(context: Context, node: Node) -> Tensor:
        bound = context.bind(node)
        fake = context.fake(bound["self"])
        gradient = context.tensor(bound["grad_output"])
        result = context.fake(bound["grad_output"])
        if context.tensor_type(node, node.meta["val"]).strides is not None:
            raise Unsupported("eager's kernel for this memory format is faster")
        windows = _pool_windows(context, bound, fake, result, rank)
        divisor = _divisor(context, bound, windows, gradient.dtype, fake)
        wide = context.cast(gradient, divisor.dtype)
        shared = _divided(context, wide, divisor)
        return context.cast(_spread(context, shared, windows, fake), gradient.dtype)

    return handler


def _spread(context: Context, x: Tensor, windows: Sequence[Windows], fake: torch.Tensor) -> Tensor:
    """The sum for each element of an operand of the values of windows (dilation 1) that it lies in."""
    rank, device = fake.dim(), device_of(fake)
    zero = context.number(0, x.dtype, device)
    masks: list[Tensor] = []
    added = 0
    for w in windows:
        reached = -(-w.size // w.step)  # windows that an element lies in, at most
        x = _covering(context, x, w, reached)
        added += reached > 1
    for w in windows:
        if w.size % w.step != 0:
            masks.append(_is_covered(context, w, windows, rank, device))
    for mask in masks:
        x = context.pointwise("where", mask, x, zero)
    if not added:
        return context.copy(x)
    return context.reduce("sum", x, list(range(rank, rank + added)), False)


def _covering(context: Context, x: Tensor, w: Windows, reached: int) -> Tensor:
    """Along w.dim the values of the windows around each element, along a new last dimension if there are several."""
    steps = _quotient(scaled(w.extent, 1, w.before - 1), w.step)
    count = scaled(steps, 1, 1)
    behind = scaled(count, 1, reached - 1)
    if reached > 1 or behind != w.count:
        x = padded(context, x, w.dim, reached - 1, behind, 0)
    if reached > 1:
        x = Tensor(context.builder.window(x.handle, w.dim, count, reached, 1, 1), x.dtype)
    if w.step > 1:
        shape = list(x.handle.shape)
        head, tail = shape[: w.dim + 1], shape[w.dim + 1 :]
        x = context.reshape(x, [*head, 1, *tail])
        x = context.expand(x, [*head, w.step, *tail])
        x = context.reshape(x, [*head[:-1], scaled(count, w.step, 0), *tail])
    if w.before == 0 and x.handle.shape[w.dim] == w.extent:
        return x
    return context.slice(x, w.dim, w.before, w.extent)


def _quotient(size: Size, divisor: int) -> Size:
    if isinstance(size, int):
        return size // divisor
    return f"floordiv({size}, {divisor})"


def _is_covered(
    context: Context, w: Windows, windows: Sequence[Windows], rank: int, device: str
) -> Tensor:
    """Whether an element lies in the window, where not all of its windows' places are inside them."""

    def number(value: int) -> Tensor:
        return context.number(value, "i64", device)

    several = [v for v in windows if v.size > v.step]
    full = rank + len(several)
    at = along(context, w.extent, w.dim, full, w.before, 1, device)
    at = context.pointwise("remainder_integer", at, number(w.step))
    if w in several:
        reached = -(-w.size // w.step)
        place = rank + several.index(w)
        back = along(context, reached, place, full, (reached - 1) * w.step, -w.step, device)
        at = context.pointwise("add", at, back)
    return context.pointwise("lt", at, number(w.size), dtype="bool")


# -- windows as they are


def unfold(context: Context, node: Node) -> Tensor:
    """unfold(self, dimension, size, step): a view."""
    bound = context.bind(node)
    fake = context.fake(bound["self"])
    x = context.tensor(bound["self"])
    if fake.dim() == 0:
        raise Unsupported("operand is 0-d")
    dim = bound["dimension"] % fake.dim()
    size, step = context.size(bound["size"]), bound["step"]
    if not isinstance(step, int):
        raise Unsupported("step is no constant")
    count = context.size(node.meta["val"].shape[dim])
    return Tensor(context.builder.window(x.handle, dim, count, size, step, 1), x.dtype)


def _block_windows(
    context: Context, bound: dict[str, Any], extents: Sequence[Any], dim: int
) -> list[Windows]:
    """The windows of im2col over images of these extents, which begin at dimension `dim`."""
    sizes, steps = _each(bound["kernel_size"], 2), _each(bound["stride"], 2)
    before, dilations = _each(bound["padding"], 2), _each(bound["dilation"], 2)
    windows = []
    for i, extent in enumerate(extents):
        reach = dilations[i] * (sizes[i] - 1)
        count = (extent + 2 * before[i] - reach - 1) // steps[i] + 1
        windows.append(
            Windows(
                dim + i,
                context.size(extent),
                context.size(count),
                sizes[i],
                steps[i],
                before[i],
                dilations[i],
                before[i] == 0,
            )
        )
    return windows


def im2col(context: Context, node: Node) -> Tensor:
    """im2col(self, kernel_size, dilation, padding, stride): windows as columns."""
    bound = context.bind(node)
    fake = context.fake(bound["self"])
    x = context.tensor(bound["self"])
    lead = fake.dim() - 2
    windows = _block_windows(context, bound, fake.shape[-2:], lead)
    elements = windowed(context, x, windows, 0)
    dims = [*range(lead), lead + 2, lead + 3, lead, lead + 1]
    columns = Tensor(context.builder.permute(elements.handle, dims), x.dtype)
    return context.copy(context.reshape(columns, result_shape(context, node)))


def col2im(context: Context, node: Node) -> Tensor:
    """col2im with step 1: for each element of the image the columns with it, one element of the windows at a time.

    With longer steps elements of several windows lie between each other: stored apart they were slower than eager.
    """
    bound = context.bind(node)
    result = node.meta["val"]
    lead = result.dim() - 2
    high, wide = _block_windows(context, bound, result.shape[-2:], lead)
    if high.step != 1 or wide.step != 1:
        raise Unsupported("windows are several elements apart")
    if high.size * wide.size > _MOST_TERMS:
        raise Unsupported("many terms for each element")
    x = context.tensor(bound["self"])
    shape = context.shape(result)[:lead]
    apart = [*shape, high.size, wide.size, high.count, wide.count]
    elements = context.cast(context.reshape(x, apart), OPMATH.get(x.dtype, x.dtype))
    total: Tensor | None = None
    for row in range(high.size):
        for column in range(wide.size):
            term = context.slice(elements, lead, row, 1)
            term = context.slice(term, lead + 1, column, 1)
            term = context.reshape(term, [*shape, high.count, wide.count])
            for w, element in ((high, row), (wide, column)):
                before = element * w.dilation - w.before
                term = padded(context, term, w.dim, before, w.extent, 0)
            total = term if total is None else context.pointwise("add", total, term)
    assert total is not None
    return context.copy(context.cast(total, x.dtype))
