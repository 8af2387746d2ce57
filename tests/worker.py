"""What the processes of pool.py do: they take tasks, and answer them on a stdout that nothing else writes to."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch

Record = dict[str, Any]
Backend = Callable[..., Any]
Work = Callable[[Record, Callable[[str], None]], Record]


def load_backend(name: str) -> Backend:
    """A backend of torch.compile by name."""
    if name == "mlcc":
        from mlcc.capture.backend import compile as backend
    else:
        backend = torch._dynamo.lookup_backend(name)
    return backend


def serve(start: Callable[[], Work]) -> None:
    """Answer each task of stdin by the outcome work(task, at), on one thread, until stdin ends.

    `start` makes `work`. at(place) tells the pool that the worker lives, and where it is.
    """
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what others print is no answer

    def answer(record: Record) -> None:
        answers.write(json.dumps(record) + "\n")
        answers.flush()

    work = start()
    for line in sys.stdin:
        answer({"outcome": work(json.loads(line), lambda place: answer({"at": place}))})
