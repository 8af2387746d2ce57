"""Small integer tensors as lists of numbers, so that shape arithmetic is done while a model is traced.

ONNX computes sizes by tensors: Shape -> Gather -> Concat -> Reshape. As tensors they would be data, which a trace
cannot look at. As `Sizes` they are Python numbers, or symbols where a size varies: what Reshape gets stays symbolic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

Number = Any  # int | float | bool | torch.SymInt | torch.SymFloat


class Sizes:
    """A tensor whose elements are known while tracing. Of an integer's value may be elements of a floating dtype."""

    def __init__(
        self,
        items: Sequence[Number],
        rank: int = 1,
        dtype: torch.dtype = torch.int64,
        shape: tuple[int, ...] | None = None,
    ) -> None:
        """`shape` where the rank is not 0 or 1."""
        self.items = list(items)
        self.shape = ((len(self.items),) if rank else ()) if shape is None else shape
        self.dtype = dtype

    def __repr__(self) -> str:
        return f"Sizes({self.items}, shape={self.shape}, dtype={self.dtype})"

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def number(self) -> Number:
        return self.items[0]

    def tensor(self, device: torch.device | None = None) -> torch.Tensor:
        if all(isinstance(item, (int, float, bool)) for item in self.items):
            return torch.tensor(self.items, dtype=self.dtype, device=device).reshape(self.shape)
        parts = [torch.full((), item, dtype=self.dtype, device=device) for item in self.items]
        return torch.stack(parts).reshape(self.shape) if self.rank else parts[0]

    def pick(self, places: Sequence[Sequence[int]]) -> Sizes:
        """The elements at these places of each axis."""
        flat = [0]
        for extent, wanted in zip(self.shape, places, strict=True):
            flat = [start * extent + place for start in flat for place in wanted]
        shape = tuple(len(wanted) for wanted in places)
        return Sizes([self.items[i] for i in flat], dtype=self.dtype, shape=shape)

    def reshape(self, shape: Sequence[int]) -> Sizes:
        return Sizes(self.items, dtype=self.dtype, shape=tuple(shape))

    def permute(self, order: Sequence[int]) -> Sizes:
        strides = [_product(self.shape[axis + 1 :]) for axis in order]
        shape = tuple(self.shape[axis] for axis in order)
        flat = [0]
        for extent, stride in zip(shape, strides, strict=True):
            flat = [start + i * stride for start in flat for i in range(extent)]
        return Sizes([self.items[i] for i in flat], dtype=self.dtype, shape=shape)

    def cast(self, dtype: torch.dtype) -> Sizes:
        if dtype == torch.bool:
            return Sizes([bool(item) for item in self.items], dtype=dtype, shape=self.shape)
        convert = _as_float if dtype.is_floating_point else _as_int
        return Sizes([convert(item) for item in self.items], dtype=dtype, shape=self.shape)


def _product(extents: Sequence[int]) -> int:
    total = 1
    for extent in extents:
        total *= extent
    return total


def _as_float(item: Number) -> Number:
    return item if isinstance(item, torch.SymInt) else float(item)


def whole(item: Number) -> Number:
    """An integer for a float of its value: symbols of integers are simplified, those of floats are not."""
    return (
        int(item) if isinstance(item, float) and math.isfinite(item) and item == int(item) else item
    )


def _as_int(item: Number) -> Number:
    return torch.sym_int(item) if isinstance(item, (torch.SymInt, torch.SymFloat)) else int(item)


def combine(
    function: Callable[..., Number], *values: Sizes, dtype: torch.dtype | None = None
) -> Sizes:
    """`function` of the elements, which are broadcast as tensors' are."""
    lengths = [len(value.items) for value in values]
    length = 0 if 0 in lengths else max(lengths)
    columns = [
        value.items if len(value.items) == length else value.items * length for value in values
    ]
    items = [function(*row) for row in zip(*columns, strict=True)]
    rank = max(value.rank for value in values)
    return Sizes(items, rank, values[0].dtype if dtype is None else dtype)


def by_integers(function: Callable[[Number, Number], Number]) -> Callable[[Number, Number], Number]:
    """`function` of two integers where one is a symbol of an integer, and the other has an integer's value."""

    def apply(left: Number, right: Number) -> Number:
        if isinstance(left, torch.SymInt) or isinstance(right, torch.SymInt):
            return function(whole(left), whole(right))
        return function(left, right)

    return apply


def divide(left: Number, right: Number) -> Number:
    """ONNX's Div of integers, which is cut off towards zero."""
    if isinstance(left, (float, torch.SymFloat)) or isinstance(right, (float, torch.SymFloat)):
        return left / right
    if isinstance(left, int) and isinstance(right, int):
        quotient = abs(left) // abs(right)
        return quotient if (left < 0) == (right < 0) else -quotient
    return left // right  # sizes are not negative


def positions(length: int, start: Number, end: Number, step: int) -> range:
    """Slice's bounds have other meanings than Python's where they are beyond the end and steps are negative."""
    if step > 0:
        return range(*slice(start, min(end, length), step).indices(length))
    start = max(min(start + length if start < 0 else start, length - 1), -1)
    end = max(min(end + length if end < 0 else end, length), -1)
    return range(start, end, step)
