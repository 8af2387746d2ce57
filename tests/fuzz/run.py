"""Random programs in torch (torch_programs.py) through mlcc, against eager.

usage: run.py [--programs N] [--seed FIRST] [--fresh] | run.py --show SEED

Program n has seed FIRST + n. A worker process runs them; a crash or a minute without an answer is a failure. Results
are appended to build/fuzz.jsonl, so a run that was stopped goes on where it was; rebuilt code starts afresh. A failure
is reduced to a small program, printed, and saved as build/fuzz/<seed>.py, which runs by itself. The exit status is 1 if
a program fails.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from tests.store import Store  # noqa: E402

SECONDS = 60  # for one program
SECONDS_TO_REDUCE = 600
PER_PROCESS = 300  # torch keeps what it has traced: a fresh process bounds the memory
FOLDER = ROOT / "build" / "fuzz"


def main() -> int:
    """Run what was asked for; the exit status."""
    arguments = _parse_arguments()
    if arguments.worker:
        return serve([int(seed) for seed in sys.stdin.read().split()])
    if arguments.show is not None:
        from tests.fuzz.torch_programs import draw_program

        print(draw_program(arguments.show).as_script(f"seed {arguments.show}"))
        return 0
    store = Store(ROOT / "build" / "fuzz.jsonl", arguments.fresh)
    seeds = range(arguments.seed, arguments.seed + arguments.programs)
    left = [seed for seed in seeds if store.get((seed,)) is None]
    print(f"{len(seeds)} programs, {len(left)} to run", flush=True)
    for done, (seed, record) in enumerate(run_programs(left), start=1):
        store.append((seed,), record)
        if record["kind"]:
            _tell(seed, record)
        if done % 100 == 0:
            print(f"[{done}/{len(left)}]", flush=True)
    return _report([store[(seed,)] for seed in seeds])


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--show", type=int, metavar="SEED", help="print the program of that seed")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def environment(folder: str) -> dict[str, str]:
    """This process's; private caches, one thread, internal errors raise, kernels are verified."""
    return {
        **os.environ,
        "MLCC_STRICT": "1",
        "MLCC_VERIFY": "first",
        "MLCC_CACHE_DIR": f"{folder}/mlcc",
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/torch",
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
    }


def run_programs(seeds: Sequence[int]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each seed with its record, in order; what a worker that died had in hand has failed."""
    left = list(seeds)
    while left:
        with tempfile.TemporaryDirectory(prefix="mlcc-fuzz-") as folder:
            batch = left[:PER_PROCESS]
            for seed, record in _run_batch(batch, environment(folder)):
                left.remove(seed)
                yield seed, record


def _run_batch(
    seeds: Sequence[int], environ: dict[str, str]
) -> Iterator[tuple[int, dict[str, Any]]]:
    command = [sys.executable, __file__, "--worker"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ, cwd=ROOT
    ) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdin.write(" ".join(map(str, seeds)))
        worker.stdin.close()
        answered = 0
        for line in worker.stdout:
            answer = json.loads(line)
            answered += 1
            yield answer["seed"], answer["record"]
        status = worker.wait()
    if answered < len(seeds):
        yield seeds[answered], {"kind": "crash", "text": f"exit status {status}", "script": ""}


def serve(seeds: Sequence[int]) -> int:
    """Run these, one JSON line each on stdout."""
    import torch

    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for seed in seeds:
        print(json.dumps({"seed": seed, "record": check_seed(seed)}), file=answers, flush=True)
    return 0


def check_seed(seed: int) -> dict[str, Any]:
    """The record of one program: kind (empty: it is right), text, and the reduced program."""
    from tests.fuzz.program_check import check_program, reduce_program
    from tests.fuzz.torch_programs import draw_program

    signal.alarm(SECONDS)  # ends the process: a failure of this program
    program = draw_program(seed)
    failure = check_program(program)
    if failure is None:
        signal.alarm(0)
        return {"kind": "", "text": "", "script": ""}
    signal.alarm(SECONDS_TO_REDUCE)
    program, failure = reduce_program(program, failure)
    signal.alarm(0)
    script = program.as_script(f"seed {seed}: {failure.text}")
    return {"kind": failure.kind, "text": failure.text, "script": script}


def _tell(seed: int, record: dict[str, Any]) -> None:
    print(f"\nseed {seed}: {record['kind']}\n{record['script'] or record['text']}", flush=True)
    if record["script"]:
        FOLDER.mkdir(parents=True, exist_ok=True)
        (FOLDER / f"{seed}.py").write_text(record["script"])


def _report(records: Sequence[dict[str, Any]]) -> int:
    kinds = collections.Counter(record["kind"] for record in records if record["kind"])
    for kind, count in kinds.most_common():
        print(f"{count:5}  {kind}")
    print(f"{len(records) - kinds.total()} of {len(records)} programs right")
    return 1 if kinds else 0


if __name__ == "__main__":
    sys.exit(main())
