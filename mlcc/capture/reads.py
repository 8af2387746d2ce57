"""What a traced function reads from outside: globals and closure cells, found opcode by opcode while it runs.

Plain values are held: a trace with them is for calls that find equal ones. So are functions and classes, and the plain
values among the default arguments and attributes of functions, classes and Python modules. Nothing would notice a
change of others.
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
import random
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from mlcc._errors import Error, SideEffectError
from mlcc.capture.changes import MISSING
from mlcc.capture.code_owners import OURS, is_user_code, who_is
from mlcc.capture.guards import Names, is_plain, is_same_value
from mlcc.capture.held_values import (
    HeldValues,
    attributes_of,
    copies_of,
    defaults_of,
    values_of,
)
from mlcc.capture.reach import Reached, contents
from mlcc.capture.trace_symbols import TypeQuestions
from mlcc.torch_private import trace_state

_NOT_RECORDED = ("torch", "python")  # whose code is told by versions

_ASIDE = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType, type)


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


@functools.cache
def _attributes_read(code: types.CodeType) -> dict[int, str]:
    """Offset of an instruction -> the attribute that the next one reads of its result."""
    found, offset = {}, -1
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and offset >= 0:
            found[offset] = str(instruction.argval)
        if instruction.opname not in ("CACHE", "EXTENDED_ARG"):
            offset = instruction.offset
    return found


class OutsideValues:
    """The plain values, functions and classes that a function read from outside while it was watched.

    A tensor, a module or another object is an Error. Cells of a function that was called inside are its own.
    """

    def __init__(self, function: Callable[..., Any], name: str, questions: TypeQuestions) -> None:
        self._function = inspect.unwrap(getattr(function, "__func__", function))
        self._name = name
        self._types = questions
        self._running: set[types.CodeType] = set()
        self.held = HeldValues()
        self.ran: dict[types.CodeType, dict[str, Any]] = {}  # code but torch's, and its globals
        # functools.cache and the like: how many results they had to compute before.
        self._caches: dict[int, tuple[Any, int]] = {}
        # Lists and dicts among them, with a copy: the function may change them.
        self._containers: dict[int, tuple[Any, Any]] = {}

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Inside, what user code reads is held or refused; SideEffectError for what it writes."""
        self._note_function(self._function)
        before, generators = sys.gettrace(), _RandomState()
        sys.settrace(self._on_call)
        try:
            yield
        finally:
            sys.settrace(before)
            self._types.uncover()
            changed = self._put_back()
            draws = generators.put_back()
            fills = self._empty_caches()
        if changed:
            raise SideEffectError(f"it changes {changed}, which is no argument")
        if draws:
            raise SideEffectError(f"it draws from the generator of {draws}")
        if fills:
            raise SideEffectError(f"it fills the cache of {fills}")

    def note_argument(self, function: Any) -> None:
        """Hold what a function that is an argument has beside its code."""
        self._note_function(function)

    def _on_call(self, frame: types.FrameType, event: str, argument: Any) -> Any:
        del event, argument
        if frame.f_code in _STATE_OF_GENERATORS and _is_called_by_user(frame):
            raise SideEffectError(f"it calls {frame.f_code.co_name} of torch's generator")
        is_recorded = frame.f_code in self.ran or who_is(frame.f_code.co_filename) in _NOT_RECORDED
        if not is_recorded and not _is_imported(frame):
            self.ran[frame.f_code] = frame.f_globals
        is_users = is_user_code(frame.f_code.co_filename) and not _is_text_of_a_library(frame)
        if not is_users and not self._types.may_ask(frame.f_code):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        if not is_users:
            return self._types.follow
        self._running.add(frame.f_code)
        return self._on_opcode

    def _on_opcode(self, frame: types.FrameType, event: str, argument: Any) -> Any:
        del argument
        self._types.uncover()
        if event == "opcode":
            access = _accesses_of(frame.f_code).get(frame.f_lasti)
            if access is not None:
                self._note(frame, *access)
            self._types.on_opcode(frame)
        return self._on_opcode

    def _note(self, frame: types.FrameType, kind: str, name: str, is_write: bool) -> None:
        scope: dict[str, Any] = frame.f_globals if kind == "global" else frame.f_locals
        value = scope.get(name, MISSING)
        if kind != "global" and _is_inside(frame, name):
            return
        if is_write:
            raise SideEffectError(f"it changes the {kind} {name}")
        if value is MISSING or value is getattr(builtins, name, MISSING):
            return  # a builtin, or an error that Python raises itself
        if _is_aside(value):
            self._note_aside(frame, kind, name, value)
            return
        if is_plain(value) and self._hold(frame, kind, name, value):
            return
        if kind != "global" and self._was_made_inside(frame.f_code):
            return
        raise Error(self._refusal(f"the {kind} {name}", frame, value))

    def _note_aside(self, frame: types.FrameType, kind: str, name: str, value: Any) -> None:
        """A function, a class or a Python module stays what it is; so do plain values that are read of it."""
        is_module = isinstance(value, types.ModuleType)
        if kind == "global" and not is_module:
            self.held.hold_global(frame.f_globals, name, value)
        elif kind != "global" and getattr(self._function, "__code__", None) is frame.f_code:
            for cell in self._cells_of(frame, name):
                self.held.hold_cell(cell, name, value)
        self._note_function(value)
        if not is_module:
            self._refuse_state(frame, f"the {kind} {name}", value)
        attribute = _attributes_read(frame.f_code).get(frame.f_lasti)
        if attribute is None:
            return
        if isinstance(value, types.FunctionType):
            self._refuse_state(frame, f"{name}.{attribute}", vars(value).get(attribute))
        if not (is_module or isinstance(value, type)):
            return
        if not is_user_code(_file_of(value)):
            return
        for owner, scope in _scopes_of(value):
            if attribute not in scope:
                continue
            found = scope[attribute]
            if is_plain(found):
                self._hold_attribute(owner, scope, attribute, found)
            self._refuse_state(frame, f"{name}.{attribute}", found)
            if not is_plain(found) and _is_aside(found):
                self.held.hold_attribute(owner, scope, attribute, found)
                self._note_function(found)
            return

    def _refuse_state(self, frame: types.FrameType, what: str, value: Any) -> None:
        """Error if the value is, or holds, a tensor or a module."""
        reached = Reached(is_user_code).add(value)
        for one in (*reached.modules, *reached.tensors):
            if not isinstance(one, torch.nn.Module) or _has_state(one):
                raise Error(self._refusal(what, frame, value))

    def _refusal(self, what: str, frame: types.FrameType, value: Any) -> str:
        place = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
        return (
            f"jit of {self._name}: {what} ({place}) is a {_describe(value)}; pass it as an argument, "
            "since jit would not notice if it changed"
        )

    def _note_function(self, value: Any) -> None:
        """Hold the plain values among a function's default arguments and attributes."""
        if isinstance(value, functools._lru_cache_wrapper):
            self._caches.setdefault(id(value), (value, value.cache_info().misses))
        function = inspect.unwrap(getattr(value, "__func__", value))
        if isinstance(function, types.FunctionType) and is_user_code(function.__code__.co_filename):
            defaults = defaults_of(function)
            if any(isinstance(one, torch.Tensor) for one in values_of(defaults)):
                raise SideEffectError(f"a default argument of {function.__name__} is a tensor")
            for one in values_of(defaults):
                if isinstance(one, torch.nn.Module) and _has_state(one):
                    raise Error(
                        f"jit of {self._name}: a default argument of {function.__name__} is a module; "
                        "pass it as an argument, since jit would not notice if it changed"
                    )
            kept = copies_of(defaults)
            if kept != ((), {}):
                self.held.hold_defaults(function, kept)
            for now, then in zip(values_of(defaults), values_of(kept), strict=True):
                self._hold_container(now, then)
            self._hold_attributes(function)
        if callable(getattr(value, "__wrapped__", None)):
            self._hold_attributes(value)

    def _hold_attributes(self, owner: Any) -> None:
        for name, value in vars(owner).items():
            if not name.startswith("_") and is_plain(value):
                self._hold_attribute(owner, vars(owner), name, value)

    def _hold_attribute(self, owner: Any, scope: dict[str, Any], name: str, value: Any) -> None:
        kept = copy.deepcopy(value)
        self.held.hold_attribute(owner, scope, name, kept)
        self._hold_container(value, kept)

    def _hold(self, frame: types.FrameType, kind: str, name: str, value: Any) -> bool:
        """Whether the place of the value is known, so that later calls can look there."""
        kept = copy.deepcopy(value)
        if kind == "global":
            self.held.hold_global(frame.f_globals, name, kept)
        else:
            cells = self._cells_of(frame, name)
            for cell in cells:
                self.held.hold_cell(cell, name, kept)
            if not cells:
                return False
        self._hold_container(value, kept)
        return True

    def _hold_container(self, value: Any, kept: Any) -> None:
        if isinstance(value, list | dict):
            self._containers.setdefault(id(value), (value, kept))

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
        return [cell for cell in cells if contents(cell, MISSING) is frame.f_locals.get(name)]

    def _was_made_inside(self, code: types.CodeType) -> bool:
        """Whether a function that ran inside makes functions of this code."""
        return any(code in outer.co_consts for outer in self._running)

    def _put_back(self) -> str:
        """Lists, dicts and attributes as they were; what was changed, or ''."""
        changed = ""
        for container, before in self._containers.values():
            if is_same_value(container, before):
                continue
            changed = f"a {type(container).__name__}"
            container.clear()
            (container.extend if isinstance(container, list) else container.update)(before)
        return self.held.put_back() or changed

    def _empty_caches(self) -> str:
        """Caches that hold what the trace computed, which is of no use outside, are emptied; the name of one, or ''."""
        filled = ""
        for cached, misses in self._caches.values():
            if cached.cache_info().misses != misses:
                filled = cached.__name__
                cached.cache_clear()
        return filled


# What a trace does not record, by the function that torch's modes see.
_UNRECORDED = {
    torch.Tensor.grad.__get__: "grad",
    torch.Tensor.is_leaf.__get__: "is_leaf",
    torch.Tensor.storage_offset: "storage_offset",
}


_TO_NUMPY = (torch.Tensor.numpy, torch.Tensor.__array__)


class TensorReads(TorchFunctionMode):
    """While it is active, SideEffectError for what a function reads of the given tensors that its trace would not see.

    And for results that eager refuses to write, or would resize, where the trace of `out=` does not.
    """

    def __init__(self, tensors: list[Any]) -> None:
        super().__init__()
        self._tensors = [one for one in tensors if isinstance(one, torch.Tensor)]

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """The function's result."""
        kwargs = kwargs or {}
        name = _UNRECORDED.get(function)
        if name and any(args[0] is one for one in self._tensors):
            raise SideEffectError(f"it reads {name} of an argument")
        if function in _TO_NUMPY and not trace_state.is_real_tensor(args[0]):
            raise SideEffectError("it makes an array of NumPy's of a tensor")
        written = kwargs.get("out", args[0] if args and _writes(function, kwargs) else None)
        if trace_state.is_real_tensor(written):  # each run of the trace would write it
            raise SideEffectError("it writes to a tensor that is no argument, parameter or buffer")
        out = kwargs.get("out")
        if isinstance(out, torch.Tensor):
            result = function(*args, **{**kwargs, "out": None})
            if not torch.can_cast(result.dtype, out.dtype) or result.shape != out.shape:
                raise SideEffectError("it writes a result to an `out` of another dtype or shape")
        return function(*args, **kwargs)


def _writes(function: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a function that torch's modes see writes into its first argument, by its name."""
    name = str(getattr(function, "__name__", ""))
    is_method = name.endswith("_") and not name.startswith("__")
    return is_method or name in _WRITING or kwargs.get("inplace") is True


_OPERATORS = ("add", "and", "div", "floordiv", "lshift", "mod", "mul", "or", "pow", "rshift", "sub")
_WRITING = {
    *("__setitem__", "__set__", "__itruediv__", "__ixor__"),
    *(f"__i{operator}__" for operator in _OPERATORS),
}


class ParameterReads(TorchFunctionMode):
    """While it is active, Error for parameters, and tensors that require gradients, that are none of the trace's."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """The function's result."""
        kwargs = kwargs or {}
        for one in (*args, *kwargs.values()):
            for part in one if isinstance(one, list | tuple) else (one,):
                if trace_state.is_real_parameter(part):
                    self._refuse(part)
        return function(*args, **kwargs)

    def _refuse(self, tensor: torch.Tensor) -> None:
        place = _line_of_user()
        raise Error(
            f"jit of {self._name}: {f'{place} reads ' if place else 'it reads '}a parameter, or a tensor that "
            f"requires gradients, of shape {tuple(tensor.shape)}, which is no argument and of no module that is "
            "jitted; pass it as an argument, since jit would not notice if it changed"
        )


def _line_of_user() -> str:
    """The line of user code that runs just now ("model.py:31"), or ''."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and not is_user_code(frame.f_code.co_filename):
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}" if frame else ""


class _RandomState:
    """Python's generator of random numbers, and NumPy's where it is loaded."""

    def __init__(self) -> None:
        self._numpy = sys.modules.get("numpy")
        self._python_state = random.getstate()
        self._numpy_state: Any = self._numpy.random.get_state() if self._numpy else ()

    def put_back(self) -> str:
        """As they were; which was drawn from, or ''."""
        if random.getstate() != self._python_state:
            random.setstate(self._python_state)
            return "random"
        if self._numpy:
            name, keys, *rest = self._numpy.random.get_state()
            old_name, old_keys, *old_rest = self._numpy_state
            if (name, rest) != (old_name, old_rest) or (keys != old_keys).any():
                self._numpy.random.set_state(self._numpy_state)
                return "numpy.random"
        return ""


def _file_of(value: Any) -> str:
    """Where a Python module or a class is written."""
    module = value if isinstance(value, types.ModuleType) else sys.modules.get(value.__module__)
    typed_in = "" if getattr(module, "__name__", "") == "__main__" else "<frozen>"
    return getattr(module, "__file__", None) or typed_in


def _scopes_of(value: Any) -> list[tuple[Any, dict[str, Any]]]:
    """Where attributes of a Python module or a class are looked up: the owner and its dict, which is behind a proxy."""
    if isinstance(value, types.ModuleType):
        return [(value, vars(value))]
    return [(one, attributes_of(one)) for one in value.__mro__]


def fields_of_class(cls: type) -> list[Names]:
    """The plain attributes that objects find through their class, of classes in user code: (dict, names, copies)."""
    fields = []
    for owner, scope in _scopes_of(cls):
        if isinstance(owner, type) and is_user_code(_file_of(owner)):
            names = tuple(n for n, v in scope.items() if not n.startswith("__") and is_plain(v))
            fields.append((scope, names, tuple(copy.deepcopy(scope[n]) for n in names)))
    return fields


def _is_text_of_a_library(frame: types.FrameType) -> bool:
    """Whether a library evaluates a text of its own: sympy parses an expression, Python makes a named tuple."""
    if str(frame.f_globals.get("__name__")).startswith("namedtuple_"):
        return True
    code, caller = frame.f_code, frame.f_back
    is_text = code.co_name == "<module>" and code.co_filename.startswith("<")
    return is_text and caller is not None and not is_user_code(caller.f_code.co_filename)


def _is_imported(frame: types.FrameType) -> bool:
    """Whether the code runs since a module is imported."""
    outer: types.FrameType | None = frame
    while outer is not None and not outer.f_code.co_filename.startswith(OURS):
        if outer.f_code.co_filename.startswith("<frozen importlib"):
            return True
        outer = outer.f_back
    return False


# torch's functions that a trace runs at once and does not record.
_STATE_OF_GENERATORS = {
    inspect.unwrap(function).__code__
    for function in (
        *(torch.manual_seed, torch.seed, torch.initial_seed),
        *(torch.get_rng_state, torch.set_rng_state, torch.random.fork_rng),
    )
}


def _is_called_by_user(frame: types.FrameType) -> bool:
    """Whether the caller is user code, past the frames of a context manager and of what keeps Dynamo away."""
    outer = frame.f_back
    passing = ("contextlib.py", "_compile.py", "eval_frame.py")
    while outer is not None and not is_user_code(outer.f_code.co_filename):
        if not outer.f_code.co_filename.endswith(passing):
            return False
        outer = outer.f_back
    return outer is not None


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
    while outer is not None and not outer.f_code.co_filename.startswith(OURS):
        if name in outer.f_code.co_cellvars and is_user_code(outer.f_code.co_filename):
            return outer.f_locals.get(name, MISSING) is frame.f_locals.get(name, MISSING)
        outer = outer.f_back
    return False


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return "tensor"
    if isinstance(value, torch.nn.Module):
        return "module"
    reached = Reached(is_user_code).add(value)
    behind = "module" if reached.modules else "tensor" if reached.tensors else ""
    kind = type(value).__name__
    return f"{kind} that holds a {behind}" if behind and callable(value) else kind


def _has_state(module: torch.nn.Module) -> bool:
    """Whether there is a tensor or an attribute that may change: torch's own activations have none."""
    return any(True for _ in (*module.parameters(), *module.buffers())) or any(
        not type(one).__module__.startswith("torch.") for one in module.modules()
    )


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
