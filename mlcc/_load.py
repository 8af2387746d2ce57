"""Loads the compiled core, after checking that it was built for the torch that is there."""

from __future__ import annotations

import importlib
import importlib.util
import struct
from pathlib import Path
from types import ModuleType

from mlcc._errors import Error

# What to do where the build does not fit.
BUILD_HINT = "run pip install --no-build-isolation --no-deps --force-reinstall . in mlcc's source"

_core: ModuleType | None = None


def built_torch_version() -> str | None:
    """The version of torch that the core was built against, or None where it was not built."""
    try:
        return str(importlib.import_module("mlcc._build_info").TORCH_VERSION)
    except ImportError:
        return None


def check_torch(built: str, found: str) -> None:
    """Raise unless a core built for torch `built` may be loaded beside torch `found` (same minor version)."""
    found = found.split("+")[0]
    if built.split(".")[:2] != found.split(".")[:2]:
        raise Error(f"built for torch {built}, found {found}; {BUILD_HINT}")


def nvrtc_folders() -> list[Path]:
    """Where NVIDIA's Python packages have their libraries: those of CUDA 13 and later, then of CUDA 12."""
    try:
        package = importlib.util.find_spec("nvidia")
    except (ImportError, ValueError):
        return []
    parents = [Path(place) for place in (package and package.submodule_search_locations) or ()]
    names = ("cu13/lib", "cuda_nvrtc/lib")
    folders = [parent / name for name in names for parent in parents]
    return [folder for folder in folders if folder.is_dir()]


# Beside the module itself, which may be a link into a build tree.
_LLVM_LIBRARY = Path(__file__).parent / "libmlcc_llvm.so"


def llvm_library() -> Path:
    """Where the code generator for CPUs is, or would be."""
    return _LLVM_LIBRARY


def missing_bytes(library: Path) -> int:
    """By how many bytes a 64-bit ELF file is shorter than it says; loading such a one may end the process.

    0 for a whole one, and for a file that is none, which the loader itself refuses.
    """
    try:
        with library.open("rb") as file:
            header = file.read(64)
        size = library.stat().st_size
    except OSError:
        return 0
    if len(header) < 64 or header[:5] != b"\x7fELF\x02":
        return 0
    (offset,) = struct.unpack_from("<Q", header, 0x28)  # of the section headers, which are last
    entry_size, count = struct.unpack_from("<HH", header, 0x3A)
    return max(0, int(offset) + int(entry_size) * int(count) - size)


def has_cpu_code_generator() -> bool:
    """Whether this build has libmlcc_llvm.so; one for GPUs alone has none."""
    return _LLVM_LIBRARY.exists()


def is_code_generator_at_fault(error: str) -> bool:
    """Whether the core says that the library of the code generator is missing, broken or another build's."""
    library = str(_LLVM_LIBRARY)
    return "the cpu code generator cannot be opened" in error or any(
        f"{library}: {what}" in error for what in ("not a code generator", "table version")
    )


def load_core() -> ModuleType:
    """Import torch, then `mlcc._C`, which links to it; return `_C`."""
    global _core
    if _core is not None:
        return _core
    import torch

    built = built_torch_version()
    if built is None:
        raise Error(f"the compiled core is missing; {BUILD_HINT}")
    check_torch(built, str(torch.__version__))
    try:
        core = importlib.import_module("mlcc._C")
    except ImportError as error:
        raise Error(f"the compiled core cannot be loaded ({error}); {BUILD_HINT}") from error
    # One that is cut short gets a name that cannot be opened.
    cut = " (cut short)" if missing_bytes(_LLVM_LIBRARY) else ""
    core.set_llvm_library(f"{_LLVM_LIBRARY}{cut}")
    core.set_nvrtc_folders([str(folder) for folder in nvrtc_folders()])
    from mlcc import logging

    logging.configure()  # importing torch resets the levels that it knows of
    _core = core
    return core
