"""Ops that read and write at computed places, sort and pick."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from mlcc.onnx.ops.shapes import normalized, product
from mlcc.onnx.program import Node, as_tensor, device_of
from mlcc.onnx.registry import op
from mlcc.onnx.sizes import Sizes


def _wrapped(indices: Tensor, extent: Any) -> Tensor:
    """Indices count from the end where they are negative."""
    indices = indices.to(torch.int64)
    return torch.where(indices < 0, indices + extent, indices)


@op("Gather", sizes=True, unsigned=True)
def gather(node: Node, x: Any, indices: Any) -> Any:
    known = indices if isinstance(indices, Sizes) else node.constants.get(1)
    if isinstance(x, Sizes):
        if known is not None and x.rank == 1:
            return Sizes([x.items[i] for i in known.items], dtype=x.dtype, shape=known.shape)
        x = x.tensor(device_of((indices,)))
    axis = normalized(node.get("axis", 0), x.dim())
    if known is not None and known.rank == 0 and isinstance(known.number, int):
        return x.select(axis, known.number)
    if known is not None and not isinstance(indices, Tensor):
        indices = known.tensor(x.device)
        if all(isinstance(item, int) and item >= 0 for item in known.items):
            return x.index_select(axis, indices.reshape(-1).to(torch.int64))
    picked = _wrapped(indices, x.shape[axis])
    if axis == 0 and x.dim() == 2 and x.dtype.is_floating_point:
        return F.embedding(picked, x)
    flat = x.index_select(axis, picked.reshape(-1))
    return flat.reshape(*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])


@op("GatherElements", unsigned=True)
def gather_elements(node: Node, x: Tensor, indices: Tensor) -> Tensor:
    axis = normalized(node.get("axis", 0), x.dim())
    return torch.gather(x, axis, _wrapped(indices, x.shape[axis]))


@op("GatherND", unsigned=True)
def gather_nd(node: Node, x: Tensor, indices: Tensor) -> Tensor:
    batch, depth = node.get("batch_dims", 0), indices.shape[-1]
    lead = list(x.shape[:batch])
    count = product(lead)
    rows = x.reshape(count, *x.shape[batch:])
    places = indices.reshape(count, -1, depth)
    index = [torch.arange(count, device=x.device).unsqueeze(1)]
    index += [_wrapped(places[..., i], rows.shape[i + 1]) for i in range(depth)]
    picked = rows[tuple(index)]
    return picked.reshape(*indices.shape[:-1], *x.shape[batch + depth :])


_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


@op("Scatter", "ScatterElements")
def scatter_elements(node: Node, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    axis = normalized(node.get("axis", 0), x.dim())
    places = _wrapped(indices, x.shape[axis])
    reduction = node.get("reduction", "none")
    if reduction == "none":
        return x.scatter(axis, places, updates)
    return x.scatter_reduce(axis, places, updates, _REDUCTIONS[reduction])


@op("ScatterND")
def scatter_nd(node: Node, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    depth = indices.shape[-1]
    places = tuple(_wrapped(indices[..., i], x.shape[i]) for i in range(depth))
    reduction = node.get("reduction", "none")
    if reduction == "none":
        return x.index_put(places, updates)
    if reduction == "add":
        return x.index_put(places, updates, accumulate=True)
    row = torch.zeros(indices.shape[:-1], dtype=torch.int64, device=x.device)
    for place, extent in zip(places, x.shape, strict=False):
        row = row * extent + place
    rest = list(x.shape[depth:])
    flat = x.reshape(product(x.shape[:depth]), product(rest))
    values = updates.reshape(-1, product(rest))
    at = row.reshape(-1, 1).expand(values.shape)
    return flat.scatter_reduce(0, at, values, _REDUCTIONS[reduction]).reshape(x.shape)


@op("TensorScatter")
def tensor_scatter(
    node: Node, cache: Tensor, update: Tensor, starts: Tensor | None = None
) -> Tensor:
    axis = normalized(node.get("axis", -2), cache.dim())
    length, extent = update.shape[axis], cache.shape[axis]
    if starts is None:
        starts = torch.zeros(cache.shape[0], dtype=torch.int64, device=cache.device)
    steps = torch.arange(length, device=cache.device)
    places = starts.to(torch.int64).unsqueeze(1) + steps  # [batch, length]
    if node.get("mode", "linear") == "circular":
        places = places % extent
    view = [cache.shape[0]] + [1] * (cache.dim() - 1)
    view[axis] = length
    return cache.scatter(axis, places.reshape(view).expand(update.shape), update)


@op("Compress")
def compress(node: Node, x: Tensor, condition: Tensor) -> Tensor:
    axis = node.get("axis")
    if axis is None:
        x, axis = x.reshape(-1), 0
    places = torch.nonzero(condition).reshape(-1)
    return x.index_select(axis, places)


@op("NonZero")
def nonzero(node: Node, x: Tensor) -> Tensor:
    return torch.nonzero(x).t()


@op("OneHot", sizes=True)
def one_hot(node: Node, indices: Any, depth: Any, values: Any) -> Tensor:
    count = int(node.number(1, depth))
    device = device_of((indices, values))
    indices, values = as_tensor(indices, device), as_tensor(values, device)
    axis = normalized(node.get("axis", -1), indices.dim() + 1)
    places = indices.to(torch.int64)
    places = torch.where(places < 0, places + count, places).unsqueeze(axis)
    view = [1] * (indices.dim() + 1)
    view[axis] = count
    hot = places == torch.arange(count, device=device).reshape(view)
    return torch.where(hot, values[1], values[0])


@op("TopK", sizes=True)
def top_k(node: Node, x: Any, k: Any = None) -> tuple[Tensor, Tensor]:
    x = as_tensor(x)
    count = node.get("k") if "k" in node.attributes else node.number(1, k)
    axis, largest = normalized(node.get("axis", -1), x.dim()), bool(node.get("largest", 1))
    # Of equal values the one of the lower index comes first.
    values, places = torch.sort(x, dim=axis, descending=largest, stable=True)
    return values.narrow(axis, 0, count), places.narrow(axis, 0, count)


@op("Unique")
def unique(node: Node, x: Tensor) -> tuple[Tensor, ...]:
    axis = node.get("axis")
    flat = x.reshape(-1) if axis is None else x
    axis = 0 if axis is None else normalized(axis, x.dim())
    values, inverse, counts = torch.unique(
        flat, sorted=True, return_inverse=True, return_counts=True, dim=axis
    )
    positions = torch.arange(inverse.numel(), device=x.device)
    first = torch.full_like(counts, inverse.numel()).scatter_reduce(0, inverse, positions, "amin")
    if not node.get("sorted", 1):
        order = torch.argsort(first)
        rank = torch.empty_like(order).scatter(
            0, order, torch.arange(order.numel(), device=x.device)
        )
        values, counts, first, inverse = (
            values.index_select(axis, order),
            counts[order],
            first[order],
            rank[inverse],
        )
    return values, first, inverse, counts


@op("ReverseSequence")
def reverse_sequence(node: Node, x: Tensor, lengths: Tensor) -> Tensor:
    batch, time = node.get("batch_axis", 1), node.get("time_axis", 0)
    steps = torch.arange(x.shape[time], device=x.device)
    lengths = lengths.to(torch.int64).unsqueeze(1)
    places = torch.where(steps < lengths, lengths - 1 - steps, steps)  # [batch, time]
    view = [1] * x.dim()
    view[batch], view[time] = x.shape[batch], x.shape[time]
    places = places if batch < time else places.t()
    return torch.gather(x, time, places.reshape(view).expand(x.shape))


@op("Trilu", sizes=True)
def trilu(node: Node, x: Any, k: Any = None) -> Tensor:
    x = as_tensor(x)
    offset = 0 if k is None else int(node.number(1, k))
    return torch.triu(x, offset) if node.get("upper", 1) else torch.tril(x, offset)


@op("NonMaxSuppression", sizes=True)
def non_max_suppression(
    node: Node,
    boxes: Any,
    scores: Any,
    most: Any = None,
    overlap: Any = None,
    threshold: Any = None,
) -> Tensor:
    """Reads data: how many boxes are kept is known only then."""
    limit = 0 if most is None else int(node.number(2, most))
    largest_overlap = 0.0 if overlap is None else float(node.number(3, overlap))
    lowest = None if threshold is None else float(node.number(4, threshold))
    kept: list[Tensor] = []
    for batch in range(scores.shape[0]):
        corners = _corners(boxes[batch], node.get("center_point_box", 0))
        for kind in range(scores.shape[1]):
            picked = _suppress(corners, scores[batch, kind], limit, largest_overlap, lowest)
            rows = torch.stack(
                [torch.full_like(picked, batch), torch.full_like(picked, kind), picked], 1
            )
            kept.append(rows)
    return torch.cat(kept) if kept else torch.zeros(0, 3, dtype=torch.int64)


def _corners(boxes: Tensor, centered: int) -> Tensor:
    if centered:
        x, y, w, h = boxes.unbind(-1)
        return torch.stack([y - h / 2, x - w / 2, y + h / 2, x + w / 2], -1)
    a, b = boxes[:, :2], boxes[:, 2:]
    return torch.cat([torch.minimum(a, b), torch.maximum(a, b)], -1)


def _suppress(
    corners: Tensor, scores: Tensor, limit: int, overlap: float, lowest: float | None
) -> Tensor:
    order = torch.sort(scores, descending=True, stable=True).indices
    if lowest is not None:
        order = order[scores[order] > lowest]
    areas = (corners[:, 2:] - corners[:, :2]).prod(-1)
    kept: list[Tensor] = []
    while order.numel() and len(kept) < limit:
        first, order = order[0], order[1:]
        kept.append(first)
        sides = torch.minimum(corners[order, 2:], corners[first, 2:]) - torch.maximum(
            corners[order, :2], corners[first, :2]
        )
        shared = sides.clamp(min=0).prod(-1)
        order = order[shared <= overlap * (areas[order] + areas[first] - shared)]
    return torch.stack(kept) if kept else order[:0]
