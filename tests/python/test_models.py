"""Small models of the kinds that the demo runs, through the backend, judged by the accuracy rule."""

from __future__ import annotations

import copy

import pytest
import torch

from benchmarks import models
from tests.python.accuracy import InFloat64, judge_all, judge_together

pytest.importorskip("transformers")


@pytest.mark.parametrize("name", models.NAMES)
def test_right_at_every_size_and_compiled_twice(name: str) -> None:
    """The second size makes the graph dynamic; the third one finds it compiled."""
    torch._dynamo.reset()
    workload = models.build(name, small=True)
    module = workload.module
    wide = copy.deepcopy(module).double()
    compiled = torch.compile(module, backend="mlcc", fullgraph=True)
    graphs = []
    for size in workload.sizes:
        result = models.evaluate(workload, compiled, list(module.parameters()), size)
        eager = models.evaluate(workload, module, list(module.parameters()), size)
        with InFloat64():
            exact = models.evaluate(workload, wide, list(wide.parameters()), size)
        judge = judge_together if name == "training" else judge_all
        verdict = judge(result, eager, exact)
        assert verdict, f"{workload.size_name}={size}: {verdict.reason}"
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert graphs[2] == graphs[1], "the third size compiled a graph"
