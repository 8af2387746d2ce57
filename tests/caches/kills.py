"""Processes on one folder of caches that are killed."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from multiprocessing import connection
from pathlib import Path

from tests.caches import children
from tests.caches.children import Child, FileLimit
from tests.caches.folders import At, Cases, changes, empty_folder, entries, found_again
from tests.caches.programs import Case
from tests.pool import Record

AT_ONCE = 8
LONGEST_DELAY = 0.3  # seconds from what a child told to its end


def run(rng: random.Random, count: int, cases: Cases, at: At) -> Record:
    """Processes on one folder, eight at a time: `count` are killed; a third has a limit of files, and dies in a write.

    No entry goes or changes, what a process ended is found again, and all programs are right.
    """
    faults: list[str] = []
    ended: set[Case] = set()
    with empty_folder() as folder:
        seen: dict[Path, bytes] = {}
        for report in _killed(folder, count, cases, rng):
            at("kills")
            faults += report.faults
            ended |= {*report.ended}
            now = entries(folder)
            faults += changes(seen, now)
            seen |= now
        faults += found_again(folder, sorted(ended), "of what had ended")
        at("found again")
        faults += children.run(folder, cases).faults
        at("all")
        faults += found_again(folder, cases, "of all")
    return {"faults": faults, "done": count}


def _killed(
    folder: Path, count: int, cases: Cases, rng: random.Random
) -> Iterator[children.Report]:
    """The reports of processes that were killed, or died in a write, or came to their end before."""
    living: dict[connection.Connection, tuple[Child, int, float]] = {}
    left, started = count, 0
    while left > 0 or living:
        while left > len(living) - AT_ONCE and len(living) < AT_ONCE and left > 0:
            in_write = started % 3 == 2
            limit = FileLimit(rng.randrange(1, 12000), kills=True) if in_write else None
            child = Child(folder, rng.sample(cases, min(6, len(cases))), limit)
            last = 99 if in_write else rng.randint(0, 11)
            living[child.connection] = child, last, rng.random() * LONGEST_DELAY
            started += 1
        for ready in connection.wait(list(living)):
            child, messages, delay = living[ready]  # type: ignore[index]
            goes_on = child.hear()
            living[child.connection] = child, messages - 1, delay
            if goes_on and messages == 0 and left > 0:
                time.sleep(delay)
                child.kill()
                left -= 1
                goes_on = False
            if not goes_on:
                del living[child.connection]
                yield _whole(child)


def _whole(child: Child) -> children.Report:
    """The report of a process that was killed, or has ended."""
    report = child.end()
    if report.exit_status not in (0, -9, -25):  # SIGKILL, SIGXFSZ
        report.faults.append(f"exit status {report.exit_status} in {report.begun[-1:]}")
    return report
