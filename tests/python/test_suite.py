"""The memory-bound workloads and what measures them: right under mlcc, and counted as they are."""

from __future__ import annotations

import argparse
import ast
import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

import mlcc
from benchmarks import contenders, suite
from benchmarks.roofline import Limits, Work, trace
from benchmarks.suite_plot import plot
from benchmarks.traffic import KernelLog, op_by_op
from benchmarks.workloads import KIB, MIB, WORKLOADS, Case
from tests.store import Store

ROOT = Path(__file__).resolve().parent.parent.parent
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


def test_pure_form_changes_nothing() -> None:
    x = torch.ones(4)
    case = Case(lambda x: x.mul_(2).sum(), (x,), in_place=(0,))
    total, changed = case.pure(x)
    assert (total.item(), changed.tolist(), x.tolist()) == (8.0, [2.0] * 4, [1.0] * 4)
    assert {node.op for node in trace(case).graph.nodes} == {
        "placeholder",
        "call_function",
        "output",
    }
    assert not any("mul_" in str(node.target) for node in trace(case).graph.nodes)


def test_lists_of_tensors_count_whole() -> None:
    """Each tensor of a list, not the largest one alone."""
    tensors = (torch.ones(100), torch.ones(50))
    case = Case(lambda *x: torch._foreach_add_(list(x), 1.0), tensors, in_place=(0, 1))
    assert Work.of(case).instructions == 150


def test_eager_moves_bytes_op_by_op() -> None:
    x, y = torch.ones(10, 10), torch.ones(10)
    assert op_by_op(Case(lambda x, y: (x + y).t().exp(), (x, y))) == 400 + 40 + 400 + 800
    assert op_by_op(Case(lambda x, y: x + y.expand(10, 10), (x, y))) == 840
    assert op_by_op(Case(lambda x: x.mul_(2), (x,), in_place=(0,))) == 800
    assert x.sum() == 100
    lists = Case(lambda x, y: torch._foreach_mul_([x, y], 2.0), (x, y), in_place=(0, 1))
    assert op_by_op(lists) == 880
    table, index = torch.ones(100, 4), torch.tensor([1, 2])
    case = Case(lambda table, index: table[index] * 2, (table, index), bytes_read=2 * 16 + 16)
    assert op_by_op(case) == (32 + 16 + 32) + 64


def test_kernels_move_bytes() -> None:
    x = torch.ones(64, 32)
    with KernelLog() as log:
        mlcc.jit(lambda x: torch.exp(x + 1) * 2, dynamic=False)(x)
    assert (log.kernels, log.bytes, log.calls) == (1, 2 * 64 * 32 * 4, 0)
    with KernelLog() as log:
        mlcc.jit(lambda x: torch.exp(x).sort()[0], dynamic=False)(x)
    assert (log.kernels, log.calls) == (1, 1)


def test_roofline_is_the_larger_of_both() -> None:
    limits = Limits.parse(LIMITS)
    assert limits.bandwidth(1000) == 4e9
    assert limits.bandwidth(1025) == 2.5e9
    assert limits.bandwidth(1 << 30) == 2.5e9
    assert limits.seconds(Work(1000, 0)) == 1000 / 4e9
    assert limits.seconds(Work(1000, 1e6)) == 1e6 / 1e9


def test_rows_meet_the_peer_that_was_fastest(tmp_path: Path) -> None:
    peers = Store(tmp_path / "peers.jsonl", version="test")
    row = suite.Row("softmax", "8M", 1, "default", "wall", ())
    for peer, seconds in (("inductor", 3.0), ("jax", 1.5), ("openvino", 2.0)):
        record = {"seconds": {"eager": 2.0, peer: seconds}}
        peers.append(row._replace(against=("eager", peer)), record)
    failed = {"seconds": {"eager": 0.1}, "reasons": {"onnxruntime": "not installed"}}
    peers.append(row._replace(against=("eager", "onnxruntime")), failed)
    surveyed = [row._replace(against=("eager", peer)) for peer in contenders.PEERS]
    assert suite.fastest([(one, peers.get(one)) for one in surveyed]) == ["jax"]
    assert suite.fastest([(one, None) for one in surveyed]) == []


def test_rows_of_other_threads_are_other_rows(tmp_path: Path) -> None:
    peers = Store(tmp_path / "peers.jsonl", version="test")
    row = suite.Row("softmax", "8M", 1, "default", "wall", ("eager", "jax"))
    peers.append(row, {"seconds": {"eager": 2.0, "jax": 1.0}})
    arguments = argparse.Namespace(
        filter=re.compile("^softmax$"),
        sizes=["8M"],
        ladder=False,
        threads=1,
        malloc="default",
        clock="wall",
        peers=["jax"],
        survey=False,
    )
    (found,) = suite._rows(arguments, peers)
    assert found.against == (*contenders.OWN, "jax")
    for other in ({"threads": 2}, {"malloc": "kept"}, {"clock": "cpu"}, {"sizes": ["512K"]}):
        (found,) = suite._rows(argparse.Namespace(**{**vars(arguments), **other}), peers)
        assert found.against == contenders.OWN
    environment = suite._environment(row._replace(threads=2, malloc="kept"))
    assert environment["OMP_NUM_THREADS"] == environment["PJRT_NPROC"] == "2"
    assert environment["MALLOC_TRIM_THRESHOLD_"] == suite.KEPT["MALLOC_TRIM_THRESHOLD_"]


def test_a_row_is_measured_and_told(tmp_path: Path) -> None:
    row = suite.Row("pointwise_2", "64K", 1, "default", "wall", contenders.OWN)
    record = suite.run(row, 0.05)
    assert set(record["seconds"]) == set(contenders.OWN)
    assert record["reasons"] == {}
    assert record["moved_bytes"]["kernels"] == record["bytes"]
    assert record["moved_bytes"]["op_by_op"] > record["bytes"]
    assert set(record["warm_compile_seconds"]) == set(contenders.OWN)
    limits = Limits.parse(LIMITS)
    text = suite.format_row(row, record, limits)
    assert text.startswith("pointwise_2")
    for words in ("mlcc_static", "roofline", "bytes", "flops", "moves 0.1 MB, 1 kernels", "warm"):
        assert words in text
    (told,) = suite.report([(row, record)], limits)
    assert told["workload"] == "pointwise_2"
    assert told["roofline"]["mlcc"] == pytest.approx(
        limits.seconds(Work(record["bytes"], record["instructions"])) / record["seconds"]["mlcc"]
    )
    drawing = ElementTree.fromstring(plot([told, {**told, "size": "8M"}]))
    titles = [x.text for x in drawing.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == 4  # mlcc and eager at two sizes
    assert any(text.startswith("pointwise_2 mlcc ") for text in titles if text)


def test_peak_is_what_a_call_adds() -> None:
    x = torch.ones(4 << 20)
    peak = suite.peak_bytes(lambda: x * 2)
    if peak is None:
        pytest.skip("/proc/self/clear_refs is not ours")
    assert 12 * MIB < peak < 24 * MIB


def test_a_wrong_result_is_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlcc, "jit", lambda function, **_: lambda *inputs: function(*inputs) * 1.01)
    record = suite.measure(
        suite.Row("pointwise_2", "64K", 1, "default", "wall", ("eager", "mlcc")), 0.05
    )
    record["warm_compile_seconds"] = {}
    assert set(record["seconds"]) == {"eager"}
    assert record["reasons"]["mlcc"].startswith("WRONG")
    row = suite.Row("pointwise_2", "64K", 1, "default", "wall", ("eager", "mlcc"))
    assert suite.print_report([(row, record)], Limits.parse(LIMITS)) == 1


def test_draws_are_judged_by_their_spread() -> None:
    case = WORKLOADS["dropout"].case(256 * KIB)
    expected = contenders.prepare("eager", case).results()

    def fault(results: Callable[[], list[torch.Tensor]]) -> str:
        one = contenders.Contender("one", results, results, 0.0)
        return suite._check(one, case, expected)[1]

    x, y = case.inputs
    assert fault(lambda: [torch.dropout(x, 0.1, True) + y]) == ""
    assert fault(lambda: [x + y]).startswith("WRONG: draws the same")
    assert fault(lambda: [torch.dropout(x, 0.5, True) + y]).startswith("WRONG: spread")


@pytest.mark.parametrize("workload", ["softmax_masked", "adam", "bf16_softmax", "dropout"])
@pytest.mark.parametrize("name", ["onnxruntime", "openvino", "jax"])
def test_a_peer_is_right_or_says_why_not(name: str, workload: str) -> None:
    case = WORKLOADS[workload].case(64 * KIB)
    try:
        contender = contenders.prepare(name, case)
    except contenders.UnavailableError as reason:
        if importlib.util.find_spec(name) is None:
            assert str(reason).startswith("not installed")
        else:
            assert (name, workload) in (("onnxruntime", "bf16_softmax"), ("openvino", "dropout"))
        return
    eager = contenders.prepare("eager", case)
    for _ in range(3 if case.in_place else 0):  # what one call changes goes into the next one
        contender.call()
        eager.call()
    assert suite._check(contender, case, eager.results())[1] == ""


def test_missing_peers_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(contenders, "_PACKAGES", {"jax": ("no_such_jax",), "openvino": ("sys",)})
    suite.print_missing(["inductor", "jax", "openvino"])
    assert (
        capsys.readouterr().out == "jax: not installed: no_such_jax; `make peers` installs them\n"
    )
    row = suite.Row("softmax", "8M", 1, "default", "wall", ("eager", "jax"))
    assert not suite._is_final(row, {"seconds": {"eager": 1.0}})
    assert suite._is_final(row._replace(against=("eager", "openvino")), {"seconds": {"eager": 1.0}})


def test_peers_are_an_extra_that_asks_for_no_torch() -> None:
    """What contenders need is what the extra installs, each pinned to a minor version."""
    (listed,) = re.findall(r"^PEERS = (\[.*?\])", (ROOT / "setup.py").read_text(), re.M | re.S)
    pinned = dict(text.split("==") for text in ast.literal_eval(listed))
    needed = {name for names in contenders._PACKAGES.values() for name in names}
    assert set(pinned) == needed
    assert all(re.fullmatch(r"\d+\.\d+\.\*", version) for version in pinned.values())
