"""What emulated kernels read and write of global memory, beside the least that the program must."""

from __future__ import annotations

import re
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses import FakeTensorMode
from torch.utils import _pytree as pytree

from mlcc import config
from mlcc._load import load_core
from tests.python import emulator
from tests.python.cuda_corpus import BF16, BOOL, F16, F32, I8, I64, Program, T, lower, rms_norm, t
from tests.python.cuda_tools import needs_nvrtc

pytestmark = needs_nvrtc  # for the build of the tests that is named there too

MOST = 1.05

DTYPES = {
    "f64": torch.float64, "f32": F32, "bf16": BF16, "f16": F16,
    "i64": I64, "i32": torch.int32, "i8": I8, "u8": torch.uint8, "bool": BOOL,
}  # fmt: skip
BUFFER = re.compile(r"%\w+: (?:in|out|inout|scratch) (\w+)\[([\d, ]*)\]")


def buffers_of(kernel: str) -> list[torch.Tensor]:
    """Tensors for the buffers of a kernel without sizes; what is an index is 0."""
    header = kernel[: kernel.index("{\n")]
    made = []
    for dtype, shape in BUFFER.findall(header):
        numel = prod(map(int, shape.split(",")))
        made.append(
            torch.randn(numel).to(DTYPES[dtype])
            if "f" in dtype
            else torch.zeros(numel, dtype=DTYPES[dtype])
        )
    return made


def ideal_of(program: Program) -> int:
    """Bytes of the inputs and of the outputs."""
    with FakeTensorMode() as mode:
        inputs = [made.fake(mode, False) for made in program.inputs]
        outputs = program.function(*inputs)
    return sum(x.nbytes for x in [*inputs, *pytree.tree_leaves(outputs)])


def touched_by(program: Program, folder: Path) -> int:
    """Bytes that the program's kernels move."""
    touched = 0
    for kernel in lower([program], folder):
        buffers = buffers_of(kernel.text)
        touched += emulator.count_bytes(buffers, partial(run, kernel.text, buffers))
    return touched


def run(kernel: str, buffers: list[torch.Tensor]) -> None:
    options = config.resolve({"gpu": "emulate"})
    load_core().run_loop_kernel(kernel, [], buffers, "cuda", options)


def rows(dtype: torch.dtype) -> list[tuple[int, int]]:
    return (
        [(64, 1024), (37, 768), (16, 4096)]
        if dtype == F32
        else [(64, 1024), (16, 8192), (33, 1000)]
    )


def programs() -> list[Program]:
    found = []
    for dtype in (F32, BF16, F16):
        name = str(dtype).removeprefix("torch.")
        for n, m in rows(dtype):
            x, w, column = t(n, m, dtype=dtype), t(m, dtype=dtype), t(n, 1, dtype=dtype)
            made: list[tuple[str, Any, list[T]]] = [
                ("add", lambda x, y: x + y, [x, x]),
                ("gelu of a bias", lambda x, b: F.gelu(x + b), [x, w]),
                ("column", lambda x, c: x * c + 1, [x, column]),
                ("softmax", lambda x: x.softmax(-1), [x]),
                ("log softmax", lambda x: x.log_softmax(-1), [x]),
                ("layer norm", lambda x, w, b: F.layer_norm(x, w.shape, w, b), [x, w, w]),
                ("rms norm", rms_norm, [x, w]),
                ("residual norm", lambda x, y, w: rms_norm(F.gelu(x) + y, w), [x, x, w]),
                ("norm to f32", lambda x, w: F.layer_norm(x, w.shape, w).float() * 2, [x, w]),
                ("scaled softmax", lambda x, y: (x * 0.125 + y).softmax(-1) * 2, [x, x]),
                ("row sums", lambda x: x.sum(1), [x]),
            ]
            found += [Program(f"{what} {n}x{m} {name}", f, inputs) for what, f, inputs in made]
    found += [
        Program("softmax 4x50257 float32", lambda x: x.softmax(-1), [t(4, 50257)]),
        Program("softmax 3x32000 bfloat16", lambda x: x.softmax(-1), [t(3, 32000, dtype=BF16)]),
        Program("softmax 5x30000 float32", lambda x: x.softmax(-1), [t(5, 30000)]),
        Program("softmax 3x50304 bfloat16", lambda x: x.softmax(-1), [t(3, 50304, dtype=BF16)]),
        Program("layer norm 3x30000 float32", lambda x: F.layer_norm(x, (30000,)), [t(3, 30000)]),
        Program("layer norm 5x1001 float32", lambda x: F.layer_norm(x, (1001,)), [t(5, 1001)]),
        Program("odd 33x77 bfloat16", lambda x: x.exp() + 1, [t(33, 77, dtype=BF16)]),
        Program("dequantize 64x512", lambda x, s: x.float() * s, [t(64, 512, dtype=I8), t(512)]),
        Program("masked 8x64", lambda x, m: x.masked_fill(m, 0).softmax(-1), [t(8, 64, 64), t(64, 64, dtype=BOOL)]),
        Program("softmax backward 64x512", lambda y, g: (g - (g * y).sum(-1, keepdim=True)) * y, [t(64, 512)] * 2),
    ]  # fmt: skip
    return found


@pytest.mark.parametrize("program", programs(), ids=lambda program: program.name)
def test_each_byte_is_moved_once(program: Program, tmp_path: Path) -> None:
    """`pytest -s` shows the table."""
    touched, ideal = touched_by(program, tmp_path), ideal_of(program)
    print(f"{program.name:32} {touched:10} of {ideal:10} bytes, {touched / ideal:.3f}")
    assert ideal * 0.95 <= touched <= ideal * MOST


LONG_ROWS = """
kernel @k(%x: in f32[131072], %y: out f32[131072]) {
  for %i in 0..2 parallel group(1024) {
    reduce %j in 0..65536 vector(4) (%s: f32 = 0.0) {
      yield %s + %x[65536 * %i + %j]
    } combine (%a, %b) {
      yield %a + %b
    } -> %sum
    for %k in 0..65536 vector(4) { store %y[65536 * %i + %k] = %x[65536 * %i + %k] - %sum }
  }
}
"""


def test_a_row_that_is_read_twice_is_seen() -> None:
    """It fits neither registers nor shared memory."""
    buffers = buffers_of(LONG_ROWS)
    assert emulator.count_bytes(buffers, lambda: run(LONG_ROWS, buffers)) == 3 * 131072 * 4
