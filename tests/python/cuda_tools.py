"""NVRTC and the tools that read its machine code, from NVIDIA's packages; mlcc's programs beside the core."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from mlcc import _load

# Built libraries are links into a build folder.
BUILD = Path(_load.__file__).with_name("libmlcc_llvm.so").resolve().parent.parent


def mlcc_program(name: str) -> Path:
    """A program of the build that the package is linked to."""
    return BUILD / "bin" / name


def fake_driver() -> Path:
    """A driver and an NVRTC that do nothing."""
    return BUILD / "tests" / "libfake_cuda.so"


@cache
def nvrtc_library() -> Path | None:
    """libnvrtc of the Python packages."""
    found = [path for folder in _load.nvrtc_folders() for path in folder.glob("libnvrtc.so.*")]
    return found[0] if found else None


@cache
def disassembler(name: str) -> Path | None:
    """cuobjdump or nvdisasm of the Python packages."""
    found = [folder.parent / "bin" / name for folder in _load.nvrtc_folders()]
    return next((path for path in found if os.access(path, os.X_OK)), None)


def missing() -> list[str]:
    """What the tests of CUDA code would like to have and this machine lacks."""
    packages = {
        "nvidia-cuda-nvrtc": nvrtc_library(),
        "nvidia-cuda-cuobjdump": disassembler("cuobjdump"),
        "nvidia-cuda-nvdisasm": disassembler("nvdisasm"),
        "a build of mlcc-cuda": mlcc_program("mlcc-cuda"),
        "a build of the tests": fake_driver(),
    }
    return [name for name, path in packages.items() if path is None or not path.exists()]


needs_nvrtc = pytest.mark.skipif(bool(missing()), reason=f"without {', '.join(missing())}")


# -- compiling


@dataclass(frozen=True)
class Function:
    """What NVRTC says of one function, in bytes where it is memory."""

    name: str
    arch: str
    registers: int
    spilled: int
    local: int
    shared: int
    dynamic_shared: int
    threads: int
    group: int


FUNCTION = re.compile(
    r"  (\S+) +(\d+) registers +(\d+) spilled +(\d+) local +(\d+) shared"
    r" +(\d+) dynamic +(\d+) threads, +(\d+) to an iteration"
)
PROGRAM = re.compile(r"(\S+), (\w+)(?: \(as PTX\))?: ([\d.]+) ms, (\d+) bytes")


def compile_files(files: Sequence[Path], *arguments: str) -> list[Function]:
    """What mlcc-cuda prints of files of loop IR. Raises with its message where it fails."""
    command: list[str | Path] = [
        mlcc_program("mlcc-cuda"),
        f"--nvrtc={nvrtc_library()}",
        *arguments,
        *files,
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    functions = []
    arch = ""
    for line in result.stdout.splitlines():
        if match := PROGRAM.match(line):
            arch = match[2]
        elif not line.strip().startswith("__internal"):  # a function of CUDA's own
            match = FUNCTION.fullmatch(line)
            assert match, line
            functions.append(Function(match[1], arch, *map(int, match.groups()[1:])))
    return functions


def sass(loop_ir: str, folder: Path, arch: str = "sm_90") -> dict[str, list[str]]:
    """The instructions of each function of a program, without addresses and predicates."""
    source, cubin = folder / "sass.mlcc", folder / "sass.cubin"
    source.write_text(loop_ir)
    compile_files([source], f"--arch={arch}", "-o", str(cubin))
    text = subprocess.run(
        [str(disassembler("cuobjdump")), "-sass", cubin],
        env=os.environ | {"PATH": f"{Path(str(disassembler('nvdisasm'))).parent}:{os.environ['PATH']}"},
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    functions: dict[str, list[str]] = {}
    for line in text.splitlines():
        if "Function : " in line:
            current = functions.setdefault(line.split("Function : ")[1].strip(), [])
        elif match := re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?\s*(\S.*?) ;", line):
            current.append(match[1])
    return functions
