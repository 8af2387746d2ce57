"""What `mlcc.jit` imports: a process that finds its traces in the store does without Dynamo, which takes a second."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

PROGRAM = """
import sys
import torch
import mlcc
from mlcc._load import load_core

heavy = ("torch._dynamo", "torch._inductor", "torch._functorch.aot_autograd", "sympy", "networkx")

def function(x, scale):
    return torch.sin(x) * scale + 1

run = mlcc.jit(function)
net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
jitted = mlcc.jit(net)
x = torch.ones(3, 4)

def right():
    return torch.allclose(run(x, 2.0), function(x, 2.0)) and torch.allclose(jitted(x), net(x))

assert right() and right()
print([name for name in heavy if name in sys.modules])
"""

AFTERWARDS = """
def is_in_core():
    return run._dispatch(x, 2.0) is not NotImplemented

assert is_in_core()
calls = []
original = run._function
import torch._dynamo
assert right() and right() and is_in_core()
for stance in ("force_eager", "eager_on_recompile", "default"):
    with torch.compiler.set_stance(stance):
        assert is_in_core() == (stance == "default"), stance
        assert right()
assert is_in_core()
compiled = torch.compile(function, backend="mlcc")
assert torch.allclose(compiled(x, 2.0), function(x, 2.0))
other = mlcc.jit(lambda x: x.cos() * 3)
assert torch.allclose(other(x), x.cos() * 3)
assert right()
print("right")
"""


def _python(program: str, tmp_path: Path) -> list[str]:
    path = tmp_path / "program.py"  # code that no file holds is not stored
    path.write_text(textwrap.dedent(program))
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("MLCC_")
    }
    environment |= {"MLCC_CACHE_DIR": str(tmp_path / "kernels")}
    environment |= {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "traces")}
    done = subprocess.run(
        [sys.executable, str(path)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_second_process_does_without_dynamo(tmp_path: Path) -> None:
    (first,) = _python(PROGRAM, tmp_path)
    assert "torch._dynamo" in first
    assert _python(PROGRAM, tmp_path) == ["[]"]


def test_dynamo_is_imported_afterwards(tmp_path: Path) -> None:
    """Stances count from then on, calls are found in the core again, and both ways to compile work."""
    _python(PROGRAM, tmp_path)
    # The same file: what it adds runs after the functions were taken up.
    text = PROGRAM + AFTERWARDS
    _python(text, tmp_path)
    assert _python(text, tmp_path)[-1] == "right"


def test_torchs_cache_folder_is_the_one_that_torch_has() -> None:
    program = """
        import sys
        from mlcc.torch_private import settings
        found = settings.cache_folder()
        assert "torch._inductor" not in sys.modules
        from torch._inductor.runtime.cache_dir_utils import cache_dir
        print(found == cache_dir())
    """
    environment = {k: v for k, v in os.environ.items() if k != "TORCHINDUCTOR_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "True\n")
