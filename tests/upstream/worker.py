"""A process that runs tests of a copy of test_torchinductor.py by name: JSON tasks on stdin, JSON lines on stdout.

A task is {"name": test}; the answer is {"outcome": {"status": ..., "reason": ..., "seconds": ...}}.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from tests.upstream import suite  # noqa: E402
from tests.worker import Work, load_backend, serve  # noqa: E402


def main() -> None:
    """Serve until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("file", type=Path)
    parser.add_argument("--backend", default="mlcc", help="inductor: as the file has it")
    arguments = parser.parse_args()
    serve(lambda: _start(arguments.file, arguments.backend))


def _start(file: Path, name: str) -> Work:
    tests = suite.load(file)
    backend = None if name == "inductor" else load_backend(name)
    return lambda task, _: _run(tests, task["name"], backend)


def _run(tests: Any, name: str, backend: suite.Backend | None) -> dict[str, Any]:
    start = time.monotonic()
    try:
        outcome = suite.run_one(tests, name, backend)
    except Exception as error:  # of the suite's own set-up: shown like a failure
        outcome = {"status": "error", "reason": "".join(traceback.format_exception(error)[-3:])}
    return {**outcome, "seconds": round(time.monotonic() - start, 2)}


if __name__ == "__main__":
    main()
