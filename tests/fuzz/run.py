"""Random programs in torch through mlcc, against eager.

usage: run.py [--mode MODE] [--entry ENTRY] [--programs N] [--seed FIRST] [--warm] [--jobs N] [--fresh]
       run.py [--mode MODE] --show SEED

Program n has seed FIRST + n. A mode is a kind of programs: "programs" (torch_programs.py) or "states", around states,
views and copies (state_programs.py). How a program is compiled is drawn too, or with --entry it is "compile" or "jit"
for all. Worker processes run them; a crash or minutes without an answer are a failure. Results are appended to
build/fuzz.jsonl, so a run that was stopped goes on where it was; rebuilt code starts afresh. A failure is reduced to a
small program, printed, and saved as build/fuzz/<mode>-<seed>.py, which runs in the repository's root. Each program is
checked cold and after a reset; with --warm also in new processes on the caches of the first (tests/warm.py). The exit
status is 1 if a program fails that does not fail in the same way with torch's own tracing and eager's kernels.
"""

from __future__ import annotations

import argparse
import collections
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from tests.fuzz.modes import DRAWS, ENTRIES, draw  # noqa: E402
from tests.fuzz.program_check import TORCHS_OWN  # noqa: E402
from tests.pool import Lost, Pool, Record  # noqa: E402
from tests.store import Store  # noqa: E402
from tests.warm import difference, twice, without_digests  # noqa: E402

SECONDS = 180  # for one program, or one step of its reduction, on a busy machine
PER_PROCESS = 500  # torch keeps what it has traced: a fresh process bounds the memory
FOLDER = ROOT / "build" / "fuzz"
WORKER = Path(__file__).with_name("worker.py")


class Task(NamedTuple):
    """One program."""

    seed: int
    mode: str = "programs"
    entry: str = "drawn"
    warm: bool = False


def main() -> int:
    """Run what was asked for; the exit status."""
    arguments = _parse_arguments()
    if arguments.show is not None:
        print(
            draw(arguments.mode, arguments.show, arguments.entry).as_script(
                f"seed {arguments.show}"
            )
        )
        return 0
    store = Store(ROOT / "build" / f"fuzz{'-warm' * arguments.warm}.jsonl", arguments.fresh)
    seeds = range(arguments.seed, arguments.seed + arguments.programs)
    tasks = [Task(seed, arguments.mode, arguments.entry) for seed in seeds]
    left = [task for task in tasks if store.get(task) is None]
    print(f"{len(tasks)} programs, {len(left)} to run", flush=True)
    with tempfile.TemporaryDirectory(prefix="mlcc-fuzz-") as folder:
        pool: Pool[Task] = Pool(
            [str(WORKER)], arguments.jobs, SECONDS, environment(folder), PER_PROCESS
        )
        run_programs(outcomes(pool, left, arguments.warm), len(left), store)
    return report([(task, store[task]) for task in tasks])


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mode", choices=list(DRAWS), default="programs")
    parser.add_argument("--entry", choices=ENTRIES, default="drawn", help="how it is compiled")
    parser.add_argument("--warm", action="store_true", help="and again, on the caches of the first")
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


def outcomes(
    pool: Pool[Task], tasks: Sequence[Task], warm: bool
) -> Iterator[tuple[Task, dict[str, Any]]]:
    """Each task with its record; with `warm` of what is right, what is otherwise on warm caches."""
    if not warm:
        for task, outcome in pool.run(tasks):
            yield task, record_of(outcome)
        return
    for task, outcome, again in twice(pool, tasks, lambda task: task._replace(warm=True)):
        record = record_of(outcome)
        reason = "" if record["kind"] else difference(outcome, again)
        yield task, {**record, "kind": f"warm: {reason}" if reason else record["kind"]}


def run_programs(answers: Iterable[tuple[Task, dict[str, Any]]], count: int, store: Store) -> None:
    """Append each task's record to the store, and tell of failures."""
    start = time.monotonic()
    for done, (task, record) in enumerate(answers, start=1):
        store.append(task, record)
        if record["kind"]:
            _tell(task, record)
        if done % 100 == 0:
            rate = done / (time.monotonic() - start)
            print(f"[{done}/{count}] {rate:.1f} a second", flush=True)


def record_of(outcome: Record | Lost) -> dict[str, Any]:
    """What the store keeps; a program whose worker died or was too slow has failed."""
    if isinstance(outcome, Lost):
        return {"kind": outcome.reason, "text": "", "script": ""}
    return without_digests(outcome)


def _tell(task: Task, record: dict[str, Any]) -> None:
    script = record["script"] or draw(task.mode, task.seed, task.entry).as_script(record["kind"])
    print(f"\nseed {task.seed}: {record['kind']}\n{script}", flush=True)
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{task.mode}-{task.seed}.py").write_text(script)


def report(results: Sequence[tuple[Task, dict[str, Any]]]) -> int:
    """Print which failed in which ways; the exit status."""
    seeds: collections.defaultdict[str, list[int]] = collections.defaultdict(list)
    for task, record in results:
        if record["kind"]:
            seeds[record["kind"]].append(task.seed)
    for kind, some in sorted(seeds.items(), key=lambda pair: -len(pair[1])):
        print(f"{len(some):5}  {kind}: {' '.join(map(str, some))}")
    failed = sum(map(len, seeds.values()))
    torchs_own = sum(len(some) for kind, some in seeds.items() if kind.startswith(TORCHS_OWN))
    print(
        f"{len(results) - failed} of {len(results)} programs right,"
        f" {torchs_own} wrong without mlcc as well;"
        f" {sum(record.get('stored', 0) for _, record in results)} graphs were stored in torch's cache"
    )
    return 1 if failed > torchs_own else 0


if __name__ == "__main__":
    sys.exit(main())
