"""Loops between the ends of parts, pads and windows at symbolic sizes: which end comes first only a call tells."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import mlcc


def pooled(x: Tensor) -> Tensor:
    return functional.max_pool2d(x, 3, 2, 1)


def pooled_widely(x: Tensor) -> Tensor:
    return functional.avg_pool2d(functional.pad(x, (4, 4, 2, 2)), 5, 1)


def padded(x: Tensor) -> Tensor:
    return functional.pad(x, (3, 5, 1, 2), value=2.0) * 2


def padded_twice(x: Tensor) -> Tensor:
    return functional.pad(functional.pad(x, (2, 0)), (1, 7), value=1.0)


def turned_halves(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1) if x.shape[-1] > 1 else (x, x[..., :0])
    return torch.cat((-second, first), -1) * x


def parts_of_another_length(x: Tensor) -> Tensor:
    return torch.cat((x, x[..., :1] + 1, x * 3, x[..., -1:]), -1).exp()


def window_sums(x: Tensor) -> Tensor:
    return functional.unfold(x, (3, 5), padding=(1, 2)).sum(1)


FUNCTIONS: tuple[Callable[[Tensor], Tensor], ...] = (
    pooled,
    pooled_widely,
    padded,
    padded_twice,
    turned_halves,
    parts_of_another_length,
    window_sums,
)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_order_of_the_ends(function: Callable[[Tensor], Tensor]) -> None:
    compiled = mlcc.jit(function, dynamic=True)
    for width in (20, 2, 3, 4, 5, 9, 15, 16, 17, 18, 31, 32, 33, 34, 47, 70):
        for height in (6, 2, 3, 19):
            x = torch.randn(1, 2, height, width)
            with mlcc.config.patch(strict=True, verify="always"):
                found = compiled(x)
            torch.testing.assert_close(found, function(x))
