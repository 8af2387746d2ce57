"""The memory-bound workloads, mlcc beside eager and the fastest peer, and how far all are from what the machine allows.

usage: suite.py [--filter REGEX] [--sizes 512K,8M,128M] [--ladder] [--threads N] [--peers NAME[,NAME...]] [--survey]
                [--seconds 1.5] [--malloc default|kept] [--fresh]

Each row (a workload at a footprint of inputs and results) is measured in a process of its own: mlcc (by mlcc.jit),
eager and the row's fastest peer in turns, all results checked against eager's. With --survey every peer meets eager
instead, one process each; the fastest of them is what later runs put beside mlcc. Rows are appended to
build/suite.jsonl and build/suite-peers.jsonl, so a run that was stopped goes on; rebuilt code starts afresh, peers are
measured once per version of torch. --malloc=kept tells glibc to keep freed memory, which spares eager page faults.

The table gives milliseconds (lower quartiles), how many times mlcc is as fast, and the share of the roofline: the
larger of the bytes over this machine's best bandwidth at that footprint and the arithmetic over its peak.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import resource
import subprocess
import sys
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from benchmarks import contenders, harness  # noqa: E402
from benchmarks.roofline import Limits, Work  # noqa: E402
from benchmarks.workloads import WORKLOADS  # noqa: E402
from tests.arguments import names_among  # noqa: E402
from tests.store import Store  # noqa: E402

SIZES = ("512K", "8M", "128M")
LADDER = ("1K", "4K", "16K", "64K", "256K", "1M", "4M", "16M", "64M", "256M", "512M")
LADDER_WORKLOADS = ("pointwise_2", "softmax", "layer_norm_gelu", "sum_all", "transpose")
# What a result may part from eager's: relative to the largest number, by the dtype of the workload.
TOLERANCE, TOLERANCE_16_BIT = 1e-4, 3e-2
KEPT = {
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TRIM_THRESHOLD_": "4294967296",
    "MALLOC_TOP_PAD_": "67108864",
}

Record = dict[str, Any]


class Row(NamedTuple):
    """What is measured in one process."""

    workload: str
    size: str
    threads: int
    malloc: str
    against: tuple[str, ...]


def main() -> int:
    """Measure what is missing, then print the table; the exit status is 1 if a result was wrong."""
    arguments = _parse_arguments()
    if arguments.one:
        print(json.dumps(measure(json.loads(arguments.one), arguments.seconds)))
        return 0
    limits = _limits(arguments.threads)
    peers = Store(
        ROOT / "build" / "suite-peers.jsonl", arguments.fresh, f"torch {torch.__version__}"
    )
    store = peers if arguments.survey else Store(ROOT / "build" / "suite.jsonl", arguments.fresh)
    rows = list(_rows(arguments, peers))
    for row in rows:
        if store.get(row) is None:
            record = run(row, arguments.seconds)
            print(format_row(row, record, limits), flush=True)
            if record["seconds"]:  # else it may go better next time
                store.append(row, record)
    return print_report([(row, store[row]) for row in rows if store.get(row) is not None], limits)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--filter", type=re.compile, default=re.compile(""), help="of names")
    parser.add_argument("--sizes", type=lambda text: text.split(","), default=list(SIZES))
    parser.add_argument("--ladder", action="store_true", help="all sizes, of a few workloads")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--peers", type=names_among(contenders.CONTENDERS), default=list(contenders.PEERS)
    )
    parser.add_argument("--survey", action="store_true", help="measure the peers against eager")
    parser.add_argument("--seconds", type=float, default=1.5, help="for each row")
    parser.add_argument("--malloc", choices=("default", "kept"), default="default")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    return parser.parse_args()


def _rows(arguments: argparse.Namespace, peers: Store) -> Iterable[Row]:
    for name in WORKLOADS:
        if not arguments.filter.search(name) or (arguments.ladder and name not in LADDER_WORKLOADS):
            continue
        for size in LADDER if arguments.ladder else arguments.sizes:
            row = Row(name, size, arguments.threads, arguments.malloc, ())
            surveyed = [row._replace(against=("eager", peer)) for peer in arguments.peers]
            if arguments.survey:
                yield from surveyed
            else:
                fastest = _fastest([(one, peers.get(one)) for one in surveyed])
                yield row._replace(against=("eager", "mlcc", *fastest))


def _fastest(surveyed: Sequence[tuple[Row, Record | None]]) -> list[str]:
    """The peer that took least of eager's time beside it; none before a survey."""
    ratios = {
        row.against[1]: record["seconds"][row.against[1]] / record["seconds"]["eager"]
        for row, record in surveyed
        if record is not None and row.against[1] in record["seconds"]
    }
    return [min(ratios, key=ratios.__getitem__)] if ratios else []


def _limits(threads: int) -> Limits:
    """Measured once per build folder: the machine does not change."""
    path = ROOT / "build" / f"machine_limits-{threads}.json"
    if not path.exists():
        path.write_text(Limits.run_program(threads))
    return Limits.parse(path.read_text())


# -- one process


def run(row: Row, seconds: float) -> Record:
    """The record of a row, from a process of its own."""
    environment = dict(
        os.environ, OMP_NUM_THREADS=str(row.threads), MKL_NUM_THREADS=str(row.threads)
    )
    if row.threads == 1:
        environment["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    if row.malloc == "kept":
        environment.update(KEPT)
    command = [sys.executable, __file__, "--one", json.dumps(row), "--seconds", str(seconds)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        return {"reasons": {"process": lines[-1][:300]}, "seconds": {}}
    record: Record = json.loads(done.stdout.splitlines()[-1])
    return record


def measure(row: Sequence[Any], seconds: float) -> Record:
    """Prepare, check and time what a row asks for."""
    warnings.simplefilter("ignore")
    name, size, threads, _, against = row
    torch.set_num_threads(threads)
    case = WORKLOADS[name].case(parse_size(size))
    work = Work.of(case)
    ready, reasons = [], {}
    expected: list[torch.Tensor] | None = None
    with torch.no_grad():
        for one in against:
            try:
                contender = contenders.prepare(one, case, threads)
            except contenders.UnavailableError as reason:
                reasons[one] = str(reason)
                continue
            results = [result.clone() for result in contender.results()]
            expected = results if expected is None else expected
            error = 0.0 if case.is_random else contenders.largest_error(results, expected)
            if error <= tolerance(results):
                ready.append(contender)
            else:
                reasons[one] = f"WRONG: off by {error:.2g}"
        timed = harness.compare({one.name: one.call for one in ready}, seconds=seconds)
    return {
        "seconds": dict(zip(timed.seconds, timed.low_seconds, strict=True)),
        "ratio": {one.name: timed.ratio(one.name).median for one in ready},
        "rounds": timed.rounds,
        "compile_seconds": {one.name: round(one.compile_seconds, 3) for one in ready},
        "reasons": reasons,
        "bytes": work.bytes,
        "instructions": work.instructions,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def tolerance(results: Sequence[torch.Tensor]) -> float:
    """By the narrowest float among the results; integers are quantized, and may be off by one."""
    widths = [result.element_size() for result in results]
    return TOLERANCE if min(widths, default=4) >= 4 else TOLERANCE_16_BIT


def parse_size(text: str) -> int:
    """512K, 8M: bytes."""
    return int(text[:-1]) << {"K": 10, "M": 20}[text[-1]]


# -- report


def format_row(row: Row, record: Record, limits: Limits) -> str:
    """A line of the table."""
    seconds = record["seconds"]
    texts = [f"{row.workload:20} {row.size:>5} {row.threads}"]
    own = next((one for one in reversed(row.against) if one in seconds), "eager")
    own = "mlcc" if "mlcc" in seconds else own
    for one in row.against:
        if one not in seconds:
            texts.append(f"{one}: {record['reasons'].get(one, '')}")
            continue
        text = f"{one} {seconds[one] * 1e3:.3f} ms"
        if one != own:
            text += f" ({seconds[one] / seconds[own]:.2f}x)"
        texts.append(text)
    if own in seconds:
        work = Work(record["bytes"], record["instructions"])
        bound = (
            "bytes" if limits.memory_seconds(work) > limits.arithmetic_seconds(work) else "flops"
        )
        texts.append(f"roofline {limits.seconds(work) / seconds[own]:.2f} ({bound})")
    return "  ".join([*texts, *filter(None, [record["reasons"].get("process")])])


def print_report(measured: Sequence[tuple[Row, Record]], limits: Limits) -> int:
    """The table and what it amounts to."""
    for row, record in measured:
        print(format_row(row, record, limits))
    own = [(row, one) for row, one in measured if "mlcc" in one["seconds"]]
    if own:
        shares = [
            limits.seconds(Work(one["bytes"], one["instructions"])) / one["seconds"]["mlcc"]
            for _, one in own
        ]
        print(f"{len(own)} rows; {sum(shares) / len(shares):.2f} of the roofline in the mean")
        _print_ratios("eager", [one["ratio"]["mlcc"] for _, one in own])
        peers = [
            one["ratio"]["mlcc"] / one["ratio"][row.against[2]]
            for row, one in own
            if len(row.against) > 2 and row.against[2] in one["ratio"]
        ]
        _print_ratios("the fastest peer", peers)
    wrong = [r for _, one in measured for r in one["reasons"].values() if r.startswith("WRONG")]
    return int(bool(wrong))


def _print_ratios(name: str, ratios: Sequence[float]) -> None:
    if not ratios:
        return
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    slower = sum(ratio < 0.97 for ratio in ratios)
    print(
        f"times as fast as {name}: {mean:.2f} (geometric mean), least {min(ratios):.2f}, {slower} below 0.97"
    )


if __name__ == "__main__":
    sys.exit(main())
