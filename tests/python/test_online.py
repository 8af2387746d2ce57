"""Sums whose terms depend on a value of the whole row, taken in the pass that finds it: results are eager's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import mlcc

Program = Callable[[Tensor], object]


def _by_hand(x: Tensor, dim: int) -> Tensor:
    shifted = 2 * x + 1
    largest = shifted.amax(dim, keepdim=True)
    return (shifted - largest).exp().sum(dim).log() + largest.squeeze(dim)


def _weighted(x: Tensor, dim: int) -> Tensor:
    weights = torch.exp(x - x.amax(dim, keepdim=True))
    return (weights / weights.sum(dim, keepdim=True) * x.sin()).sum(dim)


# A row is a column of the matrix, a row, or all of it.
PROGRAMS: dict[str, Program] = {
    "softmax of columns": lambda x: torch.softmax(x, 0),
    "log-softmax of columns": lambda x: torch.log_softmax(x, 0),
    "logsumexp of columns": lambda x: x.logsumexp(0),
    "logsumexp of all": lambda x: x.flatten().logsumexp(0),
    "softmax of all": lambda x: torch.softmax(x.flatten(), 0),
    "variance of columns": lambda x: x.var(0),
    "variance of all": lambda x: (x + 100).var(),
    "deviation and mean of planes": lambda x: torch.std_mean(x.unflatten(1, (-1, 2)), (0, 2)),
    "layer norm of all": lambda x: torch.nn.functional.layer_norm(x, x.shape),
    "by hand, columns": lambda x: _by_hand(x, 0),
    "by hand, all": lambda x: _by_hand(x.flatten(), 0),
    "weighted, columns": lambda x: _weighted(x, 0),
    "weighted, all": lambda x: _weighted(x.flatten(), 0),
    "two variances": lambda x: (x.var(0), (x * x).var(0)),
    "what has no repair": lambda x: ((x - x.mean(0)).abs() ** 3).sum(0),
    "the smallest one": lambda x: (x.amin(0) - x).exp().sum(0),
    "a shift by another maximum": lambda x: (x - x.sin().amax(0)).exp().sum(0),
}


@pytest.mark.parametrize("dynamic", [None, False])
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_those_of_eager(name: str, dynamic: bool | None) -> None:
    function = PROGRAMS[name]
    compiled = mlcc.jit(function, dynamic=dynamic)
    for rows, columns in [(8203, 130), (300, 2048), (20_000, 18)]:
        x = torch.randn(rows, columns) * 3
        wanted = function(x.double())
        torch.testing.assert_close(compiled(x), wanted, rtol=2e-5, atol=2e-5, check_dtype=False)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtypes(dtype: torch.dtype) -> None:
    x = torch.randn(9000, 132).to(dtype)
    for name in ("softmax of columns", "logsumexp of all", "variance of columns", "weighted, all"):
        function = PROGRAMS[name]
        torch.testing.assert_close(mlcc.jit(function)(x), function(x), rtol=0.02, atol=0.01)


SPECIAL: dict[str, Callable[[Tensor], object]] = {
    "the first rows are masked": lambda x: x[:4000].fill_(-torch.inf),
    "the last rows are masked": lambda x: x[4000:].fill_(-torch.inf),
    "all rows but one are masked": lambda x: x[1:].fill_(-torch.inf),
    "some columns are masked": lambda x: x[:, ::3].fill_(-torch.inf),
    "infinity": lambda x: x[5000, :70].fill_(torch.inf),
    "infinities of both signs": lambda x: x[:3000].fill_(-torch.inf)[0, 4:9].fill_(torch.inf),
    "not a number": lambda x: x[8191, :50].fill_(torch.nan),
    "growing": lambda x: x.add_(torch.arange(len(x))[:, None] * 0.5),
    "shrinking": lambda x: x.sub_(torch.arange(len(x))[:, None] * 0.5),
    "all the same": lambda x: x.fill_(-1e30),
}


@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize(
    "name",
    [
        "softmax of columns",
        "logsumexp of columns",
        "logsumexp of all",
        "by hand, columns",
        "by hand, all",
    ],
)
def test_special_elements(name: str, special: str) -> None:
    x = torch.randn(8200, 132)
    SPECIAL[special](x)
    function = PROGRAMS[name]
    torch.testing.assert_close(
        mlcc.jit(function)(x), function(x), rtol=2e-5, atol=2e-5, equal_nan=True
    )


def _softmax_weighs(x: Tensor, v: Tensor, dim: int) -> Tensor:
    return (torch.softmax(x, dim) * v).sum(dim)


@pytest.mark.parametrize("dim", [0, 1])
def test_weights_of_masked_rows(dim: int) -> None:
    """What a softmax weighs: rows of nothing but -inf are NaN, and so is what weighs infinities by 0."""
    x, v = torch.randn(20_000, 72), torch.randn(20_000, 72)
    x[:64, :5], x[:, 7], v[3, 3], v[2, 4], v[19_999, 8] = (
        -torch.inf,
        -torch.inf,
        torch.inf,
        torch.nan,
        torch.inf,
    )
    x, v = (
        (x, v) if dim == 0 else (x.t().repeat(1, 20).contiguous(), v.t().repeat(1, 20).contiguous())
    )
    wanted = _softmax_weighs(x.double(), v.double(), dim).float()
    found = mlcc.jit(lambda x, v: _softmax_weighs(x, v, dim))(x, v)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_divisors_that_are_0_for_a_part_of_the_row() -> None:
    def function(x: Tensor, mask: Tensor, v: Tensor) -> Tensor:
        weights = torch.exp(x - x.amax(0)) * mask
        return (weights / weights.sum(0) * v).sum(0)

    x, v = torch.randn(20_000, 64), torch.randn(20_000, 64)
    mask = torch.ones(20_000, 1)
    mask[:300] = 0
    torch.testing.assert_close(mlcc.jit(function)(x, mask, v), function(x, mask, v))


def test_chains_of_squares_of_exponentials() -> None:
    def function(x: Tensor) -> list[Tensor]:
        power, sums = torch.exp(x - x.amax(0)), []
        for _ in range(12):
            sums.append(power.sum(0))
            power = power * power
        return sums

    for x in (torch.randn(2_000_000), torch.randn(20_000, 64)):
        torch.testing.assert_close(mlcc.jit(function)(x), function(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "shape", [(300_000, 4, 3), (400_000, 2, 2), (5000, 3, 1000), (40, 64, 600)]
)
def test_short_pieces_of_rows(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape) + 1000

    def function(x: Tensor) -> tuple[Tensor, ...]:
        return *torch.var_mean(x, (0, 2)), (x - 1000).logsumexp((0, 2))

    wanted = tuple(t.float() for t in function(x.double()))
    torch.testing.assert_close(mlcc.jit(function)(x), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mean", [0.0, 1.0, 1e3, -1e4, 1e6])
def test_variances_far_from_zero(mean: float) -> None:
    x = torch.randn(8200, 132) + mean
    x[:, 5] = mean
    wanted = x.double().var(0)
    columns, whole = mlcc.jit(lambda x: (x.var(0), x.var()))(x)
    assert (columns - wanted).abs().max() <= 1e-6
    assert columns[5] == 0
    torch.testing.assert_close(whole, x.double().var().float(), rtol=1e-6, atol=1e-6)


def test_variances_of_infinities_and_of_what_overflows() -> None:
    x = torch.randn(60_001, 40)
    x[4000, 0], x[0, 1], x[8199, 2], x[7, 3] = torch.inf, -torch.inf, torch.nan, 3e38
    x[:, 4] *= 1e38
    x[30_000, 5] = -3e38
    torch.testing.assert_close(mlcc.jit(lambda x: x.var(0))(x), x.var(0), equal_nan=True)


@pytest.mark.parametrize("columns", [3, 6, 7, 9, 20])
@pytest.mark.parametrize("rows", [5, 64])
@pytest.mark.parametrize("dynamic", [None, False])
def test_parts_of_a_result_in_whose_memory_exponentials_wait(
    columns: int, rows: int, dynamic: bool | None
) -> None:
    def parts(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        v = x.softmax(-1)
        return v, torch.cat([v[:, :2], v[:, 2:]], 1), torch.cat([x[:, :1], v[:, 1:]], 1).sum(1)

    x = torch.randn(rows, columns)
    torch._dynamo.reset()
    compiled = torch.compile(parts, backend="mlcc", dynamic=dynamic)
    for found, expected in zip(compiled(x), parts(x), strict=True):
        torch.testing.assert_close(found, expected)
