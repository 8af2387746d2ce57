"""What a function reads beside its arguments: a trace would keep such a value for ever, so it is refused by name."""

from __future__ import annotations

import builtins
import dis
import inspect
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from mlcc._errors import Error

_MISSING = object()


def check(function: Callable[..., Any], name: str) -> None:
    """Raise mlcc.Error if `function`, or a plain function that it calls by name, reads a tensor, a module or a plain
    value from a closure cell or a global."""
    _check(function, name, set())


def _check(function: Any, name: str, seen: set[int]) -> None:
    if isinstance(function, MethodType):
        function = function.__func__
    if not isinstance(function, FunctionType) or id(function) in seen or _is_library(function):
        return
    seen.add(id(function))
    for kind, variable in _reads(function.__code__):
        value = _value_of(function, kind, variable)
        if value is _MISSING or _is_code(value):
            if isinstance(value, FunctionType):
                _check(value, name, seen)
            continue
        what = "tensor" if isinstance(value, torch.Tensor) else type(value).__name__
        where = "a global" if kind == "global" else "a closure"
        raise Error(f"{name}: reads {variable!r} ({what}) from {where}; pass it as an argument")


def _is_library(function: FunctionType) -> bool:
    return (function.__module__ or "").split(".")[0] in {
        "torch",
        "mlcc",
        "math",
        "functools",
        "einops",
    }


def _is_code(value: Any) -> bool:
    """Python modules, functions and classes are read freely."""
    return (
        isinstance(value, ModuleType | type)
        or inspect.isroutine(value)
        or isinstance(
            value, torch.dtype | torch.device | torch._ops.OpOverload | torch._ops.OpOverloadPacket
        )
    )


def _reads(code: CodeType) -> Iterator[tuple[str, str]]:
    for instruction in dis.get_instructions(code):
        if instruction.opname == "LOAD_GLOBAL":
            yield "global", str(instruction.argval)
        elif (
            instruction.opname in ("LOAD_DEREF", "LOAD_CLASSDEREF")
            and instruction.argval in code.co_freevars
        ):
            yield "closure", str(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from ((kind, name) for kind, name in _reads(constant) if kind == "global")


def _value_of(function: FunctionType, kind: str, variable: str) -> Any:
    if kind == "global":
        return function.__globals__.get(variable, getattr(builtins, variable, _MISSING))
    cell = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)).get(
        variable
    )
    try:
        return _MISSING if cell is None else cell.cell_contents
    except ValueError:  # not filled yet
        return _MISSING
