"""Functions whose code is part of a trace, and where another process finds them to see that they are the same."""

from __future__ import annotations

import functools
import gc
import hashlib
import inspect
import sys
import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mlcc.torch_private import fingerprints

_MOST_WRAPPERS = 100  # around one function: objects that answer for any name have no end of them


class NowhereError(Exception):
    """No module holds the code: another process could not tell whether it is the same."""


@dataclass(frozen=True)
class TracedCode:
    """A function whose code is part of a trace, by where a later process finds it."""

    module: str
    qualname: str
    fingerprint: str
    file: str  # a digest of the file that has it, for code that is not found by name


def traced(codes: Sequence[types.CodeType]) -> list[TracedCode]:
    """Where another process finds the functions of a trace. NowhereError where it finds one nowhere."""
    places = {code: place for code in codes if (place := _module_and_name(code)) is not None}
    homeless = [code for code, (module, _) in places.items() if not module]
    for function in gc.get_referrers(*homeless) if homeless else ():
        if isinstance(function, types.FunctionType) and function.__code__ in places:
            places[function.__code__] = function.__module__ or "", function.__qualname__
    found = []
    for code, (module, qualname) in places.items():
        if fingerprints.takes_order_of_hashes(code):
            raise NowhereError(f"the order of a set in {qualname}")
        if module == "torch" or module.startswith("torch."):
            continue
        fingerprint = fingerprints.of_code(code)
        one = TracedCode(module, qualname, fingerprint, "")
        if not is_current(one):
            if not stands_in(code.co_filename, fingerprint):
                raise NowhereError(f"code that no module holds: {qualname}")
            one = TracedCode(module, qualname, fingerprint, _file(code.co_filename))
        found.append(one)
    return found


def _module_and_name(code: types.CodeType) -> tuple[str, str] | None:
    """None for code inside of Python; no module for code made from text, as methods of dataclasses are."""
    if code.co_filename.startswith("<frozen "):
        return None
    module = inspect.getmodule(code)
    return module.__name__ if module is not None else "", _qualname(code)


def _qualname(code: types.CodeType) -> str:
    return getattr(code, "co_qualname", code.co_name)  # Python 3.10 has no qualified names


@functools.cache
def digest_of_file(path: str) -> str:
    """A digest of a file as this process has first seen it; empty where there is none."""
    try:
        with open(path, "rb") as stream:
            return hashlib.sha256(stream.read()).hexdigest()
    except OSError:
        return ""


def _file(path: str) -> str:
    digest = digest_of_file(path)
    return f"{path}:{digest}" if digest else ""


def stands_in(path: str, fingerprint: str) -> bool:
    """Whether a file still holds the code: it may have been edited since it was imported."""
    try:
        with open(path, "rb") as stream:
            return fingerprint in _fingerprints_in(
                compile(stream.read(), path, "exec", dont_inherit=True)
            )
    except (OSError, SyntaxError, ValueError):
        return False


def is_current(traced: TracedCode) -> bool:
    """Whether the function is in this process what it was when it was traced."""
    if traced.file:
        return _file(traced.file.rpartition(":")[0]) == traced.file
    found: Any = sys.modules.get(traced.module)
    for name in traced.qualname.split("."):
        if name == "<locals>":
            break
        found = inspect.getattr_static(found, name, None)
        if isinstance(found, staticmethod | classmethod):
            found = found.__func__
        elif isinstance(found, property | types.DynamicClassAttribute):
            found = found.fget
    for _ in range(_MOST_WRAPPERS):
        code = getattr(found, "__code__", None)
        if isinstance(code, types.CodeType) and traced.fingerprint in _fingerprints_in(code):
            return True
        found = getattr(found, "__wrapped__", None)
        if found is None:
            break
    return False


@functools.cache
def _fingerprints_in(code: types.CodeType) -> frozenset[str]:
    """Of a code object and those that it defines."""
    inner = [_fingerprints_in(one) for one in code.co_consts if isinstance(one, types.CodeType)]
    return frozenset({fingerprints.of_code(code)}).union(*inner)
