"""Running values along rows and columns, places of extremes: every length, special numbers, and eager's accuracy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import mlcc
from mlcc import config

SIZES = [1, 9, 33, 1030]

EXACT: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "cummax": torch.cummax,
    "cummin": torch.cummin,
    "argmax": torch.argmax,
    "argmin": torch.argmin,
    "max": torch.max,
    "min": torch.min,
}


def special(rows: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    """Many equal numbers; rows of the lowest and highest value, and rows with NaN, where there are such."""
    x = torch.randint(-3, 4, (rows, size)).to(dtype)
    if dtype.is_floating_point:
        x[0], x[1] = -math.inf, math.inf
        x[2, size // 2 :: 3] = math.nan
        x[3, size - 1] = math.nan
        x[4, : size // 2] = -math.inf
    else:
        x[0], x[1] = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    return x


def flat(results: Any) -> tuple[torch.Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("gpu", ["", "emulate"])
def test_places(
    name: str, dim: int, dynamic: bool, gpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last of equal extremes so far, or the first of a row; the first NaN of a row, the last one so far."""
    monkeypatch.setenv("MLCC_STRICT", "1")
    torch.manual_seed(0)
    function = EXACT[name]
    torch._dynamo.reset()
    with config.patch(gpu=gpu):
        run = torch.compile(lambda x: function(x, dim), backend="mlcc", dynamic=dynamic)
        sizes = SIZES if not gpu and dynamic else SIZES[1:3]
        for size in sizes:
            for dtype in (torch.float32, torch.bfloat16, torch.int64):
                x = special(6, size, dtype)
                x = x if dim == 1 else x.t().contiguous()
                for got, want in zip(flat(run(x)), flat(function(x, dim)), strict=True):
                    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


SUMS = {"cumsum": torch.cumsum, "cumprod": torch.cumprod, "logcumsumexp": torch.logcumsumexp}


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("dim", [0, 1])
def test_running_sums(name: str, dtype: torch.dtype, dim: int) -> None:
    """At most twice eager's error and one epsilon, against f64 (of f64: against eager)."""
    torch.manual_seed(0)
    function = SUMS[name]
    run = mlcc.jit(eval(f"lambda x: torch.{name}(x, {dim})", {"torch": torch}))
    for size in SIZES:
        x = torch.randn(5, size)
        x = (x * 0.01 + 1 if name == "cumprod" else x).to(dtype)
        x = x if dim == 1 else x.t().contiguous()
        exact, got, eager = function(x.double(), dim), run(x).double(), function(x, dim).double()
        eps = torch.finfo(dtype).eps * (exact.abs() + (1 if name == "logcumsumexp" else 0))
        slack = 8 * size if dtype == torch.float64 else 1
        bound = 2 * (eager - exact).abs().max() + slack * eps.max()
        assert (got - exact).abs().max() <= bound, (size, (got - exact).abs().max(), bound)


def test_integers_wrap_and_are_exact() -> None:
    torch.manual_seed(0)
    run = mlcc.jit(lambda x: (torch.cumsum(x, -1), torch.cumprod(x, -1)))
    for size in SIZES:
        for dtype in (torch.int64, torch.int32, torch.uint8, torch.bool):
            x = torch.randint(0, 2 if dtype == torch.bool else 100, (3, size)).to(dtype)
            for got, want in zip(run(x), (x.cumsum(-1), x.cumprod(-1)), strict=True):
                assert torch.equal(got, want)


def test_what_is_not_finite_stays_behind() -> None:
    """NaN and infinities reach the elements behind them, none before; zeros keep eager's sign."""
    run = mlcc.jit(lambda x: (torch.cumsum(x, -1), torch.cumprod(x, -1), torch.logcumsumexp(x, -1)))
    for place in range(0, 40, 9):
        x = torch.randn(2, 40)
        x[0, place], x[1, place] = math.nan, math.inf
        want = (x.cumsum(-1), x.cumprod(-1), x.logcumsumexp(-1))
        for got, expected in zip(run(x), want, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5, equal_nan=True)
    zeros = torch.full((2, 40), -0.0)
    assert torch.equal(run(zeros)[0].signbit(), zeros.cumsum(-1).signbit())


@pytest.mark.parametrize("dynamic", [False, True])
def test_rows_are_scanned_by_lanes(dynamic: bool) -> None:
    """Producers are computed within; the same bits for any number of threads."""
    x = torch.randn(300, 257)
    run = mlcc.jit(lambda x: torch.cumsum(torch.relu(x) * 2 + 1, -1), dynamic=dynamic)
    one = run(x)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert torch.equal(run(x), one)
    finally:
        torch.set_num_threads(threads)
    torch.testing.assert_close(one, torch.cumsum(torch.relu(x) * 2 + 1, -1))


@pytest.mark.parametrize("name", [*EXACT, "amax", "amin", "all", "any", "sum", "prod", "logsumexp"])
@pytest.mark.parametrize("dim", [0, -1])
def test_a_dimension_of_a_tensor_without_dimensions(name: str, dim: int) -> None:
    function = getattr(torch, name)
    torch._dynamo.reset()
    x = torch.tensor(3.0)
    with config.patch(strict=True):
        found = torch.compile(lambda x: function(x, dim), backend="mlcc")(x)
    torch.testing.assert_close(flat(found), flat(function(x, dim)))


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str
)
def test_products_that_overflow_behind_a_zero(dtype: torch.dtype) -> None:
    """The running product is 0 or small, that of the elements behind alone is not."""
    x = torch.full((2, 70), torch.finfo(dtype).max / 4, dtype=dtype)
    x[0, 0] = 0
    x[1, 0:40:2] = torch.finfo(dtype).tiny
    with config.patch(strict=True):
        found = mlcc.jit(lambda x: x.cumprod(1))(x)
    torch.testing.assert_close(found, x.cumprod(1))
