"""What a traced function reads from outside: globals and closure cells, found opcode by opcode while it runs."""

from __future__ import annotations

import builtins
import contextlib
import dis
import functools
import os
import sys
import sysconfig
import types
from collections.abc import Iterator
from typing import Any

import torch

from mlcc._errors import Error

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
def _reads_of(code: types.CodeType) -> dict[int, tuple[str, str]]:
    """Offset -> (kind, name) of the instructions that read a global or a closure cell."""
    found = {}
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            found[instruction.offset] = ("global", str(instruction.argval))
        elif (
            instruction.opname in ("LOAD_DEREF", "LOAD_CLASSDEREF")
            and instruction.argval in code.co_freevars
        ):
            found[instruction.offset] = ("closure variable", str(instruction.argval))
    return found


@contextlib.contextmanager
def refuse_outside_values(function: str) -> Iterator[None]:
    """Inside, user code that reads a tensor, a module or a plain value from a global or a closure cell raises Error.

    Python modules, functions and classes may be read: they are not expected to change. Cells of a function that was
    called inside are its own.
    """
    before = sys.gettrace()
    running: set[int] = set()

    def on_call(frame: types.FrameType, event: str, argument: Any) -> Any:
        del event, argument
        if not is_user_code(frame.f_code.co_filename) or _is_text_of_a_library(frame):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        running.add(id(frame.f_code))
        return on_opcode

    def on_opcode(frame: types.FrameType, event: str, argument: Any) -> Any:
        del argument
        if event == "opcode":
            read = _reads_of(frame.f_code).get(frame.f_lasti)
            if read is not None:
                _check(function, frame, *read)
        return on_opcode

    sys.settrace(on_call)
    try:
        yield
    finally:
        sys.settrace(before)


def _is_text_of_a_library(frame: types.FrameType) -> bool:
    """Whether a library evaluates a text of its own, as sympy does where it parses an expression."""
    code, caller = frame.f_code, frame.f_back
    is_text = code.co_name == "<module>" and code.co_filename.startswith("<")
    return is_text and caller is not None and not is_user_code(caller.f_code.co_filename)


def _check(function: str, frame: types.FrameType, kind: str, name: str) -> None:
    if kind == "global":
        if name not in frame.f_globals:
            return  # a builtin, or an error that Python raises itself
        value = frame.f_globals[name]
        if value is getattr(builtins, name, _MISSING):
            return
    else:
        value = frame.f_locals.get(name, _MISSING)
        if value is _MISSING or _is_inside(frame, name):
            return
    if isinstance(value, _ASIDE) or callable(getattr(value, "__wrapped__", None)) or _is_op(value):
        return
    place = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
    raise Error(
        f"jit of {function}: the {kind} {name} ({place}) is a {_describe(value)}; pass it as an argument, "
        "since jit would not notice if it changed"
    )


_MISSING = object()
_OURS = os.path.dirname(__file__) + os.sep


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
            return name in outer.f_locals and outer.f_locals[name] is frame.f_locals.get(name)
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
