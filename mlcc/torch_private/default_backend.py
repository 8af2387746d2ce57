"""mlcc as the backend of `torch.compile` where a program names none, by `torch.compiler.set_default_backend`.

That function imports all of Dynamo, which `import torch` must not wait for, so it is called when Dynamo's list of
backends is first imported: nothing reads the default before. What the program sets afterwards stays.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

NAME = "mlcc"

_REGISTRY = "torch._dynamo.backends.registry"

_wanted = False


def is_wanted() -> bool:
    """Whether `make_default` was called: the program may have been written for Inductor."""
    return _wanted


def make_default() -> None:
    """Let `torch.compile` without `backend=` take mlcc, from its first use on; costs microseconds."""
    global _wanted
    if _wanted:
        return
    _wanted = True
    registry = sys.modules.get(_REGISTRY)
    if registry is not None:
        _set_default(registry)
    else:
        sys.meta_path.insert(0, _Finder())


def _set_default(registry: ModuleType) -> None:
    try:
        registry.set_default_backend(NAME)
    except Exception as error:  # another torch: programs run as without mlcc
        logging.getLogger("mlcc").warning("MLCC_AUTO changes nothing under this torch: %r", error)


class _Finder(MetaPathFinder):
    """Finds one module, as those do that stand behind it, and leaves."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _REGISTRY:
            return None
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    """A module's loader, and a call afterwards."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        _set_default(module)
