"""DDP with hooks and FSDP2 with its options: compiled steps with an optimizer against the same ones in eager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from tests.distributed.compiling import compiled, no_graph_runs_eagerly

STEPS = 4


class Layer(nn.Module):
    """Modules of our own: Dynamo does not look into forward functions of torch's between hooks."""

    def __init__(self, given: int, wanted: int) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(given), nn.Linear(given, wanted)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = nn.functional.gelu(self.linear(self.norm(x)))
        return result


class Network(nn.Module):
    """Two layers and one more product."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = Layer(12, 32), Layer(32, 32), nn.Linear(32, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.last(self.second(self.first(x)))
        return result


def _network() -> Network:
    """In f64: what hooks and optimizers divide by may be near zero, where rounding of f32 shows."""
    torch.manual_seed(0)
    return Network().double()


def _data(step: int) -> torch.Tensor:
    """Of this process."""
    generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
    return torch.randn(6, 12, generator=generator, dtype=torch.float64)


def _train(
    network: nn.Module, run: Callable[..., torch.Tensor], each: Callable[[int], None]
) -> list[torch.Tensor]:
    """Losses and then parameters."""
    stepper = torch.optim.AdamW(network.parameters(), lr=1e-3)
    dtype = next(network.parameters()).dtype
    losses = []
    for step in range(STEPS):
        each(step)
        loss = run(_data(step).to(dtype)).double().square().mean()
        loss.backward()
        losses.append(loss.detach())
        if step % 2:
            nn.utils.clip_grad_norm_(network.parameters(), 0.5)
        stepper.step()
        stepper.zero_grad()
    return [*losses, *(_local(one) for one in network.parameters())]


def _local(one: torch.Tensor) -> torch.Tensor:
    return one.to_local().detach() if isinstance(one, DTensor) else one.detach()


def _compare(wrap: Callable[[nn.Module], nn.Module], **tolerances: float) -> None:
    results = []
    for is_compiled in (True, False):
        network = wrap(_network())
        if is_compiled:
            with no_graph_runs_eagerly():
                results.append(_train(network, compiled(network), lambda _: None))
        else:
            results.append(_train(network, network, lambda _: None))
    torch.testing.assert_close(*results, **tolerances)


_calls: list[int] = []


def halves(state, bucket):  # type: ignore[no-untyped-def]  # torch reads annotations, as no text
    """A hook of a user's own: the mean of gradients in double precision, halved."""
    _calls.append(bucket.index())
    wide = bucket.buffer().double() / dist.get_world_size() / 2
    work = dist.all_reduce(wide, async_op=True).get_future()
    return work.then(lambda done: done.value()[0].to(bucket.buffer().dtype))


def ddp(hook: str) -> None:
    """Hooks of torch's and one of our own."""

    def wrap(network: nn.Module) -> nn.Module:
        wrapped = DistributedDataParallel(network)
        if hook == "halves":
            wrapped.register_comm_hook(None, halves)
        elif hook:
            wrapped.register_comm_hook(None, getattr(default_hooks, hook))
        return wrapped

    _compare(wrap, rtol=1e-4, atol=1e-5)
    assert hook != "halves" or len(_calls) >= 2 * STEPS


def ddp_skips(unused: bool) -> None:
    """Steps without a sum of gradients, and parameters that a step does not use."""

    class Sometimes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.other = _network(), nn.Linear(12, 5, dtype=torch.float64)
            self.uses_other = True

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.net(x)
            return result + self.other(x) if self.uses_other else result

    results = []
    for is_compiled in (True, False):
        torch.manual_seed(0)
        module = Sometimes()
        network = DistributedDataParallel(module, find_unused_parameters=unused)
        run = compiled(network) if is_compiled else network

        def each(step: int, module: Sometimes = module, network: Any = network) -> None:
            module.uses_other = not unused or step % 2 == 0
            network.require_backward_grad_sync = step % 3 != 1

        if is_compiled:
            with no_graph_runs_eagerly():
                results.append(_train(network, run, each))
        else:
            results.append(_train(network, run, each))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


def fsdp(option: str) -> None:
    """Options of fully_shard."""
    world = dist.get_world_size()
    options: dict[str, Any] = {}
    if option == "mixed":
        options["mp_policy"] = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    if option == "kept":
        options["reshard_after_forward"] = False
    mesh = (
        init_device_mesh("cpu", (world, 1), mesh_dim_names=("copies", "parts"))
        if option == "copies"
        else init_device_mesh("cpu", (world,))
    )

    def wrap(network: nn.Module) -> nn.Module:
        assert isinstance(network, Network)
        if option == "mixed":
            network.float()
        for layer in (network.first, network.second):
            fully_shard(layer, mesh=mesh, **options)
        return fully_shard(network, mesh=mesh, **options)

    tolerance = {"rtol": 2e-2, "atol": 3e-3} if option == "mixed" else {"rtol": 1e-4, "atol": 1e-5}
    _compare(wrap, **tolerance)


def whole_step() -> None:
    """Forward, gradients, their sum over the processes and momentum in one compiled function."""
    from torch.distributed import _functional_collectives as collectives

    def step(x: torch.Tensor, parameters: list[torch.Tensor], speeds: list[torch.Tensor]) -> Any:
        w, b, v = parameters
        loss = ((x @ w + b).tanh() @ v).square().mean()
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, speed, gradient in zip(parameters, speeds, gradients, strict=True):
                total = collectives.all_reduce(gradient, "avg", dist.group.WORLD)
                speed.mul_(0.9).add_(total)
                parameter.sub_(speed, alpha=0.1)
        return loss.detach()

    torch.manual_seed(0)
    start = [torch.randn(*shape, dtype=torch.float64) for shape in ((12, 8), (8,), (8, 3))]
    results = []
    for run in (compiled(step, fullgraph=True), step):
        parameters = [one.clone().requires_grad_() for one in copy.deepcopy(start)]
        speeds = [torch.zeros_like(one) for one in start]
        with torch._dynamo.config.patch(trace_autograd_ops=True):
            losses = [run(_data(number), parameters, speeds) for number in range(STEPS)]
        results.append([*losses, *(one.detach() for one in parameters), *speeds])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
