"""CUDA code as NVRTC and its assembler see it, without a GPU: all kernels of a corpus, for all architectures."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.python import cuda_corpus
from tests.python.cuda_corpus import LoopKernel
from tests.python.cuda_tools import (
    Function,
    compile_files,
    mlcc_program,
    needs_nvrtc,
    nvrtc_library,
    sass,
)

pytestmark = needs_nvrtc

ROOT = Path(__file__).resolve().parents[2]
# Of a block, when it asks for it (CUDA C++ Programming Guide, table of compute capabilities).
SHARED_BYTES = {"sm_80": 163 * 1024, "sm_90": 227 * 1024, "sm_100": 227 * 1024}
BATCH = 8


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> list[LoopKernel]:
    return cuda_corpus.lower(cuda_corpus.programs(), tmp_path_factory.mktemp("corpus"))


def in_batches(kernels: Sequence[LoopKernel], folder: Path) -> list[Path]:
    files = []
    for number, start in enumerate(range(0, len(kernels), BATCH)):
        files.append(folder / f"batch{number}.mlcc")
        files[-1].write_text("\n".join(kernel.text for kernel in kernels[start : start + BATCH]))
    return files


def compile_all(files: Sequence[Path], *arguments: str) -> list[Function]:
    """In as many processes as there are cores."""
    processes = min(os.cpu_count() or 1, 8)
    with ThreadPoolExecutor(processes) as pool:
        parts = [files[i::processes] for i in range(processes)]
        made = pool.map(lambda part: compile_files(part, *arguments) if part else [], parts)
    return [function for part in made for function in part]


# What CUDA's own sin, cos and tan keep in local memory to reduce huge angles.
BYTES_FOR_HUGE_ANGLES = 40


def problems(functions: Sequence[Function], shared_bytes: int) -> list[Function]:
    """Those that spill, have local arrays, or exceed what a block may have."""
    return [
        f
        for f in functions
        if f.spilled > 0 or f.local > BYTES_FOR_HUGE_ANGLES
        or f.shared + f.dynamic_shared > shared_bytes
        or f.threads > 1024 or (f.threads > 1 and f.threads % 32)
        or f.threads % f.group
        or f.registers * f.threads > 65536
    ]  # fmt: skip


@pytest.mark.nightly
@pytest.mark.parametrize("arch", SHARED_BYTES)
def test_corpus(corpus: list[LoopKernel], arch: str, tmp_path: Path) -> None:
    files = in_batches(corpus, tmp_path)
    functions = compile_all(files, f"--arch={arch}", f"--shared={SHARED_BYTES[arch]}")
    assert len(functions) >= len(corpus) > 250
    assert problems(functions, SHARED_BYTES[arch]) == []


@pytest.mark.slow
def test_corpus_in_general_code(corpus: list[LoopKernel], tmp_path: Path) -> None:
    functions = compile_all(in_batches(corpus, tmp_path), "--arch=sm_90", "--general")
    assert problems(functions, 48 * 1024) == []


# What has no CUDA code yet: tile contractions.
UNSUPPORTED = {"attention", "packed_gemm", "split_k", "winograd"}
NESTS = sorted((ROOT / "tests/lit/loop/nests").glob("*.mlcc"))


@pytest.mark.parametrize("path", NESTS, ids=lambda path: path.stem)
def test_nests(path: Path) -> None:
    if path.stem in UNSUPPORTED:
        with pytest.raises(AssertionError, match="not supported: cuda: "):
            compile_files([path])
        return
    assert problems(compile_files([path]), 48 * 1024) == []


# -- machine code


WIDTHS = {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}


def accesses(code: Sequence[str], kind: str) -> Counter[int]:
    """How many instructions move how many bytes of global memory: kind is LDG or STG."""
    found: Counter[int] = Counter()
    for line in code:
        words = line.split()[0].split(".")
        if words[0] == kind:
            found[next((WIDTHS[word] for word in words if word in WIDTHS), 4)] += 1
    return found


def streams() -> list[cuda_corpus.Program]:
    """Programs of contiguous rows that are multiples of 16 bytes: they move nothing in smaller parts."""
    wanted = []
    for dtype in ("float32", "bfloat16", "float16"):
        names = ("add", "gelu of a bias", "gelu tanh backward", "swiglu", "compare")
        wanted += [f"{name} {dtype}" for name in names]
        wanted += [f"softmax {columns} {dtype}" for columns in (128, 1000, 1024, 4096)]
        wanted += [f"layer norm {columns} {dtype}" for columns in (768, 1024, 4096, 8192)]
        wanted += [f"rms norm {columns} {dtype}" for columns in (768, 1024, 4096, 8192)]
        wanted += [f"residual layer norm {dtype}"]
    wanted += [
        "to f32 bfloat16",
        "from f32 float16",
        "adamw",
        "residual and bias",
        "softmax trained float32",
    ]
    by_name = {program.name: program for program in cuda_corpus.programs()}
    return [by_name[name] for name in wanted]


def test_streams_are_moved_16_bytes_at_a_time(tmp_path: Path) -> None:
    kernels = cuda_corpus.lower(streams(), tmp_path)
    functions = sass("\n".join(kernel.text for kernel in kernels), tmp_path)
    assert len(functions) >= len(kernels) > 40
    for name, code in functions.items():
        loads, stores = accesses(code, "LDG"), accesses(code, "STG")
        assert set(loads) == {16}, (name, loads)
        assert set(stores) == {16}, (name, stores)
        assert not any(line.startswith(("LDL", "STL")) for line in code), name


def test_a_column_is_read_by_elements(tmp_path: Path) -> None:
    """The counterpart of the test above: it would see a narrower access."""
    programs = [p for p in cuda_corpus.programs() if p.name == "column broadcast float32"]
    (kernel,) = cuda_corpus.lower(programs, tmp_path)
    (code,) = sass(kernel.text, tmp_path).values()
    assert set(accesses(code, "LDG")) == {4, 16}


FMA = """
kernel @separate(%x: in f32[4096], %y: out f32[4096]) {
  for %i in 0..4096 vector(4) { store %y[%i] = %x[%i] * %x[%i] + 1.0 }
}
kernel @together(%x: in f32[4096], %y: out f32[4096]) {
  for %i in 0..4096 vector(4) { store %y[%i] = fma(%x[%i], %x[%i], 1.0) }
}
"""


@pytest.mark.parametrize("arch", SHARED_BYTES)
def test_products_and_sums_stay_apart(arch: str, tmp_path: Path) -> None:
    functions = sass(FMA, tmp_path, arch)
    separate, together = (
        Counter(re.split(r"[. ]", line)[0] for line in functions[name])
        for name in ("separate_p0", "together_p0")
    )
    assert separate["FMUL"] + separate["FMUL2"] > 0
    assert separate["FFMA"] + separate["FFMA2"] == 0
    assert together["FFMA"] + together["FFMA2"] > 0
    assert together["FMUL"] + together["FADD"] == 0


def test_an_nvrtc_that_is_loaded_already(tmp_path: Path) -> None:
    """By somebody who did not load the second half, which it looks for by name."""
    file = tmp_path / "k.mlcc"
    file.write_text(
        "kernel @k(%x: in f32[8], %y: out f32[8]) {\n"
        "  for %i in 0..8 parallel { store %y[%i] = %x[%i] + 1.0 }\n}\n"
    )
    ended = subprocess.run(
        [mlcc_program("mlcc-cuda"), "--arch=sm_90", file],
        env=os.environ | {"LD_PRELOAD": str(nvrtc_library())},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
