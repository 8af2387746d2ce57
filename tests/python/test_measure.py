"""Where the cost model is in doubt both kernels are run, once for a graph and a machine."""

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch

import mlcc

ROOT = Path(__file__).parents[2]
Log = Callable[..., AbstractContextManager[list[str]]]


def _spread(x: torch.Tensor) -> torch.Tensor:
    """Few long rows: one pass with repairs, or two."""
    return torch.logsumexp(x * 2, 1)


def _lines(log: Log, x: torch.Tensor, **options: bool) -> list[str]:
    with log("fusion") as lines, mlcc.config.patch(**options):
        torch.testing.assert_close(mlcc.jit(_spread, dynamic=False)(x), _spread(x))
    return [line for line in lines if line.startswith("measured")]


def _run(script: str, logs: str) -> subprocess.CompletedProcess[str]:
    """A process of its own that measures."""
    return subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": str(ROOT), "MLCC_LOGS": logs, "MLCC_MEASURE": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )


def test_a_verdict_is_measured_once_and_kept(fresh_cache: Path, mlcc_log: Log) -> None:
    x = torch.randn(3, 1 << 20)
    first = _lines(mlcc_log, x, measure=True)
    assert len(first) == 1 and "passes: " in first[0], first
    assert _lines(mlcc_log, x, measure=True) == []
    kept = [path.name for path in fresh_cache.rglob("verdict-*")]
    assert len(kept) == 1
    script = (
        "import torch, mlcc\n"
        "mlcc.jit(lambda x: torch.logsumexp(x * 2, 1), dynamic=False)(torch.randn(3, 1 << 20))\n"
    )
    done = _run(script, logs="fusion")
    assert "INFO measured before: " in done.stderr and "INFO measured: " not in done.stderr, (
        done.stderr
    )


@pytest.mark.parametrize("way", ["option", "deterministic"])
def test_nothing_is_measured_where_it_must_not_be(
    way: str, fresh_cache: Path, mlcc_log: Log
) -> None:
    x = torch.randn(3, 1 << 20)
    if way == "option":
        assert _lines(mlcc_log, x, measure=False) == []
    else:
        torch.use_deterministic_algorithms(True)
        try:
            assert _lines(mlcc_log, x, measure=True) == []
        finally:
            torch.use_deterministic_algorithms(False)
    assert not list(fresh_cache.rglob("verdict-*"))


def test_results_of_a_graph_never_change_in_a_process(fresh_cache: Path) -> None:
    x = torch.randn(3, 1 << 20)
    with mlcc.config.patch(measure=True):
        results = [mlcc.jit(_spread, dynamic=False)(x) for _ in range(3)]
    assert all(torch.equal(results[0], one) for one in results)


def test_caches_are_cleared_while_a_thread_measures_and_logs(fresh_cache: Path) -> None:
    script = """
import threading
import time
import torch
import mlcc

def work(size):
    for _ in range(2):
        mlcc.jit(lambda x: torch.logsumexp(x * 2, 1), dynamic=False)(torch.randn(3, size))

threads = [threading.Thread(target=work, args=((1 << 20) + 4096 * i,)) for i in range(3)]
for thread in threads:
    thread.start()
while any(thread.is_alive() for thread in threads):
    mlcc.clear_cache()
    time.sleep(0.002)
print("done")
"""
    done = _run(script, logs="all")
    assert done.stdout == "done\n" and "measured: " in done.stderr
