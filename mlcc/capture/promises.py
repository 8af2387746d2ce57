"""What is promised to the core of weights that are integers: that they lie within few bits.

Quantized weights often stand one to a byte and need half of it or less, and zero points are often zeros. Nothing in a
graph tells so; the values do. The core looks at them again when they change: where a promise does not hold, the graph
is compiled without.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from mlcc.torch_private import aot_metadata, trace_state, tracing

# Weights of fewer elements cost next to nothing as they are.
_LEAST_ELEMENTS = 1024
# So many tell most weights apart that need whole bytes.
_FIRST_ELEMENTS = 4096

# The ranges that are promised, the smallest first: so layers of one form share their kernels, whatever they hold.
_ZERO = (0, 0)
_RANGES = {torch.int8: ((-8, 7), (0, 15)), torch.uint8: ((0, 15),)}


def promised_ranges(
    inputs: Iterable[tuple[Any, range]],
) -> dict[int, tuple[int, int]]:
    """Of weights, each with the places of the graph's inputs that it becomes: where integers lie within few bits."""
    found = {}
    for value, places in inputs:
        for place, part in zip(places, aot_metadata.parts_of(value), strict=True):
            if (limits := _range_of(part)) is not None:
                found[place] = limits
    return found


def _range_of(value: Any) -> tuple[int, int] | None:
    is_plain = isinstance(value, torch.Tensor) and value.layout == torch.strided
    if not is_plain or trace_state.is_of_trace(value) or value.device.type != "cpu":
        return None
    ranges = _ranges_for(value)
    if not ranges or value.numel() == 0:
        return None
    with tracing.outside_fake_mode(), torch.no_grad():
        return _first(ranges, value.flatten()[:_FIRST_ELEMENTS]) and _first(ranges, value)


def _ranges_for(value: torch.Tensor) -> tuple[tuple[int, int], ...]:
    """Those that are worth a look."""
    if value.dtype in _RANGES:
        return (_ZERO, *_RANGES[value.dtype]) if value.numel() >= _LEAST_ELEMENTS else (_ZERO,)
    # Zero points of channels.
    is_list = value.dtype in (torch.int32, torch.int64) and value.dim() == 1
    return (_ZERO,) if is_list else ()


def _first(ranges: tuple[tuple[int, int], ...], value: torch.Tensor) -> tuple[int, int] | None:
    low, high = (int(end) for end in torch.aminmax(value))
    return next((one for one in ranges if one[0] <= low and high <= one[1]), None)
