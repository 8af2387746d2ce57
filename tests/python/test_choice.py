"""Matrix products for which the cost model is in doubt: code or a call, as told, guessed, measured or kept."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import mlcc
from tests.python.accuracy import check_all, to_double

ROOT = Path(__file__).parents[2]
Log = Callable[..., AbstractContextManager[list[str]]]


@pytest.fixture(autouse=True)
def nothing_left() -> None:
    """No test finds what another one left."""
    mlcc.clear_packs()
    torch.manual_seed(0)


def _linear(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.linear(x.relu(), w, b))


def _check(
    function: Callable[..., torch.Tensor], *args: torch.Tensor, dynamic: bool = False
) -> torch.Tensor:
    with torch.no_grad():
        eager = function(*args)
        found = mlcc.jit(function, dynamic=dynamic)(*args)
        if eager.dtype == torch.float64:  # eager is no more exact
            torch.testing.assert_close(found, eager, rtol=1e-12, atol=1e-11)
        elif eager.is_floating_point():
            check_all(found, eager, function(*to_double(list(args))))
        else:
            assert torch.equal(found, eager)
    assert found.stride() == eager.stride()
    return found


@pytest.mark.parametrize("preference", ["code", "call"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("rows", "dynamic"), [(1, False), (2, False), (7, True), (7, False), (20, True), (70, False)]
)
def test_both_are_right(preference: str, dtype: torch.dtype, rows: int, dynamic: bool) -> None:
    x, w, b = torch.randn(rows, 77), torch.randn(33, 77), torch.randn(33)
    with mlcc.config.patch(prefer=preference):
        _check(_linear, x.to(dtype), w.to(dtype), b.to(dtype), dynamic=dynamic)
        _check(torch.mm, x.to(dtype), w.t().to(dtype), dynamic=dynamic)
        _check(torch.mm, x.to(dtype), w.t().contiguous().to(dtype), dynamic=dynamic)


@pytest.mark.parametrize("preference", ["code", "call"])
@pytest.mark.parametrize("rows", [1, 4, 20, 70])
def test_bytes(preference: str, rows: int) -> None:
    x, w = (torch.randint(-128, 128, size, dtype=torch.int8) for size in ((rows, 76), (33, 76)))
    with mlcc.config.patch(prefer=preference):
        _check(lambda x, w: torch._int_mm(x, w.t()), x, w)
        _check(torch._int_mm, x, w.t().contiguous())


@pytest.mark.parametrize("preference", ["code", "call"])
def test_batches_columns_and_factors(preference: str) -> None:
    x, w, b = torch.randn(3, 5, 40), torch.randn(3, 9, 40), torch.randn(3, 5, 9)
    with mlcc.config.patch(prefer=preference):
        _check(lambda x, w: torch.bmm(x, w.transpose(1, 2)), x, w)
        _check(lambda b, x, w: torch.baddbmm(b, x, w.mT, beta=0.5, alpha=2), b, x, w)
        _check(lambda x, w: x @ w[0, 0], x, w)
        _check(lambda x, w: x[0].t().contiguous().t() @ w[0].t(), x, w)
        _check(torch.mm, torch.randn(100, 60), torch.randn(60, 1))
        _check(torch.mm, torch.randn(3, 0), torch.randn(0, 4))
        _check(
            lambda b, x, w: torch.addmm(b, x, w, beta=0),
            torch.full((4,), torch.nan),
            torch.randn(3, 8),
            w[0, :4, :8].t(),
        )


def test_rows_along_the_sums_are_no_calls(mlcc_log: Log) -> None:
    x, w, b = torch.randn(1, 77), torch.randn(33, 77), torch.randn(33)
    with mlcc_log("fallback") as lines:
        _check(_linear, x, w, b)
    assert not any("ATen call" in line for line in lines), lines


def test_attention_finds_its_products(mlcc_log: Log) -> None:
    """Few queries: products that attention takes are not summed by rows before it looks."""

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.transpose(-1, -2) * 0.2, -1) @ v

    q, k, v = torch.randn(4, 1, 64), torch.randn(4, 50, 64), torch.randn(4, 50, 64)
    for preference in ("", "code", "call"):
        with mlcc.config.patch(prefer=preference):
            _check(attention, q, k, v)


def test_errors_are_eager_ones() -> None:
    for preference in ("code", "call"):
        with mlcc.config.patch(prefer=preference):
            jitted = mlcc.jit(torch.mm, dynamic=False)
            with pytest.raises(
                RuntimeError, match=r"cannot be multiplied|must match|size mismatch"
            ):
                jitted(torch.randn(1, 5), torch.randn(6, 4).t())


def test_another_word_is_refused() -> None:
    expected = pytest.raises(mlcc.Error, match="option prefer: expected code, call or nothing")
    with expected, mlcc.config.patch(prefer="both"):
        pass


# -- verdicts


def _verdicts(lines: list[str], how: str) -> list[str]:
    return [line for line in lines if line.startswith(how) and "graph @alone" in line]


def _small(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.mm(x, w.t())


def _rows() -> tuple[torch.Tensor, torch.Tensor]:
    """One row and a matrix that changes."""
    return torch.randn(1, 77), torch.randn(33, 77)


def test_a_verdict_is_measured_once_and_kept(fresh_cache: Path, mlcc_log: Log) -> None:
    x, w = _rows()
    with mlcc.config.patch(measure=True):
        with mlcc_log("fusion") as lines:
            first = _check(_small, x, w)
        assert len(_verdicts(lines, "measured: ")) == 1, lines
        with mlcc_log("fusion") as lines:
            again = _check(lambda x, w: torch.mm(x, w.t()), x, w)
        assert not _verdicts(lines, "measured"), lines
    assert torch.equal(first, again)
    assert len(list(fresh_cache.rglob("verdict-*"))) == 1
    script = """
import sys, torch, mlcc
torch.set_num_threads(int(sys.argv[1]))
mlcc.jit(lambda x, w: torch.mm(x, w.t()), dynamic=False)(torch.randn(1, 77), torch.randn(33, 77))
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(torch.get_num_threads())],
        env=os.environ | {"PYTHONPATH": str(ROOT), "MLCC_LOGS": "fusion", "MLCC_MEASURE": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert "INFO measured before: " in done.stderr and "INFO measured: " not in done.stderr, (
        done.stderr
    )


@pytest.mark.parametrize("way", ["option", "deterministic", "code", "call"])
def test_nothing_is_measured_where_it_must_not_be(
    way: str, fresh_cache: Path, mlcc_log: Log
) -> None:
    x, w = _rows()
    options = {"measure": way != "option", "prefer": way if way in ("code", "call") else ""}
    torch.use_deterministic_algorithms(way == "deterministic")
    try:
        with mlcc.config.patch(**options), mlcc_log("fusion") as lines:
            _check(_small, x, w)
    finally:
        torch.use_deterministic_algorithms(False)
    assert not _verdicts(lines, "measured"), lines
    assert not list(fresh_cache.rglob("verdict-*"))


def test_one_verdict_for_symbolic_sizes(fresh_cache: Path, mlcc_log: Log) -> None:
    """By what the sizes were when the function was traced; another size runs the same code."""
    with mlcc.config.patch(measure=True), mlcc_log("fusion") as lines:
        jitted = mlcc.jit(_small, dynamic=True)
        for rows in (20, 90, 7):
            x, w = torch.randn(rows, 77), torch.randn(33, 77)
            torch.testing.assert_close(jitted(x, w), _small(x, w))
    assert len(_verdicts(lines, "measured: ")) <= 1, lines


def test_measuring_is_out_of_sight_of_modes(fresh_cache: Path) -> None:
    """Of whatever counts or changes the ops of the program."""
    from torch.utils.flop_counter import FlopCounterMode

    x, w = torch.randn(1, 79), torch.randn(33, 79)

    def products(measure: bool) -> int:
        with mlcc.config.patch(measure=measure), torch.profiler.profile() as profile:
            mlcc.jit(lambda x, w: _small(x, w), dynamic=False)(x, w)
        return sum(event.name == "aten::mm" for event in profile.events())

    seen = products(measure=True)
    assert list(fresh_cache.rglob("verdict-*"))
    assert seen <= products(measure=False) + 1  # the call itself, if it is the faster one
    with mlcc.config.patch(measure=True):
        with FlopCounterMode(display=False):
            torch.testing.assert_close(
                torch.compile(_small, backend="mlcc", dynamic=False)(x, w[1:]), _small(x, w[1:])
            )
        y = x.clone().requires_grad_()
        step = torch.compile(lambda y: _small(y, w).square().sum(), backend="mlcc", dynamic=False)
        step(y).backward()
        z = x.clone().requires_grad_()
        _small(z, w).square().sum().backward()
        torch.testing.assert_close(y.grad, z.grad, rtol=1e-3, atol=1e-3)
    torch._dynamo.reset()


def test_made_up_weights_leave_no_packs(fresh_cache: Path, mlcc_log: Log) -> None:
    linear = torch.nn.Linear(77, 33)
    x = torch.randn(3, 77)
    with mlcc.config.patch(measure=True), mlcc_log("fusion") as lines, torch.no_grad():
        torch.testing.assert_close(mlcc.jit(linear, dynamic=False)(x), linear(x))
    assert _verdicts(lines, "measured: "), lines
    assert mlcc.cache_info()["packs"] <= 1


@pytest.mark.parametrize("preference", ["code", "call"])
@pytest.mark.parametrize(("window", "stride", "groups"), [(3, 1, 32), (3, 2, 32), (1, 2, 1)])
def test_images_that_lie_channels_last(
    preference: str, window: int, stride: int, groups: int, mlcc_log: Log
) -> None:
    conv = torch.nn.Conv2d(32, 64, window, stride, window // 2, groups=groups)
    if groups > 1:
        conv = torch.nn.Conv2d(32, 32, window, stride, window // 2, groups=groups)
    conv = conv.to(memory_format=torch.channels_last)
    x = torch.randn(2, 32, 9, 11).contiguous(memory_format=torch.channels_last)
    with mlcc.config.patch(prefer=preference), mlcc_log("fallback") as lines, torch.no_grad():
        found, eager = mlcc.jit(conv, dynamic=False)(x), conv(x)
    check_all(
        found,
        eager,
        torch.nn.functional.conv2d(
            x.double(), conv.weight.double(), conv.bias.double(), stride, window // 2, groups=groups
        ),
    )
    assert found.stride() == eager.stride()
    assert any("convolution" in line for line in lines) == (preference == "call"), lines
