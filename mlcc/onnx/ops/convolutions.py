"""Products of matrices and convolutions."""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from mlcc._errors import Error
from mlcc.onnx.ops.windows import flat_pads, pads_of, window_of
from mlcc.onnx.program import Node
from mlcc.onnx.registry import op

_CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


@op("MatMul")
def matmul(node: Node, a: Tensor, b: Tensor) -> Tensor:
    return torch.matmul(a, b)


@op("Gemm")
def gemm(node: Node, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    alpha, beta = node.get("alpha", 1.0), node.get("beta", 1.0)
    a = a.t() if node.get("transA", 0) else a
    is_linear = alpha == 1.0 and beta == 1.0 and node.get("transB", 0) and a.dtype.is_floating_point
    if is_linear and c is not None and c.dim() == 1 and c.shape[0] == b.shape[0]:
        return F.linear(a, b, c)
    b = b.t() if node.get("transB", 0) else b
    product = torch.matmul(a, b)
    if alpha != 1.0:
        product = (product * alpha).to(a.dtype)
    if c is None:
        return product
    return product + (c if beta == 1.0 else (c * beta).to(c.dtype))


@op("Einsum")
def einsum(node: Node, *values: Tensor) -> Tensor:
    return torch.einsum(node.get("equation").replace(" ", ""), *values)


@op("Det")
def determinant(node: Node, x: Tensor) -> Tensor:
    return torch.linalg.det(x)


def convolve(node: Node, x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    rank = x.dim() - 2
    if rank not in _CONVOLUTIONS:
        raise Error(f"onnx: {node.op} {node.name!r}: found {rank} spatial axes, expected 1 to 3")
    window = window_of(node, rank, list(w.shape[2:]))
    begin, end = pads_of(node, list(x.shape[2:]), window)
    if begin != end:
        x, begin = F.pad(x, flat_pads(begin, end)), [0] * rank
    return _CONVOLUTIONS[rank](
        x, w, b, window.strides, begin, window.dilations, node.get("group", 1)
    )


@op("Conv")
def conv(node: Node, x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    return convolve(node, x, w, b)


@op("ConvTranspose")
def conv_transpose(node: Node, x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    rank = x.dim() - 2
    window = window_of(node, rank, list(w.shape[2:]))
    spans = [(k - 1) * d + 1 for k, d in zip(window.kernel, window.dilations, strict=True)]
    extra = node.get("output_padding", [0] * rank)
    begin, end = _transposed_pads(node, list(x.shape[2:]), window.strides, spans, extra)
    function, group = _TRANSPOSED[rank], node.get("group", 1)
    if begin == end and all(isinstance(p, int) and p >= 0 for p in begin) and not any(extra):
        return function(x, w, b, window.strides, begin, 0, group, window.dilations)
    y = function(x, w, None, window.strides, 0, 0, group, window.dilations)
    crops = [(-first, more - last) for first, last, more in zip(begin, end, extra, strict=True)]
    y = F.pad(y, [amount for pair in reversed(crops) for amount in pair])
    return y if b is None else y + b.reshape(-1, *[1] * rank)


def _transposed_pads(
    node: Node, sizes: list[Any], strides: list[int], spans: list[int], extra: list[int]
) -> tuple[list[Any], list[Any]]:
    auto, shape, rank = node.get("auto_pad", "NOTSET"), node.get("output_shape"), len(sizes)
    if shape is None and auto in ("NOTSET", "VALID"):
        pads = node.get("pads", [0] * (2 * rank)) if auto == "NOTSET" else [0] * (2 * rank)
        return list(pads[:rank]), list(pads[rank:])
    wanted = (
        [n * s for n, s in zip(sizes, strides, strict=True)] if shape is None else shape[-rank:]
    )
    totals = [
        s * (n - 1) + more + span - out
        for n, s, span, more, out in zip(sizes, strides, spans, extra, wanted, strict=True)
    ]
    small, large = [t // 2 for t in totals], [t - t // 2 for t in totals]
    return (small, large) if auto == "SAME_UPPER" else (large, small)


@op("DeformConv")
def deform_conv(
    node: Node,
    x: Tensor,
    w: Tensor,
    offset: Tensor,
    b: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    window = window_of(node, 2, list(w.shape[2:]))
    begin, _ = pads_of(node, list(x.shape[2:]), window)
    n, c, h, width = x.shape
    groups, (kh, kw) = node.get("offset_group", 1), window.kernel
    oh, ow = offset.shape[2:]
    offset = offset.reshape(n, groups, kh * kw, 2, oh, ow)
    base_y = torch.arange(oh, device=x.device).unsqueeze(1) * window.strides[0] - begin[0]
    base_x = torch.arange(ow, device=x.device) * window.strides[1] - begin[1]
    images = x.reshape(n * groups, c // groups, h, width)
    columns = []
    for k, (i, j) in enumerate(itertools.product(range(kh), range(kw))):
        y = offset[:, :, k, 0] + base_y + i * window.dilations[0]
        z = offset[:, :, k, 1] + base_x + j * window.dilations[1]
        sampled = sample_bilinear(
            images, y.reshape(n * groups, oh, ow), z.reshape(n * groups, oh, ow)
        )
        if mask is not None:
            sampled = sampled * mask.reshape(n * groups, kh * kw, oh, ow)[:, k : k + 1]
        columns.append(sampled.reshape(n, c, oh, ow))
    taps = torch.stack(columns, 2)  # [n, c, kh * kw, oh, ow]
    parts = node.get("group", 1)
    taps = taps.reshape(n, parts, c // parts * kh * kw, oh * ow)
    y = torch.matmul(w.reshape(parts, w.shape[0] // parts, -1), taps).reshape(n, w.shape[0], oh, ow)
    return y if b is None else y + b.reshape(-1, 1, 1)


def sample_bilinear(images: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """`images` [n, c, h, w] at places [n, oh, ow] in pixels; zero outside."""
    n, c, h, w = images.shape
    flat = images.reshape(n, c, h * w)
    top, left = torch.floor(y), torch.floor(x)
    total = torch.zeros(n, c, *y.shape[1:], dtype=images.dtype, device=images.device)
    for dy, dx in itertools.product((0, 1), (0, 1)):
        row, column = top + dy, left + dx
        weight = (1 - torch.abs(y - row)) * (1 - torch.abs(x - column))
        inside = (row >= 0) & (row < h) & (column >= 0) & (column < w)
        at = (row.clamp(0, h - 1) * w + column.clamp(0, w - 1)).to(torch.int64)
        values = torch.gather(flat, 2, at.reshape(n, 1, -1).expand(n, c, -1)).reshape(total.shape)
        total = total + values * torch.where(inside, weight, 0).unsqueeze(1)
    return total


@op("Col2Im", sizes=True)
def col2im(node: Node, x: Tensor, image: Any, block: Any) -> Tensor:
    sizes, kernel = node.numbers(1, image), node.numbers(2, block)
    assert sizes is not None and kernel is not None
    rank = len(sizes)
    strides, dilations = node.get("strides", [1] * rank), node.get("dilations", [1] * rank)
    pads = node.get("pads", [0] * (2 * rank))
    if rank == 2 and pads[:2] == pads[2:]:
        return F.fold(x, sizes, kernel, dilations, pads[:2], strides)
    padded = [n + pads[i] + pads[rank + i] for i, n in enumerate(sizes)]
    counts = [
        (p - (k - 1) * d - 1) // s + 1
        for p, k, d, s in zip(padded, kernel, dilations, strides, strict=True)
    ]
    taps = x.reshape(x.shape[0], -1, *kernel, *counts)
    y = x.new_zeros(x.shape[0], taps.shape[1], *padded)
    for place in itertools.product(*[range(k) for k in kernel]):
        index = tuple(
            slice(p * d, p * d + (c - 1) * s + 1, s)
            for p, d, c, s in zip(place, dilations, counts, strides, strict=True)
        )
        y[(slice(None), slice(None), *index)] += taps[(slice(None), slice(None), *place)]
    crop = tuple(slice(pads[i], pads[i] + n) for i, n in enumerate(sizes))
    return y[(slice(None), slice(None), *crop)]
