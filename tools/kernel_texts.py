#!/usr/bin/env python3
"""The texts of all kernels of the conformance sample and of the benchmarks, to tell whether a change alters code.

usage: kernel_texts.py write FOLDER [--every N] [--nets]
       kernel_texts.py compare BEFORE AFTER

`write` keeps each loop nest and each module of LLVM IR once, under a hash of its text: those of one sample of each
sixth op of `make conformance` (of each n-th with --every), of all workloads of `make bench` at 512 KiB, of attention at
128 positions, and with --nets of the networks of `make bench BENCH=contraction_models`. Nothing is timed, so that the
same code gives the same texts on the same CPU. `compare` names what only one of two such folders holds.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

STAGES = ("loop", "llvm")
SECONDS_OF_A_TASK = 240.0
FOOTPRINT = 512 * 1024  # bytes, of a workload's inputs and results
POSITIONS, HEADS, WIDTH = 128, 8, 64  # of attention
PART = "--part"  # what one process compiles; for this program alone


def main() -> int:
    """Write or compare; the exit status is 1 where texts differ."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(PART, choices=tuple(PARTS), help=argparse.SUPPRESS)
    commands = parser.add_subparsers(dest="command")
    write = commands.add_parser("write")
    write.add_argument("folder", type=Path)
    write.add_argument("--every", type=int, default=6, help="one sample of each n-th op")
    write.add_argument("--nets", action="store_true", help="networks, too: some minutes")
    compare = commands.add_parser("compare")
    compare.add_argument("before", type=Path)
    compare.add_argument("after", type=Path)
    arguments = parser.parse_args()
    if arguments.part:
        PARTS[arguments.part]()
        return 0
    if arguments.command == "compare":
        return compare_texts(arguments.before, arguments.after)
    if arguments.command != "write":
        parser.error("write or compare")
    return write_texts(arguments.folder, arguments.every, arguments.nets)


def write_texts(folder: Path, every: int, with_nets: bool) -> int:
    """Compile everything with private caches; the number of parts that failed."""
    from tests.conformance import run

    folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    with tempfile.TemporaryDirectory(prefix="mlcc-texts-") as scratch:
        dumps = Path(scratch, "dumps")
        kept = {
            **run.environment(scratch),
            "MLCC_DUMP": ",".join(STAGES),
            "MLCC_DUMP_DIR": str(dumps),
            "MLCC_VERIFY": "off",
            "MLCC_NUM_THREADS": "1",
            "PYTHONPATH": os.environ.get("PYTHONPATH", str(ROOT)),
        }
        for dtype in run.DTYPES:
            tasks = run.list_tasks(None, dtype, every, 1)
            for task, record in run.check_tasks(tasks, "mlcc", 2, SECONDS_OF_A_TASK, kept):
                if not run.record_ok(record):
                    print(f"{task.op} {task.dtype}: {record['reasons'][0]}", flush=True)
            collect(dumps, folder)
        for part in PARTS:
            if part == "nets" and not with_nets:
                continue
            command = [sys.executable, str(Path(__file__).resolve()), PART, part]
            failed += subprocess.run(command, env=kept, check=False).returncode != 0
            collect(dumps, folder)
    print(f"{len(list(folder.iterdir()))} texts")
    return failed


def collect(dumps: Path, folder: Path) -> None:
    """Move what was dumped to `folder`, each text once."""
    for path in sorted(dumps.rglob("*")):
        if path.is_file() and path.suffix[1:] in STAGES:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()[:24]
            path.replace(folder / f"{digest}{path.suffix}")


def compare_texts(before: Path, after: Path) -> int:
    """Print what differs; 1 if anything does."""
    old, new = ({path.name for path in folder.iterdir()} for folder in (before, after))
    for name in sorted(old - new):
        print(f"only before: {before / name}")
    for name in sorted(new - old):
        print(f"only after: {after / name}")
    print(f"{len(old & new)} the same, {len(old - new)} only before, {len(new - old)} only after")
    return 0 if old == new else 1


# -- what one process compiles


def compile_workloads() -> None:
    """All of `make bench`, by mlcc.jit, with symbolic sizes and without."""
    from benchmarks.workloads import WORKLOADS

    for workload in WORKLOADS.values():
        case = workload.case(FOOTPRINT)
        call(workload.name, case.function, case.inputs)


def compile_attention() -> None:
    """All forms of `make bench BENCH=attention`."""
    import torch

    from benchmarks.attention import FORMS

    for name, form in FORMS.items():
        torch.manual_seed(0)
        heads = [HEADS, HEADS // form.groups, HEADS // form.groups]
        inputs = [torch.randn(1, n, POSITIONS, WIDTH, dtype=form.dtype) for n in heads]
        if form.make_mask is not None:
            inputs.append(form.make_mask(HEADS, POSITIONS, POSITIONS))
        call(name, form.function, inputs)


def compile_nets() -> None:
    """All networks at their first size, in f32."""
    from benchmarks.contraction_models import Row, build
    from benchmarks.contraction_nets import NETS

    for name, kind in NETS.items():
        case, _ = build(Row(name, kind.sizes[0], "f32", 1, "default", "wall", ()))
        call(name, case.function, case.inputs)


def call(name: str, function: Callable[..., Any], inputs: Sequence[Any]) -> None:
    """Compile and run; what fails is told and compiles nothing."""
    import torch

    import mlcc

    for dynamic in (False, True):
        try:
            with torch.no_grad():
                mlcc.jit(function, dynamic=dynamic)(*inputs)
        except Exception as error:
            print(f"{name} (dynamic={dynamic}): {type(error).__name__}: {error}", flush=True)


PARTS: dict[str, Callable[[], None]] = {
    "workloads": compile_workloads,
    "attention": compile_attention,
    "nets": compile_nets,
}

if __name__ == "__main__":
    sys.exit(main())
