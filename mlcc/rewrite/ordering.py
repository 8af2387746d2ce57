"""Sorting and what rests on it as comparisons and sums, for programs that have no library to call.

An element's rank is the number of those that go before it. That takes n * n comparisons in registers where a sort takes
n * log(n) steps from memory: as fast for a few hundred elements, and no op here takes more than `MOST`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mlcc.rewrite import first_few
from mlcc.torch_private import symints

# Elements of a row.
MOST = 2048

# Rows of a product by experts, for each expert: up to so many take the weights row by row.
_FEW_ROWS = 2


def topk(
    self: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> Any:
    """The k largest or smallest elements in order, and their places; of equal ones the first."""
    del sorted  # ordered in any case
    if self.dim() > 0 and first_few.is_worth_it(k, self.shape[dim]):
        values, indices = first_few.first_few(self.movedim(dim, -1), k, largest)
        return values.movedim(-1, dim), indices.movedim(-1, dim)
    if self.dim() == 0 or not is_short(self.shape[dim]):
        return NotImplemented
    return _first(self, k, dim, descending=largest)


def sort_stable(
    self: torch.Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> Any:
    """All elements in order; equal ones stay in theirs. NaN is larger than any number."""
    del stable
    if self.dim() == 0 or not is_short(self.shape[dim]):
        return NotImplemented
    return _first(self, self.shape[dim], dim, descending)


def sort(self: torch.Tensor, dim: int = -1, descending: bool = False) -> Any:
    """As `sort_stable`."""
    return sort_stable(self, dim=dim, descending=descending)


def is_short(size: Any) -> bool:
    """Whether there may be a comparison for each pair of elements of a row."""
    return symints.is_known(size <= MOST)


def _first(
    x: torch.Tensor, count: Any, dim: int, descending: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    rows = x.movedim(dim, -1)
    ordered = torch.arange(count, device=x.device)
    values, indices = at_ranks(rows, ranks(rows, descending), ordered)
    return values.movedim(-1, dim), indices.movedim(-1, dim)


def ranks(rows: torch.Tensor, descending: bool = False) -> torch.Tensor:
    """How many elements of its row go before each; of equal ones the first does."""
    places = torch.arange(rows.shape[-1], device=rows.device)
    one, other = rows.unsqueeze(-1), rows.unsqueeze(-2)
    before = other > one if descending else other < one
    is_equal = other == one
    if rows.dtype.is_floating_point:
        one_nan, other_nan = one.isnan(), other.isnan()
        before = before | (other_nan & ~one_nan if descending else one_nan & ~other_nan)
        is_equal = is_equal | (one_nan & other_nan)
    before = before | (is_equal & (places < places.unsqueeze(-1)))
    return before.sum(-1)


def at_ranks(
    rows: torch.Tensor, rank: torch.Tensor, wanted: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The elements whose ranks are wanted, and their places."""
    places = torch.arange(rows.shape[-1], device=rows.device)
    is_there = rank.unsqueeze(-2) == wanted.unsqueeze(-1)
    # One term of each sum is not 0.
    indices = torch.where(is_there, places, torch.zeros([], dtype=torch.int64)).sum(-1)
    return rows.gather(-1, indices), indices


def grouped_mm(input: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    """Rows of `input` [S, K], in groups that end at `offs` [E], times the group's matrix of `weight` [E, K, N].

    Rows behind the last group are zeros.
    """
    rows = torch.arange(input.shape[0], device=input.device)
    expert = (rows.unsqueeze(-1) >= offs).sum(-1)  # of each row
    experts = weight.shape[0]
    is_used = (expert < experts).unsqueeze(-1)
    if symints.is_known(input.shape[0] <= _FEW_ROWS * experts):
        own = weight.index_select(0, expert.clamp(max=experts - 1))
        found = torch.bmm(input.unsqueeze(1), own).squeeze(1)
        return torch.where(is_used, found, torch.zeros([], dtype=found.dtype))
    total = torch.zeros(input.shape[0], weight.shape[2], dtype=input.dtype)
    for number in range(experts):
        is_own = (expert == number).unsqueeze(-1)
        total = torch.where(is_own, input @ weight[number], total)
    return total


def _grouped_mm_of_torch(
    self: torch.Tensor,
    mat2: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Any:
    if self.dim() != 2 or mat2.dim() != 3 or offs is None or bias is not None:
        return NotImplemented
    found = grouped_mm(self, mat2, offs)
    return found if out_dtype is None else found.to(out_dtype)


def table() -> dict[Any, Callable[..., Any]]:
    """By overload; those of transformers where it is imported."""
    aten = torch.ops.aten
    known: dict[Any, Callable[..., Any]] = {
        aten.topk.default: topk,
        aten.sort.default: sort,
        aten.sort.stable: sort_stable,
        aten._grouped_mm.default: _grouped_mm_of_torch,
    }
    fallback = getattr(torch.ops.transformers, "grouped_mm_fallback", None)
    if fallback is not None:
        known[fallback.default] = grouped_mm
    return known
