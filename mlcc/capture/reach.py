"""Which modules and tensors a callable holds: in closures of libraries, partials, bound methods and attributes.

Functions of user code hold nothing here: what they read is watched while they run.
"""

from __future__ import annotations

import functools
import types
from typing import Any

import torch

from mlcc._errors import Error
from mlcc.capture.guards import is_plain

_DEEPEST = 6
_NOTHING = (type, types.ModuleType, types.BuiltinFunctionType, types.CodeType, torch.dtype)


class Reached:
    """What `add` came across, in order."""

    def __init__(self, is_user_code: Any) -> None:
        self.modules: list[torch.nn.Module] = []
        self.tensors: list[torch.Tensor] = []
        self.objects: list[Any] = []  # whose methods are called, but modules
        self.is_user_code = is_user_code
        self._seen: dict[int, Any] = {}

    def add(self, value: Any, depth: int = 0) -> Reached:
        """What the value holds, and itself."""
        if id(value) in self._seen or depth > _DEEPEST or _is_simple(value):
            return self
        self._seen[id(value)] = value
        if isinstance(value, torch.nn.Module):
            self.modules.append(value)
        elif isinstance(value, torch.Tensor):
            self.tensors.append(value)
        else:
            for part in self._parts(value):
                self.add(part, depth + 1)
        return self

    def _parts(self, value: Any) -> list[Any]:
        if isinstance(value, list | tuple | set):
            return list(value)
        if isinstance(value, dict):
            return list(value.values())
        if isinstance(value, functools.partial):
            return [value.func, *value.args, *value.keywords.values()]
        if isinstance(value, types.MethodType):
            owner = value.__self__
            if not isinstance(owner, torch.nn.Module | type):
                self.objects.append(owner)
            return [owner, value.__func__]
        if isinstance(value, types.FunctionType):
            if self.is_user_code(value.__code__.co_filename):
                return []
            cells = [contents(cell) for cell in value.__closure__ or ()]
            return [*cells, getattr(value, "__wrapped__", None)]
        if callable(value) and not hasattr(value, "__wrapped__"):
            self.objects.append(value)
        return list(getattr(value, "__dict__", {}).values())


def _is_simple(value: Any) -> bool:
    is_op = type(value).__module__.startswith(("torch._ops", "torch._library"))
    return is_op or isinstance(value, _NOTHING) or is_plain(value)


def contents(cell: types.CellType, empty: Any = None) -> Any:
    """What a closure cell holds; `empty` where it holds nothing."""
    try:
        return cell.cell_contents
    except ValueError:
        return empty


def reason_not_to_hold(function: Any, is_user_code: Any) -> str:
    """Why a function that is an argument may compute something else in a later call, or ''.

    What user code reads while it runs is seen by the trace; not what a library's function holds, or a method's object.
    """
    owner = getattr(function, "__self__", None)
    if owner is not None and not isinstance(owner, types.ModuleType | type):
        return f"is a method of a {type(owner).__name__}"
    if not isinstance(function, types.FunctionType):
        return ""
    reached = Reached(is_user_code).add(function)
    for value in vars(function).values():
        reached.add(value)
        if not is_plain(value) and not isinstance(value, _FUNCTIONS):
            return "has an attribute that is no plain value"
    if reached.tensors or reached.modules or reached.objects:
        return "holds a tensor, a module or another object"
    return ""


_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, type)


def refuse_objects(reached: Reached) -> None:
    """Error for methods of objects that hold tensors or modules: nothing would notice that they changed."""
    own = Reached(reached.is_user_code)
    for owner in reached.objects:
        own.add(getattr(owner, "__dict__", {}))
    if own.tensors or own.modules:
        raise Error(refusal(reached.objects[0]))


def refusal(owner: Any) -> str:
    """Why a method of an object is no function to trace."""
    return (
        f"jit: attributes of a {type(owner).__name__} would be read as constants; "
        "jit an nn.Module, or a function that takes them as arguments"
    )
