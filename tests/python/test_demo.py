"""The demo as users start it, with its cheapest workload; and its figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import models
from benchmarks.harness import Comparison, Spread, compare
from benchmarks.observe import GraphFacts, summarize

ROOT = Path(__file__).resolve().parent.parent.parent


def test_demo_runs_and_writes_figures(tmp_path: Path) -> None:
    pytest.importorskip("rich")
    figures = tmp_path / "figures.json"
    command = [sys.executable, "examples/demo.py", "--only", "pointwise", "--quick"]
    run = subprocess.run(
        [*command, "--json", str(figures)], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stdout + run.stderr
    (result,) = json.loads(figures.read_text())["results"]
    assert result["kernels"] == 1
    assert result["aten_calls"] == 0
    assert result["checks"][0]["right"]
    assert result["own_seconds"] > 0
    assert "speed" in run.stdout


def test_a_peer_has_a_column(tmp_path: Path) -> None:
    pytest.importorskip("rich")
    figures = tmp_path / "figures.json"
    command = [sys.executable, "examples/demo.py", "--only", "pointwise", "--quick"]
    run = subprocess.run(
        [*command, "--peers", "aot_eager", "--json", str(figures)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    (result,) = json.loads(figures.read_text())["results"]
    assert result["peers"]["aot_eager"]["right"]
    assert result["peers"]["aot_eager"]["first_call_seconds"] > 0
    assert result["comparison"]["ratio"]["aot_eager"]["median"] > 0
    assert "aot_eager" in run.stdout
    unknown = subprocess.run(
        [*command, "--peers", "nobody"], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert unknown.returncode == 2
    assert "nobody is no backend of torch.compile" in unknown.stderr


def test_demo_names_its_workloads() -> None:
    from examples import demo

    assert set(demo.NAMES) == set(models.NAMES)


def test_only_wrong_answers_fail() -> None:
    from examples import demo

    check = {"right": True, "new_graphs": 1, "new_kernels": 9}
    assert demo._is_sound({"warm": {}, "checks": [check] * 3})
    assert not demo._is_sound({"warm": {}, "checks": [check, {**check, "right": False}]})
    assert not demo._is_sound({"warm": {"error": "exit status 1"}, "checks": [check]})
    assert not demo._is_sound({"error": "exit status 1"})


def test_the_budget_lets_the_first_workload_run_and_none_that_ends_too_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from examples import demo

    now = [0.0]
    monkeypatch.setattr(demo.time, "monotonic", lambda: now[0])
    budget, endless = demo.Budget(4), demo.Budget(0)
    now[0] = 300.0
    assert budget.allows_another()
    budget, now[0] = demo.Budget(4), 400.0
    budget.took_one()
    assert budget.allows_another()  # 100 s spent, 100 s more
    now[0] = 441.0
    assert not budget.allows_another()
    endless.took_one()
    assert endless.allows_another()


def test_a_missed_promise_is_told_with_the_way_to_look_into_it() -> None:
    from examples import demo

    good: dict[str, Any] = {
        "name": "bert",
        "own_seconds": 0.5,
        "other_node_share": 1.0,
        "warm": {"own_seconds": 0.1},
        "comparison": {"ratio": {"compiled": {"median": 1.5}}},
        "checks": [{"right": True, "new_graphs": 0, "new_kernels": 0}] * 3,
    }
    assert demo._missed_promises(good) == ""
    slow = {**good, "comparison": {"ratio": {"compiled": {"median": 0.5}}}}
    assert "0.50 of eager's speed" in demo._missed_promises(slow)
    again = {**good, "checks": [{"right": True, "new_graphs": 1, "new_kernels": 9}] * 3}
    assert "9 kernels compiled" in demo._missed_promises(again)
    assert "--only bert" in demo._missed_promises(again)


def test_compare_takes_turns() -> None:
    calls = []
    comparison = compare(
        {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")},
        seconds=0.0,
        min_rounds=9,
        warmup=1,
    )
    repeats = comparison.calls_per_sample
    assert comparison.rounds == 9
    turns = calls[2::repeats]
    rounds = [turns[i : i + 2] for i in range(0, len(turns), 2)]
    assert [sorted(one) for one in rounds] == 9 * [["a", "b"]]
    assert ["a", "b"] in rounds
    assert ["b", "a"] in rounds


def test_ratio_is_taken_within_each_round() -> None:
    comparison = Comparison({"eager": [2.0, 4.0, 6.0], "own": [1.0, 4.0, 2.0]}, 1, 1)
    assert comparison.ratio("own") == Spread(median=2.0, low=1.5, high=2.5)
    assert json.loads(comparison.to_json())["baseline"] == "eager"


def test_shares_leave_contractions_out() -> None:
    nodes = {"aten.addmm.default": 2, "aten.add.Tensor": 3, "aten.sort.default": 1}
    graph = GraphFacts(
        kernels=1,
        nodes=nodes,
        externs={"aten.addmm.default": 2, "aten.sort.default": 1},
        seconds=[5.0, 1.0, 2.0, 3.0],
    )
    summary = summarize([graph, GraphFacts()])
    assert summary.node_share == 0.5
    assert summary.other_node_share == 0.75
    assert summary.aten_calls == 3
    assert summary.first_cost == 3.0
