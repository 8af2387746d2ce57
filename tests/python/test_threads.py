"""Public functions from several threads at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import mlcc
from mlcc._load import load_core
from mlcc.capture import backend
from tests.python.threads import at_once

core = load_core()
THREADS = 4


def close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    torch.testing.assert_close(found, expected)
    return True


def test_one_function_is_compiled_by_several_threads() -> None:
    torch._dynamo.reset()

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ w, -1) * 3

    run = torch.compile(function, backend=backend.compile)
    x, w = torch.randn(6, 8), torch.randn(8, 10)
    expected = function(x, w)
    assert at_once(*[lambda: close(run(x, w), expected)] * THREADS) == [True] * THREADS


def test_several_functions_are_compiled_by_several_threads() -> None:
    torch._dynamo.reset()

    def make(n: int) -> Callable[[], bool]:
        def function(x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(x * n).sum(-1) + n

        run = torch.compile(function, backend=backend.compile)
        x = torch.randn(5 + n, 7, requires_grad=True)

        def work() -> bool:
            found, expected = run(x), function(x)
            (gradient,) = torch.autograd.grad(found.sum(), x)
            return close(found, expected) and close(
                gradient, torch.autograd.grad(expected.sum(), x)[0]
            )

        return work

    assert at_once(*[make(n) for n in range(1, THREADS + 1)]) == [True] * THREADS


def test_jit_in_several_threads() -> None:
    """The first calls of one function race, with different structures too."""
    f = mlcc.jit(lambda x: torch.exp(x) + x.shape[0])

    def make(x: torch.Tensor) -> Callable[[], bool]:
        return lambda: all(close(f(x), torch.exp(x) + x.shape[0]) for _ in range(20))

    tensors = [torch.randn(50), torch.randn(50), torch.randn(9, 4), torch.randn(9, 4).double()]
    assert at_once(*map(make, tensors)) == [True] * THREADS


def test_one_executable_with_different_sizes() -> None:
    """Calls overlap: the core lets go of the interpreter, and each call has its own sizes and arena."""
    text = """graph @f(%x: f32[s0, s1]) symbols(s0 in 2.., s1 in 2..) {
      %0: f32[s0, s1] = exp %x
      %1: f32[s0] = sum %0 {dims = [1], keepdim = false}
      %2: f32[s0] = extern "aten.sqrt.default"(%1)
      %3: f32[s0, 1] = reshape %2
      %4: f32[s0, s1] = expand %3
      %5: f32[s0, s1] = mul %0, %4
      return %5
    }"""
    executable = core.compile(text)

    def make(rows: int, columns: int) -> Callable[[], bool]:
        x = torch.randn(rows, columns)
        expected = x.exp() * x.exp().sum(1, keepdim=True).sqrt()

        def work() -> bool:
            for _ in range(30):
                torch.testing.assert_close(executable([x])[0], expected)
            return True

        return work

    sizes = [(3, 5), (200, 900), (1000, 17), (2, 2)]
    assert at_once(*[make(*size) for size in sizes]) == [True] * THREADS


def test_caches_and_options_in_several_threads() -> None:
    text = "graph @f(%x: f32[{n}]) {{ %0: f32[{n}] = add %x, %x return %0 }}"

    def compile_and_run() -> bool:
        for n in range(2, 12):
            executable = core.compile(text.format(n=n))
            assert executable([torch.ones(n)])[0].tolist() == [2.0] * n
        return True

    def clear() -> bool:
        for _ in range(20):
            mlcc.clear_cache()
            assert mlcc.cache_info()["entries"] >= 0
        return True

    def patch() -> bool:
        for _ in range(200):
            with mlcc.config.patch(bisect=7):
                assert mlcc.config.bisect == 7
            assert mlcc.config.bisect == -1
        return True

    assert at_once(compile_and_run, compile_and_run, clear, patch) == [True] * THREADS


def test_small_kernels_at_the_same_time() -> None:
    """Branches of other sizes each, in two waves; one writes its input, one may fail."""

    def function(
        xs: list[torch.Tensor], index: torch.Tensor, written: torch.Tensor
    ) -> list[torch.Tensor]:
        results = [torch.softmax(x * 2, -1) for x in xs] + [xs[0].flatten()[index] + 1]
        written.mul_(3).add_(xs[1][0, 0])
        return [(result * result).sum() for result in results]

    xs = [torch.randn(40, 100 + i) for i in range(16)]
    index = torch.randint(0, 4000, (3000,))
    threads = torch.get_num_threads()
    results: list[list[torch.Tensor]] = []
    compiled = mlcc.jit(function, dynamic=False)
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            written = torch.ones(5000)
            results.append([*compiled(xs, index, written), written.clone()])
            with pytest.raises(IndexError, match="out of bounds"):
                compiled(xs, index + 2000, written)
            # The write comes behind the call that failed, as in eager.
            assert torch.equal(written, results[-1][-1])
    finally:
        torch.set_num_threads(threads)
    written = torch.ones(5000)
    torch.testing.assert_close(results[0], [*function(xs, index, written), written])
    for one, two in zip(*results, strict=True):
        assert torch.equal(one, two)
