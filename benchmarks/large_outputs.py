"""Large outputs of pointwise kernels beside eager: most of eager's time goes into pages that the system gives anew.

    python benchmarks/large_outputs.py [--megabytes 8,32,128] [--repeats 20]
    MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=4294967296 python benchmarks/large_outputs.py

The second line is eager with a malloc that keeps all memory. One thread; median milliseconds of calls that alternate
with eager's; `dropped`: a result is freed before the next call, `kept`: after it. The last column is the peak of the
process's memory in MiB.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import mlcc

FUNCTIONS: dict[str, tuple[int, Callable[..., torch.Tensor]]] = {
    "relu(x * 2 + 1)": (1, lambda x: torch.relu(x * 2 + 1)),
    "x + y": (2, lambda x, y: x + y),
}


def measure(
    functions: list[Callable[..., Any]], arguments: list[torch.Tensor], repeats: int, keep: bool
) -> list[float]:
    """Median milliseconds of each function; they take turns."""
    times: list[list[float]] = [[] for _ in functions]
    results: list[Any] = [None for _ in functions]
    for _ in range(repeats):
        for i, function in enumerate(functions):
            if not keep:
                results[i] = None
            start = time.perf_counter()
            results[i] = function(*arguments)
            times[i].append(time.perf_counter() - start)
    return [1e3 * statistics.median(one) for one in times]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", default="8,32,128")
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for megabytes in map(int, options.megabytes.split(",")):
        inputs = [torch.rand(megabytes * 2**18) for _ in range(2)]
        for name, (arity, function) in FUNCTIONS.items():
            compiled = mlcc.jit(function)
            for keep in (False, True):
                eager, ours = measure(
                    [function, compiled], inputs[:arity], options.repeats, keep
                )  # fmt: skip
                peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
                what = f"{megabytes:4} MiB  {name:16} {'kept' if keep else 'dropped':8}"
                figures = f"eager {eager:7.2f}  mlcc {ours:7.2f}  {eager / ours:5.2f}"
                print(f"{what} {figures}  {peak:6.0f}", flush=True)


if __name__ == "__main__":
    main()
