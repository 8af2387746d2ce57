"""Images read at places that a grid tells, as gathers, for programs that have no library to call."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch

# As aten counts them.
_BILINEAR, _NEAREST, _BICUBIC = 0, 1, 2
_ZEROS, _BORDER, _REFLECTION = 0, 1, 2

# Keys's kernel, as torch has it.
_CUBIC = -0.75


def grid_sampler(
    input: torch.Tensor,
    grid: torch.Tensor,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
) -> Any:
    """`grid_sampler_2d` and `grid_sampler_3d`: a sum over the elements around a place, each with its weight."""
    if input.dtype != grid.dtype or input.dtype not in (torch.float32, torch.float64):
        return NotImplemented
    sizes = input.shape[2:]
    taps = []
    for dim, size in enumerate(sizes):
        place = grid[..., len(sizes) - 1 - dim]
        place = (place + 1) * (size - 1) / 2 if align_corners else ((place + 1) * size - 1) / 2
        found = _TAPS[interpolation_mode](
            place, lambda x, size=size: _inside(x, size, padding_mode, align_corners)
        )
        taps.append([(*_index(tap, size), weight) for tap, weight in found])
    flat = input.flatten(2)
    result = None
    for corner in itertools.product(*taps):
        element = _element(flat, sizes, corner)
        for _, _, weight in corner:
            element = element if weight is None else element * weight.unsqueeze(1)
        result = element if result is None else result + element
    return result


def _element(flat: torch.Tensor, sizes: Any, corner: Any) -> torch.Tensor:
    """[N, C, ...] at [N, ...]; 0 outside."""
    number: Any = 0
    is_there: Any = True
    for size, (index, within, _) in zip(sizes, corner, strict=True):
        number = number * size + index
        is_there = is_there & within
    form = number.shape[1:]
    rows = number.flatten(1).unsqueeze(1).expand(-1, flat.shape[1], -1)
    found = flat.gather(2, rows).unflatten(2, form)
    return torch.where(is_there.unsqueeze(1), found, torch.zeros([], dtype=flat.dtype))


def _index(place: torch.Tensor, size: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """A number inside, and whether the place, which is whole, is inside."""
    within = (place >= 0) & (place <= size - 1)
    return torch.where(within, place, torch.zeros([], dtype=place.dtype)).long(), within


def _inside(place: torch.Tensor, size: Any, padding_mode: int, align_corners: bool) -> torch.Tensor:
    """The place that stands for one outside."""
    if padding_mode == _ZEROS:
        return place
    if padding_mode == _REFLECTION:
        # At the middle of the outer elements, or at their edges.
        first = 0.0 if align_corners else -0.5
        span = torch.sym_max(size - 1, 1) if align_corners else size
        distance = (place - first).abs()
        times = (distance / span).floor()
        rest = torch.fmod(distance, span)
        place = torch.where(times % 2 == 0, rest, span - rest) + first
    return place.clamp(0, size - 1)


# The elements that a place is computed from along one dimension: whole numbers as floats, with weights.


def _bilinear(place: torch.Tensor, inside: Callable[..., Any]) -> Any:
    place = inside(place)
    first = place.floor()
    after = place - first
    return [(first, 1 - after), (first + 1, after)]


def _nearest(place: torch.Tensor, inside: Callable[..., Any]) -> Any:
    return [(inside(place).round(), None)]


def _bicubic(place: torch.Tensor, inside: Callable[..., Any]) -> Any:
    first = place.floor()
    after = place - first
    weights = [_far(after + 1), _near(after), _near(1 - after), _far(2 - after)]
    return [(inside(first + step), weight) for step, weight in enumerate(weights, -1)]


def _near(x: torch.Tensor) -> torch.Tensor:
    return ((_CUBIC + 2) * x - (_CUBIC + 3)) * x * x + 1


def _far(x: torch.Tensor) -> torch.Tensor:
    return ((_CUBIC * x - 5 * _CUBIC) * x + 8 * _CUBIC) * x - 4 * _CUBIC


_TAPS = {_BILINEAR: _bilinear, _NEAREST: _nearest, _BICUBIC: _bicubic}


def affine_grid_generator(theta: torch.Tensor, size: Any, align_corners: bool) -> torch.Tensor:
    """Where the elements of an image of this size come from under an affine map: a grid for `grid_sampler`."""
    sizes = size[2:]
    result = theta[:, :, -1].view([-1, *[1] * len(sizes), len(sizes)])
    for dim, extent in enumerate(sizes):
        places = torch.arange(extent, dtype=theta.dtype, device=theta.device)
        if align_corners:
            places = places * 2 / torch.sym_max(extent - 1, 1) - (1 if extent != 1 else 0)
        else:
            places = (places * 2 + 1) / extent - 1
        factor = theta[:, :, len(sizes) - 1 - dim].view([-1, *[1] * len(sizes), len(sizes)])
        result = result + factor * places.view([-1, *[1] * (len(sizes) - dim)])
    return result


def table() -> dict[Any, Callable[..., Any]]:
    """By overload."""
    aten = torch.ops.aten
    return {
        aten.affine_grid_generator.default: affine_grid_generator,
        aten.grid_sampler_2d.default: grid_sampler,
        aten.grid_sampler_3d.default: grid_sampler,
    }
