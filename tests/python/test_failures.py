"""What fails, and how: errors at run time, while tracing and inside the compiler; bad files and folders."""

from __future__ import annotations

import ctypes
import os
import re
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
from mlcc.capture import backend, reproducer, session

ROOT = Path(__file__).resolve().parents[2]
core = load_core()


def error_of(function: Callable[..., Any], *args: Any) -> tuple[type, str]:
    with pytest.raises(Exception) as raised:
        function(*args)
    return type(raised.value), str(raised.value)


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, backend=backend.compile, **options)


# -- at run time: eager's type and text

X = torch.randn(4, 3)
FAR = torch.tensor([1, 4])
NEGATIVE = torch.tensor([0, -5])

AT_RUN_TIME: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "embedding": (lambda x, i: F.embedding(i, x) + 1, (X, FAR)),
    "embedding of a negative index": (lambda x, i: F.embedding(i, x) + 1, (X, -FAR)),
    "gather": (lambda x, i: x.gather(0, i) + 1, (X, torch.tensor([[1, 2, 4]]))),
    "gather of the last dim": (lambda x, i: x.gather(-1, i) + 1, (X, torch.tensor([[1], [3]]))),
    "gather of a negative index": (lambda x, i: x.gather(0, i) + 1, (X, NEGATIVE[None])),
    "index select": (lambda x, i: x.index_select(0, i) + 1, (X, FAR)),
    "index select of dim 1": (lambda x, i: x.index_select(1, i) + 1, (X, FAR)),
    "index select of dim 1, i32": (lambda x, i: x.index_select(1, i) + 1, (X, FAR.int())),
    "index select of a vector": (lambda x, i: x.index_select(0, i) + 1, (X[:, 0].clone(), FAR)),
    "index": (lambda x, i: x[i] + 1, (X, FAR)),
    "index of dim 1": (lambda x, i: x[:, i] + 1, (X, FAR)),
    "index of a negative index": (lambda x, i: x[i] + 1, (X, NEGATIVE)),
    "index that is computed": (lambda x, i: x[i * 2 + 1] + 1, (X, FAR)),
    "index far inside of a vector": (
        lambda x, i: x[i] * 2,
        (torch.randn(1000), torch.cat([torch.arange(999), torch.tensor([4711, -5000])])),
    ),
    "index of two dims": (lambda x, i: x[i, i] + 1, (X, FAR)),
    "scatter": (lambda x, i: x.scatter(0, i, 1.0) + 1, (X, torch.tensor([[4]]))),
    "index add": (lambda x, i: x.index_add(0, i, torch.ones(2, 3)) + 1, (X, FAR)),
    "cross entropy": (F.cross_entropy, (X, torch.tensor([0, 1, 2, 7]))),
    "cross entropy of a negative target": (F.cross_entropy, (X, torch.tensor([0, -3, 2, 1]))),
    "nll loss of images": (
        F.nll_loss,
        (torch.randn(2, 5, 1, 2), torch.tensor([[[1, 9]], [[0, 0]]])),
    ),
    "division of integers by 0": (lambda x, i: i // (i - 1), (X, FAR)),
    "remainder by 0": (lambda x, i: i % (i - 1), (X, FAR)),
    "an ATen call": (lambda x, i: torch.linalg.cholesky(x @ x.t() - 9 * torch.eye(4)), (X, FAR)),
}


@pytest.mark.parametrize("name", AT_RUN_TIME)
def test_errors_at_run_time_are_eagers(name: str) -> None:
    function, args = AT_RUN_TIME[name]
    eager = error_of(function, *args)
    assert error_of(compiled(function), *args) == eager
    assert error_of(mlcc.jit(lambda *values: function(*values)), *args) == eager


def test_a_failed_call_spoils_no_later_one() -> None:
    def function(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x[i] + 1

    run = compiled(function)
    for _ in range(3):
        assert error_of(run, X, FAR) == error_of(function, X, FAR)
        assert torch.equal(run(X, FAR - 1), function(X, FAR - 1))


def test_the_first_index_out_of_range_is_told() -> None:
    """Of many, on two threads, whatever the vector's width."""
    x = torch.randn(10)
    i = torch.zeros(300_000, dtype=torch.int64)
    run = compiled(lambda x, i: x[i] + 1)
    for first in (0, 5, 77, 250_001):
        i[first:] = torch.arange(10, 10 + len(i) - first)
        with pytest.raises(IndexError, match=r"^index 10 is out of bounds for dimension 0"):
            run(x, i)


# -- while tracing: Dynamo's errors under torch.compile, eager's under mlcc.jit


def test_errors_while_tracing() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x @ y).relu()

    args = torch.ones(2, 3), torch.ones(2, 3)
    ours = error_of(compiled(function), *args)
    torch._dynamo.reset()
    assert ours == error_of(torch.compile(function, backend="eager"), *args)
    assert error_of(mlcc.jit(function), *args) == error_of(function, *args)


def test_errors_that_the_function_raises() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 3:
            raise KeyError("three rows")
        return x + 1

    for run in (compiled(function), mlcc.jit(function)):
        assert error_of(run, torch.ones(3)) == (KeyError, "'three rows'")


# -- not supported: one log line


def test_each_op_that_falls_back_is_told_once(mlcc_log: Any) -> None:
    backend.reset()
    with mlcc_log("fallback") as lines:
        compiled(lambda x: torch.lgamma(x) + torch.lgamma(x * 2) + torch.erfinv(x))(torch.ones(3))
    assert sorted(line.split(":")[0] for line in lines) == [
        "aten.erfinv.default",
        "aten.lgamma.default",
    ]


def test_a_graph_that_falls_back_is_told_once(mlcc_log: Any) -> None:
    backend.reset()
    with mlcc_log("fallback") as lines:
        run = compiled(lambda x: (x.exp(), x.to("meta")))
        run(torch.ones(3))
        run(torch.ones(3))
    assert len([line for line in lines if "runs eagerly" in line]) == 1


# -- the disk store

TEXT = """graph @f(%x: f32[{size}]) {{
  %0: f32[{size}] = add %x, %x
  return %0
}}"""


def compile_text(folder: Path, size: int = 4) -> dict[str, Any]:
    """Statistics of a compilation that finds nothing in memory; the result is checked."""
    core.clear_cache(
        {"cache_dir": str(folder.parent / "another")}
    )  # memory, and a store not in use
    executable = core.compile(TEXT.format(size=size), {"cache_dir": str(folder)})
    x = torch.randn(size)
    assert torch.equal(executable([x])[0], x + x)
    return dict(executable.stats)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def give_away(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    os.chown(path, 12345, 12345)


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def replace_by_link(path: Path) -> None:
    moved = path.rename(path.parent.parent / "moved")
    path.symlink_to(moved)


@pytest.mark.parametrize(
    "damage", [truncate, flip, empty, give_away, replace_by_link, replace_by_folder]
)
def test_a_bad_cache_file_is_a_logged_miss(
    damage: Callable[[Path], None], tmp_path: Path, mlcc_log: Any
) -> None:
    folder = tmp_path / "cache"
    assert compile_text(folder)["compiled"] == 1
    assert compile_text(folder)["disk_hits"] == 1
    (entry,) = (folder / "store").iterdir()
    damage(entry)
    with mlcc_log("cache") as lines:
        assert compile_text(folder)["compiled"] == 1
    assert len([line for line in lines if f"{entry.name} is dropped: " in line]) == 1
    if damage is not replace_by_folder:
        assert compile_text(folder)["disk_hits"] == 1


def test_a_folder_that_others_may_write_is_refused(tmp_path: Path, mlcc_log: Any) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(0o777)
    with mlcc_log("cache") as lines:
        for size in (4, 5):
            assert compile_text(folder, size)["compiled"] == 1
    assert [line for line in lines if "not used" in line] == [
        f"disk store {folder} is not used: others than its owner may write into it"
    ]
    assert list(folder.iterdir()) == []


def test_a_file_in_place_of_the_folder(tmp_path: Path, mlcc_log: Any) -> None:
    folder = tmp_path / "cache"
    folder.write_text("")
    with mlcc_log("cache") as lines:
        for size in (4, 5):
            assert compile_text(folder, size)["compiled"] == 1
    assert [line for line in lines if "not used" in line] == [
        f"disk store {folder} is not used: Not a directory"
    ]


def drop_privileges() -> None:
    """Permission bits hold for root too in what this process executes (prctl(2), PR_CAPBSET_DROP of CAP_DAC_*)."""
    for capability in (1, 2):
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)


COMPILE = """
import sys, torch
from mlcc._load import load_core
core = load_core()
for size in (4, 5):
    text = f"graph @f(%x: f32[{size}]) {{ %0: f32[{size}] = add %x, %x return %0 }}"
    assert core.compile(text)([torch.ones(size)])[0].tolist() == [2.0] * size
"""


def run_python(code: str, **options: Any) -> list[str]:
    """The lines that a fresh process writes to stderr."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | options.pop("env", {})
    environment = {name: value for name, value in environment.items() if value is not None}
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=environment, capture_output=True, text=True, timeout=120, check=False, **options,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stderr.splitlines()


@pytest.mark.parametrize("place", ["outer", "inner"])
def test_a_folder_that_cannot_be_written(tmp_path: Path, place: str) -> None:
    folder = tmp_path / "cache"
    (folder / "store").mkdir(parents=True)
    if place == "inner":
        (folder / "store").chmod(0o500)
    else:
        (folder / "store").rmdir()
        folder.chmod(0o500)
    lines = run_python(
        COMPILE, env={"MLCC_CACHE_DIR": str(folder)}, preexec_fn=drop_privileges, cwd=tmp_path
    )
    if os.geteuid() == 0 and (folder / "store").exists() and any((folder / "store").iterdir()):
        pytest.skip("this root may write everywhere")
    told = [line for line in lines if "disk store" in line]
    assert len(told) == 1, lines
    assert "Permission denied" in told[0]


def test_no_home(tmp_path: Path) -> None:
    lines = run_python(
        COMPILE + "from mlcc import cli; cli.main(['cache']); cli.main(['info'])",
        env=dict.fromkeys(("HOME", "XDG_CACHE_HOME", "MLCC_CACHE_DIR")) | {"MLCC_DUMP": "loop"},
        cwd=tmp_path,
    )
    assert len([line for line in lines if "no disk store" in line]) == 1, lines
    assert not Path("/repro").exists()
    assert list(tmp_path.iterdir()) == []


# -- internal errors


def failing_graph() -> torch.fx.GraphModule:
    module = torch.nn.Module()
    module.register_buffer("secret", torch.full((3,), 41.25))
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(torch.add, (x, graph.get_attr("secret"))))
    return torch.fx.GraphModule(module, graph)


@pytest.mark.parametrize("with_data", [False, True])
def test_reproducers_hold_data_only_where_asked_for(tmp_path: Path, with_data: bool) -> None:
    options = mlcc.config.resolve({"dump_dir": str(tmp_path / "repro"), "repro_data": with_data})
    error = mlcc.InternalError("a bug")
    folder = reproducer.write(failing_graph(), "inference", error, options)
    assert folder is not None
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    names = {path.name for path in folder.iterdir()}
    assert names == {"error.txt", "aten.py", "graph.mlcc"} | (
        {"constants.pt"} if with_data else set()
    )
    for path in folder.iterdir():
        if path.suffix != ".pt":
            assert "41.25" not in path.read_text()
    if with_data:
        constants = torch.load(folder / "constants.pt", weights_only=True)
        assert constants["secret"].tolist() == [41.25] * 3


def test_a_reproducer_that_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    error = mlcc.InternalError("a bug")
    options = mlcc.config.resolve({"dump_dir": str(tmp_path / "file")})
    assert reproducer.write(failing_graph(), "inference", error, options) is None
    for name in ("HOME", "XDG_CACHE_HOME", "MLCC_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    assert reproducer.write(failing_graph(), "inference", error, mlcc.config.resolve()) is None


def test_a_reproducer_on_a_full_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    save = torch.save
    monkeypatch.setattr(torch, "save", lambda value, path: save(value, "/dev/full"))
    options = mlcc.config.resolve({"dump_dir": str(tmp_path), "repro_data": True})
    error = mlcc.InternalError("a bug")
    assert reproducer.write(failing_graph(), "inference", error, options) is None


def test_an_internal_error_of_the_core(monkeypatch: pytest.MonkeyPatch, fresh_cache: Path) -> None:
    """Not of the importer: the code generator says no to what lowering made."""

    class Broken:
        def __getattr__(self, name: str) -> Any:
            return getattr(core, name)

        def compile(self, *_: Any) -> Any:
            raise mlcc.InternalError("kernel k: no code")

    monkeypatch.setattr(session, "load_core", Broken)
    x = torch.ones(3)
    with pytest.raises(Exception, match="kernel k: no code"):
        compiled(lambda x: x + 3)(x)
    monkeypatch.setenv("MLCC_STRICT", "0")
    with pytest.warns(UserWarning, match=re.escape("kernel k: no code; see ")):
        assert compiled(lambda x: x + 4)(x).tolist() == [5.0] * 3
    folders = sorted((fresh_cache / "repro").iterdir())
    assert len(folders) == 2
    assert "graph @inference" in (folders[0] / "graph.mlcc").read_text()
    shutil.rmtree(fresh_cache)
