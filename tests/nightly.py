"""All long runs, one after the other, and a page that tells what came of them.

usage: nightly.py [--parts NAME[,NAME...]] [--scale X] [--upstream FILE] [--jobs N] [--fresh]

A part's output goes to build/nightly/<part>.log; build/nightly/summary.md is written anew after each. A run that was
stopped goes on where it was: parts that have ended are not run again, and the others keep their own results, until code
changes. With --scale 0.01 each part does a hundredth of its work, to see that it works. The exit status is 1 if a part
failed.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.arguments import names_among  # noqa: E402
from tests.store import Record, Store  # noqa: E402

FOLDER = ROOT / "build" / "nightly"
PROGRAMS, WARM_PROGRAMS = 3000, 1000
TOLD_LINES = 25
Command = list[str]
# Tests of what a user sees, which are to be right on warm caches as well.
SEMANTIC_TESTS = [
    "aliasing",
    "autograd",
    "in_place",
    "networks",
    "products",
    "recurrent",
    "semantics",
    "training",
]


@dataclass(frozen=True)
class Scale:
    """How much is run of what can be parted."""

    share: float
    jobs: int

    def of(self, count: int) -> str:
        """The share of a number, at least one."""
        return str(max(1, math.ceil(count * self.share)))

    @property
    def every(self) -> str:
        """Each how many-th."""
        return str(max(1, round(1 / self.share)))


def fuzz(scale: Scale, programs: int, *options: str) -> list[Command]:
    """Random programs."""
    return [_python("fuzz/run.py", "--programs", scale.of(programs), *_jobs(scale), *options)]


def conformance(scale: Scale, *options: str) -> list[Command]:
    """Operator samples."""
    return [_python("conformance/run.py", "--every", scale.every, *_jobs(scale), *options)]


def models(scale: Scale, *options: str) -> list[Command]:
    """Architectures."""
    from tests.models.zoo import ARCHITECTURES

    names = list(ARCHITECTURES)[: int(scale.of(len(ARCHITECTURES)))]
    return [_python("models/run.py", "--models", ",".join(names), *options)]


def semantics(scale: Scale) -> list[Command]:
    """Tests of semantics, twice on the same caches."""
    names = SEMANTIC_TESTS[: int(scale.of(len(SEMANTIC_TESTS)))]
    files = [f"tests/python/test_{name}.py" for name in names]
    caches = FOLDER / "caches"
    clear = ["rm", "-rf", str(caches)]
    tests = ["env", f"MLCC_TESTS_CACHES={caches}", sys.executable, "-m", "pytest", "-q", *files]
    return [clear, tests, tests, clear]


def tests(scale: Scale) -> list[Command]:
    """Tests that are too long for each change."""
    ends = [] if scale.share == 1 else ["--collect-only"]
    return [[sys.executable, "-m", "pytest", "-q", "-m", "nightly", "tests/python", *ends]]


def _python(path: str, *options: str) -> Command:
    return [sys.executable, f"tests/{path}", *options]


def _jobs(scale: Scale) -> tuple[str, str]:
    return "--jobs", str(scale.jobs)


PARTS = {
    "fuzz": lambda scale: fuzz(scale, PROGRAMS),
    "states": lambda scale: fuzz(scale, PROGRAMS, "--mode", "states"),
    "fuzz-warm": lambda scale: fuzz(scale, WARM_PROGRAMS, "--entry", "compile", "--warm"),
    "states-warm": lambda scale: fuzz(
        scale, WARM_PROGRAMS, "--mode", "states", "--entry", "compile", "--warm"
    ),
    "conformance": conformance,
    "conformance-warm": lambda scale: conformance(scale, "--warm", "--sample", "1"),
    "models": models,
    "models-warm": lambda scale: models(scale, "--warm"),
    "semantics": semantics,
    "tests": tests,
    "caches": lambda scale: [_python("caches/run.py", "--scale", str(scale.share))],
    "tsan": lambda scale: [["scripts/tsan.sh"]],
    "upstream": lambda scale: [],  # of the file that is given
}


def main() -> int:
    """Run what was asked for; the exit status."""
    arguments = _parse_arguments()
    scale = Scale(arguments.scale, arguments.jobs)
    store = Store(FOLDER / "parts.jsonl", arguments.fresh)
    names = [name for name in arguments.parts if name != "upstream" or arguments.upstream]
    records: dict[str, Record] = {}
    for name in names:
        commands = PARTS[name](scale)
        if name == "upstream":
            commands = [_python("upstream/run.py", str(arguments.upstream), *_jobs(scale))]
        key = (name, scale.share)
        if store.get(key) is None:
            print(f"{name} ...", flush=True)
            store.append(key, run_part(name, commands, FOLDER))
        records[name] = store[key]
        print(f"{name}: {records[name]['verdict']}", flush=True)
        page = render(records, names, scale.share)
        (FOLDER / "summary.md").write_text(page)
    print(f"see {FOLDER / 'summary.md'}")
    return int(any(record["status"] for record in records.values()))


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--parts", type=names_among(PARTS), default=list(PARTS), help="only these")
    parser.add_argument("--scale", type=float, default=1.0, help="the share of its work")
    parser.add_argument("--upstream", type=Path, help="a copy of test_torchinductor.py")
    parser.add_argument("--jobs", type=int, default=2, help="worker processes")
    parser.add_argument("--fresh", action="store_true", help="forget which parts have ended")
    return parser.parse_args()


def run_part(name: str, commands: Sequence[Command], folder: Path) -> Record:
    """Run a part's commands up to the first that fails; what the page tells."""
    folder.mkdir(parents=True, exist_ok=True)
    start, status = time.monotonic(), 0
    log = folder / f"{name}.log"
    with log.open("w") as output:
        for command in commands:
            if status == 0:
                output.flush()
                environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
                done = subprocess.run(
                    command, stdout=output, stderr=subprocess.STDOUT, cwd=ROOT, env=environment
                )
                status = done.returncode
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return {
        "status": status,
        "verdict": "passed" if status == 0 else f"FAILED, exit status {status}",
        "minutes": round((time.monotonic() - start) / 60, 1),
        "lines": lines[-TOLD_LINES:],
    }


def render(records: dict[str, Record], names: Sequence[str], share: float) -> str:
    """The page."""
    rows = [_row(name, records.get(name)) for name in names]
    failed = [name for name in records if records[name]["status"]]
    told = [
        f"## {name}\n\nThe end of [its log]({name}.log):\n\n```\n"
        + "\n".join(records[name]["lines"])
        + "\n```\n"
        for name in failed
    ]
    return "\n".join(
        [
            f"# Long runs, {time.strftime('%Y-%m-%d %H:%M')}\n",
            f"{len(records)} of {len(names)} parts have ended, {len(failed)} failed; scale {share:g}.\n",
            "| part | verdict | minutes | |\n|---|---|---|---|",
            *rows,
            "",
            *told,
        ]
    )


def _row(name: str, record: Record | None) -> str:
    if record is None:
        return f"| {name} | not run yet | | |"
    lines = [line for line in record["lines"] if re.search(r"\b(right|passed)\b", line)]
    result = (lines or record["lines"] or [""])[-1].strip().replace("|", "\\|")
    return f"| [{name}]({name}.log) | {record['verdict']} | {record['minutes']} | {result} |"


if __name__ == "__main__":
    sys.exit(main())
