"""Overlapping frames and windows (`mlcc.rewrite.frames`) beside torch's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

import mlcc
from mlcc.rewrite import frames
from tests.python import accuracy


@pytest.mark.parametrize(("size", "step"), [(8, 2), (8, 8), (7, 3), (2, 5), (5, 1)])
@pytest.mark.parametrize("dim", [0, 1])
def test_overlapping_frames_are_added(size: int, step: int, dim: int) -> None:
    x = torch.randn(20, 23, dtype=torch.float64)
    grad = torch.randn_like(x.unfold(dim, size, step))
    expected = torch.ops.aten.unfold_backward(grad, x.shape, dim, size, step)
    found = frames.unfold_backward(grad, x.shape, dim, size, step)
    torch.testing.assert_close(found, expected)


def test_many_frames_over_one_place_are_left_to_others() -> None:
    grad = torch.randn(10, 200)
    assert frames.unfold_backward(grad, [209], 0, 200, 1) is NotImplemented


@pytest.mark.parametrize("name", ["hann_window", "hamming_window", "blackman_window"])
@pytest.mark.parametrize("periodic", [False, True])
def test_windows(name: str, periodic: bool) -> None:
    function = frames.table()[getattr(torch.ops.aten, name).periodic]
    for dtype in (torch.float32, torch.float64):
        expected = getattr(torch, name)(33, periodic, dtype=dtype)
        torch.testing.assert_close(function(33, periodic, dtype=dtype), expected)
    assert function(1, periodic) is NotImplemented


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding"),
    [((4, 4), (4, 4), (0, 0)), ((3, 5), (2, 3), (1, 2)), ((2, 1), (3, 1), (0, 0))],
)
def test_windows_of_images_are_added(
    batch: tuple[int, ...],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
) -> None:
    how: dict[str, Any] = {"kernel_size": kernel, "stride": stride, "padding": padding}
    columns = functional.unfold(torch.randn(*batch, 3, 12, 16, dtype=torch.float64), **how)
    found = frames.col2im(columns, [12, 16], kernel, [1, 1], padding, stride)
    torch.testing.assert_close(found, functional.fold(columns, (12, 16), **how))


class Folded(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        tokens = functional.unfold(x, 4, stride=4) * 2
        overlapping = functional.unfold(x, 4, stride=2, padding=1)
        folded = functional.fold(overlapping, x.shape[2:], 4, stride=2, padding=1)
        return functional.fold(tokens, x.shape[2:], 4, stride=4), folded


def test_packages_fold(tmp_path: Path) -> None:
    model, x = Folded().eval(), torch.randn(2, 3, 16, 24)
    mlcc.export(model, (x,), tmp_path / "m.mlcc")
    found = mlcc.load(tmp_path / "m.mlcc")(x)
    accuracy.check_all(list(found), list(model(x)), list(model(x.double())))
