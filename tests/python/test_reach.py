"""Modules and tensors that `mlcc.jit` reaches through callables: followed as in eager, or refused by name."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.func import jacfwd, jacrev, vmap

import mlcc

Make = Callable[[torch.nn.Module], Callable[..., Any]]


@contextlib.contextmanager
def _context() -> Iterator[None]:
    yield


class _Holder:
    def __init__(self, net: torch.nn.Module) -> None:
        self.net = net

    def __call__(self, x: torch.Tensor) -> Any:
        return self.net(x)

    def apply(self, x: torch.Tensor) -> Any:
        return self.net(x)


class _Around(torch.nn.Module):
    def __init__(self, function: Callable[..., Any], net: torch.nn.Module | None = None) -> None:
        super().__init__()
        self.function = function
        self.net = net

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def _captured(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: function(x)


def _wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def inner(*args: Any) -> Any:
        return function(*args)

    return inner


def _as_default(net: torch.nn.Module) -> Callable[..., Any]:
    def f(x: torch.Tensor, inner: Any = net) -> Any:
        return inner(x)

    return f


def _as_attribute(net: torch.nn.Module) -> Callable[..., Any]:
    def f(x: torch.Tensor) -> Any:
        return f.net(x)  # type: ignore[attr-defined]

    f.net = net  # type: ignore[attr-defined]
    return f


class _Settings:
    net: Any = None


def _of_class(net: torch.nn.Module) -> Callable[..., Any]:
    _Settings.net = net
    return lambda x: _Settings.net(x)


FOLLOWED: dict[str, Make] = {
    "vmap": vmap,
    "vmap of a method": lambda net: vmap(net.forward),
    "vmap of a partial": lambda net: vmap(functools.partial(net)),
    "jacrev": jacrev,
    "jacfwd": jacfwd,
    "vmap of jacrev": lambda net: vmap(jacrev(net)),
    "no_grad": lambda net: torch.no_grad()(net),
    "enable_grad": lambda net: torch.enable_grad()(net),
    "context": lambda net: _context()(net),
    "jit": mlcc.jit,
    "vmap of jit": lambda net: vmap(mlcc.jit(net)),
    "disable": lambda net: torch.compiler.disable(net.forward),
    "its own": lambda net: _Around(vmap(net), net),
    "not its own": lambda net: _Around(net.forward),  # runs eagerly
    "of an object": lambda net: _Around(_Holder(net)),  # runs eagerly
}

REFUSED: dict[str, tuple[Make, str]] = {
    "closure": (_captured, "closure variable function .* is a module"),
    "jit": (lambda net: _captured(mlcc.jit(net)), "closure variable function .* is a module"),
    "vmap": (lambda net: _captured(vmap(net)), "is a function that holds a module"),
    "method": (lambda net: _captured(net.forward), "is a method that holds a module"),
    "wraps": (_wrapped, "closure variable function .* is a module"),
    "wraps of vmap": (lambda net: _wrapped(vmap(net)), "is a function that holds a module"),
    "vmap of wraps": (lambda net: vmap(_wrapped(net)), "closure variable function"),
    "default": (_as_default, "a default argument of f is a module"),
    "attribute": (_as_attribute, "f.net .* is a module"),
    "class": (_of_class, "_Settings.net .* is a module"),
    "object": (lambda net: vmap(_Holder(net)), "attributes of a _Holder"),
    "object's method": (lambda net: vmap(_Holder(net).apply), "attributes of a _Holder"),
    "captured method": (lambda net: _captured(_Holder(net).apply), "method that holds a module"),
    "distribution": (
        lambda net: torch.distributions.Normal(net[0].weight.sum(), 1.0).log_prob,
        "attributes of a Normal",
    ),
    "parameter": (lambda net: vmap(functools.partial(torch.mul, net[0].bias)), "a parameter"),
}


def _net() -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh())


@pytest.mark.parametrize("name", FOLLOWED)
def test_modules_behind_callables_are_followed(name: str) -> None:
    """Values and gradients, also after weights were written and replaced."""
    net = _net()
    reference = copy.deepcopy(net)
    compiled, eager = mlcc.jit(FOLLOWED[name](net)), FOLLOWED[name](reference)
    x = torch.randn(4, 3)
    for step in range(3):
        found, expected = compiled(x), eager(x)
        torch.testing.assert_close(found, expected)
        assert found.requires_grad == expected.requires_grad
        if expected.requires_grad:
            found.sum().backward()
            expected.sum().backward()
            for mine, its in zip(net.parameters(), reference.parameters(), strict=True):
                torch.testing.assert_close(mine.grad, its.grad)
        for one in (net, reference):
            with torch.no_grad():
                one[0].bias.add_(0.5)
                if step == 1:
                    one[0].weight = torch.nn.Parameter(torch.eye(3))


def test_buffers_behind_callables_are_followed() -> None:
    net = torch.nn.BatchNorm1d(3, affine=False)
    reference = copy.deepcopy(net)
    compiled, eager = mlcc.jit(torch.no_grad()(net)), torch.no_grad()(reference)
    for _ in range(3):
        x = torch.randn(5, 3)
        torch.testing.assert_close(compiled(x), eager(x))
        torch.testing.assert_close(net.running_mean, reference.running_mean)
    net.eval()
    net.running_mean = torch.ones(3)
    torch.testing.assert_close(compiled(x), net(x))


@pytest.mark.parametrize("name", REFUSED)
def test_modules_that_nothing_would_notice_are_refused(name: str) -> None:
    make, words = REFUSED[name]
    with pytest.raises(mlcc.Error, match=words):
        mlcc.jit(make(_net()))(torch.randn(4, 3))


def test_modules_without_state_may_be_read() -> None:
    act = torch.nn.GELU()
    x = torch.randn(5)
    torch.testing.assert_close(mlcc.jit(vmap(act))(x), act(x))
