"""How writes to computed places become updates of the graph IR: scatter, index_put and what is made of them."""

from __future__ import annotations

import math
import sys
from typing import Any

import torch
from torch.fx import Node

from mlcc.importer.context import Context
from mlcc.importer.ops.index_maps import (
    as_result,
    index_along_dim,
    index_argument,
    index_per_dim,
    is_below_zero,
    is_mask,
    joint_index,
    permuted,
    result_shape,
    row,
    row_of_indices,
    row_rank,
    row_shape,
    slice_start,
)
from mlcc.importer.ops.windows import along, padded
from mlcc.ir.sizes import Size
from mlcc.ir.types import DTYPES, LIMITS, OPMATH, Tensor, Unsupported, device_of
from mlcc.torch_private import symints

# torch's names of reductions.
_COMBINES = {
    "add": "add",
    "sum": "add",
    "multiply": "mul",
    "prod": "mul",
    "amax": "max",
    "amin": "min",
}
_BOOL_COMBINES = {"add": "or", "mul": "and", "max": "or", "min": "and", "set": "set"}


def is_ordered() -> bool:
    """Whether updates of one element keep their order on GPUs too; a graph traced under the flag is kept for it."""
    return torch.are_deterministic_algorithms_enabled()


def _combine(name: str, dtype: str) -> str:
    return _BOOL_COMBINES[name] if dtype == "bool" else name


# -- updates with an index of the source's shape


def _scattered(
    context: Context, base: Tensor, index: Tensor, source: Tensor, dim: int, combine: str
) -> Tensor:
    handle = context.builder.scatter(
        base.handle,
        index.handle,
        source.handle,
        dim,
        _combine(combine, base.dtype),
        is_ordered(),
        "scatter",
    )
    return Tensor(handle, base.dtype)


def _has_no_places(context: Context, node: Node) -> bool:
    """Whether the index is empty, which it then may be in any dtype and rank."""
    return 0 in row_shape(context, context.bind(node)["index"])


def _scatter_operands(
    context: Context, node: Node
) -> tuple[dict[str, Any], Tensor, Tensor, Tensor, int]:
    """Arguments, base, index, source cut to the index's shape, dim."""
    bound = context.bind(node)
    fake = context.fake(bound["self"])
    base, index = row(context, bound["self"]), row_of_indices(context, bound["index"])
    shape = row_shape(context, bound["index"])
    if row_rank(context, bound["self"]) != len(shape):
        raise Unsupported("ranks differ")
    if "src" in bound:
        source, source_shape = row(context, bound["src"]), row_shape(context, bound["src"])
        if len(source_shape) != len(shape):
            raise Unsupported("ranks differ")
        for d, (size, wanted) in enumerate(zip(source_shape, shape, strict=True)):
            if size != wanted:
                source = context.slice(source, d, 0, wanted)
    else:
        number = context.number(bound["value"], base.dtype, device_of(fake))
        source = context.expand(number, shape)
    return bound, base, index, source, bound["dim"] % len(shape)


def scatter(context: Context, node: Node) -> Tensor:
    """scatter.src, scatter.value, and both with `reduce`; scatter_add."""
    if _has_no_places(context, node):
        return context.copy(context.tensor(node.args[0]))
    bound, base, index, source, dim = _scatter_operands(context, node)
    if "scatter_add" in str(node.target):
        combine = "add"
    else:
        combine = _COMBINES[bound["reduce"]] if "reduce" in bound else "set"
    return as_result(context, node, _reduced(context, base, index, source, dim, combine))


def _reduced(
    context: Context, base: Tensor, index: Tensor, source: Tensor, dim: int, combine: str
) -> Tensor:
    """Sums and products of 16-bit floats in f32, rounded once, as eager's kernels do."""
    dtype = base.dtype
    wide = OPMATH.get(dtype, dtype) if combine in ("add", "mul") else dtype
    base, source = context.cast(base, wide), context.cast(source, wide)
    return context.cast(_scattered(context, base, index, source, dim, combine), dtype)


def scatter_reduce(context: Context, node: Node) -> Tensor:
    """scatter_reduce.two."""
    if _has_no_places(context, node):
        return context.copy(context.tensor(node.args[0]))
    bound, base, index, source, dim = _scatter_operands(context, node)

    def update(onto: Tensor, what: Tensor, combine: str) -> Tensor:
        return _reduced(context, onto, index, what, dim, combine)

    shape = row_shape(context, bound["index"])
    return as_result(context, node, _with_reduction(context, bound, base, source, shape, update))


def _with_reduction(
    context: Context, bound: dict[str, Any], base: Tensor, source: Tensor, shape: Any, update: Any
) -> Tensor:
    """`reduce` and `include_self` of scatter_reduce and index_reduce; `update(base, source, combine)` is one."""
    name, include_self, dtype = bound["reduce"], bound["include_self"], base.dtype
    device = device_of(context.fake(bound["self"]))
    combine = "add" if name == "mean" else _COMBINES[name]

    def constant(number: float) -> Tensor:
        value = context.number(number, dtype, device)
        return context.expand(value, shape)

    start = base
    if not include_self:
        start = update(base, constant(_identity(combine, dtype)), "set")
    result: Tensor = update(start, source, combine)
    if name != "mean":
        return result
    if dtype == "bool":
        raise Unsupported("mean of bool")
    ones = context.number(int(include_self), dtype, device)
    count = update(context.expand(ones, row_shape(context, bound["self"])), constant(1), "add")
    wide = OPMATH.get(dtype, dtype)
    one = context.number(1, wide, device)
    count = context.pointwise("maximum", context.cast(count, wide), one)
    division = "div" if wide in ("f32", "f64") else "div_floor_integer"
    quotient = context.pointwise(division, context.cast(result, wide), count)
    return context.cast(quotient, dtype)


def _identity(combine: str, dtype: str) -> float:
    if combine in ("add", "mul"):
        return 0 if combine == "add" else 1
    low, high = LIMITS.get(dtype, (float("-inf"), float("inf")))
    if dtype == "bool":
        low, high = 0, 1
    return low if combine == "max" else high


# -- updates with one index tensor along a dimension


def _put(
    context: Context,
    base: Tensor,
    index: Tensor,
    source: Tensor,
    dim: int,
    combine: str,
    wrap: bool,
    error: str,
) -> Tensor:
    shape: list[Size] = base.handle.shape
    wanted = shape[:dim] + index.handle.shape + shape[dim + 1 :]
    source = context.broadcast(source, source.handle.shape, wanted)
    handle = context.builder.index_put(
        base.handle,
        [index.handle],
        source.handle,
        dim,
        _combine(combine, base.dtype),
        is_ordered(),
        wrap,
        error,
    )
    return Tensor(handle, base.dtype)


def index_put(context: Context, node: Node) -> Tensor:
    """index_put and _unsafe_index_put with integer indices, or with one mask; dimensions between indices are moved."""
    bound = context.bind(node)
    if is_mask(context, bound["indices"]):
        return _masked_put(context, bound)
    index = joint_index(context, bound["indices"])
    fake = context.fake(bound["self"])
    dims = index.dims_first(fake.dim())
    base, values = permuted(context, bound["self"], dims), context.tensor(bound["values"])
    shape, strides = context.shape(fake), context.sizes.sizes(node.meta["val"].stride())
    shape = [shape[dim] for dim in dims]
    wanted = shape[: index.dim] + index.shape + shape[index.dim + len(index.dims) :]
    source = context.broadcast(values, context.shape(context.fake(bound["values"])), wanted)
    combine = _combine("add" if bound["accumulate"] else "set", base.dtype)
    handle = context.builder.index_put(
        base.handle, index.handles, source.handle, index.dim, combine, is_ordered(), True, "index"
    )
    context.builder.set_strides(handle, [strides[dim] for dim in dims])
    if not index.is_together:
        handle = context.builder.permute(handle, sorted(range(len(dims)), key=dims.__getitem__))
    return Tensor(handle, base.dtype)


def _masked_put(context: Context, bound: dict[str, Any]) -> Tensor:
    """index_put with one mask, where the values are the same for all elements that it chooses."""
    dim, argument = next((d, one) for d, one in enumerate(bound["indices"]) if one is not None)
    base, mask = context.tensor(bound["self"]), context.tensor(argument)
    values = context.tensor(bound["values"])
    shape = context.shape(context.fake(bound["values"]))
    masked = context.shape(context.fake(argument))
    trailing = context.fake(bound["self"]).dim() - dim - len(masked)
    if len(shape) > trailing:
        place = len(shape) - trailing - 1
        if shape[place] != 1:
            raise Unsupported("as many values as the mask chooses")
        shape = shape[:place] + [1] * len(masked) + shape[place + 1 :]
        values = context.reshape(values, shape)
    if bound["accumulate"]:
        wide = OPMATH.get(base.dtype, base.dtype)
        op = "or" if wide == "bool" else "add"
        values = context.pointwise(op, context.cast(base, wide), context.cast(values, wide))
        values = context.cast(values, base.dtype)
    mask = context.reshape(mask, masked + [1] * trailing) if trailing else mask
    return context.pointwise("where", mask, values, base)


def unsafe_index_put(context: Context, node: Node) -> Tensor:
    """_unsafe_index_put with one index, or with one for each of the last dimensions: places in row-major order."""
    bound = context.bind(node)
    if sum(index is not None for index in bound["indices"]) == 1:
        return index_put(context, node)
    found = index_per_dim(context, bound["indices"])
    fake, values_fake = context.fake(bound["self"]), context.fake(bound["values"])
    if not found or found[-1][0] != fake.dim() - 1 or values_fake.dim() != fake.dim():
        return index_put(context, node)
    first = found[0][0]
    device = device_of(fake)
    place: Tensor | None = None
    for dim, index in found:
        ones = fake.dim() - dim - 1
        length = context.size(values_fake.shape[dim])
        at = context.reshape(index, [length, *[1] * ones]) if ones else index
        if place is None:
            place = at
            continue
        extent = Tensor(context.builder.size_value(context.size(fake.shape[dim]), device), "i64")
        place = context.pointwise("add", context.pointwise("mul", place, extent), at)
    assert place is not None
    count = context.size(math.prod(values_fake.shape[first:]))
    lead = context.shape(fake)[:first]
    base, values = context.tensor(bound["self"]), context.tensor(bound["values"])
    flat = context.reshape(base, [*lead, context.size(math.prod(fake.shape[first:]))])
    source = context.reshape(values, [*lead, count])
    combine = "add" if bound["accumulate"] else "set"
    index = context.reshape(place, [count])
    result = _put(context, flat, index, source, first, combine, False, "none")
    return context.reshape(result, result_shape(context, node))


def _along_dim(
    context: Context, node: Node, source_name: str
) -> tuple[dict[str, Any], Tensor, Tensor, Tensor | None, int]:
    """Arguments, base, index (one-dimensional), source if it is a tensor, dim of the index_... ops."""
    bound = context.bind(node)
    index, dim = index_along_dim(context, bound)
    source = None
    if isinstance(context.fake(bound[source_name]), torch.Tensor):
        source = context.tensor(bound[source_name])
        if source_name == "source":
            source = row(context, bound["source"])
    return bound, row(context, bound["self"]), index, source, dim


def index_add(context: Context, node: Node) -> Tensor:
    """index_add(self, dim, index, source, alpha); along the first or last dimension eager's is a scatter_add."""
    bound, base, index, source, dim = _along_dim(context, node, "source")
    assert source is not None
    alpha = context.fake(bound["alpha"])
    rank = context.fake(bound["self"]).dim()
    is_long = context.fake(bound["index"]).dtype == torch.int64
    if rank > 1 and dim in (0, rank - 1) and alpha == 1 and is_long:
        wide = OPMATH.get(base.dtype, base.dtype)
        base, source = context.cast(base, wide), context.cast(source, wide)
        result = _put(context, base, index, source, dim, "add", False, "scatter")
        return context.cast(result, DTYPES[node.meta["val"].dtype])
    dtype = base.dtype
    if alpha != 1:  # of 16-bit floats in f32, so that products are not rounded
        wide = OPMATH.get(dtype, dtype)
        device = device_of(context.fake(bound["self"]))
        number = context.number(alpha, wide, device)
        base, source = context.cast(base, wide), context.cast(source, wide)
        source = context.pointwise("and" if wide == "bool" else "mul", source, number)
    result = _put(context, base, index, source, dim, "add", False, "index_add")
    return as_result(context, node, context.cast(result, dtype))


def index_copy(context: Context, node: Node) -> Tensor:
    """index_copy(self, dim, index, source)."""
    _, base, index, source, dim = _along_dim(context, node, "source")
    assert source is not None
    result = _put(context, base, index, source, dim, "set", False, "index_copy")
    return as_result(context, node, result)


def index_fill(context: Context, node: Node) -> Tensor:
    """index_fill.int_Scalar and int_Tensor: a number of the graph, or a 0-d tensor."""
    bound, base, index, value, dim = _along_dim(context, node, "value")
    fake = context.fake(bound["self"])
    number = value or context.number(bound["value"], base.dtype, device_of(fake))
    shape = row_shape(context, bound["self"])
    (shape[dim],) = row_shape(context, bound["index"])
    source = context.expand(context.cast(number, base.dtype), shape)
    result = _put(context, base, index, source, dim, "set", True, "index_fill")
    return as_result(context, node, result)


def index_reduce(context: Context, node: Node) -> Tensor:
    """index_reduce(self, dim, index, source, reduce, include_self)."""
    bound, base, index, source, dim = _along_dim(context, node, "source")
    assert source is not None
    if bound["reduce"] == "mean" and base.dtype in OPMATH:
        raise Unsupported(f"mean of {base.dtype}")

    def update(onto: Tensor, what: Tensor, combine: str) -> Tensor:
        return _put(context, onto, index, what, dim, combine, False, "index_add")

    shape = row_shape(context, bound["source"])
    return as_result(context, node, _with_reduction(context, bound, base, source, shape, update))


def put(context: Context, node: Node) -> Tensor:
    """put(self, index, source, accumulate): places in row-major order."""
    if torch.are_deterministic_algorithms_enabled():
        raise Unsupported("eager refuses it where algorithms are to be deterministic")
    bound = context.bind(node)
    fake = context.fake(bound["self"])
    index = index_argument(context, bound["index"])
    shape = context.shape(context.fake(bound["index"]))
    source = context.reshape(context.tensor(bound["source"]), shape)
    flat = context.reshape(context.tensor(bound["self"]), [context.size(fake.numel())])
    combine = "add" if bound["accumulate"] else "set"
    result = _put(context, flat, index, source, 0, combine, True, "put")
    rows = context.reshape(result, result_shape(context, node))
    expected = context.tensor_type(node, node.meta["val"])
    return context.restrided(rows, expected._replace(strides=None), expected)


def embedding_dense_backward(context: Context, node: Node) -> Tensor:
    """Rows of the gradient added up by index; rows of the padding index count as zeros."""
    bound = context.bind(node)
    gradient = context.tensor(bound["grad_output"])
    device = device_of(node.meta["val"])
    index = index_argument(context, bound["indices"])
    if bound["scale_grad_by_freq"]:
        gradient = _scaled_by_frequency(context, node, gradient, index)
    zero = context.number(0, gradient.dtype, device)
    padding = context.fake(bound["padding_idx"])
    if not isinstance(padding, int) or padding >= 0:
        place = context.number(bound["padding_idx"], "i64", device)
        is_padding = context.pointwise("eq", index, place, dtype="bool")
        column = context.reshape(is_padding, [*context.shape(context.fake(bound["indices"])), 1])
        gradient = context.pointwise("where", column, zero, gradient)
    base = context.expand(zero, result_shape(context, node))
    return _put(context, base, index, gradient, 0, "add", False, "embedding")


def _scaled_by_frequency(context: Context, node: Node, gradient: Tensor, index: Tensor) -> Tensor:
    """Each row of the gradient divided by how often its index occurs."""
    device = device_of(node.meta["val"])
    wide = OPMATH.get(gradient.dtype, gradient.dtype)
    shape = context.shape(context.fake(context.bind(node)["indices"]))

    def constant(number: int, shape: list[Size]) -> Tensor:
        return Tensor(context.full(shape, "i64", number, device), "i64")

    none, ones = constant(0, result_shape(context, node)[:1]), constant(1, shape)
    counts = _put(context, none, index, ones, 0, "add", False, "embedding")
    handle = context.builder.take(counts.handle, [index.handle], 0, False, "embedding")
    count = context.reshape(context.cast(Tensor(handle, "i64"), wide), [*shape, 1])
    one = context.number(1, wide, device)
    scale = context.pointwise("div", one, count)
    return context.cast(
        context.pointwise("mul", context.cast(gradient, wide), scale), gradient.dtype
    )


# -- updates at regular places


def slice_scatter(context: Context, node: Node) -> Tensor:
    """slice_scatter: an update of an input's memory; else what stands before, the source and what stands behind."""
    bound = context.bind(node)
    fake = context.fake(bound["self"])
    dim, step = bound["dim"] % fake.dim(), bound["step"]
    if not isinstance(step, int):
        raise Unsupported("step is no constant")
    base = context.tensor(bound["self"])
    source = context.cast(context.tensor(bound["src"]), base.dtype)
    extent, length = fake.shape[dim], context.fake(bound["src"]).shape[dim]
    _require_slice_length(context, bound, extent, length)
    if context.size(length) == 0:
        return context.copy(base)
    start = slice_start(context, extent, bound["start"], length)
    if _is_written_back(node, bound["self"], bound["src"]):
        device = device_of(fake)
        index = context.builder.iota(context.size(length), "i64", start, step, device)
        return _put(context, base, Tensor(index, "i64"), source, dim, "set", False, "none")
    if step != 1:
        return _chosen_by_steps(context, node, base, source, dim, start)
    if start == 0 and context.size(length) == context.size(extent):
        return context.copy(source)
    parts = [context.slice(base, dim, 0, start)] if start != 0 else []
    parts.append(source)
    rest = _size_behind(context, extent, bound["start"], start, length)
    if rest != 0:
        covered = context.size(length)
        end = (
            start + covered
            if isinstance(start, int) and isinstance(covered, int)
            else f"{start} + {covered}"
        )
        parts.append(context.slice(base, dim, end, rest))
    return context.cat(parts, dim)


def _chosen_by_steps(
    context: Context, node: Node, base: Tensor, source: Tensor, dim: int, start: Size
) -> Tensor:
    """With a step other than 1: within the slice a choice at every place, so that all of it is one pass."""
    bound = context.bind(node)
    fake, step = context.fake(bound["self"]), bound["step"]
    size, end = context.size(fake.shape[dim]), context.fake(bound["end"])
    length = context.size(context.fake(bound["src"]).shape[dim])
    behind = f"({size}) - ({start})"
    goes_to_end = end is None or context.size(end) in (size, sys.maxsize)
    is_slow = isinstance(size, str) and not goes_to_end and dim == fake.dim() - 1
    if is_slow and context.may_call:
        raise Unsupported("a part of rows of symbolic length by steps: 0.9 of eager's speed")
    covered = behind if goes_to_end else f"min(({length})*{step}, {behind})"
    inside = context.slice(base, dim, start, covered)
    source = context.slice(_repeated(context, source, dim, step), dim, 0, covered)
    chosen = context.pointwise("where", _every(context, fake, dim, covered, step), source, inside)
    parts = [context.slice(base, dim, 0, start), chosen]
    if not goes_to_end:
        rest = f"({behind}) - ({covered})"
        parts.append(context.slice(base, dim, f"({start}) + ({covered})", rest))
    return context.cat([part for part in parts if part.handle.shape[dim] != 0], dim)


def _require_slice_length(
    context: Context, bound: dict[str, Any], extent: Any, length: Any
) -> None:
    """Leave a source not known to be as long as the slice to eager, which raises: torch's trace does not look."""
    start, end, step = (context.fake(bound[name]) for name in ("start", "end", "step"))
    first = _clamped(0 if start is None else start, extent)
    last = extent if end is None else _clamped(end, extent)
    covered = (last - first + step - 1) // step
    if isinstance(covered, int):
        covered = max(covered, 0)
    if not symints.is_known(length == covered):
        raise Unsupported("a source that is not known to be as long as the slice")


def _clamped(place: Any, extent: Any) -> Any:
    """A place of a slice from the front and inside the dimension, as far as that is known."""
    if is_below_zero(place):
        place = extent + place
    if isinstance(place, int) and isinstance(extent, int):
        return min(max(place, 0), extent)
    return extent if isinstance(place, int) and place >= sys.maxsize else place


def _size_behind(context: Context, extent: Any, given: Any, start: Size, length: Any) -> Size:
    """How much of a dimension stands behind a slice of it that begins at `start`, where `given` was asked for."""
    given = context.fake(given) or 0
    if isinstance(given, int) and given < 0:
        given = extent + given
    if context.size(given) == start:
        return context.size(extent - given - length)
    return f"{context.size(extent)} - ({start}) - ({context.size(length)})"


def _is_written_back(node: Node, base: Any, source: Any) -> bool:
    """Whether the node changes a part of an input that it is then copied into, by what does not depend on the input.

    As an update at the places of that part it leaves the rest of the input's memory alone. A source that reads the
    input could meet what is already written.
    """
    if base.op != "placeholder" or not any(
        user.target is torch.ops.aten.copy_.default and user.args == (base, node)
        for user in node.users
    ):
        return False
    seen = {source}
    pending = [source]
    while pending:
        reader = pending.pop()
        operands = reader.all_input_nodes
        if reader.target is torch.ops.aten.copy.default:
            operands = operands[1:]  # of the first one it takes the shape only
        elif isinstance(reader.meta.get("val"), torch.SymInt):
            operands = []  # a size, which is known before
        pending.extend(operand for operand in operands if operand not in seen)
        seen.update(operands)
    return base not in seen


def _repeated(context: Context, x: Tensor, dim: int, times: int) -> Tensor:
    """Each element along `dim` so many times in a row."""
    shape: list[Size] = x.handle.shape
    before, size, behind = shape[:dim], shape[dim], shape[dim + 1 :]
    wide = context.expand(
        context.reshape(x, [*before, size, 1, *behind]), [*before, size, times, *behind]
    )
    return context.reshape(wide, [*before, f"({size})*{times}", *behind])


def _every(context: Context, fake: torch.Tensor, dim: int, length: Size, step: int) -> Tensor:
    """Whether the place along `dim` is a multiple of `step`, to broadcast over a tensor like `fake`."""
    device = device_of(fake)
    is_power = step & (step - 1) == 0  # then the low bits tell, which no number of bits changes
    dtype = "i32" if is_power else "i64"
    places = along(context, length, dim, fake.dim(), 0, 1, device, dtype)
    op, number = ("and", step - 1) if is_power else ("remainder_integer", step)
    rest = context.pointwise(op, places, context.number(number, dtype, device))
    zero = context.number(0, dtype, device)
    return context.pointwise("eq", rest, zero, dtype="bool")


def diagonal_scatter(context: Context, node: Node) -> Tensor:
    """diagonal_scatter(self, src, offset, dim1, dim2): the source along the rows or the columns, where it is chosen.

    Where the diagonal has no element in some rows, the source goes on beyond its ends by zeros that nothing chooses.
    """
    bound = context.bind(node)
    fake, offset = context.fake(bound["self"]), context.fake(bound["offset"])
    if not isinstance(offset, int):
        raise Unsupported("the offset is no constant")
    rank = fake.dim()
    row, column = bound["dim1"] % rank, bound["dim2"] % rank
    shape = context.shape(fake)
    given = context.fake(bound["src"]).shape[-1]
    rooms = fake.shape[row] + min(offset, 0), fake.shape[column] - max(offset, 0)
    always_fits = _always_fits_diagonal(given, *rooms)
    length = context.size(given)
    if length == 0:
        return context.copy(context.tensor(bound["self"]))
    if column == row + 1 and always_fits and _is_written_back(node, bound["self"], bound["src"]):
        return _diagonal_put(context, bound, row, offset, length)
    spanned, missing, before = row, column, max(0, -offset)
    if length == shape[column] and offset <= 0:
        spanned, missing, before = column, row, 0
    base = context.tensor(bound["self"])
    rest = [dim for dim in range(rank) if dim not in (row, column)]
    order = [*rest, spanned]  # the source's dimensions, as the result's
    source = permuted(context, bound["src"], sorted(range(rank - 1), key=order.__getitem__))
    source = context.cast(source, base.dtype)
    spread = [1 if dim == missing else shape[dim] for dim in range(rank)]
    spread[spanned] = length
    spread_source = padded(
        context, context.reshape(source, spread), spanned, before, shape[spanned], 0
    )
    device = device_of(fake)
    rows, columns = (along(context, shape[dim], dim, rank, 0, 1, device) for dim in (row, column))
    start = context.number(offset, "i64", device)
    is_diagonal = context.pointwise(
        "eq", context.pointwise("add", rows, start), columns, dtype="bool"
    )
    return context.pointwise("where", is_diagonal, spread_source, base)


def _always_fits_diagonal(length: Any, by_rows: Any, by_columns: Any) -> bool:
    """Whether a source is as long as the diagonal, or else as the rows or columns let it be, one of which it is."""
    exact = torch.sym_min(by_rows, by_columns)
    if any(symints.is_known(length == one) for one in (exact, torch.sym_max(exact, 0))):
        return True
    if not any(symints.is_known(length == room) for room in (by_rows, by_columns)):
        raise Unsupported("a source that is not known to be as long as the diagonal")
    return False


def _diagonal_put(
    context: Context, bound: dict[str, Any], row: int, offset: int, length: Size
) -> Tensor:
    """An update at the places of a diagonal of dimensions `row` and `row + 1`."""
    device = device_of(context.fake(bound["self"]))
    base = context.tensor(bound["self"])
    last = context.fake(bound["src"]).dim() - 1
    order = [*range(row), last, *range(row, last)]
    source = context.cast(permuted(context, bound["src"], order), base.dtype)
    firsts = max(0, -offset), max(0, offset)
    places = [context.builder.iota(length, "i64", first, 1, device) for first in firsts]
    handle = context.builder.index_put(
        base.handle, places, source.handle, row, "set", is_ordered(), False, "none"
    )
    return Tensor(handle, base.dtype)


# -- scans


def cumulative(combine: str) -> Any:
    """cumsum and cumprod: in the result's dtype."""

    def handler(context: Context, node: Node) -> Tensor:
        bound = context.bind(node)
        dtype = DTYPES[node.meta["val"].dtype]
        x = context.cast(context.tensor(bound["self"]), dtype)
        if dtype == "bool":
            raise Unsupported("result is bool")
        return scanned(context, x, context.fake(bound["self"]).dim(), bound["dim"], combine)

    return handler


def scanned(context: Context, x: Tensor, rank: int, dim: int, combine: str) -> Tensor:
    """A scan along `dim`, which may count from the end; of a number the number itself."""
    if rank == 0:
        return context.copy(x)
    handle = context.builder.scan(x.handle, dim % rank, combine)
    return Tensor(handle, "i64" if combine.startswith("arg") else x.dtype)


def cumulative_extreme(combine: str) -> Any:
    """cummax and cummin: the extremes so far and the places of the last of equal ones."""

    def handler(context: Context, node: Node) -> list[Tensor]:
        bound = context.bind(node)
        fake = context.fake(bound["self"])
        x = context.tensor(bound["self"])
        if fake.dim() == 0:
            zero = context.number(0, "i64", device_of(fake))
            return [context.copy(x), context.copy(zero)]
        as_number = context.cast(x, "u8") if x.dtype == "bool" else x
        values = scanned(context, as_number, fake.dim(), bound["dim"], combine)
        places = scanned(context, as_number, fake.dim(), bound["dim"], f"arg{combine}")
        return [context.cast(values, x.dtype), places]

    return handler


def logcumsumexp(context: Context, node: Node) -> Tensor:
    """logcumsumexp(self, dim)."""
    bound = context.bind(node)
    x, fake = context.tensor(bound["self"]), context.fake(bound["self"])
    if not fake.dtype.is_floating_point:
        raise Unsupported(f"{fake.dtype}, which eager refuses")
    return scanned(context, x, fake.dim(), bound["dim"], "logaddexp")


def masked_scatter(context: Context, node: Node) -> Tensor:
    """Elements of the source in order where the mask is set: how many were set before says which."""
    bound = context.bind(node)
    fake, source_fake = context.fake(bound["self"]), context.fake(bound["source"])
    shape = result_shape(context, node)
    if context.size(source_fake.numel()) == 0 or context.shape(fake) != shape:
        raise Unsupported("empty source, or a mask larger than the operand")
    count = context.size(node.meta["val"].numel())
    mask = context.tensor(bound["mask"])
    mask_shape = context.shape(context.fake(bound["mask"]))
    mask = mask if mask_shape == shape else context.expand(mask, shape)
    flat = context.reshape(mask, [count])
    before = scanned(context, context.cast(flat, "i64"), 1, 0, "add")
    device = device_of(fake)
    one = context.number(1, "i64", device)
    zero = context.number(0, "i64", device)
    place = context.pointwise("where", flat, context.pointwise("sub", before, one), zero)
    source = context.reshape(context.tensor(bound["source"]), [context.size(source_fake.numel())])
    handle = context.builder.take(source.handle, [place.handle], 0, False, "masked_scatter")
    taken = context.reshape(Tensor(handle, source.dtype), shape)
    return context.pointwise("where", mask, taken, context.tensor(bound["self"]))
