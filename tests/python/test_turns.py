"""Kernels that walk over the same memory take turns (decision 0022)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import mlcc

ROWS = 3000  # of 768 numbers: 9 MB, more than a second-level cache holds


def rows_and_columns(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A kernel over rows, and one that adds up columns of what it reads."""
    return torch.softmax(x, 1), (x * y).sum(0), x.sum(0)


def turns(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("in turns: ")]


@pytest.mark.parametrize("dynamic", [False, None])
def test_rows_and_column_sums_take_turns(dynamic: bool | None, mlcc_log: Any) -> None:
    compiled = mlcc.jit(rows_and_columns, dynamic=dynamic)
    threads = torch.get_num_threads()
    results = []
    with mlcc_log("fusion") as lines:
        try:
            for number in (1, 2):
                torch.set_num_threads(number)
                torch.manual_seed(0)
                for rows in (ROWS, 700, 3, 0) if dynamic is None else (ROWS,):
                    x, y = torch.randn(rows, 768), torch.randn(rows, 768)
                    results.append(compiled(x, y))
                    torch.testing.assert_close(
                        results[-1], rows_and_columns(x, y), atol=1e-4, rtol=1e-4
                    )
        finally:
            torch.set_num_threads(threads)
    assert turns(lines) == ["in turns: kernels 0, 1"]
    half = len(results) // 2
    for one, two in zip(results[:half], results[half:], strict=True):
        assert all(map(torch.equal, one, two))


def test_what_is_small_or_depends_or_may_fail_does_not(mlcc_log: Any) -> None:
    def chained(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scaled = x * x.mean(0)
        return scaled, torch.softmax(scaled, 1)

    def failing(x: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.softmax(x, 1), (x * x[index]).sum(0)

    x = torch.randn(ROWS, 768)
    with mlcc_log("fusion") as lines:
        mlcc.jit(rows_and_columns, dynamic=False)(x[:20].clone(), x[:20].clone())
        torch.testing.assert_close(mlcc.jit(chained, dynamic=False)(x), chained(x))
        failing_jit = mlcc.jit(failing, dynamic=False)
        failing_jit(x, torch.arange(ROWS))
        with pytest.raises(IndexError):
            failing_jit(x, torch.arange(ROWS) + 1)
    assert turns(lines) == []


def test_an_argument_that_one_of_them_writes(mlcc_log: Any) -> None:
    """The kernel writes it itself, which nothing may read at the same time."""

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        columns = (x * y).sum(0)
        y.copy_(y * 0.5 + torch.softmax(x, 1))
        return columns

    x, ours = torch.randn(ROWS, 768), torch.randn(ROWS, 768)
    theirs = ours.clone()
    compiled = mlcc.jit(function)
    with mlcc_log("fusion") as fusion, mlcc_log("fallback") as calls:
        result = compiled(x, ours)
    torch.testing.assert_close(result, function(x, theirs), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(ours, theirs)
    assert turns(fusion) == [] and calls == []
