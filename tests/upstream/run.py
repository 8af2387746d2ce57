"""PyTorch's own tests of TorchInductor with mlcc in Inductor's place, compared with aot_eager.

usage: run.py FILE [--tests NAME[,NAME...]] [--jobs N] [--fresh]

FILE is a copy of test/inductor/test_torchinductor.py from PyTorch's repository; nothing is fetched. Each test of its
common part runs on the CPU under aot_eager and, if it passes there, under mlcc; what fails then runs under Inductor
(which needs a C++ compiler), since tests of Inductor's own internals and of what it does otherwise are no judge. The
exit status is 1 if a test passes under aot_eager and Inductor and fails under mlcc. Results are appended to
build/upstream.jsonl, so a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from tests.pool import Lost, Pool  # noqa: E402
from tests.store import Store  # noqa: E402

WORKER = Path(__file__).with_name("worker.py")


class Task(NamedTuple):
    """One test."""

    name: str


def main() -> int:
    """Run what was asked for and print the table; the exit status."""
    arguments = _parse_arguments()
    from tests.upstream import suite

    names = arguments.tests or suite.names(suite.load(arguments.file))
    store = Store(ROOT / "build" / "upstream.jsonl", arguments.fresh)
    by_eager = _run_all("aot_eager", names, store, arguments)
    ours = _run_all("mlcc", by_eager, store, arguments)
    wrong = [name for name in by_eager if name not in ours]
    by_inductor = set(_run_all("inductor", wrong, store, arguments))
    failed = [name for name in wrong if name in by_inductor]
    for name in wrong:
        word = "FAILED" if name in by_inductor else "fails under Inductor too"
        reason = store["mlcc", name]["reason"].strip().splitlines()
        print(f"{name}: {word}: {reason[-1] if reason else ''}")
    judged = len(by_eager) - len(wrong) + len(failed)
    print(
        f"{len(names)} tests, {len(by_eager)} pass under aot_eager; of {judged} (less {len(wrong) - len(failed)} that"
        f" fail under Inductor too) {judged - len(failed)} pass under mlcc"
        f" ({100 * (judged - len(failed)) / max(judged, 1):.2f} %)"
    )
    return int(bool(failed))


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("file", type=Path, help="a copy of test_torchinductor.py")
    parser.add_argument("--tests", type=lambda text: text.split(","), help="only these")
    parser.add_argument("--jobs", type=int, default=2, help="worker processes")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for one test")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    return parser.parse_args()


def _run_all(
    backend: str, names: Sequence[str], store: Store, arguments: argparse.Namespace
) -> list[str]:
    """Those of `names` that pass under `backend`, in their order."""
    left = [Task(name) for name in names if store.get((backend, name)) is None]
    command = [str(WORKER), str(arguments.file), "--backend", backend]
    with tempfile.TemporaryDirectory(prefix="mlcc-upstream-") as folder:
        kept = {
            **os.environ,
            "MLCC_CACHE_DIR": folder,
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/torch",
        }
        pool: Pool[Task] = Pool(command, arguments.jobs, arguments.timeout, kept)
        for done, (task, outcome) in enumerate(pool.run(left), start=1):
            record = (
                {"status": "lost", "reason": outcome.reason}
                if isinstance(outcome, Lost)
                else outcome
            )
            store.append((backend, task.name), record)
            print(f"[{done}/{len(left)}] {backend} {task.name}: {record['status']}", flush=True)
    return [name for name in names if store[backend, name]["status"] == "passed"]


if __name__ == "__main__":
    sys.exit(main())
