"""Optimizers, clipping, scaling and whole training loops through compiled code, against eager."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from benchmarks import loss_curves
from mlcc.importer import fx_graph
from tests.python.behaviour import compiled


class Lion(torch.optim.Optimizer):
    """By the sign of an average of gradients."""

    def __init__(self, params: Iterable[Any], lr: float = 1e-2, decay: float = 0.1) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.99), "decay": decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                average = self.state[p].setdefault("average", torch.zeros_like(p))
                first, second = group["betas"]
                p.mul_(1 - group["lr"] * group["decay"])
                p.sub_(torch.sign(average * first + p.grad * (1 - first)), alpha=group["lr"])
                average.lerp_(p.grad, 1 - second)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "SGD with nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, foreach=False),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
    "Lion": Lion,
    "SGD of lists": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "AdamW of lists": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "RMSprop of lists": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, foreach=True),
    "Adagrad of lists": lambda p: torch.optim.Adagrad(p, lr=0.05, foreach=True),
}


def network() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(10, 6, generator=generator), torch.randint(0, 3, (10,), generator=generator)


def train(
    make: Callable[[Any], torch.optim.Optimizer],
    compile_: Callable[[Callable[..., Any]], Callable[..., Any]],
    steps: int = 4,
) -> list[torch.Tensor]:
    """The parameters and the optimizer's state after a few steps with compiled `step`."""
    module = network()
    optimizer = make(module.parameters())
    step_ = compile_(lambda: optimizer.step())
    for number in range(steps):
        optimizer.zero_grad()
        x, y = batch(number)
        F.cross_entropy(module(x), y).backward()
        step_()
    state = [
        value
        for one in optimizer.state.values()
        for value in one.values()
        if isinstance(value, torch.Tensor)
    ]
    return [*(p.detach() for p in module.parameters()), *state]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_compiled_steps_of_optimizers(name: str, mlcc_log: Any) -> None:
    """As eager; no call and no copy: parameters are written in place."""
    fx_graph.forget_logged()
    with mlcc_log("fallback") as lines:
        found = train(OPTIMIZERS[name], compiled)
    assert lines == []
    expected = train(OPTIMIZERS[name], lambda f: f)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_numbers_of_updates_in_tensors(dtype: torch.dtype, mlcc_log: Any) -> None:
    """What Dynamo makes prims.fma of, as near to f64 as eager's."""

    def update(p: torch.Tensor, a: torch.Tensor, b: torch.Tensor, rate: torch.Tensor) -> None:
        p.addcmul_(a, b, value=rate)
        p.addcdiv_(a, b, value=rate)
        p.add_(a, alpha=rate)

    torch.manual_seed(0)
    p, a, b = (torch.randn(50).to(dtype) for _ in range(3))
    b = b.abs() + 0.5
    rate = torch.tensor(0.125)
    fx_graph.forget_logged()
    exact, got = p.double(), p.clone()
    update(exact, a.double(), b.double(), rate.double())
    with mlcc_log("fallback") as lines:
        compiled(update)(got, a, b, rate)
    assert lines == []
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(got.double(), exact, rtol=4 * eps, atol=4 * eps)


def test_a_schedule_of_learning_rates() -> None:
    """A rate held in a tensor changes without a new graph."""

    def run(compile_: Callable[..., Any]) -> list[torch.Tensor]:
        module = network()
        optimizer = torch.optim.AdamW(module.parameters(), lr=torch.tensor(0.01))
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        step = compile_(lambda: optimizer.step())
        for number in range(4):
            optimizer.zero_grad()
            x, y = batch(number)
            F.cross_entropy(module(x), y).backward()
            step()
            schedule.step()
        return [p.detach() for p in module.parameters()]

    torch.testing.assert_close(run(compiled), run(lambda f: f), rtol=1e-4, atol=1e-6)


def test_forward_backward_and_step_with_clipped_gradients() -> None:
    def run(compile_: Callable[..., Any]) -> list[torch.Tensor]:
        module = network()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(module(x), y)
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(module.parameters(), 0.3)
            torch.nn.utils.clip_grad_value_(module.parameters(), 0.1)
            optimizer.step()
            return torch.stack([loss.detach(), norm])

        call = compile_(step)
        told = [call(*batch(number)) for number in range(4)]
        return [*told, *(p.detach() for p in module.parameters())]

    torch.testing.assert_close(run(compiled), run(lambda f: f), rtol=1e-4, atol=1e-6)


def test_scaled_gradients() -> None:
    """GradScaler with autocast: a step with infinite gradients is left out, and the scale falls."""

    def run(compile_: Callable[..., Any]) -> list[Any]:
        module = network()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
        forward = compile_(lambda x, y: F.cross_entropy(module(x), y))
        scales = []
        for number in range(5):
            optimizer.zero_grad()
            x, y = batch(number)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = forward(x * (torch.inf if number == 2 else 1), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        return [scales, *(p.detach() for p in module.parameters())]

    found, expected = run(compiled), run(lambda f: f)
    assert found[0] == expected[0]
    assert found[0][2] < found[0][1]  # after the infinite one
    torch.testing.assert_close(found[1:], expected[1:], rtol=0.02, atol=1e-3)


def test_accumulated_gradients() -> None:
    run, module, other = compiled(network()), network(), network()
    run = compiled(module)
    for number in range(3):
        x, y = batch(number)
        F.cross_entropy(run(x), y).backward()
        F.cross_entropy(other(x), y).backward()
    for ours, eagers in zip(module.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, eagers.grad)


def test_a_character_model_learns_as_eager() -> None:
    """The first steps of what `benchmarks/loss_curves.py` draws."""
    eager = loss_curves.train("eager", steps=30)
    ours = loss_curves.train("mlcc", steps=30)
    assert max(abs(a - b) for a, b in zip(eager, ours, strict=True)) < 0.02
    assert ours[-1] < ours[0] - 0.5
