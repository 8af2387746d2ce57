"""What an emulated GPU sees of torch's memory, and what a user is told who sets it up wrongly."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import mlcc
from mlcc import config
from mlcc._load import load_core
from tests.python import emulator

LIBRARY = Path(mlcc.__file__).parent / "libmlcc_emulator.so"

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="built without the emulator")

# -- what the emulator sees of torch's memory

USES: dict[str, Callable[[torch.Tensor], Any]] = {
    "softmax": lambda x: x.softmax(-1),
    "norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "sums": lambda x: (x.sum(0), x.sum(1), x.sum()),
    "parts": lambda x: torch.cat([x[1:, 2::2], x[:-1, 1::2]]).flip(0) * 2,
    "transposed": lambda x: x.t() + x.t().exp() * 2,
    "rows": lambda x: x[torch.tensor([3, 1])] + 1,
    "nothing": lambda x: x[:0] + 1,
    "arena": lambda x: (x.exp() @ x.t()).softmax(-1) @ x,
}


@pytest.mark.parametrize("name", USES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_kernels_touch_nothing_but_their_buffers(name: str, dynamic: bool) -> None:
    x = torch.randn(66, 66)[1:, :65]
    emulator.set_option("strict", 1)
    try:
        with config.patch(gpu="emulate"):
            result = torch.compile(USES[name], backend="mlcc", dynamic=dynamic)(x)
    finally:
        emulator.set_option("strict", 0)
    torch.testing.assert_close(result, USES[name](x))


HALF_WRITTEN = """
kernel @k(%x: in f32[8], %y: out f32[8]) {
  for %i in 0..4 parallel { store %y[%i] = %x[%i] }
}
"""


def test_what_no_kernel_writes_is_poison() -> None:
    x, y = torch.ones(8), torch.zeros(8)
    options = config.resolve({"gpu": "emulate"})
    load_core().run_loop_kernel(HALF_WRITTEN, [], [x, y], "cuda", options)
    assert y[:4].tolist() == [1.0] * 4
    assert y[4:].view(torch.uint8).tolist() == [0xCB] * 16


def test_an_access_outside_of_a_buffer_is_a_fault() -> None:
    text = HALF_WRITTEN.replace("0..4", "0..9")
    program = f"""
import torch
from mlcc import config
from mlcc._load import load_core
x, y = torch.ones(16), torch.zeros(16)
load_core().run_loop_kernel({text!r}, [], [x, y], "cuda", config.resolve({{"gpu": "emulate"}}))
"""
    ended = run_python(program, MLCC_EMULATOR_STRICT="1")
    assert ended.returncode == 1
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in ended.stderr


# -- what a user sets


USER = """
import torch, mlcc
print(mlcc.jit(lambda x: x * 2 + 1)(torch.ones(3)).tolist())
"""


def run_python(program: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A program on an emulated GPU of its own."""
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "MLCC_GPU": "emulate", "MLCC_STRICT": "0", **env},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_a_bad_value_of_the_emulator_ends_no_process() -> None:
    ended = run_python(USER, MLCC_EMULATOR_SMS="many")
    assert "MLCC_EMULATOR_SMS=many is not a value" in ended.stderr
    assert ended.returncode == 1
    assert "CUDA_ERROR_INVALID_VALUE" in ended.stderr


def test_libraries_that_are_not_used_are_told() -> None:
    ended = run_python(USER, MLCC_LIBCUDA="/nonexistent/libcuda.so")
    assert ended.stdout == "[3.0, 3.0, 3.0]\n"
    assert "libcuda and nvrtc mean nothing to an emulated GPU" in ended.stderr


def test_a_failed_compilation_is_told_in_few_lines(tmp_path: Path) -> None:
    ended = run_python(USER, MLCC_EMULATOR_CXX="/nonexistent/g++", MLCC_CACHE_DIR=str(tmp_path))
    assert ended.stdout == "[3.0, 3.0, 3.0]\n"
    assert "/nonexistent/g++" in ended.stderr
    assert len(ended.stderr.splitlines()) < 20
    (folder,) = (tmp_path / "repro").iterdir()
    assert "__global__" in (folder / "error.txt").read_text()
