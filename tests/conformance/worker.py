"""A process that checks ops on demand: one JSON task a line on stdin, JSON lines on stdout.

A task is {"op": full name, "dtype": name, "samples": how many, or null for all, "caches": name}. The answer: one
{"at": sample} before each sample, then {"outcome": {...}}.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

import torch

from tests.conformance.samples import Backend, OpCheck, Outcome, full_name
from tests.warm import Caches
from tests.worker import Work, load_backend, serve


def main() -> None:
    """Serve until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--backend", default="mlcc")
    backend = load_backend(parser.parse_args().backend)
    serve(lambda: _start(backend))


def _start(backend: Backend) -> Work:
    from torch.testing._internal.common_methods_invocations import op_db

    infos = {full_name(info): info for info in op_db}
    return lambda task, at: asdict(_check(infos, task, backend, at))


def _check(
    infos: dict[str, Any], task: dict[str, Any], backend: Backend, at: Callable[[str], None]
) -> Outcome:
    start = time.monotonic()
    try:
        check = OpCheck(
            infos[task["op"]], getattr(torch, task["dtype"]), backend, Caches(task["caches"])
        )
        outcome = check.run(task["samples"], lambda index: at(f"sample {index}"))
    except Exception as error:  # of the check itself, not of the op: shown like a failure
        text = "".join(traceback.format_exception(error)[-2:])
        outcome = Outcome(
            task["op"], task["dtype"], tried=1, reasons=[f"cannot be checked: {text}"]
        )
    outcome.seconds = round(time.monotonic() - start, 2)
    torch._dynamo.reset()
    return outcome


if __name__ == "__main__":
    main()
