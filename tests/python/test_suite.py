"""The memory-bound workloads and what measures them: right under mlcc, and counted as they are."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

import mlcc
from benchmarks import contenders, suite
from benchmarks.roofline import Limits, Work
from benchmarks.workloads import KIB, MIB, WORKLOADS, Case
from tests.store import Store

LIMITS = """{"threads": 1, "flops": 2e9, "footprints": [
    {"bytes": 1024, "read": 4e9, "copy": 3e9, "copy_nt_huge": 1e9},
    {"bytes": 65536, "read": 2e9, "copy_huge": 2.5e9}]}"""


@pytest.mark.parametrize("name", WORKLOADS)
def test_workload_is_right(name: str) -> None:
    """A small one by mlcc.jit against eager; what is drawn at random by its share of zeros."""
    case = WORKLOADS[name].case(256 * KIB)
    eager, own = (contenders.prepare(one, case) for one in ("eager", "mlcc"))
    expected, found = eager.results(), own.results()
    if case.is_random:
        residual = case.inputs[1]
        dropped = [(result == residual).double().mean() for result in (*expected, *found)]
        assert abs(dropped[0] - dropped[1]) < 0.02
    else:
        assert contenders.largest_error(found, expected) <= suite.tolerance(found)


@pytest.mark.parametrize("name", WORKLOADS)
def test_footprint_is_what_was_asked_for(name: str) -> None:
    work = Work.of(WORKLOADS[name].case(MIB))
    assert 0.7 * MIB < work.bytes < 1.4 * MIB
    assert work.instructions > 0 or name in ("gather_rows", "transpose_heads")


def test_work_of_a_function() -> None:
    x, y = torch.ones(100), torch.ones(100)
    work = Work.of(Case(lambda x, y: torch.exp(x + y), (x, y)))
    assert work.bytes == 1200
    assert work.instructions == 100 * (1 + 9)
    changed = Work.of(Case(lambda x, y: x.add_(y), (x, y), in_place=(0,)))
    assert changed.bytes >= 1200


def test_roofline_is_the_larger_of_both() -> None:
    limits = Limits.parse(LIMITS)
    assert limits.bandwidth(1000) == 4e9
    assert limits.bandwidth(1025) == 2.5e9
    assert limits.bandwidth(1 << 30) == 2.5e9
    assert limits.seconds(Work(1000, 0)) == 1000 / 4e9
    assert limits.seconds(Work(1000, 1e6)) == 1e6 / 1e9


def test_rows_meet_the_peer_that_was_fastest(tmp_path: Path) -> None:
    peers = Store(tmp_path / "peers.jsonl", version="test")
    row = suite.Row("softmax", "8M", 1, "default", ())
    for peer, seconds in (("inductor", 3.0), ("jax", 1.5), ("openvino", 2.0)):
        record = {"seconds": {"eager": 2.0, peer: seconds}}
        peers.append(row._replace(against=("eager", peer)), record)
    failed = {"seconds": {"eager": 0.1}, "reasons": {"onnxruntime": "not installed"}}
    peers.append(row._replace(against=("eager", "onnxruntime")), failed)
    surveyed = [row._replace(against=("eager", peer)) for peer in contenders.PEERS]
    assert suite._fastest([(one, peers.get(one)) for one in surveyed]) == ["jax"]
    assert suite._fastest([(one, None) for one in surveyed]) == []


def test_a_row_is_measured_and_told() -> None:
    row = suite.Row("pointwise_2", "64K", 1, "default", ("eager", "mlcc"))
    record = suite.run(row, 0.05)
    assert set(record["seconds"]) == {"eager", "mlcc"}
    assert record["reasons"] == {}
    text = suite.format_row(row, record, Limits.parse(LIMITS))
    assert text.startswith("pointwise_2")
    assert "mlcc" in text
    assert "roofline" in text


def test_a_wrong_result_is_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlcc, "jit", lambda function: lambda *inputs: function(*inputs) * 1.01)
    record = suite.measure(suite.Row("pointwise_2", "64K", 1, "default", ("eager", "mlcc")), 0.05)
    assert set(record["seconds"]) == {"eager"}
    assert record["reasons"]["mlcc"].startswith("WRONG")
    row = suite.Row("pointwise_2", "64K", 1, "default", ("eager", "mlcc"))
    assert suite.print_report([(row, record)], Limits.parse(LIMITS)) == 1


@pytest.mark.parametrize("name", ["onnxruntime", "openvino", "jax"])
def test_a_peer_is_right_or_says_why_not(name: str) -> None:
    case = WORKLOADS["softmax_masked"].case(64 * KIB)
    try:
        contender = contenders.prepare(name, case)
    except contenders.UnavailableError as reason:
        if importlib.util.find_spec(name) is None:
            assert str(reason).startswith("not installed")
        return
    expected = contenders.prepare("eager", case).results()
    assert contenders.largest_error(contender.results(), expected) < 1e-4
