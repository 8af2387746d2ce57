"""Runs one workload of benchmarks/models.py in this process and reports it as JSON lines on stdout.

usage: model_run.py NAME [--phase cold|warm] [--backend NAME] [--peers NAME[,NAME...]] [--seconds S] [--sizes N]
                    [--compare-all] [--wait]

Phase cold measures the first call, checks the outputs at every size and compares the time per call with eager's; phase
warm measures the first call only. Peers are other backends of torch.compile, which take their turns in the comparison
at the first size. The caches are those of the environment: the caller says what is cold. A line is {"progress": text}
or, last, {"result": {...}}. With --wait the process stops when the model is built, prints {"ready": true} and goes on
when it reads a line; {"timed": false} says that no figure depends on the machine any more.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from torch import nn  # noqa: E402

from benchmarks import models  # noqa: E402
from benchmarks.harness import compare  # noqa: E402
from benchmarks.observe import Observer, Summary, observer, summarize  # noqa: E402
from tests.python.accuracy import InFloat64, Verdict, judge_all  # noqa: E402

THREADS = 2
# Calls after the first one that tell what an execution takes, in the median.
CALLS_FOR_MEDIAN = 5


def main() -> None:
    """Parse the command line, run, print the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("name", choices=models.NAMES)
    parser.add_argument("--phase", choices=("cold", "warm"), default="cold")
    parser.add_argument("--backend", default="mlcc")
    parser.add_argument("--peers", type=lambda text: text.split(","), default=[])
    parser.add_argument("--seconds", type=float, default=3.0, help="for the comparison with eager")
    parser.add_argument("--sizes", type=int, default=3, help="how many sizes to run")
    parser.add_argument(
        "--compare-all", action="store_true", help="time against eager at every size"
    )
    parser.add_argument("--wait", action="store_true", help="for a line on stdin, once built")
    arguments = parser.parse_args()
    torch.set_num_threads(THREADS)
    run = Run(arguments.name, arguments.backend)
    if arguments.wait:
        print(json.dumps({"ready": True}), flush=True)
        if not sys.stdin.readline():  # whoever started this is gone
            return
    if arguments.phase == "warm":
        result = run.warm()
    else:
        result = run.cold(
            arguments.seconds, arguments.sizes, arguments.compare_all, arguments.peers
        )
    print(json.dumps({"result": result}), flush=True)


def progress(text: str) -> None:
    """One line for whoever watches."""
    print(json.dumps({"progress": text}), flush=True)


class Run:
    """One workload and its compiled form."""

    def __init__(self, name: str, backend: str) -> None:
        progress("building")
        self.workload = models.build(name)
        self.observer: Observer = observer(backend)
        self.compiled = torch.compile(self.workload.module, backend=self.observer.backend)
        self.parameters = list(self.workload.module.parameters())

    # -- phases

    def cold(
        self, seconds: float, sizes: int, compare_all: bool, peers: Sequence[str] = ()
    ) -> dict[str, Any]:
        """Everything."""
        main_size, *others = self.workload.sizes[:sizes]
        reference = Reference(self.workload)
        first = self._first_call(main_size)
        graphs = len(self.observer.graphs())
        compile_seconds = self.observer.compile_seconds()
        self._settle(main_size)
        checks = [self._check(main_size, reference)]
        ready = [Peer(name, self.workload, main_size, reference) for name in peers]
        progress("comparing with eager")
        comparison = self._compare(
            main_size, seconds, {peer.name: peer.module for peer in ready if peer.verdict}
        )
        summary = summarize(self.observer.graphs()[:graphs])
        if not compare_all:
            print(json.dumps({"timed": False}), flush=True)
        for size in others:
            checks.append(self._check(size, reference))
            if compare_all:
                checks[-1]["comparison"] = self._compare(size, seconds)
        return {
            "name": self.workload.name,
            "title": self.workload.title,
            "size_name": self.workload.size_name,
            "first_call_seconds": first,
            "checks": checks,
            "comparison": comparison,
            "peers": {peer.name: peer.facts() for peer in ready},
            **_facts(summary, compile_seconds),
        }

    def warm(self) -> dict[str, Any]:
        """The first call and its own share."""
        size = self.workload.sizes[0]
        first = self._first_call(size)
        compile_seconds = self.observer.compile_seconds()
        self._settle(size)
        facts = _facts(summarize(self.observer.graphs()), compile_seconds)
        return {"first_call_seconds": first, **facts}

    # -- parts

    def _evaluate(self, size: int) -> list[torch.Tensor]:
        return models.evaluate(self.workload, self.compiled, self.parameters, size)

    def _first_call(self, size: int) -> float:
        progress("first call")
        start = time.perf_counter()
        self._evaluate(size)
        return time.perf_counter() - start

    def _settle(self, size: int) -> None:
        """Some more calls, which tell by how much the first execution exceeded the others."""
        for _ in range(CALLS_FOR_MEDIAN):
            self._evaluate(size)
        self.observer.stop_timing()

    def _check(self, size: int, reference: Reference) -> dict[str, Any]:
        progress(f"checking {self.workload.size_name}={size}")
        graphs_before = len(self.observer.graphs())
        start = time.perf_counter()
        result = self._evaluate(size)
        seconds = time.perf_counter() - start
        new = self.observer.graphs()[graphs_before:]
        eager = models.evaluate(self.workload, self.workload.module, self.parameters, size)
        verdict = judge_all(result, eager, reference(size))
        return {
            "size": size,
            "right": bool(verdict),
            "reason": verdict.reason,
            "rms_error": verdict.result and verdict.result.rms,
            "rms_error_of_eager": verdict.eager and verdict.eager.rms,
            "seconds": seconds,
            "new_graphs": len(new),
            "new_kernels": summarize(new).compiled,
        }

    def _compare(
        self, size: int, seconds: float, peers: Mapping[str, nn.Module] | None = None
    ) -> dict[str, object]:
        context = nullcontext() if self.workload.trains else torch.no_grad()
        with context:
            functions = {
                "eager": self._step(copy.deepcopy(self.workload.module), size),
                "compiled": self._step(self.compiled, size),
                **{name: self._step(module, size) for name, module in (peers or {}).items()},
            }
            return compare(functions, seconds=seconds, threads=THREADS).to_dict()

    def _step(self, module: nn.Module, size: int) -> Callable[[], object]:
        """What is timed: a call, or a whole training step."""
        x = self.workload.input(size)
        if not self.workload.trains:
            return lambda: module(x)
        # A rate of zero: the checks that follow see the weights of before.
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.0, weight_decay=0.0)

        def train() -> None:
            optimizer.zero_grad()
            module(x).backward()
            optimizer.step()

        return train


class Reference:
    """The workload in float64, made when first needed."""

    def __init__(self, workload: models.Workload) -> None:
        self._workload = workload
        self._module: nn.Module | None = None

    def __call__(self, size: int) -> list[torch.Tensor]:
        """The outputs to judge against."""
        if self._module is None:
            self._module = copy.deepcopy(self._workload.module).double()
        with InFloat64():
            parameters = list(self._module.parameters())
            return models.evaluate(self._workload, self._module, parameters, size)


class Peer:
    """The workload compiled by another backend, called once and judged."""

    def __init__(
        self, name: str, workload: models.Workload, size: int, reference: Reference
    ) -> None:
        progress(f"compiling with {name}")
        self.name = name
        self._copy = copy.deepcopy(workload.module)
        self.module = torch.compile(self._copy, backend=name)
        parameters = list(self._copy.parameters())
        start = time.perf_counter()
        try:
            result = models.evaluate(workload, self.module, parameters, size)
        except Exception as error:  # of its compiler: its own limits
            self._seconds, self.verdict = 0.0, Verdict(str(error))
            return
        self._seconds = time.perf_counter() - start
        eager = models.evaluate(workload, self._copy, parameters, size)
        self.verdict = judge_all(result, eager, reference(size))

    def facts(self) -> dict[str, Any]:
        """What is told of it beside its time per call."""
        return {
            "first_call_seconds": self._seconds,
            "right": bool(self.verdict),
            "reason": self.verdict.reason,
        }


def _facts(summary: Summary, compile_seconds: float) -> dict[str, Any]:
    return {
        "own_seconds": compile_seconds + summary.first_cost,
        "compile_seconds": compile_seconds,
        "graphs": summary.graphs,
        "kernels": summary.kernels,
        "kernels_compiled": summary.compiled,
        "aten_calls": summary.aten_calls,
        "aten_ops": summary.aten_ops,
        "nodes": summary.nodes,
        "node_share": summary.node_share,
        "other_node_share": summary.other_node_share,
        "arena_bytes": summary.arena_bytes,
    }


if __name__ == "__main__":
    main()
