"""Expensive elements of rows that several passes need: kept in a buffer or a later output, or computed again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import mlcc


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def softmax_of_columns(x: Tensor) -> Tensor:
    return torch.softmax(x, 0)


def numerator_and_result(x: Tensor) -> tuple[Tensor, Tensor]:
    numerator = torch.exp(x)
    return numerator / numerator.sum(-1, keepdim=True), numerator


def two_results(x: Tensor) -> tuple[Tensor, Tensor]:
    numerator = torch.exp(x)
    total = numerator.sum(-1, keepdim=True)
    return numerator / total, numerator - total


def result_and_extreme(x: Tensor) -> tuple[Tensor, Tensor]:
    numerator = torch.exp(x)
    y = numerator / numerator.sum(-1, keepdim=True)
    return y, (y * numerator).amax(-1)


def of_another_dtype(x: Tensor) -> Tensor:
    numerator = torch.exp(x)
    return (numerator / numerator.sum(-1, keepdim=True)).double()


def turned(x: Tensor) -> Tensor:
    numerator = torch.tanh(x)
    return (numerator / (1 + numerator.abs().amax(-1, keepdim=True))).mT.contiguous()


def back_into_the_input(x: Tensor) -> Tensor:
    x.copy_(torch.softmax(x * 2, 0))
    return x


def three_passes(x: Tensor) -> Tensor:
    y = torch.erf(x)
    z = torch.sigmoid(y - y.mean(0))
    return (z - y) / z.sum(0)


FUNCTIONS: tuple[Callable[[Tensor], object], ...] = (
    softmax,
    softmax_of_columns,
    numerator_and_result,
    two_results,
    result_and_extreme,
    of_another_dtype,
    turned,
    back_into_the_input,
    three_passes,
)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("dynamic", [False, None])
def test_as_eager(function: Callable[[Tensor], object], dynamic: bool | None) -> None:
    compiled = mlcc.jit(function, dynamic=dynamic)
    shapes = ((70, 131), (33, 300), (2, 5)) if dynamic is None else ((70, 131), (600, 40))
    for shape in shapes:
        x = torch.randn(shape)
        found_in, expected_in = x.clone(), x.clone()
        with mlcc.config.patch(strict=True, verify="first"):
            found = compiled(found_in)
        torch.testing.assert_close(found, function(expected_in))
        torch.testing.assert_close(found_in, expected_in)
