"""The option `library`: without one, all that there can be code for has it, whatever is faster."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import mlcc
from tests.python.accuracy import check_all, to_double
from tests.python.sessions import Sessions

CPUS = ("", "haswell", "x86-64")


def check(module: nn.Module, *inputs: torch.Tensor, cpu: str = "") -> None:
    """No call is left, and results are as good as eager's."""
    module = module.eval().requires_grad_(False)
    exact = copy.deepcopy(module).double()(*to_double(list(inputs)))
    with mlcc.config.patch(library=False, cpu=cpu), torch.no_grad():
        session = Sessions(module)
        found = session(*inputs)
        check_all(found, module(*inputs), exact)
        (graph,) = session.graphs
    assert not [step for step in graph.executable.steps if step.startswith("call")]


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.Conv2d(8, 8, 3, groups=8, padding=1),
        lambda: nn.Conv2d(8, 8, 7, groups=8, padding=3),
        lambda: nn.Conv2d(8, 16, 3, groups=8, stride=2, bias=False),
        lambda: nn.Conv2d(8, 4, 3, groups=2, dilation=2),
        lambda: nn.Conv2d(8, 3, 1),
        lambda: nn.Conv2d(8, 1, 5, padding="same"),
        lambda: nn.Conv2d(8, 1, 3, stride=2, dilation=2, padding=1),
        lambda: nn.Conv2d(8, 8, 33, groups=8, padding=16),
        lambda: nn.ConvTranspose2d(8, 4, 2, stride=2),
        lambda: nn.ConvTranspose2d(8, 8, 3, groups=8, padding=1),
    ],
)
def test_convolutions(layer: Callable[[], nn.Module], cpu: str) -> None:
    check(layer(), torch.randn(2, 8, 13, 12), cpu=cpu)
    check(layer(), torch.randn(1, 8, 9, 9).to(memory_format=torch.channels_last), cpu=cpu)


@pytest.mark.parametrize("cpu", CPUS)
def test_convolutions_of_other_ranks(cpu: str) -> None:
    check(nn.Conv1d(6, 6, 31, groups=6, padding=15), torch.randn(2, 6, 50), cpu=cpu)
    check(nn.Conv3d(2, 5, 3), torch.randn(1, 2, 6, 5, 7), cpu=cpu)


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtypes(dtype: torch.dtype, cpu: str) -> None:
    check(nn.Conv2d(4, 4, 3, groups=4).to(dtype), torch.randn(2, 4, 9, 9).to(dtype), cpu=cpu)
    check(nn.Conv2d(4, 1, 3).to(dtype), torch.randn(2, 4, 9, 9).to(dtype), cpu=cpu)
    check(nn.Linear(20, 1).to(dtype), torch.randn(3, 20).to(dtype), cpu=cpu)


class Products(nn.Module):
    """Of operands that change with each call."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        """Of [n, k] and [k, m]."""
        row = a[:1]
        return [a @ b, row @ b, a @ b[:, :1], torch.addmm(row @ b, a, b, alpha=0.5), b.t() @ a.t()]


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize(("rows", "terms", "columns"), [(3, 17, 5), (1, 64, 64), (40, 33, 70)])
def test_products(rows: int, terms: int, columns: int, cpu: str) -> None:
    check(Products(), torch.randn(rows, terms), torch.randn(terms, columns), cpu=cpu)


class Attention(nn.Module):
    """Of few queries."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Of [batch, heads, length, width]."""
        return F.scaled_dot_product_attention(q, k, v)


@pytest.mark.parametrize("cpu", ["", "haswell"])  # without vectors it stays a call
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("length", [1, 9, 40])
def test_attention(length: int, dtype: torch.dtype, cpu: str) -> None:
    q, k, v = (torch.randn(2, 3, n, 16).to(dtype) for n in (length, 21, 21))
    check(Attention(), q, k, v, cpu=cpu)


class Batches(nn.Module):
    """Products of batches of matrices."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Of [batch, n, k] and [batch, m, k]."""
        return a @ b.transpose(-1, -2)


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("length", [1, 9])
def test_batches(length: int, cpu: str) -> None:
    check(Batches(), torch.randn(6, length, 16), torch.randn(6, 21, 16), cpu=cpu)


def test_the_option_is_part_of_what_is_compiled() -> None:
    module, x = nn.Conv2d(8, 8, 7, groups=8).eval(), torch.randn(1, 8, 9, 9)
    with torch.no_grad():
        kept = Sessions(module)
        kept(x)
        assert [step for step in kept.graphs[0].executable.steps if step.startswith("call")]
    check(module, x)
