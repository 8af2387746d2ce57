"""In which order compiled graphs run kernels and collectives."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as collectives
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from tests.python.sessions import Sessions

SIZE = 64


def _short(step: str) -> str:
    """ "gather", "scatter", "reduce", "wait", "product" or "kernel"; the op's name for other calls."""
    kind, name = step.split(" ", 1)
    if kind == "launch":
        return "kernel"
    op = name.removeprefix("_c10d_functional.").removesuffix(".default")
    names = {
        "all_gather_into_tensor": "gather",
        "reduce_scatter_tensor": "scatter",
        "all_reduce": "reduce",
        "wait_tensor": "wait",
        "aten.mm": "product",  # a library's
    }
    return names.get(op, op)


def steps_of(compiled: Sessions) -> list[list[str]]:
    """Of each graph."""
    compiled.check_all_compiled()
    return [[_short(step) for step in graph.executable.steps] for graph in compiled.graphs]


def beside_a_product() -> list[list[str]]:
    """A product that does not need what is gathered, although what is added to it does."""

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        gathered = collectives.all_gather_single(x.sin(), 0, dist.group.WORLD)
        return (w @ w).relu() + gathered.view(2, SIZE, SIZE).sum(0)

    compiled = Sessions(function)
    x, w = torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE)
    torch.testing.assert_close(compiled(x, w), function(x, w), rtol=1e-4, atol=1e-4)
    return steps_of(compiled)


def layers() -> list[list[str]]:
    """Weights that are gathered layer by layer, and gradients that are scattered: the next layer's are on their way."""

    def function(x: torch.Tensor, *parts: torch.Tensor) -> torch.Tensor:
        for part in parts:
            whole = collectives.all_gather_single_autograd(part, 0, dist.group.WORLD)
            x = (x @ whole).tanh()
        return x

    compiled = Sessions(function)
    torch.manual_seed(0)
    x = torch.randn(16, SIZE, dtype=torch.float64)
    parts = [torch.randn(SIZE // 2, SIZE, dtype=x.dtype).div(8).requires_grad_() for _ in range(4)]
    results = []
    for run in (compiled, function):
        result = run(x, *parts)
        results.append([result, *torch.autograd.grad(result.square().sum(), parts)])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
    return steps_of(compiled)


def trace() -> list[str]:
    """The calls of one run as the profiler sees them, with a call of a library between."""

    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        gathered = collectives.all_gather_single(x * 2, 0, dist.group.WORLD) + 1
        return gathered, torch.sort(y * 2).values

    compiled = Sessions(function)
    x, y = torch.randn(SIZE), torch.randn(SIZE)
    torch.testing.assert_close(compiled(x, y), function(x, y))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        compiled(x, y)
    wanted = {"all_gather_into_tensor", "wait_tensor", "sort"}
    events = sorted(profile.events(), key=lambda event: event.time_range.start)
    names = [event.name.split("::")[-1] for event in events]
    return [name for name in names if name in wanted]


def written_afterwards() -> list[list[str]]:
    """Memory that a collective reads is not written before that is over."""

    def function(x: torch.Tensor, state: torch.Tensor, waits: bool = False) -> torch.Tensor:
        gathered = collectives.all_gather_single(state, 0, dist.group.WORLD)
        if waits:  # eager does not by itself, and would send what is written
            collectives.wait_tensor(gathered)
        state.add_(x)
        return gathered + 1

    compiled = Sessions(function)
    x, state = torch.randn(SIZE), torch.randn(SIZE)
    for _ in range(2):
        expected_state = state.clone()
        expected = function(x, expected_state, waits=True)
        torch.testing.assert_close(compiled(x, state), expected)
        torch.testing.assert_close(state, expected_state)
    return steps_of(compiled)


def tensor_parallel() -> list[list[str]]:
    """Two layers side by side, each with a sum over the processes."""
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (2,))

    def layer() -> torch.nn.Module:
        net = torch.nn.Sequential(
            torch.nn.Linear(SIZE, SIZE), torch.nn.ReLU(), torch.nn.Linear(SIZE, SIZE)
        )
        return parallelize_module(net, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})

    left, right = layer(), layer()

    def function(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = left(x) * right(x)
        return result

    compiled = Sessions(function)
    x = torch.randn(16, SIZE)
    results = []
    for run in (compiled, function):
        taken = x.clone().requires_grad_()
        result = run(taken)
        result.square().sum().backward()
        results.append([result, taken.grad])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
    return steps_of(compiled)
