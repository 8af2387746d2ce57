"""How fast a workload could be by what this machine allows: the bytes that must move, the arithmetic that must be done.

limits = Limits.parse(Limits.run_program(threads=1))    # the program machine_limits, some seconds
work = Work.of(case)                        # traced from the function, by the costs of costs.json
seconds = limits.seconds(work)              # the larger of what memory and what arithmetic takes
peaks, reads = measure_now(threads=1, footprints=[8 << 20])    # for a benchmark that wants them of this minute
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch._decomp import core_aten_decompositions
from torch._ops import OpOverload
from torch.func import functionalize
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

from benchmarks.workloads import Case

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "build" / "release" / "bin" / "machine_limits"
COSTS: dict[str, float] = json.loads(Path(__file__).with_name("costs.json").read_text())
# A larger footprint is read in so long a time that a busy machine interrupts it: it is measured four times as long.
LONG_FOOTPRINT = 16 << 20
SINGLE_PASS = ("read", "read_in_order", "copy", "copy_nt", "write")


@dataclass(frozen=True)
class Work:
    """What has to be done at least: bytes of inputs read once and of results written once, and vector instructions."""

    bytes: int
    instructions: float  # of one element each: a vector instruction does several

    @classmethod
    def of(cls, case: Case) -> Work:
        """Bytes by the inputs and results, instructions by the graph of core ATen ops."""
        graph = trace(case)
        results = [v for v in _results(graph) if isinstance(v, torch.Tensor)]
        read = _bytes(case.inputs) if case.bytes_read is None else case.bytes_read
        return cls(read + _bytes(results), sum(_cost(node) for node in graph.graph.nodes))


def trace(case: Case) -> GraphModule:
    """The pure form of the case as a graph of core ATen ops, its inputs as the placeholders."""
    table = {**core_aten_decompositions(), **_one_by_one()}
    del table[torch.ops.aten.lerp.Scalar]  # a branch on the weight, which is a number
    pure = functionalize(case.pure, remove="mutations")
    with torch.no_grad():
        graph = make_fx(pure, decomposition_table=table, tracing_mode="fake")(*case.inputs)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def _one_by_one() -> dict[OpOverload, Callable[..., list[torch.Tensor]]]:
    """What takes apart the ops over lists of tensors that the workloads use."""

    def apart(op: Callable[..., torch.Tensor]) -> Callable[..., list[torch.Tensor]]:
        def each(first: list[torch.Tensor], *others: Any) -> list[torch.Tensor]:
            lists = [one if isinstance(one, list) else [one] * len(first) for one in others]
            return [op(*row) for row in zip(first, *lists, strict=True)]

        return each

    aten = torch.ops.aten
    return {
        aten._foreach_add.Scalar: apart(torch.add),
        aten._foreach_addcdiv.Scalar: apart(lambda x, y, z, a=1: torch.addcdiv(x, y, z, value=a)),
        aten._foreach_addcmul.Scalar: apart(lambda x, y, z, a=1: torch.addcmul(x, y, z, value=a)),
        aten._foreach_lerp.Scalar: apart(torch.lerp),
        aten._foreach_mul.Scalar: apart(torch.mul),
        aten._foreach_sqrt.default: apart(torch.sqrt),
    }


def _results(graph: Any) -> list[Any]:
    (output,) = [node for node in graph.graph.nodes if node.op == "output"]
    return [node.meta["val"] for node in tree_leaves(output.args) if node is not None]


def _bytes(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _cost(node: Any) -> float:
    if node.op != "call_function" or not hasattr(node.target, "_schema"):
        return 0.0
    name = node.target._schema.name.split("::")[-1].rstrip("_")
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
    peaks: dict[str, float] = field(default_factory=dict)  # flops by what the multiply-adds are of

    @staticmethod
    def run_program(threads: int, seconds: float = 5.0, options: Sequence[str] = ()) -> str:
        """What `machine_limits` prints, which the build makes."""
        command = [str(PROGRAM), "--threads", str(threads), "--seconds", str(seconds), *options]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    @classmethod
    def parse(cls, text: str) -> Limits:
        """Of the program's output."""
        found = json.loads(text)
        bandwidths = {
            one["bytes"]: max(v for k, v in one.items() if k.removesuffix("_huge") in SINGLE_PASS)
            for one in found["footprints"]
        }
        return cls(found["threads"], found["flops"], bandwidths, found.get("peaks", {}))

    def bandwidth(self, footprint: int) -> float:
        """Bytes per second at the nearest measured footprint that is not smaller."""
        return self.bandwidths[
            min((b for b in self.bandwidths if b >= footprint), default=max(self.bandwidths))
        ]

    def peak(self, dtype: str, is_avx2: bool = False) -> float:
        """Flops of multiply-adds of that dtype (f32, bf16, int8); of f32 where this CPU has no such instructions."""
        narrow = "f32_256" if is_avx2 and dtype == "f32" else dtype
        return self.peaks.get(narrow, self.flops)

    def memory_seconds(self, work: Work) -> float:
        """What moving the bytes takes."""
        return work.bytes / self.bandwidth(work.bytes)

    def arithmetic_seconds(self, work: Work) -> float:
        """What the instructions take: a multiply-add counts as two flops, and as one instruction."""
        return work.instructions / (self.flops / 2)

    def seconds(self, work: Work) -> float:
        """The roofline: the larger of both."""
        return max(self.memory_seconds(work), self.arithmetic_seconds(work))


def measure_now(
    threads: int, footprints: Sequence[int] = (), seconds: float = 0.3
) -> tuple[Limits, dict[int, float]]:
    """Limits without bandwidths, measured in `seconds`; and of each footprint the best rate of reading it.

    Reads are those of 1, 2, 4 and 8 streams in pages of 4 KB and in huge ones; a footprint takes `seconds` more, a long
    one four times as many.
    """
    peaks = Limits.run_program(threads, seconds, ("--measure", "peaks"))
    found = json.loads(peaks)
    limits = Limits(threads, found["flops"], {}, found["peaks"])
    reads: dict[int, float] = {}
    for footprint in footprints:
        options = ("--measure", "reads", "--footprints", str(footprint))
        longer = seconds * (4 if footprint > LONG_FOOTPRINT else 1)
        (row,) = json.loads(Limits.run_program(threads, longer, options))["footprints"]
        reads[footprint] = max(value for name, value in row.items() if name != "bytes")
    return limits, reads
