"""Random programs in torch (torch_programs.py) through mlcc, against eager.

usage: run.py [--programs N] [--seed FIRST] [--jobs N] [--fresh] | run.py --show SEED

Program n has seed FIRST + n. Worker processes run them; a crash or minutes without an answer are a failure. Results
are appended to build/fuzz.jsonl, so a run that was stopped goes on where it was; rebuilt code starts afresh. A failure
is reduced to a small program, printed, and saved as build/fuzz/<seed>.py, which runs in the repository's root. The exit
status is 1 if a program fails that does not fail in the same way with torch's own tracing and eager's kernels.
"""

from __future__ import annotations

import argparse
import collections
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from tests.fuzz.program_check import TORCHS_OWN  # noqa: E402
from tests.pool import Lost, Pool, Record  # noqa: E402
from tests.store import Store  # noqa: E402

SECONDS = 180  # for one program, or one step of its reduction, on a busy machine
PER_PROCESS = 500  # torch keeps what it has traced: a fresh process bounds the memory
FOLDER = ROOT / "build" / "fuzz"
WORKER = Path(__file__).with_name("worker.py")


class Task(NamedTuple):
    """One program."""

    seed: int


def main() -> int:
    """Run what was asked for; the exit status."""
    arguments = _parse_arguments()
    if arguments.show is not None:
        from tests.fuzz.torch_programs import draw_program

        print(draw_program(arguments.show).as_script(f"seed {arguments.show}"))
        return 0
    store = Store(ROOT / "build" / "fuzz.jsonl", arguments.fresh)
    tasks = [Task(arguments.seed + n) for n in range(arguments.programs)]
    left = [task for task in tasks if store.get(task) is None]
    print(f"{len(tasks)} programs, {len(left)} to run", flush=True)
    with tempfile.TemporaryDirectory(prefix="mlcc-fuzz-") as folder:
        run_programs(left, arguments.jobs, environment(folder), store)
    return report([store[task] for task in tasks])


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--jobs", type=int, default=2, help="worker processes")
    parser.add_argument("--show", type=int, metavar="SEED", help="print the program of that seed")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    return parser.parse_args()


def environment(folder: str) -> dict[str, str]:
    """This process's; private caches, one thread, internal errors raise, kernels are verified."""
    return {
        **os.environ,
        "MLCC_STRICT": "1",
        "MLCC_MEASURE": "0",
        "MLCC_VERIFY": "first",
        "MLCC_CACHE_DIR": f"{folder}/mlcc",
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/torch",
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
    }


def run_programs(tasks: Sequence[Task], jobs: int, environ: dict[str, str], store: Store) -> None:
    """Append each task's record to the store, and tell of failures."""
    pool: Pool[Task] = Pool([str(WORKER)], jobs, SECONDS, environ, PER_PROCESS)
    start = time.monotonic()
    for done, (task, outcome) in enumerate(pool.run(tasks), start=1):
        record = record_of(outcome)
        store.append(task, record)
        if record["kind"]:
            _tell(task.seed, record)
        if done % 100 == 0:
            rate = done / (time.monotonic() - start)
            print(f"[{done}/{len(tasks)}] {rate:.1f} a second", flush=True)


def record_of(outcome: Record | Lost) -> dict[str, Any]:
    """What the store keeps; a program whose worker died or was too slow has failed."""
    if isinstance(outcome, Lost):
        return {"kind": outcome.reason, "text": "", "script": ""}
    return outcome


def _tell(seed: int, record: dict[str, Any]) -> None:
    print(f"\nseed {seed}: {record['kind']}\n{record['script'] or record['text']}", flush=True)
    if record["script"]:
        FOLDER.mkdir(parents=True, exist_ok=True)
        (FOLDER / f"{seed}.py").write_text(record["script"])


def report(records: Sequence[dict[str, Any]]) -> int:
    """Print how many failed in which ways; the exit status."""
    kinds = collections.Counter(record["kind"] for record in records if record["kind"])
    for kind, count in kinds.most_common():
        print(f"{count:5}  {kind}")
    torchs_own = sum(count for kind, count in kinds.items() if kind.startswith(TORCHS_OWN))
    print(
        f"{len(records) - kinds.total()} of {len(records)} programs right,"
        f" {torchs_own} wrong without mlcc as well"
    )
    return 1 if kinds.total() > torchs_own else 0


if __name__ == "__main__":
    sys.exit(main())
