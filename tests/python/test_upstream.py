"""The runner of PyTorch's own tests of Inductor, on a small file of the same form."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from mlcc import config
from tests.upstream import run, suite

FILE = """
import unittest

import torch
from torch._inductor import config as inductor_config
from torch._inductor.compile_fx import compile_fx
from torch._inductor.codecache import no_such_name


class TestCase(unittest.TestCase):
    pass


def check_model(self, model, inputs):
    run = torch.compile(model, backend=lambda graph, args: compile_fx(graph, args))
    torch.testing.assert_close(run(*inputs), model(*inputs))


class CommonTemplate:
    def test_add(self):
        self.common(lambda x: x + 1, (torch.ones(3),))

    def test_default_backend(self):
        x = torch.ones(3)
        torch.testing.assert_close(torch.compile(torch.sin)(x), x.sin())

    @inductor_config.patch(fallback_random=True)
    def test_eagers_random_numbers(self):
        seen = torch.compile(torch.nn.functional.dropout)(torch.ones(3))
        assert seen.shape == (3,)

    @no_such_name(1)
    def test_decorated_by_what_is_missing(self):
        raise AssertionError

    def test_calls_what_is_missing(self):
        no_such_name(1)

    def test_wrong(self):
        self.assertEqual(1, 2)


def copy_tests(mine, other, suffix):
    for name, value in vars(mine).items():
        if name.startswith("test_"):
            setattr(other, f"{name}_{suffix}", value)
"""


@pytest.fixture
def tests(tmp_path: Path) -> Any:
    path = tmp_path / "copy.py"
    path.write_text(FILE)
    yield suite.load(path)
    sys.modules.pop(suite.MODULE)


def test_status_of_each(tests: Any) -> None:
    calls = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        calls.append(config.fallback_random)
        return graph.forward

    found = {name: suite.run_one(tests, name, backend)["status"] for name in suite.names(tests)}
    assert found == {
        "test_add_cpu": "passed",
        "test_calls_what_is_missing_cpu": "skipped",
        "test_decorated_by_what_is_missing_cpu": "skipped",
        "test_default_backend_cpu": "passed",
        "test_eagers_random_numbers_cpu": "passed",
        "test_wrong_cpu": "failed",
    }
    assert calls == [False, False, True]  # compile_fx by name, the default backend, and patched


def test_judged_against_aot_eager_and_inductor(
    tests: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status = {
        ("aot_eager", "a"): "passed",
        ("aot_eager", "b"): "passed",
        ("aot_eager", "c"): "failed",
        ("aot_eager", "d"): "passed",
        ("mlcc", "a"): "passed",
        ("mlcc", "b"): "failed",
        ("mlcc", "d"): "failed",
        ("inductor", "b"): "passed",
        ("inductor", "d"): "failed",
    }

    def answer(backend: str, names: Any, store: Any, _: Any) -> list[str]:
        for name in names:
            store.append((backend, name), {"status": status[backend, name], "reason": "why"})
        return [name for name in names if status[backend, name] == "passed"]

    monkeypatch.setattr(run, "_run_all", answer)
    monkeypatch.setattr(run, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["run.py", str(tmp_path / "copy.py"), "--tests", "a,b,c,d"])
    assert run.main() == 1
    output = capsys.readouterr().out
    assert "b: FAILED: why" in output
    assert "d: fails under Inductor too" in output
    assert "of 2 (less 1 that fail under Inductor too) 1 pass under mlcc (50.00 %)" in output
