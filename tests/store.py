"""Results of a long run on disk, so that a run that was stopped goes on where it was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

Record = dict[str, Any]


class Store:
    """A JSON-lines file: first the version of the code, then one line per task; of another version it starts afresh.

    A task is a sequence of strings and numbers. The version is that of our code unless another one is given.
    """

    def __init__(self, path: Path, fresh: bool = False, version: str | None = None) -> None:
        self._records: dict[str, Record] = {}
        self._path = path
        self._version = version or _code_version()
        if fresh or not self._read():
            self._records.clear()
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"version": self._version}) + "\n")

    def get(self, task: Sequence[Any]) -> Record | None:
        """The task's result if there is one."""
        return self._records.get(_key(task))

    def __getitem__(self, task: Sequence[Any]) -> Record:
        return self._records[_key(task)]

    def append(self, task: Sequence[Any], record: Record) -> None:
        """Add one result."""
        self._records[_key(task)] = record
        with self._path.open("a") as file:
            file.write(json.dumps({"task": list(task), "record": record}) + "\n")

    def _read(self) -> bool:
        """False if there is nothing of this version."""
        if not self._path.exists():
            return False
        lines = self._path.read_text().splitlines()
        if not lines or json.loads(lines[0]).get("version") != self._version:
            return False
        for line in lines[1:]:
            entry = json.loads(line)
            self._records[_key(entry["task"])] = entry["record"]
        return True


def _key(task: Sequence[Any]) -> str:
    return json.dumps(list(task))


def _code_version() -> str:
    """Changes with the compiled core and with every Python file of mlcc and of the tests."""
    digest = hashlib.sha256()
    package, tests = ROOT / "mlcc", ROOT / "tests"
    for path in sorted([*package.glob("*.py"), *package.glob("*.so"), *tests.rglob("*.py")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
