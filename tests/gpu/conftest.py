"""Tests of a GPU, or of the emulated one where MLCC_GPU=emulate says so; see docs/gpu.md."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

# Before anything imports torch or mlcc.
os.environ["MLCC_STRICT"] = "1"
os.environ.setdefault("MLCC_CACHE_DIR", tempfile.mkdtemp(prefix="mlcc-gpu-tests-"))


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Random inputs are the same in each run, whatever ran before."""
    import torch

    torch.manual_seed(0)
    torch._dynamo.reset()


def pytest_runtest_logreport(report: Any) -> None:
    """One line in tools/gpu_check.py's results for each test, as soon as it ended."""
    results = os.environ.get("MLCC_GPU_CHECK_RESULTS")
    if not results or not (report.when == "call" or (report.when == "setup" and not report.passed)):
        return
    detail = "" if report.passed else str(report.longrepr)
    if report.skipped and isinstance(report.longrepr, tuple):
        detail = report.longrepr[2]
    record = {
        "step": "tests",
        "kind": "test",
        "name": report.nodeid.rpartition("::")[2],
        "outcome": report.outcome,
        "seconds": round(report.duration, 2),
        "detail": detail[-2000:],
    }
    with Path(results).open("a") as file:
        file.write(json.dumps(record) + "\n")
