"""Disk caches under kills, damage, full disks and other versions of mlcc; and what their keys tell apart.

usage: run.py [--parts NAME[,NAME...]] [--seed N] [--kills N] [--damaged N] [--scale X] [--fresh]

Parts: kills (eight processes on one folder of caches), damage (files are changed), short files and full disk (what
cannot be written), versions (another build and another version of mlcc on the same caches), keys (what changes code
changes keys). Programs must be right in each, no exception may come out, and no good entry may go. Results are appended
to build/caches.jsonl, so a run that was stopped goes on where it was; rebuilt code starts afresh.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from tests.arguments import names_among  # noqa: E402
from tests.pool import Lost, Pool, Record  # noqa: E402
from tests.store import Store  # noqa: E402

WORKER = Path(__file__).with_name("worker.py")
SECONDS = 600.0  # between two signs of life, on a busy machine
# How much of each part a run does, and how much of that in one task.
WORK = {
    "kills": (200, 40),
    "damage": (1000, 100),
    "short files": (12, 4),
    "full disk": (4, 4),
    "versions": (2, 2),
    "keys": (6, 1),
}


class Task(NamedTuple):
    """A piece of a part."""

    part: str
    seed: int
    amount: int
    cases: int = 1000  # how many of programs.py at most


def main() -> int:
    """Run what was asked for; the exit status."""
    arguments = _parse_arguments()
    store = Store(ROOT / "build" / "caches.jsonl", arguments.fresh)
    tasks = list(_tasks(arguments))
    left = [task for task in tasks if store.get(task) is None]
    print(f"{len(tasks)} tasks, {len(left)} to run", flush=True)
    pool: Pool[Task] = Pool([str(WORKER)], 1, SECONDS, environment())
    for task, outcome in pool.run(left):
        store.append(task, record_of(outcome))
        print(f"{task.part}, seed {task.seed}: {store[task]}", flush=True)
    return _report([(task, store[task]) for task in tasks])


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--parts", type=names_among(WORK), default=list(WORK), help="only these")
    parser.add_argument("--seed", type=int, default=0, help="of the first task of each part")
    parser.add_argument("--kills", type=int, default=WORK["kills"][0], help="processes to kill")
    parser.add_argument("--damaged", type=int, default=WORK["damage"][0], help="files to damage")
    parser.add_argument("--scale", type=float, default=1.0, help="the share of all work")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    return parser.parse_args()


def _tasks(arguments: argparse.Namespace) -> Iterator[Task]:
    asked = {"kills": arguments.kills, "damage": arguments.damaged}
    for part in arguments.parts:
        whole, piece = WORK[part]
        left = max(1, math.ceil(asked.get(part, whole) * arguments.scale))
        seed = arguments.seed
        while left > 0:
            yield Task(part, seed, min(left, piece))
            left, seed = left - piece, seed + 1


def environment() -> dict[str, str]:
    """This process's; one thread, internal errors raise, frames are stored, nothing is measured."""
    return {
        **os.environ,
        "MLCC_STRICT": "1",
        "MLCC_MEASURE": "0",
        "MLCC_WARM_START": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
    }


def record_of(outcome: Record | Lost) -> Record:
    """What the store keeps; a worker that died or was too slow is a fault."""
    return {"faults": [outcome.reason], "done": 0} if isinstance(outcome, Lost) else outcome


def _report(results: list[tuple[Task, Record]]) -> int:
    faults = 0
    for part in dict.fromkeys(task.part for task, _ in results):
        records = [(task, record) for task, record in results if task.part == part]
        done = sum(record["done"] for _, record in records)
        failed = [task.seed for task, record in records if record["faults"]]
        faults += len(failed)
        seeds = f", faults at seeds {' '.join(map(str, failed))}" if failed else ""
        print(f"{part}: {done}{seeds}")
    print(f"{len(results) - faults} of {len(results)} tasks right")
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
