"""mlcc: a JIT compiler for PyTorch with a C++ core.

Importing this package is free: torch and the compiled core are loaded at the first use of a name that needs them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mlcc._version import __version__

if TYPE_CHECKING:
    from mlcc import config as config
    from mlcc import onnx as onnx
    from mlcc._errors import EagerFallbackWarning as EagerFallbackWarning
    from mlcc._errors import Error as Error
    from mlcc._errors import InternalError as InternalError
    from mlcc._errors import LoadError as LoadError
    from mlcc.capture.cache_archive import load_cache as load_cache
    from mlcc.capture.cache_archive import save_cache as save_cache
    from mlcc.capture.jit import jit as jit
    from mlcc.packages.export import export as export
    from mlcc.packages.loading import load as load

__all__ = [
    "EagerFallbackWarning",
    "Error",
    "InternalError",
    "LoadError",
    "__version__",
    "cache_info",
    "clear_cache",
    "clear_packs",
    "config",
    "export",
    "jit",
    "load",
    "load_cache",
    "onnx",
    "save_cache",
]

# Public name -> (module that holds it, name there; None for the module itself).
_LAZY: dict[str, tuple[str, str | None]] = {
    "EagerFallbackWarning": ("mlcc._errors", "EagerFallbackWarning"),
    "Error": ("mlcc._errors", "Error"),
    "InternalError": ("mlcc._errors", "InternalError"),
    "LoadError": ("mlcc._errors", "LoadError"),
    "config": ("mlcc.config", None),
    "export": ("mlcc.packages.export", "export"),
    "jit": ("mlcc.capture.jit", "jit"),
    "load": ("mlcc.packages.loading", "load"),
    "load_cache": ("mlcc.capture.cache_archive", "load_cache"),
    "onnx": ("mlcc.onnx", None),
    "save_cache": ("mlcc.capture.cache_archive", "save_cache"),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'mlcc' has no attribute {name!r}")
    module_name, attribute = _LAZY[name]
    module = importlib.import_module(module_name)
    value = module if attribute is None else getattr(module, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


def cache_info() -> dict[str, Any]:
    """What the kernel cache, the kept values and the disk store hold, and how often they were hit.

    `stolen` weights have no memory but `stolen_bytes` of kept values, which are not among the `packs`; `restores` of
    them were taken back by ops.
    """
    from mlcc._load import load_core

    info: dict[str, Any] = load_core().cache_info()
    return info


def clear_cache() -> None:
    """Forget all compiled kernels, in memory and on disk, and all kept values."""
    from mlcc._load import load_core

    load_core().clear_cache()


def clear_packs() -> None:
    """Forget all kept values, weights in kernels' order above all; the next calls compute them again.

    Weights that were stolen for theirs (option `weights`) are put back.
    """
    from mlcc._load import load_core

    load_core().clear_packs()
