"""MLCC_LOGS=recompiles of mlcc.jit names what changed, from what and to what."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import mlcc

X = torch.arange(6, dtype=torch.float32).reshape(2, 3)
SCALE: Any = 2
NAMES = {"scale": 2.0}


def helper(x: torch.Tensor, shift: float = 1.0) -> torch.Tensor:
    return x + shift


def other(x: torch.Tensor, shift: float = 1.0) -> torch.Tensor:
    return x - shift


class Settings:
    scale = 2.0


class Net(torch.nn.Module):
    """Reads all kinds of state."""

    factor = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.inner = types.SimpleNamespace(scale=2.0)
        self.scales = [torch.nn.functional.relu, 2.0]
        self.mode = "a"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """All of it."""
        x = self.linear(x) * self.inner.scale * self.factor + len(self.mode)
        result: torch.Tensor = x * 2 if self.training else x
        return result


def message(lines: list[str]) -> str:
    """Of the one recompile."""
    (line,) = (one for one in lines if one.startswith("recompile "))
    return line.partition(": ")[2]


OF_NET: dict[str, tuple[Callable[[Net], Any], str]] = {
    "training": (lambda net: net.eval(), "attribute self.training was True, now False"),
    "text": (lambda net: setattr(net, "mode", "bc"), "attribute self.mode was 'a', now 'bc'"),
    "of a submodule": (
        lambda net: net.linear.eval(),
        "attribute self.linear.training was True, now False",
    ),
    "field": (
        lambda net: setattr(net.inner, "scale", 3.0),
        "attribute self.inner.scale was 2.0, now 3.0",
    ),
    "new": (lambda net: setattr(net, "factor", 3.0), "attribute self.factor is new"),
    "of the class": (
        lambda net: setattr(Net, "factor", 3.0),
        "attribute Net.factor was 1.0, now 3.0",
    ),
    "object": (
        lambda net: setattr(net, "inner", types.SimpleNamespace(scale=3.0)),
        "attribute self.inner is another SimpleNamespace now",
    ),
    "kind": (
        lambda net: setattr(net, "mode", [torch.ones]),
        "attribute self.mode was 'a', now a list",
    ),
    "container": (
        lambda net: net.scales.append(3.0),
        "what attribute self.scales holds changed",
    ),
    "parameter": (
        lambda net: setattr(net.linear, "weight", torch.nn.Parameter(torch.ones(3, 3))),
        "parameter self.linear.weight is another one now",
    ),
    "submodule": (
        lambda net: setattr(net, "linear", torch.nn.Linear(3, 3)),
        "submodule self.linear is another one now",
    ),
    "hook": (
        lambda net: net.linear.register_forward_hook(lambda *args: None),
        "the hooks of self.linear changed",
    ),
    "frozen": (
        lambda net: net.linear.weight.requires_grad_(False),
        "self.linear.weight.requires_grad was True, now False",
    ),
    "dtype": (
        lambda net: setattr(net.linear.bias, "data", net.linear.bias.data.double()),
        "self.linear.bias.dtype was torch.float32, now torch.float64",
    ),
}


@pytest.mark.parametrize("change", OF_NET)
def test_of_a_module(change: str, mlcc_log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Net, "factor", 1.0)
    net = Net()
    jitted = mlcc.jit(net)
    jitted(X)
    apply, words = OF_NET[change]
    apply(net)
    with mlcc_log("recompiles") as lines:
        try:
            jitted(X)
        except RuntimeError:
            assert change == "dtype"
    assert message(lines) == words


def test_of_what_is_read_outside(mlcc_log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    k = 2

    def f(x: torch.Tensor) -> torch.Tensor:
        return helper(x) * SCALE * k * NAMES["scale"] * Settings.scale * f.power  # type: ignore[attr-defined]

    f.power = 1  # type: ignore[attr-defined]
    jitted = mlcc.jit(f)
    jitted(X)

    def told(name: str = "", value: Any = None) -> str:
        if name:
            monkeypatch.setitem(globals(), name, value)
        with mlcc_log("recompiles") as lines:
            jitted(X)
        return message(lines)

    assert told("SCALE", 3) == "global SCALE was 2, now 3"
    assert told("SCALE", 3.0) == "global SCALE was 3, now 3.0"
    assert told("NAMES", {"scale": 3.0}) == "global NAMES was {'scale': 2.0}, now {'scale': 3.0}"
    assert told("helper", other) == "global helper is another function now"
    k = 5
    assert told() == "closure variable k was 2, now 5"
    monkeypatch.setattr(Settings, "scale", 3.0)
    assert told() == "attribute Settings.scale was 2.0, now 3.0"
    f.power = 2  # type: ignore[attr-defined]
    assert told() == "attribute f.power was 1, now 2"
    monkeypatch.setattr(other, "__defaults__", (2.0,))
    assert told() == "the default arguments of other changed"


def test_long_values_are_cut(mlcc_log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "NAMES", {"scale": 1.0, "text": "x" * 500})
    jitted = mlcc.jit(lambda x: x * NAMES["scale"])
    jitted(X)
    monkeypatch.setitem(globals(), "NAMES", {"scale": 2.0})
    with mlcc_log("recompiles") as lines:
        jitted(X)
    assert len(message(lines)) < 200


def test_the_size_is_one_that_the_guard_speaks_of(mlcc_log: Any) -> None:
    """Not the first that differs."""
    for call, words in (
        ((torch.ones(7, 8), torch.ones(9, 3), 4), "y.size(1) was 5, now 3"),
        ((torch.ones(5, 6), torch.ones(8, 9), 11), "n was 3, now 11"),
    ):
        jitted = mlcc.jit(lambda x, y, n: x.sum() + y * (2 if y.shape[1] > 4 and n < 10 else 3))
        jitted(torch.ones(2, 3), torch.ones(4, 5), 3)
        with mlcc_log("recompiles") as lines:
            jitted(*call)
        assert message(lines).startswith(words)


def test_numbers_that_are_constants(mlcc_log: Any) -> None:
    jitted = mlcc.jit(lambda x, n: x * len(f"{n}"))
    jitted(X, 3.0)
    with mlcc_log("recompiles") as lines:
        jitted(X + 0, 0.125)
    assert message(lines).startswith("n was 3.0, now 0.125")


def test_arguments_by_identity(mlcc_log: Any) -> None:
    jitted = mlcc.jit(lambda x, given: given(x))
    jitted(X, torch.sin)
    with mlcc_log("recompiles") as lines:
        jitted(X, torch.cos)
    assert message(lines) == "given was sin, now cos; each is traced once"


def test_modules_behind_wrappers(mlcc_log: Any) -> None:
    net = Net()
    jitted = mlcc.jit(torch.vmap(net))
    jitted(X)
    net.eval()
    with mlcc_log("recompiles") as lines:
        jitted(X)
    assert message(lines) == "attribute self.0.training was True, now False"
