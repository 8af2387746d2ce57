"""Elements of rows by their rank (`mlcc.rewrite.selection`) beside eager's, and inside of packages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim
from torch.nn import functional

import mlcc
from mlcc.rewrite import ordering, selection

NAN, INF = float("nan"), float("inf")

ROWS = {
    "floats": torch.randn(3, 17),
    "ties": torch.randint(0, 4, (5, 24)).float(),
    "special": torch.tensor(
        [[1.0, NAN, -INF, INF, 0.0, NAN, -0.0, 1.0], [2.0, 1, 3, 5, 4, 0, 9, 8]]
    ),
    "nothing but NaN": torch.full((2, 5), NAN),
    "integers": torch.randint(-5, 5, (4, 9)),
    "one": torch.randn(3, 1),
}

FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "kthvalue": (
        lambda x, **how: torch.kthvalue(x, 1, **how),
        lambda x, **how: selection.kthvalue(x, 1, **how),
    ),
    "median": (torch.median, selection.median),
    "nanmedian": (torch.nanmedian, selection.nanmedian),
    "mode": (torch.mode, selection.mode),
}


def same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.equal(torch.nan_to_num(found, 77), torch.nan_to_num(expected, 77))


@pytest.mark.parametrize("rows", sorted(ROWS))
@pytest.mark.parametrize("name", sorted(FUNCTIONS))
@pytest.mark.parametrize("keepdim", [False, True])
def test_selections(rows: str, name: str, keepdim: bool) -> None:
    eager, ours = FUNCTIONS[name]
    x = ROWS[rows]
    if name == "mode" and rows == "special":
        x = x.nan_to_num(3)  # eager's depends on the order where some are NaN
    for dim in (0, 1):
        values = eager(x, dim=dim, keepdim=keepdim).values
        found, places = ours(x, dim=dim, keepdim=keepdim)
        assert same(found, values)
        places = places if keepdim else places.unsqueeze(dim)
        assert same(x.gather(dim, places), values if keepdim else values.unsqueeze(dim))


def test_every_rank() -> None:
    x = ROWS["ties"]
    for k in range(1, x.shape[1] + 1):
        assert torch.equal(selection.kthvalue(x, k)[0], torch.kthvalue(x, k).values)


def test_long_rows_are_left_to_others() -> None:
    x = torch.randn(ordering.MOST + 1)
    assert selection.kthvalue(x, 3) is NotImplemented and selection.median(x, 0) is NotImplemented
    assert selection.nanmedian(x, 0) is NotImplemented and selection.mode(x) is NotImplemented


class Selections(torch.nn.Module):
    def forward(self, x: torch.Tensor, classes: torch.Tensor) -> Any:
        rows = x.median(dim=1), x.kthvalue(2, dim=1), x.nanmedian(dim=1, keepdim=True)
        return rows, classes.mode(dim=0).values, functional.one_hot(classes, 7)


def test_packages_select(tmp_path: Path) -> None:
    model, sizes = Selections().eval(), {"x": {1: Dim("n", min=2, max=64)}, "classes": None}
    classes = torch.randint(0, 7, (9, 4))
    mlcc.export(model, (torch.randn(5, 12), classes), tmp_path / "m.mlcc", dynamic_shapes=sizes)
    package = mlcc.load(tmp_path / "m.mlcc")
    for n in (2, 13, 64):
        x = torch.randperm(5 * n).view(5, n).float()
        (found, mode, coded), (expected, *others) = package(x, classes), model(x, classes)
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one[0], other.values) and torch.equal(one[1], other.indices)
        assert torch.equal(mode, others[0]) and torch.equal(coded, others[1])


def test_packages_select_of_all(tmp_path: Path) -> None:
    class All(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x.median(), x.nanmedian()

    x = ROWS["special"]
    mlcc.export(All().eval(), (x,), tmp_path / "m.mlcc")
    median, nanmedian = mlcc.load(tmp_path / "m.mlcc")(x)
    assert median.isnan() and torch.equal(nanmedian, x.nanmedian())


def test_compiled_functions_check_classes() -> None:
    coded = mlcc.jit(lambda x: functional.one_hot(x, 3))
    assert torch.equal(coded(torch.tensor([2, 0])), torch.tensor([[0, 0, 1], [1, 0, 0]]))
    with pytest.raises(RuntimeError, match="num_classes"):
        coded(torch.tensor([2, 3]))
