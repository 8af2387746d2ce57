"""Pooling."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from mlcc.onnx.ops.shapes import product
from mlcc.onnx.ops.windows import Window, flat_pads, pads_of, window_of
from mlcc.onnx.program import Node, as_tensor
from mlcc.onnx.registry import op

_MAX: dict[int, Any] = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
_AVERAGE: dict[int, Any] = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


def _counts(
    node: Node, sizes: list[Any], window: Window, begin: list[Any], end: list[Any]
) -> list[Any]:
    """How many windows there are on each axis."""
    counts = []
    for size, span, stride, first, last in zip(
        sizes, window.spans, window.strides, begin, end, strict=True
    ):
        room = size + first + last - span
        if node.get("ceil_mode", 0):
            count = (room + stride - 1) // stride + 1
            if (count - 1) * stride >= size + first:  # it would begin in the padding
                count -= 1
        else:
            count = room // stride + 1
        counts.append(count)
    return counts


def _missing(sizes: list[Any], window: Window, begin: list[Any], counts: list[Any]) -> list[Any]:
    """What has to be added after each axis so that the last window has all its elements."""
    wanted = [
        (n - 1) * s + span for n, s, span in zip(counts, window.strides, window.spans, strict=True)
    ]
    return [
        max(want - size - first, 0) for want, size, first in zip(wanted, sizes, begin, strict=True)
    ]


def _is_plain(node: Node, window: Window, begin: list[Any], end: list[Any]) -> bool:
    """Torch's own pooling has these pads."""
    pads_fit = all(
        isinstance(p, int) and 2 * p <= k for p, k in zip(begin, window.kernel, strict=True)
    )
    return begin == end and pads_fit and not node.get("ceil_mode", 0)


@op("MaxPool")
def max_pool(node: Node, x: Tensor) -> Any:
    rank, dtype = x.dim() - 2, x.dtype
    window, sizes = window_of(node, rank), list(x.shape[2:])
    begin, end = pads_of(node, sizes, window)
    x = x if dtype.is_floating_point else x.to(torch.float32)
    pads, padded = begin, sizes
    if not _is_plain(node, window, begin, end):
        more = _missing(sizes, window, begin, _counts(node, sizes, window, begin, end))
        x = F.pad(x, flat_pads(begin, more), value=-math.inf)
        pads, padded = [0] * rank, list(x.shape[2:])
    else:
        begin = [0] * rank
    found = _MAX[rank](
        x, window.kernel, window.strides, pads, window.dilations, return_indices=node.has_output(1)
    )
    if not node.has_output(1):
        return found.to(dtype)
    values, places = found
    return values.to(dtype), _flat_places(node, places, sizes, padded, begin)


def _flat_places(
    node: Node, places: Tensor, sizes: list[Any], padded: list[Any], begin: list[Any]
) -> Tensor:
    """Torch counts in an image, padding included, ONNX in the whole tensor."""
    coordinates = []
    for extent, first in zip(reversed(padded), reversed(begin), strict=True):
        coordinates.append(places % extent - first)
        places = places // extent
    pairs = list(zip(reversed(coordinates), sizes, strict=True))  # the first axis first
    if node.get("storage_order", 0):
        pairs.reverse()
    flat = torch.zeros_like(places)
    for coordinate, size in pairs:
        flat = flat * size + coordinate
    n, c = places.shape[:2]
    images = torch.arange(n * c, device=places.device).reshape(n, c, *[1] * len(sizes))
    return flat + images * product(sizes)


@op("MaxUnpool", sizes=True)
def max_unpool(node: Node, x: Tensor, places: Tensor, target: Any = None) -> Tensor:
    rank = x.dim() - 2
    window = window_of(node, rank)
    pads = node.get("pads", [0] * (2 * rank))
    sizes = [
        (x.shape[2 + i] - 1) * window.strides[i] - pads[i] - pads[rank + i] + window.kernel[i]
        for i in range(rank)
    ]
    own = [*x.shape[:2], *sizes]
    wanted = own if target is None else node.numbers(2, target)
    assert wanted is not None
    if target is None or product(own) == product(wanted):
        flat = x.new_zeros(product(own)).scatter(0, places.reshape(-1), x.reshape(-1))
        return flat.reshape(wanted)
    # Places are those in the shape that the pooling's attributes tell; the result has the larger one.
    flat = x.new_zeros(product(own)).scatter(0, places.reshape(-1), x.reshape(-1)).reshape(own)
    more = [want - have for want, have in zip(wanted[2:], sizes, strict=True)]
    return F.pad(flat, flat_pads([0] * rank, more))


def _window_sums(x: Tensor, window: Window, counts: list[Any]) -> Tensor:
    total: Any = 0
    for place in itertools.product(*[range(k) for k in window.kernel]):
        index = tuple(
            slice(p * d, p * d + (n - 1) * s + 1, s)
            for p, d, n, s in zip(place, window.dilations, counts, window.strides, strict=True)
        )
        total = total + x[(slice(None), slice(None), *index)]
    tensor: Tensor = total
    return tensor


@op("AveragePool")
def average_pool(node: Node, x: Tensor) -> Tensor:
    rank, sizes = x.dim() - 2, list(x.shape[2:])
    window, padding_counts = window_of(node, rank), bool(node.get("count_include_pad", 0))
    begin, end = pads_of(node, sizes, window)
    if _is_plain(node, window, begin, end) and set(window.dilations) == {1}:
        return _AVERAGE[rank](
            x, window.kernel, window.strides, begin, count_include_pad=padding_counts
        )
    counts = _counts(node, sizes, window, begin, end)
    more = _missing(sizes, window, begin, counts)
    ones = torch.ones(1, 1, *sizes, dtype=x.dtype, device=x.device)
    if padding_counts:
        ones = F.pad(ones, flat_pads(begin, end), value=1.0)
        missing = [m - e for m, e in zip(more, end, strict=True)]
        ones = F.pad(ones, flat_pads([0] * rank, [max(m, 0) for m in missing]))
    else:
        ones = F.pad(ones, flat_pads(begin, more))
    sums = _window_sums(F.pad(x, flat_pads(begin, more)), window, counts)
    return sums / _window_sums(ones, window, counts)


@op("LpPool")
def lp_pool(node: Node, x: Tensor) -> Tensor:
    rank, sizes, p = x.dim() - 2, list(x.shape[2:]), node.get("p", 2)
    window = window_of(node, rank)
    begin, end = pads_of(node, sizes, window)
    counts = _counts(node, sizes, window, begin, end)
    powers = F.pad(torch.abs(x) ** p, flat_pads(begin, _missing(sizes, window, begin, counts)))
    return _window_sums(powers, window, counts) ** (1.0 / p)


@op("GlobalAveragePool")
def global_average_pool(node: Node, x: Tensor) -> Tensor:
    return torch.mean(x, list(range(2, x.dim())), keepdim=True)


@op("GlobalMaxPool")
def global_max_pool(node: Node, x: Tensor) -> Tensor:
    return torch.amax(x, list(range(2, x.dim())), keepdim=True)


@op("GlobalLpPool")
def global_lp_pool(node: Node, x: Tensor) -> Tensor:
    p = node.get("p", 2)
    return torch.sum(torch.abs(x) ** p, list(range(2, x.dim())), keepdim=True) ** (1.0 / p)


@op("MaxRoiPool")
def max_roi_pool(node: Node, x: Tensor, rois: Tensor) -> Tensor:
    """Reads data: regions have sizes of their own."""
    rows, columns = node.get("pooled_shape")
    scale = node.get("spatial_scale", 1.0)
    pooled = []
    for image, *box in rois.tolist():
        x1, y1, x2, y2 = (round(value * scale) for value in box)
        region = x[int(image), :, y1 : y2 + 1, x1 : x2 + 1]
        pooled.append(F.adaptive_max_pool2d(region, (rows, columns)))
    return torch.stack(pooled)


_PAD_MODES = {"reflect": "reflect", "edge": "replicate", "wrap": "circular"}


@op("Pad", sizes=True)
def pad(node: Node, x: Any, pads: Any = None, value: Any = None, axes: Any = None) -> Tensor:
    x = as_tensor(x)
    amounts = node.setting("pads", 1, pads)
    assert amounts is not None
    wanted = node.numbers(3, axes)
    wanted = list(range(x.dim())) if wanted is None else [axis % x.dim() for axis in wanted]
    begin, end = [0] * x.dim(), [0] * x.dim()
    for i, axis in enumerate(wanted):
        begin[axis], end[axis] = amounts[i], amounts[len(wanted) + i]
    mode = node.get("mode", "constant")
    if mode != "constant":
        return _pad_by_index(x, begin, end, mode)
    number = node.get("value", 0.0)
    if value is not None:
        number = node.number(2, value)
    first = next((i for i in range(x.dim()) if _is_padded(begin[i], end[i])), x.dim())
    if first == x.dim():
        return x
    if x.dtype == torch.bool:
        return F.pad(
            x.to(torch.uint8), flat_pads(begin[first:], end[first:]), value=int(number)
        ).to(torch.bool)
    if not x.dtype.is_floating_point:
        number = int(number)
    return F.pad(x, flat_pads(begin[first:], end[first:]), value=number)


def _is_padded(begin: Any, end: Any) -> bool:
    return not (isinstance(begin, int) and isinstance(end, int) and begin == 0 and end == 0)


def _pad_by_index(x: Tensor, begin: list[Any], end: list[Any], mode: str) -> Tensor:
    for axis, (first, last) in enumerate(zip(begin, end, strict=True)):
        if not _is_padded(first, last):
            continue
        size = x.shape[axis]
        places = torch.arange(-first, size + last, device=x.device)
        if mode == "edge":
            places = places.clamp(0, size - 1)
        elif mode == "wrap":
            places = places % size
        else:
            period = max(2 * (size - 1), 1)
            places = places % period
            places = torch.minimum(places, period - places)
        x = x.index_select(axis, places)
    return x
