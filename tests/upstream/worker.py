"""A process that runs tests of a copy of test_torchinductor.py by name: JSON tasks on stdin, JSON lines on stdout.

A task is {"name": test}; the answer is {"outcome": {"status": ..., "reason": ..., "seconds": ...}}.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from tests.upstream import suite  # noqa: E402


def main() -> None:
    """Serve until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("file", type=Path)
    parser.add_argument("--backend", default="mlcc")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what tests print is no answer
    tests, backend = suite.load(arguments.file), suite.backend_named(arguments.backend)
    for line in sys.stdin:
        start = time.monotonic()
        try:
            outcome = suite.run_one(tests, json.loads(line)["name"], backend)
        except Exception as error:  # of the suite's own set-up: shown like a failure
            text = "".join(traceback.format_exception(error)[-3:])
            outcome = {"status": "error", "reason": text}
        seconds = round(time.monotonic() - start, 2)
        answers.write(json.dumps({"outcome": {**outcome, "seconds": seconds}}) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
