"""How the arguments of a call share memory: what a graph that AOTAutograd made for overlapping arguments depends on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

# One entry for each tensor that meets another one in memory; () where none does.
Sharing = tuple[tuple[Any, ...], ...]


def sharing_of(values: Sequence[Any]) -> Sharing:
    """Which plain tensors among `values` reach into each other's memory, and where each of them lies.

    By the bytes from the first element to the last one, so that columns beside each other count: AOTAutograd takes them
    for overlapping. The tensor that a view was made of stands there too, since it is passed in the place of its views.
    """
    by_storage: dict[int, list[int]] = {}
    for place, value in enumerate(values):
        if type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout == torch.strided:
            by_storage.setdefault(value.untyped_storage()._cdata, []).append(place)
    return tuple(
        (group, place, _first_like(values, place), _form(values[place]), _form(values[place]._base))
        for group, places in enumerate(by_storage.values())
        if len(places) > 1
        for place in _that_meet(values, places)
    )


def _that_meet(values: Sequence[Any], places: Sequence[int]) -> list[int]:
    """Those of the tensors in one storage whose bytes meet another one's, in order."""
    spans = sorted((*_span(values[place]), place) for place in places)
    found = set()
    reach, farthest = 0, -1  # how far those before reach, and the place of the one that does
    for begin, end, place in spans:
        if begin < reach and begin < end:
            found |= {place, farthest}
        if end > reach:
            reach, farthest = end, place
    return sorted(found)


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """The bytes of its storage from the first element to the last one; none where it has no elements."""
    if tensor.numel() == 0:
        return 0, 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = tensor.storage_offset() + sum((size - 1) * stride for size, stride in steps)
    return tensor.storage_offset() * tensor.itemsize, (last + 1) * tensor.itemsize


def _first_like(values: Sequence[Any], place: int) -> int:
    """The first place at which the very tensor stands."""
    return next(i for i, value in enumerate(values) if value is values[place])


def _form(tensor: torch.Tensor | None) -> tuple[Any, ...] | None:
    if tensor is None:
        return None
    return tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
