"""How ops that only move data become index maps and gathers of the graph IR."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from mlcc import _torch_compat, _torch_sizes
from mlcc._fx_sizes import Size
from mlcc._fx_types import DTYPES, GraphUnsupported, Tensor, Unsupported, device_of

if TYPE_CHECKING:
    from mlcc.fx_import import Importer


def result_shape(importer: Importer, node: Node) -> list[Size]:
    """The shape of the node's fake result."""
    return importer.shape(node.meta["val"])


def reshape(importer: Importer, node: Node) -> Tensor:
    """view and what else keeps the row-major order: the fake result says the shape."""
    x = importer.tensor(node.args[0])
    shape = result_shape(importer, node)
    if shape == importer.shape(importer.fake(node.args[0])):
        return x
    return importer.reshape(x, shape)


def expand(importer: Importer, node: Node) -> Tensor:
    """expand: the fake result says the shape."""
    given = importer.shape(importer.fake(node.args[0]))
    return importer.broadcast(importer.tensor(node.args[0]), given, result_shape(importer, node))


def permute(importer: Importer, node: Node) -> Tensor:
    """permute(self, dims)."""
    bound = importer.bind(node)
    return permuted(
        importer, bound["self"], [d % max(1, len(bound["dims"])) for d in bound["dims"]]
    )


def transpose(importer: Importer, node: Node) -> Tensor:
    """transpose.int and t."""
    bound = importer.bind(node)
    rank = importer.fake(bound["self"]).dim()
    if rank < 2:
        return importer.tensor(bound["self"])
    dims = list(range(rank))
    a, b = bound.get("dim0", 0) % rank, bound.get("dim1", 1) % rank
    dims[a], dims[b] = dims[b], dims[a]
    return permuted(importer, bound["self"], dims)


def permuted(importer: Importer, x: Any, dims: list[int]) -> Tensor:
    """The operand with its dimension dims[d] as dimension d."""
    tensor = importer.tensor(x)
    if dims == list(range(len(dims))):
        return tensor
    return Tensor(importer.builder.permute(tensor.handle, dims), tensor.dtype)


def flip(importer: Importer, node: Node) -> Tensor:
    """flip(self, dims), a fresh tensor."""
    bound = importer.bind(node)
    x = importer.tensor(bound["self"])
    rank = importer.fake(bound["self"]).dim()
    dims = sorted({d % rank for d in bound["dims"]}) if rank else []
    if not dims:
        return importer.copy(x)
    return importer.copy(Tensor(importer.builder.flip(x.handle, dims), x.dtype))


def slice_tensor(importer: Importer, node: Node) -> Tensor:
    """slice.Tensor(self, dim, start, end, step)."""
    bound = importer.bind(node)
    fake = importer.fake(bound["self"])
    x = importer.tensor(bound["self"])
    dim = bound["dim"] % fake.dim()
    length = node.meta["val"].shape[dim]
    step = bound["step"]
    if not isinstance(step, int):
        raise Unsupported("step is no constant")
    start = slice_start(importer, fake.shape[dim], bound["start"], length)
    if start == 0 and step == 1 and importer.size(length) == importer.size(fake.shape[dim]):
        return x
    return importer.slice(x, dim, start, importer.size(length), step)


def slice_start(importer: Importer, extent: Any, start: Any, length: Any) -> Size:
    """Where a slice begins, counted from the front and inside the dimension, without a guard.

    `length` is the result's. Where it says that `start` needs no clamping, the text has no min or max.
    """
    start = importer.fake(start)
    if start is None:
        return 0
    is_negative = is_below_zero(start)
    if is_negative is None:
        first, last = _from_front(importer, start, extent), importer.size(extent)
        return f"max(0, min({first}, {last}))"
    if is_negative:
        start = extent + start
        first = importer.size(start)
        if isinstance(first, int):
            return max(0, first)
        return first if _equal_sizes(importer, length, extent - start) else f"max(0, {first})"
    first, last = importer.size(start), importer.size(extent)
    if isinstance(first, int) and isinstance(last, int):
        return min(first, last)
    if first == 0 or _equal_sizes(importer, length, extent - start):
        return first
    return f"min({first}, {last})"


def is_below_zero(number: Any) -> bool | None:
    """Whether a number is below 0; None if only the call tells."""
    if isinstance(number, int):
        return number < 0
    expression = _torch_sizes.sym_expr(number)
    if expression.is_nonnegative:
        return False
    return True if expression.is_negative else None


def _from_front(importer: Importer, place: Any, extent: Any) -> Size:
    """A place that may count from the end, counted from the front."""
    is_negative = is_below_zero(place)
    if is_negative is not None:
        return importer.size(extent + place if is_negative else place)
    text = importer.size(place)
    return f"({text}) + ({importer.size(extent)})*max(0, min(1, -({text})))"


def _equal_sizes(importer: Importer, a: Any, b: Any) -> bool:
    return importer.size(a) == importer.size(b)


def select(importer: Importer, node: Node) -> Tensor:
    """select.int(self, dim, index)."""
    bound = importer.bind(node)
    fake = importer.fake(bound["self"])
    dim = bound["dim"] % fake.dim()
    index = importer.fake(bound["index"])
    if not isinstance(index, int | torch.SymInt):
        raise Unsupported("index is no size")
    start = _from_front(importer, index, fake.shape[dim])
    one = importer.slice(importer.tensor(bound["self"]), dim, start, 1)
    return importer.reshape(one, result_shape(importer, node))


def diagonal(importer: Importer, node: Node) -> Tensor:
    """diagonal(self, offset, dim1, dim2): each (columns + 1)th element of the two dimensions as one."""
    bound = importer.bind(node)
    fake = importer.fake(bound["self"])
    dim1, dim2, offset = _diagonal_of(importer, bound)
    rows, columns = importer.size(fake.shape[dim1]), importer.size(fake.shape[dim2])
    others = [d for d in range(fake.dim()) if d not in (dim1, dim2)]
    matrices = permuted(importer, bound["self"], [*others, dim1, dim2])
    shape = result_shape(importer, node)
    if not _is_diagonal_a_slice(fake, dim1, dim2, offset):
        return _gathered_diagonal(importer, node, matrices, offset, shape)
    assert isinstance(rows, int)
    assert isinstance(columns, int)
    flat = importer.reshape(matrices, [*shape[:-1], rows * columns])
    start = min(offset if offset >= 0 else -offset * columns, rows * columns)
    return importer.slice(flat, fake.dim() - 2, start, shape[-1], columns + 1)


def _diagonal_of(importer: Importer, bound: Mapping[str, Any]) -> tuple[int, int, Any]:
    """(rows, columns, offset), exchanged where the two together are a view then."""
    fake, offset = importer.fake(bound["self"]), importer.fake(bound["offset"])
    dim1, dim2 = bound["dim1"] % fake.dim(), bound["dim2"] % fake.dim()
    if isinstance(offset, int) and _torch_sizes.is_known(fake.stride(dim1) < fake.stride(dim2)):
        return dim2, dim1, -offset
    return dim1, dim2, offset


def _is_diagonal_a_slice(fake: torch.Tensor, dim1: int, dim2: int, offset: Any) -> bool:
    """Of the flattened matrix, by a constant step; else that would be a copy, in strides of its own."""
    is_view = _torch_sizes.is_known(fake.stride(dim1) == fake.stride(dim2) * fake.shape[dim2])
    return is_view and all(isinstance(n, int) for n in (fake.shape[dim1], fake.shape[dim2], offset))


def _gathered_diagonal(
    importer: Importer, node: Node, matrices: Tensor, offset: Any, shape: list[Size]
) -> Tensor:
    """A diagonal whose step is no constant: by the row and the column of each element."""
    if is_below_zero(offset) is None:
        raise Unsupported("the sign of the offset is unknown")
    first = (-offset, 0) if is_below_zero(offset) else (0, offset)
    device = device_of(node.meta["val"])
    places = [importer.builder.iota(shape[-1], "i64", importer.size(at), 1, device) for at in first]
    handle = importer.builder.take(matrices.handle, places, len(shape) - 1, False, "none")
    return Tensor(handle, matrices.dtype)


def as_strided(importer: Importer, node: Node) -> Tensor:
    """as_strided of a value that the graph computes: windows of its elements in row-major order, one in another.

    A view has the memory of what it views, in which offsets count from the start. GraphUnsupported where a kernel would
    gather that view, for eager's call then found other memory.
    """
    bound = importer.bind(node)
    base = _viewed(bound["self"])
    if any(_is_gathered(importer, view) for view in _views_between(bound["self"], base)):
        raise GraphUnsupported("as_strided of a diagonal whose step is no constant")
    if base.op == "placeholder":
        raise Unsupported("a view of an input's memory")
    fake, offset = importer.fake(base), bound["storage_offset"]
    start = (
        importer.fake(bound["self"]).storage_offset() if offset is None else importer.fake(offset)
    )
    if _is_reshaped(fake, node.meta["val"], start):
        return importer.reshape(importer.tensor(base), result_shape(importer, node))
    numbers = [importer.fake(n) for n in (*bound["size"], *bound["stride"], *fake.shape)]
    if not all(isinstance(n, int) for n in (*numbers, start)):
        raise Unsupported("sizes or strides are no constants")
    if not fake.is_contiguous():
        raise Unsupported("the operand is not row-major")
    axes = list(zip(bound["size"], bound["stride"], strict=True))
    span = 1 + sum((size - 1) * stride for size, stride in axes)
    if any(size == 0 for size, _ in axes) or start + span > fake.numel():
        raise Unsupported("reads nothing, or beyond the operand")
    x = importer.tensor(base)
    x = importer.slice(importer.reshape(x, [fake.numel()]), 0, start, span)
    kept = [(size, stride) for size, stride in axes if size > 1 and stride > 0]
    for dim, (size, stride) in enumerate(kept):
        span -= (size - 1) * stride
        x = Tensor(importer.builder.window(x.handle, dim, size, span, stride, 1), x.dtype)
    spread = [size if stride > 0 else 1 for size, stride in axes]
    return importer.expand(importer.reshape(x, spread), [size for size, _ in axes])


def _is_reshaped(base: torch.Tensor, result: torch.Tensor, start: Any) -> bool:
    """Whether a view is all of what it views, row by row."""
    known = _torch_sizes.is_known
    if not (known(start == 0) and known(base.numel() == result.numel())):
        return False
    return base.is_contiguous() and result.is_contiguous()


def _views_between(node: Node, base: Node) -> Iterator[Node]:
    while node is not base:
        yield node
        (node,) = node.all_input_nodes[:1]


def _is_gathered(importer: Importer, view: Node) -> bool:
    if view.target is not torch.ops.aten.diagonal.default:
        return False
    bound = importer.bind(view)
    return not _is_diagonal_a_slice(importer.fake(bound["self"]), *_diagonal_of(importer, bound))


def _viewed(node: Node) -> Node:
    """The input or computed value whose memory a node's result lies in: itself if it is no view."""
    while True:
        maker = node.args[0] if node.target is operator.getitem else node
        if not (isinstance(maker, Node) and _torch_compat.is_op(maker.target)):
            return node
        results = maker.target._schema.returns
        if all(result.alias_info is None for result in results):
            return node
        (node,) = maker.all_input_nodes[:1]


def split(importer: Importer, node: Node) -> list[Tensor]:
    """split.Tensor and split_with_sizes: the fake results say the lengths."""
    bound = importer.bind(node)
    fake = importer.fake(bound["self"])
    dim = bound["dim"] % fake.dim()
    x = importer.tensor(bound["self"])
    pieces = []
    start: Any = 0
    for piece in node.meta["val"]:
        length = piece.shape[dim]
        pieces.append(importer.slice(x, dim, importer.size(start), importer.size(length)))
        start = start + length
    return pieces


def unbind(importer: Importer, node: Node) -> list[Tensor]:
    """unbind.int."""
    bound = importer.bind(node)
    dim = bound["dim"] % importer.fake(bound["self"]).dim()
    x = importer.tensor(bound["self"])
    pieces = []
    for place, piece in enumerate(node.meta["val"]):
        one = importer.slice(x, dim, place, 1)
        pieces.append(importer.reshape(one, importer.shape(piece)))
    return pieces


def cat(importer: Importer, node: Node) -> Tensor:
    """cat of promoted operands; empty one-dimensional ones do not count beside others, as in eager."""
    bound = importer.bind(node)
    result = node.meta["val"]
    dtype = DTYPES[result.dtype]
    tensors = [t for t in bound["tensors"] if not _is_skipped(importer.fake(t), result)]
    if not tensors:
        raise Unsupported("nothing to concatenate")
    operands = [importer.cast(importer.tensor(t), dtype) for t in tensors]
    if len(operands) == 1:
        return importer.copy(operands[0])
    return importer.cat(operands, bound["dim"] % result.dim())


def _is_skipped(fake: Any, result: torch.Tensor) -> bool:
    if fake.dim() != 1 or result.dim() == 1:
        return False
    return isinstance(fake.shape[0], int) and fake.shape[0] == 0


def roll(importer: Importer, node: Node) -> Tensor:
    """roll(self, shifts, dims) as pieces side by side, which are read in order."""
    bound = importer.bind(node)
    x, shape = importer.tensor(bound["self"]), result_shape(importer, node)
    dims = [dim % len(shape) for dim in bound["dims"]]
    if not shape:
        return importer.copy(x)
    if any(isinstance(size, str) for size in shape) and _has_short_pieces(shape, dims):
        raise Unsupported("short rows of symbolic sizes: 0.8 of eager's speed")
    extents = shape
    if not bound["dims"]:
        extents, dims = [importer.size(node.meta["val"].numel())], [0]
        x = importer.reshape(x, extents)
    for shift, dim in zip(bound["shifts"], dims, strict=True):
        x = _rolled(importer, x, extents, dim, importer.size(shift))
    return importer.copy(x if bound["dims"] else importer.reshape(x, shape))


def _has_short_pieces(shape: list[Size], dims: list[int]) -> bool:
    """Whether finding a row costs more than moving it (32 elements: 0.8 of eager's speed, 96: 1.5)."""
    shortest = 64
    if not dims:
        return True
    return dims != [len(shape) - 1] and isinstance(shape[-1], int) and shape[-1] < shortest


def _rolled(importer: Importer, x: Tensor, shape: list[Size], dim: int, shift: Size) -> Tensor:
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
        return Tensor(importer.builder.extend(x.handle, dim, shift, extent, "circular"), x.dtype)
    else:
        start = f"mod(-({shift}), max({extent}, 1))"
        rest = f"({extent}) - {start}"
    pieces = [importer.slice(x, dim, start, rest), importer.slice(x, dim, 0, start)]
    return importer.cat(pieces, dim)


def repeat(importer: Importer, node: Node) -> Tensor:
    """repeat(self, repeats), a fresh tensor."""
    bound = importer.bind(node)
    x = importer.tensor(bound["self"])
    repeats = [importer.size(r) for r in bound["repeats"]]
    shape = importer.shape(importer.fake(bound["self"]))
    leading: list[Size] = [1] * (len(repeats) - len(shape))
    shape = leading + shape
    if all(r == 1 for r in repeats):
        return importer.copy(importer.reshape(x, shape))
    apart = [size for pair in zip([1] * len(shape), shape, strict=True) for size in pair]
    together = [size for pair in zip(repeats, shape, strict=True) for size in pair]
    wide = importer.expand(importer.reshape(x, apart), together)
    return importer.copy(importer.reshape(wide, result_shape(importer, node)))


def broadcast_in_dim(importer: Importer, node: Node) -> Tensor:
    """prims.broadcast_in_dim(a, shape, dims): operand dim i becomes result dim dims[i]."""
    bound = importer.bind(node)
    x = importer.tensor(bound["a"])
    source = importer.shape(importer.fake(bound["a"]))
    shape = result_shape(importer, node)
    spread: list[Size] = [1] * len(shape)
    for size, dim in zip(source, bound["broadcast_dimensions"], strict=True):
        spread[dim] = size
    if spread != source:
        x = importer.reshape(x, spread)
    return x if spread == shape else importer.expand(x, shape)


def index_argument(importer: Importer, argument: Any) -> Tensor:
    """An index tensor as i64."""
    index = importer.tensor(argument)
    if index.dtype not in ("i64", "i32"):
        raise Unsupported(f"index is {index.dtype}")
    return importer.cast(index, "i64")


def _taken(importer: Importer, x: Any, index: Tensor, dim: int, wrap: bool, error: str) -> Tensor:
    tensor = importer.tensor(x)
    handle = importer.builder.take(tensor.handle, [index.handle], dim, wrap, error)
    return Tensor(handle, tensor.dtype)


def embedding(importer: Importer, node: Node) -> Tensor:
    """embedding(weight, indices, ...): rows of the weight; the other arguments matter to its backward only."""
    bound = importer.bind(node)
    return _taken(
        importer, bound["weight"], index_argument(importer, bound["indices"]), 0, False, "embedding"
    )


def index_select(importer: Importer, node: Node) -> Tensor:
    """index_select(self, dim, index)."""
    bound = importer.bind(node)
    index, dim = index_along_dim(importer, bound)
    x = row(importer, bound["self"])
    handle = importer.builder.take(x.handle, [index.handle], dim, False, "index_select")
    return as_result(importer, node, Tensor(handle, x.dtype))


def index_along_dim(importer: Importer, bound: dict[str, Any]) -> tuple[Tensor, int]:
    """The one-dimensional index of the index_... ops, and the dimension that it goes along."""
    return row_of_indices(importer, bound["index"]), bound["dim"] % row_rank(
        importer, bound["self"]
    )


def row(importer: Importer, argument: Any) -> Tensor:
    """An operand; one without dimensions as a row of one element, which torch takes it for along dimension 0."""
    x = importer.tensor(argument)
    return x if importer.fake(argument).dim() else importer.reshape(x, [1])


def row_of_indices(importer: Importer, argument: Any) -> Tensor:
    """An index tensor as i64, likewise."""
    index = index_argument(importer, argument)
    return index if importer.fake(argument).dim() else importer.reshape(index, [1])


def row_shape(importer: Importer, argument: Any) -> list[Size]:
    """The shape of a `row`."""
    return importer.shape(importer.fake(argument)) or [1]


def row_rank(importer: Importer, argument: Any) -> int:
    """How many dimensions a `row` has."""
    return max(1, importer.fake(argument).dim())


def as_result(importer: Importer, node: Node, x: Tensor) -> Tensor:
    """What was computed of such rows, without dimensions where the node's result has none."""
    return x if node.meta["val"].dim() else importer.reshape(x, [])


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


def is_mask(importer: Importer, indices: list[Any]) -> bool:
    """Whether one mask is all that the indices hold."""
    given = [importer.fake(index) for index in indices if index is not None]
    return len(given) == 1 and given[0].dtype == torch.bool


def joint_index(importer: Importer, indices: list[Any]) -> JointIndex:
    """The integer indices of index.Tensor and index_put, where None leaves a dimension as it is."""
    dims = [dim for dim, index in enumerate(indices) if index is not None]
    if not dims:
        raise Unsupported("no indices")
    tensors = importer.fitted([index_argument(importer, indices[dim]) for dim in dims])
    shapes: list[list[Size]] = [tensor.handle.shape for tensor in tensors]
    shape: list[Size] = [1] * max(map(len, shapes))
    for one in shapes:
        for place, size in enumerate(one, start=len(shape) - len(one)):
            shape[place] = size if shape[place] == 1 else shape[place]
    wide = [
        tensor if one == shape else importer.expand(tensor, shape)
        for tensor, one in zip(tensors, shapes, strict=True)
    ]
    return JointIndex([tensor.handle for tensor in wide], shape, dims)


def index_tensor(importer: Importer, node: Node) -> Tensor:
    """index.Tensor with integer indices."""
    bound = importer.bind(node)
    index = joint_index(importer, bound["indices"])
    rank = importer.fake(bound["self"]).dim()
    x = permuted(importer, bound["self"], index.dims_first(rank))
    handle = importer.builder.take(x.handle, index.handles, index.dim, True, "index")
    return Tensor(handle, x.dtype)


def take(importer: Importer, node: Node) -> Tensor:
    """take(self, index): places in row-major order, with the errors of put."""
    bound = importer.bind(node)
    size = importer.size(importer.fake(bound["self"]).numel())
    flat = importer.reshape(importer.tensor(bound["self"]), [size])
    index = index_argument(importer, bound["index"])
    return Tensor(importer.builder.take(flat.handle, [index.handle], 0, True, "put"), flat.dtype)


def unsafe_index(importer: Importer, node: Node) -> Tensor:
    """_unsafe_index.Tensor, whose indices are in range.

    Where each dimension has an index of its own, which goes along one dimension of the result, rows are taken and then
    elements of them.
    """
    bound = importer.bind(node)
    per_dim = index_per_dim(importer, bound["indices"])
    if per_dim is None:
        return index_tensor(importer, node)
    result = importer.tensor(bound["self"])
    for dim, index in per_dim:
        handle = importer.builder.take(result.handle, [index.handle], dim, False, "none")
        result = Tensor(handle, result.dtype)
    return result


def index_per_dim(importer: Importer, indices: Sequence[Any]) -> list[tuple[int, Tensor]] | None:
    """(dim, one-dimensional index) if index i of n goes along dimension i of the n that they broadcast to, else None.

    A single index may have any shape.
    """
    given = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    first = given[0][0]
    if [dim for dim, _ in given] != list(range(first, first + len(given))):
        return None
    found = []
    for place, (dim, argument) in enumerate(given):
        index = index_argument(importer, argument)
        if len(given) > 1:
            shape = importer.shape(importer.fake(argument))
            along = len(given) - len(shape)
            lies = [d + along for d, size in enumerate(shape) if size != 1]
            if lies != [place]:
                return None
            index = importer.reshape(index, [shape[place - along]])
        found.append((dim, index))
    return found


def gather(importer: Importer, node: Node) -> Tensor:
    """gather(self, dim, index)."""
    bound = importer.bind(node)
    x = row(importer, bound["self"])
    if 0 in row_shape(importer, bound["index"]):  # of any dtype and rank
        handle = importer.full(
            result_shape(importer, node), x.dtype, 0, device_of(node.meta["val"])
        )
        return importer.copy(Tensor(handle, x.dtype))
    index, rank = row_of_indices(importer, bound["index"]), row_rank(importer, bound["self"])
    if rank != row_rank(importer, bound["index"]):
        raise Unsupported("ranks differ")
    error = "nll_loss" if _is_of_nll_loss(node) else "gather"
    handle = importer.builder.gather(x.handle, index.handle, bound["dim"] % rank, error)
    return as_result(importer, node, Tensor(handle, x.dtype))


def _is_of_nll_loss(node: Node) -> bool:
    """Whether the node comes from the decomposition of a loss, whose indices eager calls targets."""
    return "nll_loss" in str(node.meta.get("original_aten", ""))
