"""Timing on a GPU by events: calls are queued behind a pause, so that the device never waits for the host.

Each call takes the next one of several sets of buffers, which together exceed the L2 cache; what is compared runs in
turns. On an emulated GPU nothing is timed.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

EMULATED = os.environ.get("MLCC_GPU") == "emulate"
QUICK = os.environ.get("MLCC_GPU_CHECK_QUICK") == "1"
DEVICE = torch.device("cpu" if EMULATED else "cuda")

# Rounds of which the median is taken; each times as many calls as there are sets of buffers, or more.
ROUNDS = 30
# A round of less than this is repeated: events are exact to about half a microsecond.
LEAST_ROUND_SECONDS = 200e-6
# Of torch.cuda._sleep, in a second, at the clock of a busy device; only its order of magnitude matters.
CYCLES_PER_SECOND = 2e9
LONGEST_PAUSE_SECONDS = 50e-3
# The driver queues about a thousand launches before it makes the host wait.
MOST_QUEUED_CALLS = 100


@dataclass(frozen=True)
class Timed:
    """Microseconds per call: on the device, and of the host that queues it."""

    us: float
    host_us: float


def record(**fields: Any) -> None:
    """Print one line, and append it to the results of tools/gpu_check.py."""
    line = json.dumps(fields)
    print(line, flush=True)
    results = os.environ.get("MLCC_GPU_CHECK_RESULTS")
    if results:
        with Path(results).open("a") as file:
            file.write(line + "\n")


def sets_of_buffers(bytes_per_set: int) -> int:
    """So many that what a call reads left the L2 cache long ago."""
    if EMULATED:
        return 1
    l2 = torch.cuda.get_device_properties(0).L2_cache_size
    free = torch.cuda.mem_get_info()[0]
    wanted = max(2, -(-4 * l2 // max(bytes_per_set, 1)))
    return int(min(wanted, 64, max(1, free // (4 * max(bytes_per_set, 1)))))


def time_calls(functions: Mapping[str, Callable[[int], object]], sets: int) -> dict[str, Timed]:
    """Call each function with the numbers of the sets, in turns; medians. Everything is compiled and warm already."""
    host = {name: _host_seconds(function, sets) for name, function in functions.items()}
    calls = {name: _calls_per_round(function, sets) for name, function in functions.items()}
    device: dict[str, list[float]] = {name: [] for name in functions}
    hosts: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(ROUNDS):
        for name, function in functions.items():
            queued, took = _round(function, sets, calls[name], host[name])
            device[name].append(took)
            hosts[name].append(queued)
    return {
        name: Timed(1e6 * statistics.median(device[name]), 1e6 * statistics.median(hosts[name]))
        for name in functions
    }


def _host_seconds(function: Callable[[int], object], sets: int) -> float:
    for turn in range(3):
        function(turn % sets)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for turn in range(5):
        function(turn % sets)
    seconds = (time.perf_counter() - start) / 5
    torch.cuda.synchronize()
    return seconds


def _calls_per_round(function: Callable[[int], object], sets: int) -> int:
    seconds = _round(function, sets, sets, 1e-3)[1]
    return int(min(MOST_QUEUED_CALLS, max(sets, LEAST_ROUND_SECONDS // max(seconds, 1e-7))))


def _round(
    function: Callable[[int], object], sets: int, calls: int, host_seconds: float
) -> tuple[float, float]:
    """(host's, device's) seconds per call."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    pause = min(LONGEST_PAUSE_SECONDS, 1.5 * calls * host_seconds + 100e-6)
    torch.cuda._sleep(int(pause * CYCLES_PER_SECOND))
    begin.record()
    start = time.perf_counter()
    for turn in range(calls):
        function(turn % sets)
    queued = time.perf_counter() - start
    end.record()
    end.synchronize()
    return queued / calls, begin.elapsed_time(end) * 1e-3 / calls


def bytes_of(tensors: Sequence[Any]) -> int:
    """Of the elements of the tensors among them."""
    return sum(t.numel() * t.element_size() for t in tensors if isinstance(t, torch.Tensor))
