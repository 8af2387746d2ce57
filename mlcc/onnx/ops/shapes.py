"""Ops that compute shapes, and those that take them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from mlcc._errors import Error
from mlcc.onnx.program import Node, as_tensor, device_of
from mlcc.onnx.registry import op
from mlcc.onnx.sizes import Sizes, positions, whole


def normalized(axis: int, rank: int) -> int:
    if not -rank <= axis < max(rank, 1):
        raise Error(f"onnx: axis {axis} of a tensor of rank {rank}")
    return axis + rank if axis < 0 else axis


def shape_of(x: Any) -> list[Any]:
    if isinstance(x, Sizes):
        return list(x.shape)
    return list(x.shape)


def product(items: Any) -> Any:
    total: Any = 1
    for item in items:
        total = total * item
    return total


@op("Shape", sizes=True, unsigned=True)
def shape(node: Node, x: Any) -> Sizes:
    return Sizes(shape_of(x)[slice(node.get("start", 0), node.get("end"))])


@op("Size", sizes=True, unsigned=True)
def size(node: Node, x: Any) -> Sizes:
    return Sizes([product(shape_of(x))], rank=0)


@op("Reshape", sizes=True, unsigned=True)
def reshape(node: Node, x: Any, target: Any) -> Any:
    wanted = node.numbers(1, target)
    assert wanted is not None
    if isinstance(x, Sizes):
        if all(isinstance(item, int) for item in wanted) and 0 not in wanted:
            rest = product([item for item in wanted if item != -1])
            return x.reshape([len(x.items) // rest if item == -1 else item for item in wanted])
        x = x.tensor()
    if not node.get("allowzero", 0):
        wanted = [
            x.shape[i] if isinstance(item, int) and item == 0 else item
            for i, item in enumerate(wanted)
        ]
    if x.numel() == 0 and any(isinstance(item, int) and item == -1 for item in wanted):
        rest = product(item for item in wanted if not (isinstance(item, int) and item == -1))
        wanted = [(x.numel() // rest if rest else 0) if item == -1 else item for item in wanted]
    return x.reshape(wanted)


@op("Flatten", unsigned=True)
def flatten(node: Node, x: Tensor) -> Tensor:
    axis = node.get("axis", 1)
    axis = axis + x.dim() if axis < 0 else axis
    if axis == 0:
        return x.reshape(1, -1)
    if axis == 1 and x.dim() >= 2:
        return torch.flatten(x, 1)
    return x.reshape(product(x.shape[:axis]), product(x.shape[axis:]))


@op("Squeeze", sizes=True, unsigned=True)
def squeeze(node: Node, x: Any, axes: Any = None) -> Any:
    wanted = node.setting("axes", 1, axes)
    if isinstance(x, Sizes):
        dropped = [i for i, extent in enumerate(x.shape) if extent == 1]
        if wanted is not None:
            dropped = [normalized(axis, x.rank) for axis in wanted]
        return x.reshape([extent for i, extent in enumerate(x.shape) if i not in dropped])
    if wanted is None:
        wanted = [i for i, extent in enumerate(x.shape) if isinstance(extent, int) and extent == 1]
    return x.squeeze([normalized(axis, x.dim()) for axis in wanted])


@op("Unsqueeze", sizes=True, unsigned=True)
def unsqueeze(node: Node, x: Any, axes: Any = None) -> Any:
    wanted = node.setting("axes", 1, axes)
    assert wanted is not None
    if isinstance(x, Sizes):
        shape = list(x.shape)
        for axis in sorted(normalized(axis, x.rank + len(wanted)) for axis in wanted):
            shape.insert(axis, 1)
        return x.reshape(shape)
    for axis in sorted(normalized(axis, x.dim() + len(wanted)) for axis in wanted):
        x = x.unsqueeze(axis)
    return x


@op("Concat", sizes=True, unsigned=True)
def concat(node: Node, *values: Any) -> Any:
    known = node.as_sizes(*values)
    if known is not None:
        return Sizes([item for value in known for item in value.items], 1, known[0].dtype)
    device = device_of(values)
    return torch.cat([as_tensor(value, device) for value in values], node.get("axis", 1))


@op("Slice", sizes=True, unsigned=True)
def slice_(
    node: Node, x: Any, starts: Any = None, ends: Any = None, axes: Any = None, steps: Any = None
) -> Any:
    first, last = node.setting("starts", 1, starts), node.setting("ends", 2, ends)
    assert first is not None and last is not None
    wanted = node.setting("axes", 3, axes)
    if wanted is None:
        wanted = list(range(len(first)))
    strides = node.numbers(4, steps) or [1] * len(first)
    if isinstance(x, Sizes):
        places: list[Any] = [range(extent) for extent in x.shape]
        for start, end, axis, step in zip(first, last, wanted, strides, strict=True):
            places[axis] = positions(x.shape[axis], start, end, step)
        return x.pick(places)
    for start, end, axis, step in zip(first, last, wanted, strides, strict=True):
        x = _slice_axis(x, normalized(axis, x.dim()), start, end, step)
    return x


def _slice_axis(x: Tensor, axis: int, start: Any, end: Any, step: int) -> Tensor:
    if step > 0:
        if (
            isinstance(start, int)
            and isinstance(end, int)
            and start == 0
            and end >= 2**31 - 1
            and step == 1
        ):
            return x
        index = (slice(None),) * axis + (slice(start, end, step),)
        return x[index]
    places = list(positions(x.shape[axis], start, end, step))
    return x.index_select(axis, torch.tensor(places, dtype=torch.int64, device=x.device))


@op("Split", sizes=True, unsigned=True)
def split(node: Node, x: Any, parts: Any = None) -> tuple[Any, ...]:
    lengths = node.setting("split", 1, parts)
    count = node.get("num_outputs", len(node.outputs))
    if isinstance(x, Sizes):
        lengths = lengths or _even_parts(len(x.items), count)
        ends = [sum(lengths[: i + 1]) for i in range(len(lengths))]
        return tuple(
            Sizes(x.items[end - length : end], 1, x.dtype)
            for end, length in zip(ends, lengths, strict=True)
        )
    axis = node.get("axis", 0)
    if lengths is None:
        lengths = _even_parts(x.shape[axis], count)
    return tuple(torch.split(x, lengths, axis))


def _even_parts(extent: Any, count: int) -> list[Any]:
    part = (extent + count - 1) // count
    return [*[part] * (count - 1), extent - part * (count - 1)]


@op("Transpose", sizes=True, unsigned=True)
def transpose(node: Node, x: Any) -> Any:
    return x.permute(node.get("perm", list(reversed(range(len(x.shape))))))


@op("Expand", sizes=True, unsigned=True)
def expand(node: Node, x: Any, target: Any) -> Any:
    wanted = node.numbers(1, target)
    assert wanted is not None
    if isinstance(x, Sizes):
        if len(wanted) == 1 and len(x.items) == 1 and isinstance(wanted[0], int):
            return Sizes(x.items * wanted[0], 1, x.dtype)
        x = x.tensor()
    own = list(x.shape)
    rank = max(len(own), len(wanted))
    own = [1] * (rank - len(own)) + own
    wanted = [1] * (rank - len(wanted)) + list(wanted)
    # A size of 1 leaves the tensor's own.
    return x.expand(
        [have if _is_one(want) else want for have, want in zip(own, wanted, strict=True)]
    )


def _is_one(item: Any) -> bool:
    return isinstance(item, int) and item == 1


@op("Tile", unsigned=True, sizes=True)
def tile(node: Node, x: Any, repeats: Any) -> Tensor:
    counts = node.numbers(1, repeats)
    tensor: Tensor = as_tensor(x).repeat(counts)
    return tensor


@op("ConstantOfShape", sizes=True)
def constant_of_shape(node: Node, target: Any) -> Any:
    wanted = node.numbers(0, target)
    assert wanted is not None
    value = node.get("value")
    number = 0.0 if value is None else value.number
    dtype = torch.float32 if value is None else value.dtype
    if dtype == torch.int64 and len(wanted) == 1 and isinstance(wanted[0], int) and wanted[0] <= 64:
        return Sizes([number] * wanted[0], 1, dtype)
    return torch.full(wanted, number, dtype=dtype, device=device_of((target,)))


@op("Range", sizes=True)
def range_(node: Node, start: Any, limit: Any, delta: Any) -> Any:
    values = (start, limit, delta)
    first, last, step = (whole(node.number(i, value)) for i, value in enumerate(values))
    known = [
        value if isinstance(value, Sizes) else node.constants.get(i)
        for i, value in enumerate(values)
    ]
    dtype = next((value.dtype for value in (*known, *values) if value is not None), torch.int64)
    is_known = dtype == torch.int64 and all(isinstance(item, int) for item in (first, last, step))
    if is_known and len(range(first, last, step)) <= 64:
        return Sizes(list(range(first, last, step)), 1, dtype)
    if dtype.is_floating_point and not all(
        isinstance(item, (int, torch.SymInt)) for item in (first, last, step)
    ):
        count = max(math.ceil((last - first) / step), 0)
        return (first + torch.arange(count, dtype=dtype, device=device_of(values)) * step).to(dtype)
    return torch.arange(first, last, step, dtype=dtype, device=device_of(values))


@op("EyeLike")
def eye_like(node: Node, x: Tensor) -> Tensor:
    from mlcc.onnx.dtypes import DTYPES

    rows, columns = x.shape
    offset = node.get("k", 0)
    dtype = DTYPES[node.get("dtype")] if node.get("dtype") is not None else x.dtype
    i = torch.arange(rows, device=x.device).unsqueeze(1)
    return (torch.arange(columns, device=x.device) == i + offset).to(dtype)


@op("DepthToSpace")
def depth_to_space(node: Node, x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    b = node.get("blocksize")
    if node.get("mode", "DCR") == "DCR":
        parts = x.reshape(n, b, b, c // (b * b), h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        parts = x.reshape(n, c // (b * b), b, b, h, w).permute(0, 1, 4, 2, 5, 3)
    return parts.reshape(n, c // (b * b), h * b, w * b)


@op("SpaceToDepth")
def space_to_depth(node: Node, x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    b = node.get("blocksize")
    parts = x.reshape(n, c, h // b, b, w // b, b)
    order = (0, 3, 5, 1, 2, 4) if node.get("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    parts = parts.permute(order)
    return parts.reshape(n, c * b * b, h // b, w // b)


@op("CenterCropPad", sizes=True)
def center_crop_pad(node: Node, x: Any, target: Any) -> Tensor:
    wanted = node.numbers(1, target)
    assert wanted is not None
    x = as_tensor(x)
    axes = node.get("axes", list(range(x.dim())))
    for axis, length in zip(axes, wanted, strict=True):
        axis = normalized(axis, x.dim())
        have = x.shape[axis]
        if have >= length:
            x = x.narrow(axis, (have - length) // 2, length)
        else:
            before = (length - have) // 2
            pads = [0, 0] * (x.dim() - 1 - axis) + [before, length - have - before]
            x = torch.nn.functional.pad(x, pads)
    tensor: Tensor = x
    return tensor
