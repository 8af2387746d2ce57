"""Caches on a disk that is full."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from tests.caches import children  # noqa: E402
from tests.caches.children import FileLimit  # noqa: E402
from tests.caches.folders import At, Cases, changes, empty_folder, entries, found_again  # noqa: E402
from tests.caches.programs import Case  # noqa: E402
from tests.pool import Record  # noqa: E402

SMALLEST_DISK = 64  # KiB


def with_short_files(rng: random.Random, count: int, cases: Cases, at: At) -> Record:
    """Files that cannot become as long as they should, at `count` lengths: programs are right, and nothing goes."""
    faults: list[str] = []
    for turn in range(count):
        at(f"disk {turn}")
        with empty_folder() as folder:
            some = rng.sample(cases, min(8, len(cases)))
            faults += children.run(folder, some).faults
            before = entries(folder)
            limit = FileLimit(0 if turn == 0 else rng.randrange(1, 12000), kills=False)
            faults += children.run(folder, cases, limit).faults
            faults += changes(before, entries(folder))
            faults += found_again(folder, some, "of what was there")
            faults += children.run(folder, cases).faults
            faults += found_again(folder, cases, "of all")
    return {"faults": faults, "done": count}


def with_full_disk(rng: random.Random, count: int, cases: Cases, at: At) -> Record:
    """The same with a file system that is full, where this user may mount one; else nothing is done."""
    faults: list[str] = []
    if not _may_mount():
        return {"faults": faults, "done": 0}
    for turn in range(count):
        at(f"full disk {turn}")
        kibibytes = SMALLEST_DISK << turn
        with empty_folder() as folder:
            program = json.dumps([str(folder), rng.random(), cases])
            mounted = [*_MOUNTED, str(folder), f"size={kibibytes}k"]
            answer = subprocess.run(
                [*mounted, sys.executable, __file__, program], capture_output=True, text=True
            )
        if answer.returncode:
            faults.append(f"{kibibytes} KiB: {answer.stdout[-2000:]}{answer.stderr[-2000:]}")
    return {"faults": faults, "done": count}


# Runs a program where a folder is a file system of its own, in memory and of a given size.
_SCRIPT = 'mount -t tmpfs -o "$1" mlcc "$0" && shift && exec "$@"'
_MOUNTED = ["unshare", "--mount", "--map-root-user", "sh", "-c", _SCRIPT]


def _may_mount() -> bool:
    with empty_folder() as folder:
        command = [*_MOUNTED, str(folder), "size=64k", "true"]
        has_it = shutil.which("unshare") is not None
        return has_it and subprocess.run(command, capture_output=True).returncode == 0


def _on_full_disk(folder: Path, seed: float, cases: Cases) -> list[str]:
    """What is wrong on the full file system that is mounted there, and when it has room for a file again."""
    children.warm_up()
    some = random.Random(seed).sample(cases, min(3, len(cases)))
    faults = children.run(folder, some).faults
    before = entries(folder)
    with contextlib.suppress(OSError), open(folder / "filler", "wb", buffering=0) as filler:
        while filler.write(bytes(512)):
            pass
    faults += children.run(folder, cases).faults
    (folder / "filler").unlink()
    faults += changes(before, entries(folder))
    faults += children.run(folder, cases).faults
    return faults


if __name__ == "__main__":
    place, drawn, some = json.loads(sys.argv[1])
    found = _on_full_disk(Path(place), drawn, [Case(*case) for case in some])
    print("\n".join(found))
    sys.exit(bool(found))
