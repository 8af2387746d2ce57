"""Comparisons of sizes as arguments of torch's functions, under `mlcc.jit`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import mlcc
from mlcc import _size_comparisons


def test_a_comparison_as_an_argument_is_a_guard(mlcc_log: Any) -> None:
    """Functions of torch take bools only, whatever an argument of theirs is called with."""
    comparisons = {name: getattr(torch.SymInt, name) for name in ("__gt__", "__eq__")}

    def f(x: torch.Tensor) -> torch.Tensor:
        return x.sum(1, keepdim=x.shape[0] > 3)

    compiled = mlcc.jit(f)
    with mlcc_log("fallback") as left, mlcc_log("recompiles") as recompiled:
        for size in (2, 3, 4, 9):
            x = torch.randn(size, 5)
            torch.testing.assert_close(compiled(x), f(x))
    assert left == [] and len(recompiled) == 1
    assert comparisons == {name: getattr(torch.SymInt, name) for name in comparisons}


def _with_data(x: torch.Tensor) -> tuple[torch.Tensor, bool]:
    found = x.nonzero()
    return x.sum(1, keepdim=x.shape[0] > 3), found.shape[0] == 0


def _with_check(x: torch.Tensor) -> torch.Tensor:
    found = x.nonzero()
    torch._check(found.shape[0] >= 2)
    return x[found[:, 0]].sum(1, keepdim=x.shape[0] > 3)


def _of_data(x: torch.Tensor) -> torch.Tensor:
    return x.sum(1, keepdim=x.nonzero().shape[0] > 3)


@pytest.mark.parametrize("function", [_with_data, _with_check, _of_data])
def test_what_data_tell_is_not_decided(function: Callable[..., Any]) -> None:
    """What cannot be traced runs eagerly, as without the comparison."""
    x = torch.randn(5, 4).abs()
    torch.testing.assert_close(mlcc.jit(function)(x), function(x))


def test_other_threads_compare_as_ever() -> None:
    """While one thread's comparisons are decided, those of others are what torch makes of them."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    def compared() -> None:
        env = ShapeEnv()
        symbol = env.create_unbacked_symint()
        found.append(type(symbol > 3))

    found: list[type] = []
    with _size_comparisons.decided():
        thread = threading.Thread(target=compared)
        thread.start()
        thread.join()
    assert found == [torch.SymBool]
