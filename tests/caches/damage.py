"""Caches whose files are damaged."""

from __future__ import annotations

import random
import shutil

from tests.caches import children, mutations
from tests.caches.folders import At, Cases, empty_folder, entries, found_again
from tests.pool import Record

# No file is written over a folder: only the others show whether damage is mended.
SHARE_WITH_FOLDERS = 0.25


def run(rng: random.Random, count: int, cases: Cases, at: At) -> Record:
    """Of full caches `count` files are damaged, many at a time: programs are right, and the next process finds all."""
    faults: list[str] = []
    done = 0
    with empty_folder() as good, empty_folder() as folder:
        faults += children.run(good, cases).faults
        while done < count and not faults:
            at(f"{done} damaged")
            shutil.rmtree(folder)
            shutil.copytree(good, folder)
            files = list(entries(folder))
            some = rng.randint(1, max(1, min(count - done, len(files) * 2 // 3)))
            made = mutations.mutate(files, some, rng, folders=rng.random() < SHARE_WITH_FOLDERS)
            done += len(made)
            report = children.run(folder, cases)
            faults += report.faults
            if "folder" not in {what for what, _ in made}:
                faults += found_again(folder, cases, "after damage")
            if faults:
                faults.append(", ".join(f"{what} {path.name}" for what, path in made))
    return {"faults": faults, "done": done}
