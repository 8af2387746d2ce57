"""When the original function of a `mlcc.jit` runs: rarely, and it is told once; what looked like a reason is none."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import mlcc
from mlcc.capture.session import Session
from tests.python.test_jit import found_in_core

ROOT = Path(__file__).resolve().parents[2]

Scaled = Callable[[torch.Tensor, float], torch.Tensor]
SCALED: dict[str, Scaled] = {
    "product": lambda x, k: x * k,
    "arithmetic of numbers": lambda x, k: x * (k * 2 + 1) / k + k,
    "twice": lambda x, k: (x * k).sin() * (k * 2),
    "leaky_relu": torch.nn.functional.leaky_relu,
    "lerp": lambda x, k: torch.lerp(x, x.sin(), k),
    "power": lambda x, k: x.abs() ** k,
    "int": lambda x, k: x * int(k),
    "square root": lambda x, k: (x * x + k).sqrt().sum(),
}


def _gradient(function: Scaled, x: torch.Tensor, k: float) -> tuple[torch.Tensor, torch.Tensor]:
    result = function(x, k)
    return result.detach(), torch.autograd.grad(result.sum(), x)[0]


@pytest.mark.parametrize("name", SCALED)
def test_numbers_in_backward_passes(name: str, mlcc_log: Any) -> None:
    """torch's partition took a float for something that a backward pass can compute again."""
    compiled = mlcc.jit(SCALED[name])
    with mlcc_log("fallback") as told:
        for k in (2.0, 2.5, 0.75, 0.0, 3.5, 4.5, 5.5, 2.0):
            x = torch.randn(4, 5, requires_grad=True)
            found, expected = _gradient(compiled, x, k), _gradient(SCALED[name], x, k)
            torch.testing.assert_close(found, expected)
    assert not [line for line in told if "eagerly" in line]
    # torch's own formulas ask for the value in the last three, or a part of it.
    assert compiled._traces <= {"int": 7, "lerp": 7, "power": 7}.get(name, 3)


WARM = """
import torch, mlcc
compiled = mlcc.jit(lambda x, k, n: (x * k).sin() * (k * 2) + n)
for k in (2.0, 2.5):
    x = torch.arange(5.0, requires_grad=True)
    result = compiled(x, k, 3)
    result.sum().backward()
    torch.testing.assert_close(x.grad, (x * k).cos() * k * k * 2)
    torch._dynamo.reset()
y = torch.arange(5.0)
attend = mlcc.jit(lambda q, k: (q * k).sum() + (1 if q is k else 2))
assert attend(y, y) == 31 and attend(y, y + 0) == 32 and attend(y, y) == 31
vmapped = mlcc.jit(torch.vmap(net := torch.nn.Linear(3, 3)))
assert vmapped(torch.ones(2, 3)).requires_grad
kinds = mlcc.jit(lambda x, k: x + 1 if isinstance(k, float) and type(x.shape[0]) is int else x - 1)
assert kinds(y, 3.0).tolist() == [1, 2, 3, 4, 5] and mlcc.jit(lambda x, k: x * len(f"{k}"))(y, 0.125)[1] == 5
print("right", mlcc.capture.backend.timings().graphs)
"""


def test_in_second_processes(fresh_cache: Path) -> None:
    """On the caches of the first one."""
    answers = [
        subprocess.run(
            [sys.executable, "-c", WARM],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env={**os.environ, "MLCC_STRICT": "1", "PYTHONPATH": str(ROOT)},
            check=False,
        )
        for _ in range(2)
    ]
    for answer in answers:
        assert answer.returncode == 0, answer.stderr
    assert answers[0].stdout == answers[1].stdout != ""


def test_a_tensor_that_is_given_twice(mlcc_log: Any) -> None:
    """It is one leaf of the trace; each pattern of what is the same has its own."""

    def f(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return x * 2 + y * (3 if x is y else 5) + z * (7 if y is z else 11)

    compiled = mlcc.jit(f)
    a, b, c = torch.randn(3, 4), torch.randn(3, 4), torch.randn(3, 4)
    calls = [(a, b, c), (a, a, b), (a, b, b), (a, b, a), (a, a, a), (b, b, a), (c, c, c)]
    with mlcc_log("fallback") as told:
        for call in calls:
            torch.testing.assert_close(compiled(*call), f(*call))
            assert found_in_core(compiled, *call)
    assert told == [] and compiled._traces == 5
    x = torch.randn(6, 4)
    assert found_in_core(compiled, x, x, x)


def test_attention_of_one_tensor(mlcc_log: Any) -> None:
    attend = torch.nn.functional.scaled_dot_product_attention
    compiled = mlcc.jit(lambda q, k, v: attend(q, k, v))
    for length in (8, 12):
        x = torch.randn(1, 2, length, 16, requires_grad=True)
        found, expected = compiled(x, x, x), attend(x, x, x)
        torch.testing.assert_close(found, expected)
        (mine,), (its,) = (torch.autograd.grad(one.square().sum(), x) for one in (found, expected))
        torch.testing.assert_close(mine, its)
    assert compiled._traces == 1


def test_writes_to_a_tensor_that_is_given_twice() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return y * 2

    compiled = mlcc.jit(f)
    x = torch.zeros(4)
    for call in range(3):
        assert compiled(x, x).tolist() == [2.0 * (call + 1)] * 4
    assert found_in_core(compiled, x, x)
    y = torch.zeros(4)
    assert compiled(x, y).tolist() == [0.0] * 4
    memory = torch.zeros(5)
    assert compiled(memory[1:], memory[:4]).tolist() == [0.0, 2.0, 2.0, 2.0]


@pytest.mark.parametrize(
    "number", [2**63, 2**64 + 5, 2**70, -(2**63) - 1, 2**63 - 1, -(2**63), 2**31]
)
def test_large_ints(number: int) -> None:
    """As eager computes, or refuses."""
    programs: list[Callable[[torch.Tensor, int], torch.Tensor]] = [
        lambda x, n: x * float(n),
        lambda x, n: x + n % 7 + n // 2**61,
        lambda x, n: x + 1 if n > 5 else x - 1,
        lambda x, n: x * n,
        lambda x, n: x + n,
        lambda x, n: torch.where(x > 0, x, n),
    ]
    for x in (torch.arange(4.0), torch.arange(4)):
        for program in programs:
            try:
                expected = program(x, number)
            except (RuntimeError, OverflowError) as error:
                with pytest.raises(type(error)):
                    mlcc.jit(program)(x, number)
                continue
            compiled = mlcc.jit(program)
            torch.testing.assert_close(compiled(x, number), expected)
            torch.testing.assert_close(compiled(x, number), expected)
            assert found_in_core(compiled, x, number)


def test_complex_numbers_are_constants() -> None:
    compiled = mlcc.jit(lambda x, c: torch.view_as_real(x * c))
    x = torch.randn(3)
    for number in (1 + 2j, complex(0.0, -0.0), complex(-0.0, 0.0), 1 + 2j):
        found, expected = compiled(x, number), torch.view_as_real(x * number)
        assert torch.equal(found, expected) and torch.equal(found.signbit(), expected.signbit())
    assert compiled._traces == 3


def test_each_reason_is_told_once(mlcc_log: Any) -> None:
    compiled = mlcc.jit(lambda x: x + 1)
    sparse = torch.eye(3).to_sparse()
    with mlcc_log("fallback") as told:
        for _ in range(3):
            compiled(torch.ones(2, dtype=torch.complex64).conj())
            assert torch.func.grad(lambda x: compiled(x).sum())(torch.ones(3)).tolist() == [1.0] * 3
            with pytest.raises(RuntimeError):
                compiled(sparse)
    assert [line.partition("eagerly: ")[2] for line in told] == [
        "an argument is a conjugate or negated view",
        "a mode of torch, a transform or forward-mode derivatives see the ops",
        "an argument is a tensor of layout torch.sparse_coo",
    ]


def test_a_trace_that_fails_is_an_error_under_strict(
    monkeypatch: pytest.MonkeyPatch, mlcc_log: Any
) -> None:
    """Unless it is one that may: a failure of ours is not hidden by running the original."""

    def fail(*_: Any, **__: Any) -> None:
        raise KeyError("planted")

    monkeypatch.setattr(Session, "compile", fail)
    x = torch.ones(3)
    with pytest.raises(mlcc.InternalError, match="its trace failed: KeyError: 'planted'"):
        mlcc.jit(lambda x: x + 1)(x)
    with mlcc.config.patch(strict=False), mlcc_log("fallback") as told:
        compiled = mlcc.jit(lambda x: x + 1)
        assert compiled(x).tolist() == compiled(x).tolist() == [2.0] * 3
    assert len(told) == 1 and "its trace failed: KeyError" in told[0]


def test_guards_that_cannot_be_computed_fail() -> None:
    """A number that is a divisor in a guard may be 0 in a later call."""
    compiled = mlcc.jit(lambda x, n, m: x + 1 if n // max(m, -9) > 2 else x - 1)
    x = torch.zeros(2)
    assert compiled(x, 9, 3).tolist() == [1.0, 1.0]
    assert compiled(x, 9, 9).tolist() == [-1.0, -1.0]
    with pytest.raises(ZeroDivisionError):
        compiled(x, 9, 0)
    assert compiled(x, 12, 4).tolist() == [1.0, 1.0]
