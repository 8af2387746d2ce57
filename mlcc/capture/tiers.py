"""Which graphs serve their first calls op by op, while their kernels are compiled behind them.

Results may then differ in their last bits before and after. So graphs that draw random numbers, whose draws would
differ as a whole, and programs that ask for deterministic algorithms wait for their kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule

from mlcc.capture import background
from mlcc.capture.background import Job
from mlcc.capture.eager_run import EagerRun
from mlcc.importer.context import ImportedGraph
from mlcc.torch_private import aot, dispatch

# Of `tier="auto"`: what compiles within a second on a slow machine is waited for.
_LEAST_NODES = 150  # of a graph that is compiled behind its calls
_PATIENCE = 2.0  # seconds that its first call waits


@dataclass(frozen=True)
class Meanwhile:
    """What serves calls until a graph is compiled."""

    job: Job  # which compiles it
    run: Callable[[list[Any]], Any]

    def is_over(self) -> bool:
        """Whether who asks for the code need not wait for a thread."""
        return self.job.is_due()


def compile_behind(
    gm: GraphModule,
    imported: ImportedGraph,
    options: Mapping[str, Any],
    compile_it: Callable[[], Any],
    *,
    is_backward: bool,
) -> tuple[Callable[[], Any], Meanwhile | None]:
    """What gives the code, and what serves the calls until it can; None where they wait.

    Compiling has begun, unless they wait.
    """
    run = _eager_run(gm, imported, options)
    if run is None:
        return compile_it, None
    job = background.begin(compile_it, is_first=not is_backward)
    patience = _PATIENCE if options["tier"] == "auto" else 0.0
    if not is_backward and job.wait(patience):
        return job.result, None
    return job.result, Meanwhile(job, run)


def _eager_run(
    gm: GraphModule, imported: ImportedGraph, options: Mapping[str, Any]
) -> EagerRun | None:
    tier = options["tier"]
    if tier == "full" or (tier == "auto" and sum(imported.nodes.values()) < _LEAST_NODES):
        return None
    if torch.are_deterministic_algorithms_enabled() or options["weights"] == "steal":
        return None
    if imported.gpu or options["gpu"] == "emulate" or options["verify"] != "off":
        return None
    if imported.eager_calls or imported.object_inputs or imported.computes_objects:
        return None
    if aot.is_ahead_of_time():  # what is saved must be known to load
        return None
    if any(_draws(part) for part in gm.modules() if isinstance(part, GraphModule)):
        return None
    run = EagerRun(gm)
    return run if run.tells_strides else None


def _draws(gm: GraphModule) -> bool:
    """Whether a graph draws random numbers, by ops of its own or by those that it hands to others."""
    return any(
        hasattr(op, "tags") and dispatch.is_random(op)
        for node in gm.graph.nodes
        if node.op == "call_function"
        for op in (node.target, *node.args)
    )
