"""What mlcc.jit holds a call against, beside its structure: sizes and numbers, and the state of a module."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from mlcc import _torch_compat
from mlcc._fx_sizes import SizePrinter, UnsupportedSize

Guard = Callable[[list[Any]], bool]  # over the leaves of a call


def always(leaves: list[Any]) -> bool:
    """The guard of what holds for every call."""
    del leaves
    return True


def all_of(*guards: Guard) -> Guard:
    """All of them, those that always hold left out."""
    given = [guard for guard in guards if guard is not always]
    if not given:
        return always
    if len(given) == 1:
        return given[0]
    return lambda leaves: all(guard(leaves) for guard in given)


def exact(value: Any) -> Any:
    """A constant as part of a key: 1, 1.0 and True differ, and so do 0.0 and -0.0."""
    kind = type(value)
    if kind is float:
        return kind, value.hex()
    return kind, tuple(map(exact, value)) if kind is tuple else value


@dataclass(frozen=True)
class GuardExpressions:
    """Guards as the core reads them: each text is 1 where its guard holds."""

    symbols: list[tuple[str, int, int]]  # (name, leaf, dimension; -1 for the leaf itself)
    texts: list[str]


class SizeGuards:
    """Whether the sizes and numbers of a call are as the trace assumed. Without fakes all of them are in the key."""

    def __init__(self, fakes: _torch_compat.Fakes | None, leaves: list[Any]) -> None:
        self._fakes = fakes
        self.fixed: list[tuple[int, int, int]] = []  # (leaf, dimension, size)
        if fakes is None:
            return
        symbolic = set(fakes.symbols.values())
        for place, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor):
                for dim, size in enumerate(leaf.shape):
                    if (place, dim) not in symbolic:
                        self.fixed.append((place, dim, size))

    def holds(self) -> Guard:
        """The guard as a Python function."""
        if self._fakes is None:
            return always
        tests = [f"leaves[{place}].shape[{dim}] == {size}" for place, dim, size in self.fixed]
        tests += _torch_compat.python_texts(self._fakes.guards())
        if not tests:
            return always
        lines = ["def guard(leaves):"]
        for name, (place, dim) in self._fakes.symbols.items():
            lines.append(
                f"    {name} = leaves[{place}]" + ("" if dim is None else f".shape[{dim}]")
            )
        lines.append("    return " + " and ".join(f"({test})" for test in tests))
        return _compiled("\n".join(lines))

    def as_expressions(self) -> GuardExpressions | None:
        """The guard as the core reads it; None if something in it has no counterpart there."""
        if self._fakes is None:
            return GuardExpressions([], [])
        symbols: list[tuple[str, int, int]] = []
        sources = self._fakes.symbols

        def declare(name: str, facts: _torch_compat.SymbolFacts) -> None:
            leaf, dim = sources[facts.name]
            symbols.append((name, leaf, -1 if dim is None else dim))

        printer = SizePrinter(declare)
        try:
            texts = [printer.truth(expression) for expression in self._fakes.guards()]
        except (UnsupportedSize, KeyError):
            return None
        return GuardExpressions(symbols, texts)


def _is_same(found: Any, expected: Any) -> bool:
    """Plain values by value, all else by identity: what an object holds is its own affair."""
    if found is expected:
        return True
    if not isinstance(expected, bool | int | float | str | tuple):
        return False
    try:
        return bool(exact(found) == exact(expected))
    except (TypeError, ValueError, RuntimeError):  # a tuple of what has no truth value
        return False


def _compiled(text: str) -> Guard:
    import math

    scope: dict[str, Any] = {"math": math, "torch": torch}
    exec(text, scope)
    guard: Guard = scope["guard"]
    return guard


class ModuleState:
    """The parameters, buffers, submodules, hooks and plain attributes that a module had; nothing without one."""

    def __init__(self, module: torch.nn.Module | None) -> None:
        # Parameters and buffers in the order in which AOTAutograd makes them inputs.
        self.parameters: list[torch.Tensor] = []
        self.objects: list[tuple[dict[str, Any], list[Any]]] = []
        self.plain: list[tuple[dict[str, Any], tuple[str, ...], tuple[Any, ...]]] = []
        # The same for the core, which compares objects that are no plain values by identity, a whole dict at once.
        self.core_plain: list[tuple[dict[str, Any], tuple[str, ...], tuple[Any, ...]]] = []
        self.core_objects: list[tuple[dict[str, Any], list[Any]]] = []
        # Attributes that are lists, dicts and sets, with what they held.
        self.containers: list[tuple[Any, list[Any]]] = []
        if module is None:
            return
        self.parameters += [tensor for _, tensor in module.named_parameters(remove_duplicate=False)]
        self.parameters += [tensor for _, tensor in module.named_buffers(remove_duplicate=False)]
        for one in module.modules():
            for name in (
                "_parameters",
                "_buffers",
                "_modules",
                "_forward_hooks",
                "_forward_pre_hooks",
            ):
                members = one.__dict__[name]
                self.objects.append((members, list(members.values())))
            names = tuple(n for n in one.__dict__ if n not in _INTERNALS)
            values = tuple(one.__dict__[n] for n in names)
            self.plain.append((one.__dict__, names, values))
            if all(isinstance(v, bool | int | float | str | None) for v in values):
                self.core_plain.append(self.plain[-1])
            else:
                self.core_objects.append((one.__dict__, list(one.__dict__.values())))
            self.containers += [
                (value, _contents(value))
                for value in map(one.__dict__.get, names)
                if isinstance(value, list | dict | set)
            ]

    def holds(self) -> Guard:
        """Whether the module still is as it was."""
        if not self.objects:
            return always
        objects, plain, containers = self.objects, self.plain, self.containers

        def guard(leaves: list[Any]) -> bool:
            del leaves
            for members, values in objects:
                if len(members) != len(values) or not all(
                    map(operator.is_, members.values(), values)
                ):
                    return False
            return all(
                all(map(_is_same, map(members.get, names), values))
                for members, names, values in plain
            ) and all(_are_same(_contents(value), held) for value, held in containers)

        return guard


# What nn.Module keeps in its attributes; parameters, buffers, submodules and hooks are held by themselves.
_INTERNALS = frozenset(torch.nn.Module().__dict__) - {"training"}


def _contents(container: Any) -> list[Any]:
    """Keys and values in order."""
    if isinstance(container, dict):
        return [*container.keys(), *container.values()]
    return list(container)


def _are_same(found: list[Any], expected: list[Any]) -> bool:
    return len(found) == len(expected) and all(map(_is_same, found, expected))


class ModuleSnapshot:
    """The attributes of a module and its submodules, and what those of them hold that are lists, dicts or sets."""

    def __init__(self, module: torch.nn.Module | None) -> None:
        self._held: list[tuple[Any, str, Any]] = []  # (container, its name, a copy)
        for one in module.modules() if module is not None else ():
            self._held.append((one.__dict__, "attributes", dict(one.__dict__)))
            for name, value in one.__dict__.items():
                if isinstance(value, list | dict | set):
                    self._held.append((value, name, copy.copy(value)))

    def restore(self) -> str:
        """Put everything back; which name changed, or ''."""
        changed = ""
        for container, name, before in self._held:
            now, then = _contents(container), _contents(before)
            if len(now) == len(then) and all(map(operator.is_, now, then)):
                continue
            if container is not before and name == "attributes":
                name = next(
                    (
                        n
                        for n in {**container, **before}
                        if container.get(n, _MISSING) is not before.get(n, _MISSING)
                    ),
                    name,
                )
            if name not in _DERIVED:
                changed = changed or name
            container.clear()
            if isinstance(container, list):
                container.extend(before)
            else:
                container.update(before)
        return changed


_MISSING = object()
# What nn.RNNBase makes anew whenever its weights are others, as they are in a trace.
_DERIVED = {"_flat_weights", "_flat_weight_refs"}
