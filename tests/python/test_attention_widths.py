"""Widths of heads that become numbers, of attention by its parts: what is compiled again, and what is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import mlcc


def _soft_capped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.tanh(q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v


def _channels(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention among channels, whose values have as many columns as there are positions."""
    return (q.mT @ k / 16).softmax(-1) @ v.mT


def _few_channels(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return _channels(q[..., :4], k[..., :4], v[..., :4])


def _chained(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    weights = (q @ k.mT / 16).softmax(-1)
    return (weights @ weights.mT).softmax(-1) @ v


def _graphs(
    function: Callable[..., torch.Tensor], sizes: list[tuple[int, int]], mlcc_log: Any
) -> list[str]:
    """What the log tells of the graphs compiled for heads of these lengths and widths."""
    compiled = mlcc.jit(function)
    with torch.no_grad(), mlcc_log("perf") as graphs:
        for length, width in sizes:
            q, k, v = (torch.randn(2, 3, length, width) for _ in range(3))
            torch.testing.assert_close(compiled(q, k, v), function(q, k, v))
    return graphs


def test_widths_of_parts_become_numbers(mlcc_log: Any) -> None:
    """Another width is another compilation, another length is not; scores are part of the kernel behind keys' packs."""
    graphs = _graphs(_soft_capped, [(70, 32), (90, 32), (90, 16), (40, 32)], mlcc_log)
    assert len(graphs) == 2
    assert all(": 2 kernels " in graph for graph in graphs)


@pytest.mark.parametrize("function", [_channels, _few_channels, _chained])
def test_lengths_stay_symbols(function: Callable[..., torch.Tensor], mlcc_log: Any) -> None:
    sizes = [(length, 32) for length in (70, 90, 33, 200, 110)]
    assert len(_graphs(function, sizes, mlcc_log)) == 1


def test_lengths_like_widths_get_few_guards(mlcc_log: Any) -> None:
    """Shorter than there are channels: then a guard for a length is taken for a width's, but not for each."""
    sizes = [(length, 64) for length in range(20, 60, 4)]
    assert len(_graphs(_channels, sizes, mlcc_log)) <= 5


@pytest.mark.parametrize("function", [_soft_capped, F.scaled_dot_product_attention])
def test_sizes_declared_dynamic_stay_so(function: Callable[..., torch.Tensor]) -> None:
    """Torch refuses guards for their values."""
    compiled = torch.compile(function, backend="mlcc")
    with torch.no_grad():
        for width in (64, 48):
            q, k, v = (torch.randn(1, 4, 70, width) for _ in range(3))
            for dim in (1, 2, 3):
                for x in (q, k, v):
                    torch._dynamo.mark_dynamic(x, dim)
            torch.testing.assert_close(compiled(q, k, v), function(q, k, v))
