"""Compiling in a process of a group, where a graph that runs eagerly is an error."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch

from mlcc.capture import backend, session


@contextlib.contextmanager
def no_graph_runs_eagerly() -> Iterator[None]:
    """Graphs are compiled or loaded inside, and each of them runs as compiled code."""

    def refuse(gm: torch.fx.GraphModule) -> Any:
        raise AssertionError(f"a graph runs eagerly:\n{gm.print_readable(print_output=False)}")

    before = backend.timings()
    with mock.patch.object(session, "EagerGraph", refuse):
        yield
    after = backend.timings()
    assert after.graphs > before.graphs
    assert len(after.first_executions) > len(before.first_executions)


def compiled(function: Any, **options: Any) -> Callable[..., Any]:
    """The function or module by torch.compile with mlcc."""
    return torch.compile(function, backend=backend.compile, **options)
