"""Options of mlcc: `mlcc.config.<option>`, `mlcc.config.patch(...)`, one environment variable each.

Precedence: `options=` of a call, then `patch` (of this thread), then `mlcc.config.<option> = value` (the process),
then the environment, then the default. The table stands in csrc/driver/options.def; `python -m mlcc info` prints it.
"""

from __future__ import annotations

import difflib
import os
import sys
import threading
from collections.abc import Iterable, Mapping
from contextlib import ContextDecorator
from contextvars import ContextVar, Token
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from mlcc import _environment
from mlcc import logging as _logging
from mlcc._errors import Error

Value = bool | int | str

# The options as attributes, for type checkers only: their values come from `_Config` and the table.
logs: str
dump: str
dump_dir: str
verify: str
repro_data: bool
cache_dir: str
cache_size_mb: int
torch_caches: bool
warm_start: bool
idle_memory_mb: int
stream_mb: int
pack_weights: bool
weights: str
pack_mb: int
disable: bool
strict: bool
cpu: str
gpu: str
cuda_arch: str
libcuda: str
nvrtc: str
tier: str
measure: bool
prefer: str
contractions: bool
library: bool
matmul_precision: str
activations: str
join_products: bool
winograd: bool
fallback_random: bool
bisect: int
num_threads: int
num_compile_threads: int


@dataclass(frozen=True)
class Option:
    """One row of the table."""

    name: str
    type: type[bool] | type[int] | type[str]
    default: Value
    env: str
    option_class: str  # "code": enters every cache key; "run": never does
    help: str


_TYPES: dict[str, type[bool] | type[int] | type[str]] = {"bool": bool, "int": int, "str": str}
_MINIMUM = {
    "bisect": -1,
    "cache_size_mb": 0,
    "idle_memory_mb": 0,
    "num_compile_threads": 0,
    "num_threads": 0,
    "pack_mb": -1,
    "stream_mb": -1,
}
_MEMORY = {"idle_memory_mb", "pack_mb"}
_DUMP_STAGES = ("graph", "loop", "llvm", "asm", "cuda", "ptx")
_GPU_MODES = ("", "off", "emulate")
_ACTIVATIONS = ("", "int8")
_WEIGHTS_MODES = ("keep", "steal")
_MATMUL_PRECISIONS = ("", "highest", "high", "medium")
_PREFERENCES = ("", "code", "call")
_TIERS = ("auto", "fast", "full")
_VERIFY_MODES = ("off", "first", "sample", "always", "nan")
_MODES = {
    "activations": _ACTIVATIONS,
    "gpu": _GPU_MODES,
    "matmul_precision": _MATMUL_PRECISIONS,
    "prefer": _PREFERENCES,
    "tier": _TIERS,
    "verify": _VERIFY_MODES,
    "weights": _WEIGHTS_MODES,
}

_lock = threading.Lock()
_table: dict[str, Option] = {}
_assigned: dict[str, Value] = {}
_patched: ContextVar[Mapping[str, Value]] = ContextVar("mlcc.config", default={})  # noqa: B039 (never mutated)


def table() -> Mapping[str, Option]:
    """All options by name, in the order of the table."""
    if not _table:
        from mlcc._load import load_core

        rows = load_core().option_table()
        with _lock:
            _table.update({option.name: option for option in _read_rows(rows)})
        _environment.warn_of_unknown([option.env for option in _table.values()])
    return _table


def _read_rows(rows: Iterable[Any]) -> list[Option]:
    options = []
    for name, type_name, default, env, option_class, text in rows:
        kind = _TYPES[type_name]
        options.append(Option(name, kind, kind(default), env, option_class, text))
    return options


class _UnknownOptionError(Error, AttributeError):
    """So that `hasattr(mlcc.config, name)` answers."""


def _option(name: str) -> Option:
    options = table()
    if name not in options:
        near = difflib.get_close_matches(name, options, n=1, cutoff=0.5)
        hint = f"nearest: {near[0]}" if near else f"known: {', '.join(options)}"
        raise _UnknownOptionError(f"unknown option {name}; {hint}")
    return options[name]


def _nearest(word: str, known: Iterable[str]) -> str:
    known = list(known)
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.0)
    return near[0] if near else known[0]


def _check_value(option: Option, value: Any, source: str) -> Value:
    """`value` as the option's type, or an Error that names the option, what was found and what was expected."""
    what = f"option {option.name}{source}"
    if option.type is bool:
        if not isinstance(value, bool):
            raise Error(f"{what}: expected True or False, found {value!r}")
        return value
    if option.type is int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise Error(f"{what}: expected an integer, found {value!r}")
        minimum = _MINIMUM.get(option.name)
        if minimum is not None and value < minimum:
            raise Error(f"{what}: expected at least {minimum}, found {value}")
        return value
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not isinstance(value, str):
        raise Error(f"{what}: expected a string, found {value!r}")
    if option.name == "logs":
        for problem in _logging.parse(value)[1]:
            raise Error(f"{what}: {problem}")
    modes = _MODES.get(option.name)
    if modes is not None and value not in modes:
        words = list(filter(None, modes))
        expected = f"{', '.join(words)} or nothing" if "" in modes else f"one of {', '.join(words)}"
        raise Error(
            f"{what}: expected {expected}, found {value!r}; nearest: {_nearest(value, words)}"
        )
    if option.name == "dump":
        for word in filter(None, (part.strip() for part in value.split(","))):
            if word.split("@")[0] not in _DUMP_STAGES:
                raise Error(
                    f"{what}: unknown stage {word}; nearest: {_nearest(word, _DUMP_STAGES)} "
                    f"(of {', '.join(_DUMP_STAGES)})"
                )
    return value


def _parse_env(option: Option, text: str) -> Value:
    source = f" ({option.env})"
    if option.type is bool:
        if text.lower() in _environment.TRUE | _environment.FALSE:
            return text.lower() in _environment.TRUE
        nearest = _nearest(text.lower(), sorted(_environment.TRUE | _environment.FALSE - {""}))
        raise Error(
            f"option {option.name}{source}: expected 0 or 1 (false or true, off or on, no or yes), "
            f"found {text!r}; nearest: {nearest}"
        )
    if option.type is int:
        try:
            return _check_value(option, int(text), source)
        except ValueError:
            message = f"option {option.name}{source}: expected an integer, found {text!r}"
            raise Error(message) from None
    return _check_value(option, text, source)


def _lookup(option: Option) -> tuple[Value, str]:
    patched = _patched.get()
    if option.name in patched:
        return patched[option.name], "patch"
    if option.name in _assigned:
        return _assigned[option.name], "assigned"
    text = os.environ.get(option.env)
    if text is not None and not (text == "" and option.type is int):
        return _parse_env(option, text), "environment"
    return option.default, "default"


def origin(name: str) -> str:
    """Where the current value comes from: patch, assigned, environment or default."""
    return _lookup(_option(name))[1]


def resolve(options: Mapping[str, Any] | None = None) -> dict[str, Value]:
    """The value of every option for one compilation; `options` stands above everything else."""
    given = {
        name: _check_value(_option(name), value, "") for name, value in (options or {}).items()
    }
    return {
        name: given[name] if name in given else _lookup(option)[0]
        for name, option in table().items()
    }


def cache_directory(options: Mapping[str, Value] | None = None) -> Path | None:
    """The folder of the disk store: option `cache_dir`, else mlcc in the user's cache folder; None without a home."""
    chosen = _value("cache_dir", options)
    if chosen:
        return _expand_home(str(chosen))
    folder = os.environ.get("XDG_CACHE_HOME") or (os.environ.get("HOME") and "~/.cache")
    return _expand_home(folder) / "mlcc" if folder else None


def dump_directory(options: Mapping[str, Value] | None = None) -> Path | None:
    """Where dumps and reproducers go: option `dump_dir`, else repro in the cache folder; None without a home."""
    chosen = _value("dump_dir", options)
    if chosen:
        return _expand_home(str(chosen))
    cache = cache_directory(options)
    return cache / "repro" if cache else None


def _value(name: str, options: Mapping[str, Value] | None) -> Value:
    return _lookup(_option(name))[0] if options is None else options.get(name, "")


def _expand_home(path: str) -> Path:
    return Path(path).expanduser() if os.environ.get("HOME") else Path(path)


def _apply(names: Iterable[str]) -> None:
    """What belongs to the process changes at once, not with the next compilation."""
    if "logs" in names:
        _logging.configure(str(_lookup(_option("logs"))[0]))
    if not _MEMORY.isdisjoint(names):
        from mlcc._load import load_core

        load_core().apply_memory_options()


class patch(ContextDecorator):  # noqa: N801 (used like a function)
    """`with mlcc.config.patch(strict=True): ...`, also as a decorator. Holds for this thread (or task) only.

    `logs`, `idle_memory_mb` and `pack_mb` are the exceptions: Python's loggers, freed memory and kept values belong to
    the process.
    """

    def __init__(self, **options: Any) -> None:
        self._options = {
            name: _check_value(_option(name), value, "") for name, value in options.items()
        }
        self._tokens: list[Token[Mapping[str, Value]]] = []

    def _recreate_cm(self) -> patch:
        return patch(**self._options)

    def __enter__(self) -> patch:
        self._tokens.append(_patched.set({**_patched.get(), **self._options}))
        _apply(self._options)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _patched.reset(self._tokens.pop())
        _apply(self._options)


class _Config(ModuleType):
    """This module, with the options as attributes."""

    def __getattr__(self, name: str) -> Value:
        if name.startswith("_"):
            raise AttributeError(f"module 'mlcc.config' has no attribute {name!r}")
        return _lookup(_option(name))[0]

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_") or name in self.__dict__:
            super().__setattr__(name, value)
            return
        _assigned[name] = _check_value(_option(name), value, "")
        _apply((name,))

    def __delattr__(self, name: str) -> None:
        """`del mlcc.config.<option>` takes an assignment back."""
        if name in _assigned:
            del _assigned[name]
            _apply((name,))
        else:
            super().__delattr__(name)

    def __dir__(self) -> list[str]:
        return sorted(
            {"patch", "resolve", "table", "origin", "cache_directory", "dump_directory", *table()}
        )


sys.modules[__name__].__class__ = _Config
