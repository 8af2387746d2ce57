"""A process that does a part of the tests of caches on demand: {"part": name, "seed": n, "amount": n, "cases": n} in,
and {"outcome": {"faults": [...], "done": n}} out.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from tests.caches import children, damage, disk, keys, kills, versions
from tests.caches.folders import At, Cases
from tests.caches.programs import CASES
from tests.worker import Record, Work, serve

PARTS: dict[str, Callable[[random.Random, int, Cases, At], Record]] = {
    "kills": kills.run,
    "damage": damage.run,
    "short files": disk.with_short_files,
    "full disk": disk.with_full_disk,
    "versions": versions.run,
    "keys": keys.run,
}


def start() -> Work:
    """What a worker answers tasks by."""
    children.warm_up()

    def work(task: Record, at: At) -> Record:
        rng = random.Random(task["seed"])
        cases = rng.sample(CASES, min(task["cases"], len(CASES)))
        return PARTS[task["part"]](rng, task["amount"], cases, at)

    return work


if __name__ == "__main__":
    serve(start)
