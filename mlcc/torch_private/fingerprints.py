"""Digests of Python values that are the same in each process.

They compare what a guard saw with what a later process finds.
Equal digests mean equal values; values that cannot be told by what they hold have none.
"""

from __future__ import annotations

import abc
import contextvars
import dis
import enum
import functools
import hashlib
import itertools
import sys
import types
import typing
from collections.abc import Callable
from typing import Any

import torch


class NoFingerprintError(Exception):
    """The value is told by its identity alone, which ends with the process."""


@functools.lru_cache(maxsize=4096)
def of_code(code: types.CodeType) -> str:
    """A digest of what a code object does: the same wherever it stands in a file, and in which."""
    constants = [
        of_code(one) if isinstance(one, types.CodeType) else _constant(one)
        for one in code.co_consts
    ]
    parts = (
        code.co_name,
        *(code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags),
        *(code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars),
        getattr(code, "co_exceptiontable", b""),
        constants,
    )
    return _digest(repr(parts).encode())


def _constant(value: Any) -> str:
    if isinstance(value, frozenset):  # whose order follows hashes that change with the process
        return f"frozenset{sorted(map(repr, value))}"
    if isinstance(value, tuple):
        return f"({','.join(map(_constant, value))})"
    return f"{type(value).__name__} {value!r}"


def of_value(value: Any) -> str:
    """A digest of a value and all that it holds. NoFingerprintError where something in it is told by identity alone."""
    stream = hashlib.sha256()
    try:
        _feed(value, stream.update, set())
    except NoFingerprintError:
        raise
    except Exception as error:  # code of the value's class
        raise NoFingerprintError(f"{type(value).__name__}: {error}") from error
    return stream.hexdigest()


def of_identity(value: Any) -> str:
    """A digest of something that programs compare by identity and name for good: functions, classes, modules, members
    of enums, ops and what Python has once."""
    if value is None or isinstance(value, bool | enum.Enum) or _named(value) is not None:
        return of_value(value)
    raise NoFingerprintError(f"an object of class {type(value).__name__}")


def is_order_stable(value: Any) -> bool:
    """False for sets whose order follows hashes that change with the process."""
    return not isinstance(value, set | frozenset) or (
        len(value) < 2 or all(isinstance(one, int | float) for one in value)
    )


def takes_order_of_hashes(code: types.CodeType) -> bool:
    """Whether code uses a constant set otherwise than to look something up in it."""
    steps = list(dis.get_instructions(code))
    return any(
        step.opname == "LOAD_CONST"
        and not is_order_stable(step.argval)
        and following.opname != "CONTAINS_OP"
        for step, following in itertools.pairwise(steps)
    )


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


_PLAIN = frozenset(
    (
        *(type(None), bool, int, float, complex, str, bytes),
        *(torch.dtype, torch.device, torch.layout, torch.memory_format),
    )
)
_OF_ENUMS = ("_name_", "__objclass__", "_sort_order_")
_IN_PLACE = (torch.Tensor, torch.nn.Module, torch.SymInt, torch.SymFloat, torch.SymBool)


def _feed(value: Any, write: Callable[[bytes], None], under_way: set[int]) -> None:
    """Write all that makes up the value, in an order that no process changes."""
    kind = type(value)
    if kind in _PLAIN:
        write(f"{kind.__name__} {value!r};".encode())
        return
    if isinstance(value, _IN_PLACE):
        raise NoFingerprintError(f"a {kind.__name__}")
    if isinstance(value, enum.Enum):
        write(f"member {value.name} of {_named(kind)}:".encode())
        # Dynamo takes what a member holds for as constant as its name.
        held = {name: one for name, one in vars(value).items() if name not in _OF_ENUMS}
        _feed(held, write, under_way)
        return
    if (named := _named(value)) is not None:
        write(f"{named};".encode())
        return
    if id(value) in under_way:
        raise NoFingerprintError(f"a {kind.__name__} that holds itself")
    under_way.add(id(value))
    write(f"{_named(kind)} of ".encode())
    parts = _parts(value)
    write(f"{len(parts)}:".encode())
    for part in parts:
        _feed(part, write, under_way)
    under_way.discard(id(value))


def _parts(value: Any) -> list[Any]:
    kind = type(value)
    if kind in (list, tuple):
        return list(value)
    if kind is dict:
        return list(value.items())
    if kind is contextvars.ContextVar:  # as it stands: what was traced found that
        return [value.name, value.get(None)]
    if kind in (set, frozenset):  # whose order follows hashes that change with the process
        return sorted(map(of_value, value))
    made = value.__reduce_ex__(4)
    if isinstance(made, str):
        return [made]
    function, arguments, *rest = made
    return [function, arguments, *(list(one) if hasattr(one, "__next__") else one for one in rest)]


_PLACE = tuple[str, ...]


def _named(value: Any) -> _PLACE | None:
    """What a thing is called that exists once in a process, and what it does where that is code; None for others."""
    for kind, name in _NAMES:
        if isinstance(value, kind):
            return name(value)
    return None


def _function(value: types.FunctionType) -> _PLACE:
    return "function", str(value.__module__), value.__qualname__, of_code(value.__code__)


def _method(value: types.MethodType) -> _PLACE:
    owner = value.__self__
    if not isinstance(owner, type):
        raise NoFingerprintError("a bound method")
    function = value.__func__
    if not isinstance(function, types.FunctionType):
        raise NoFingerprintError("a bound method")
    return "method", *_class(owner), *_function(function)


def _class(value: type) -> _PLACE:
    return "class", value.__module__, value.__qualname__, _behavior(value)


@functools.lru_cache(maxsize=4096)
def _behavior(value: type) -> str:
    """A digest of what no guard on a class looks at: its bases, the code of its methods and what else counts as an
    instance of it."""
    if _answers_for_itself(type(value), "__instancecheck__", "__subclasscheck__") or any(
        _answers_for_itself(base, "__subclasshook__") for base in value.__mro__
    ):
        raise NoFingerprintError(f"class {value.__qualname__} tells by code what its instances are")
    parts = [(base.__module__, base.__qualname__, _methods(base)) for base in value.__mro__]
    return _digest(repr((parts, _registered(value))).encode())


def is_assumed_constant(value: Any) -> bool:
    """Whether it is a function whose result is part of a trace."""
    return (
        isinstance(value, types.FunctionType)
        and getattr(value, "_dynamo_marked_constant", False) is True
        and not value.__module__.startswith("torch.")
    )


def forget_classes() -> None:
    """Methods may have been replaced since classes were looked at."""
    _behavior.cache_clear()
    _methods.cache_clear()


_ASK_CLASSES = {*sys.stdlib_module_names, "torch"}


def _answers_for_itself(owner: type, *names: str) -> bool:
    """Whether code that Dynamo runs and does not trace says what an instance is; that of Python and torch asks
    nothing but classes."""
    for name in names:
        definer = next(base for base in (*owner.__mro__, type) if name in vars(base))
        if definer.__module__.partition(".")[0] not in _ASK_CLASSES:
            return True
    return False


@functools.lru_cache(maxsize=4096)
def _methods(owner: type) -> str:
    if owner.__module__ in ("builtins", "torch._C"):
        return ""
    parts = []
    for name, held in vars(owner).items():
        if isinstance(held, property):
            inner = [held.fget, held.fset]
        else:
            inner = [getattr(held, "__func__", held)]
        functions = [one for one in inner if isinstance(one, types.FunctionType)]
        if any(map(is_assumed_constant, functions)):
            raise NoFingerprintError(f"a result that is assumed constant: {name}")
        codes = [_of_method(one.__code__) for one in functions]
        if codes or callable(held) or hasattr(type(held), "__get__"):
            parts.append((name, type(held).__qualname__, codes))
    return _digest(repr(sorted(parts)).encode())


_of_methods: dict[int, tuple[types.CodeType, str]] = {}


def _of_method(code: types.CodeType) -> str:
    """`of_code`, found by identity: to hash code takes longer than all else about a class."""
    known = _of_methods.get(id(code))
    if known is None:  # what is kept here keeps its id
        known = _of_methods[id(code)] = code, of_code(code)
    return known[1]


def _registered(value: type) -> list[str]:
    """Classes that were registered as subclasses of an abstract one."""
    if not isinstance(value, abc.ABCMeta):
        return []
    registry = abc._get_dump(value)[0]  # type: ignore[attr-defined]
    found = (reference() for reference in registry)
    return sorted(f"{one.__module__}.{one.__qualname__}" for one in found if one is not None)


def _module(value: types.ModuleType) -> _PLACE:
    if isinstance(value, torch._ops._OpNamespace):
        return "ops", value.__name__
    if sys.modules.get(value.__name__) is not value:
        raise NoFingerprintError(f"module {value.__name__}, which was not imported by its name")
    return "module", value.__name__


def _builtin(value: types.BuiltinFunctionType) -> _PLACE:
    owner = value.__self__
    module = sys.modules.get(str(value.__module__))
    if isinstance(owner, types.ModuleType | None) or (
        getattr(module, value.__name__, None)
        is value  # made by pybind11, whose functions have owners
    ):
        return "builtin", str(value.__module__), value.__qualname__
    if isinstance(owner, type):
        return "builtin", *_class(owner), value.__name__
    name = f"{type(owner).__module__}.{type(owner).__qualname__}"
    if name.startswith("torch."):  # torch's table of functions, an object of a class of its own
        return "builtin", name, value.__name__
    raise NoFingerprintError("a bound method")


def _descriptor(value: Any) -> _PLACE:
    return type(value).__name__, *_class(value.__objclass__), value.__name__


def _overload(value: torch._ops.OpOverload) -> _PLACE:
    return "op", str(value)


def _packet(value: torch._ops.OpOverloadPacket) -> _PLACE:
    return "ops", str(value)


def _higher_order(value: torch._ops.HigherOrderOperator) -> _PLACE:
    return "higher order op", value.name()


_NAMES: tuple[tuple[Any, Callable[[Any], _PLACE]], ...] = (
    (types.FunctionType, _function),
    (types.MethodType, _method),
    (type, _class),
    (types.ModuleType, _module),
    (types.BuiltinFunctionType, _builtin),
    (types.CodeType, lambda code: ("code", of_code(code))),
    (types.MethodDescriptorType, _descriptor),
    (types.WrapperDescriptorType, _descriptor),
    (types.GetSetDescriptorType, _descriptor),
    (types.MemberDescriptorType, _descriptor),
    (typing._SpecialForm, lambda form: ("form", repr(form))),
    (torch._ops.OpOverload, _overload),
    (torch._ops.OpOverloadPacket, _packet),
    (torch._ops.HigherOrderOperator, _higher_order),
)
