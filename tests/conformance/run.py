"""torch's own operator samples (op_db) through mlcc, on the CPU in five dtypes.

usage: run.py [--ops NAME[,NAME...]] [--dtype NAME] [--backend NAME] [--gpu=emulate] [--sample N] [--every N]
              [--warm] [--fresh]

All samples of every op forward, against eager; by a seed a third of them backward, a third with symbolic sizes, a third
between pointwise ops. After each call its results are written over, which shows whose memory they are. Two worker
processes share the work; a crash or a sample that takes too long is a failure of that op and dtype. Results are
appended to build/conformance-<backend>.jsonl, so a run that was stopped goes on where it was; rebuilt code starts
afresh. With --warm all samples go through Dynamo, which torch's cache of graphs needs, and run again after a reset and
in new processes on the caches of the first (tests/warm.py). With --gpu=emulate the kernels are those for a GPU, run by
the emulator.

known_failures.txt lists what is known to fail, a line "op dtype" each. The exit status is 1 if something else fails,
or if something listed there passes.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from tests.pool import Lost, Pool, Record  # noqa: E402
from tests.store import Store  # noqa: E402
from tests.warm import difference, twice, without_digests  # noqa: E402

KNOWN_FAILURES = Path(__file__).with_name("known_failures.txt")
WORKER = Path(__file__).with_name("worker.py")
DTYPES = ("float32", "bfloat16", "float16", "int64", "bool")
SEED = 3


class Task(NamedTuple):
    """An op with one dtype, and how many samples (None: all)."""

    op: str
    dtype: str
    samples: int | None
    caches: str = "none"


def main() -> int:
    """Run what was asked for and print the table; the exit status."""
    arguments = _parse_arguments()
    tasks = list_tasks(arguments.ops, arguments.dtype, arguments.every, arguments.sample)
    if arguments.warm:
        tasks = [task._replace(caches="cold") for task in tasks]
    store = Store(_store_path(arguments), arguments.fresh)
    left = [task for task in tasks if store.get(task) is None]
    print(f"{len(tasks)} ops and dtypes, {len(left)} to run", flush=True)
    with tempfile.TemporaryDirectory(prefix="mlcc-conformance-") as folder:
        kept = environment(folder, arguments.gpu)
        answers = check_tasks(left, arguments.backend, arguments.jobs, arguments.timeout, kept)
        for done, (task, record) in enumerate(answers, start=1):
            store.append(task, record)
            _show_progress(task, record, done, len(left))
    records = [store[task] for task in tasks]
    print_report(records)
    surprises = find_surprises(records, read_known_failures(), arguments.sample is None)
    for line in surprises:
        print(line)
    return 1 if surprises else 0


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--ops", type=lambda text: text.split(","), help="only these")
    parser.add_argument("--dtype", choices=DTYPES, help="only this one")
    parser.add_argument("--backend", default="mlcc")
    parser.add_argument("--gpu", choices=("off", "emulate"), default="off")
    parser.add_argument("--sample", type=int, metavar="N", help="only N samples per op and dtype")
    parser.add_argument("--every", type=int, default=1, help="only each n-th op of a seeded order")
    parser.add_argument("--warm", action="store_true", help="and again, on the caches of the first")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    parser.add_argument("--jobs", type=int, default=2, help="worker processes")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for one sample")
    return parser.parse_args()


def environment(folder: str, gpu: str = "off") -> dict[str, str]:
    """This process's; private caches in `folder`, one thread, eager's random numbers, strict, kernels are verified."""
    kept = {key: text for key, text in os.environ.items() if key not in ("TORCH_LOGS", "MLCC_LOGS")}
    return {
        **kept,
        "MLCC_GPU": gpu,
        "MLCC_STRICT": "1",
        "MLCC_MEASURE": "0",
        "MLCC_FALLBACK_RANDOM": "1",
        "MLCC_VERIFY": kept.get("MLCC_VERIFY", "first"),
        "MLCC_CACHE_DIR": f"{folder}/mlcc",
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/torch",
        "OMP_NUM_THREADS": "1",
    }


def check_tasks(
    tasks: Sequence[Task], backend: str, jobs: int, timeout: float, kept: dict[str, str]
) -> Iterator[tuple[Task, Record]]:
    """Each task with its record, as they end, by `jobs` processes; a crash is one failed sample."""
    pool: Pool[Task] = Pool([str(WORKER), "--backend", backend], jobs, timeout, kept)
    cold = [task for task in tasks if task.caches == "cold"]
    for task, outcome, again in twice(pool, cold, lambda task: task._replace(caches="warm")):
        record = _record(task, outcome)
        reason = difference(outcome, again) if record_ok(record) else ""
        if reason:
            record["reasons"] = [f"on warm caches: {reason}"]
        yield task, record
    for task, outcome in pool.run([task for task in tasks if task.caches == "none"]):
        yield task, _record(task, outcome)


def _record(task: Task, outcome: Record | Lost) -> Record:
    if not isinstance(outcome, Lost):
        return without_digests(outcome)
    return {
        **task._asdict(),
        "tried": 1,
        "passed": 0,
        "seconds": 0.0,
        "reasons": [outcome.reason],
        "lost": True,
    }


# -- what to run


def list_tasks(
    ops: list[str] | None, dtype: str | None, every: int, samples: int | None
) -> list[Task]:
    """One per op and dtype that torch supports on the CPU; `ops` are taken whether or not the order picks them."""
    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    from tests.conformance.samples import full_name

    infos = {full_name(info): info for info in op_db}
    names = ops or _every_nth(sorted(infos), every)
    unknown = [name for name in names if name not in infos]
    if unknown:
        sys.exit(f"unknown ops: {', '.join(unknown)}")
    return [
        Task(name, one, samples)
        for name in names
        for one in ([dtype] if dtype else DTYPES)
        if getattr(torch, one) in infos[name].supported_dtypes("cpu")
    ]


def _every_nth(names: list[str], every: int) -> list[str]:
    """In an order by a seed, so that families of names are spread evenly."""
    random.Random(SEED).shuffle(names)
    return names[::every]


# -- results on disk


def _store_path(arguments: argparse.Namespace) -> Path:
    name = arguments.backend + (f"-gpu-{arguments.gpu}" if arguments.gpu != "off" else "")
    name += "-warm" if arguments.warm else ""
    name += f"-sample{arguments.sample}" if arguments.sample else ""
    return ROOT / "build" / f"conformance-{name}.jsonl"


# -- reports


def _show_progress(task: Task, record: Record, done: int, total: int) -> None:
    word = "ok" if record_ok(record) else "FAILED"
    print(f"[{done}/{total}] {task.op} {task.dtype}: {record['tried']} {word}", flush=True)


def record_ok(record: Record) -> bool:
    """Whether nothing of an op and dtype failed."""
    return record["passed"] == record["tried"] and not record["reasons"]


def print_report(records: list[Record]) -> None:
    """Failures by op with the first reason, then totals."""
    failed = [record for record in records if not record_ok(record)]
    if failed:
        print("\nop  dtype  passed/tried  first reason")
    for record in sorted(failed, key=lambda r: (r["op"], r["dtype"])):
        first = record["reasons"][0] if record["reasons"] else ""
        print(f"{record['op']}  {record['dtype']}  {record['passed']}/{record['tried']}  {first}")
    tried, passed = _total(records, "tried"), _total(records, "passed")
    print(
        f"\nops and dtypes: {_percent(len(records) - len(failed), len(records))}"
        f"\nsamples:        {_percent(passed, tried)}"
        f"\ntraced only by Dynamo:        {_total(records, 'by_dynamo')} samples"
        f"\na graph left to eager:        {_total(records, 'by_eager')} samples"
        f"\nrefused by torch's tracing:    {_total(records, 'untraced')} samples, under aot_eager too"
        f"\neager's own values vary:      {_total(records, 'unjudged')} samples, judged by shapes and strides"
        f"\nmemory shared as by aot_eager:  {_total(records, 'foreseen')} samples, otherwise than in eager"
        f"\nstored in torch's cache:       {_total(records, 'stored')} graphs"
        f"\ncrashes and time-outs:        {_total(records, 'lost')}"
    )


def _total(records: list[Record], key: str) -> int:
    return sum(int(record.get(key, 0)) for record in records)


def _percent(part: int, whole: int) -> str:
    return f"{part} of {whole} right ({100 * part / whole:.2f} %)" if whole else "none"


def read_known_failures() -> set[tuple[str, str]]:
    """The pairs of known_failures.txt."""
    lines = KNOWN_FAILURES.read_text().splitlines() if KNOWN_FAILURES.exists() else []
    entries = (line.split("#")[0].split() for line in lines)
    return {(entry[0], entry[1]) for entry in entries if entry}


def find_surprises(
    records: Iterable[Record], known: set[tuple[str, str]], all_samples: bool = True
) -> list[str]:
    """What fails and is not listed, and (where all samples were run) what is listed and passes."""
    lines = []
    for record in records:
        pair = (record["op"], record["dtype"])
        if record_ok(record) and pair in known and all_samples:
            lines.append(f"{' '.join(pair)}: passes; take it out of known_failures.txt")
        elif not record_ok(record) and pair not in known:
            lines.append(f"{' '.join(pair)}: fails and is not in known_failures.txt")
    return lines


if __name__ == "__main__":
    sys.exit(main())
