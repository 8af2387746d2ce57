"""A second process traces nothing, and answers as the first only where all is as it was."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mlcc.capture import frame_files
from tests.python import frame_programs

ROOT = Path(__file__).parents[2]


def _run(arguments: list[str], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """A process of its own, with the caches of `folder`."""
    caches = {
        "MLCC_CACHE_DIR": str(folder / "mlcc"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "torch"),
        "PYTHONPATH": f"{ROOT}:{folder}",
        "MLCC_WARM_START": "1",
        "MLCC_LOGS": "cache",
    }
    return subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | caches | variables,
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )


def _programs(phase: int, folder: Path, how: str = "compile") -> dict[str, int]:
    """How many graphs each of the programs traced; all of them are right."""
    done = _run([str(Path(frame_programs.__file__))], folder, PHASE=str(phase), HOW=how)
    records = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [one["name"] for one in records] == list(frame_programs.PROGRAMS), done.stderr
    wrong = {one["name"]: one["error"] for one in records if one["error"]}
    assert not wrong, wrong
    return {one["name"]: one["graphs"] for one in records}


def test_programs_in_five_processes(tmp_path: Path) -> None:
    cold = _programs(0, tmp_path)
    assert all(cold.values())
    assert {name for name, graphs in _programs(0, tmp_path).items() if graphs} == (
        frame_programs.UNSTORABLE
    )
    changed = _programs(1, tmp_path)
    assert changed["a number among the globals"] and changed["a function in a closure"]
    assert not changed["plain"]
    for phase in (1, 0):
        warm = _programs(phase, tmp_path)
        assert {name for name, graphs in warm.items() if graphs} == frame_programs.UNSTORABLE


def test_traces_of_jit_in_five_processes(tmp_path: Path) -> None:
    cold = _programs(0, tmp_path, "jit")
    traced = {name for name, graphs in cold.items() if graphs}
    left = {name for name, graphs in _programs(0, tmp_path, "jit").items() if graphs}
    assert left == frame_programs.UNSTORABLE_TRACES
    assert left < traced
    changed = _programs(1, tmp_path, "jit")
    assert changed["a number among the globals"] and changed["a hook of a module"]
    assert changed["a module in the other mode"]
    assert not changed["plain"]
    for phase in (1, 0):
        warm = _programs(phase, tmp_path, "jit")
        assert {name for name, graphs in warm.items() if graphs} <= frame_programs.UNSTORABLE_TRACES


HELPERS = "def helper(a):\n    return a + {value}\n"

CALLS = """
import torch
from torch._dynamo.utils import counters
import helpers

def f(a):
    return helpers.helper(a) * 2

a = torch.arange(3.0)
print(torch.compile(f, backend="mlcc")(a).tolist(), counters["stats"]["unique_graphs"])
"""


def _calls(folder: Path, value: int, **variables: str) -> tuple[str, str]:
    (folder / "helpers.py").write_text(HELPERS.format(value=value))
    (folder / "calls.py").write_text(CALLS)
    done = _run(["-B", str(folder / "calls.py")], folder, **variables)
    return done.stdout.strip(), done.stderr


def test_a_function_that_was_edited(tmp_path: Path) -> None:
    assert _calls(tmp_path, 1)[0] == "[2.0, 4.0, 6.0] 1"
    assert _calls(tmp_path, 1)[0] == "[2.0, 4.0, 6.0] 0"
    assert _calls(tmp_path, 5)[0] == "[10.0, 12.0, 14.0] 1"
    moved = f"# a line above\n{HELPERS.format(value=1)}"
    (tmp_path / "helpers.py").write_text(moved)
    done = _run(["-B", str(tmp_path / "calls.py")], tmp_path)
    assert done.stdout.strip() == "[2.0, 4.0, 6.0] 0"


def test_a_process_that_logs_tracing_traces(tmp_path: Path) -> None:
    assert _calls(tmp_path, 1)[0] == "[2.0, 4.0, 6.0] 1"
    assert _calls(tmp_path, 1, TORCH_LOGS="graph_breaks")[0] == "[2.0, 4.0, 6.0] 1"
    assert _calls(tmp_path, 1, TORCH_LOGS="recompiles,mlcc_perf")[0] == "[2.0, 4.0, 6.0] 0"


EDITED = """
import sys
import torch
import lambdas

path = lambdas.__file__
if len(sys.argv) > 1:  # while this process runs, someone edits what it has imported
    text = open(path).read()
    open(path, "w").write(text.replace("a + 1", "a + 5"))
a = torch.arange(3.0)
print(torch.compile(lambda a: lambdas.call(a) * 2, backend="mlcc")(a).tolist())
"""


def test_a_file_that_was_edited_since_it_was_imported(tmp_path: Path) -> None:
    (tmp_path / "lambdas.py").write_text(
        "calls = [lambda a: a + 1]\ndef call(a):\n    return calls[0](a)\n"
    )
    (tmp_path / "edited.py").write_text(EDITED)
    script = ["-B", str(tmp_path / "edited.py")]
    assert _run([*script, "edit"], tmp_path).stdout.strip() == "[2.0, 4.0, 6.0]"
    assert _run(script, tmp_path).stdout.strip() == "[10.0, 12.0, 14.0]"


def _files(folder: Path) -> list[Path]:
    return list((folder / "torch/mlcc/frames").rglob("*.frame"))


def test_files_that_are_not_as_written(tmp_path: Path) -> None:
    """None of these is read, each is told, and none raises."""
    path = tmp_path / "a.frame"
    frame_files.write(tmp_path, b"what was stored")
    (written,) = tmp_path.glob("*.frame")
    data = written.read_bytes()
    assert frame_files.read(written) == b"what was stored"
    for place in range(len(data)):
        path.write_bytes(data[:place])
        assert frame_files.read(path) is None
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        assert frame_files.read(path) is None
    written.chmod(0o666)
    assert frame_files.read(written) is None
    assert frame_files.read(tmp_path / "missing") is None


def test_a_frame_of_another_key(tmp_path: Path) -> None:
    """Guards alone do not tell the frames of two functions apart."""
    frame_files.write(tmp_path / "one", b"what was stored")
    (written,) = frame_files.variants(tmp_path / "one")
    (tmp_path / "other").mkdir()
    moved = written.rename(tmp_path / "other" / written.name)
    assert frame_files.read(moved) is None
    assert frame_files.read(moved.rename(written)) == b"what was stored"


def test_a_link_to_nothing_hides_no_frame(tmp_path: Path) -> None:
    frame_files.write(tmp_path, b"what was stored")
    (tmp_path / "0.frame").symlink_to(tmp_path / "missing")
    assert [frame_files.read(path) for path in frame_files.variants(tmp_path)] == [
        b"what was stored"
    ]


def test_an_entry_that_does_not_load(tmp_path: Path) -> None:
    _calls(tmp_path, 1)
    (path,) = _files(tmp_path)
    path.unlink()
    frame_files.write(path.parent, b"no pickle")
    out, log = _calls(tmp_path, 1)
    assert out == "[2.0, 4.0, 6.0] 1" and "not read" in log, log


@pytest.mark.parametrize("variables", [{"MLCC_WARM_START": "0"}, {"RANK": "0"}])
def test_what_must_not_be_taken(tmp_path: Path, variables: dict[str, str]) -> None:
    _calls(tmp_path, 1)
    assert _calls(tmp_path, 1, **variables)[0] == "[2.0, 4.0, 6.0] 1"


HEAVY = [["lowering"], ["scheduler"], ["kernel"], ["select_algorithm"]]
IMPORTS = """
import sys
import torch

torch.compile(lambda a: a.sin() + 1, backend="mlcc")(torch.ones(3))
print(json.dumps([name for name in sys.modules if name.startswith("torch._inductor")]))
"""


def test_nothing_of_inductor_is_imported_that_compiles(tmp_path: Path) -> None:
    (tmp_path / "imports.py").write_text(f"import json\n{IMPORTS}")
    for _ in range(2):
        done = _run([str(tmp_path / "imports.py")], tmp_path)
        parts = [name.split(".")[2:3] for name in json.loads(done.stdout)]
        assert not [part for part in parts if part in HEAVY]


JITS = """
import sys
import torch
import mlcc

net = torch.nn.Linear(3, 2)
x = torch.ones(4, 3)
y = mlcc.jit(net)(x)
torch.testing.assert_close(y, net(x))
y.sum().backward()
print(net.bias.grad.tolist(), "mlcc.capture.session" in sys.modules)
"""


def test_a_process_that_takes_a_trace_up_imports_nothing_that_compiles(tmp_path: Path) -> None:
    (tmp_path / "jits.py").write_text(JITS)
    compiled = [_run([str(tmp_path / "jits.py")], tmp_path).stdout.split() for _ in range(2)]
    assert compiled == [["[4.0,", "4.0]", "True"], ["[4.0,", "4.0]", "False"]]


AHEAD = """
import sys
import torch
from torch._dynamo.utils import counters

def f(x, y):
    return torch.sin(x) * y

x = torch.arange(12.0).reshape(3, 4)
for trains in (False, True):
    path = f"{sys.argv[2]}/f{trains}"
    a = x.clone().requires_grad_(trains)
    if sys.argv[1] == "save":
        run = torch.compile(f, backend="mlcc", fullgraph=True).aot_compile(((a, x), {}))
        run.save_compiled_function(path)
    else:
        with open(path, "rb") as stream:
            run = torch.compiler.load_compiled_function(stream)
        assert counters["stats"]["unique_graphs"] == 0
    result = run(a, x)
    torch.testing.assert_close(result, f(x, x))
    if trains:
        result.sum().backward()
        torch.testing.assert_close(a.grad, x.cos() * x)
"""


def test_a_function_compiled_ahead_of_time(tmp_path: Path) -> None:
    (tmp_path / "ahead.py").write_text(AHEAD)
    for what in ("save", "load"):
        _run([str(tmp_path / "ahead.py"), what, str(tmp_path)], tmp_path)
