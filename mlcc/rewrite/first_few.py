"""The first elements of a row's order, one after the other: for a few of many.

Each takes two passes over the row: for the greatest element behind the one before, and for the first place where it is.
Equal elements come in the order of their places; NaN is larger than any number.
"""

from __future__ import annotations

import torch

# A rank for each element takes a comparison with each other one, in registers; a pass reads memory, and waits for the
# one before.
_LEAST_ELEMENTS_FOR_EACH = 8
MOST = 64


def is_worth_it(count: object, size: int | torch.SymInt) -> bool:
    """Whether passes are faster than a rank for each element."""
    return (
        type(count) is int
        and count <= MOST
        and type(size) is int
        and count * _LEAST_ELEMENTS_FOR_EACH <= size
    )


def first_few(
    rows: torch.Tensor, count: int, descending: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the last dimension of `rows` [..., n]: `count` elements [..., count], and their places (i64)."""
    numbers = rows.to(torch.uint8) if rows.dtype == torch.bool else rows
    places = torch.arange(rows.shape[-1], device=rows.device)
    is_left: torch.Tensor | None = None  # None: all are
    found = []
    for _ in range(count):
        value, place = _first(numbers, places, is_left, descending)
        found.append(place)
        is_behind = _goes_before(value, numbers, descending)
        is_later = _is_equal(value, numbers) & (places > place)
        is_left = is_behind | is_later
    indices = (
        torch.cat(found, -1) if found else rows.new_empty([*rows.shape[:-1], 0], dtype=torch.int64)
    )
    return rows.gather(-1, indices), indices


def _first(
    numbers: torch.Tensor, places: torch.Tensor, is_left: torch.Tensor | None, descending: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The first element of those that are left, and its first place."""
    is_float = numbers.dtype.is_floating_point
    worst = _worst(numbers.dtype, descending)
    candidates = numbers
    if is_left is not None:
        candidates = torch.where(is_left, candidates, worst)
    if descending:
        value = candidates.amax(-1, keepdim=True)  # NaN where there is one
    else:
        is_number = ~numbers.isnan() if is_float else None
        if is_number is not None:
            candidates = torch.where(is_number, candidates, worst)
        value = candidates.amin(-1, keepdim=True)
        if is_number is not None:
            is_some = is_number if is_left is None else is_number & is_left
            nan = torch.full([], float("nan"), dtype=numbers.dtype)
            value = torch.where(is_some.any(-1, keepdim=True), value, nan)
    is_here = _is_equal(value, numbers)
    if is_left is not None:
        is_here = is_here & is_left
    last = torch.full([], numbers.shape[-1] - 1, dtype=torch.int64)
    return value, torch.where(is_here, places, last).amin(-1, keepdim=True)


def _worst(dtype: torch.dtype, descending: bool) -> torch.Tensor:
    if dtype.is_floating_point:
        return torch.full([], float("-inf") if descending else float("inf"), dtype=dtype)
    limits = torch.iinfo(dtype)
    return torch.full([], limits.min if descending else limits.max, dtype=dtype)


def _is_equal(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a == b) | (a.isnan() & b.isnan()) if a.dtype.is_floating_point else a == b


def _goes_before(a: torch.Tensor, b: torch.Tensor, descending: bool) -> torch.Tensor:
    """Of elements that are not equal: whether a comes first."""
    before = a > b if descending else a < b
    if a.dtype.is_floating_point:
        before = before | (a.isnan() & ~b.isnan() if descending else ~a.isnan() & b.isnan())
    return before
