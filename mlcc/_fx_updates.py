"""How writes to computed places become updates of the graph IR: scatter, index_put and what is made of them."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from mlcc import _torch_sizes
from mlcc._fx_index_maps import (
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
from mlcc._fx_sizes import Size
from mlcc._fx_types import DTYPES, LIMITS, OPMATH, Tensor, Unsupported, device_of
from mlcc._fx_windows import along, padded

if TYPE_CHECKING:
    from mlcc.fx_import import Importer

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
    importer: Importer, base: Tensor, index: Tensor, source: Tensor, dim: int, combine: str
) -> Tensor:
    handle = importer.builder.scatter(
        base.handle,
        index.handle,
        source.handle,
        dim,
        _combine(combine, base.dtype),
        is_ordered(),
        "scatter",
    )
    return Tensor(handle, base.dtype)


def _has_no_places(importer: Importer, node: Node) -> bool:
    """Whether the index is empty, which it then may be in any dtype and rank."""
    return 0 in row_shape(importer, importer.bind(node)["index"])


def _scatter_operands(
    importer: Importer, node: Node
) -> tuple[dict[str, Any], Tensor, Tensor, Tensor, int]:
    """Arguments, base, index, source cut to the index's shape, dim."""
    bound = importer.bind(node)
    fake = importer.fake(bound["self"])
    base, index = row(importer, bound["self"]), row_of_indices(importer, bound["index"])
    shape = row_shape(importer, bound["index"])
    if row_rank(importer, bound["self"]) != len(shape):
        raise Unsupported("ranks differ")
    if "src" in bound:
        source, source_shape = row(importer, bound["src"]), row_shape(importer, bound["src"])
        if len(source_shape) != len(shape):
            raise Unsupported("ranks differ")
        for d, (size, wanted) in enumerate(zip(source_shape, shape, strict=True)):
            if size != wanted:
                source = importer.slice(source, d, 0, wanted)
    else:
        number = importer.number(bound["value"], base.dtype, device_of(fake))
        source = importer.expand(number, shape)
    return bound, base, index, source, bound["dim"] % len(shape)


def scatter(importer: Importer, node: Node) -> Tensor:
    """scatter.src, scatter.value, and both with `reduce`; scatter_add."""
    if _has_no_places(importer, node):
        return importer.copy(importer.tensor(node.args[0]))
    bound, base, index, source, dim = _scatter_operands(importer, node)
    if "scatter_add" in str(node.target):
        combine = "add"
    else:
        combine = _COMBINES[bound["reduce"]] if "reduce" in bound else "set"
    return as_result(importer, node, _reduced(importer, base, index, source, dim, combine))


def _reduced(
    importer: Importer, base: Tensor, index: Tensor, source: Tensor, dim: int, combine: str
) -> Tensor:
    """Sums and products of 16-bit floats in f32, rounded once, as eager's kernels do."""
    dtype = base.dtype
    wide = OPMATH.get(dtype, dtype) if combine in ("add", "mul") else dtype
    base, source = importer.cast(base, wide), importer.cast(source, wide)
    return importer.cast(_scattered(importer, base, index, source, dim, combine), dtype)


def scatter_reduce(importer: Importer, node: Node) -> Tensor:
    """scatter_reduce.two."""
    if _has_no_places(importer, node):
        return importer.copy(importer.tensor(node.args[0]))
    bound, base, index, source, dim = _scatter_operands(importer, node)

    def update(onto: Tensor, what: Tensor, combine: str) -> Tensor:
        return _reduced(importer, onto, index, what, dim, combine)

    shape = row_shape(importer, bound["index"])
    return as_result(importer, node, _with_reduction(importer, bound, base, source, shape, update))


def _with_reduction(
    importer: Importer, bound: dict[str, Any], base: Tensor, source: Tensor, shape: Any, update: Any
) -> Tensor:
    """`reduce` and `include_self` of scatter_reduce and index_reduce; `update(base, source, combine)` is one."""
    name, include_self, dtype = bound["reduce"], bound["include_self"], base.dtype
    device = device_of(importer.fake(bound["self"]))
    combine = "add" if name == "mean" else _COMBINES[name]

    def constant(number: float) -> Tensor:
        value = importer.number(number, dtype, device)
        return importer.expand(value, shape)

    start = base
    if not include_self:
        start = update(base, constant(_identity(combine, dtype)), "set")
    result: Tensor = update(start, source, combine)
    if name != "mean":
        return result
    if dtype == "bool":
        raise Unsupported("mean of bool")
    ones = importer.number(int(include_self), dtype, device)
    count = update(importer.expand(ones, row_shape(importer, bound["self"])), constant(1), "add")
    wide = OPMATH.get(dtype, dtype)
    one = importer.number(1, wide, device)
    count = importer.pointwise("maximum", importer.cast(count, wide), one)
    division = "div" if wide in ("f32", "f64") else "div_floor_integer"
    quotient = importer.pointwise(division, importer.cast(result, wide), count)
    return importer.cast(quotient, dtype)


def _identity(combine: str, dtype: str) -> float:
    if combine in ("add", "mul"):
        return 0 if combine == "add" else 1
    low, high = LIMITS.get(dtype, (float("-inf"), float("inf")))
    if dtype == "bool":
        low, high = 0, 1
    return low if combine == "max" else high


# -- updates with one index tensor along a dimension


def _put(
    importer: Importer,
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
    source = importer.broadcast(source, source.handle.shape, wanted)
    handle = importer.builder.index_put(
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


def index_put(importer: Importer, node: Node) -> Tensor:
    """index_put and _unsafe_index_put with integer indices, or with one mask; dimensions between indices are moved."""
    bound = importer.bind(node)
    if is_mask(importer, bound["indices"]):
        return _masked_put(importer, bound)
    index = joint_index(importer, bound["indices"])
    fake = importer.fake(bound["self"])
    dims = index.dims_first(fake.dim())
    base, values = permuted(importer, bound["self"], dims), importer.tensor(bound["values"])
    shape, strides = importer.shape(fake), importer.sizes.sizes(node.meta["val"].stride())
    shape = [shape[dim] for dim in dims]
    wanted = shape[: index.dim] + index.shape + shape[index.dim + len(index.dims) :]
    source = importer.broadcast(values, importer.shape(importer.fake(bound["values"])), wanted)
    combine = _combine("add" if bound["accumulate"] else "set", base.dtype)
    handle = importer.builder.index_put(
        base.handle, index.handles, source.handle, index.dim, combine, is_ordered(), True, "index"
    )
    importer.builder.set_strides(handle, [strides[dim] for dim in dims])
    if not index.is_together:
        handle = importer.builder.permute(handle, sorted(range(len(dims)), key=dims.__getitem__))
    return Tensor(handle, base.dtype)


def _masked_put(importer: Importer, bound: dict[str, Any]) -> Tensor:
    """index_put with one mask, where the values are the same for all elements that it chooses."""
    dim, argument = next((d, one) for d, one in enumerate(bound["indices"]) if one is not None)
    base, mask = importer.tensor(bound["self"]), importer.tensor(argument)
    values = importer.tensor(bound["values"])
    shape = importer.shape(importer.fake(bound["values"]))
    masked = importer.shape(importer.fake(argument))
    trailing = importer.fake(bound["self"]).dim() - dim - len(masked)
    if len(shape) > trailing:
        place = len(shape) - trailing - 1
        if shape[place] != 1:
            raise Unsupported("as many values as the mask chooses")
        shape = shape[:place] + [1] * len(masked) + shape[place + 1 :]
        values = importer.reshape(values, shape)
    if bound["accumulate"]:
        wide = OPMATH.get(base.dtype, base.dtype)
        op = "or" if wide == "bool" else "add"
        values = importer.pointwise(op, importer.cast(base, wide), importer.cast(values, wide))
        values = importer.cast(values, base.dtype)
    mask = importer.reshape(mask, masked + [1] * trailing) if trailing else mask
    return importer.pointwise("where", mask, values, base)


def unsafe_index_put(importer: Importer, node: Node) -> Tensor:
    """_unsafe_index_put with one index, or with one for each of the last dimensions: places in row-major order."""
    bound = importer.bind(node)
    if sum(index is not None for index in bound["indices"]) == 1:
        return index_put(importer, node)
    found = index_per_dim(importer, bound["indices"])
    fake, values_fake = importer.fake(bound["self"]), importer.fake(bound["values"])
    if not found or found[-1][0] != fake.dim() - 1 or values_fake.dim() != fake.dim():
        return index_put(importer, node)
    first = found[0][0]
    device = device_of(fake)
    place: Tensor | None = None
    for dim, index in found:
        ones = fake.dim() - dim - 1
        length = importer.size(values_fake.shape[dim])
        at = importer.reshape(index, [length, *[1] * ones]) if ones else index
        if place is None:
            place = at
            continue
        extent = Tensor(importer.builder.size_value(importer.size(fake.shape[dim]), device), "i64")
        place = importer.pointwise("add", importer.pointwise("mul", place, extent), at)
    assert place is not None
    count = importer.size(math.prod(values_fake.shape[first:]))
    lead = importer.shape(fake)[:first]
    base, values = importer.tensor(bound["self"]), importer.tensor(bound["values"])
    flat = importer.reshape(base, [*lead, importer.size(math.prod(fake.shape[first:]))])
    source = importer.reshape(values, [*lead, count])
    combine = "add" if bound["accumulate"] else "set"
    index = importer.reshape(place, [count])
    result = _put(importer, flat, index, source, first, combine, False, "none")
    return importer.reshape(result, result_shape(importer, node))


def _along_dim(
    importer: Importer, node: Node, source_name: str
) -> tuple[dict[str, Any], Tensor, Tensor, Tensor | None, int]:
    """Arguments, base, index (one-dimensional), source if it is a tensor, dim of the index_... ops."""
    bound = importer.bind(node)
    index, dim = index_along_dim(importer, bound)
    source = None
    if isinstance(importer.fake(bound[source_name]), torch.Tensor):
        source = importer.tensor(bound[source_name])
        if source_name == "source":
            source = row(importer, bound["source"])
    return bound, row(importer, bound["self"]), index, source, dim


def index_add(importer: Importer, node: Node) -> Tensor:
    """index_add(self, dim, index, source, alpha); along the first or last dimension eager's is a scatter_add."""
    bound, base, index, source, dim = _along_dim(importer, node, "source")
    assert source is not None
    alpha = importer.fake(bound["alpha"])
    rank = importer.fake(bound["self"]).dim()
    is_long = importer.fake(bound["index"]).dtype == torch.int64
    if rank > 1 and dim in (0, rank - 1) and alpha == 1 and is_long:
        wide = OPMATH.get(base.dtype, base.dtype)
        base, source = importer.cast(base, wide), importer.cast(source, wide)
        result = _put(importer, base, index, source, dim, "add", False, "scatter")
        return importer.cast(result, DTYPES[node.meta["val"].dtype])
    dtype = base.dtype
    if alpha != 1:  # of 16-bit floats in f32, so that products are not rounded
        wide = OPMATH.get(dtype, dtype)
        device = device_of(importer.fake(bound["self"]))
        number = importer.number(alpha, wide, device)
        base, source = importer.cast(base, wide), importer.cast(source, wide)
        source = importer.pointwise("and" if wide == "bool" else "mul", source, number)
    result = _put(importer, base, index, source, dim, "add", False, "index_add")
    return as_result(importer, node, importer.cast(result, dtype))


def index_copy(importer: Importer, node: Node) -> Tensor:
    """index_copy(self, dim, index, source)."""
    _, base, index, source, dim = _along_dim(importer, node, "source")
    assert source is not None
    result = _put(importer, base, index, source, dim, "set", False, "index_copy")
    return as_result(importer, node, result)


def index_fill(importer: Importer, node: Node) -> Tensor:
    """index_fill.int_Scalar and int_Tensor: a number of the graph, or a 0-d tensor."""
    bound, base, index, value, dim = _along_dim(importer, node, "value")
    fake = importer.fake(bound["self"])
    number = value or importer.number(bound["value"], base.dtype, device_of(fake))
    shape = row_shape(importer, bound["self"])
    (shape[dim],) = row_shape(importer, bound["index"])
    source = importer.expand(importer.cast(number, base.dtype), shape)
    result = _put(importer, base, index, source, dim, "set", True, "index_fill")
    return as_result(importer, node, result)


def index_reduce(importer: Importer, node: Node) -> Tensor:
    """index_reduce(self, dim, index, source, reduce, include_self)."""
    bound, base, index, source, dim = _along_dim(importer, node, "source")
    assert source is not None
    if bound["reduce"] == "mean" and base.dtype in OPMATH:
        raise Unsupported(f"mean of {base.dtype}")

    def update(onto: Tensor, what: Tensor, combine: str) -> Tensor:
        return _put(importer, onto, index, what, dim, combine, False, "index_add")

    shape = row_shape(importer, bound["source"])
    return as_result(importer, node, _with_reduction(importer, bound, base, source, shape, update))


def put(importer: Importer, node: Node) -> Tensor:
    """put(self, index, source, accumulate): places in row-major order."""
    if torch.are_deterministic_algorithms_enabled():
        raise Unsupported("eager refuses it where algorithms are to be deterministic")
    bound = importer.bind(node)
    fake = importer.fake(bound["self"])
    index = index_argument(importer, bound["index"])
    shape = importer.shape(importer.fake(bound["index"]))
    source = importer.reshape(importer.tensor(bound["source"]), shape)
    flat = importer.reshape(importer.tensor(bound["self"]), [importer.size(fake.numel())])
    combine = "add" if bound["accumulate"] else "set"
    result = _put(importer, flat, index, source, 0, combine, True, "put")
    rows = importer.reshape(result, result_shape(importer, node))
    expected = importer.tensor_type(node, node.meta["val"])
    return importer.restrided(rows, expected._replace(strides=None), expected)


def embedding_dense_backward(importer: Importer, node: Node) -> Tensor:
    """Rows of the gradient added up by index; rows of the padding index count as zeros."""
    bound = importer.bind(node)
    gradient = importer.tensor(bound["grad_output"])
    device = device_of(node.meta["val"])
    index = index_argument(importer, bound["indices"])
    if bound["scale_grad_by_freq"]:
        gradient = _scaled_by_frequency(importer, node, gradient, index)
    zero = importer.number(0, gradient.dtype, device)
    padding = importer.fake(bound["padding_idx"])
    if not isinstance(padding, int) or padding >= 0:
        place = importer.number(bound["padding_idx"], "i64", device)
        is_padding = importer.pointwise("eq", index, place, dtype="bool")
        column = importer.reshape(is_padding, [*importer.shape(importer.fake(bound["indices"])), 1])
        gradient = importer.pointwise("where", column, zero, gradient)
    base = importer.expand(zero, result_shape(importer, node))
    return _put(importer, base, index, gradient, 0, "add", False, "embedding")


def _scaled_by_frequency(importer: Importer, node: Node, gradient: Tensor, index: Tensor) -> Tensor:
    """Each row of the gradient divided by how often its index occurs."""
    device = device_of(node.meta["val"])
    wide = OPMATH.get(gradient.dtype, gradient.dtype)
    shape = importer.shape(importer.fake(importer.bind(node)["indices"]))

    def constant(number: int, shape: list[Size]) -> Tensor:
        return Tensor(importer.full(shape, "i64", number, device), "i64")

    none, ones = constant(0, result_shape(importer, node)[:1]), constant(1, shape)
    counts = _put(importer, none, index, ones, 0, "add", False, "embedding")
    handle = importer.builder.take(counts.handle, [index.handle], 0, False, "embedding")
    count = importer.reshape(importer.cast(Tensor(handle, "i64"), wide), [*shape, 1])
    one = importer.number(1, wide, device)
    scale = importer.pointwise("div", one, count)
    return importer.cast(
        importer.pointwise("mul", importer.cast(gradient, wide), scale), gradient.dtype
    )


# -- updates at regular places


def slice_scatter(importer: Importer, node: Node) -> Tensor:
    """slice_scatter: an update of an input's memory; else what stands before, the source and what stands behind."""
    bound = importer.bind(node)
    fake = importer.fake(bound["self"])
    dim, step = bound["dim"] % fake.dim(), bound["step"]
    if not isinstance(step, int):
        raise Unsupported("step is no constant")
    base = importer.tensor(bound["self"])
    source = importer.cast(importer.tensor(bound["src"]), base.dtype)
    extent, length = fake.shape[dim], importer.fake(bound["src"]).shape[dim]
    _require_slice_length(importer, bound, extent, length)
    if importer.size(length) == 0:
        return importer.copy(base)
    start = slice_start(importer, extent, bound["start"], length)
    if _is_written_back(node, bound["self"], bound["src"]):
        device = device_of(fake)
        index = importer.builder.iota(importer.size(length), "i64", start, step, device)
        return _put(importer, base, Tensor(index, "i64"), source, dim, "set", False, "none")
    if step != 1:
        return _chosen_by_steps(importer, node, base, source, dim, start)
    if start == 0 and importer.size(length) == importer.size(extent):
        return importer.copy(source)
    parts = [importer.slice(base, dim, 0, start)] if start != 0 else []
    parts.append(source)
    rest = _size_behind(importer, extent, bound["start"], start, length)
    if rest != 0:
        covered = importer.size(length)
        end = (
            start + covered
            if isinstance(start, int) and isinstance(covered, int)
            else f"{start} + {covered}"
        )
        parts.append(importer.slice(base, dim, end, rest))
    return importer.cat(parts, dim)


def _chosen_by_steps(
    importer: Importer, node: Node, base: Tensor, source: Tensor, dim: int, start: Size
) -> Tensor:
    """With a step other than 1: within the slice a choice at every place, so that all of it is one pass."""
    bound = importer.bind(node)
    fake, step = importer.fake(bound["self"]), bound["step"]
    size, end = importer.size(fake.shape[dim]), importer.fake(bound["end"])
    length = importer.size(importer.fake(bound["src"]).shape[dim])
    behind = f"({size}) - ({start})"
    goes_to_end = end is None or importer.size(end) in (size, sys.maxsize)
    if isinstance(size, str) and not goes_to_end and dim == fake.dim() - 1:
        raise Unsupported("a part of rows of symbolic length by steps: 0.9 of eager's speed")
    covered = behind if goes_to_end else f"min(({length})*{step}, {behind})"
    inside = importer.slice(base, dim, start, covered)
    source = importer.slice(_repeated(importer, source, dim, step), dim, 0, covered)
    chosen = importer.pointwise("where", _every(importer, fake, dim, covered, step), source, inside)
    parts = [importer.slice(base, dim, 0, start), chosen]
    if not goes_to_end:
        rest = f"({behind}) - ({covered})"
        parts.append(importer.slice(base, dim, f"({start}) + ({covered})", rest))
    return importer.cat([part for part in parts if part.handle.shape[dim] != 0], dim)


def _require_slice_length(
    importer: Importer, bound: dict[str, Any], extent: Any, length: Any
) -> None:
    """Leave a source not known to be as long as the slice to eager, which raises: torch's trace does not look."""
    start, end, step = (importer.fake(bound[name]) for name in ("start", "end", "step"))
    first = _clamped(0 if start is None else start, extent)
    last = extent if end is None else _clamped(end, extent)
    covered = (last - first + step - 1) // step
    if isinstance(covered, int):
        covered = max(covered, 0)
    if not _torch_sizes.is_known(length == covered):
        raise Unsupported("a source that is not known to be as long as the slice")


def _clamped(place: Any, extent: Any) -> Any:
    """A place of a slice from the front and inside the dimension, as far as that is known."""
    if is_below_zero(place):
        place = extent + place
    if isinstance(place, int) and isinstance(extent, int):
        return min(max(place, 0), extent)
    return extent if isinstance(place, int) and place >= sys.maxsize else place


def _size_behind(importer: Importer, extent: Any, given: Any, start: Size, length: Any) -> Size:
    """How much of a dimension stands behind a slice of it that begins at `start`, where `given` was asked for."""
    given = importer.fake(given) or 0
    if isinstance(given, int) and given < 0:
        given = extent + given
    if importer.size(given) == start:
        return importer.size(extent - given - length)
    return f"{importer.size(extent)} - ({start}) - ({importer.size(length)})"


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


def _repeated(importer: Importer, x: Tensor, dim: int, times: int) -> Tensor:
    """Each element along `dim` so many times in a row."""
    shape: list[Size] = x.handle.shape
    before, size, behind = shape[:dim], shape[dim], shape[dim + 1 :]
    wide = importer.expand(
        importer.reshape(x, [*before, size, 1, *behind]), [*before, size, times, *behind]
    )
    return importer.reshape(wide, [*before, f"({size})*{times}", *behind])


def _every(importer: Importer, fake: torch.Tensor, dim: int, length: Size, step: int) -> Tensor:
    """Whether the place along `dim` is a multiple of `step`, to broadcast over a tensor like `fake`."""
    device = device_of(fake)
    is_power = step & (step - 1) == 0  # then the low bits tell, which no number of bits changes
    dtype = "i32" if is_power else "i64"
    places = along(importer, length, dim, fake.dim(), 0, 1, device, dtype)
    op, number = ("and", step - 1) if is_power else ("remainder_integer", step)
    rest = importer.pointwise(op, places, importer.number(number, dtype, device))
    zero = importer.number(0, dtype, device)
    return importer.pointwise("eq", rest, zero, dtype="bool")


def diagonal_scatter(importer: Importer, node: Node) -> Tensor:
    """diagonal_scatter(self, src, offset, dim1, dim2): the source along the rows or the columns, where it is chosen.

    Where the diagonal has no element in some rows, the source goes on beyond its ends by zeros that nothing chooses.
    """
    bound = importer.bind(node)
    fake, offset = importer.fake(bound["self"]), importer.fake(bound["offset"])
    if not isinstance(offset, int):
        raise Unsupported("the offset is no constant")
    rank = fake.dim()
    row, column = bound["dim1"] % rank, bound["dim2"] % rank
    shape = importer.shape(fake)
    given = importer.fake(bound["src"]).shape[-1]
    rooms = fake.shape[row] + min(offset, 0), fake.shape[column] - max(offset, 0)
    always_fits = _always_fits_diagonal(given, *rooms)
    length = importer.size(given)
    if length == 0:
        return importer.copy(importer.tensor(bound["self"]))
    if column == row + 1 and always_fits and _is_written_back(node, bound["self"], bound["src"]):
        return _diagonal_put(importer, bound, row, offset, length)
    spanned, missing, before = row, column, max(0, -offset)
    if length == shape[column] and offset <= 0:
        spanned, missing, before = column, row, 0
    base = importer.tensor(bound["self"])
    rest = [dim for dim in range(rank) if dim not in (row, column)]
    order = [*rest, spanned]  # the source's dimensions, as the result's
    source = permuted(importer, bound["src"], sorted(range(rank - 1), key=order.__getitem__))
    source = importer.cast(source, base.dtype)
    spread = [1 if dim == missing else shape[dim] for dim in range(rank)]
    spread[spanned] = length
    spread_source = padded(
        importer, importer.reshape(source, spread), spanned, before, shape[spanned], 0
    )
    device = device_of(fake)
    rows, columns = (along(importer, shape[dim], dim, rank, 0, 1, device) for dim in (row, column))
    start = importer.number(offset, "i64", device)
    is_diagonal = importer.pointwise(
        "eq", importer.pointwise("add", rows, start), columns, dtype="bool"
    )
    return importer.pointwise("where", is_diagonal, spread_source, base)


def _always_fits_diagonal(length: Any, by_rows: Any, by_columns: Any) -> bool:
    """Whether a source is as long as the diagonal, or else as the rows or columns let it be, one of which it is."""
    exact = torch.sym_min(by_rows, by_columns)
    if any(_torch_sizes.is_known(length == one) for one in (exact, torch.sym_max(exact, 0))):
        return True
    if not any(_torch_sizes.is_known(length == room) for room in (by_rows, by_columns)):
        raise Unsupported("a source that is not known to be as long as the diagonal")
    return False


def _diagonal_put(
    importer: Importer, bound: dict[str, Any], row: int, offset: int, length: Size
) -> Tensor:
    """An update at the places of a diagonal of dimensions `row` and `row + 1`."""
    device = device_of(importer.fake(bound["self"]))
    base = importer.tensor(bound["self"])
    last = importer.fake(bound["src"]).dim() - 1
    order = [*range(row), last, *range(row, last)]
    source = importer.cast(permuted(importer, bound["src"], order), base.dtype)
    firsts = max(0, -offset), max(0, offset)
    places = [importer.builder.iota(length, "i64", first, 1, device) for first in firsts]
    handle = importer.builder.index_put(
        base.handle, places, source.handle, row, "set", is_ordered(), False, "none"
    )
    return Tensor(handle, base.dtype)


# -- scans


def cumulative(combine: str) -> Any:
    """cumsum and cumprod: in the result's dtype."""

    def handler(importer: Importer, node: Node) -> Tensor:
        bound = importer.bind(node)
        dtype = DTYPES[node.meta["val"].dtype]
        x = importer.cast(importer.tensor(bound["self"]), dtype)
        if dtype == "bool":
            raise Unsupported("result is bool")
        return scanned(importer, x, importer.fake(bound["self"]).dim(), bound["dim"], combine)

    return handler


def scanned(importer: Importer, x: Tensor, rank: int, dim: int, combine: str) -> Tensor:
    """A scan along `dim`, which may count from the end; of a number the number itself."""
    if rank == 0:
        return importer.copy(x)
    handle = importer.builder.scan(x.handle, dim % rank, combine)
    return Tensor(handle, "i64" if combine.startswith("arg") else x.dtype)


def cumulative_extreme(combine: str) -> Any:
    """cummax and cummin: the extremes so far and the places of the last of equal ones."""

    def handler(importer: Importer, node: Node) -> list[Tensor]:
        bound = importer.bind(node)
        fake = importer.fake(bound["self"])
        x = importer.tensor(bound["self"])
        if fake.dim() == 0:
            zero = importer.number(0, "i64", device_of(fake))
            return [importer.copy(x), importer.copy(zero)]
        as_number = importer.cast(x, "u8") if x.dtype == "bool" else x
        values = scanned(importer, as_number, fake.dim(), bound["dim"], combine)
        places = scanned(importer, as_number, fake.dim(), bound["dim"], f"arg{combine}")
        return [importer.cast(values, x.dtype), places]

    return handler


def logcumsumexp(importer: Importer, node: Node) -> Tensor:
    """logcumsumexp(self, dim)."""
    bound = importer.bind(node)
    x, fake = importer.tensor(bound["self"]), importer.fake(bound["self"])
    if not fake.dtype.is_floating_point:
        raise Unsupported(f"{fake.dtype}, which eager refuses")
    return scanned(importer, x, fake.dim(), bound["dim"], "logaddexp")


def masked_scatter(importer: Importer, node: Node) -> Tensor:
    """Elements of the source in order where the mask is set: how many were set before says which."""
    bound = importer.bind(node)
    fake, source_fake = importer.fake(bound["self"]), importer.fake(bound["source"])
    shape = result_shape(importer, node)
    if importer.size(source_fake.numel()) == 0 or importer.shape(fake) != shape:
        raise Unsupported("empty source, or a mask larger than the operand")
    count = importer.size(node.meta["val"].numel())
    mask = importer.tensor(bound["mask"])
    mask_shape = importer.shape(importer.fake(bound["mask"]))
    mask = mask if mask_shape == shape else importer.expand(mask, shape)
    flat = importer.reshape(mask, [count])
    before = scanned(importer, importer.cast(flat, "i64"), 1, 0, "add")
    device = device_of(fake)
    one = importer.number(1, "i64", device)
    zero = importer.number(0, "i64", device)
    place = importer.pointwise("where", flat, importer.pointwise("sub", before, one), zero)
    source = importer.reshape(
        importer.tensor(bound["source"]), [importer.size(source_fake.numel())]
    )
    handle = importer.builder.take(source.handle, [place.handle], 0, False, "masked_scatter")
    taken = importer.reshape(Tensor(handle, source.dtype), shape)
    return importer.pointwise("where", mask, taken, importer.tensor(bound["self"]))
