"""What NVRTC costs: CPU milliseconds a kernel, each in a program of its own and eight to a program.

usage: cuda_compile.py [--arch sm_90] [--repeats 3] [--every N]

The kernels are those that tests/python/test_cuda_compile.py looks at; no GPU is needed. Of each the fastest of several
compilations counts. The slowest ones are listed, with the length of their text and the number of their instructions.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from ctypes import byref, c_char_p, c_size_t, c_void_p
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.python import cuda_corpus, cuda_tools

# The project's promises, in milliseconds.
MOST_ALONE, MOST_BATCHED = 60.0, 30.0
BATCH = 8


class Nvrtc:
    """The library, by ctypes."""

    def __init__(self, path: Path) -> None:
        folder = path.parent
        for builtins in folder.glob("libnvrtc-builtins.so.*"):  # or it does not find them itself
            ctypes.CDLL(str(builtins))
        self._library = ctypes.CDLL(str(path))
        command = [str(cuda_tools.mlcc_program("mlcc-cuda")), "--options", f"--nvrtc={path}"]
        printed = subprocess.run(command, capture_output=True, text=True, check=True)
        self._options = printed.stdout.split()

    def compile(self, text: str, arch: str) -> tuple[float, int]:
        """Milliseconds of this process and bytes of machine code."""
        start = time.process_time()
        program, size = c_void_p(), c_size_t()
        self._library.nvrtcCreateProgram(
            byref(program), text.encode(), b"program.cu", 0, None, None
        )
        words = [*self._options, f"--gpu-architecture={arch}"]
        options = (c_char_p * len(words))(*(word.encode() for word in words))
        if self._library.nvrtcCompileProgram(program, len(words), options) != 0:
            raise RuntimeError(
                "a kernel does not compile; tests/python/test_cuda_compile.py tells why"
            )
        self._library.nvrtcGetCUBINSize(program, byref(size))
        self._library.nvrtcDestroyProgram(byref(program))
        return (time.process_time() - start) * 1e3, size.value


def emit(loop_ir: Sequence[str], folder: Path) -> str:
    """CUDA text of loop-IR kernels, as one program."""
    file = folder / "program.mlcc"
    file.write_text("\n".join(loop_ir))
    command = [str(cuda_tools.mlcc_program("mlcc-cuda")), "--emit", "--shared=232448", str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def main() -> int:
    """Print the figures; 1 if a promise is not kept."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--every", type=int, default=1, help="only each n-th program of the corpus")
    arguments = parser.parse_args()
    library = cuda_tools.nvrtc_library()
    if library is None:
        parser.error("there is no NVRTC: pip install nvidia-cuda-nvrtc==13.0.*")
    nvrtc = Nvrtc(library)
    with tempfile.TemporaryDirectory(prefix="mlcc-cuda-compile-") as name:
        folder = Path(name)
        dumps = folder / "dumps"
        dumps.mkdir()
        kernels = cuda_corpus.lower(cuda_corpus.programs()[:: arguments.every], dumps)
        alone = [emit([kernel.text], folder) for kernel in kernels]
        texts = [kernel.text for kernel in kernels]
        batches = [emit(texts[i : i + BATCH], folder) for i in range(0, len(texts), BATCH)]

    def cost(text: str) -> float:
        return min(nvrtc.compile(text, arguments.arch)[0] for _ in range(arguments.repeats))

    prelude = cost(emit_prelude(alone[0]))
    single = [cost(text) for text in alone]
    together = [cost(text) for text in batches]
    print(f"{len(kernels)} kernels for {arguments.arch}, CPU ms, the least of {arguments.repeats}")
    print(f"  the prelude alone      {prelude:6.1f}")
    quartiles = statistics.quantiles(single, n=10)
    print(
        f"  alone                  {statistics.mean(single):6.1f} in the mean, median {statistics.median(single):.1f},"
        f" nine of ten below {quartiles[-1]:.1f}, most {max(single):.1f}"
    )
    batched = sum(together) / len(kernels)
    print(f"  {BATCH} to a program         {batched:6.1f} each")
    print(f"kernels over {MOST_ALONE:g} ms:")
    for ms, kernel, text in sorted(zip(single, kernels, alone, strict=True), key=lambda x: -x[0]):
        if ms > MOST_ALONE:
            lines = text.count("\n") - prelude_lines(text)
            print(f"  {ms:6.1f}  {kernel.name}, {lines} lines")
    return int(statistics.mean(single) > MOST_ALONE or batched > MOST_BATCHED)


def prelude_lines(program: str) -> int:
    """How many lines stand before the first kernel."""
    return program[: program.index("\nMLCC_KERNEL(")].count("\n")


def emit_prelude(program: str) -> str:
    """The program without its kernels, but for an empty one."""
    return program[: program.index("\nMLCC_KERNEL(")] + "\nMLCC_KERNEL(k, 32)() {}\n"


if __name__ == "__main__":
    sys.exit(main())
