"""NVRTC and the tools that read its machine code, from NVIDIA's packages; mlcc's programs beside the core."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest

from mlcc import _load

# Built libraries are links into a build folder.
BUILD = Path(_load.__file__).with_name("libmlcc_llvm.so").resolve().parent.parent


def mlcc_program(name: str) -> Path:
    """A program of the build that the package is linked to."""
    return BUILD / "bin" / name


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
    }
    return [name for name, path in packages.items() if path is None or not path.exists()]


needs_nvrtc = pytest.mark.skipif(bool(missing()), reason=f"without {', '.join(missing())}")
