"""Answers from full caches are those from empty ones: after a reset of Dynamo, and in a second and a third process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

import mlcc
from mlcc.capture.sharing import sharing_of
from mlcc.importer import fx_graph
from tests.python import warm_programs

ROOT = Path(__file__).resolve().parents[2]


def _run(folder: Path, strict: str) -> dict[str, dict[str, int]]:
    environment = {
        **os.environ,
        "MLCC_STRICT": strict,
        "MLCC_CACHE_DIR": str(folder / "mlcc"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "torch"),
    }
    script = str(ROOT / "tests" / "python" / "warm_programs.py")
    done = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answers: dict[str, dict[str, int]] = json.loads(done.stdout.splitlines()[-1])
    return answers


@pytest.mark.slow
def test_programs_in_three_processes(tmp_path: Path) -> None:
    cold = _run(tmp_path, strict="1")
    assert set(cold) == set(warm_programs.PROGRAMS)
    stored = {name: counters.get("autograd_cache_saved", 0) for name, counters in cold.items()}
    assert sum(number > 0 for number in stored.values()) > len(stored) / 2
    for strict in ("1", "0"):
        warm = _run(tmp_path, strict)
        for name, counted in warm.items():
            assert counted.get("autograd_cache_hit", 0) >= stored[name], name


def test_logs_tell_of_a_graph_that_torch_loads(fresh_cache: Path, mlcc_log: Any) -> None:
    del fresh_cache
    hits = counters["aot_autograd"]["autograd_cache_hit"]
    told = []
    for _ in range(2):
        torch._dynamo.reset()
        fx_graph.forget_logged()
        with mlcc_log("fallback") as calls, mlcc_log("perf") as graphs:
            torch.compile(torch.special.bessel_j0, backend="mlcc")(torch.ones(3))
        told.append(calls)
    assert counters["aot_autograd"]["autograd_cache_hit"] == hits + 1
    assert told == [["aten.special_bessel_j0.default: ATen call (no rule for this op)"]] * 2
    assert len(graphs) == 1 and graphs[0].startswith("graph from torch's cache")


def test_what_arguments_hold_decides_no_key(fresh_cache: Path) -> None:
    """Of weights alone it is promised that they are zeros, or few bits."""
    del fresh_cache
    hits = counters["aot_autograd"]["autograd_cache_hit"]
    with torch.no_grad(), mlcc.config.patch(warm_start=False):
        for value in (0, 3, 100):
            torch._dynamo.reset()
            ids = torch.full((5000,), value)
            found = torch.compile(lambda x: x.float() * 2 + 1, backend="mlcc")(ids)
            assert torch.equal(found, ids.float() * 2 + 1)
    assert counters["aot_autograd"]["autograd_cache_hit"] == hits + 2


def test_what_meets_in_memory() -> None:
    t, u = torch.arange(12.0), torch.arange(3.0)

    def places(*values: object) -> list[int]:
        return [place for _, place, *_ in sharing_of(values)]

    assert places(t[:4], u, t[4:]) == []
    assert places(t[::2], 3, t[1::2], u) == [0, 2]
    assert places(t[8:], t[:8], t[2:4], t[5:6], t[:0]) == [1, 2, 3]
    assert places(t, u, t, u[1:2]) == [0, 2, 1, 3]
    assert sharing_of([t[:4], t[:4]]) != sharing_of([t[1:5], t[1:5]])
    assert sharing_of([t, t]) != sharing_of([t, t.view(12)])


def _graphs(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "torch" / "aotautograd").rglob("*") if path.is_file())


@pytest.mark.parametrize("change", ["a bit", "the end", "exchanged", "a link to nothing"])
def test_a_damaged_graph_is_dropped(change: str, fresh_cache: Path, mlcc_log: Any) -> None:
    """torch unpickles its files as they are; a bit of a number in a graph would be another number."""
    functions = [lambda x: x.sin() * 2.5, lambda x: x.cos() + 3.5]
    x = torch.ones(3)

    def run() -> int:
        hits = int(counters["aot_autograd"]["autograd_cache_hit"])
        torch._dynamo.reset()
        for function in functions:
            found = torch.compile(function, backend="mlcc")(x)
            torch.testing.assert_close(found, function(x))
        return int(counters["aot_autograd"]["autograd_cache_hit"]) - hits

    run()
    first, second = _graphs(fresh_cache.parent)
    data = first.read_bytes()
    if change == "exchanged":
        first.write_bytes(second.read_bytes())
        second.write_bytes(data)
    elif change == "a link to nothing":
        first.unlink()
        first.symlink_to(first.with_name("missing"))
    else:
        place = data.index(b"sin") if b"sin" in data else data.index(b"cos")
        flipped = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        first.write_bytes(flipped if change == "a bit" else data[:-1])
    with mlcc_log("cache") as told:
        assert run() == (0 if change == "exchanged" else 1)
    assert any("is dropped: the file is damaged" in line for line in told)
    assert run() == 2
