"""What a traced function reads from outside: globals and closure cells, found opcode by opcode while it runs.

Plain values are held: a trace with them is for calls that find equal ones. Nothing would notice a change of others.
"""

from __future__ import annotations

import builtins
import contextlib
import copy
import dis
import functools
import gc
import inspect
import os
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from mlcc._errors import Error, SideEffectError
from mlcc._jit_guards import Guard, always, is_plain, is_same_value

_PACKAGE_FOLDERS = {"site-packages", "dist-packages"}
_ASIDE = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType, type)


@functools.cache
def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    folders = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders |= {os.path.dirname(torch.__file__), os.path.dirname(__file__)}
    return tuple(os.path.realpath(folder) + os.sep for folder in folders)


@functools.cache
def is_user_code(filename: str) -> bool:
    """Whether a file is neither Python's, an installed package's, nor ours."""
    path = os.path.realpath(filename)
    # Packages may be installed outside of this environment: a user's, or those of the system beneath a venv.
    is_installed = not _PACKAGE_FOLDERS.isdisjoint(path.split(os.sep))
    return not (
        filename.startswith("<frozen") or is_installed or path.startswith(_library_folders())
    )


@functools.cache
def _accesses_of(code: types.CodeType) -> dict[int, tuple[str, str, bool]]:
    """Offset -> (kind, name, is a write) of the instructions that touch a global or a closure cell."""
    found = {}
    for instruction in dis.get_instructions(code):
        action, _, place = instruction.opname.partition("_")
        name, is_write = str(instruction.argval), action in ("STORE", "DELETE")
        if action not in ("LOAD", "STORE", "DELETE"):
            continue
        if place == "GLOBAL" or instruction.opname == "LOAD_NAME":
            found[instruction.offset] = ("global", name, is_write)
        elif place in ("DEREF", "CLASSDEREF") and name in code.co_freevars:
            found[instruction.offset] = ("closure variable", name, is_write)
    return found


class OutsideValues:
    """The plain values that a function read from globals and closure cells while it was watched.

    Python modules, functions and classes may be read too: they are not expected to change. A tensor, a module or
    another object is an Error. Cells of a function that was called inside are its own.
    """

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self._function = inspect.unwrap(getattr(function, "__func__", function))
        self._name = name
        self._running: set[types.CodeType] = set()
        self._globals: dict[tuple[int, str], tuple[dict[str, Any], str, Any]] = {}
        self._cells: dict[int, tuple[types.CellType, Any]] = {}
        # Lists and dicts among them, with a copy: the function may change them.
        self._containers: dict[int, tuple[Any, Any]] = {}

    @property
    def globals(self) -> list[tuple[dict[str, Any], tuple[str, ...], tuple[Any, ...]]]:
        """(the dict, names, values) of the globals."""
        return [(scope, (name,), (value,)) for scope, name, value in self._globals.values()]

    @property
    def cells(self) -> list[tuple[types.CellType, Any]]:
        """(cell, value) of the closure variables."""
        return list(self._cells.values())

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Inside, what user code reads is held or refused; SideEffectError for what it writes."""
        before = sys.gettrace()
        sys.settrace(self._on_call)
        try:
            yield
        finally:
            sys.settrace(before)
            changed = self._put_back()
        if changed:
            raise SideEffectError(f"it changes a {changed} that is no argument")

    def holds(self) -> Guard:
        """Whether a call would read equal values."""
        if not self._globals and not self._cells:
            return always
        named, cells = list(self._globals.values()), self.cells

        def guard(leaves: list[Any]) -> bool:
            del leaves
            return all(
                is_same_value(scope.get(name, _MISSING), value) for scope, name, value in named
            ) and all(is_same_value(_contents(cell), value) for cell, value in cells)

        return guard

    def _on_call(self, frame: types.FrameType, event: str, argument: Any) -> Any:
        del event, argument
        if not is_user_code(frame.f_code.co_filename) or _is_text_of_a_library(frame):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        self._running.add(frame.f_code)
        return self._on_opcode

    def _on_opcode(self, frame: types.FrameType, event: str, argument: Any) -> Any:
        del argument
        if event == "opcode":
            access = _accesses_of(frame.f_code).get(frame.f_lasti)
            if access is not None:
                self._note(frame, *access)
        return self._on_opcode

    def _note(self, frame: types.FrameType, kind: str, name: str, is_write: bool) -> None:
        scope: dict[str, Any] = frame.f_globals if kind == "global" else frame.f_locals
        value = scope.get(name, _MISSING)
        if kind != "global" and _is_inside(frame, name):
            return
        if is_write:
            raise SideEffectError(f"it changes the {kind} {name}")
        if value is _MISSING or value is getattr(builtins, name, _MISSING):
            return  # a builtin, or an error that Python raises itself
        if _is_aside(value):
            return
        if is_plain(value) and self._hold(frame, kind, name, value):
            return
        if kind != "global" and self._was_made_inside(frame.f_code):
            return
        place = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
        raise Error(
            f"jit of {self._name}: the {kind} {name} ({place}) is a {_describe(value)}; pass it as an argument, "
            "since jit would not notice if it changed"
        )

    def _hold(self, frame: types.FrameType, kind: str, name: str, value: Any) -> bool:
        """Whether the place of the value is known, so that later calls can look there."""
        kept = copy.deepcopy(value)
        if kind == "global":
            self._globals.setdefault((id(frame.f_globals), name), (frame.f_globals, name, kept))
        else:
            cells = self._cells_of(frame, name)
            for cell in cells:
                self._cells.setdefault(id(cell), (cell, kept))
            if not cells:
                return False
        if isinstance(value, list | dict):
            self._containers.setdefault(id(value), (value, kept))
        return True

    def _cells_of(self, frame: types.FrameType, name: str) -> list[types.CellType]:
        """The cells of functions that may be the one which runs in the frame."""
        code = frame.f_code
        functions = [self._function]
        if getattr(self._function, "__code__", None) is not code:
            functions = [
                one
                for one in gc.get_referrers(code)
                if isinstance(one, types.FunctionType) and one.__code__ is code
            ]
        cells = [(one.__closure__ or ())[code.co_freevars.index(name)] for one in functions]
        return [cell for cell in cells if _contents(cell) is frame.f_locals.get(name)]

    def _was_made_inside(self, code: types.CodeType) -> bool:
        """Whether a function that ran inside makes functions of this code."""
        return any(code in outer.co_consts for outer in self._running)

    def _put_back(self) -> str:
        """Lists and dicts as they were; what was changed, or ''."""
        changed = ""
        for container, before in self._containers.values():
            if is_same_value(container, before):
                continue
            changed = type(container).__name__
            container.clear()
            (container.extend if isinstance(container, list) else container.update)(before)
        return changed


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return _MISSING


def _is_text_of_a_library(frame: types.FrameType) -> bool:
    """Whether a library evaluates a text of its own, as sympy does where it parses an expression."""
    code, caller = frame.f_code, frame.f_back
    is_text = code.co_name == "<module>" and code.co_filename.startswith("<")
    return is_text and caller is not None and not is_user_code(caller.f_code.co_filename)


_MISSING = object()
_OURS = os.path.dirname(__file__) + os.sep


def _is_aside(value: Any) -> bool:
    """Whether it is not expected to change: a module, a function, a class, or a tuple of them."""
    if type(value) is tuple:
        return bool(value) and all(map(_is_aside, value))
    is_wrapper = callable(getattr(value, "__wrapped__", None))
    return isinstance(value, _ASIDE) or is_wrapper or _is_op(value)


def _is_op(value: Any) -> bool:
    """Dispatcher ops and their namespaces, and typing's special forms."""
    return type(value).__module__.startswith(
        ("torch._ops", "torch._library", "typing", "torch._VF")
    )


def _is_inside(frame: types.FrameType, name: str) -> bool:
    """Whether the cell belongs to a user function that is running: a local variable that an inner function reads."""
    outer = frame.f_back
    while outer is not None and not outer.f_code.co_filename.startswith(_OURS):
        if name in outer.f_code.co_cellvars and is_user_code(outer.f_code.co_filename):
            return outer.f_locals.get(name, _MISSING) is frame.f_locals.get(name, _MISSING)
        outer = outer.f_back
    return False


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return "tensor"
    if isinstance(value, torch.nn.Module):
        return "module"
    return type(value).__name__


def user_line(error: BaseException) -> str:
    """The innermost line of user code in an error's traceback ("model.py:31"), or ''."""
    place = ""
    traceback = error.__traceback__
    while traceback is not None:
        filename = traceback.tb_frame.f_code.co_filename
        if is_user_code(filename):
            place = f"{os.path.basename(filename)}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return place
