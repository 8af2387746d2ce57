"""How the flat list that a trace of `mlcc.jit` computes becomes what the function returns."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mlcc.torch_private import trace_state


@dataclass(frozen=True)
class Results:
    """The function's result: what of it is computed, what is constant, and how it nests; plain data, which can be
    stored."""

    places: list[tuple[bool, Any]]  # per leaf: (it is computed, its place or the constant)
    structure: Any
    ranks: list[int | None]  # of leaves of `structure` that are sizes, not places

    @property
    def is_single(self) -> bool:
        """Whether the result is one tensor or number."""
        return self.places == [(True, 0)] and self.structure == _LEAF and self.ranks == [None]

    @property
    def num_results(self) -> int:
        """How many leaves of the result a graph computes."""
        return sum(is_result for is_result, _ in self.places)

    @property
    def constants(self) -> list[Any]:
        """Leaves of the result that no graph computes, in their order."""
        return [value for is_result, value in self.places if not is_result]

    @property
    def nesting(self) -> Any:
        """The function's result with a number for each leaf: its place among results, then constants.

        None if the result holds other containers than tuples, lists and dicts.
        """
        constants = itertools.count(self.num_results)
        numbers = [value if is_result else next(constants) for is_result, value in self.places]
        nesting = self._nested(numbers)
        return nesting if _is_plain_nesting(nesting) else None

    def restore(self, results: Sequence[Any]) -> Any:
        """The function's result from the flat list."""
        return self._nested(
            [results[value] if is_result else value for is_result, value in self.places]
        )

    def _nested(self, values: Sequence[Any]) -> Any:
        given = iter(values)
        leaves = [
            next(given) if rank is None else torch.Size(itertools.islice(given, rank))
            for rank in self.ranks
        ]
        return trace_state.unflatten(leaves, self.structure)


def _is_plain_nesting(value: Any) -> bool:
    kind = type(value)
    if kind in (tuple, list, torch.Size):
        return all(map(_is_plain_nesting, value))
    if kind is dict:
        return all(map(_is_plain_nesting, value.values()))
    return kind is int


_LEAF = trace_state.flatten(0)[1]
