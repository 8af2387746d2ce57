"""Hand-written networks in inference and training, judged by the accuracy rule."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

import mlcc
from tests.python.accuracy import judge_all, judge_together, leaves, to_double
from tests.python.behaviour import compiled
from tests.python.networks import NETWORKS
from tests.python.roundings import OtherRoundings
from tests.warm import digests

NUM_OTHER_RUNS = 4


def trained(module: torch.nn.Module, call: Callable[..., Any], inputs: list[Any]) -> list[Any]:
    """The loss, all gradients and, after, all buffers."""
    module.train()
    module.zero_grad()
    loss = call(*inputs).square().mean()
    loss.backward()
    return [loss.detach(), *(p.grad for p in module.parameters())]


def otherwise_trained(module: torch.nn.Module, inputs: list[Any], seed: int) -> list[Any]:
    with OtherRoundings(seed):
        return trained(module, module, inputs)


def built(name: str) -> tuple[torch.nn.Module, list[Any]]:
    torch.manual_seed(2)
    make, inputs = NETWORKS[name]
    return make(), inputs()


def buffers(module: torch.nn.Module) -> list[torch.Tensor]:
    return [b.clone() for b in module.buffers() if b.dtype.is_floating_point]


@pytest.mark.parametrize("name", NETWORKS)
def test_inference_and_training(name: str) -> None:
    module, inputs = built(name)
    eager, wide = copy.deepcopy(module), copy.deepcopy(module).double()
    call: Any = compiled(module)
    others = [copy.deepcopy(module) for _ in range(NUM_OTHER_RUNS)]
    exact = trained(wide, wide, to_double(inputs))
    found, expected = trained(module, call, inputs), trained(eager, eager, inputs)
    verdict = judge_together(found, expected, exact)
    if not verdict:  # eager's own error is one draw of its rounding
        runs = [otherwise_trained(other, inputs, seed) for seed, other in enumerate(others)]
        verdict = judge_together(found, expected, exact, runs)
    assert verdict, verdict.reason
    for ours, eagers in zip(buffers(module), buffers(eager), strict=True):
        torch.testing.assert_close(ours, eagers)
    with torch.no_grad():
        inferred = call.eval()(*inputs)
        verdict = judge_all(inferred, eager.eval()(*inputs), wide.eval()(*to_double(inputs)))
    assert verdict, verdict.reason
    torch._dynamo.reset()
    with torch.no_grad():
        assert digests(leaves(call(*inputs))) == digests(leaves(inferred))
    assert digests(trained(module, call, inputs)) == digests(found)


@pytest.mark.parametrize("name", NETWORKS)
def test_inference_under_jit(name: str) -> None:
    module, inputs = built(name)
    module.eval()
    wide = copy.deepcopy(module).double()
    run = mlcc.jit(module)
    with torch.no_grad():
        verdict = judge_all(run(*inputs), module(*inputs), wide(*to_double(inputs)))
    assert verdict, verdict.reason
