"""What mlcc cannot do, does not know or takes long is told: where, why, and what to do about it."""

from __future__ import annotations

import functools
import logging
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import mlcc
import mlcc.logging
from mlcc import _environment, _load
from mlcc.capture import backend, eager_fallback, recompiles
from mlcc.torch_private import dynamo

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).name


@pytest.fixture(autouse=True)
def told_anew() -> Iterator[None]:
    """As in a new process."""
    backend.reset()
    yield
    backend.reset()


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, backend=backend.compile, **options)


def warnings_of(
    run: Callable[[], Any], category: type[Warning] = mlcc.EagerFallbackWarning
) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        run()
    return [one for one in told if issubclass(one.category, category)]


def line_of(function: Callable[..., Any], plus: int = 0) -> int:
    return function.__code__.co_firstlineno + plus


# -- whole graphs, calls and functions that run eagerly


def to_meta(x: torch.Tensor) -> Any:
    y = x.exp()
    return y, x.to("meta")


def test_a_graph_warns_once_at_the_line_at_fault() -> None:
    run = compiled(to_meta)
    (told,) = warnings_of(lambda: (run(torch.ones(3)), run(torch.ones(3))))
    text = str(told.message)
    assert text.startswith("inference graph runs eagerly: device meta\n")
    assert "\n  remedy: keep each compiled function to tensors of the CPU or of one GPU" in text
    assert (Path(told.filename).name, told.lineno) == (HERE, line_of(to_meta, 2))


def test_one_reason_is_told_once_and_each_reason() -> None:
    """Of another function too; a reset of torch's compiler tells anew."""

    def other(x: torch.Tensor) -> Any:
        return x.to("meta"), x + 1

    run, run_other = compiled(to_meta), torch.compile(other, backend=backend.compile)
    jitted = mlcc.jit(lambda x: x * 2)
    told = warnings_of(
        lambda: (run(torch.ones(3)), run_other(torch.ones(3)), jitted(torch.eye(2).to_sparse()))
    )
    assert [str(one.message).split("\n")[0].split(": ", 1)[1] for one in told] == [
        "device meta",
        "an argument is a tensor of layout torch.sparse_coo",
    ]
    torch._dynamo.reset()
    assert len(warnings_of(lambda: run_other(torch.ones(3)))) == 1


def test_a_jitted_function_warns_at_the_call() -> None:
    @mlcc.jit
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def call() -> None:
        double(torch.eye(3).to_sparse())

    (told,) = warnings_of(call)
    assert str(told.message).startswith("jit of double (test_nothing_silent.py:")
    assert "runs eagerly: an argument is a tensor of layout" in str(told.message)
    assert "remedy: pass dense tensors (x.to_dense())" in str(told.message)
    assert (Path(told.filename).name, told.lineno) == (HERE, line_of(call, 1))


def test_arguments_that_overlap() -> None:
    def write(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        return a + b

    run = compiled(write)
    x = torch.ones(8)
    assert warnings_of(lambda: run(torch.ones(4), torch.ones(4))) == []
    (told,) = warnings_of(lambda: (run(x[:4], x[2:6]), run(x[:4], x[2:6])))
    assert "a call runs eagerly: an argument that is written overlaps another" in str(told.message)
    assert "remedy: pass a copy (x.clone())" in str(told.message)


def test_what_was_asked_for_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    sparse = torch.eye(2).to_sparse()
    by_option = compiled(to_meta, options={"disable": True})
    assert warnings_of(lambda: by_option(torch.ones(3))) == []
    monkeypatch.setenv("MLCC_DISABLE", "1")
    assert warnings_of(lambda: mlcc.jit(lambda x: x * 2)(sparse)) == []
    monkeypatch.delenv("MLCC_DISABLE")
    assert len(warnings_of(lambda: mlcc.jit(lambda x: x * 2)(sparse))) == 1


def test_a_graph_that_computes_nothing_is_not_told(mlcc_log: Any) -> None:
    """It loses nothing; the log tells all the same."""
    graph = torch.fx.Graph()
    graph.output((graph.placeholder("x"),))
    assert not eager_fallback.computes(graph)

    def run() -> None:
        eager_fallback.tell("the graph", "input x is a Thing", is_loss=False)

    with mlcc_log("fallback") as lines:
        assert warnings_of(run) == []
    assert lines == ["the graph runs eagerly: input x is a Thing"]
    compute = torch.fx.symbolic_trace(lambda x: x + 1).graph
    assert eager_fallback.computes(compute)


def test_ops_that_aten_computes_are_not_told() -> None:
    run = compiled(lambda x: torch.lgamma(x) + 1)
    assert warnings_of(lambda: run(torch.ones(3)), Warning) == []


def test_the_class_is_public_and_filters() -> None:
    assert "EagerFallbackWarning" in mlcc.__all__
    assert issubclass(mlcc.EagerFallbackWarning, UserWarning)
    with warnings.catch_warnings():
        warnings.simplefilter("error", mlcc.EagerFallbackWarning)
        with pytest.raises(mlcc.EagerFallbackWarning, match="layout"):
            mlcc.jit(lambda x: x * 2)(torch.eye(2).to_sparse())


def test_code_that_torch_generates_is_not_the_users_line() -> None:
    text = (
        'File "/a/model.py", line 31, in f\n  y\nFile "<eval_with_key>.3", line 5, in forward\n  z'
    )
    assert eager_fallback.traced_line(text) == ("/a/model.py", 31)
    assert eager_fallback.traced_line(f'File "{torch.__file__}", line 3, in f') is None


# -- the environment


def test_unknown_variables() -> None:
    options = [row[3] for row in _load.load_core().option_table()]
    names = ["MLCC_LOG", "MLCC_CACHE", "MLCC_XYZ", "MLCC_LOGS", "MLCC_CI", "HOME", "MLCC_PROGRESS"]
    assert _environment.unknown([*names, "MLCC_EMULATOR_SMS"], options) == {
        "MLCC_LOG": "MLCC_LOGS",
        "MLCC_CACHE": "MLCC_CACHE_DIR",
        "MLCC_XYZ": "",
    }


def test_unknown_variables_warn_once_in_a_process() -> None:
    code = "import mlcc\nmlcc.config.resolve()\nmlcc.config.resolve()\n"
    result = run_python(code, MLCC_STRIKT="1")
    assert result.stderr.count("MLCC_STRIKT is unknown to mlcc") == 1
    assert "changes nothing; did you mean MLCC_STRICT?" in result.stderr
    assert "<string>:2: UserWarning" in result.stderr
    assert run_python(code).stderr == ""


READS = re.compile(r"""environ[^\n]*?["'](MLCC_\w+)["']|getenv\("(MLCC_\w+)"|\$\{?(MLCC_\w+)""")
READERS = ("mlcc", "csrc", "tests", "benchmarks", "scripts", "tools", ".ci", "Makefile", "setup.py")
SCRIPTS = {".py", ".sh", ".cpp", ".h", ""}


def test_every_variable_that_the_repository_reads_is_known() -> None:
    options = [row[3] for row in _load.load_core().option_table()]
    read: set[str] = set()
    for reader in READERS:
        place = ROOT / reader
        for path in [place] if place.is_file() else place.rglob("*"):
            if path.suffix in SCRIPTS and path.is_file() and path != Path(__file__).resolve():
                for groups in READS.findall(path.read_text(errors="ignore")):
                    read.update(filter(None, groups))
    assert {"MLCC_CI", "MLCC_STRICT", "MLCC_CMAKE_ARGS"} <= read
    assert _environment.unknown(sorted(read), options) == {}


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        (
            "MLCC_STRICT",
            "ture",
            "expected 0 or 1 (false or true, off or on, no or yes), found 'ture'",
        ),
        ("MLCC_GPU", "of", "expected off, emulate or nothing, found 'of'; nearest: off"),
        ("MLCC_DUMP", "asn", "unknown stage asn; nearest: asm (of graph, loop, llvm, asm, cuda"),
        (
            "MLCC_LOGS",
            "prf",
            "unknown log channel prf; nearest: perf (of recompiles, graph, fusion",
        ),
    ],
)
def test_a_wrong_value_lists_the_right_ones(
    monkeypatch: pytest.MonkeyPatch, option: str, value: str, words: str
) -> None:
    monkeypatch.setenv(option, value)
    with pytest.raises(mlcc.Error, match=re.escape(f"({option}): {words}")):
        mlcc.config.resolve()


# -- the library of the code generator

RUN = """
import warnings, torch
from mlcc.capture import backend
for number in (1.0, 2.0):
    run = torch.compile(lambda x: x.exp() + number, backend=backend.compile, dynamic=False)
    torch.testing.assert_close(run(torch.ones(3)), torch.ones(3).exp() + number)
"""


def run_python(code: str, package: Path = ROOT, **environment: str) -> Any:
    path = os.pathsep.join(filter(None, (str(package), os.environ.get("PYTHONPATH"))))
    environment = {"PYTHONPATH": path, **environment}
    return subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environment, cwd=package,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def package_with(folder: Path, library: bytes | None) -> Path:
    """A copy of the package with another code generator, or none; the path of the library."""
    skipped = shutil.ignore_patterns("libmlcc_*.so", "__pycache__")
    shutil.copytree(Path(mlcc.__file__).parent, folder / "mlcc", ignore=skipped)
    path = folder / "mlcc" / "libmlcc_llvm.so"
    if library is not None:
        path.write_bytes(library)
    return path


def test_a_missing_code_generator(tmp_path: Path, fresh_cache: Path) -> None:
    path = package_with(tmp_path, None)
    result = run_python(RUN, tmp_path)
    assert result.returncode == 0, result.stderr
    told = f"the code generator for CPUs, {path}, is missing: cannot open shared object file"
    assert result.stderr.count(told) == 1
    assert "remedy: run pip install" in result.stderr


@pytest.mark.parametrize(
    ("size", "words"),
    [(20, "file too short"), (1 << 16, "early, as of a copy that was interrupted")],
)
def test_a_broken_code_generator(tmp_path: Path, fresh_cache: Path, size: int, words: str) -> None:
    """Cut short in its middle, it would end the process with a bus error in the loader."""
    with _load.llvm_library().open("rb") as file:
        path = package_with(tmp_path, file.read(size))
    result = run_python(RUN, tmp_path, MLCC_STRICT="0")
    assert result.returncode == 0, result.stderr
    assert result.stderr.count(f"the code generator for CPUs, {path}, does not load: ") == 1
    assert words in result.stderr
    strict = run_python(RUN, tmp_path, MLCC_STRICT="1")
    assert strict.returncode != 0
    assert "cpu backend: the cpu code generator cannot be opened" in strict.stderr


def test_a_whole_library_lacks_nothing(tmp_path: Path) -> None:
    library = Path(str(_load.load_core().__file__))
    assert _load.missing_bytes(library) == 0
    cut = tmp_path / "cut.so"
    cut.write_bytes(library.read_bytes()[:-100])
    assert 0 < _load.missing_bytes(cut) <= 100
    assert _load.missing_bytes(tmp_path / "none.so") == 0


# -- modes and options of torch.compile


def test_modes_say_what_they_mean_here() -> None:
    def run() -> None:
        for mode in ("reduce-overhead", "max-autotune", "reduce-overhead"):
            torch.compile(lambda x: x + 1, backend=backend.compile, mode=mode)(torch.ones(3))

    first, second = warnings_of(run, UserWarning)
    assert "mode='reduce-overhead' changes nothing under backend='mlcc': each" in str(first.message)
    assert "mode='max-autotune'" in str(second.message)
    assert (Path(first.filename).name, first.lineno) == (HERE, line_of(run, 2))
    for mode in ("default", None):
        quiet = torch.compile(lambda x: x + 1, backend=backend.compile, mode=mode)
        assert warnings_of(functools.partial(quiet, torch.ones(3)), UserWarning) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"mode": "reduce_overhead"}, "expected one of default, .*; nearest: reduce-overhead"),
        ({"options": {"num_thread": 1}}, "unknown option num_thread; nearest: num_threads"),
        (
            {"options": {"triton.cudagraphs": True}},
            "unknown option triton.cudagraphs; known: logs,",
        ),
    ],
)
def test_unknown_modes_and_options_are_errors(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(Exception, match=words):
        compiled(lambda x: x + 1, **arguments)(torch.ones(3))


# -- logs


def test_a_log_line_has_time_channel_level_and_line() -> None:
    handler = mlcc.logging._StderrHandler()
    record = logging.LogRecord("mlcc.fallback", logging.INFO, "a.py", 1, "why %d", (3,), None)
    line = r"\d\d:\d\d:\d\d\.\d{3} \[mlcc\.fallback\] INFO "
    assert re.fullmatch(line + "why 3", handler.format(record))
    record.place = ("/a/model.py", 31)
    assert re.fullmatch(line + r"model\.py:31: why 3", handler.format(record))


def test_logs_tell_the_users_line(fresh_cache: Path) -> None:
    result = run_python(RUN, MLCC_LOGS="perf")
    first, second = result.stderr.splitlines()
    assert " [mlcc.perf] INFO <string>:6: inference graph: " in first
    text = r"\d nodes imported in \d+\.\d ms, compiled in \d+\.\d ms: 1 kernels \(1 compiled\) for "
    assert re.search(text + r"\d of \d nodes, 0 ATen calls, 0 values kept from call to call", first)
    assert "{" not in first + second


def test_no_run_times_are_promised() -> None:
    assert "running" not in mlcc.logging.CHANNELS["perf"]


# -- recompiles

SCALE: Any = 2


def test_recompiles_name_what_changed(mlcc_log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Module(torch.nn.Module):
        n = 1

        def __init__(self) -> None:
            super().__init__()
            self.steps = 3

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.steps

    def function(x: torch.Tensor, k: Any, sizes: Any, table: dict[str, int]) -> torch.Tensor:
        y = x * SCALE + len(sizes) + table["z"]
        return y if k is None else y + (1 if k == "a" else 2)

    run, module, x = compiled(function), Module(), torch.ones(3)
    run_module = torch.compile(module, backend=backend.compile)
    with mlcc_log("recompiles") as lines:
        run(x, "a", [1], {"z": 1})
        monkeypatch.setattr(sys.modules[__name__], "SCALE", 3)
        run(x, "a", [1], {"z": 1})
        run(x, "b", [1], {"z": 1})
        run(x, "b", [1, 2], {"z": 1})
        run(x, "b", [1, 2], {"z": 5})
        run_module(x)
        module.steps = 4
        run_module(x)
    assert [line.split(": ", 1)[1].split(";")[0] for line in lines] == [
        "global SCALE was 2, now 3",
        "k was 'a', now 'b'",
        "len(sizes) was 1, now 2",
        "table['z'] was 1, now 5",
        "self.steps was 3, now 4",
    ]


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("G['N'] == 2", "global N was 2; a value that changes should be passed as a tensor"),
        ("L['k'] == 'a'", "k was 'a'; each value is compiled once"),
        (f"k == '{'a' * 99}'", f"k was '{'a' * 59}...; each value is compiled once"),
        ("y is None", "y was None, now not None; each of both is compiled once"),
        ("y is not None", "y was not None, now None; each of both is compiled once"),
        (
            "___check_type_id(l, 14007), type=<class 'list'>",
            "l was a list; each type is compiled once",
        ),
    ],
)
def test_reasons_without_a_compilation(reason: str, text: str) -> None:
    assert recompiles.explain(reason) == text


def test_looking_up_runs_no_code_of_the_users() -> None:
    class Trap:
        @property
        def field(self) -> int:
            raise AssertionError

        def __getitem__(self, key: str) -> int:
            raise AssertionError

    import ast

    names = {"x": Trap(), "d": {"k": [5]}}
    assert dynamo._look_up(ast.parse("d['k'][0]", mode="eval").body, names) == 5
    for source in ("x.field", "x['k']", "f(x)", "d['none']", "gone"):
        with pytest.raises(LookupError):
            dynamo._look_up(ast.parse(source, mode="eval").body, names)
