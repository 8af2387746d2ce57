"""scripts/gpu_check.sh: a rehearsal without a GPU, and its parts that a rehearsal does not reach."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


def load(path: str) -> Any:
    """A module of the source tree that is no part of a package."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.nightly
@pytest.mark.skipif(
    not (ROOT / "mlcc" / "libmlcc_emulator.so").exists() or shutil.which("g++") is None,
    reason="there is no emulator",
)
def test_rehearsal(tmp_path: Path) -> None:
    command = ["scripts/gpu_check.sh", "--emulate", "--quick", "--out", str(tmp_path)]
    env = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["good"]
    passed = {name for name, outcome in summary["steps"].items() if outcome == "passed"}
    assert passed == {"facts", "ceilings", "tests", "benchmarks"}
    assert summary["tests"]["passed"] > 20
    assert "| causal attention scores, bf16 | yes |" in (tmp_path / "table.md").read_text()


@pytest.fixture
def check(tmp_path: Path) -> Any:
    """A run with half a minute left."""
    module = load("tools/gpu_check.py")
    settings = module.Settings(
        out=tmp_path / "out",
        build=tmp_path / "build",
        emulate=True,
        rehearses_build=False,
        quick=True,
        rewrite_model=False,
        deadline=time.monotonic() + 30,
    )
    return module.Check(settings)


def outcomes(check: Any) -> dict[str, str]:
    steps = json.loads((check.settings.out / "summary.json").read_text())["steps"]
    assert isinstance(steps, dict)
    return steps


def test_a_bad_step_stops_no_other(check: Any) -> None:
    def raises() -> tuple[str, str]:
        raise ValueError("what went wrong")

    def hangs() -> tuple[str, str]:
        ended = check.python(
            "hangs", ["-c", "print('begun', flush=True); import time; time.sleep(60)"], 2
        )
        assert ended.text == "begun\n"
        return ended.outcome, ended.tail

    def dies() -> tuple[str, str]:
        ended = check.python("dies", ["-c", "import os; os.abort()"], 20)
        return ended.outcome, ended.tail

    for name, work in {
        "raises": raises,
        "hangs": hangs,
        "dies": dies,
        "good": lambda: ("passed", ""),
    }.items():
        check.step(name, work)
    assert outcomes(check) == {
        "raises": "failed",
        "hangs": "timeout",
        "dies": "failed",
        "good": "passed",
    }
    table = (check.settings.out / "table.md").read_text()
    assert "NOT good" in table
    assert "ValueError: what went wrong" in table


def test_a_command_that_is_not_there(check: Any) -> None:
    assert check.run("none", ["/nowhere/at/all"], 5).outcome == "failed"


def test_a_rehearsed_build_leaves_the_package_alone(
    check: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = ROOT / "mlcc"
    before = {path: path.resolve() for path in package.glob("*.so")}
    assert check.build()[0] == "skipped"
    object.__setattr__(check.settings, "rehearses_build", True)
    run, commands = check.run, []

    def without_cmake(log: str, command: list[str], *arguments: Any, **options: Any) -> Any:
        """The libraries stand where CMake would put them."""
        if command[0] != "cmake":
            return run(log, command, *arguments, **options)
        commands.append(command)
        built = check.settings.build / "mlcc"
        built.mkdir(parents=True, exist_ok=True)
        for path in [*package.glob("_C*.so"), package / "_build_info.py"]:
            (built / path.name).unlink(missing_ok=True)
            (built / path.name).symlink_to(path.resolve())
        return run(log, [sys.executable, "-c", ""], 20)

    monkeypatch.setattr(check, "run", without_cmake)
    assert check.build() == ("passed", "")
    assert "-DMLCC_WITH_LLVM=OFF" in commands[0]
    assert {path: path.resolve() for path in package.glob("*.so")} == before
    assert (check.settings.build / "rehearsal" / "mlcc" / "_build_info.py").exists()


def test_a_step_without_time_is_left_out(check: Any) -> None:
    object.__setattr__(check.settings, "deadline", time.monotonic())
    check.step("late", lambda: ("passed", ""))
    assert outcomes(check) == {"late": "skipped"}


def benchmark(case: str, **times: float) -> dict[str, Any]:
    return {
        "kind": "benchmark",
        "case": case,
        "class": "memory",
        "right": True,
        "bytes": 4_000_000,
        "times": {name: {"us": us, "host_us": 5.0, "cold_s": 1.0} for name, us in times.items()},
    }


def test_ratios_come_from_the_run_that_timed_both() -> None:
    table = load("tools/gpu_table.py")
    records = [
        {"kind": "step", "step": "tests", "outcome": "passed", "detail": "", "seconds": 1},
        {"kind": "step", "step": "autotune", "outcome": "timeout", "detail": "", "seconds": 1},
        {"kind": "test", "step": "tests", "name": "t", "outcome": "passed"},
        {"kind": "ceiling", "name": "copy, best", "value": 4000.0, "unit": "GB/s"},
        benchmark("a", eager=4.0, mlcc=2.0),
        benchmark("a", eager=4.0, mlcc=1.0, inductor=3.0),
        benchmark("b", eager=1.0, mlcc=1.0, inductor=12.0),
    ]
    summary = table.summarize(records)
    assert summary["good"]
    assert summary["ratios"]["memory against eager"] == pytest.approx(2.0)
    assert summary["ratios"]["memory against inductor"] == pytest.approx(6.0)
    assert summary["ratios"]["model against eager"] is None
    assert "| a | yes | 1 | 100 % | 4 (4) | 3 (3) |" in table.render(records, summary)
    records.append({**benchmark("c"), "right": False, "reason": "rms"})
    assert not table.summarize(records)["good"]


def test_without_tests_nothing_is_good(tmp_path: Path) -> None:
    table = load("tools/gpu_table.py")
    path = tmp_path / "results.jsonl"
    path.write_text(
        '{"kind": "test", "step": "tests", "name": "t", "outcome": "skipped"}\n{"kind": "te'
    )
    records = table.read(path)
    assert len(records) == 1
    assert not table.summarize(records)["good"]


def test_rewriting_a_machines_model() -> None:
    from benchmarks.gpu_ceilings import rewritten

    text = (ROOT / "csrc/schedule/machines/sm_90.def").read_text()
    new = rewritten(text, "some device", {"memory_gb_per_s": 4321, "launch_ns": 7})
    assert new.startswith("// some device\nMACHINE(")
    assert "MACHINE(memory_gb_per_s, 4321)\n" in new
    assert "MACHINE(launch_ns, 7)\n" in new
    assert new.count("\n") == text.count("\n")
    with pytest.raises(ValueError, match="0 rows nothing"):
        rewritten(text, "", {"nothing": 1})


class HostEvent:
    """An event of a device that works when it is told to."""

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.seconds = time.perf_counter()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, other: HostEvent) -> float:
        return 1e3 * (other.seconds - self.seconds)


def test_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.gpu_timing import time_calls

    monkeypatch.setattr(torch.cuda, "Event", HostEvent)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: None)
    used = set()

    def slow(turn: int) -> None:
        used.add(turn)
        time.sleep(2e-4)

    timed = time_calls({"slow": slow, "quick": lambda turn: None}, 3)
    assert used == {0, 1, 2}
    assert 200 <= timed["slow"].us < 20_000
    assert timed["quick"].us < timed["slow"].us
    assert timed["slow"].host_us == pytest.approx(timed["slow"].us, rel=0.2)
