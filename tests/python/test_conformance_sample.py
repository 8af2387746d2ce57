"""One sample by a seed of each sixth op that `make conformance` runs, and the runner itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance import coverage, run

pytestmark = pytest.mark.slow

EVERY_OP = 6
SECONDS_OF_A_TASK = (
    240.0  # a busy machine takes more than a minute to import torch and trace the first op
)


@pytest.mark.parametrize("dtype", run.DTYPES)
def test_one_sample_of_each_op(dtype: str, tmp_path: Path) -> None:
    tasks = run.list_tasks(None, dtype, EVERY_OP, 1)
    answers = run.check_tasks(tasks, "mlcc", 1, SECONDS_OF_A_TASK, run.environment(str(tmp_path)))
    records = [record for _, record in answers]
    known = run.read_known_failures()
    failed = [r for r in records if not run.record_ok(r) and (r["op"], r["dtype"]) not in known]
    assert not failed, "\n".join(f"{r['op']} {r['dtype']}: {r['reasons'][0]}" for r in failed)
    assert len(records) == len(tasks) > 50
    assert not coverage.undocumented(records, coverage.DOCUMENT.read_text())


def test_a_crash_is_a_failure(tmp_path: Path) -> None:
    """A worker that dies is replaced, and its op counts as failed."""
    task = run.Task("sin", "float32", 1)
    kept = run.environment(str(tmp_path))
    ((done, record),) = run.check_tasks([task], "no_such_backend", 1, 60.0, kept)
    assert done == task
    assert record["lost"]
    assert "exit status" in record["reasons"][0]


def test_surprises() -> None:
    fails = {"op": "a", "dtype": "float32", "tried": 2, "passed": 1, "reasons": ["wrong"]}
    passes = {"op": "b", "dtype": "float32", "tried": 2, "passed": 2, "reasons": []}
    assert run.find_surprises([fails, passes], {("a", "float32")}) == []
    assert len(run.find_surprises([fails, passes], {("b", "float32")})) == 2


def test_the_document_tells_of_each_call() -> None:
    generated = {"op": "a", "dtype": "float32", "calls": {}}
    called = {"op": "a", "dtype": "int64", "calls": {"aten.mm.default": "contraction"}}
    document = coverage.render([generated, called])
    assert "| a | float32 | int64: `mm` |" in document
    assert coverage.undocumented([generated, called], document) == []
    view = {"aten.view.default": coverage.MEMORY_OF_RESULTS}  # moves nothing
    assert coverage.undocumented([{**generated, "calls": view}], document) == []
    assert "view" not in coverage.render([{**generated, "calls": view}])
    new = {"op": "a", "dtype": "float32", "calls": {"aten.mm.default": "contraction"}}
    assert coverage.undocumented([new], document) == ["a float32: calls aten.mm.default"]
