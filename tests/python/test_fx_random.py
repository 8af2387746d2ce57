"""Draws of random numbers in kernels: moments, reproducibility, and that both directions see the same draw."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from mlcc import config
from mlcc.importer import fx_graph

COUNT = 1 << 18
FLOATS = [torch.float32, torch.bfloat16, torch.float16]

# Name -> (function of a tensor that says shape and dtype, mean, variance).
DRAWS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], float, float]] = {
    "rand": (lambda x: torch.rand(x.shape, dtype=x.dtype), 0.5, 1 / 12),
    "rand_like": (torch.rand_like, 0.5, 1 / 12),
    "uniform": (lambda x: torch.empty_like(x).uniform_(-2, 2), 0, 16 / 12),
    "randn": (lambda x: torch.randn(x.shape, dtype=x.dtype), 0, 1),
    "randn_like": (torch.randn_like, 0, 1),
    "normal": (lambda x: torch.empty_like(x).normal_(2, 3), 2, 9),
    "exponential": (lambda x: torch.empty_like(x).exponential_(2), 0.5, 0.25),
    "bernoulli": (lambda x: torch.empty_like(x).bernoulli_(0.3), 0.3, 0.21),
    "dropout": (lambda x: F.dropout(torch.ones_like(x), 0.25), 1, 1 / 3),
    "randint": (lambda x: torch.randint_like(x, -3, 7), 1.5, 99 / 12),
    "wide range": (lambda x: torch.randint(0, 1 << 40, x.shape) / 2**40, 0.5, 1 / 12),
}


def compiled(function: Any, **options: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(function, backend="mlcc", **options)


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLCC_STRICT", "1")
    fx_graph.forget_logged()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", DRAWS)
def test_moments_and_seeds(name: str, dtype: torch.dtype, caplog: pytest.LogCaptureFixture) -> None:
    """Mean and variance within 5 standard errors and eager's own rounding; one seed, one result."""
    function, mean, variance = DRAWS[name]
    caplog.set_level("INFO", "mlcc.fallback")
    run, x = compiled(function), torch.empty(COUNT, dtype=dtype)
    torch.manual_seed(5)
    first, second = run(x), run(x)
    torch.manual_seed(5)
    torch.testing.assert_close(run(x), first, rtol=0, atol=0)
    assert not torch.equal(first, second)
    calls = [record.getMessage() for record in caplog.records if record.name == "mlcc.fallback"]
    assert [call for call in calls if "aten.empty_like" not in call] == []  # nobody reads that
    # of uniform 16-bit numbers eager gives as many bits as fit, cut off
    rounding = (
        0 if dtype is torch.float32 else torch.finfo(dtype).eps * max(1.0, math.sqrt(variance))
    )
    error = 5 * math.sqrt(variance / COUNT)
    assert abs(first.double().mean().item() - mean) < error + rounding
    fourth = (first.double() - mean).pow(4).mean().item()
    spread = 5 * math.sqrt(fourth / COUNT)
    assert abs((first.double() - mean).pow(2).mean().item() - variance) < spread + 4 * rounding


def test_uniform_numbers_fill_their_range_evenly() -> None:
    numbers = compiled(lambda: torch.rand(COUNT))()
    assert numbers.min() >= 0
    assert numbers.max() < 1
    counts = torch.histc(numbers, 256, 0, 1)
    chi_square = ((counts - COUNT / 256) ** 2 / (COUNT / 256)).sum().item()
    assert abs(chi_square - 255) < 5 * math.sqrt(2 * 255)


def test_normal_numbers_have_tails() -> None:
    numbers = compiled(lambda: torch.randn(COUNT))().double()
    for bound in (1.0, 2.0, 3.0):
        expected = math.erfc(bound / math.sqrt(2))
        found = (numbers.abs() > bound).double().mean().item()
        assert abs(found - expected) < 5 * math.sqrt(expected / COUNT)
    assert abs((numbers > 0).double().mean().item() - 0.5) < 5 * 0.5 / math.sqrt(COUNT)


def test_draws_of_one_graph_are_independent() -> None:
    a, b = compiled(lambda x: (torch.rand_like(x), torch.rand_like(x)))(torch.empty(COUNT))
    assert abs(torch.corrcoef(torch.stack([a, b]))[0, 1].item()) < 5 / math.sqrt(COUNT)


def test_a_kernel_for_a_gpu_draws_the_same() -> None:
    def function(x: torch.Tensor) -> Any:
        return F.dropout(x, 0.5) + x, torch.randint(0, 9, x.shape), torch.rand_like(x)

    results = []
    for gpu in ("", "emulate"):
        with config.patch(gpu=gpu):
            run = compiled(function)
            torch.manual_seed(1)
            results.append(run(torch.ones(6, 50)))
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_gradient_of_dropout_goes_where_the_result_went(dynamic: bool) -> None:
    x = torch.randn(40, 50, requires_grad=True)
    y = compiled(lambda x: F.dropout(x.tanh(), 0.4).sin(), dynamic=dynamic)(x)
    y.sum().backward()
    assert x.grad is not None
    assert 0.5 < (y != 0).double().mean() < 0.7
    assert torch.equal(x.grad != 0, y != 0)


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_dropout_of_nothing_and_of_all(probability: float) -> None:
    x = torch.randn(7, requires_grad=True)
    y = compiled(lambda x: F.dropout(x * 2, probability))(x)
    torch.testing.assert_close(y, F.dropout(x * 2, probability))
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient, torch.full([7], 2.0 * (1 - probability)))


def test_dropout_of_attention_refuses_what_eager_does() -> None:
    q = torch.randn(1, 2, 5, 8)
    run = compiled(lambda q: F.scaled_dot_product_attention(q, q, q, dropout_p=2.0))
    with pytest.raises(RuntimeError, match="to be in"):
        run(q)


def test_checkpointing_draws_again_what_was_drawn() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda x: F.dropout(x.sin(), 0.5).cos(), x, use_reentrant=False)

    x = torch.linspace(-1, 1, 500).requires_grad_()
    y = compiled(function)(x)
    y.sum().backward()
    kept = y.detach() != 1  # cos(0)
    want = torch.where(kept, -2 * torch.sin(2 * x.sin()) * x.cos(), 0.0)
    torch.testing.assert_close(x.grad, want.detach())


def test_fallback_random_is_the_stream_of_eager() -> None:
    def function(x: torch.Tensor) -> Any:
        return F.dropout(x, 0.5) * 2, torch.randn_like(x), torch.rand(3)

    x = torch.randn(100)
    torch.manual_seed(4)
    want = function(x), torch.rand(1)
    torch.manual_seed(4)
    with config.patch(fallback_random=True):
        got = compiled(function)(x), torch.rand(1)
    torch.testing.assert_close(got, want, rtol=0, atol=0)


def test_a_generator_of_its_own_is_eager_s() -> None:
    def function(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return torch.rand(x.shape, generator=generator) * x

    x = torch.ones(50)
    want = function(x, torch.Generator().manual_seed(2))
    got = compiled(function)(x, torch.Generator().manual_seed(2))
    torch.testing.assert_close(got, want)
