"""Windows of signals, and frames that are added up where they overlap, for programs that have no library to call."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

# Frames that may lie over one place.
_MOST = 64


def unfold_backward(
    grad_in: torch.Tensor, input_sizes: Sequence[Any], dim: int, size: int, step: int
) -> Any:
    """The inverse of `unfold`, which adds where frames overlap: what istft is made of.

    Frames are cut into pieces of `step`, which lie side by side: the result is a sum of shifted rows of pieces.
    """
    if not input_sizes or size < 1:
        return NotImplemented
    count = -(-size // step)
    if count > _MOST:
        return NotImplemented
    frames = grad_in.movedim(dim, -2)
    pieces = functional.pad(frames, (0, count * step - size)).unflatten(-1, (count, step))
    rows = [
        functional.pad(pieces[..., place, :], (0, 0, place, count - 1 - place))
        for place in range(count)
    ]
    total = rows[0]
    for row in rows[1:]:
        total = total + row
    whole = total.flatten(-2)
    missing = input_sizes[dim] - whole.shape[-1]
    # Fewer are asked for where the last frame was filled up to a whole number of pieces.
    return functional.pad(whole, (0, missing)).movedim(-1, dim)


def col2im(
    self: torch.Tensor,
    output_size: Sequence[Any],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Any:
    """Windows of an image, added where they overlap: along rows, then along columns.

    With steps of 1 the importer has a rule.
    """
    if list(dilation) != [1, 1] or list(stride) == [1, 1]:
        return NotImplemented
    batched = self if self.dim() == 3 else self.unsqueeze(0)
    sizes = [size + 2 * pad for size, pad in zip(output_size, padding, strict=True)]
    counts = [
        (size - extent) // step + 1
        for size, extent, step in zip(sizes, kernel_size, stride, strict=True)
    ]
    if max(-(-extent // step) for extent, step in zip(kernel_size, stride, strict=True)) > _MOST:
        return NotImplemented
    apart = batched.unflatten(1, (-1, *kernel_size)).unflatten(-1, counts)
    frames = apart.permute(0, 1, 2, 4, 5, 3)  # rows of the kernel, then windows, then its columns
    form = [*frames.shape[:4], sizes[1]]
    columns = unfold_backward(frames, form, 4, kernel_size[1], stride[1]).permute(0, 1, 4, 3, 2)
    form = [*columns.shape[:3], sizes[0]]
    whole = unfold_backward(columns, form, 3, kernel_size[0], stride[0]).transpose(-1, -2)
    inside = whole
    for dim, pad, size in zip((2, 3), padding, output_size, strict=True):
        inside = inside.narrow(dim, pad, size)
    return (inside if self.dim() == 3 else inside.squeeze(0)).contiguous()


def _window(*cosines: float) -> Callable[..., Any]:
    """The window that is a sum of cosines, with these factors, as a function of its length."""

    def window(
        window_length: int, periodic: bool = True, *, dtype: torch.dtype | None = None, **_: Any
    ) -> Any:
        if not isinstance(window_length, int) or window_length < 2:
            return NotImplemented
        places = torch.arange(window_length, dtype=dtype or torch.get_default_dtype())
        angle = places * (2 * math.pi / (window_length - (not periodic)))
        total = cosines[0] + cosines[1] * angle.cos()
        for number, factor in enumerate(cosines[2:], 2):
            total = total + factor * (angle * number).cos()
        return total

    return window


_WINDOWS = {
    "hann_window": _window(0.5, -0.5),
    "hamming_window": _window(0.54, -0.46),
    "blackman_window": _window(0.42, -0.5, 0.08),
}


def table() -> dict[Any, Callable[..., Any]]:
    """By overload."""
    aten = torch.ops.aten
    known: dict[Any, Callable[..., Any]] = {
        aten.col2im.default: col2im,
        aten.unfold_backward.default: unfold_backward,
    }
    for name, window in _WINDOWS.items():
        op = getattr(aten, name)
        known |= {op.default: window, op.periodic: window}
    return known
