"""Functional collectives in compiled functions, with and without gradients, against the same calls in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as collectives

from tests.distributed.compiling import compiled, no_graph_runs_eagerly

SIZE = 6


def all_reduce(x: torch.Tensor, group: Any) -> torch.Tensor:
    return collectives.all_reduce(x.sin(), "sum", group) * x


def all_reduce_max(x: torch.Tensor, group: Any) -> torch.Tensor:
    return collectives.all_reduce(x * 2, "max", group).exp()


def all_reduce_coalesced(x: torch.Tensor, group: Any) -> list[torch.Tensor]:
    y, z = collectives.all_reduce_coalesced([x.sin(), (x + 1).sum(0)], "sum", group)
    return [y * x, z + 1]


def all_gather(x: torch.Tensor, group: Any) -> torch.Tensor:
    return collectives.all_gather_single(x.cos(), 0, group) * 3


def all_gather_columns(x: torch.Tensor, group: Any) -> torch.Tensor:
    return collectives.all_gather_single(x.cos(), 1, group).sum(1)


def all_gather_coalesced(x: torch.Tensor, group: Any) -> list[torch.Tensor]:
    y, z = collectives.all_gather_single_coalesced([x + 1, x.sum(1)], group)
    return [y * 2, z.relu()]


def reduce_scatter(x: torch.Tensor, group: Any) -> torch.Tensor:
    return collectives.reduce_scatter_single(x * x, "sum", 0, group) - 1


def reduce_scatter_coalesced(x: torch.Tensor, group: Any) -> list[torch.Tensor]:
    y, z = collectives.reduce_scatter_single_coalesced([x + 1, x.sin()], "sum", [0, 1], group)
    return [y * 2, z.relu()]


def all_to_all(x: torch.Tensor, group: Any) -> torch.Tensor:
    return collectives.all_to_all_single(x.exp(), None, None, group) + x


def all_to_all_uneven(x: torch.Tensor, group: Any) -> torch.Tensor:
    rank = dist.get_rank(group)
    given = [SIZE // 3, SIZE - SIZE // 3]
    taken = [given[rank]] * 2
    return collectives.all_to_all_single(x.exp(), taken, given, group) + 1


def broadcast(x: torch.Tensor, group: Any) -> torch.Tensor:
    return collectives.broadcast(x * 3, 1, group) + x


def by_the_names_of_eager(x: torch.Tensor, group: Any) -> list[torch.Tensor]:
    """Calls that write into tensors, which Dynamo turns into functional ones."""
    y, z = x + 1, x.new_empty(2 * SIZE, *x.shape[1:])
    dist.all_reduce(y, group=group)
    dist.all_gather_into_tensor(z, y * 2, group=group)
    part = torch.empty_like(x[: SIZE // 2])
    dist.reduce_scatter_tensor(part, y.sin(), group=group)
    return [y * 2, z.relu(), part]


def one_into_the_next(x: torch.Tensor, group: Any) -> torch.Tensor:
    """Each waits for the one before."""
    y = collectives.all_reduce(x, "sum", group)
    z = collectives.all_gather_single(y * y, 0, group)
    return collectives.reduce_scatter_single(z.sin(), "avg", 0, group)


def side_by_side(x: torch.Tensor, group: Any) -> torch.Tensor:
    """All may be under way at once."""
    y = collectives.all_gather_single(x, 0, group)
    w = x @ x.t()
    z = collectives.all_reduce(x + 1, "sum", group)
    v = (w @ x).relu()
    u = collectives.reduce_scatter_single(x * 2, "sum", 0, group)
    return y.sum(0) + z * v + u.sum(0)


def unused(x: torch.Tensor, group: Any) -> torch.Tensor:
    """A collective whose result nobody reads takes part all the same."""
    collectives.all_reduce(x, "sum", group)
    return x.exp()


def input_written_after(x: torch.Tensor, group: Any) -> torch.Tensor:
    """What the collective reads is overwritten later in the program."""
    y = collectives.all_gather_single(x, 0, group)
    if (
        not torch.compiler.is_compiling()
    ):  # eager does not wait by itself, and would send what is written
        collectives.wait_tensor(y)
    z = (x @ x.t()).sin()
    x.mul_(2)
    return y.sum(0) + z.sum()


WITHOUT_GRADIENTS: list[Callable[..., Any]] = [
    *(all_reduce, all_reduce_max, all_reduce_coalesced, all_gather, all_gather_columns),
    *(all_gather_coalesced, reduce_scatter, reduce_scatter_coalesced, all_to_all),
    *(all_to_all_uneven, broadcast, by_the_names_of_eager, one_into_the_next),
    *(side_by_side, unused, input_written_after),
]


def gathered_with_gradient(x: torch.Tensor, group: Any) -> torch.Tensor:
    return collectives.all_gather_single_autograd(x.sin(), 0, group).exp()


def scattered_with_gradient(x: torch.Tensor, group: Any) -> torch.Tensor:
    return collectives.reduce_scatter_single_autograd(x * x, "sum", 0, group).cos()


def exchanged_with_gradient(x: torch.Tensor, group: Any) -> torch.Tensor:
    y = collectives.all_to_all_single_autograd(x.sin(), None, None, group)
    return y * y


def reduced_with_gradient(x: torch.Tensor, group: Any) -> torch.Tensor:
    return collectives.all_reduce(x.sin(), "sum", group) * x


def coalesced_with_gradient(x: torch.Tensor, group: Any) -> torch.Tensor:
    y, z = collectives.all_gather_single_coalesced([x.sin(), x * 2], group)
    return y * z


def parts_with_gradient(x: torch.Tensor, group: Any) -> torch.Tensor:
    whole = collectives.all_gather_single_autograd(x, 0, group)
    product = (whole @ x.t()).relu()
    return collectives.reduce_scatter_single_autograd(product, "sum", 0, group) * 2


WITH_GRADIENTS: list[Callable[..., Any]] = [
    *(gathered_with_gradient, scattered_with_gradient),
    *(exchanged_with_gradient, reduced_with_gradient, coalesced_with_gradient),
    parts_with_gradient,
]
_BY_NAME = {one.__name__: one for one in [*WITHOUT_GRADIENTS, *WITH_GRADIENTS]}


def _leaves(result: Any) -> list[torch.Tensor]:
    results = result if isinstance(result, list) else [result]
    return [one.wait() if hasattr(one, "wait") else one for one in results]


def check(name: str, dynamic: bool = False) -> None:
    """Values and what becomes of the argument, without gradients."""
    function, group = _BY_NAME[name], dist.group.WORLD
    run = compiled(lambda x: function(x, group), dynamic=dynamic, fullgraph=True)
    with no_graph_runs_eagerly():
        for columns in (4, 5) if dynamic else (4, 4):
            x = torch.randn(SIZE, columns) + dist.get_rank()
            taken, expected = x.clone(), x.clone()
            found = _leaves(run(taken))
            torch.testing.assert_close(found, _leaves(function(expected, group)))
            torch.testing.assert_close(taken, expected)


def check_gradients(name: str, dynamic: bool = False) -> None:
    """Values and gradients."""
    function, group = _BY_NAME[name], dist.group.WORLD
    run = compiled(lambda x: function(x, group), dynamic=dynamic, fullgraph=True)
    with no_graph_runs_eagerly():
        for columns in (4, 5) if dynamic else (4, 4):
            x = torch.randn(SIZE, columns) + dist.get_rank()
            taken, expected = (x.clone().requires_grad_() for _ in range(2))
            (found,), (wanted,) = _leaves(run(taken)), _leaves(function(expected, group))
            torch.testing.assert_close(found, wanted)
            (found * found).sum().backward()
            (wanted * wanted).sum().backward()
            torch.testing.assert_close(taken.grad, expected.grad)
