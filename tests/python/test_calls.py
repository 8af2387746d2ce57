"""Calls of a package in Python: arrays of the usual sizes and strides, others, and both in turns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.export import Dim

import mlcc
import mlcc.runtime

pytestmark = pytest.mark.usefixtures("nothing_kept")


class Turned(nn.Module):
    """Results of which one is no row-major array."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + y, (x * 2).t()


@pytest.fixture
def package(tmp_path: Path) -> Path:
    mlcc.export(Turned().eval(), (torch.randn(3, 4), torch.randn(3, 4)), tmp_path / "m.mlcc")
    return tmp_path / "m.mlcc"


def layouts() -> list[torch.Tensor]:
    """The same numbers: as exported, turned, every second one, and as exported again."""
    x = torch.randn(3, 4)
    gaps = torch.empty(3, 8)[:, ::2]
    gaps.copy_(x)
    return [x, x.t().contiguous().t(), gaps, x.clone()]


def test_tensors_of_all_layouts_in_turns(package: Path) -> None:
    model = mlcc.load(package)
    for x in layouts():
        for y in layouts():
            both, turned = model(x, y)
            assert torch.equal(both, x + y) and torch.equal(turned, 2 * x.t())
            assert turned.stride() == (1, 4)


def test_arrays_of_all_layouts_in_turns(package: Path) -> None:
    model = mlcc.runtime.load(package)
    for x in layouts():
        for y in layouts():
            both, turned = model(x.numpy(), y.numpy())
            assert numpy.array_equal(both, x.numpy() + y.numpy())
            assert numpy.array_equal(turned, 2 * x.numpy().T)


@pytest.mark.parametrize(
    "dynamic", [{0: Dim("batch", min=1, max=8)}, {2: Dim("height", min=4, max=60)}]
)
def test_sizes_vary_of_what_is_no_row_major_array(dynamic: dict[int, Dim], tmp_path: Path) -> None:
    def last(x: torch.Tensor) -> torch.Tensor:
        return x.to(memory_format=torch.channels_last)

    conv = nn.Conv2d(4, 6, 3).eval()
    args = (last(torch.randn(2, 4, 8, 9)),)
    mlcc.export(conv, args, tmp_path / "m.mlcc", dynamic_shapes=(dynamic,))
    tensors, arrays = mlcc.load(tmp_path / "m.mlcc"), mlcc.runtime.load(tmp_path / "m.mlcc")
    for size in (4, 1, 7):
        sizes = [size + 3 * dim if dim in dynamic else n for dim, n in enumerate((2, 4, 8, 9))]
        x = torch.randn(sizes)
        found = tensors(last(x))
        with torch.no_grad():
            assert torch.allclose(found, conv(x), rtol=1e-4, atol=1e-5)
        assert torch.equal(tensors(x), found)
        assert numpy.array_equal(arrays(x.numpy()), found.numpy())
        assert numpy.array_equal(arrays(last(x).numpy()), found.numpy())


def test_a_call_that_is_refused_leaves_no_trace(package: Path) -> None:
    model = mlcc.load(package)
    x = torch.randn(3, 4)
    wrong: list[tuple[Any, ...]] = [(x, torch.randn(4, 4)), (x, x.double()), (x,), (x, x, x)]
    for args in wrong:
        with pytest.raises((TypeError, mlcc.runtime.PackageError)):
            model(*args)
        assert torch.equal(model(x, x)[0], 2 * x)


def test_views_that_are_negative_when_read(package: Path) -> None:
    model = mlcc.load(package)
    x = torch.randn(3, 4)
    negative = torch.complex(x, x).conj().imag
    assert negative.is_neg()
    assert torch.equal(model(negative, x)[0], negative + x)


def test_sizes_that_vary_in_turns(tmp_path: Path) -> None:
    batch = Dim("batch", min=1, max=9)
    args = (torch.randn(3, 4), torch.randn(3, 4))
    mlcc.export(Turned().eval(), args, tmp_path / "m.mlcc", dynamic_shapes=({0: batch}, {0: batch}))
    model = mlcc.load(tmp_path / "m.mlcc")
    for rows in (3, 1, 9, 3):
        x, y = torch.randn(rows, 4), torch.randn(rows, 4)
        both, turned = model(x, y)
        assert torch.equal(both, x + y) and torch.equal(turned, 2 * x.t())
