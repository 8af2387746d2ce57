"""Small integer tensors as lists of numbers, so that shape arithmetic is done while a model is traced.

ONNX computes sizes by tensors: Shape -> Gather -> Concat -> Reshape. As tensors they would be data, which a trace
cannot look at. As `Sizes` they are Python numbers, or symbols where a size varies: what Reshape gets stays symbolic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Number = Any  # int | float | bool | torch.SymInt | torch.SymFloat


class Sizes:
    """A tensor of rank 0 or 1 whose elements are known while tracing."""

    def __init__(
        self, items: Sequence[Number], rank: int = 1, dtype: torch.dtype = torch.int64
    ) -> None:
        self.items = list(items)
        self.rank = rank
        self.dtype = dtype

    def __repr__(self) -> str:
        return f"Sizes({self.items}, rank={self.rank}, dtype={self.dtype})"

    @property
    def number(self) -> Number:
        return self.items[0]

    def tensor(self, device: torch.device | None = None) -> torch.Tensor:
        if all(isinstance(item, (int, float, bool)) for item in self.items):
            data = self.items if self.rank else self.items[0]
            return torch.tensor(data, dtype=self.dtype, device=device)
        parts = [torch.full((), item, dtype=self.dtype, device=device) for item in self.items]
        return torch.stack(parts) if self.rank else parts[0]

    def cast(self, dtype: torch.dtype) -> Sizes:
        if dtype == torch.bool:
            return Sizes([bool(item) for item in self.items], self.rank, dtype)
        if dtype.is_floating_point:
            return Sizes([_as_float(item) for item in self.items], self.rank, dtype)
        return Sizes([_as_int(item) for item in self.items], self.rank, dtype)


def _as_float(item: Number) -> Number:
    return torch.sym_float(item) if isinstance(item, torch.SymInt) else float(item)


def _as_int(item: Number) -> Number:
    return torch.sym_int(item) if isinstance(item, (torch.SymInt, torch.SymFloat)) else int(item)


def combine(
    function: Callable[..., Number], *values: Sizes, dtype: torch.dtype | None = None
) -> Sizes:
    """`function` of the elements, which are broadcast as tensors' are."""
    length = max((len(value.items) for value in values), default=0)
    if any(not value.items for value in values):
        length = 0
    columns = [
        value.items if len(value.items) == length else value.items * length for value in values
    ]
    items = [function(*row) for row in zip(*columns, strict=True)]
    rank = max(value.rank for value in values)
    return Sizes(items, rank, values[0].dtype if dtype is None else dtype)


def divide(left: Number, right: Number) -> Number:
    """ONNX's Div: integers are cut off towards zero."""
    if isinstance(left, (float, torch.SymFloat)) or isinstance(right, (float, torch.SymFloat)):
        return left / right
    if isinstance(left, int) and isinstance(right, int):
        quotient = abs(left) // abs(right)
        return quotient if (left < 0) == (right < 0) else -quotient
    return left // right  # sizes are not negative


def select(items: Sequence[Number], start: Number, end: Number, step: int) -> list[Number]:
    """Slice's bounds have other meanings than Python's where they are beyond the end and steps are negative."""
    length = len(items)
    if step > 0:
        return list(items[slice(start, min(end, length), step)])
    start = max(min(start + length if start < 0 else start, length - 1), -1)
    end = max(min(end + length if end < 0 else end, length), -1)
    return [items[i] for i in range(start, end, step)]
