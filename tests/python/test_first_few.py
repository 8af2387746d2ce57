"""The first elements of long rows: against torch's own topk, with equal elements and NaN."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import mlcc
from mlcc.rewrite.first_few import first_few, is_worth_it

pytestmark = pytest.mark.usefixtures("nothing_kept")

NAN, INF = float("nan"), float("inf")


def expected(rows: torch.Tensor, count: int, descending: bool) -> torch.Tensor:
    """Places by a stable sort, which leaves equal elements in their order."""
    return rows.sort(dim=-1, stable=True, descending=descending).indices[..., :count]


@pytest.mark.parametrize("descending", [True, False])
@pytest.mark.parametrize(
    "row",
    [
        [3.0, 1.0, 2.0, 3.0, -1.0, 0.0, -0.0, 3.0],
        [NAN, 1.0, NAN, INF, -INF, 2.0, INF, -INF],
        [NAN] * 8,
        [-INF] * 8,
        [INF, INF, NAN, NAN, NAN, NAN, NAN, 1.0],
    ],
)
def test_order(row: list[float], descending: bool) -> None:
    rows = torch.tensor([row, row[::-1]])
    for count in range(9):
        values, places = first_few(rows, count, descending)
        assert torch.equal(places, expected(rows, count, descending))
        assert torch.equal(values.nan_to_num(7.5), rows.gather(-1, places).nan_to_num(7.5))


@pytest.mark.parametrize("descending", [True, False])
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64])
def test_integers(dtype: torch.dtype, descending: bool) -> None:
    rows = torch.randint(0, 2 if dtype == torch.bool else 5, (4, 40)).to(dtype)
    if dtype.is_signed:
        rows[0, 3] = torch.iinfo(dtype).min
        rows[1, 5] = torch.iinfo(dtype).max
    values, places = first_few(rows, 7, descending)
    assert torch.equal(places, expected(rows, 7, descending))
    assert values.dtype == dtype


class Best(nn.Module):
    def __init__(self, count: int, dim: int, largest: bool) -> None:
        super().__init__()
        self.arguments: tuple[Any, ...] = (count, dim, largest)

    def forward(self, x: torch.Tensor) -> Any:
        return x.topk(*self.arguments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64])
@pytest.mark.parametrize(("count", "dim", "largest"), [(5, -1, True), (3, 0, False), (1, 1, True)])
def test_packages(dtype: torch.dtype, count: int, dim: int, largest: bool, tmp_path: Path) -> None:
    x = (torch.randperm(5000).reshape(50, 100) - 2000).to(dtype)
    if dtype.is_floating_point:
        x = torch.randn(50, 100, dtype=torch.float64).to(dtype)
    mlcc.export(Best(count, dim, largest).eval(), (x,), tmp_path / "m.mlcc", check=False)
    values, places = mlcc.load(tmp_path / "m.mlcc")(x)
    order = x.sort(dim=dim, stable=True, descending=largest)
    assert torch.equal(values, order.values.narrow(dim, 0, count))
    assert torch.equal(places, order.indices.narrow(dim, 0, count))


def test_rows_that_are_too_long_for_ranks(tmp_path: Path) -> None:
    x = torch.randn(2, 50_000)
    mlcc.export(Best(10, -1, True).eval(), (x,), tmp_path / "m.mlcc")
    values, places = mlcc.load(tmp_path / "m.mlcc")(x)
    assert torch.equal(values, x.topk(10).values) and torch.equal(places, x.topk(10).indices)


def test_when_it_is_worth_it() -> None:
    assert is_worth_it(5, 1000) and is_worth_it(8, 64)
    assert not is_worth_it(16, 64) and not is_worth_it(1000, 100_000)
