"""The process around mlcc: what it starts, what it prints and writes, on which CPU, and how it is installed."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import mlcc
from mlcc._load import load_core
from mlcc.capture import backend
from mlcc.capture.session import Session
from tests.python import cuda_tools

ROOT = Path(__file__).resolve().parents[2]
core = load_core()


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, backend=backend.compile, options=options)


# -- no process is started


def processes_started(*arguments: str, **environment: str) -> str:
    program = ROOT / "tests" / "python" / "no_process.py"
    result = subprocess.run(
        [sys.executable, str(program), *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()[-1]


def test_no_process_is_started(fresh_cache: Path) -> None:
    """Neither by Python nor by C++, and nothing on PATH is needed."""
    assert processes_started(PATH="/nonexistent") == "[] 0.0 0"


def test_a_process_would_be_seen(fresh_cache: Path) -> None:
    assert processes_started("--start") != "[] 0.0 0"


# -- what is printed

PRINT = """
import torch, mlcc.capture.backend
run = torch.compile(lambda x: torch.lgamma(x).exp().sum(-1), backend=mlcc.capture.backend.compile, dynamic=False)
with torch.no_grad():
    run(torch.randn(6, 8))
    run(torch.randn(7, 8))
"""
CHANNELS = ("recompiles", "graph", "fusion", "kernels", "cache", "fallback", "perf")


# Time of day, channel, level, the user's line where there is one.
LINE = r"\d\d:\d\d:\d\d\.\d{3} \[mlcc\.(\w+)\] (?:INFO|DEBUG) \S"


def test_every_log_channel_prints(fresh_cache: Path) -> None:
    lines = run_python(PRINT, MLCC_LOGS=",".join(CHANNELS)).stderr.splitlines()
    channels = {match[1] for line in lines if (match := re.match(LINE, line))}
    assert channels == set(CHANNELS)
    assert any("is new" in line for line in lines if "[mlcc.cache]" in line)
    with_debug = run_python(PRINT, MLCC_LOGS="+graph").stderr
    assert "graph @inference" in with_debug
    assert "[mlcc.fusion]" not in with_debug


def test_nothing_is_printed_unasked(fresh_cache: Path) -> None:
    result = run_python(PRINT)
    assert (result.stdout, result.stderr) == ("", "")


def test_an_unknown_channel_stops_a_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(mlcc.Error, match="option logs: unknown log channel fuson; nearest: fusion"):
        mlcc.config.patch(logs="fuson")
    monkeypatch.setenv("MLCC_LOGS", "recompile")
    with pytest.raises(
        Exception, match=r"\(MLCC_LOGS\): unknown log channel recompile; nearest: r"
    ):
        compiled(lambda x: x + 1)(torch.ones(2))


# -- dumps


def names_of(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def dump(tmp_path: Path, stages: str, **options: Any) -> list[str]:
    """Names of the files that one graph leaves."""
    folder = tmp_path / "dumps"
    run = compiled(lambda x: (x * 1 + 2).sum(-1), dump=stages, dump_dir=str(folder), **options)
    run(torch.randn(3, 4))
    if not folder.exists():
        return []
    (graph,) = folder.iterdir()
    assert re.fullmatch(r"\d{3}_inference", graph.name)
    assert folder.stat().st_mode & 0o777 == graph.stat().st_mode & 0o777 == 0o700
    names = names_of(graph)
    assert [int(name[:3]) for name in names] == list(range(len(names)))
    assert all((graph / name).read_text() for name in names)
    return names


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        ("graph", [r"000_input\.graph", r"00\d_canonicalize\.graph", r"00\d_fused\.graph"]),
        ("loop", [r"000_kernel0\.loop"]),
        ("llvm", [r"000_\w{12}\.llvm"]),
        ("asm", [r"000_\w{12}\.asm"]),
        ("loop, asm", [r"000_kernel0\.loop", r"001_\w{12}\.asm"]),
        ("graph@canonicalize", [r"000_canonicalize\.graph"]),
        ("graph@input,graph@fused", [r"000_input\.graph", r"001_fused\.graph"]),
    ],
)
def test_dumps(fresh_cache: Path, tmp_path: Path, stages: str, expected: list[str]) -> None:
    names = dump(tmp_path, stages)
    for pattern in expected:
        assert any(re.fullmatch(pattern, name) for name in names), names
    if "graph," not in stages and stages != "graph":
        assert len(names) == len(expected)


def test_kernels_from_the_caches_are_dumped_too(fresh_cache: Path, tmp_path: Path) -> None:
    compiled(lambda x: (x * 1 + 2).sum(-1))(torch.randn(3, 4))
    assert len(dump(tmp_path, "llvm,asm")) == 2


def test_dumps_by_default(fresh_cache: Path) -> None:
    """In the cache folder, one folder per process, of which the newest are kept."""
    for number in range(25):
        (fresh_cache / "repro" / f"dump-20250101-0000{number:02d}-1").mkdir(parents=True)
    (fresh_cache / "repro" / "mine").mkdir()
    for _ in range(2):
        core.compile("graph @f(%x: f32[4]) { %0: f32[4] = add %x, %x return %0 }", {
            "dump": "loop", "cache_dir": str(fresh_cache)})  # fmt: skip
    names = names_of(fresh_cache / "repro")
    assert len(names) == 21
    assert names[-1] == "mine"
    process = fresh_cache / "repro" / names[-2]
    assert str(os.getpid()) in process.name
    assert process.stat().st_mode & 0o777 == 0o700
    assert len(names_of(process)) == 2


def test_processes_dump_side_by_side(tmp_path: Path) -> None:
    (tmp_path / "dumps" / "000_f").mkdir(parents=True)
    text = "graph @f(%x: f32[4]) { return %x }"
    for _ in range(2):
        core.compile(text, {"dump": "graph", "dump_dir": str(tmp_path / "dumps")})
    folders = list((tmp_path / "dumps").iterdir())
    assert len(folders) == 3
    assert names_of(tmp_path / "dumps" / "000_f") == []


def test_unknown_stages_and_passes() -> None:
    with pytest.raises(mlcc.Error, match="option dump: unknown stage lop; nearest: loop"):
        mlcc.config.patch(dump="lop")
    with pytest.raises(mlcc.Error, match="option dump: unknown pass dec; known: input, "):
        core.compile("graph @f(%x: f32[4]) { return %x }", {"dump": "graph@dec"})


# -- options


def test_bisect_stops_after_so_many_rewrites(fresh_cache: Path, tmp_path: Path) -> None:
    text = "graph @f(%x: f32[4]) {\n  %0: f32[4] = neg %x\n  %1: f32[4] = neg %0\n"
    text += "  %2: f32[4] = neg %1\n  %3: f32[4] = neg %2\n  return %3\n}"
    found = []
    for limit in (0, 1, 2, -1):
        folder = tmp_path / str(limit)
        options = {"dump": "graph@fused", "dump_dir": str(folder), "bisect": limit}
        executable = core.compile(text, options)
        assert executable([torch.ones(4)])[0].tolist() == [1.0] * 4
        (path,) = folder.glob("*/*.graph")
        found.append(path.read_text().count("neg"))
    assert found[0] == 4
    assert found == sorted(found, reverse=True)
    assert found[-1] < found[1]


def test_bisect_from_the_environment(fresh_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stats() -> Any:
        run = compiled(lambda x: (x * 1 + 0) * 1)
        graphs: list[Any] = []
        import_graph = Session._import

        def keep(self: Any, gm: Any, kind: str) -> Any:
            graphs.append(import_graph(self, gm, kind))
            return graphs[-1]

        with monkeypatch.context() as patched:
            patched.setattr(Session, "_import", keep)
            assert run(torch.ones(3)).tolist() == [1.0] * 3
        return graphs[0].stats["nodes"]

    monkeypatch.setenv("MLCC_BISECT", "0")
    unchanged = stats()
    monkeypatch.setenv("MLCC_BISECT", "-1")
    assert stats() < unchanged


def test_options_stand_above_patch_above_environment(
    fresh_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through a whole compilation, by the folder that the dump lands in."""
    used = []
    monkeypatch.setenv("MLCC_DUMP", "loop")
    for place in ("environment", "patch", "options"):
        if place == "environment":
            monkeypatch.setenv("MLCC_DUMP_DIR", str(tmp_path / place))
        with mlcc.config.patch(
            **({} if place == "environment" else {"dump_dir": tmp_path / "patch"})
        ):
            given = {"dump_dir": str(tmp_path / place)} if place == "options" else {}
            compiled(lambda x: x + 2, **given)(torch.ones(2))
        used.append([name for name in names_of(tmp_path) if name not in ("cache", "torch")])
    assert used == [["environment"], ["environment", "patch"], ["environment", "options", "patch"]]


# -- a CPU without AVX2

SCALAR = {
    "pointwise": lambda x: F.gelu(x) * x.sigmoid() + x.tanh(),
    "softmax": lambda x: x.softmax(-1),
    "layer norm": lambda x: F.layer_norm(x, (37,)),
    "sums": lambda x: x.sum(0) + x.amax(0),
    "cat": lambda x: torch.cat([x, x * 2], 1)[:, 1:].t().contiguous(),
    "bf16": lambda x: (x.bfloat16() * 2).float(),
    "integers": lambda x: (x * 100).int() // 7,
    "gather": lambda x: x[torch.tensor([3, 0, -1])] + 1,
}


@pytest.mark.parametrize("name", SCALAR)
def test_the_scalar_path(name: str, tmp_path: Path) -> None:
    function, x = SCALAR[name], torch.randn(20, 37)
    run = compiled(function, cpu="x86-64", dump="asm", dump_dir=str(tmp_path))
    torch.testing.assert_close(run(x), function(x))
    texts = [path.read_text() for path in tmp_path.glob("*/*.asm")]
    assert texts
    for text in texts:  # SSE2 at most
        assert not re.search(r"\b[yz]mm\d|^\s*(v[a-z]+ps|vfmadd|vcvt|pmulld|roundss)\b", text, re.M)


def test_what_a_cpu_without_avx2_is_told_to_be() -> None:
    info = core.cpu_info({"cpu": "x86-64"})
    assert (info["name"], info["vector_bits"]) == ("x86-64", 0)
    with pytest.raises(mlcc.Error, match="pentium9"):
        core.cpu_info({"cpu": "pentium9"})


def test_code_for_a_cpu_that_can_more_is_refused() -> None:
    """No machine has the instructions of both: 4-operand FMA, and AVX-512 with half precision."""
    told = []
    for cpu in ("bdver4", "sapphirerapids"):
        info = core.cpu_info({"cpu": cpu})
        if "cannot_run" not in info:
            continue
        told.append(info["cannot_run"])
        with mlcc.config.patch(cpu=cpu), pytest.raises(mlcc.Error) as error:
            core.compile("graph @g(%x: f32[3]) {\n  %0: f32[3] = neg %x\n  return %0\n}\n")
        assert str(error.value) == told[-1]
    assert told
    assert all(
        re.match(r"option cpu: \w+ has [\w.]+, which this \S+ lacks$", text) for text in told
    )


# -- installing


def run_setup(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "argv", ["setup.py", "--version"])
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(ROOT / "setup.py"), run_name="__main__")
    return str(stop.value)


def test_setup_without_torch_names_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "torch" else find(name, *a)
    )
    message = run_setup(monkeypatch)
    assert "\n" not in message
    assert "--no-build-isolation" in message


@pytest.mark.parametrize("platform", ["win32", "darwin"])
def test_setup_elsewhere(monkeypatch: pytest.MonkeyPatch, platform: str) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    message = run_setup(monkeypatch)
    assert message == "Windows and macOS are unsupported"
    assert message in (ROOT / "README.md").read_text().replace("\n", " ")


# -- what continuous integration has


@pytest.mark.skipif(not os.environ.get("MLCC_CI"), reason="MLCC_CI is not set")
def test_nothing_is_skipped_for_want_of_a_package() -> None:
    """Elsewhere tests of CUDA code are skipped where its compiler is missing."""
    assert cuda_tools.missing() == []
    assert shutil.which("g++")  # which the emulator calls
