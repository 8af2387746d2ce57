"""A process that checks random programs on demand: {"seed": n, ...} in; {"outcome": {kind, text, script}} out.

The kind is empty where the program is right; else the script is the program, reduced, for people. It starts with
TORCHS_OWN where torch's own tracing fails in the same way. See tests/warm.py for the rest of the outcome.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from tests.fuzz.modes import draw
from tests.fuzz.program_check import (
    TORCHS_OWN,
    examine,
    fails_without_mlcc,
    reduce_program,
    run_again,
)
from tests.worker import Record, Work, serve


def start() -> Work:
    """What a worker answers tasks by."""
    gc.collect()
    gc.freeze()  # torch's own objects: a collection of them all would take as long as a program
    return check_seed


def check_seed(task: Record, at: Callable[[str], None]) -> dict[str, Any]:
    """The record of one program; of one that finds its caches warm, what it shows and no more."""
    program = draw(task["mode"], task["seed"], task["entry"])
    if task["warm"]:
        try:
            return {"warmth": run_again(program).record()}
        except Exception as error:  # of what was right the first time
            return {"error": f"{type(error).__name__}: {error}"[:4000]}
    failure, cold = examine(program)
    if failure is None:
        return {"kind": "", "text": "", "script": "", "warmth": cold.record()}
    program, failure = reduce_program(program, failure, lambda: at("while it was reduced"))
    script = program.as_script(f"seed {task['seed']}: {failure.text}")
    at("while it ran without mlcc")
    kind = f"{TORCHS_OWN}{failure.kind}" if fails_without_mlcc(program, failure) else failure.kind
    return {"kind": kind, "text": failure.text, "script": script}


if __name__ == "__main__":
    serve(start)
