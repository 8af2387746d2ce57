"""What a backend of torch.compile did: graphs, nodes, kernels, and the time that it took for itself.

`observer("mlcc")` reads mlcc's own records. Any other name gives a stand-in that runs each graph eagerly through
AOTAutograd and counts the same things, so that the benchmarks can be tried without the compiled core.
"""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

# Nodes of these ops are expected to be ATen calls: matmul, convolution, attention.
CONTRACTIONS = (
    "addmm",
    "baddbmm",
    "bmm",
    "convolution",
    "convolution_backward",
    "mm",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention_for_cpu_backward",
)

# Checks at run time compute nothing.
CHECKS = ("_assert_async", "_assert_scalar")


@dataclass
class GraphFacts:
    """One compiled graph."""

    kernels: int = 0
    compiled: int = 0  # those of them that no cache held
    nodes: dict[str, int] = field(default_factory=dict)  # that do arithmetic or move data, by op
    externs: dict[str, int] = field(default_factory=dict)  # those of them that are ATen calls
    arena_bytes: int = 0
    seconds: list[float] = field(default_factory=list)  # of its first executions, in order

    @property
    def first_cost(self) -> float:
        """Seconds by which the first execution exceeds the median of the others."""
        first, *others = self.seconds or [0.0]
        return max(0.0, first - statistics.median(others or [first]))


@dataclass(frozen=True)
class Summary:
    """Several graphs taken together."""

    graphs: int
    first_cost: float
    kernels: int
    compiled: int
    aten_calls: int  # that compute something
    nodes: int
    generated_nodes: int
    other_nodes: int  # nodes that are no contraction
    arena_bytes: int
    aten_ops: dict[str, int]

    @property
    def node_share(self) -> float:
        """Nodes in kernels over all nodes."""
        return self.generated_nodes / self.nodes if self.nodes else 1.0

    @property
    def other_node_share(self) -> float:
        """Nodes in kernels over the nodes that are no contraction."""
        return self.generated_nodes / self.other_nodes if self.other_nodes else 1.0


def summarize(graphs: Sequence[GraphFacts]) -> Summary:
    """Sums over the graphs; of the arena the largest."""
    nodes, externs = _merge(g.nodes for g in graphs), _merge(g.externs for g in graphs)
    contractions = sum(count for op, count in nodes.items() if is_contraction(op))
    return Summary(
        graphs=len(graphs),
        first_cost=sum(g.first_cost for g in graphs),
        kernels=sum(g.kernels for g in graphs),
        compiled=sum(g.compiled for g in graphs),
        aten_calls=sum(count for op, count in externs.items() if _packet(op) not in CHECKS),
        nodes=sum(nodes.values()),
        generated_nodes=sum(nodes.values()) - sum(externs.values()),
        other_nodes=sum(nodes.values()) - contractions,
        arena_bytes=max((g.arena_bytes for g in graphs), default=0),
        aten_ops=externs,
    )


def is_contraction(op: str) -> bool:
    """Whether an overload's name ("aten.addmm.default") is a matmul, a convolution or attention."""
    return _packet(op) in CONTRACTIONS


def _packet(op: str) -> str:
    """ "addmm" of "aten.addmm.default"; some names of Inductor's have one part only."""
    return op.split(".")[1] if "." in op else op


def _merge(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    merged: dict[str, int] = {}
    for one in counts:
        for name, count in one.items():
            merged[name] = merged.get(name, 0) + count
    return merged


class Observer(Protocol):
    """A backend and what it did."""

    backend: Any  # for torch.compile

    def graphs(self) -> list[GraphFacts]:
        """Every graph so far, in the order of compilation."""

    def compile_seconds(self) -> float:
        """Wall time so far in the callbacks of the backend, loading from caches included."""

    def stop_timing(self) -> None:
        """Executions are no longer timed, and cost what they cost without the observer."""


def observer(backend: str) -> Observer:
    """The observer of "mlcc", or of the stand-in for any other name."""
    return MlccObserver() if backend == "mlcc" else StandIn()


class MlccObserver:
    """mlcc, and its compiled graphs as they come into being."""

    def __init__(self) -> None:
        backend: Any = importlib.import_module("mlcc.capture.backend")
        self.backend = backend.compile
        self._module: Any = importlib.import_module("mlcc.capture.compiled_graph")
        self._eager_graph: Any = importlib.import_module("mlcc.capture.aot_graph").EagerGraph
        self._graphs: list[Any] = []
        self._seconds: dict[int, list[float]] = {}
        self._calls = {c: c.__call__ for c in (self._module.CompiledGraph, self._eager_graph)}
        self._watch_creation()
        for graph_class, call in self._calls.items():
            graph_class.__call__ = self._timed(call)

    def graphs(self) -> list[GraphFacts]:
        """Every graph so far, in the order of compilation."""
        return [self._facts(graph) for graph in self._graphs]

    def compile_seconds(self) -> float:
        """Wall time so far in the callbacks of the backend, loading from caches included."""
        return float(self._module.timings().callbacks)

    def stop_timing(self) -> None:
        """Executions are no longer timed, and cost what they cost without the observer."""
        for graph_class, call in self._calls.items():
            graph_class.__call__ = call

    def _watch_creation(self) -> None:
        """`_link` runs when a graph was compiled and when it was loaded."""
        link, init = self._module.CompiledGraph._link, self._eager_graph.__init__

        def watched_link(graph: Any, executable: Any) -> None:
            link(graph, executable)
            self._graphs.append(graph)

        def watched_init(graph: Any, gm: torch.fx.GraphModule) -> None:
            init(graph, gm)
            self._graphs.append(graph)

        self._module.CompiledGraph._link = watched_link
        self._eager_graph.__init__ = watched_init

    def _timed(self, call: Callable[[Any, list[Any]], Any]) -> Callable[[Any, list[Any]], Any]:
        def timed(graph: Any, inputs: list[Any]) -> Any:
            start = time.perf_counter()
            results = call(graph, inputs)
            self._seconds.setdefault(id(graph), []).append(time.perf_counter() - start)
            return results

        return timed

    def _facts(self, graph: Any) -> GraphFacts:
        seconds = self._seconds.get(id(graph), [])
        if isinstance(graph, self._eager_graph):
            nodes = count_nodes(graph.gm)
            return GraphFacts(nodes=nodes, externs=nodes, seconds=seconds)
        stats, imported = graph.stats, graph.imported
        externs = dict(imported.externs)
        if stats["replaced_calls"]:
            externs["aten.copy_.default"] -= stats["replaced_calls"]
        return GraphFacts(
            kernels=stats["kernels"],
            compiled=stats["compiled"],
            nodes=dict(imported.nodes),
            externs={op: count for op, count in externs.items() if count},
            arena_bytes=stats["arena_bytes"],
            seconds=seconds,
        )


class StandIn:
    """Runs graphs eagerly behind AOTAutograd, without decompositions."""

    def __init__(self) -> None:
        from torch._dynamo.backends.common import aot_autograd

        self._graphs: list[_CountedGraph] = []
        self._compile_seconds = 0.0
        self.backend = aot_autograd(fw_compiler=self._compile)

    def graphs(self) -> list[GraphFacts]:
        """Every graph so far, in the order of compilation."""
        return [graph.facts for graph in self._graphs]

    def compile_seconds(self) -> float:
        """Wall time so far in the callbacks of the backend."""
        return self._compile_seconds

    def stop_timing(self) -> None:
        """Executions are no longer timed."""
        for graph in self._graphs:
            graph.is_timed = False

    def _compile(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        del inputs
        start = time.perf_counter()
        graph = _CountedGraph(gm)
        self._graphs.append(graph)
        self._compile_seconds += time.perf_counter() - start
        return graph


class _CountedGraph:
    """A graph module that notes how long its calls take."""

    def __init__(self, gm: torch.fx.GraphModule) -> None:
        # On the instance: torch copies __dict__ to the functions that it wraps around this.
        self._boxed_call = True
        self._gm = gm
        self.is_timed = True
        self.facts = GraphFacts(nodes=count_nodes(gm), externs=count_nodes(gm))

    def __call__(self, inputs: list[Any]) -> Any:
        start = time.perf_counter()
        results = self._gm(*inputs)
        if self.is_timed:
            self.facts.seconds.append(time.perf_counter() - start)
        inputs.clear()
        return results


def count_nodes(gm: torch.fx.GraphModule) -> dict[str, int]:
    """Calls of dispatcher ops in a graph, by op."""
    counts: dict[str, int] = {}
    for node in gm.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload):
            counts[str(node.target)] = counts.get(str(node.target), 0) + 1
    return counts
