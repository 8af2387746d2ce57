"""What a call of a compiled graph costs the host, beside the launches: a driver whose launches do nothing.

usage: host_cost.py [--seconds 1] [--launches 1,2,4,8,16]

A graph of N kernels (N chained row sums, which do not fuse) is called on small tensors; the fit over N gives the cost
of a call and of each launch. Allocating results is in it. The driver is that of the C++ tests, in the place of the
emulator.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from mlcc import config
from mlcc._load import load_core
from tests.python import cuda_tools

# The project's promise: microseconds of a call beside its launches.
MOST_CALL = 4.0


def graph(kernels: int) -> str:
    """Each kernel sums the rows of its own reshaping of what the one before gave."""
    lines = ["graph @g(%x: f32[8, 8]) {"]
    last = "%x"
    for i in range(kernels):
        lines.append(f"  %{3 * i}: f32[8] = sum {last} {{dims = [{i % 2}], keepdim = false}}")
        lines.append(f"  %{3 * i + 1}: f32[8, 8] = expand %{3 * i}")
        lines.append(f"  %{3 * i + 2}: f32[8, 8] = permute %{3 * i + 1} {{dims = [1, 0]}}")
        last = f"%{3 * i + 2 - i % 2}"
    return "\n".join([*lines, f"  return %{3 * kernels - 3}", "}"])


def launches_of(call: Any) -> int:
    """How many kernels a call launches, as the driver counts them."""
    driver = ctypes.CDLL(str(cuda_tools.fake_driver()))
    driver.fake_driver.restype = ctypes.POINTER(ctypes.c_int32)
    state = (
        driver.fake_driver()
    )  # FakeDriver of fake_driver.h: numbers of 4 bytes, num_launches the eleventh
    before = state[10]
    call()
    return int(state[10]) - before


def measure(call: Any, seconds: float) -> float:
    """Microseconds per call: the least of several samples."""
    inner = 2000
    samples: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(samples) < 3:
        start = time.process_time()
        for _ in range(inner):
            call()
        samples.append((time.process_time() - start) / inner * 1e6)
    return min(samples)


def main() -> int:
    """Print the figures; 1 if the promise is not kept."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--launches", default="1,2,4,8,16")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    core = load_core()
    counts, costs = [], []
    with tempfile.TemporaryDirectory(prefix="mlcc-host-cost-") as folder:
        (Path(folder) / "libmlcc_emulator.so").symlink_to(cuda_tools.fake_driver())
        core.set_llvm_library(str(Path(folder) / "libmlcc_llvm.so"))
        for wanted in map(int, arguments.launches.split(",")):
            options = config.resolve({"gpu": "emulate", "cache_size_mb": 0})
            executable = core.compile(graph(wanted), options)
            x = torch.zeros(8, 8)
            counts.append(launches_of(lambda run=executable, x=x: run([x])))
            costs.append(measure(lambda run=executable, x=x: run([x]), arguments.seconds))
            print(f"  {counts[-1]:3} launches  {costs[-1]:7.2f} us")
    slope, call = statistics.linear_regression(counts, costs)
    print(f"a call {call:.2f} us and {slope:.2f} us a launch (driver's share: none)")
    return int(call > MOST_CALL)


if __name__ == "__main__":
    sys.exit(main())
