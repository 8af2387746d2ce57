"""How the benchmarks count ATen calls: ours, and what TorchInductor would call."""

from __future__ import annotations

import warnings

import pytest
import torch

import mlcc
from benchmarks.inductor_calls import InductorObserver
from benchmarks.observe import MlccObserver, summarize
from mlcc.capture import session
from mlcc.capture.aot_graph import EagerGraph
from mlcc.capture.compiled_graph import CompiledGraph
from mlcc.ir.types import GraphUnsupported

SHARED = ((CompiledGraph, "_link"), (EagerGraph, "__init__"))


@pytest.fixture(autouse=True)
def _own_observer(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an observer replaces is put back."""
    for owner, name in (*SHARED, *((owner, "__call__") for owner, _ in SHARED)):
        monkeypatch.setattr(owner, name, getattr(owner, name))


def step(weight: torch.Tensor, x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    total.add_(1)
    return torch.sort((x @ weight).relu(), dim=1)[0]


def test_matmul_and_sort_are_calls_and_a_write_into_an_input_is_none() -> None:
    inputs = [torch.ones(8, 8), torch.ones(4, 8), torch.zeros(3)]
    ours, inductor = MlccObserver(), InductorObserver()
    for observer in (ours, inductor):
        torch._dynamo.reset()
        with torch.no_grad():
            torch.compile(step, backend=observer.backend)(*inputs)
    assert summarize(ours.graphs()).aten_ops == {"aten.mm.default": 1, "aten.sort.default": 1}
    assert summarize(inductor.graphs()).aten_calls == 2
    assert inputs[2].tolist() == [2, 2, 2]


def test_checks_are_no_calls_that_compute() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        torch.ops.aten._assert_async.msg(x.sum() > 0, "not positive")
        return x.sin()

    ours = MlccObserver()
    torch._dynamo.reset()
    torch.compile(step, backend=ours.backend)(torch.ones(3))
    counted = summarize(ours.graphs())
    assert counted.aten_ops == {"aten._assert_async.msg": 1}
    assert counted.aten_calls == 0


def test_a_graph_that_runs_eagerly_is_all_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise GraphUnsupported("no counterpart")

    monkeypatch.setattr(session.fx_graph, "import_graph", refuse)
    ours = MlccObserver()
    torch._dynamo.reset()
    with mlcc.config.patch(torch_caches=False), warnings.catch_warnings():
        warnings.simplefilter("ignore", mlcc.EagerFallbackWarning)
        torch.compile(lambda x: x.sin() + 1, backend=ours.backend)(torch.ones(3))
    assert summarize(ours.graphs()).aten_ops == {"aten.sin.default": 1, "aten.add.Tensor": 1}


def test_graphs_that_inductor_counts_run_eagerly_forward_and_backward() -> None:
    observer = InductorObserver()
    compiled = torch.compile(lambda x, w: (x @ w).tanh(), backend=observer.backend)
    x, w = torch.randn(4, 8), torch.randn(8, 8, requires_grad=True)
    compiled(x, w).sum().backward()
    torch.testing.assert_close(w.grad, x.t() @ (1 - (x @ w).tanh() ** 2))
    assert summarize(observer.graphs()).aten_calls == 2
