"""A process that checks ops on demand: one JSON task a line on stdin, JSON lines on stdout.

A task is {"op": full name, "dtype": name, "samples": how many, or null for all}. The answer: one {"at": sample}
before each sample, then {"outcome": {...}}.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

import torch

from tests.conformance.samples import Backend, OpCheck, Outcome, full_name


def main() -> None:
    """Serve until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--backend", default="mlcc")
    backend = load_backend(parser.parse_args().backend)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    from torch.testing._internal.common_methods_invocations import op_db

    infos = {full_name(info): info for info in op_db}
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what ops print is no answer
    for line in sys.stdin:
        task = json.loads(line)
        _answer(answers, {"outcome": asdict(_check(infos, task, backend, answers))})


def load_backend(name: str) -> Backend:
    """A backend of torch.compile by name."""
    if name == "mlcc":
        from mlcc.backend import compile as backend
    else:
        backend = torch._dynamo.lookup_backend(name)
    return backend


def _check(infos: dict[str, Any], task: dict[str, Any], backend: Backend, answers: Any) -> Outcome:
    start = time.monotonic()
    try:
        check = OpCheck(infos[task["op"]], getattr(torch, task["dtype"]), backend)
        outcome = check.run(
            task["samples"], lambda index: _answer(answers, {"at": f"sample {index}"})
        )
    except Exception as error:  # of the check itself, not of the op: shown like a failure
        text = "".join(traceback.format_exception(error)[-2:])
        outcome = Outcome(
            task["op"], task["dtype"], tried=1, reasons=[f"cannot be checked: {text}"]
        )
    outcome.seconds = round(time.monotonic() - start, 2)
    torch._dynamo.reset()
    return outcome


def _answer(answers: Any, record: dict[str, Any]) -> None:
    answers.write(json.dumps(record) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
