"""Which graphs serve their first calls op by op, while their kernels are compiled behind them.

Results may then differ in their last bits before and after. So graphs that draw random numbers, whose draws would
differ as a whole, and programs that ask for deterministic algorithms wait for their kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import GraphModule

from mlcc.capture.eager_run import EagerRun
from mlcc.importer.context import ImportedGraph

# Of `tier="auto"`: what compiles within a second on a slow machine is waited for.
_LEAST_NODES = 150  # of a graph that is compiled behind its calls
_PATIENCE = 2.0  # seconds that its first call waits


def meanwhile(
    gm: GraphModule, imported: ImportedGraph, options: Mapping[str, Any]
) -> EagerRun | None:
    """What serves calls until the graph is compiled; None where they wait."""
    tier = options["tier"]
    if tier == "full" or (tier == "auto" and sum(imported.nodes.values()) < _LEAST_NODES):
        return None
    if torch.are_deterministic_algorithms_enabled() or options["weights"] == "steal":
        return None
    if imported.gpu or options["gpu"] == "emulate" or options["verify"] != "off":
        return None
    if imported.eager_calls or imported.object_inputs or imported.computes_objects:
        return None
    if any(_draws(part) for part in gm.modules() if isinstance(part, GraphModule)):
        return None
    run = EagerRun(gm)
    return run if run.tells_strides else None


def patience(options: Mapping[str, Any]) -> float:
    """How many seconds the first call waits for the kernels before it runs without."""
    return _PATIENCE if options["tier"] == "auto" else 0.0


def _draws(gm: GraphModule) -> bool:
    return any(
        torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
        for node in gm.graph.nodes
        if node.op == "call_function"
    )
