"""Loads the compiled core, after checking that it was built for the torch that is there."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from types import ModuleType

from mlcc._errors import Error

_BUILD_HINT = "run pip install --no-build-isolation --no-deps --force-reinstall . in mlcc's source"

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
        raise Error(f"built for torch {built}, found {found}; {_BUILD_HINT}")


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


def has_cpu_code_generator() -> bool:
    """Whether this build has libmlcc_llvm.so; one for GPUs alone has none."""
    return _LLVM_LIBRARY.exists()


def load_core() -> ModuleType:
    """Import torch, then `mlcc._C`, which links to it; return `_C`."""
    global _core
    if _core is not None:
        return _core
    import torch

    built = built_torch_version()
    if built is None:
        raise Error(f"the compiled core is missing; {_BUILD_HINT}")
    check_torch(built, str(torch.__version__))
    try:
        core = importlib.import_module("mlcc._C")
    except ImportError as error:
        raise Error(f"the compiled core cannot be loaded ({error}); {_BUILD_HINT}") from error
    core.set_llvm_library(str(_LLVM_LIBRARY))
    core.set_nvrtc_folders([str(folder) for folder in nvrtc_folders()])
    from mlcc import logging

    logging.configure()  # importing torch resets the levels that it knows of
    _core = core
    return core
