"""Images at other sizes and places."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from mlcc.onnx.ops.convolutions import sample_bilinear
from mlcc.onnx.program import Node, as_tensor
from mlcc.onnx.registry import op


@op("Upsample")
def upsample_by_attribute(node: Node, x: Tensor) -> Tensor:
    return _resize(node, x, None, list(node.get("scales")), None, "asymmetric", "floor")


@op("Upsample", since=9, sizes=True)
def upsample(node: Node, x: Any, scales: Any) -> Tensor:
    return _resize(node, as_tensor(x), None, node.numbers(1, scales), None, "asymmetric", "floor")


@op("Resize", since=10, sizes=True)
def resize_by_scales(node: Node, x: Any, scales: Any) -> Tensor:
    return _resize(node, as_tensor(x), None, node.numbers(1, scales), None, "asymmetric", "floor")


@op("Resize", since=11, sizes=True)
def resize(node: Node, x: Any, roi: Any = None, scales: Any = None, sizes: Any = None) -> Tensor:
    factors, wanted = node.numbers(2, scales), node.numbers(3, sizes)
    corners = (
        node.numbers(1, roi)
        if node.get("coordinate_transformation_mode") == "tf_crop_and_resize"
        else None
    )
    mode = node.get("coordinate_transformation_mode", "half_pixel")
    return _resize(
        node,
        as_tensor(x),
        corners,
        factors or None,
        wanted or None,
        mode,
        node.get("nearest_mode", "round_prefer_floor"),
    )


def _resize(
    node: Node,
    x: Tensor,
    roi: list[Any] | None,
    scales: list[Any] | None,
    sizes: list[Any] | None,
    where: str,
    near: str,
) -> Tensor:
    axes = [axis % x.dim() for axis in node.get("axes", list(range(x.dim())))]
    extents = [x.shape[axis] for axis in axes]
    if scales is None:
        assert sizes is not None
        scales = [want / have for want, have in zip(sizes, extents, strict=True)]
        policy = node.get("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            scale = min(scales) if policy == "not_larger" else max(scales)
            scales = [scale] * len(axes)
            sizes = [_floor(scale * have + 0.5) for have in extents]
    else:
        spans: list[Any] = [1] * len(axes)
        if roi is not None:
            spans = [roi[len(axes) + i] - roi[i] for i in range(len(axes))]
        sizes = [
            _scaled(have, span * s) for have, span, s in zip(extents, spans, scales, strict=True)
        ]
    fast = _by_torch(node, x, axes, scales, sizes, where, near)
    if fast is not None:
        return fast
    dtype = x.dtype
    y = x if dtype.is_floating_point and dtype.itemsize > 2 else x.to(torch.float32)
    for i, axis in enumerate(axes):
        is_same = (
            isinstance(scales[i], (int, float)) and scales[i] == 1 and where != "tf_crop_and_resize"
        )
        if is_same and isinstance(sizes[i], int) and sizes[i] == extents[i]:
            continue
        bounds = None if roi is None else (roi[i], roi[len(axes) + i])
        y = _resize_axis(node, y, axis, sizes[i], scales[i], where, near, bounds)
    if not dtype.is_floating_point and node.get("mode", "nearest") != "nearest":
        facts = torch.iinfo(dtype)
        y = torch.round(y).clamp(facts.min, facts.max) if node.get("mode") == "cubic" else y
    return y.to(dtype)


def _scaled(have: Any, scale: Any) -> Any:
    """In integers where that is the same: symbols of floats are of little use."""
    if isinstance(scale, (int, float)) and scale == int(scale):
        return have * int(scale)
    if isinstance(scale, (int, float)) and 0 < scale < 1 and 1 / scale == int(1 / scale):
        return have // int(1 / scale)
    return _floor(have * scale)


def _floor(value: Any) -> Any:
    if isinstance(value, (torch.SymInt, int)):
        return value
    return torch.sym_int(value) if isinstance(value, torch.SymFloat) else math.floor(value)


def _by_torch(
    node: Node,
    x: Tensor,
    axes: list[int],
    scales: list[Any],
    sizes: list[Any],
    where: str,
    near: str,
) -> Tensor | None:
    """One op of torch where it means the same."""
    if not 3 <= x.dim() <= 5 or x.dtype not in (torch.float32, torch.float64):
        return None
    factor: list[Any] = [1] * x.dim()
    target = list(x.shape)
    for axis, scale, want in zip(axes, scales, sizes, strict=True):
        factor[axis], target[axis] = scale, want
    if any(not isinstance(f, (int, float)) or f != 1 for f in factor[:2]):
        return None
    mode, rest = node.get("mode", "nearest"), factor[2:]
    if mode == "nearest":
        whole = all(isinstance(f, (int, float)) and f >= 1 and f == int(f) for f in rest)
        if whole and (where, near) in _NEAREST:
            return F.interpolate(x, target[2:], mode="nearest")
        return None
    known = node.get("antialias", 0) or node.get("exclude_outside", 0)
    if known or where not in ("half_pixel", "align_corners"):
        return None
    is_exact = all(
        isinstance(f, (int, float)) and isinstance(t, int) and abs(f * n - t) < 1e-6
        for f, t, n in zip(rest, target[2:], x.shape[2:], strict=True)
    )
    if mode == "cubic" and (x.dim() != 4 or node.get("cubic_coeff_a", -0.75) != -0.75):
        return None
    if not is_exact:
        return None
    name = {3: "linear", 4: "bilinear", 5: "trilinear"}[x.dim()] if mode == "linear" else "bicubic"
    return F.interpolate(x, target[2:], mode=name, align_corners=where == "align_corners")


# For whole factors these are the pixel that a result lies in.
_NEAREST = {
    ("asymmetric", "floor"),
    ("half_pixel", "round_prefer_floor"),
    ("half_pixel", "round_prefer_ceil"),
}


def _coordinates(
    device: torch.device,
    have: Any,
    want: Any,
    scale: Any,
    where: str,
    bounds: tuple[Any, Any] | None,
) -> Tensor:
    x = torch.arange(want, device=device, dtype=torch.float64)
    if where == "asymmetric":
        return x / scale
    if where == "align_corners":
        return x * ((have - 1) / (have * scale - 1)) if want != 1 else x * 0
    if where == "tf_crop_and_resize":
        assert bounds is not None
        first, last = bounds
        if want == 1:
            return x * 0 + 0.5 * (first + last) * (have - 1)
        return first * (have - 1) + x * (last - first) * (have - 1) / (want - 1)
    if where == "pytorch_half_pixel" and want == 1:
        return x * 0 - 0.5
    if where == "tf_half_pixel_for_nn":
        return (x + 0.5) / scale
    if where == "half_pixel_symmetric":
        shift = have / 2 * (1 - want / (have * scale))
        return shift + (x + 0.5) / scale - 0.5
    return (x + 0.5) / scale - 0.5


def _resize_axis(
    node: Node,
    x: Tensor,
    axis: int,
    want: Any,
    scale: Any,
    where: str,
    near: str,
    bounds: tuple[Any, Any] | None,
) -> Tensor:
    have, mode = x.shape[axis], node.get("mode", "nearest")
    at = _coordinates(x.device, have, want, scale, where, bounds)
    if mode == "nearest":
        y = x.index_select(axis, _nearest(at, near).clamp(0, have - 1))
    else:
        weights = _weights(node, at, have, scale, mode).to(x.dtype)
        y = torch.matmul(weights, x.transpose(axis, -2) if axis != x.dim() - 1 else x.unsqueeze(-1))
        y = y.transpose(axis, -2) if axis != x.dim() - 1 else y.squeeze(-1)
    if where == "tf_crop_and_resize":
        outside = (at < 0) | (at > have - 1)
        view = [-1 if i == axis else 1 for i in range(x.dim())]
        y = torch.where(outside.reshape(view), node.get("extrapolation_value", 0.0), y)
    return y


def _nearest(at: Tensor, near: str) -> Tensor:
    if near == "floor":
        found = torch.floor(at)
    elif near == "ceil":
        found = torch.ceil(at)
    elif near == "round_prefer_ceil":
        found = torch.floor(at + 0.5)
    else:
        found = torch.ceil(at - 0.5)
    return found.to(torch.int64)


def _weights(node: Node, at: Tensor, have: Any, scale: Any, mode: str) -> Tensor:
    """Of each input element (columns) for each result (rows)."""
    stretch = min(scale, 1.0) if node.get("antialias", 0) else 1.0
    radius = (1 if mode == "linear" else 2) / stretch
    reach = math.ceil(radius) + 1
    base = torch.floor(at)
    steps = torch.arange(-reach, reach + 1, device=at.device, dtype=at.dtype)
    taps = base.unsqueeze(1) + steps
    distance = (taps - at.unsqueeze(1)).abs() * stretch
    if mode == "linear":
        values = (1 - distance).clamp(min=0)
    else:
        values = _cubic(distance, node.get("cubic_coeff_a", -0.75))
    if node.get("exclude_outside", 0):
        values = torch.where((taps < 0) | (taps > have - 1), 0.0, values)
    values = values / values.sum(1, keepdim=True)
    places = taps.clamp(0, have - 1).to(torch.int64)
    return torch.zeros(at.shape[0], have, dtype=at.dtype, device=at.device).scatter_add(
        1, places, values
    )


def _cubic(d: Tensor, a: float) -> Tensor:
    inner = ((a + 2) * d - (a + 3)) * d * d + 1
    outer = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return torch.where(d <= 1, inner, torch.where(d < 2, outer, 0.0))


_GRID_MODES = {"linear": "bilinear", "cubic": "bicubic"}


@op("GridSample")
def grid_sample(node: Node, x: Tensor, grid: Tensor) -> Tensor:
    mode = node.get("mode", "bilinear")
    return F.grid_sample(
        x,
        grid.to(x.dtype),
        mode=_GRID_MODES.get(mode, mode),
        padding_mode=node.get("padding_mode", "zeros"),
        align_corners=bool(node.get("align_corners", 0)),
    )


@op("AffineGrid", sizes=True)
def affine_grid(node: Node, theta: Tensor, size: Any) -> Tensor:
    return F.affine_grid(theta, node.numbers(1, size) or [], bool(node.get("align_corners", 0)))


@op("RoiAlign")
def roi_align(node: Node, x: Tensor, rois: Tensor, images: Tensor) -> Tensor:
    """Reads data where the number of samples is adaptive."""
    rows, columns = node.get("output_height", 1), node.get("output_width", 1)
    mode = node.get(
        "coordinate_transformation_mode",
        "half_pixel" if node.version >= 16 else "output_half_pixel",
    )
    boxes = rois * node.get("spatial_scale", 1.0) - (0.5 if mode == "half_pixel" else 0.0)
    width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    if mode != "half_pixel":
        width, height = width.clamp(min=1.0), height.clamp(min=1.0)
    ratio = node.get("sampling_ratio", 0)
    pooled = []
    for k in range(rois.shape[0]):
        h, w = height[k] / rows, width[k] / columns
        count_y = ratio or max(math.ceil(h.item()), 1)
        count_x = ratio or max(math.ceil(w.item()), 1)
        y = boxes[k, 1] + (torch.arange(rows * count_y, device=x.device) + 0.5) * h / count_y
        z = boxes[k, 0] + (torch.arange(columns * count_x, device=x.device) + 0.5) * w / count_x
        image = x.index_select(0, images[k].to(torch.int64).reshape(1))
        sampled = _align(image, y, z, node.get("mode", "avg"))
        parts = sampled.reshape(-1, rows, count_y, columns, count_x)
        pooled.append(
            torch.mean(parts, (2, 4))
            if node.get("mode", "avg") == "avg"
            else torch.amax(parts, (2, 4))
        )
    return torch.stack(pooled)


def _align(image: Tensor, y: Tensor, x: Tensor, mode: str) -> Tensor:
    """Samples at the places of a grid; those up to one pixel outside are those of the border."""
    h, w = image.shape[2:]
    inside = ((y >= -1) & (y <= h)).unsqueeze(1) & ((x >= -1) & (x <= w))
    places_y, places_x = torch.broadcast_tensors(
        y.clamp(0, h - 1).unsqueeze(1), x.clamp(0, w - 1).unsqueeze(0)
    )
    if mode == "avg":
        found = sample_bilinear(image, places_y.unsqueeze(0), places_x.unsqueeze(0))[0]
        return torch.where(inside, found, 0.0)
    top, left = torch.floor(places_y), torch.floor(places_x)
    dy, dx = places_y - top, places_x - left
    best = None
    for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)):
        row, column = (top + i).clamp(max=h - 1).long(), (left + j).clamp(max=w - 1).long()
        weight = (dy if i else 1 - dy) * (dx if j else 1 - dx)
        value = image[0][:, row, column] * weight
        best = value if best is None else torch.maximum(best, value)
    assert best is not None
    return torch.where(inside, best, 0.0)
