"""What TorchInductor calls ATen for: its lowering runs, its code is neither compiled nor called."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch._inductor import config, ir
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch._inductor.exc import InductorError
from torch._inductor.graph import GraphLowering

from benchmarks.observe import GraphFacts, count_nodes

# Extern kernels that compute nothing: a result of another one, reads of sizes and their checks.
NO_COMPUTATION = (ir.MultiOutput, ir.DynamicScalar, ir.AssertScalar)


class InductorObserver:
    """Counts what Inductor makes of each graph, which itself runs eagerly."""

    def __init__(self) -> None:
        self._graphs: list[GraphFacts] = []

    def backend(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """For torch.compile."""
        with config.patch(fx_graph_cache=False):
            compiled: Callable[..., Any] = compile_fx(gm, inputs, inner_compile=self._lower)
        return compiled

    def graphs(self) -> list[GraphFacts]:
        """Every graph so far, in the order of compilation; kernels and times are not measured."""
        return self._graphs

    def _lower(
        self, gm: torch.fx.GraphModule, inputs: Sequence[Any], **options: Any
    ) -> Callable[[list[Any]], Any]:
        # Inductor's passes change the graph of the other; constants are shared, since no tensor can be copied here.
        eager = torch.fx.GraphModule(gm, copy.deepcopy(gm.graph))
        with _up_to_code() as externs, contextlib.suppress(InductorError):
            compile_fx_inner(gm, inputs, **options)
        self._graphs.append(GraphFacts(nodes=count_nodes(eager), externs=externs))

        def run(arguments: list[Any]) -> Any:
            results = eager(*arguments)
            arguments.clear()
            return results

        run._boxed_call = True  # type: ignore[attr-defined]
        return run


@contextlib.contextmanager
def _up_to_code() -> Iterator[dict[str, int]]:
    """Inside, Inductor stops with an error where it would write code; yields what it would call, then filled in."""
    externs: dict[str, int] = {}

    def stop(graph: GraphLowering) -> None:
        externs.update(_count_externs(graph.operations))  # some names need Inductor's current graph
        raise InterruptedError

    with mock.patch.object(GraphLowering, "compile_to_module", stop):
        yield externs


def _count_externs(operations: Sequence[ir.Operation]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for operation in operations:
        if isinstance(operation, ir.ExternKernel) and not isinstance(operation, NO_COMPUTATION):
            name = str(operation.op_overload or operation.get_kernel_name())
            counts[name] = counts.get(name, 0) + 1
    return counts
