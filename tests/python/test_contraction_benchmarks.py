"""What measures contractions: the shapes it measures, what it counts, and how it judges."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import attention, contraction_models, matmul, training_steps
from benchmarks.apart import geometric_mean, judge, measured_rows, run_rows
from benchmarks.contraction_models import build, count_bytes
from benchmarks.contraction_nets import NETS
from tests.store import Store

# Batch, length or side, width: as small as the nets can be.
SMALL_SIZES = {
    **dict.fromkeys(("bert", "gpt2", "gpt2_decode", "vit"), "1x16x64"),
    **dict.fromkeys(("llama", "llama_decode"), "1x16x192"),
    **dict.fromkeys(("resnet18", "resnet50", "mobilenet", "unet"), "1x64x8"),
    **dict.fromkeys(("gru", "lstm"), "2x5x16"),
}
MATMUL = matmul.Row("f32", 2, 24, 40, 1, "function", "cpu", "default", "")


def test_rows_come_from_another_process_one_by_one(tmp_path: Path) -> None:
    """A process that dies costs its row alone."""
    script = tmp_path / "program.py"
    script.write_text(
        "import json, os, sys\n"
        "for number, in json.loads(sys.argv[sys.argv.index('--rows') + 1]):\n"
        "    if number == 2: sys.exit('no two')\n"
        "    print('record: ' + json.dumps({'seconds': {'eager': number}}), flush=True)\n"
    )
    found = dict(run_rows(str(script), [(1,), (2,), (3,)], [], os.environ))
    assert found[1,] == {"seconds": {"eager": 1}}
    assert found[2,] == {"reasons": {"process": "no two"}, "seconds": {}}
    assert found[3,] == {"seconds": {"eager": 3}}


def test_a_run_goes_on_where_it_was(tmp_path: Path) -> None:
    """What was stored is not measured again, and what failed is not stored."""
    script = tmp_path / "program.py"
    script.write_text(
        "import json, sys\n"
        "((number,),) = json.loads(sys.argv[sys.argv.index('--rows') + 1])\n"
        "print('record: ' + json.dumps({'seconds': {'eager': number} if number != 2 else {}}))\n"
    )
    store = Store(tmp_path / "store.jsonl", version="1")
    store.append((1,), {"seconds": {"eager": 10}})
    is_final = lambda row, record: bool(record["seconds"])  # noqa: E731
    of_row = lambda row: os.environ  # noqa: E731
    rows: list[tuple[int]] = [(1,), (2,), (3,)]
    found = dict(measured_rows(str(script), rows, store, [], of_row, 60.0, is_final))
    assert found[1,] == {"seconds": {"eager": 10}}
    assert found[2,] == {"seconds": {}}
    assert store.get((2,)) is None
    assert store.get((3,)) == {"seconds": {"eager": 3}}
    assert list(measured_rows(str(script), [(2,)], store, [], of_row, -1.0, is_final)) == []


def test_judging(capsys: pytest.CaptureFixture[str]) -> None:
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)
    assert judge("fast", [2.0, 8.0], mean=3.9, least=2.0)
    assert not judge("fast", [2.0, 8.0], mean=3.9, least=2.1)
    assert not judge("fast", [2.0, 8.0], mean=4.1)
    assert judge("fast", [], mean=1.0)
    words = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert words == ["pass", "SHORT", "SHORT", "-"]


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", matmul.DTYPES)
@pytest.mark.parametrize("form", ["function", "module"])
def test_a_matmul_is_measured(dtype: str, form: str) -> None:
    row = MATMUL._replace(dtype=dtype, form=form)
    record = {**matmul.measure(row, 0.01), "peak": 1e11, "read": 1e10}
    # oneDNN packs no bf16 for CPUs without instructions for it, and says so.
    left_out = {"onednn"} if "needs the cpu support" in str(record["reasons"]) else set()
    assert set(record["reasons"]) == left_out
    assert list(record["seconds"]) == [one for one in matmul.CONTENDERS if one not in left_out]
    found = matmul.figures(row, record)
    assert found["share_of_peak"] > 0
    assert f"{row.m}x{row.n}x{row.k}" in matmul.format_row(row, record)
    matmul.print_report([(row, record)])


def test_dispatch_is_taken_off() -> None:
    record = {
        "seconds": {"eager": 4e-6, "mlcc_static": 3e-6},
        "ratio": {"eager": 1.0, "onednn": 2.0, "mlcc_static": 1.5},
        "alone_seconds": {"mlcc_static": 3e-6},
        "dispatch_seconds": {"mlcc_static": 1e-6},
        "peak": 1e11,
        "read": 1e10,
    }
    row = MATMUL._replace(m=1)
    found = matmul.figures(row, record)
    assert found["share_of_peak"] == pytest.approx(2 * 24 * 40 / 2e-6 / 1e11)
    assert found["share_of_read"] == pytest.approx(24 * 40 * 4 / 2e-6 / 1e10)
    assert matmul.over_library(row, found) == 0.75
    assert matmul.over_library(row._replace(dtype="int8"), found) == 1.5


def test_matmuls_that_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    assert matmul.draw_shapes(5, seed=1) == matmul.draw_shapes(5, seed=1)
    assert matmul.draw_shapes(5, seed=1) != matmul.draw_shapes(5, seed=2)
    assert all(m <= 2048 and 64 <= n <= 4096 for m, n, _ in matmul.draw_shapes(50, seed=0))
    arguments = ["matmul.py", "--sizes", "50257x768,64x64", "--ms", "1,2048", "--dtypes", "f32"]
    monkeypatch.setattr(sys, "argv", arguments)
    rows = [row[1:4] for row in matmul._rows(matmul._parse_arguments())]
    assert rows == [(1, 50257, 768), (1, 64, 64), (2048, 64, 64)]


@pytest.mark.parametrize("name", NETS)
def test_a_net_is_counted(name: str) -> None:
    row = contraction_models.Row(name, SMALL_SIZES[name], "f32", 1, "default", "cpu", ())
    case, flops = build(row)
    with torch.no_grad():
        (result,) = case.pure(*case.inputs)[:1]
    weights = sum(w.numel() for w in case.function.parameters())  # type: ignore[attr-defined]
    assert torch.isfinite(result).all()
    assert flops > weights / 2  # of GPT-2 half of the weights are a table
    assert 0 < count_bytes(case, [result]) < 4 * weights + (1 << 22)


def test_the_best_peer_may_be_eager() -> None:
    row = contraction_models.Row("gru", "1x1", "f32", 1, "default", "cpu", ())
    row = row._replace(against=("eager", "mlcc", "mlcc_static", "openvino"))
    record = {"ratio": {"eager": 1.0, "mlcc_static": 1.5, "openvino": 0.5}}
    assert contraction_models._over_best(row, record) == 1.5
    record["ratio"]["openvino"] = 3.0
    assert contraction_models._over_best(row, record) == 0.5
    assert contraction_models._over_best(row._replace(against=row.against[:3]), record) is None


def test_lower_precision_is_compared_with_f32(tmp_path: Path) -> None:
    store = Store(tmp_path / "models.jsonl", version="test")
    against = ("eager", "mlcc", "mlcc_static", "openvino")
    row = contraction_models.Row("gru", "1x1", "f32", 1, "default", "cpu", against)
    store.append(row, {"seconds": {"mlcc_static": 3.0}})
    other = row._replace(dtype="bf16", against=against[:3])
    record = {"seconds": {"mlcc_static": 1.5}}
    assert list(contraction_models._over_f32([(row, record), (other, record)], store)) == [2.0]


@pytest.mark.parametrize("name", attention.FORMS)
def test_a_form_of_attention_is_right(name: str) -> None:
    form = attention.FORMS[name]
    row = attention.Row(name, 24, 16, 1, 4, 0, False, 1, "cpu", "default")
    torch.manual_seed(0)
    with torch.no_grad():
        inputs = attention._inputs(row, form)
        results = [f(*inputs, *more) for _, f, more in attention._contenders(row, form)]
    assert len(results) == 3 + bool(form.ready)
    for result in results[1:]:
        tolerance = attention.TOLERANCE[form.dtype]
        torch.testing.assert_close(result, results[0], rtol=0, atol=10 * tolerance)


def test_pairs_of_attention() -> None:
    forms = attention.FORMS
    assert forms["plain"].pairs(4, 4) == 16
    assert forms["plain"].pairs(1, 100) == 100
    assert forms["causal"].pairs(4, 4) == 10
    seen = attention._window_mask(1, 600, 600).sum()
    assert forms["window"].pairs(600, 600) == seen


def test_decoding_leaves_out_what_is_causal() -> None:
    arguments = argparse.Namespace(
        forms=["plain", "causal", "float_mask"],
        lengths=[4096],
        widths=[64],
        batch=1,
        heads=8,
        queries=1,
        backward=False,
        threads=1,
        clock="cpu",
        malloc="default",
    )
    rows = list(attention._rows(arguments))
    assert [(row.form, row.heads) for row in rows] == [("plain", 2), ("float_mask", 2)]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("net", "size", "dtype"),
    [("mlp", "4x8x16", "f32"), ("transformer", "2x8x64", "f32"), ("unet", "1x16x8", "autocast")],
)
def test_a_training_step_is_measured(net: str, size: str, dtype: str) -> None:
    """Losses and gradients are compared with eager's before."""
    row = training_steps.Row(net, size, dtype, "adamw", 1, "cpu", ("eager", "mlcc"))
    record = training_steps.measure(row, 0.01)
    assert not record["reasons"]
    assert list(record["seconds"]) == ["eager", "mlcc"]
    assert f"({record['ratio']['mlcc']:.2f}x)" in training_steps.format_row(row, record)


def test_a_wrong_training_step_is_told() -> None:
    """Weights that are one percent off are more than rounding."""
    row = training_steps.Row("mlp", "4x8x16", "f32", "sgd", 1, "cpu", ("eager",))
    module, x = training_steps.KINDS["mlp"].make(4, 8, 16)
    own, eager = (training_steps.Training("eager", row, module, x) for _ in range(2))
    with torch.no_grad():
        own.module.head.weight.mul_(1.01)
    assert training_steps.error_of(own, eager) > training_steps.TOLERANCE["f32"]
