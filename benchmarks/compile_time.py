"""What a fused kernel takes to compile, by its number of ops, and the kernels of the workloads: CPU time, empty caches.

usage: python benchmarks/compile_time.py [--ops 1,10,30,...] [--workloads REGEX]
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

os.environ["MLCC_CACHE_DIR"] = tempfile.mkdtemp(prefix="mlcc-compile-time-")

import torch

import mlcc
from benchmarks.workloads import WORKLOADS
from mlcc._load import load_core

core = load_core()
_ROUNDS = 3
_BYTES = 8 << 20
_CHAINS = {
    "arithmetic": ("add", "mul", "sub", "maximum"),
    "exponentials": ("exp",),
    "functions": ("erf", "tanh", "sin", "exp", "log"),
}


def chain(ops: tuple[str, ...], count: int, rows: int) -> str:
    """A graph of `count` ops in a row; binary ones take the second input too."""
    lines = [f"graph @chain(%x: f32[{rows}, 1024], %y: f32[{rows}, 1024]) {{"]
    last = "%x"
    for i in range(count):
        op = ops[i % len(ops)]
        other = ", %y" if op in _CHAINS["arithmetic"] else ""
        lines.append(f"  %{i}: f32[{rows}, 1024] = {op} {last}{other}")
        last = f"%{i}"
    return "\n".join([*lines, f"  return {last}", "}"])


def chains(counts: list[int]) -> None:
    """Print the table of chains. Other sizes each time: no kernel is in a cache."""
    core.compile(chain(("add",), 1, 1))  # opens LLVM
    print(f"{'chain of':14s} {'ops':>4s} {'ms':>7s} kernels")
    rows = 1
    for name, ops in _CHAINS.items():
        for count in counts:
            best, kernels = float("inf"), 0
            for _ in range(_ROUNDS):
                rows += 1
                text = chain(ops, count, rows)
                start = time.process_time()
                kernels = core.compile(text).stats["kernels"]
                best = min(best, time.process_time() - start)
            print(f"{name:14s} {count:4d} {1e3 * best:7.1f} {kernels}", flush=True)


def workloads(names: re.Pattern[str]) -> None:
    """Print what the core takes for each workload: passes, fusion, lowering and LLVM, not torch's tracing."""
    print(f"\n{'workload':22s} {'nodes':>5s} {'kernels':>7s} {'ms':>7s}")
    seconds = []
    for name, workload in WORKLOADS.items():
        if not names.search(name):
            continue
        case = workload.case(_BYTES)
        texts: list[str] = []
        with torch.no_grad(), mlcc.config.patch(dump="graph", dump_dir=tempfile.mkdtemp()):
            mlcc.jit(case.function, dynamic=False)(*case.inputs)
            for path in sorted(Path(mlcc.config.dump_dir).rglob("*input*")):
                texts.append(path.read_text())
        mlcc.clear_cache()
        start = time.process_time()
        stats = [core.compile(text).stats for text in texts]
        taken = time.process_time() - start
        nodes, kernels = (sum(one[key] for one in stats) for key in ("nodes", "kernels"))
        seconds.append(taken / max(1, kernels))
        print(f"{name:22s} {nodes:5d} {kernels:7d} {1e3 * taken:7.1f}", flush=True)
    if seconds:
        print(f"a kernel: {1e3 * sum(seconds) / len(seconds):.1f} ms in the mean of {len(seconds)}")


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ops", default="1,10,30,60,125,250,500")
    parser.add_argument("--workloads", type=re.compile, default=re.compile(""))
    arguments = parser.parse_args()
    chains([int(count) for count in arguments.ops.split(",")])
    workloads(arguments.workloads)


if __name__ == "__main__":
    main()
