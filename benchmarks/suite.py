"""The memory-bound workloads, mlcc beside eager and the fastest peer, and how far all are from what the machine allows.

usage: suite.py [--filter REGEX] [--sizes 512K,8M,128M] [--ladder] [--threads N] [--peers NAME[,NAME...]] [--survey]
                [--seconds 1.5] [--malloc default|kept] [--clock wall|cpu] [--json FILE] [--plot FILE.svg] [--fresh]

`make bench` builds what this needs; `python -m mlcc bench` is the same program. docs/benchmarks.md says how to read it.
Each row (a workload at a footprint of inputs and results) is measured in a process of its own: eager, mlcc (by
mlcc.jit, with symbolic sizes and without) and the row's fastest peer in turns, all results checked against eager's; a
second process tells what compiling takes with the caches of the first. With --survey every peer meets eager instead,
one process each; the fastest of them is what later runs put beside mlcc. Rows are appended to build/suite.jsonl and
build/suite-peers.jsonl, so a run that was stopped goes on; rebuilt code starts afresh, peers are measured once per
version of torch. --malloc=kept tells glibc to keep freed memory, which spares eager page faults; --clock=cpu counts the
process's CPU time, which the other work of a busy machine disturbs less (of several threads it is the sum).
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from benchmarks import contenders, harness, traffic  # noqa: E402
from benchmarks.roofline import PROGRAM, Limits, Work  # noqa: E402
from benchmarks.suite_plot import plot  # noqa: E402
from benchmarks.workloads import WORKLOADS, Case  # noqa: E402
from tests.arguments import names_among  # noqa: E402
from tests.store import Store  # noqa: E402

SIZES = ("512K", "8M", "128M")
LADDER = ("1K", "4K", "16K", "64K", "256K", "1M", "4M", "16M", "64M", "256M", "512M")
LADDER_WORKLOADS = ("pointwise_2", "softmax", "layer_norm_gelu", "sum_all", "transpose")
# What a result may part from eager's: relative to the largest number, by the dtype of the workload.
TOLERANCE, TOLERANCE_16_BIT = 1e-4, 3e-2
# By how much the standard deviations of what two contenders draw may part, of the larger one.
TOLERANCE_OF_DRAWS = 0.02
KEPT = {
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TRIM_THRESHOLD_": "4294967296",
    "MALLOC_TOP_PAD_": "67108864",
}

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}

Record = dict[str, Any]


class Row(NamedTuple):
    """What is measured in one process."""

    workload: str
    size: str
    threads: int
    malloc: str
    clock: str
    against: tuple[str, ...]


def main() -> int:
    """Measure what is missing, then print the table; the exit status is 1 if a result was wrong."""
    arguments = _parse_arguments()
    if arguments.one:
        print(json.dumps(measure(json.loads(arguments.one), arguments.seconds)))
        return 0
    limits = machine_limits(arguments.threads)
    print_missing(arguments.peers)
    peers = Store(
        ROOT / "build" / "suite-peers.jsonl", arguments.fresh, f"torch {torch.__version__}"
    )
    store = peers if arguments.survey else Store(ROOT / "build" / "suite.jsonl", arguments.fresh)
    rows = list(_rows(arguments, peers))
    for row in rows:
        if store.get(row) is None:
            record = run(row, arguments.seconds)
            print(format_row(row, record, limits), flush=True)
            if _is_final(row, record):  # else it may go better next time
                store.append(row, record)
    measured = [(row, store[row]) for row in rows if store.get(row) is not None]
    if arguments.json:
        arguments.json.write_text(json.dumps(report(measured, limits), indent=1) + "\n")
    if arguments.plot:
        arguments.plot.write_text(plot(report(measured, limits)))
    return print_report(measured, limits)


def _is_final(row: Row, record: Record) -> bool:
    """A peer that is not installed, and a process that died, may be there next time."""
    missing = any(contenders.missing_packages(one) for one in row.against)
    return bool(record["seconds"]) and not missing


def print_missing(peers: Sequence[str]) -> None:
    """Name the peers that are not installed."""
    missing = {peer: contenders.missing_packages(peer) for peer in peers}
    for peer, packages in missing.items():
        if packages:
            print(f"{peer}: not installed: {', '.join(packages)}; `make peers` installs them")


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
    parser.add_argument("--clock", choices=tuple(CLOCKS), default="wall")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table there too")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw it as SVG")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    return parser.parse_args()


def _rows(arguments: argparse.Namespace, peers: Store) -> Iterable[Row]:
    for name in WORKLOADS:
        if not arguments.filter.search(name) or (arguments.ladder and name not in LADDER_WORKLOADS):
            continue
        for size in LADDER if arguments.ladder else arguments.sizes:
            row = Row(name, size, arguments.threads, arguments.malloc, arguments.clock, ())
            surveyed = [row._replace(against=("eager", peer)) for peer in arguments.peers]
            if arguments.survey:
                yield from surveyed
            else:
                found = fastest([(one, peers.get(one)) for one in surveyed])
                yield row._replace(against=(*contenders.OWN, *found))


def fastest(surveyed: Sequence[tuple[Any, Record | None]]) -> list[str]:
    """The peer that took least of eager's time beside it; none before a survey."""
    ratios = {
        row.against[1]: record["seconds"][row.against[1]] / record["seconds"]["eager"]
        for row, record in surveyed
        if record is not None and row.against[1] in record["seconds"]
    }
    return [min(ratios, key=ratios.__getitem__)] if ratios else []


def machine_limits(threads: int) -> Limits:
    """Measured once per build folder: the machine does not change."""
    path = ROOT / "build" / f"machine_limits-{threads}.json"
    if not path.exists() or not Limits.parse(path.read_text()).peaks:  # else of an older program
        if not PROGRAM.exists():
            sys.exit(f"{PROGRAM} measures this machine and is not built: `make bench` builds it")
        path.write_text(Limits.run_program(threads))
    return Limits.parse(path.read_text())


# -- one process


def run(row: Row, seconds: float) -> Record:
    """The record of a row, from a process of its own; a second one says what compiling takes with its caches."""
    with tempfile.TemporaryDirectory(prefix="mlcc-suite-") as folder:
        variables = _environment(row)
        if row.against[: len(contenders.OWN)] != contenders.OWN:  # a survey
            return _run_process(row, seconds, variables)
        variables |= {
            "MLCC_CACHE_DIR": f"{folder}/mlcc",
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/torch",
            "JAX_COMPILATION_CACHE_DIR": f"{folder}/jax",
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        record = _run_process(row, seconds, variables)
        warm = _run_process(row, 0, variables)
        return {**record, "warm_compile_seconds": warm.get("compile_seconds", {})}


def _environment(row: Row) -> dict[str, str]:
    return environment(row.threads, row.malloc)


def environment(count: int, malloc: str) -> dict[str, str]:
    """For a process that uses so many threads."""
    threads = str(count)
    own = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "PJRT_NPROC": threads}
    if count == 1:
        own["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    return {**os.environ, **own, **(KEPT if malloc == "kept" else {})}


def _run_process(row: Row, seconds: float, variables: dict[str, str]) -> Record:
    command = [sys.executable, __file__, "--one", json.dumps(row), "--seconds", str(seconds)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        return {"reasons": {"process": lines[-1][:300]}, "seconds": {}}
    record: Record = json.loads(done.stdout.splitlines()[-1])
    return record


def measure(row: Sequence[Any], seconds: float) -> Record:
    """Prepare, check and time what a row asks for; in no time it is prepared only."""
    warnings.simplefilter("ignore")
    name, size, threads, _, clock, against = row
    torch.set_num_threads(threads)
    case = WORKLOADS[name].case(parse_size(size))
    ready: list[contenders.Contender] = []
    reasons = {}
    expected: list[torch.Tensor] | None = None
    kernels = traffic.KernelLog()
    with torch.no_grad():
        for one in against:
            try:
                with kernels if one == "mlcc_static" else nullcontext():
                    contender = contenders.prepare(one, case, threads)
            except contenders.UnavailableError as reason:
                reasons[one] = str(reason)
                continue
            if seconds:
                expected, fault = _check(contender, case, expected)
                if fault:
                    reasons[one] = fault
                    continue
            ready.append(contender)
        compile_seconds = {one.name: round(one.compile_seconds, 3) for one in ready}
        if not seconds:
            return {"compile_seconds": compile_seconds}
        calls = {one.name: one.call for one in ready}
        timed = harness.compare(calls, seconds=seconds, clock=CLOCKS[clock])
        peaks = {one.name: peak_bytes(one.call) for one in ready}
    work = Work.of(case)
    return {
        "seconds": dict(zip(timed.seconds, timed.low_seconds, strict=True)),
        "ratio": {one.name: timed.ratio(one.name).median for one in ready},
        "rounds": timed.rounds,
        "compile_seconds": compile_seconds,
        "reasons": reasons,
        "bytes": work.bytes,
        "instructions": work.instructions,
        "moved_bytes": {
            "op_by_op": traffic.op_by_op(case),
            "kernels": kernels.bytes - traffic.unread_bytes(case) if kernels.kernels else None,
        },
        "kernels": kernels.kernels,
        "aten_calls": kernels.calls,
        "peak_bytes": peaks,
    }


def _check(
    contender: contenders.Contender, case: Case, expected: list[torch.Tensor] | None
) -> tuple[list[torch.Tensor], str]:
    """The results to expect (those of the first contender), and why this one's are wrong, or ''."""
    results = [result.clone() for result in contender.results()]
    if expected is None:
        return results, ""
    if not case.is_random:
        error = contenders.largest_error(results, expected)
        return expected, "" if error <= tolerance(results) else f"WRONG: off by {error:.2g}"
    if all(map(torch.equal, results, contender.results())):
        return expected, "WRONG: draws the same at each call"
    spreads = [[float(x.double().std()) for x in each] for each in (results, expected)]
    near = [abs(a - b) <= TOLERANCE_OF_DRAWS * max(a, b) for a, b in zip(*spreads, strict=True)]
    return expected, "" if all(near) else f"WRONG: spread {spreads[0]}, eager {spreads[1]}"


def peak_bytes(call: Callable[[], object]) -> int | None:
    """By how much a call's peak exceeds the memory in use before it; None where the kernel does not tell."""

    def status(name: str) -> int:
        text = Path("/proc/self/status").read_text()
        found = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
        return int(found[1]) << 10 if found else 0

    ctypes.CDLL(None).malloc_trim(0)  # else what is free in the heap counts as in use
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again
    except OSError:
        return None
    before = status("VmRSS")
    call()
    return max(0, status("VmHWM") - before)


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
    own = "mlcc" if "mlcc" in seconds else next(reversed(seconds), "")
    for one in row.against:
        if one not in seconds:
            texts.append(f"{one}: {record['reasons'].get(one, '')}")
            continue
        text = f"{one} {seconds[one] * 1e3:.3f} ms"
        if one != own:
            text += f" ({seconds[one] / seconds[own]:.2f}x)"
        texts.append(text)
    if own:
        shares = shares_of_limits(record, own, limits)
        by_name = ", ".join(f"{name} {share:.2f}" for name, share in shares.items())
        texts.append(f"roofline {max(shares.values()):.2f} ({by_name})")
    if own == "mlcc":
        texts += _texts_of_one(record)
    return "  ".join([*texts, *filter(None, [record["reasons"].get("process")])])


def shares_of_limits(record: Record, name: str, limits: Limits) -> dict[str, float]:
    """What the bytes and what the arithmetic would take alone, over what was taken; the larger is the roofline's."""
    work = Work(record["bytes"], record["instructions"])
    taken = record["seconds"][name]
    return {
        "bytes": limits.memory_seconds(work) / taken,
        "flops": limits.arithmetic_seconds(work) / taken,
    }


def _texts_of_one(record: Record) -> Iterable[str]:
    """What is told of mlcc alone."""
    moved = record["moved_bytes"]
    if moved["kernels"] is not None:
        fused = f"{moved['kernels'] / 1e6:.1f} MB"
        fused += f", {record['kernels']} kernels, {record['aten_calls']} ATen calls"
        yield f"moves {fused} (op by op {moved['op_by_op'] / 1e6:.1f})"
    warm = record["warm_compile_seconds"].get("mlcc")
    yield f"compiles {record['compile_seconds']['mlcc']:.2f} s" + (
        "" if warm is None else f" (warm {warm:.2f})"
    )
    peaks = {name: peak for name, peak in record["peak_bytes"].items() if peak is not None}
    if "mlcc" in peaks:
        yield f"peak {peaks['mlcc'] / 1e6:.1f} MB (eager {peaks['eager'] / 1e6:.1f})"


def report(measured: Sequence[tuple[Row, Record]], limits: Limits) -> list[Record]:
    """The table for programs: the records, each with its row and everybody's share of the roofline."""
    return [
        {
            **row._asdict(),
            **record,
            "roofline": {
                name: max(shares_of_limits(record, name, limits).values())
                for name in record["seconds"]
            },
        }
        for row, record in measured
    ]


def print_report(measured: Sequence[tuple[Row, Record]], limits: Limits) -> int:
    """The table and what it amounts to."""
    for row, record in measured:
        print(format_row(row, record, limits))
    own = [(row, one) for row, one in measured if "mlcc" in one["seconds"]]
    if own:
        shares = [max(shares_of_limits(one, "mlcc", limits).values()) for _, one in own]
        print(f"{len(own)} rows; {sum(shares) / len(shares):.2f} of the roofline in the mean")
        _print_ratios("eager", [one["ratio"]["mlcc"] for _, one in own])
        peers = [
            one["ratio"]["mlcc"] / one["ratio"][peer]
            for row, one in own
            for peer in row.against[len(contenders.OWN) :]
            if peer in one["ratio"]
        ]
        _print_ratios("the fastest peer", peers)
        static = [
            one["ratio"]["mlcc"] / one["ratio"]["mlcc_static"]
            for _, one in own
            if "mlcc_static" in one["ratio"]
        ]
        _print_ratios("with sizes that are numbers", static)
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
