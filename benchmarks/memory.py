"""Does memory grow with compilations? Prints bytes per cycle of compiling, calling and clearing.

usage: memory.py [jit] [torch_compile] [--cycles N]

`jit`: mlcc.jit of a new function, one call, mlcc.clear_cache(). `torch_compile`: a new function through torch.compile,
torch._dynamo.reset(), mlcc.clear_cache(), beside the same with aot_eager, which has a slope of its own. Each runs in a
process of its own, without the store on disk, on one thread; a slope is fitted by least squares to the resident memory
(after malloc gave back what it could) over the later three quarters of the cycles.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

CYCLES = {"jit": 2000, "torch_compile": 200}


def resident_bytes() -> int:
    """Memory of this process that is in RAM and its own."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as file:
        resident, shared = file.read().split()[1:3]
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def slope(cycle: Callable[[], None], cycles: int) -> float:
    """Bytes per cycle."""
    points: list[tuple[int, int]] = []
    step = max(1, cycles // 40)
    for number in range(cycles):
        cycle()
        if number >= cycles // 4 and number % step == 0:
            points.append((number, resident_bytes()))
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    covariance = sum((x - mean_x) * (y - mean_y) for x, y in points)
    return covariance / sum((x - mean_x) ** 2 for x, _ in points)


def cycle_of_jit() -> Callable[[], None]:
    """Two kernels: a pointwise one and a softmax."""
    import torch

    import mlcc

    x = torch.randn(8, 16)

    def cycle() -> None:
        run = mlcc.jit(lambda x: ((x * 3).tanh() + x).softmax(-1))
        run(x)
        mlcc.clear_cache()

    return cycle


def cycle_of_torch_compile(backend: str) -> Callable[[], None]:
    """The same through Dynamo."""
    import torch

    import mlcc

    x = torch.randn(8, 16)

    def cycle() -> None:
        run = torch.compile(lambda x: ((x * 3).tanh() + x).softmax(-1), backend=backend)
        run(x)
        torch._dynamo.reset()
        mlcc.clear_cache()

    return cycle


def measure(name: str, cycles: int) -> float:
    """The slope of one kind, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            "OMP_NUM_THREADS": "1",
            "MLCC_CACHE_DIR": f"{folder}/cache",
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/torch",
            "MLCC_TORCH_CACHES": "0",
            "MALLOC_ARENA_MAX": "1",
        }
        command = [sys.executable, __file__, "--measure", name, "--cycles", str(cycles)]
        result = subprocess.run(
            command, env=os.environ | environment, capture_output=True, text=True, check=True
        )
    return float(json.loads(result.stdout.splitlines()[-1]))


def run_measured(name: str, cycles: int) -> None:
    """What the child process does."""
    cycle = cycle_of_jit() if name == "jit" else cycle_of_torch_compile(name)
    print(json.dumps(slope(cycle, cycles)))


def report(kinds: list[str], cycles: int | None) -> dict[str, float]:
    """Print and return bytes per cycle."""
    found: dict[str, Any] = {}
    if "jit" in kinds:
        count = cycles or CYCLES["jit"]
        found["jit"] = measure("jit", count)
        print(f"mlcc.jit, {count} cycles: {found['jit']:.0f} bytes a cycle")
    if "torch_compile" in kinds:
        count = cycles or CYCLES["torch_compile"]
        own, base = measure("mlcc", count), measure("aot_eager", count)
        found["torch_compile"] = own - base
        print(
            f"torch.compile, {count} cycles: {own / 1024:.1f} KiB a cycle,"
            f" aot_eager {base / 1024:.1f}, difference {(own - base) / 1024:.1f}"
        )
    return found


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("kinds", nargs="*", default=["jit", "torch_compile"])
    parser.add_argument("--cycles", type=int)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        run_measured(arguments.measure, arguments.cycles)
    else:
        report(arguments.kinds, arguments.cycles)


if __name__ == "__main__":
    main()
