"""The code that a trace of `mlcc.jit` ran, and the globals that it names, so that another process can see whether they
are the same.

User code is watched while it runs; packages are not. So of each file whose code ran there is a digest of all that
stands in it, and of each global that such code names a digest of its value.
"""

from __future__ import annotations

import builtins
import dis
import functools
import importlib.util
import os
import sys
import time
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mlcc.capture.changes import MISSING
from mlcc.capture.code_owners import is_user_code, is_user_module
from mlcc.capture.guards import is_plain
from mlcc.capture.held_values import NowhereError, module_of
from mlcc.torch_private import aot_key, fingerprints, traced_code

# What answers otherwise in another process.
_OF_PROCESS = (os.environ, os.getenv, builtins.hash, builtins.id)

_TOLD = {*sys.stdlib_module_names, "torch"}  # whose modules are told by versions


@dataclass(frozen=True)
class CodeThatRan:
    """Digests of files by their paths, and of globals: (module, name and attributes) -> digest."""

    files: dict[str, str]
    names: dict[tuple[str, ...], str]
    words: frozenset[str]  # all names and texts in the code, by which it may read attributes

    def change(self) -> str:
        """What this process has that is another, or ''."""
        for path, digest in self.files.items():
            if traced_code.digest_of_file(path) != digest:
                return f"{path} changed"
        for chain, digest in self.names.items():
            if _digest_of_name(chain) != digest:
                return f"{'.'.join(chain)} changed"
        return ""


def code_that_ran(ran: Mapping[types.CodeType, dict[str, Any]]) -> CodeThatRan:
    """The record of these codes, with their globals; NowhereError where another process could not have it."""
    files = {path: _file_as_imported(path, ran) for path in {code.co_filename for code in ran}}
    names: dict[tuple[str, ...], str] = {}
    for code, scope in ran.items():
        if fingerprints.takes_order_of_hashes(code):
            raise NowhereError(f"the order of a set in {code.co_name}")
        module = module_of(scope)
        chains = [(module, *chain) for chain in _chains(code)]
        for place in (*chains, *_imports(code, str(scope.get("__package__") or ""))):
            if place not in names and (digest := _digest_at(place, code)):
                names[place] = digest
    words = (word for code in ran for word in (*code.co_names, *code.co_consts))
    return CodeThatRan(files, names, frozenset(word for word in words if isinstance(word, str)))


def _digest_at(place: tuple[str, ...], code: types.CodeType) -> str:
    """The digest of what stands there; "" where a value of user code has none, which the trace has watched."""
    try:
        return _digest_of_name(place)
    except fingerprints.NoFingerprintError as error:
        if is_user_code(code.co_filename):
            return ""
        raise NowhereError(f"{'.'.join(place)} in {code.co_filename}: {error}") from error


@functools.cache
def _chains(code: types.CodeType) -> frozenset[tuple[str, ...]]:
    """The globals that code names, each with the attributes that are read of it at once."""
    chains: set[tuple[str, ...]] = set()
    chain: tuple[str, ...] = ()
    for step in dis.get_instructions(code):
        if step.opname in ("CACHE", "EXTENDED_ARG", "PUSH_NULL"):
            continue
        if step.opname in ("LOAD_ATTR", "LOAD_METHOD") and chain:
            chain = (*chain, str(step.argval))
            continue
        if chain:
            chains.add(chain)
        chain = (str(step.argval),) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME") else ()
    return frozenset(chains)


@functools.cache
def _imports(code: types.CodeType, package: str) -> frozenset[tuple[str, ...]]:
    """What code imports when it runs: (module, name), or (module,) where it takes a module as a whole."""
    found: set[tuple[str, ...]] = set()
    steps = [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]
    module = ""
    for place, step in enumerate(steps):
        if step.opname == "IMPORT_NAME":
            level = steps[place - 2].argval
            module = importlib.util.resolve_name("." * level + str(step.argval), package)
            if steps[place + 1].opname != "IMPORT_FROM":
                found.add((module,))
        elif step.opname == "IMPORT_FROM":
            found.add((module, str(step.argval)))
    return frozenset(found)


def _digest_of_name(place: tuple[str, ...]) -> str:
    """Of a module's global, and of what modules along the attributes have; classes answer for theirs.

    Of a module that is passed on its file counts, and of one of the user's all plain values: `getattr` may ask for any.
    A package's class whose instances its code tells is what its file says.
    """
    module, *names = place
    value: Any = sys.modules.get(module, MISSING)
    for name in names:
        if not isinstance(value, types.ModuleType):
            break
        value = getattr(value, name, getattr(builtins, name, MISSING))
    if value is MISSING:
        return "missing"
    if any(value is one for one in _OF_PROCESS):
        raise NowhereError(f"{'.'.join(place)} is another in each process")
    if (op := aot_key.op_traced_through(value)) is not None:
        raise NowhereError(f"the Python code of {op}")
    if isinstance(value, types.ModuleType) and value.__name__.partition(".")[0] not in _TOLD:
        value = (
            value,
            traced_code.digest_of_file(getattr(value, "__file__", None) or ""),
            _plain_values(value),
        )
    try:
        return fingerprints.of_value(value)
    except fingerprints.NoFingerprintError:
        if not isinstance(value, type) or is_user_module(value.__module__):
            raise
        file = getattr(sys.modules.get(value.__module__), "__file__", None) or ""
        return f"{value.__module__}.{value.__qualname__} in {traced_code.digest_of_file(file)}"


def _plain_values(module: types.ModuleType) -> dict[str, Any]:
    """Of a module of the user's."""
    names = vars(module) if is_user_module(module.__name__) else {}
    return {name: names[name] for name in names if name[:2] != "__" and is_plain(names[name])}


def _file_as_imported(path: str, ran: Mapping[types.CodeType, Any]) -> str:
    """The digest of a file that still holds the code which ran."""
    digest = traced_code.digest_of_file(path)
    if not digest:
        raise NowhereError(f"code that no file holds: {path}")
    if os.stat(path).st_mtime >= _process_began():
        codes = [code for code in ran if code.co_filename == path]
        if not all(traced_code.stands_in(path, fingerprints.of_code(code)) for code in codes):
            raise NowhereError(f"code that its file does not hold any more: {path}")
    return digest


@functools.cache
def _process_began() -> float:
    """Not later than the process, in seconds since the epoch; files changed later may not be as they were imported."""
    try:
        with open("/proc/self/stat") as stream:
            ticks = int(stream.read().rpartition(")")[2].split()[19])
        with open("/proc/uptime") as stream:
            uptime = float(stream.read().split()[0])
    except (OSError, ValueError, IndexError):
        return 0.0
    return time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK") - 2.0
