"""Overlapping frames and windows (`mlcc.rewrite.frames`) beside torch's."""

from __future__ import annotations

import pytest
import torch

from mlcc.rewrite import frames


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
