"""How padding becomes index maps that go on beyond an operand's ends, and its gradients sums of pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from mlcc._fx_index_maps import is_below_zero, result_shape
from mlcc._fx_sizes import Size
from mlcc._fx_types import FLOATS, LIMITS, OPMATH, Tensor, Unsupported
from mlcc._fx_windows import padded, scaled

if TYPE_CHECKING:
    from mlcc.fx_import import Importer


def constant_pad(importer: Importer, node: Node) -> Tensor:
    """constant_pad_nd; negative padding cuts off."""
    bound = importer.bind(node)
    x = importer.tensor(bound["self"])
    fake = importer.fake(bound["self"])
    value = bound["value"]
    if not isinstance(value, int | float):
        raise Unsupported("padding is no constant number")
    number = _as_number(value, x.dtype)
    shape = result_shape(importer, node)
    padding = [importer.fake(p) for p in bound["pad"]]
    for i, (before, after) in enumerate(zip(padding[::2], padding[1::2], strict=True), start=1):
        dim = fake.dim() - i
        if importer.size(before) == 0 and importer.size(after) == 0:
            continue
        if isinstance(before, int):
            x = padded(importer, x, dim, before, shape[dim], number)
        else:
            x = _padded_in_front(importer, x, dim, before, shape[dim], number)
    return importer.copy(x)


def _padded_in_front(
    importer: Importer, x: Tensor, dim: int, before: torch.SymInt, extent: Size, number: float
) -> Tensor:
    """`padded` where `before` is symbolic."""
    shape: list[Size] = x.handle.shape
    if is_below_zero(before) is False:
        front = importer.size(before)
        behind = padded(importer, x, dim, 0, f"({extent}) - ({front})", number)
        shape[dim] = front
        filled = Tensor(importer.full(shape, x.dtype, number, x.handle.device), x.dtype)
        return importer.cat([filled, behind], dim)
    if is_below_zero(-before) is False:
        removed = importer.size(-before)
        rest = importer.slice(x, dim, removed, f"({shape[dim]}) - ({removed})")
        return padded(importer, rest, dim, 0, extent, number)
    raise Unsupported("the sign of the padding is unknown")


def _as_number(value: float, dtype: str) -> float:
    if dtype in FLOATS:
        return float(value)
    if dtype == "bool":
        return int(bool(value))
    low, high = LIMITS[dtype]
    if int(value) != value or not low <= value <= high:
        raise Unsupported(f"padding of {dtype} by {value}")
    return int(value)


def _amounts(importer: Importer, node: Node, fake: torch.Tensor) -> list[tuple[int, int, int]]:
    """(dim, before, after) of each padded dimension, innermost first."""
    bound = importer.bind(node)
    padding = [importer.fake(p) for p in bound["pad" if "pad" in bound else "padding"]]
    if not all(isinstance(p, int) for p in padding):
        raise Unsupported("padding is no constant")
    pairs = zip(padding[::2], padding[1::2], strict=True)
    dims = enumerate(pairs, start=1)
    return [(fake.dim() - i, *pair) for i, pair in dims if pair != (0, 0)]


def extended(mode: str) -> Any:
    """reflection_pad and replication_pad; of images eager's kernels copy short rows faster than ours."""

    def handler(importer: Importer, node: Node) -> Tensor:
        bound = importer.bind(node)
        x = importer.tensor(bound["self"])
        fake = importer.fake(bound["self"])
        for dim, before, after in _amounts(importer, node, fake):
            extent = scaled(importer.size(fake.shape[dim]), 1, before + after)
            handle = importer.builder.extend(x.handle, dim, before, extent, mode)
            x = Tensor(handle, x.dtype)
        return importer.copy(x)

    return handler


def reflected_backward(importer: Importer, node: Node) -> Tensor:
    """Each element gets its own gradient and those of its images beyond the ends."""
    return _folded(importer, node, _reflected)


def replicated_backward(importer: Importer, node: Node) -> Tensor:
    """The elements at the ends get the gradients of all that lies beyond."""
    return _folded(importer, node, _replicated)


def _folded(importer: Importer, node: Node, images: Any) -> Tensor:
    bound = importer.bind(node)
    fake = importer.fake(bound["self"])
    gradient = importer.tensor(bound["grad_output"])
    x = importer.cast(gradient, OPMATH.get(gradient.dtype, gradient.dtype))
    for dim, before, after in _amounts(importer, node, fake):
        if before < 0 or after < 0:
            raise Unsupported("negative padding")
        extent = importer.size(fake.shape[dim])
        total = importer.slice(x, dim, before, extent)
        for image in images(importer, x, dim, before, after, extent):
            total = importer.pointwise("add", total, image)
        x = total
    return importer.copy(importer.cast(x, gradient.dtype))


def _reflected(
    importer: Importer, x: Tensor, dim: int, before: int, after: int, extent: Size
) -> list[Tensor]:
    def flipped(start: Size, length: int) -> Tensor:
        piece = importer.slice(x, dim, start, length)
        return Tensor(importer.builder.flip(piece.handle, [dim]), x.dtype)

    images = []
    if before > 0:
        images.append(padded(importer, flipped(0, before), dim, 1, extent, 0))
    if after > 0:
        image = flipped(scaled(extent, 1, before), after)
        images.append(_at_end(importer, image, dim, extent, after, 1))
    return images


def _replicated(
    importer: Importer, x: Tensor, dim: int, before: int, after: int, extent: Size
) -> list[Tensor]:
    def sum_of(start: Size, length: int) -> Tensor:
        return importer.reduce("sum", importer.slice(x, dim, start, length), [dim], True)

    images = []
    if before > 0:
        images.append(padded(importer, sum_of(0, before), dim, 0, extent, 0))
    if after > 0:
        image = sum_of(scaled(extent, 1, before), after)
        images.append(_at_end(importer, image, dim, extent, 1, 0))
    return images


def _at_end(
    importer: Importer, x: Tensor, dim: int, extent: Size, length: int, behind: int
) -> Tensor:
    """`x`, `length` long along `dim`, as the last of `extent` places but for `behind`; 0 before and behind it."""
    if not isinstance(extent, int):
        raise Unsupported("gradients of padded dynamic sizes")
    return padded(importer, x, dim, extent - length - behind, extent, 0)
