"""Arguments and results of mlcc.jit that are neither tensors nor numbers: traced right, or the original runs."""

from __future__ import annotations

import dataclasses
import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import pytest
import torch
from torch.utils import _pytree as pytree

import mlcc

ROOT = Path(__file__).resolve().parents[2]
X = torch.arange(6, dtype=torch.float32).reshape(2, 3)


@dataclasses.dataclass
class Plain:
    values: torch.Tensor
    scale: float = 2.0


@dataclasses.dataclass
class Registered(Plain):
    pass


class Pair(NamedTuple):
    values: torch.Tensor
    scale: float


class Node:
    """A class that a program registers; `mode` is what its structure says beside the leaves."""

    def __init__(self, values: torch.Tensor, mode: Any) -> None:
        self.values, self.mode = values, mode


torch.export.register_dataclass(Registered)
pytree.register_pytree_node(
    Node, lambda node: ([node.values], node.mode), lambda parts, mode: Node(parts[0], mode)
)


def told(lines: list[str]) -> list[str]:
    return [line.partition("eagerly: ")[2] for line in lines if "runs eagerly" in line]


@pytest.mark.parametrize("cls", [Registered, Pair])
def test_registered_classes_are_traced(cls: Callable[..., Any], mlcc_log: Any) -> None:
    jitted = mlcc.jit(lambda given: cls(given.values * given.scale, given.scale + 1))
    with mlcc_log("fallback") as lines:
        for scale in (2.0, 3.0):
            found = jitted(cls(X, scale))
            assert type(found) is cls
            assert torch.equal(found.values, X * scale) and found.scale == scale + 1
    assert jitted._traces == 1 and lines == []


@pytest.mark.parametrize("mode", ["add", ("add", 1), {"add": [1]}, torch.float32, int, [int, "a"]])
def test_contexts_are_part_of_the_key(mode: Any, mlcc_log: Any) -> None:
    jitted = mlcc.jit(lambda node: node.values - 1 if node.mode == "other" else node.values + 1)
    with mlcc_log("fallback") as lines:
        for _ in range(2):
            assert torch.equal(jitted(Node(X, mode)), X + 1)
            assert torch.equal(jitted(Node(X, "other")), X - 1)
    assert jitted._traces == 2 and lines == []


def test_a_context_that_is_changed_in_place() -> None:
    mode = [1]
    jitted = mlcc.jit(lambda node: node.values + node.mode[0])
    for number in (1, 2, 3):
        mode[0] = number
        assert torch.equal(jitted(Node(X, mode)), X + number)


def test_a_context_that_may_change_unseen(mlcc_log: Any) -> None:
    class Mode:
        scale = 1

    mode = Mode()
    jitted = mlcc.jit(lambda node: node.values * node.mode.scale)
    with mlcc_log("fallback") as lines:
        for mode.scale in (1, 2):
            assert torch.equal(jitted(Node(X, mode)), X * mode.scale)
    assert told(lines) == ["an argument holds a Node, whose context may change"]


def test_a_registered_argument_that_is_written(mlcc_log: Any) -> None:
    def f(node: Node) -> torch.Tensor:
        node.values = node.values + 1
        return node.values

    jitted, node = mlcc.jit(f), Node(X, "")
    with mlcc_log("fallback") as lines:
        for times in (1, 2):
            assert torch.equal(jitted(node), X + times)
    assert told(lines) == ["it changes a list or dict that it was given"]


class Cache:
    """Grows, like caches of keys."""

    def __init__(self) -> None:
        self.parts: list[torch.Tensor] = []

    def update(self, x: torch.Tensor) -> torch.Tensor:
        """All that was given."""
        self.parts.append(x)
        return torch.cat(self.parts)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Plain(X), "an argument is a Plain"),
        (Cache, "an argument is a Cache"),
        (lambda: numpy.ones(3, numpy.float32), "an argument is a numpy.ndarray"),
        (lambda: numpy.float64(2.0), "an argument is a numpy.float64"),
        (lambda: numpy.int32(2), "an argument is a numpy.int32"),
        (lambda: Cache().update, "an argument is a method"),
        (lambda: functools.partial(torch.add, X), "an argument is a functools.partial"),
        (lambda: X.add, "an argument, a function, is a method of a Tensor"),
        (lambda: {1, 2}, "an argument is a set"),
        (lambda: Plain, "an argument is a type"),
    ],
)
def test_others_run_eagerly(make: Any, reason: str, mlcc_log: Any) -> None:
    def f(x: torch.Tensor, given: Any) -> torch.Tensor:
        if isinstance(given, Plain):
            return x * given.values * given.scale
        if isinstance(given, Cache):
            return given.update(x)
        if isinstance(given, numpy.ndarray):
            return x * torch.from_numpy(given)
        if isinstance(given, type | set):
            return x + 1
        return given(x) if callable(given) else x * given

    jitted, mine, its = mlcc.jit(f), make(), make()
    with mlcc_log("fallback") as lines:
        for _ in range(2):
            torch.testing.assert_close(jitted(X, mine), f(X, its))
    assert told(lines) == [reason]


def test_a_cache_of_transformers(mlcc_log: Any) -> None:
    transformers = pytest.importorskip("transformers")

    def f(x: torch.Tensor, cache: Any) -> torch.Tensor:
        return cache.update(x, x, 0)[0] + 1

    jitted = mlcc.jit(f)
    mine, its = transformers.DynamicCache(), transformers.DynamicCache()
    x = torch.randn(1, 2, 3, 4)
    with mlcc_log("fallback") as lines:
        for _ in range(3):
            torch.testing.assert_close(jitted(x, mine), f(x, its))
    assert told(lines) == ["an argument is a transformers.DynamicCache"]


def test_sizes(mlcc_log: Any) -> None:
    jitted = mlcc.jit(lambda x, size: x.reshape(size) + size[0])
    with mlcc_log("fallback") as lines:
        for rows in (2, 3):
            x = torch.randn(6, rows)
            expected = x.reshape(rows, 6) + rows
            assert torch.equal(jitted(x, torch.Size((rows, 6))), expected)
            assert torch.equal(jitted(x, (rows, 6)), expected)
    assert jitted._traces == 1 and told(lines) == ["an argument is a torch.Size"]


def double(x: torch.Tensor) -> torch.Tensor:
    return x * FACTOR


FACTOR = 2.0


def test_functions_are_traced_by_identity(mlcc_log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    jitted = mlcc.jit(lambda function, x: function(x) + 1)
    with mlcc_log("fallback") as lines:
        for _ in range(2):
            torch.testing.assert_close(jitted(torch.sin, X), X.sin() + 1)
            torch.testing.assert_close(jitted(torch.nn.functional.relu, X), X + 1)
            torch.testing.assert_close(jitted(double, X), X * 2 + 1)
        assert jitted._traces == 3
        monkeypatch.setitem(globals(), "FACTOR", 3.0)
        torch.testing.assert_close(jitted(double, X), X * 3 + 1)
    assert jitted._traces == 4 and lines == []


def test_what_a_function_reads_is_guarded() -> None:
    scale = 2.0

    def scaled(x: torch.Tensor, shift: float = 1.0) -> torch.Tensor:
        return x * scale + shift

    scaled.__dict__["power"] = 1
    jitted = mlcc.jit(lambda function, x: function(x) ** function.power)
    torch.testing.assert_close(jitted(scaled, X), X * 2 + 1)
    scale = 3.0
    torch.testing.assert_close(jitted(scaled, X), X * 3 + 1)
    scaled.__defaults__ = (5.0,)
    torch.testing.assert_close(jitted(scaled, X), X * 3 + 5)
    scaled.__dict__["power"] = 2
    torch.testing.assert_close(jitted(scaled, X), (X * 3 + 5) ** 2)


def test_functions_that_hold_tensors_run_eagerly(mlcc_log: Any) -> None:
    weight = torch.ones(3)
    jitted = mlcc.jit(lambda function, x: function(x))
    net = torch.nn.Linear(3, 3)

    def with_note(x: torch.Tensor) -> torch.Tensor:
        return x * with_note.weight  # type: ignore[attr-defined]

    with_note.weight = weight  # type: ignore[attr-defined]
    functions = [lambda x: x * weight, torch.vmap(net), with_note]
    with mlcc_log("fallback") as lines, torch.no_grad():
        for function in functions:
            torch.testing.assert_close(jitted(function, X), function(X))
        weight += 1
        net.weight += 1
        for function in functions:
            torch.testing.assert_close(jitted(function, X), function(X))
    reasons = told(lines)
    assert len(reasons) == 2 and "the closure variable weight" in reasons[0]
    assert "has an attribute that is no plain value" in reasons[1]


def test_new_functions_are_not_traced_for_ever(
    mlcc_log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlcc.capture.jit, "_MOST_HELD", 3)
    jitted = mlcc.jit(lambda function, x: function(x))
    with mlcc_log("fallback") as lines:
        for _ in range(6):
            assert torch.equal(jitted(lambda x: x + 1, X), X + 1)
    assert jitted._traces == 3
    assert told(lines) == ["3 other functions or modules were arguments"]


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.scale = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Reads an attribute."""
        result: torch.Tensor = self.linear(x) * self.scale
        return result


@pytest.mark.parametrize("wrap", [lambda net: net, mlcc.jit], ids=["module", "jitted module"])
def test_modules_are_traced(wrap: Callable[[Any], Any], mlcc_log: Any) -> None:
    """By identity, and with all guards of a module."""
    jitted = mlcc.jit(lambda net, x: net(x) + 1)
    nets = [wrap(Net()), wrap(Net())]
    with mlcc_log("fallback") as lines:
        for grad in (True, False, False):
            with torch.set_grad_enabled(grad):
                for net in nets:
                    torch.testing.assert_close(jitted(net, X), net(X) + 1)
        assert jitted._traces == 4
        nets[0].scale = 3.0
        torch.testing.assert_close(jitted(nets[0], X), nets[0](X) + 1)
        with torch.no_grad():
            nets[0].linear.weight.mul_(2)
        nets[0].linear.bias = torch.nn.Parameter(torch.ones(3))
        torch.testing.assert_close(jitted(nets[0], X), nets[0](X) + 1)
    assert told(lines) == []
    jitted(nets[1], X).sum().backward()
    found = nets[1].linear.weight.grad
    nets[1].zero_grad()
    (nets[1](X) + 1).sum().backward()
    torch.testing.assert_close(found, nets[1].linear.weight.grad)


def test_a_module_and_its_own_part() -> None:
    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Net()

        def forward(self, x: torch.Tensor, other: torch.nn.Module) -> torch.Tensor:
            result: torch.Tensor = self.inner(x) + other(x)
            return result

    outer, other = Outer(), Net()
    jitted = mlcc.jit(outer)
    for given in (outer.inner, other, outer.inner):
        torch.testing.assert_close(jitted(X, given), outer(X, given))
    assert jitted._mlcc_jit._traces == 2


def test_a_module_argument_that_is_written(mlcc_log: Any) -> None:
    def f(net: Any, x: torch.Tensor) -> torch.Tensor:
        net.scale += 1
        return net(x) * net.scale

    jitted, mine, its = mlcc.jit(f), Net(), Net()
    its.load_state_dict(mine.state_dict())
    with mlcc_log("fallback") as lines:
        for _ in range(2):
            torch.testing.assert_close(jitted(mine, X), f(its, X))
    assert told(lines) == ["it changes the module's scale"]


def test_a_training_step(mlcc_log: Any) -> None:
    """Whose gradients no trace records."""

    def step(net: Any, optimizer: Any, x: torch.Tensor) -> float:
        optimizer.zero_grad()
        loss = net(x).square().sum()
        loss.backward()
        optimizer.step()
        return float(loss)

    mine, its = Net(), Net()
    its.load_state_dict(mine.state_dict())
    jitted = mlcc.jit(step)
    with mlcc_log("fallback") as lines:
        for _ in range(2):
            found = jitted(mine, torch.optim.SGD(mine.parameters(), 0.01), X)
            assert found == step(its, torch.optim.SGD(its.parameters(), 0.01), X)
    assert told(lines) == ["an argument is a torch.SGD"]


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: Plain(x * 2), "a result is a Plain"),
        (lambda x: (x * 2).numpy(), "it makes an array of NumPy's of a tensor"),
        (lambda x: numpy.asarray(x * 2), "it makes an array of NumPy's of a tensor"),
        (
            lambda x: torch.from_numpy(numpy.sin(x.numpy())),
            "it makes an array of NumPy's of a tensor",
        ),
    ],
)
def test_results_that_are_no_tensors(function: Any, reason: str, mlcc_log: Any) -> None:
    jitted = mlcc.jit(function)
    with mlcc_log("fallback") as lines:
        for _ in range(2):
            found, expected = jitted(X), function(X)
            assert type(found) is type(expected)
            if isinstance(found, Plain):
                found, expected = found.values, expected.values
            numpy.testing.assert_array_equal(found, expected)
    assert told(lines) == [reason]


WRONG = """
import torch, mlcc
mlcc.jit(lambda x, y: x @ y)(torch.ones(3, 4), torch.ones(3, 4))
"""


def test_what_eager_refuses_is_eagers_error_alone() -> None:
    answer = subprocess.run(
        [sys.executable, "-c", WRONG],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        check=False,
    )
    lines = answer.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "RuntimeError: mat1 and mat2 shapes cannot be multiplied (3x4 and 3x4)"
    assert answer.stderr.count("Traceback") == 1 and "torch/_" not in answer.stderr


def test_the_error_is_no_consequence_of_the_traces() -> None:
    jitted = mlcc.jit(lambda x, y: x @ y)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="mat1 and mat2 shapes") as caught:
            jitted(X, X)
        assert caught.value.__context__ is None and caught.value.__cause__ is None
    assert torch.equal(jitted(X, X.T), X @ X.T)
