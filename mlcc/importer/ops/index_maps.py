"""How ops that only move data become index maps and gathers of the graph IR."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from mlcc.importer.context import Context
from mlcc.ir.sizes import Size
from mlcc.ir.types import DTYPES, GraphUnsupported, Tensor, Unsupported, device_of
from mlcc.torch_private import dispatch, symints


def result_shape(context: Context, node: Node) -> list[Size]:
    """The shape of the node's fake result."""
    return context.shape(node.meta["val"])


def reshape(context: Context, node: Node) -> Tensor:
    """view and what else keeps the row-major order: the fake result says the shape."""
    x = context.tensor(node.args[0])
    shape = result_shape(context, node)
    if shape == context.shape(context.fake(node.args[0])):
        return x
    return context.reshape(x, shape)


def expand(context: Context, node: Node) -> Tensor:
    """expand: the fake result says the shape."""
    given = context.shape(context.fake(node.args[0]))
    return context.broadcast(context.tensor(node.args[0]), given, result_shape(context, node))


def permute(context: Context, node: Node) -> Tensor:
    """permute(self, dims)."""
    bound = context.bind(node)
    return permuted(context, bound["self"], [d % max(1, len(bound["dims"])) for d in bound["dims"]])


def transpose(context: Context, node: Node) -> Tensor:
    """transpose.int and t."""
    bound = context.bind(node)
    rank = context.fake(bound["self"]).dim()
    if rank < 2:
        return context.tensor(bound["self"])
    dims = list(range(rank))
    a, b = bound.get("dim0", 0) % rank, bound.get("dim1", 1) % rank
    dims[a], dims[b] = dims[b], dims[a]
    return permuted(context, bound["self"], dims)


def permuted(context: Context, x: Any, dims: list[int]) -> Tensor:
    """The operand with its dimension dims[d] as dimension d."""
    tensor = context.tensor(x)
    if dims == list(range(len(dims))):
        return tensor
    return Tensor(context.builder.permute(tensor.handle, dims), tensor.dtype)


def flip(context: Context, node: Node) -> Tensor:
    """flip(self, dims), a fresh tensor."""
    bound = context.bind(node)
    x = context.tensor(bound["self"])
    rank = context.fake(bound["self"]).dim()
    dims = sorted({d % rank for d in bound["dims"]}) if rank else []
    if not dims:
        return context.copy(x)
    return context.copy(Tensor(context.builder.flip(x.handle, dims), x.dtype))


def slice_tensor(context: Context, node: Node) -> Tensor:
    """slice.Tensor(self, dim, start, end, step)."""
    bound = context.bind(node)
    fake = context.fake(bound["self"])
    x = context.tensor(bound["self"])
    dim = bound["dim"] % fake.dim()
    length = node.meta["val"].shape[dim]
    step = bound["step"]
    if not isinstance(step, int):
        raise Unsupported("step is no constant")
    start = slice_start(context, fake.shape[dim], bound["start"], length)
    if start == 0 and step == 1 and context.size(length) == context.size(fake.shape[dim]):
        return x
    return context.slice(x, dim, start, context.size(length), step)


def slice_start(context: Context, extent: Any, start: Any, length: Any) -> Size:
    """Where a slice begins, counted from the front and inside the dimension, without a guard.

    `length` is the result's. Where it says that `start` needs no clamping, the text has no min or max.
    """
    start = context.fake(start)
    if start is None:
        return 0
    is_negative = is_below_zero(start)
    if is_negative is None:
        first, last = _from_front(context, start, extent), context.size(extent)
        return f"max(0, min({first}, {last}))"
    if is_negative:
        start = extent + start
        first = context.size(start)
        if isinstance(first, int):
            return max(0, first)
        return first if _equal_sizes(context, length, extent - start) else f"max(0, {first})"
    first, last = context.size(start), context.size(extent)
    if isinstance(first, int) and isinstance(last, int):
        return min(first, last)
    if first == 0 or _equal_sizes(context, length, extent - start):
        return first
    return f"min({first}, {last})"


def is_below_zero(number: Any) -> bool | None:
    """Whether a number is below 0; None if only the call tells."""
    if isinstance(number, int):
        return number < 0
    expression = symints.sym_expr(number)
    if expression.is_nonnegative:
        return False
    return True if expression.is_negative else None


def _from_front(context: Context, place: Any, extent: Any) -> Size:
    """A place that may count from the end, counted from the front."""
    is_negative = is_below_zero(place)
    if is_negative is not None:
        return context.size(extent + place if is_negative else place)
    text = context.size(place)
    return f"({text}) + ({context.size(extent)})*max(0, min(1, -({text})))"


def _equal_sizes(context: Context, a: Any, b: Any) -> bool:
    return context.size(a) == context.size(b)


def select(context: Context, node: Node) -> Tensor:
    """select.int(self, dim, index)."""
    bound = context.bind(node)
    fake = context.fake(bound["self"])
    dim = bound["dim"] % fake.dim()
    index = context.fake(bound["index"])
    if not isinstance(index, int | torch.SymInt):
        raise Unsupported("index is no size")
    start = _from_front(context, index, fake.shape[dim])
    one = context.slice(context.tensor(bound["self"]), dim, start, 1)
    return context.reshape(one, result_shape(context, node))


def diagonal(context: Context, node: Node) -> Tensor:
    """diagonal(self, offset, dim1, dim2): each (columns + 1)th element of the two dimensions as one."""
    bound = context.bind(node)
    fake = context.fake(bound["self"])
    dim1, dim2, offset = _diagonal_of(context, bound)
    rows, columns = context.size(fake.shape[dim1]), context.size(fake.shape[dim2])
    others = [d for d in range(fake.dim()) if d not in (dim1, dim2)]
    matrices = permuted(context, bound["self"], [*others, dim1, dim2])
    shape = result_shape(context, node)
    if not _is_diagonal_a_slice(fake, dim1, dim2, offset):
        return _gathered_diagonal(context, node, matrices, offset, shape)
    assert isinstance(rows, int)
    assert isinstance(columns, int)
    flat = context.reshape(matrices, [*shape[:-1], rows * columns])
    start = min(offset if offset >= 0 else -offset * columns, rows * columns)
    return context.slice(flat, fake.dim() - 2, start, shape[-1], columns + 1)


def _diagonal_of(context: Context, bound: Mapping[str, Any]) -> tuple[int, int, Any]:
    """(rows, columns, offset), exchanged where the two together are a view then."""
    fake, offset = context.fake(bound["self"]), context.fake(bound["offset"])
    dim1, dim2 = bound["dim1"] % fake.dim(), bound["dim2"] % fake.dim()
    if isinstance(offset, int) and symints.is_known(fake.stride(dim1) < fake.stride(dim2)):
        return dim2, dim1, -offset
    return dim1, dim2, offset


def _is_diagonal_a_slice(fake: torch.Tensor, dim1: int, dim2: int, offset: Any) -> bool:
    """Of the flattened matrix, by a constant step; else that would be a copy, in strides of its own."""
    is_view = symints.is_known(fake.stride(dim1) == fake.stride(dim2) * fake.shape[dim2])
    return is_view and all(isinstance(n, int) for n in (fake.shape[dim1], fake.shape[dim2], offset))


def _gathered_diagonal(
    context: Context, node: Node, matrices: Tensor, offset: Any, shape: list[Size]
) -> Tensor:
    """A diagonal whose step is no constant: by the row and the column of each element."""
    if is_below_zero(offset) is None:
        raise Unsupported("the sign of the offset is unknown")
    first = (-offset, 0) if is_below_zero(offset) else (0, offset)
    device = device_of(node.meta["val"])
    places = [context.builder.iota(shape[-1], "i64", context.size(at), 1, device) for at in first]
    handle = context.builder.take(matrices.handle, places, len(shape) - 1, False, "none")
    return Tensor(handle, matrices.dtype)


def as_strided(context: Context, node: Node) -> Tensor:
    """as_strided of a value that the graph computes: windows of its elements in row-major order, one in another.

    A view has the memory of what it views, in which offsets count from the start. GraphUnsupported where a kernel would
    gather that view, for eager's call then found other memory.
    """
    bound = context.bind(node)
    base = _viewed(bound["self"])
    if any(_is_gathered(context, view) for view in _views_between(bound["self"], base)):
        raise GraphUnsupported("as_strided of a diagonal whose step is no constant")
    if base.op == "placeholder":
        raise Unsupported("a view of an input's memory")
    fake, offset = context.fake(base), bound["storage_offset"]
    start = context.fake(bound["self"]).storage_offset() if offset is None else context.fake(offset)
    if _is_reshaped(fake, node.meta["val"], start):
        return context.reshape(context.tensor(base), result_shape(context, node))
    numbers = [context.fake(n) for n in (*bound["size"], *bound["stride"], *fake.shape)]
    if not all(isinstance(n, int) for n in (*numbers, start)):
        raise Unsupported("sizes or strides are no constants")
    if not fake.is_contiguous():
        raise Unsupported("the operand is not row-major")
    axes = list(zip(bound["size"], bound["stride"], strict=True))
    span = 1 + sum((size - 1) * stride for size, stride in axes)
    if any(size == 0 for size, _ in axes) or start + span > fake.numel():
        raise Unsupported("reads nothing, or beyond the operand")
    x = context.tensor(base)
    x = context.slice(context.reshape(x, [fake.numel()]), 0, start, span)
    kept = [(size, stride) for size, stride in axes if size > 1 and stride > 0]
    for dim, (size, stride) in enumerate(kept):
        span -= (size - 1) * stride
        x = Tensor(context.builder.window(x.handle, dim, size, span, stride, 1), x.dtype)
    spread = [size if stride > 0 else 1 for size, stride in axes]
    return context.expand(context.reshape(x, spread), [size for size, _ in axes])


def _is_reshaped(base: torch.Tensor, result: torch.Tensor, start: Any) -> bool:
    """Whether a view is all of what it views, row by row."""
    known = symints.is_known
    if not (known(start == 0) and known(base.numel() == result.numel())):
        return False
    return base.is_contiguous() and result.is_contiguous()


def _views_between(node: Node, base: Node) -> Iterator[Node]:
    while node is not base:
        yield node
        (node,) = node.all_input_nodes[:1]


def _is_gathered(context: Context, view: Node) -> bool:
    if view.target is not torch.ops.aten.diagonal.default:
        return False
    bound = context.bind(view)
    return not _is_diagonal_a_slice(context.fake(bound["self"]), *_diagonal_of(context, bound))


def _viewed(node: Node) -> Node:
    """The input or computed value whose memory a node's result lies in: itself if it is no view."""
    while True:
        maker = node.args[0] if node.target is operator.getitem else node
        if not (isinstance(maker, Node) and dispatch.is_op(maker.target)):
            return node
        results = maker.target._schema.returns
        if all(result.alias_info is None for result in results):
            return node
        (node,) = maker.all_input_nodes[:1]


def split(context: Context, node: Node) -> list[Tensor]:
    """split.Tensor and split_with_sizes: the fake results say the lengths."""
    bound = context.bind(node)
    fake = context.fake(bound["self"])
    dim = bound["dim"] % fake.dim()
    x = context.tensor(bound["self"])
    pieces = []
    start: Any = 0
    for piece in node.meta["val"]:
        length = piece.shape[dim]
        pieces.append(context.slice(x, dim, context.size(start), context.size(length)))
        start = start + length
    return pieces


def unbind(context: Context, node: Node) -> list[Tensor]:
    """unbind.int."""
    bound = context.bind(node)
    dim = bound["dim"] % context.fake(bound["self"]).dim()
    x = context.tensor(bound["self"])
    pieces = []
    for place, piece in enumerate(node.meta["val"]):
        one = context.slice(x, dim, place, 1)
        pieces.append(context.reshape(one, context.shape(piece)))
    return pieces


def cat(context: Context, node: Node) -> Tensor:
    """cat of promoted operands; empty one-dimensional ones do not count beside others, as in eager."""
    bound = context.bind(node)
    result = node.meta["val"]
    dtype = DTYPES[result.dtype]
    tensors = [t for t in bound["tensors"] if not _is_skipped(context.fake(t), result)]
    if not tensors:
        raise Unsupported("nothing to concatenate")
    operands = [context.cast(context.tensor(t), dtype) for t in tensors]
    if len(operands) == 1:
        return context.copy(operands[0])
    return context.cat(operands, bound["dim"] % result.dim())


def _is_skipped(fake: Any, result: torch.Tensor) -> bool:
    if fake.dim() != 1 or result.dim() == 1:
        return False
    return isinstance(fake.shape[0], int) and fake.shape[0] == 0


def roll(context: Context, node: Node) -> Tensor:
    """roll(self, shifts, dims) as pieces side by side, which are read in order."""
    bound = context.bind(node)
    x, shape = context.tensor(bound["self"]), result_shape(context, node)
    dims = [dim % len(shape) for dim in bound["dims"]]
    if not shape:
        return context.copy(x)
    is_slow = any(isinstance(size, str) for size in shape) and _has_short_pieces(shape, dims)
    if is_slow and context.may_call:
        raise Unsupported("short rows of symbolic sizes: 0.8 of eager's speed")
    extents = shape
    if not bound["dims"]:
        extents, dims = [context.size(node.meta["val"].numel())], [0]
        x = context.reshape(x, extents)
    for shift, dim in zip(bound["shifts"], dims, strict=True):
        x = _rolled(context, x, extents, dim, context.size(shift))
    return context.copy(x if bound["dims"] else context.reshape(x, shape))


# Elements of a row below which eager's roll is faster (decision 0033).
_LEAST_ROW_TO_ROLL = 64


def _has_short_pieces(shape: list[Size], dims: list[int]) -> bool:
    """Whether finding a row costs more than moving it."""
    if not dims:
        return True
    is_short = isinstance(shape[-1], int) and shape[-1] < _LEAST_ROW_TO_ROLL
    return dims != [len(shape) - 1] and is_short


def _rolled(context: Context, x: Tensor, shape: list[Size], dim: int, shift: Size) -> Tensor:
    extent = shape[dim]
    start: Size
    rest: Size
    if isinstance(extent, int) and isinstance(shift, int):
        start = -shift % extent if extent else 0
        rest = extent - start
        if start == 0:
            return x
    elif isinstance(shift, int) and dim < len(shape) - 1:
        # Where the pieces meet is not known to lie inside: whole rows are looked up then.
        return Tensor(context.builder.extend(x.handle, dim, shift, extent, "circular"), x.dtype)
    else:
        start = f"mod(-({shift}), max({extent}, 1))"
        rest = f"({extent}) - {start}"
    pieces = [context.slice(x, dim, start, rest), context.slice(x, dim, 0, start)]
    return context.cat(pieces, dim)


def repeat(context: Context, node: Node) -> Tensor:
    """repeat(self, repeats), a fresh tensor."""
    bound = context.bind(node)
    x = context.tensor(bound["self"])
    repeats = [context.size(r) for r in bound["repeats"]]
    shape = context.shape(context.fake(bound["self"]))
    leading: list[Size] = [1] * (len(repeats) - len(shape))
    shape = leading + shape
    if all(r == 1 for r in repeats):
        return context.copy(context.reshape(x, shape))
    apart = [size for pair in zip([1] * len(shape), shape, strict=True) for size in pair]
    together = [size for pair in zip(repeats, shape, strict=True) for size in pair]
    wide = context.expand(context.reshape(x, apart), together)
    return context.copy(context.reshape(wide, result_shape(context, node)))


def broadcast_in_dim(context: Context, node: Node) -> Tensor:
    """prims.broadcast_in_dim(a, shape, dims): operand dim i becomes result dim dims[i]."""
    bound = context.bind(node)
    x = context.tensor(bound["a"])
    source = context.shape(context.fake(bound["a"]))
    shape = result_shape(context, node)
    spread: list[Size] = [1] * len(shape)
    for size, dim in zip(source, bound["broadcast_dimensions"], strict=True):
        spread[dim] = size
    if spread != source:
        x = context.reshape(x, spread)
    return x if spread == shape else context.expand(x, shape)


def index_argument(context: Context, argument: Any) -> Tensor:
    """An index tensor as i64."""
    index = context.tensor(argument)
    if index.dtype not in ("i64", "i32"):
        raise Unsupported(f"index is {index.dtype}")
    return context.cast(index, "i64")


def _taken(context: Context, x: Any, index: Tensor, dim: int, wrap: bool, error: str) -> Tensor:
    tensor = context.tensor(x)
    handle = context.builder.take(tensor.handle, [index.handle], dim, wrap, error)
    return Tensor(handle, tensor.dtype)


def embedding(context: Context, node: Node) -> Tensor:
    """embedding(weight, indices, ...): rows of the weight; the other arguments matter to its backward only."""
    bound = context.bind(node)
    return _taken(
        context, bound["weight"], index_argument(context, bound["indices"]), 0, False, "embedding"
    )


def index_select(context: Context, node: Node) -> Tensor:
    """index_select(self, dim, index)."""
    bound = context.bind(node)
    index, dim = index_along_dim(context, bound)
    x = row(context, bound["self"])
    handle = context.builder.take(x.handle, [index.handle], dim, False, "index_select")
    return as_result(context, node, Tensor(handle, x.dtype))


def index_along_dim(context: Context, bound: dict[str, Any]) -> tuple[Tensor, int]:
    """The one-dimensional index of the index_... ops, and the dimension that it goes along."""
    return row_of_indices(context, bound["index"]), bound["dim"] % row_rank(context, bound["self"])


def row(context: Context, argument: Any) -> Tensor:
    """An operand; one without dimensions as a row of one element, which torch takes it for along dimension 0."""
    x = context.tensor(argument)
    return x if context.fake(argument).dim() else context.reshape(x, [1])


def row_of_indices(context: Context, argument: Any) -> Tensor:
    """An index tensor as i64, likewise."""
    index = index_argument(context, argument)
    return index if context.fake(argument).dim() else context.reshape(index, [1])


def row_shape(context: Context, argument: Any) -> list[Size]:
    """The shape of a `row`."""
    return context.shape(context.fake(argument)) or [1]


def row_rank(context: Context, argument: Any) -> int:
    """How many dimensions a `row` has."""
    return max(1, context.fake(argument).dim())


def as_result(context: Context, node: Node, x: Tensor) -> Tensor:
    """What was computed of such rows, without dimensions where the node's result has none."""
    return x if node.meta["val"].dim() else context.reshape(x, [])


@dataclass(frozen=True)
class JointIndex:
    """The index tensors of one index expression, broadcast to one shape, and the dimensions that they stand for."""

    handles: list[Any]
    shape: list[Size]
    dims: list[int]  # in ascending order

    @property
    def is_together(self) -> bool:
        """Whether the indexed dimensions follow one another; else they come first in the result."""
        return self.dims[-1] - self.dims[0] == len(self.dims) - 1

    def dims_first(self, rank: int) -> list[int]:
        """The order of an operand's dimensions in which the indexed ones follow one another."""
        if self.is_together:
            return list(range(rank))
        return self.dims + [dim for dim in range(rank) if dim not in self.dims]

    @property
    def dim(self) -> int:
        """The first indexed dimension in that order."""
        return self.dims[0] if self.is_together else 0


def is_mask(context: Context, indices: list[Any]) -> bool:
    """Whether one mask is all that the indices hold."""
    given = [context.fake(index) for index in indices if index is not None]
    return len(given) == 1 and given[0].dtype == torch.bool


def joint_index(context: Context, indices: list[Any]) -> JointIndex:
    """The integer indices of index.Tensor and index_put, where None leaves a dimension as it is."""
    dims = [dim for dim, index in enumerate(indices) if index is not None]
    if not dims:
        raise Unsupported("no indices")
    tensors = context.fitted([index_argument(context, indices[dim]) for dim in dims])
    shapes: list[list[Size]] = [tensor.handle.shape for tensor in tensors]
    shape: list[Size] = [1] * max(map(len, shapes))
    for one in shapes:
        for place, size in enumerate(one, start=len(shape) - len(one)):
            shape[place] = size if shape[place] == 1 else shape[place]
    wide = [
        tensor if one == shape else context.expand(tensor, shape)
        for tensor, one in zip(tensors, shapes, strict=True)
    ]
    return JointIndex([tensor.handle for tensor in wide], shape, dims)


def index_tensor(context: Context, node: Node) -> Tensor:
    """index.Tensor with integer indices."""
    bound = context.bind(node)
    index = joint_index(context, bound["indices"])
    rank = context.fake(bound["self"]).dim()
    x = permuted(context, bound["self"], index.dims_first(rank))
    handle = context.builder.take(x.handle, index.handles, index.dim, True, "index")
    return Tensor(handle, x.dtype)


def take(context: Context, node: Node) -> Tensor:
    """take(self, index): places in row-major order, with the errors of put."""
    bound = context.bind(node)
    size = context.size(context.fake(bound["self"]).numel())
    flat = context.reshape(context.tensor(bound["self"]), [size])
    index = index_argument(context, bound["index"])
    return Tensor(context.builder.take(flat.handle, [index.handle], 0, True, "put"), flat.dtype)


def unsafe_index(context: Context, node: Node) -> Tensor:
    """_unsafe_index.Tensor, whose indices are in range.

    Where each dimension has an index of its own, which goes along one dimension of the result, rows are taken and then
    elements of them.
    """
    bound = context.bind(node)
    per_dim = index_per_dim(context, bound["indices"])
    if per_dim is None:
        return index_tensor(context, node)
    result = context.tensor(bound["self"])
    for dim, index in per_dim:
        handle = context.builder.take(result.handle, [index.handle], dim, False, "none")
        result = Tensor(handle, result.dtype)
    return result


def index_per_dim(context: Context, indices: Sequence[Any]) -> list[tuple[int, Tensor]] | None:
    """(dim, one-dimensional index) if index i of n goes along dimension i of the n that they broadcast to, else None.

    A single index may have any shape.
    """
    given = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    first = given[0][0]
    if [dim for dim, _ in given] != list(range(first, first + len(given))):
        return None
    found = []
    for place, (dim, argument) in enumerate(given):
        index = index_argument(context, argument)
        if len(given) > 1:
            shape = context.shape(context.fake(argument))
            along = len(given) - len(shape)
            lies = [d + along for d, size in enumerate(shape) if size != 1]
            if lies != [place]:
                return None
            index = context.reshape(index, [shape[place - along]])
        found.append((dim, index))
    return found


def gather(context: Context, node: Node) -> Tensor:
    """gather(self, dim, index)."""
    bound = context.bind(node)
    x = row(context, bound["self"])
    if 0 in row_shape(context, bound["index"]):  # of any dtype and rank
        handle = context.full(result_shape(context, node), x.dtype, 0, device_of(node.meta["val"]))
        return context.copy(Tensor(handle, x.dtype))
    index, rank = row_of_indices(context, bound["index"]), row_rank(context, bound["self"])
    if rank != row_rank(context, bound["index"]):
        raise Unsupported("ranks differ")
    error = "nll_loss" if _is_of_nll_loss(node) else "gather"
    handle = context.builder.gather(x.handle, index.handle, bound["dim"] % rank, error)
    return as_result(context, node, Tensor(handle, x.dtype))


def _is_of_nll_loss(node: Node) -> bool:
    """Whether the node comes from the decomposition of a loss, whose indices eager calls targets."""
    return "nll_loss" in str(node.meta.get("original_aten", ""))
