"""What code is told that asks a symbol of a trace what it is.

Under `mlcc.jit` sizes and numbers are symbols, and code that runs under the trace takes them for ints and floats: so
says `isinstance`, so says `type`, comparisons are bools, and what only a value can answer (its text, its hash) is the
value's answer. For an int that is a guard; a float, whose arithmetic symbols do not round as floats do, becomes a
constant of another trace. Torch's own code, which knows of symbols, sees what it sees without a trace of ours.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import gc
import itertools
import numbers
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from mlcc.capture import code_owners
from mlcc.torch_private import symints, trace_state

# Where a symbol comes from: a leaf of the call, and a dimension of it (None: the leaf is a number).
Place = tuple[int, int | None]


class NeedsConstants(BaseException):
    """A trace asked for what only constants can answer; `Symbols.wanted` tells which. No program may catch it."""


class Symbols:
    """The symbols of one trace, and those among them that are to be constants of the next one."""

    def __init__(self, places: Mapping[str, Place], is_float: Callable[[int], bool]) -> None:
        self._places = places
        self._is_float = is_float
        self.wanted: set[Place] = set()

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Inside, this thread's symbols answer."""
        with _lock:
            _active[threading.get_ident()] = self
            put_back = _replace_answers()
            try:
                yield
            finally:
                put_back()
                del _active[threading.get_ident()]

    def want(self, places: Iterable[Place]) -> None:
        """Ends the trace: these are to be constants."""
        self.wanted.update(places)
        raise NeedsConstants

    def want_all(self) -> None:
        """The same of all symbols, if there are any."""
        if self._places:
            self.want(self._places.values())

    def roots(self, symbol: Any) -> list[Place]:
        """Where the symbols in an expression come from, but for those that data tell."""
        names = (facts.name for facts in symints.symbol_facts(symbol))
        return [self._places[name] for name in names if name in self._places]

    def value(self, symbol: Any) -> Any:
        """The value, for which the trace gets a guard, or is to have constants."""
        roots = self.roots(symbol)
        if roots and (isinstance(symbol, torch.SymFloat) or self._of_floats(roots)):
            self.want(roots)
        return symints.guarded_value(symbol)

    def decide(self, compared: Any, operands: Iterable[Any]) -> Any:
        """A comparison as a bool, if it does not ask for data."""
        if not isinstance(compared, torch.SymBool) or not compared.node.has_hint():
            return compared
        for one in operands:
            if isinstance(one, torch.SymInt | torch.SymFloat) and not symints.is_atom(one):
                roots = self.roots(one)
                if self._of_floats(roots):  # which the symbols need not round as floats are
                    self.want(roots)
        return bool(compared)

    def is_of_sizes(self, symbol: Any) -> bool:
        """Whether no float among the arguments decides."""
        return not self._of_floats(self.roots(symbol))

    def _of_floats(self, roots: list[Place]) -> bool:
        return any(dim is None and self._is_float(leaf) for leaf, dim in roots)


_lock = threading.RLock()  # one thread at a time changes the classes
_active: dict[int, Symbols] = {}

# -- who asks


def _asker() -> tuple[Symbols | None, str]:
    """The trace that answers and who asks; nobody where torch itself does."""
    symbols = _active.get(threading.get_ident())
    frame: Any = sys._getframe(2) if symbols is not None else None
    while frame is not None:
        who = code_owners.who_is(frame.f_code.co_filename)
        if who == "torch":
            break
        if frame.f_globals.get("__name__") == "__main__":  # may be a text, as of `python -c`
            who = "user"
        if who != "python":
            return symbols, who
        frame = frame.f_back
    return None, ""


# -- answers

_COMPARISONS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")
_ROUNDING = (
    *("__int__", "__floor__", "__ceil__", "__trunc__"),
    *("__mod__", "__rmod__", "__floordiv__", "__rfloordiv__"),
)
_TEXTS = ("__repr__", "__str__", "__format__", "__reduce_ex__", "__reduce__")
# Of an int or a float, what nobody asks an object for.
_OF_CLASSES = {"__new__", "__getattribute__", "__class__", "__doc__", "from_bytes", "fromhex"}


def type_of(value: Any) -> type:
    """The type that eager's value has."""
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return _KINDS.get(type(value), bool)
    return torch.Tensor if trace_state.is_of_trace(value) else type(value)


_KINDS: dict[type, type] = {torch.SymInt: int, torch.SymFloat: float}


def _replace_answers() -> Callable[[], None]:
    """Give the classes of symbols other answers; returns what puts the former ones back."""
    before = []
    for cls, kind in _KINDS.items():
        scope = gc.get_referents(vars(cls))[0]  # the dict behind: nobody can set a __class__
        answers = _answers(cls, kind)
        before.append((cls, scope, {name: scope.get(name, _MISSING) for name in answers}))
        _fill(cls, scope, answers)

    def put_back() -> None:
        for one in before:
            _fill(*one)

    return put_back


def _fill(cls: type, scope: dict[str, Any], attributes: dict[str, Any]) -> None:
    for name, value in attributes.items():
        if name == "__class__":
            scope.pop(name, None)
            if value is not _MISSING:
                scope[name] = value
        elif value is _MISSING:
            delattr(cls, name)
        else:
            setattr(cls, name, value)  # which lets Python forget what it found in the class


@functools.cache
def _answers(cls: type, kind: type) -> dict[str, Any]:
    answers: dict[str, Any] = {"__class__": _class(cls, kind)}
    answers |= {name: _compare(getattr(cls, name)) for name in _COMPARISONS}
    answers |= {name: _evaluated(kind, name, getattr(cls, name)) for name in _TEXTS}
    for name in set(dir(kind)) - set(dir(cls)) - _OF_CLASSES:
        answers[name] = _evaluated(kind, name, None)
    answers["__hash__"] = _hash(cls, kind)
    answers["__array__"] = _as_array
    answers["__copy__"] = answers["__deepcopy__"] = _same
    if cls is torch.SymFloat:
        for name in (*_ROUNDING, "__round__", "__float__"):
            answers[name] = _evaluated(kind, name, getattr(cls, name, None))
        answers["__bool__"] = lambda symbol: bool(symbol != 0)
        answers["is_integer"] = _compare(cls.is_integer)
    return answers


def _class(cls: type, kind: type) -> property:
    knowing: set[str] = set()  # files of torch, which ask 20,000 times a layer of a network

    def class_of(symbol: Any) -> type:
        del symbol
        file = sys._getframe(1).f_code.co_filename
        if file in knowing:
            return cls
        if code_owners.who_is(file) == "torch":
            knowing.add(file)
        return kind if _asker()[0] is not None else cls

    return property(class_of)


def _compare(original: Callable[..., Any]) -> Callable[..., Any]:
    def compare(symbol: Any, *other: Any) -> Any:
        result = original(symbol, *other)
        symbols, _ = _asker()
        if symbols is None:
            return result
        if result is NotImplemented:  # torch knows ints and floats, but no numbers of other classes
            is_number = isinstance(other[0], numbers.Number)
            name = original.__name__
            return getattr(symbols.value(symbol), name)(other[0]) if is_number else result
        return symbols.decide(result, (symbol, *other))

    return compare


def _evaluated(kind: type, name: str, original: Callable[..., Any] | None) -> Any:
    """A method or property of ints or floats, which symbols have not or answer in another way."""
    of_kind: Any = getattr(kind, name)
    if not callable(of_kind):
        return property(lambda symbol: getattr(_value_of(symbol), name))

    def method(symbol: Any, *args: Any, **kwargs: Any) -> Any:
        symbols, _ = _asker()
        if symbols is not None and not (name in _ROUNDING and symbols.is_of_sizes(symbol)):
            return of_kind(symbols.value(symbol), *args, **kwargs)
        if original is None:
            return of_kind(symints.guarded_value(symbol), *args, **kwargs)
        return original(symbol, *args, **kwargs)

    return method


def _value_of(symbol: Any) -> Any:
    symbols = _active.get(threading.get_ident())
    if symbols is None:
        raise AttributeError
    return symbols.value(symbol)


def _hash(cls: type, kind: type) -> Any:
    original: Any = cls.__hash__

    def hash_of(symbol: Any) -> int:
        symbols, who = _asker()
        # Packages that keep something by sizes do without where those have no hash, as einops.
        if symbols is None or (who == "package" and kind is int):
            return original(symbol)
        return hash(symbols.value(symbol))

    return hash_of


def _as_array(symbol: Any, dtype: Any = None, copy: Any = None) -> Any:
    import numpy

    del copy
    return numpy.array(_value_of(symbol), dtype)


def _same(symbol: Any, memo: Any = None) -> Any:
    del memo
    return symbol


# -- `type`, which asks nobody


@functools.cache
def _loads_of_type(code: types.CodeType) -> dict[int, bool]:
    """Offset of each instruction that loads the builtin `type` -> whether it is called at once."""
    loads: dict[int, bool] = {}
    if "type" not in code.co_names:
        return loads
    before: list[dis.Instruction] = []
    instructions = [one for one in dis.get_instructions(code) if one.opname not in _BETWEEN]
    for one, after in itertools.pairwise(instructions):
        before.append(one)
        if one.opname != "LOAD_GLOBAL" or one.argval != "type":
            continue
        is_called = bool((one.arg or 0) & 1) or after.opname == "PUSH_NULL"
        if is_called or not _asks_no_symbol(before, after):
            loads[one.offset] = is_called
    return loads


_BETWEEN = {"CACHE", "EXTENDED_ARG", "NOP"}
_MOST_BETWEEN = 6  # instructions from a function's load to its call


def _asks_no_symbol(before: list[dis.Instruction], after: dis.Instruction) -> bool:
    """Whether `type` is there for its attributes, a comparison, or as an argument of isinstance."""
    if after.opname in ("LOAD_ATTR", "LOAD_METHOD", "IS_OP", "COMPARE_OP"):
        return True
    near = {one.argval for one in before[-_MOST_BETWEEN:] if one.opname == "LOAD_GLOBAL"}
    return not near.isdisjoint({"isinstance", "issubclass"})


class TypeQuestions:
    """Answers `type(symbol)` in the frames whose opcodes are traced, where it cannot be answered by the symbol.

    For one instruction, the load of the name, a function stands in the frame's globals.
    """

    def __init__(self, symbols: Symbols) -> None:
        self._symbols = symbols
        self._hidden: types.FrameType | None = None
        self._asked: set[types.CodeType] = set()

    def may_ask(self, code: types.CodeType) -> bool:
        """Whether opcodes of the frame are to be traced."""
        return bool(_loads_of_type(code)) and code_owners.who_is(code.co_filename) in (
            "user",
            "package",
        )

    def on_opcode(self, frame: types.FrameType) -> None:
        """Before the instruction at `frame.f_lasti`."""
        self.uncover()
        is_called = _loads_of_type(frame.f_code).get(frame.f_lasti)
        if is_called is None or "type" in frame.f_globals:
            return
        if not is_called:
            self._symbols.want_all()
        frame.f_globals["type"] = functools.partial(self._answer, frame)
        self._hidden = frame

    def uncover(self) -> None:
        """The builtin is found again."""
        if self._hidden is not None:
            self._hidden.f_globals.pop("type", None)
            self._hidden = None

    def _answer(self, frame: types.FrameType, *args: Any, **kwargs: Any) -> Any:
        if len(args) != 1 or kwargs:
            name, bases, namespace = args
            namespace.setdefault("__module__", frame.f_globals.get("__name__"))
            return type(name, bases, namespace, **kwargs)
        kind = type_of(args[0])
        if kind is not type(args[0]):
            self._asked.add(frame.f_code)
        return kind

    @contextlib.contextmanager
    def watch_again(self) -> Iterator[None]:
        """For another run of what was watched before: only code that asked is traced."""
        if not self._asked:
            yield
            return
        before = sys.gettrace()
        sys.settrace(self._on_call)
        try:
            yield
        finally:
            sys.settrace(before)
            self.uncover()

    def _on_call(self, frame: types.FrameType, event: str, argument: Any) -> Any:
        del event, argument
        if frame.f_code not in self._asked:
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self.follow

    def follow(self, frame: types.FrameType, event: str, argument: Any) -> Any:
        """The trace function of a frame that is only watched for this."""
        del argument
        if event == "opcode":
            self.on_opcode(frame)
        else:
            self.uncover()
        return self.follow


_MISSING = object()
