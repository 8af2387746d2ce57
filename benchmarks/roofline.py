"""How fast a workload could be by what this machine allows: the bytes that must move, the arithmetic that must be done.

limits = Limits.parse(Limits.run_program(threads=1))    # the program machine_limits, some seconds
work = Work.of(case)                        # traced from the function, by the costs of costs.json
seconds = limits.seconds(work)              # the larger of what memory and what arithmetic takes
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch._decomp import core_aten_decompositions
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

from benchmarks.workloads import Case

ROOT = Path(__file__).resolve().parent.parent
COSTS: dict[str, float] = json.loads(Path(__file__).with_name("costs.json").read_text())
SINGLE_PASS = ("read", "read_in_order", "copy", "copy_nt", "write")


@dataclass(frozen=True)
class Work:
    """What has to be done at least: bytes of inputs read once and of results written once, and vector instructions."""

    bytes: int
    instructions: float  # of one element each: a vector instruction does several

    @classmethod
    def of(cls, case: Case) -> Work:
        """Bytes by the inputs and results, instructions by the graph of core ATen ops."""
        graph = trace(case.function, case.inputs)
        results = [v for v in _results(graph) if isinstance(v, torch.Tensor)]
        read = _bytes(case.inputs) if case.bytes_read is None else case.bytes_read
        written = _bytes(results) + _bytes([case.inputs[i] for i in case.in_place])
        return cls(read + written, sum(_cost(node) for node in graph.graph.nodes))


def trace(function: Callable[..., object], inputs: Sequence[torch.Tensor]) -> GraphModule:
    """The function of these inputs as a graph of core ATen ops, its inputs as the placeholders."""
    table = core_aten_decompositions()
    with torch.no_grad():
        make = make_fx(
            lambda given: function(*given), decomposition_table=table, tracing_mode="fake"
        )
        return make(list(inputs))


def _results(graph: Any) -> list[Any]:
    (output,) = [node for node in graph.graph.nodes if node.op == "output"]
    return [node.meta["val"] for node in tree_leaves(output.args) if node is not None]


def _bytes(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _cost(node: Any) -> float:
    if node.op != "call_function" or not hasattr(node.target, "_schema"):
        return 0.0
    name = node.target._schema.name.split("::")[-1].removeprefix("_foreach_").rstrip("_")
    per_element = COSTS.get(name, COSTS["default"])
    tensors = [
        value
        for one in (*node.all_input_nodes, node)
        for value in tree_leaves(one.meta.get("val"))
        if isinstance(value, torch.Tensor)
    ]
    return per_element * max((tensor.numel() for tensor in tensors), default=0)


@dataclass(frozen=True)
class Limits:
    """What `machine_limits` found for a number of threads."""

    threads: int
    flops: float
    bandwidths: dict[int, float]  # bytes of footprint: the best bytes per second of any access

    @staticmethod
    def run_program(threads: int, seconds: float = 5.0) -> str:
        """What `machine_limits` prints, which the build makes."""
        program = ROOT / "build" / "release" / "bin" / "machine_limits"
        command = [str(program), "--threads", str(threads), "--seconds", str(seconds)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    @classmethod
    def parse(cls, text: str) -> Limits:
        """Of the program's output."""
        found = json.loads(text)
        bandwidths = {
            one["bytes"]: max(v for k, v in one.items() if k.removesuffix("_huge") in SINGLE_PASS)
            for one in found["footprints"]
        }
        return cls(found["threads"], found["flops"], bandwidths)

    def bandwidth(self, footprint: int) -> float:
        """Bytes per second at the nearest measured footprint that is not smaller."""
        return self.bandwidths[
            min((b for b in self.bandwidths if b >= footprint), default=max(self.bandwidths))
        ]

    def memory_seconds(self, work: Work) -> float:
        """What moving the bytes takes."""
        return work.bytes / self.bandwidth(work.bytes)

    def arithmetic_seconds(self, work: Work) -> float:
        """What the instructions take: a multiply-add counts as two flops, and as one instruction."""
        return work.instructions / (self.flops / 2)

    def seconds(self, work: Work) -> float:
        """The roofline: the larger of both."""
        return max(self.memory_seconds(work), self.arithmetic_seconds(work))
