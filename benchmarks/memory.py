"""Does memory grow with compilations? Prints bytes per cycle of compiling, calling and clearing.

usage: memory.py [jit] [torch_compile] [--cycles N]

`jit`: mlcc.jit of a new function, one call, mlcc.clear_cache(). `torch_compile`: a new function through torch.compile,
torch._dynamo.reset(), mlcc.clear_cache(), beside the same with aot_eager, which has a slope of its own. Each runs in a
process of its own, with a fresh store on disk, on one thread. Slopes are fitted by least squares over the later three
quarters of the cycles: of what malloc has handed out and not got back, which is exact, and of the resident memory
(after malloc gave back what it could), in which the holes between blocks and mapped code are too.
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
from collections.abc import Callable, Sequence
from typing import NamedTuple

CYCLES = {"jit": 2000, "torch_compile": 200}


class Growth(NamedTuple):
    """Bytes per cycle."""

    allocated: float
    resident: float

    def __sub__(self, other: Growth) -> Growth:
        return Growth(self.allocated - other.allocated, self.resident - other.resident)

    def text(self, unit: int = 1) -> str:
        """For people."""
        return f"{self.allocated / unit:.1f} allocated, {self.resident / unit:.1f} resident"


class Mallinfo(ctypes.Structure):
    """glibc's struct mallinfo2."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def memory() -> tuple[int, int]:
    """What malloc has handed out (with PYTHONMALLOC=malloc to Python too), and what is in RAM and not shared."""
    gc.collect()
    libc = ctypes.CDLL(None)
    libc.malloc_trim(0)
    libc.mallinfo2.restype = Mallinfo
    info = libc.mallinfo2()
    with open("/proc/self/statm") as file:
        resident, shared = file.read().split()[1:3]
    return info.uordblks + info.hblkhd, (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def growth(cycle: Callable[[], None], cycles: int) -> Growth:
    """Of the later cycles."""
    points: list[tuple[int, int, int]] = []
    step = max(1, cycles // 40)
    for number in range(cycles):
        cycle()
        if number >= cycles // 4 and number % step == 0:
            points.append((number, *memory()))
    numbers, allocated, resident = zip(*points, strict=True)
    return Growth(_slope(numbers, allocated), _slope(numbers, resident))


def _slope(xs: Sequence[int], ys: Sequence[int]) -> float:
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    covariance = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    return covariance / sum((x - mean_x) ** 2 for x in xs)


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


def measure(name: str, cycles: int) -> Growth:
    """The growth of one kind, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            "OMP_NUM_THREADS": "1",
            "MLCC_CACHE_DIR": f"{folder}/cache",
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/torch",
            "MLCC_TORCH_CACHES": "0",
            "MALLOC_ARENA_MAX": "1",
            "PYTHONMALLOC": "malloc",
        }
        command = [sys.executable, __file__, "--measure", name, "--cycles", str(cycles)]
        result = subprocess.run(
            command, env=os.environ | environment, capture_output=True, text=True, check=True
        )
    return Growth(*json.loads(result.stdout.splitlines()[-1]))


def run_measured(name: str, cycles: int) -> None:
    """What the child process does."""
    cycle = cycle_of_jit() if name == "jit" else cycle_of_torch_compile(name)
    print(json.dumps(growth(cycle, cycles)))


def report(kinds: list[str], cycles: int | None) -> dict[str, Growth]:
    """Print and return bytes per cycle."""
    found: dict[str, Growth] = {}
    if "jit" in kinds:
        count = cycles or CYCLES["jit"]
        found["jit"] = measure("jit", count)
        print(f"mlcc.jit, {count} cycles, bytes a cycle: {found['jit'].text()}", flush=True)
    if "torch_compile" in kinds:
        count = cycles or CYCLES["torch_compile"]
        own, base = measure("mlcc", count), measure("aot_eager", count)
        found["torch_compile"] = own - base
        print(
            f"torch.compile, {count} cycles, KiB a cycle: {own.text(1024)}; aot_eager {base.text(1024)};"
            f" difference {(own - base).text(1024)}"
        )
    return found


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
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
