"""Processes that end, or do not take part, in the middle of compiled code."""

from __future__ import annotations

import datetime
import os
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as collectives

from tests.distributed.compiling import compiled, no_graph_runs_eagerly


def _function(group: Any) -> Any:
    def function(x: torch.Tensor) -> torch.Tensor:
        return collectives.all_reduce(x.sin(), "sum", group) + (x @ x.t()).sum()

    return function


def _still_works() -> None:
    x = torch.randn(5, 5)
    torch.testing.assert_close(compiled(lambda x: x.exp() @ x)(x), x.exp() @ x)


def dies(in_backward: bool) -> str:
    """Process 1 ends where the other one waits for it; what that is told."""
    function = _function(dist.group.WORLD)
    run = compiled(function, fullgraph=True)
    x = torch.randn(6, 6, requires_grad=in_backward)
    with no_graph_runs_eagerly():
        for _ in range(2):
            result = run(x)
            torch.testing.assert_close(result, function(x))
            if in_backward:
                result.sum().backward()
    if in_backward:
        result = run(x)
    if dist.get_rank() == 1:
        os._exit(7)
    try:
        result.sum().backward() if in_backward else run(x)
    except RuntimeError as error:
        _still_works()
        return str(error)
    return ""


def stays_away() -> str:
    """Process 1 does not take part; what the other one is told after a second."""
    group = dist.new_group(timeout=datetime.timedelta(seconds=1))
    function = _function(group)
    run = compiled(function, fullgraph=True)
    x = torch.randn(6, 6)
    with no_graph_runs_eagerly():
        torch.testing.assert_close(run(x), function(x))
    told = ""
    if dist.get_rank() == 0:
        try:
            run(x)
        except RuntimeError as error:
            told = str(error)
    _still_works()
    return told
