"""Bugs planted into generated CUDA text: under some order of threads the emulator shows each of them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch

from tests.python import cuda_tools, emulator

pytestmark = cuda_tools.needs_nvrtc

ROWS, COLUMNS = 37, 1024
COMBINE = "combine (%a, %b) { yield %a + %b }"
KERNELS = {
    # A block for a row: partial sums meet in shared memory.
    "rows": f"""
kernel @rows(%x: in f32[{ROWS * COLUMNS}], %y: out f32[{ROWS * COLUMNS}]) {{
  for %i in 0..{ROWS} parallel group(128) {{
    reduce %j in 0..{COLUMNS} vector(4) unroll(4) (%s: f32 = 0.0) {{
      yield %s + %x[{COLUMNS} * %i + %j]
    }} {COMBINE} -> %sum
    for %k in 0..{COLUMNS} vector(4) unroll(4) {{ store %y[{COLUMNS} * %i + %k] = %x[{COLUMNS} * %i + %k] - %sum }}
  }}
}}""",
    # Eight lanes for a row, four rows in a warp.
    "lanes": f"""
kernel @lanes(%x: in f32[{ROWS * 64}], %y: out f32[{ROWS * 64}]) {{
  for %i in 0..{ROWS} parallel group(8) {{
    reduce %j in 0..64 vector(4) (%s: f32 = 0.0) {{ yield %s + %x[64 * %i + %j] }} {COMBINE} -> %sum
    for %k in 0..64 vector(4) {{ store %y[64 * %i + %k] = %x[64 * %i + %k] - %sum }}
  }}
}}""",
    # Chunks that do not divide the length.
    "tail": """
kernel @tail(%x: in f32[3001], %y: out f32[3001]) {
  for %i in 0..6 parallel group(64) {
    for %j in 512 * %i..min(512 * %i + 512, 3001) vector(4) { store %y[%j] = %x[%j] * 2.0 }
  }
}""",
    # Backwards: what other threads have written goes through memory of the block.
    "exchange": f"""
kernel @exchange(%x: in f32[{ROWS * 256}], %y: out f32[{ROWS * 256}]) {{
  for %i in 0..{ROWS} parallel group(64) {{
    alloc %t: shared f32[256]
    for %j in 0..256 vector(4) {{ store %t[%j] = %x[256 * %i + %j] * 2.0 }}
    for %k in 0..256 vector(4) {{ store %y[256 * %i + %k] = %t[255 - %k] }}
  }}
}}""",
}


def minus_row_sums(x: torch.Tensor) -> torch.Tensor:
    return x - x.sum(1, keepdim=True)


REFERENCE: dict[str, tuple[tuple[int, ...], int, Callable[[torch.Tensor], torch.Tensor]]] = {
    # Shape, iterations, function.
    "rows": ((ROWS, COLUMNS), ROWS, minus_row_sums),
    "lanes": ((ROWS, 64), ROWS, minus_row_sums),
    "tail": ((3001,), 6, lambda x: x * 2),
    "exchange": ((ROWS, 256), ROWS, lambda x: x.flip(1) * 2),
}


@dataclass(frozen=True)
class Emitted:
    """A kernel's text and how it is launched."""

    text: str
    threads: int
    shared: int


@cache
def emitted(name: str, folder: Path) -> Emitted:
    file = folder / f"{name}.mlcc"
    file.write_text(KERNELS[name])
    (function,) = cuda_tools.compile_files([file], "--arch=sm_90")
    command = [str(cuda_tools.mlcc_program("mlcc-cuda")), "--emit", str(file)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return Emitted(text, function.threads, function.dynamic_shared)


@pytest.fixture(autouse=True)
def strict() -> Iterator[None]:
    """What lies outside of the tensors is not touched."""
    emulator.set_option("strict", 1)
    yield
    emulator.set_option("strict", 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("planted")


def is_right(name: str, kernel: Emitted, schedule: str, program: emulator.EmulatedProgram) -> bool:
    shape, iterations, function = REFERENCE[name]
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(-8, 9, shape, generator=generator).float()  # sums are exact in any order
    y = torch.full_like(x, float("nan"))
    with emulator.schedule(schedule), emulator.known_memory([x, y]):
        fault = program.launch(f"{name}_p0", 2, kernel.threads, kernel.shared, [x, y, iterations])
    return fault is None and torch.equal(y, function(x))


@pytest.mark.parametrize("schedule", emulator.SCHEDULES)
@pytest.mark.parametrize("name", KERNELS)
def test_generated_text_is_right(name: str, schedule: str, folder: Path) -> None:
    kernel = emitted(name, folder)
    assert is_right(name, kernel, schedule, emulator.EmulatedProgram(kernel.text))


BARRIER = r"^ *__syncthreads\(\);\n"
# Of a kernel: what is looked for, the number of the match that is replaced, and by what.
BUGS = [
    ("rows", BARRIER, 0, ""),
    ("rows", BARRIER, 1, ""),
    ("rows", r"for \(u32 d = 16;", 0, "for (u32 d = 8;"),
    ("rows", r"for \(u32 d = 2;", 0, "for (u32 d = 1;"),
    ("rows", r"shuffle_xor\(0xffffffffu", 0, "shuffle_xor(0x7fffffffu"),
    ("rows", r"item \+= \(i32\)gridDim.x\b", 0, "item += (i32)gridDim.x + 1"),
    ("rows", r"if \(rank % 32 == 0\)", 0, "if (rank == 0)"),
    ("rows", r"rank % 4\]", 0, "rank % 2]"),
    ("lanes", r"for \(u32 d = 4;", 0, "for (u32 d = 2;"),
    ("lanes", r"threadIdx\.x % 32 / 8 \* 8\)", 0, "threadIdx.x % 32 / 8 * 8 + 1)"),
    ("lanes", r"255u <<", 0, "127u <<"),
    ("lanes", r"gridDim\.x \* 16", 0, "gridDim.x * 32"),
    ("lanes", r"item < \(i32\)iterations", 0, "item < (i32)iterations - 1"),
    ("lanes", r"rank = \(i32\)threadIdx\.x % 8", 0, "rank = (i32)threadIdx.x % 4"),
    ("tail", r", 3001\) - 4\)", 0, ", 3001) - 1)"),
    ("tail", r", 3001\) - 4\)", 0, ", 3001) - 8)"),
    ("tail", r"% 4 \+ rank;", 0, "% 4 + rank + 1;"),
    ("exchange", BARRIER, 0, ""),
    ("exchange", BARRIER, 1, ""),
]


@pytest.mark.parametrize(("name", "pattern", "number", "replacement"), BUGS)
def test_a_planted_bug_is_seen(
    name: str, pattern: str, number: int, replacement: str, folder: Path
) -> None:
    kernel = emitted(name, folder)
    start = kernel.text.index("\nMLCC_KERNEL(")
    matches = list(re.finditer(pattern, kernel.text[start:], re.MULTILINE))
    assert number < len(matches), kernel.text[start:]
    match = matches[number]
    edited = kernel.text[: start + match.start()] + replacement + kernel.text[start + match.end() :]
    program = emulator.EmulatedProgram(edited)
    assert not all(is_right(name, kernel, schedule, program) for schedule in emulator.SCHEDULES)
