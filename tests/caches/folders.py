"""Folders of caches: what stands in them, and whether a process finds it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.caches import children
from tests.caches.programs import Case

Cases = Sequence[Case]
At = Callable[[str], None]


@contextlib.contextmanager
def empty_folder() -> Iterator[Path]:
    """A folder for the time of the block."""
    with tempfile.TemporaryDirectory(prefix="mlcc-caches-") as folder:
        yield Path(folder)


def variables(folder: Path) -> dict[str, str]:
    """The environment of a process that has its caches there."""
    return {
        **os.environ,
        "MLCC_CACHE_DIR": str(folder / "mlcc"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "torch"),
    }


def entries(folder: Path) -> dict[Path, bytes]:
    """The finished files of the caches, by digest."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.name.startswith((".", "tmp-")):
            with contextlib.suppress(FileNotFoundError):  # renamed meanwhile
                found[path] = hashlib.sha256(path.read_bytes()).digest()
    return found


def found_again(folder: Path, cases: Cases, what: str) -> list[str]:
    """What is wrong where these are to be in the caches."""
    report = children.run(folder, cases)
    wanted = {"compiled": 0, "traced": 0}
    if not report.faults and report.work != wanted:
        return [f"{what}: {report.work}"]
    return report.faults


def changes(before: dict[Path, bytes], now: dict[Path, bytes]) -> list[str]:
    """Entries that have gone or are not what they were."""
    gone = [f"lost: {path.name}" for path in before.keys() - now.keys()]
    return gone + [
        f"changed: {path.name}" for path in before.keys() & now.keys() if before[path] != now[path]
    ]
