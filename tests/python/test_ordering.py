"""Sorting by comparisons (`mlcc.rewrite.ordering`) beside eager's, and inside of packages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import mlcc
from mlcc.rewrite import ordering

NAN, INF = float("nan"), float("inf")

ROWS = {
    "floats": torch.randn(3, 17),
    "ties": torch.randint(0, 4, (5, 23)).float(),
    "special": torch.tensor([[1.0, NAN, -INF, INF, 0.0, NAN, -0.0, 1.0]]),
    "integers": torch.randint(-5, 5, (2, 9, 4)),
    "bytes": torch.randint(0, 255, (40,), dtype=torch.uint8),
    "bf16": torch.randn(4, 12).bfloat16(),
    "one": torch.randn(3, 1),
    "none": torch.randn(3, 0),
}


@pytest.mark.parametrize("name", sorted(ROWS))
@pytest.mark.parametrize("descending", [False, True])
def test_sort_is_stable(name: str, descending: bool) -> None:
    x = ROWS[name]
    for dim in range(-1, x.dim() - 1):
        values, places = torch.sort(x, stable=True, dim=dim, descending=descending)
        found = ordering.sort_stable(x, dim=dim, descending=descending)
        assert torch.equal(found[1], places)
        assert torch.equal(found[0].nan_to_num(7), values.nan_to_num(7))


@pytest.mark.parametrize("name", ["floats", "ties", "special", "integers", "bytes"])
@pytest.mark.parametrize("largest", [False, True])
def test_topk_gives_the_first_of_them_in_order(name: str, largest: bool) -> None:
    x = ROWS[name]
    for k in (0, 1, 4):
        values, _ = torch.topk(x, k, largest=largest)
        found = ordering.topk(x, k, largest=largest)
        assert torch.equal(found[0].nan_to_num(7), values.nan_to_num(7))
        assert torch.equal(x.gather(-1, found[1]).nan_to_num(7), values.nan_to_num(7))


def test_long_rows_are_left_to_others() -> None:
    x = torch.randn(ordering.MOST + 1)
    assert ordering.topk(x, 300) is NotImplemented and ordering.sort(x) is NotImplemented


@pytest.mark.parametrize("rows", [3, 40])
def test_products_by_experts(rows: int) -> None:
    x, weight = torch.randn(rows, 6), torch.randn(4, 6, 5)
    ends = torch.tensor([1, 1, rows // 2, rows - 1], dtype=torch.int32)
    expected = torch.zeros(rows, 5)
    start = 0
    for number, end in enumerate(ends.tolist()):
        expected[start:end] = x[start:end] @ weight[number]
        start = end
    torch.testing.assert_close(ordering.grouped_mm(x, weight, ends), expected)


class Ranks(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        best = x.topk(3, dim=0, largest=False)
        return x.sort(descending=True), torch.argsort(x, dim=0, stable=True), best.values


def test_packages_sort(tmp_path: Path) -> None:
    x = torch.randperm(12 * 30).view(12, 30).float()
    mlcc.export(Ranks().eval(), (x,), tmp_path / "m.mlcc")
    (values, places), order, best = mlcc.load(tmp_path / "m.mlcc")(x)
    assert torch.equal(values, x.sort(descending=True).values)
    assert torch.equal(x.gather(1, places), values)
    assert torch.equal(order, torch.argsort(x, dim=0, stable=True))
    assert torch.equal(best, x.topk(3, dim=0, largest=False).values)
