"""How the arguments of a call share memory: what a graph that AOTAutograd made for overlapping arguments depends on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mlcc._load import load_core

# One entry for each tensor that shares its storage with another one; () where none does.
Sharing = tuple[tuple[Any, ...], ...]


def sharing_of(values: Sequence[Any]) -> Sharing:
    """Which plain tensors among `values` share a storage, and where in it each of them lies.

    The tensor that a view was made of stands there too: AOTAutograd passes it in the place of its views.
    """
    by_storage: dict[int, list[int]] = {}
    for place, value in enumerate(values):
        if type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout == torch.strided:
            by_storage.setdefault(value.untyped_storage()._cdata, []).append(place)
    shared = [places for places in by_storage.values() if len(places) > 1]
    return tuple(
        (group, place, _first_like(values, place), _form(values[place]), _form(values[place]._base))
        for group, places in enumerate(shared)
        for place in places
    )


def overlaps(values: Sequence[Any]) -> bool:
    """Whether elements of two of the tensors may lie at one place."""
    core = load_core()
    return bool(core.writes_overlap(values, range(len(values))))


def _first_like(values: Sequence[Any], place: int) -> int:
    """The first place at which the very tensor stands."""
    return next(i for i, value in enumerate(values) if value is values[place])


def _form(tensor: torch.Tensor | None) -> tuple[Any, ...] | None:
    if tensor is None:
        return None
    return tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
