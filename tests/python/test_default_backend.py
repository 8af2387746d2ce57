"""mlcc as the backend of programs that name none: MLCC_AUTO=1 and `python -m mlcc run`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from mlcc import _environment, cli
from mlcc.capture import inductor_options, modes
from mlcc.torch_private import default_backend, inductor

ROOT = Path(__file__).parents[2]


def python(*arguments: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | variables,
        capture_output=True,
        text=True,
        timeout=600,
    )


# -- the program is as under python alone

SEEN = """
import os, sys
main = sys.modules["__main__"]
print(sys.argv, sys.path[0], __name__, main.__dict__ is globals(), getattr(main, "__file__", None))
print(__spec__ and __spec__.name, __package__, sys.flags.optimize, "torch" in sys.modules)
print(os.environ.get("MLCC_AUTO"), file=sys.stderr)
sys.exit(7)
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ["program.py", "-m", "x", "--help"],
        ["-m", "package.program", "--version"],
        ["-c", SEEN, "run"],
        ["-O", "program.py"],
    ],
    ids=["script", "module", "code", "an option of Python"],
)
def test_a_program_sees_what_it_sees_under_python(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    for place in ("program.py", "package/program.py"):
        (tmp_path / place).write_text(SEEN)
    plain = python(*arguments, folder=tmp_path)
    run = python("-m", "mlcc", "run", *arguments, folder=tmp_path)
    assert plain.returncode == run.returncode == 7, run.stderr
    assert plain.stdout == run.stdout
    assert (plain.stderr, run.stderr) == ("None\n", "1\n")


def test_options_of_the_interpreter_stay(tmp_path: Path) -> None:
    run = python("-O", "-m", "mlcc", "run", "-c", SEEN, folder=tmp_path)
    assert run.stdout.splitlines()[1].split()[2] == "1", run.stderr


def test_a_program_that_fails(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text("raise ValueError('no')")
    for program in ("fails.py", "missing.py"):
        plain = python(program, folder=tmp_path)
        run = python("-m", "mlcc", "run", program, folder=tmp_path)
        assert plain.returncode == run.returncode != 0
        assert plain.stderr == run.stderr


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_how_to_use_it(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["run", *arguments])
    told = capsys.readouterr()
    assert end.value.code == (0 if arguments else 2)
    assert "mlcc run (script.py | -m module | -c code)" in told.out + told.err


def test_where_torch_would_not_ask(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else the program would run with another backend, and nobody would know."""

    def execv(path: str, arguments: list[str]) -> None:
        raise AssertionError

    monkeypatch.setattr(os, "execv", execv)
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    assert cli.main(["run", "program.py"]) == 1
    assert "unset it, or call torch.compiler.set_default_backend" in capsys.readouterr().err
    monkeypatch.delenv("TORCH_DEVICE_BACKEND_AUTOLOAD")
    monkeypatch.setattr(cli.importlib.metadata, "entry_points", lambda group: _NoPoints())
    assert cli.main(["run", "program.py"]) == 1
    assert "mlcc is not installed" in capsys.readouterr().err


class _NoPoints:
    names: frozenset[str] = frozenset()


# -- the backend

PROGRAM = """
import sys
import torch
begun = "torch._dynamo" in sys.modules
import json
import torch._inductor.compile_fx as inductor

def compile_fx(gm, inputs, **settings):
    seen.append("inductor")
    return gm

inductor.compile_fx = compile_fx
seen = []
x = torch.arange(4.0)

@torch.compile
def decorated(a):
    return a.sin() + 1

class Model(torch.nn.Module):
    def forward(self, a):
        return a.cos() - 1

def own(gm, inputs):
    seen.append("own")
    return gm

model = Model()
model.compile(dynamic=True)
functions = {
    "decorated": decorated,
    "model.compile()": model,
    "torch.compile(f)": torch.compile(lambda a: a.exp() * 3),
    "fullgraph": torch.compile(lambda a: a.tan() * 5, fullgraph=True, dynamic=False),
    "inductor": torch.compile(lambda a: a.sinh() * 7, backend="inductor"),
    "own": torch.compile(lambda a: a.cosh() * 9, backend=own),
}
import mlcc

record = {"begun": begun, "default": torch.compiler.get_default_backend(), "seen": seen}
for name, function in functions.items():
    before = mlcc.cache_info()["misses"]
    function(x)
    record[name] = mlcc.cache_info()["misses"] - before
print(json.dumps(record))
"""
WITHOUT_A_BACKEND = ("decorated", "model.compile()", "torch.compile(f)", "fullgraph")


@pytest.mark.parametrize(
    ("variables", "default", "kernels", "seen"),
    [
        ({"MLCC_AUTO": "1"}, "mlcc", 1, ["inductor", "own"]),
        ({"MLCC_AUTO": "1", "MLCC_DISABLE": "1"}, "mlcc", 0, ["inductor", "own"]),
        ({}, "inductor", 0, ["inductor"] * 5 + ["own"]),
    ],
    ids=["auto", "MLCC_DISABLE wins", "without"],
)
def test_the_default_backend(
    variables: dict[str, str], default: str, kernels: int, seen: list[str], tmp_path: Path
) -> None:
    """Dynamo is not imported by `import torch`: setting the default at once would import it."""
    (tmp_path / "program.py").write_text(PROGRAM)
    folder = {"MLCC_CACHE_DIR": str(tmp_path / "m"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "t")}
    done = python("program.py", folder=tmp_path, **folder, **variables)
    assert done.returncode == 0, done.stderr
    record: dict[str, Any] = json.loads(done.stdout)
    assert not record["begun"]
    assert (record["default"], record["seen"]) == (default, seen)
    assert {record[name] for name in WITHOUT_A_BACKEND} == {kernels}
    assert record["inductor"] == record["own"] == 0


@pytest.fixture
def is_default(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """mlcc is the default backend of this process for one test."""
    monkeypatch.setattr(default_backend, "_wanted", False)
    torch._dynamo.reset()
    default_backend.make_default()
    assert torch.compiler.get_default_backend() == "mlcc"
    yield
    torch.compiler.set_default_backend(None)
    torch._dynamo.reset()


def told(call: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call()
    return [str(one.message) for one in found if "mlcc" in str(one.message)]


def test_options_of_inductor_are_dropped(is_default: None, fresh_cache: Path) -> None:
    x = torch.arange(4.0)
    given = {"max_autotune": True, "epilogue-fusion": True, "fallback_random": True, "strict": True}
    function = torch.compile(lambda a: torch.rand(4) + a, options=dict(given))
    torch.manual_seed(1)
    results: list[Any] = []
    (text,) = told(lambda: results.append(function(x)))
    assert (
        text == "options of Inductor that change nothing under mlcc: max_autotune, epilogue-fusion"
    )
    torch.manual_seed(1)
    torch.testing.assert_close(results[0], torch.rand(4) + x)  # fallback_random is ours as well
    again = torch.compile(lambda a: a * 3, options={"max_autotune": False})
    assert not told(lambda: again(x))
    inductor_options.forget()
    assert told(lambda: inductor_options.without_foreign({"max_autotune": True}))
    wrong = torch.compile(lambda a: a * 4, options={"max_autotoon": True})
    with pytest.raises(Exception, match="unknown option max_autotoon"):
        wrong(x)


def test_modes_go_on_working(is_default: None, fresh_cache: Path) -> None:
    modes.forget()
    x = torch.arange(4.0)
    function = torch.compile(lambda a: a.sin() * 11, mode="max-autotune")
    (text,) = told(lambda: function(x))
    assert text.startswith("mode='max-autotune' changes nothing under backend='mlcc'")


def test_who_asks_for_mlcc_gets_errors(fresh_cache: Path) -> None:
    """Without MLCC_AUTO an option of Inductor is an unknown one, as before."""
    assert not default_backend.is_wanted()
    function = torch.compile(lambda a: a * 5, backend="mlcc", options={"max_autotune": True})
    with pytest.raises(Exception, match="unknown option max_autotune"):
        function(torch.arange(4.0))


def test_names_of_inductor() -> None:
    assert inductor.is_option("max_autotune")
    assert inductor.is_option("triton.cudagraphs")
    assert not inductor.is_option("join_products")


def test_a_torch_without_a_default(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(default_backend, "_wanted", False)
    monkeypatch.setitem(sys.modules, default_backend._REGISTRY, None)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    default_backend.make_default()
    (finder,) = [one for one in sys.meta_path if isinstance(one, default_backend._Finder)]
    assert finder.find_spec("json", None) is None
    default_backend._set_default(sys)  # has no such function
    assert "MLCC_AUTO changes nothing" in caplog.text


@pytest.mark.parametrize(
    ("text", "is_on"), [("1", True), ("On", True), ("0", False), ("", False), (None, False)]
)
def test_values(text: str | None, is_on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLCC_AUTO", raising=False)
    if text is not None:
        monkeypatch.setenv("MLCC_AUTO", text)
    assert _environment.auto() == (is_on, "")


def test_a_wrong_value(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    from mlcc.torch_private import autoload

    monkeypatch.setenv("MLCC_AUTO", "ture")
    monkeypatch.setattr(autoload, "_done", False)
    autoload.autoload()
    assert "MLCC_AUTO: expected 0 or 1" in caplog.text and "found 'ture'" in caplog.text
    assert not default_backend.is_wanted()
    assert not _environment.unknown(["MLCC_AUTO"], [])
