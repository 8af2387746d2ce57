"""Training by two processes, compiled, against one process in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from mlcc.capture import backend
from tests.distributed import gpt
from tests.distributed.compiling import compiled, no_graph_runs_eagerly

DTYPES = {"f32": torch.float32, "f64": torch.float64}
TOLERANCES = {
    torch.float32: {"rtol": 2e-4, "atol": 2e-5},
    torch.float64: {"rtol": 1e-8, "atol": 1e-9},
}


def _my_part() -> slice:
    rows = gpt.BATCH // dist.get_world_size()
    return slice(dist.get_rank() * rows, (dist.get_rank() + 1) * rows)


def _whole(parameter: torch.Tensor) -> torch.Tensor:
    if isinstance(parameter, DTensor):
        return parameter.full_tensor().detach()
    return parameter.detach()


def _train(
    network: nn.Module, run: Callable[..., Any], part: slice, dtype: torch.dtype, shared_data: bool
) -> None:
    """Compares losses and parameters with those of one process."""
    stepper = gpt.optimizer(network.parameters(), dtype)
    losses = []
    for step in range(gpt.STEPS):
        loss = gpt.loss_of(run, part, step)
        loss.backward()
        stepper.step()
        stepper.zero_grad()
        losses.append(loss.item())
    mean = torch.tensor(losses, dtype=torch.float64)
    if not shared_data:
        dist.all_reduce(mean)
        mean /= dist.get_world_size()
    expected, parameters = gpt.trained_alone(dtype)
    assert expected[-1] < expected[0] - 0.3  # it learns
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(mean, torch.tensor(expected, dtype=torch.float64), **tolerance)
    found = {name.removeprefix("module."): _whole(one) for name, one in network.named_parameters()}
    assert found.keys() == parameters.keys()
    for name, one in parameters.items():
        torch.testing.assert_close(found[name], one, **tolerance, msg=lambda text, n=name: n + text)


def by_ddp(dtype: str) -> None:
    """In several buckets, each a graph."""
    before = backend.timings().graphs
    with (
        mock.patch.object(dist, "_DEFAULT_FIRST_BUCKET_BYTES", 50_000),
        no_graph_runs_eagerly(),
    ):
        network = DistributedDataParallel(gpt.model(DTYPES[dtype]), bucket_cap_mb=0.1)
        _train(network, compiled(network), _my_part(), DTYPES[dtype], shared_data=False)
    assert backend.timings().graphs - before >= 6


def by_fsdp(dtype: str, by_block: bool = True) -> None:
    """`by_block`: each block is compiled, as is usual; else the whole."""
    network = gpt.model(DTYPES[dtype])
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in network.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(network, mesh=mesh)
    run: Any = network
    if by_block:
        for block in network.blocks:
            block.forward = compiled(block.forward)
    else:
        run = compiled(network)
    with no_graph_runs_eagerly():
        _train(network, run, _my_part(), DTYPES[dtype], shared_data=False)


def _moves(found: Placement, wanted: Placement, **options: Any) -> ParallelStyle:
    return PrepareModuleInput(input_layouts=found, desired_input_layouts=wanted, **options)


def _plan(sequence: bool) -> dict[str, ParallelStyle]:
    """Of a block."""
    plan: dict[str, ParallelStyle] = {
        f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")
    }
    if not sequence:
        out = RowwiseParallel()
        return plan | {"attention.out": out, "up": ColwiseParallel(), "down": RowwiseParallel()}
    return plan | {
        "norm1": SequenceParallel(),
        "attention": _moves(Shard(1), Replicate()),
        "attention.out": RowwiseParallel(output_layouts=Shard(1)),
        "norm2": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
    }


def by_tensors(dtype: str, sequence: bool = False) -> None:
    """`sequence`: norms see parts of the sequence, so that all-gathers and reduce-scatters take the place of sums."""
    network = gpt.model(DTYPES[dtype])
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in network.blocks:
        parallelize_module(block, mesh, _plan(sequence))
    if sequence:
        enter = _moves(Replicate(), Shard(1), use_local_output=True)
        leave = _moves(Shard(1), Replicate(), use_local_output=True)
        parallelize_module(network, mesh, {"blocks.0": enter, "norm": leave})
    with no_graph_runs_eagerly():
        _train(network, compiled(network), slice(None), DTYPES[dtype], shared_data=True)
