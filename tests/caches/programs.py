"""Small programs for the tests of caches. Each is compiled in its own way, and has variants that differ in a number.

`check` runs one compiled and compares with eager. All are stored: a second process finds their kernels, and traces none
of those that `torch.compile` compiles.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch._dynamo.utils import counters

import mlcc

Compile = Callable[..., Any]
Results = list[torch.Tensor]


class Case(NamedTuple):
    """A program and its variant."""

    name: str
    variant: int


def _numbers(*shape: int) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return torch.linspace(-2, 2, count).reshape(shape)


def pointwise(compiled: Compile, variant: int) -> Results:
    function = compiled(lambda a, b: torch.sin(a) * b + variant)
    with torch.no_grad():
        return [function(_numbers(5, 7), _numbers(7))]


def twin(compiled: Compile, variant: int) -> Results:
    """The guards of `pointwise`, and another result."""
    function = compiled(lambda a, b: torch.cos(a) - b * variant)
    with torch.no_grad():
        return [function(_numbers(5, 7), _numbers(7))]


def rows(compiled: Compile, variant: int) -> Results:
    function = compiled(lambda a: torch.softmax(a * (variant + 1), -1).amax(0))
    with torch.no_grad():
        return [function(_numbers(9, 33))]


def training(compiled: Compile, variant: int) -> Results:
    torch.manual_seed(variant)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.LayerNorm(8))
    function = compiled(lambda x: (model(x) * (variant + 1)).square().mean())
    loss = function(_numbers(4, 6))
    return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))]


def sizes(compiled: Compile, variant: int) -> Results:
    function = compiled(lambda a: (a + variant).exp().sum(-1), dynamic=True)
    with torch.no_grad():
        return [function(_numbers(4, size)) for size in (3, 8, 5)]


def breaks(compiled: Compile, variant: int) -> Results:
    def function(a: torch.Tensor) -> torch.Tensor:
        a = a.sin() + variant
        print("a graph break", file=sys.stderr)
        return torch.sigmoid(a).cumsum(0)

    with torch.no_grad():
        return [compiled(function)(_numbers(12))]


def module(compiled: Compile, variant: int) -> Results:
    torch.manual_seed(variant)
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU()).eval()
    function = compiled(lambda x: model(x) + variant)
    with torch.no_grad():
        return [function(_numbers(3, 16)), function(_numbers(3, 16) + 1)]


def jitted(compiled: Compile, variant: int) -> Results:
    function = compiled(lambda a: torch.tanh(a).mean(0) * (variant + 2), jit=True)
    with torch.no_grad():
        return [function(_numbers(6, 10))]


def jitted_training(compiled: Compile, variant: int) -> Results:
    function = compiled(lambda a: (a.exp() * (variant + 1)).sum(), jit=True)
    a = _numbers(11).requires_grad_()
    loss = function(a)
    return [loss.detach(), *torch.autograd.grad(loss, a)]


PROGRAMS: dict[str, Callable[[Compile, int], Results]] = {
    one.__name__: one
    for one in (
        *(pointwise, twin, rows, training, sizes),
        *(breaks, module, jitted, jitted_training),
    )
}
VARIANTS = 3
CASES = [Case(name, variant) for name in PROGRAMS for variant in range(VARIANTS)]


def _compiled(function: Any, jit: bool = False, dynamic: bool | None = None) -> Any:
    return mlcc.jit(function) if jit else torch.compile(function, backend="mlcc", dynamic=dynamic)


def _eager(function: Any, jit: bool = False, dynamic: bool | None = None) -> Any:
    del jit, dynamic
    return function


def check(case: Case) -> str:
    """What is wrong with a program, compiled anew in this process; empty where nothing is."""
    run = PROGRAMS[case.name]
    torch._dynamo.reset()
    try:
        found, expected = run(_compiled, case.variant), run(_eager, case.variant)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    except Exception as error:
        return f"{case.name} {case.variant}: {type(error).__name__}: {error}"
    return ""


def work_done() -> dict[str, int]:
    """How many kernels this process has compiled, and how many graphs Dynamo has traced."""
    return {
        "compiled": int(mlcc.cache_info()["misses"]),
        "traced": int(counters["stats"]["unique_graphs"]),
    }
