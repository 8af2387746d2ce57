"""DTensors in compiled functions: products, redistributions, gradients, and graphs that come from a cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._dynamo.utils import counters
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)

from tests.distributed import collectives
from tests.distributed.compiling import compiled, no_graph_runs_eagerly

PLACEMENTS: dict[str, Placement] = {
    "rows": Shard(0),
    "columns": Shard(1),
    "whole": Replicate(),
    "sum": Partial(),
}


def product(x: DTensor, y: DTensor) -> DTensor:
    return (x.sin() @ y).relu() * 2


def softmax(x: DTensor, y: DTensor) -> DTensor:
    return (x + y).softmax(-1)


def mean(x: DTensor, y: DTensor) -> DTensor:
    return (x * y).mean(0) + y.abs().sum()


def moved(x: DTensor, y: DTensor) -> DTensor:
    """From rows to columns and back."""
    other = Shard(1) if x.placements == (Shard(0),) else Shard(0)
    return x.redistribute(placements=[other]).exp().redistribute(placements=[Replicate()]) * y


def local(x: DTensor, y: DTensor) -> DTensor:
    """Through the tensors that are its parts."""
    part = x.to_local().cos() * 2
    return DTensor.from_local(part, x.device_mesh, x.placements, run_check=False) + y


FUNCTIONS: dict[str, Callable[..., Any]] = {
    one.__name__: one for one in (product, softmax, mean, moved, local)
}


def _distributed(x: torch.Tensor, placement: str, mesh: Any) -> DTensor:
    if placement == "sum":
        part = x / dist.get_world_size()
        return DTensor.from_local(part, mesh, [Partial()], run_check=False)
    return distribute_tensor(x, mesh, [PLACEMENTS[placement]])


def check(name: str, left: str, right: str, dynamic: bool = False) -> None:
    """A function of two DTensors, with the gradients of both."""
    function = FUNCTIONS[name]
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    run = compiled(function, fullgraph=True, dynamic=dynamic)
    with no_graph_runs_eagerly():
        for size in (6, 8) if dynamic else (6, 6):
            torch.manual_seed(size)
            values = [torch.randn(size, size), torch.randn(size, size)]
            results = []
            for one in (run, function):
                pair = [
                    _distributed(value, placement, mesh).detach().requires_grad_()
                    for value, placement in zip(values, (left, right), strict=True)
                ]
                result = one(*pair)
                (result * result).sum().backward()
                gradients = [part.grad for part in pair]
                results.append([result, *gradients])
            found, expected = results
            assert [one.placements for one in found] == [one.placements for one in expected]
            torch.testing.assert_close(
                [one.full_tensor() for one in found], [one.full_tensor() for one in expected]
            )


def warm() -> dict[str, int]:
    """What a first and a second process run on the same caches; how often AOTAutograd's cache answered."""
    counters.clear()
    for name in ("all_reduce", "side_by_side", "input_written_after"):
        torch._dynamo.reset()
        collectives.check(name)
    for name in ("parts_with_gradient", "reduced_with_gradient"):
        torch._dynamo.reset()
        collectives.check_gradients(name)
    plain = counters["aot_autograd"]["autograd_cache_hit"]
    for _ in range(2):
        torch._dynamo.reset()
        check("product", "rows", "columns")
        torch._dynamo.reset()
        check("moved", "rows", "whole")
    return {"plain": plain, "parts": counters["aot_autograd"]["autograd_cache_hit"] - plain}
