"""Single elements of rows by their rank, for programs that have no library to call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mlcc.rewrite.ordering import at_ranks, is_short, ranks


def kthvalue(self: torch.Tensor, k: Any, dim: int = -1, keepdim: bool = False) -> Any:
    """The k-th smallest element and its place; of equal ones they are in their order."""
    if self.dim() == 0 or not is_short(self.shape[dim]):
        return NotImplemented
    rows = self.movedim(dim, -1)
    return _selected(rows, torch.full([1], k - 1, device=self.device), dim, keepdim)


def median(self: torch.Tensor, dim: int, keepdim: bool = False) -> Any:
    """The element in the middle, the lower of two; the first NaN where there is one."""
    if self.dim() == 0 or not is_short(self.shape[dim]):
        return NotImplemented
    rows = self.movedim(dim, -1)
    size = rows.shape[-1]
    middle = (size - 1) // 2
    if not self.is_floating_point():
        return _selected(rows, torch.full([1], middle, device=self.device), dim, keepdim)
    numbers = (~rows.isnan()).sum(-1, keepdim=True)
    wanted = torch.where(numbers < size, numbers, middle)
    return _selected(rows, wanted, dim, keepdim)


def nanmedian(self: torch.Tensor, dim: int, keepdim: bool = False) -> Any:
    """The same of what is no NaN."""
    if not self.is_floating_point():
        return median(self, dim, keepdim)
    if self.dim() == 0 or not is_short(self.shape[dim]):
        return NotImplemented
    rows = self.movedim(dim, -1)
    numbers = (~rows.isnan()).sum(-1, keepdim=True)
    return _selected(rows, ((numbers - 1) // 2).clamp(min=0), dim, keepdim)


def mode(self: torch.Tensor, dim: int = -1, keepdim: bool = False) -> Any:
    """The most frequent number, the smallest of such, and its first place; NaN where there is no number."""
    if self.dim() == 0 or not is_short(self.shape[dim]):
        return NotImplemented
    rows = self.movedim(dim, -1)
    count = (rows.unsqueeze(-1) == rows.unsqueeze(-2)).sum(-1)
    rank = ranks(rows)
    is_frequent = count == count.amax(-1, keepdim=True)
    best = torch.where(is_frequent, rank, rows.shape[-1]).amin(-1, keepdim=True)
    return _placed(*at_ranks(rows, rank, best), dim, keepdim)


def _selected(rows: torch.Tensor, wanted: torch.Tensor, dim: int, keepdim: bool) -> Any:
    wanted = wanted.expand([*rows.shape[:-1], 1])
    return _placed(*at_ranks(rows, ranks(rows), wanted), dim, keepdim)


def _placed(values: torch.Tensor, indices: torch.Tensor, dim: int, keepdim: bool) -> Any:
    found = [one.movedim(-1, dim) for one in (values, indices)]
    return tuple(one if keepdim else one.squeeze(dim) for one in found)


def _of_all(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same over all elements, of which it gives the value."""

    def run(self: torch.Tensor) -> Any:
        if not is_short(self.numel()) or self.numel() == 0:
            return NotImplemented
        return function(self.flatten(), 0)[0]

    return run


def table() -> dict[Any, Callable[..., Any]]:
    """By overload."""
    aten = torch.ops.aten
    return {
        aten.kthvalue.default: kthvalue,
        aten.median.default: _of_all(median),
        aten.median.dim: median,
        aten.mode.default: mode,
        aten.nanmedian.default: _of_all(nanmedian),
        aten.nanmedian.dim: nanmedian,
    }
