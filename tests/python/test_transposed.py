"""Operands that lie across the others: transposed in registers, block by block; what is left over is gathered."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import mlcc

DTYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.int64,
    torch.int16,
    torch.uint8,
    torch.bool,
)


def beside_a_straight_one(x: Tensor, y: Tensor) -> Tensor:
    return torch.where(x.mT == y, x.mT, y)


def two_of_them(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x.mT.contiguous(), torch.maximum(x.mT, y.mT).contiguous()


def channels_last(x: Tensor, y: Tensor) -> Tensor:
    image = (x | y) if x.dtype == torch.bool else (x + y)
    return image[None].contiguous(memory_format=torch.channels_last)


def after_a_slice(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat((x[:, 1:, 3:].mT, y[:, 1:, 3:].mT), -1)


FUNCTIONS: tuple[Callable[..., object], ...] = (
    beside_a_straight_one,
    two_of_them,
    channels_last,
    after_a_slice,
)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dynamic", [False, None])
def test_as_eager(
    function: Callable[..., object], dtype: torch.dtype, dynamic: bool | None
) -> None:
    compiled = mlcc.jit(function, dynamic=dynamic)
    sides = (48, 37, 131) if dynamic is None else (37,)
    for side in sides:
        x, y = torch.randint(0, 3, (2, 3, side, side)).to(dtype)
        with mlcc.config.patch(strict=True, verify="first"):
            found = compiled(x, y)
        torch.testing.assert_close(found, function(x, y), rtol=0, atol=0)


def test_uneven_sides_and_overlapping_rows() -> None:
    compiled = mlcc.jit(lambda x: x.mT * 2)
    for rows, columns in ((16, 400), (400, 16), (17, 15), (1, 64), (64, 1), (250, 33)):
        x = torch.randn(rows, columns)
        assert torch.equal(compiled(x), x.mT * 2)
    x = torch.randn(200).unfold(0, 100, 1)  # rows one element apart
    y = torch.randn(100, 101)
    add = mlcc.jit(lambda x, y: x.mT + y)
    assert torch.equal(add(x, y), x.mT + y)
