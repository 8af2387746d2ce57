"""What mlcc.jit holds a call against, beside its structure: sizes and numbers, and the state of a module."""

from __future__ import annotations

import copy
import enum
import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from mlcc.ir.sizes import SizePrinter, UnsupportedSize
from mlcc.torch_private import symints, trace_state, tracing

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
    if kind is complex:
        return kind, (value.real.hex(), value.imag.hex())
    if kind is tuple or kind is list:
        return kind, tuple(map(exact, value))
    if kind is dict:
        return kind, tuple((exact(k), exact(v)) for k, v in value.items())
    return kind, value


@dataclass(frozen=True)
class GuardExpressions:
    """Guards as the core reads them: each text is 1 where its guard holds."""

    symbols: list[tuple[str, int, int]]  # (name, leaf, dimension; -1 for the leaf itself)
    texts: list[str]


@dataclass(frozen=True)
class SizeGuards:
    """Whether the sizes and numbers of a call are as the trace assumed; plain data, which can be stored."""

    numbers: list[tuple[int, Any]]  # (leaf, number) of those that are constants
    fixed: list[tuple[int, int, int]]  # (leaf, dimension, size)
    sources: dict[str, tuple[int, int | None]]  # of symbols: (leaf, dimension; None for a number)
    relations: list[tuple[str, list[str]]]  # Python's text, and the symbols that it speaks of
    expressions: GuardExpressions | None  # as the core reads them; None if one has no counterpart

    @classmethod
    def of_trace(
        cls,
        fakes: tracing.Fakes | None,
        leaves: list[Any],
        varying: list[int],
        numbers: list[int],
    ) -> SizeGuards:
        """What a trace assumed; without fakes all sizes are in the key.

        `varying` are the leaves that the trace has as inputs, `numbers` those that it took as constants.
        """
        constants = [(leaf, leaves[leaf]) for leaf in numbers]
        if fakes is None:
            return cls(constants, [], {}, [], GuardExpressions([], []))
        symbolic = set(fakes.symbols.values())
        fixed = [
            (place, dim, size)
            for place in varying
            if isinstance(leaves[place], torch.Tensor)
            for dim, size in enumerate(leaves[place].shape)
            if (place, dim) not in symbolic
        ]
        guards = fakes.guards()
        relations = [
            (text, [name for name in fakes.symbols if name in map(str, guard.free_symbols)])
            for guard, text in zip(guards, tracing.python_texts(guards), strict=True)
        ]
        expressions = _as_expressions(guards, fakes.symbols)
        return cls(constants, fixed, dict(fakes.symbols), relations, expressions)

    def holds(self) -> Guard:
        """The guard as a Python function."""
        held = [exact(number) for _, number in self.numbers]
        tests = [
            f"exact(leaves[{place}]) == held[{i}]" for i, (place, _) in enumerate(self.numbers)
        ]
        tests += [f"leaves[{place}].shape[{dim}] == {size}" for place, dim, size in self.fixed]
        tests += [text for text, _ in self.relations]
        if not tests:
            return always
        lines = ["def guard(leaves):"]
        for name, (place, dim) in self.sources.items():
            lines.append(
                f"    {name} = leaves[{place}]" + ("" if dim is None else f".shape[{dim}]")
            )
        lines.append("    return " + " and ".join(f"({test})" for test in tests))
        guard = _compiled("\n".join(lines), held)

        def holds(leaves: list[Any]) -> bool:
            try:
                return guard(leaves)
            except (ArithmeticError, ValueError):  # a divisor is 0 now
                return False

        return holds

    def failing(self, leaves: list[Any]) -> list[tuple[int, int | None]]:
        """The numbers (leaf, None) and sizes (leaf, dimension) that the first failing guard speaks of."""
        for place, number in self.numbers:
            if exact(leaves[place]) != exact(number):
                return [(place, None)]
        for place, dim, size in self.fixed:
            if leaves[place].shape[dim] != size:
                return [(place, dim)]
        values = {
            name: leaves[place] if dim is None else leaves[place].shape[dim]
            for name, (place, dim) in self.sources.items()
        }
        for text, names in self.relations:
            try:
                is_kept = eval(text, {"math": math, "torch": torch}, values)
            except (ArithmeticError, ValueError):
                is_kept = False
            if not is_kept:
                return [self.sources[name] for name in names]
        return []


def _as_expressions(
    guards: list[Any], sources: dict[str, tuple[int, int | None]]
) -> GuardExpressions | None:
    symbols: list[tuple[str, int, int]] = []

    def declare(name: str, facts: symints.SymbolFacts) -> None:
        leaf, dim = sources[facts.name]
        symbols.append((name, leaf, -1 if dim is None else dim))

    printer = SizePrinter(declare)
    try:
        texts = [printer.truth(expression) for expression in guards]
    except (UnsupportedSize, KeyError):
        return None
    return GuardExpressions(symbols, texts)


def is_same_value(found: Any, expected: Any) -> bool:
    """Plain values by value, all else by identity: what an object holds is its own affair."""
    return found is expected or (is_plain(expected) and exact(found) == exact(expected))


def _compiled(text: str, held: list[Any]) -> Guard:
    scope: dict[str, Any] = {"math": math, "torch": torch, "exact": exact, "held": held}
    exec(text, scope)
    guard: Guard = scope["guard"]
    return guard


# Of a module's own attributes: held entry by entry.
MEMBERS = (
    *("_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks"),
    *("_backward_hooks", "_backward_pre_hooks"),
)
_PLAIN = (
    *(bool, int, float, complex, str, type(None), type(...), enum.Enum),
    *(torch.dtype, torch.device, torch.memory_format, torch.layout, torch.Size),
)

# Equal values under the names of a dict, or the very objects: (dict, names, values).
Names = tuple[dict[str, Any], tuple[str, ...], tuple[Any, ...]]


def is_plain(value: Any) -> bool:
    """Whether it is a number, a string, None, a dtype or the like, or made of them by lists, tuples and dicts."""
    if type(value) in (list, tuple):
        return all(map(is_plain, value))
    if type(value) is dict:
        return all(map(is_plain, value)) and all(map(is_plain, value.values()))
    return isinstance(value, _PLAIN)


def facts_of_layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tensor.device, tensor.shape, tensor.stride(), tensor.requires_grad


def keep_layouts(tensors: list[torch.Tensor]) -> Guard:
    """Whether the tensors, which a graph reads beside its arguments, are as they were but for their values."""
    if not tensors:
        return always
    layouts = [facts_of_layout(tensor) for tensor in tensors]
    return lambda leaves: layouts == [facts_of_layout(tensor) for tensor in tensors]


def path_of(name: str) -> str:
    """How a message calls a submodule or parameter by its name in the jitted module."""
    return f"self.{name}" if name else "self"


class ModuleState:
    """What a trace may have read from a module: parameters, buffers, submodules, hooks, attributes.

    Attributes are held by value where they are plain, else by identity; of an object with attributes of its own (a
    configuration) the plain ones are held too, and those that `fields_of` tells of their classes. Nothing without a
    module.
    """

    def __init__(
        self, module: torch.nn.Module | None, fields_of: Callable[[type], list[Names]]
    ) -> None:
        # Parameters and buffers in the order in which AOTAutograd makes them inputs.
        self.parameters: list[torch.Tensor] = []
        self.objects: list[tuple[dict[Any, Any], list[Any]]] = []
        self.plain: list[Names] = []
        self.identical: list[Names] = []
        # Lists, dicts and sets that hold more than plain values, with what they held.
        self.containers: list[tuple[Any, list[Any]]] = []
        # For words about what changed: the dicts above by id, all names in those of attributes, and layouts.
        self.module = module
        self.labels: dict[int, str] = {}
        self.names: list[tuple[dict[str, Any], frozenset[str]]] = []
        self.layouts: list[tuple[Any, ...]] = []
        if module is None:
            return
        self.parameters += [tensor for _, tensor in self.named_parameters()]
        self.layouts += [facts_of_layout(tensor) for tensor in self.parameters]
        for members in trace_state.global_module_hooks():
            self.objects.append((members, list(members.values())))
        seen: set[int] = set()
        classes: dict[type, None] = {}
        for path, one in module.named_modules():
            classes[type(one)] = None
            for name in MEMBERS:
                members = one.__dict__[name]
                self.objects.append((members, list(members.values())))
            others = self._hold(one.__dict__)
            for name, other in others.items():
                if id(other) not in seen and not isinstance(other, torch.Tensor | torch.nn.Module):
                    seen.add(id(other))
                    classes[type(other)] = None
                    self._hold_plain(getattr(other, "__dict__", None), f"{path_of(path)}.{name}")
        for cls in classes:
            fields = fields_of(cls)
            self.labels.update({id(scope): cls.__name__ for scope, _, _ in fields})
            self.plain += fields

    def named_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Parameters and buffers by their names, in the order of `parameters`."""
        if self.module is not None:
            yield from self.module.named_parameters(remove_duplicate=False)
            yield from self.module.named_buffers(remove_duplicate=False)

    def _hold(self, attributes: dict[str, Any]) -> dict[str, Any]:
        """Hold the attributes of a module; returns those that are held by identity."""
        self._hold_plain(attributes)
        names = tuple(n for n, v in attributes.items() if n not in OWN and not is_plain(v))
        values = tuple(attributes[n] for n in names)
        members = tuple(attributes[n] for n in MEMBERS)
        self.identical.append((attributes, (*MEMBERS, *names), (*members, *values)))
        self.names.append((attributes, frozenset(attributes)))
        self.containers += [
            (value, [copy.deepcopy(one) if is_plain(one) else one for one in contents_of(value)])
            for value in values
            if isinstance(value, list | dict | set)
        ]
        return dict(zip(names, values, strict=True))

    def _hold_plain(self, attributes: Any, label: str = "") -> None:
        if type(attributes) is not dict:
            return
        self.labels.setdefault(id(attributes), label)
        names = tuple(n for n, v in attributes.items() if is_plain(v))
        if names:
            values = tuple(copy.deepcopy(attributes[n]) for n in names)
            self.plain.append((attributes, names, values))

    def holds(self) -> Guard:
        """Whether the module still is as it was."""
        if not self.objects:
            return always
        objects, plain, identical = self.objects, self.plain, self.identical
        containers = self.containers
        sizes = [len(attributes) for attributes, _, _ in (*plain, *identical)]
        has_layouts = keep_layouts(self.parameters)

        def guard(leaves: list[Any]) -> bool:
            for members, values in objects:
                if len(members) != len(values) or not all(
                    map(operator.is_, members.values(), values)
                ):
                    return False
            # A new name may hide what the trace found in a class.
            if sizes != [len(attributes) for attributes, _, _ in (*plain, *identical)]:
                return False
            if not has_layouts(leaves):
                return False
            return (
                all(
                    all(map(operator.is_, map(members.get, names), values))
                    for members, names, values in identical
                )
                and all(
                    all(map(is_same_value, map(members.get, names), values))
                    for members, names, values in plain
                )
                and all(_are_same(contents_of(value), held) for value, held in containers)
            )

        return guard


def contents_of(container: Any) -> list[Any]:
    """Keys and values in order."""
    if isinstance(container, dict):
        return [*container.keys(), *container.values()]
    return list(container)


def _are_same(found: list[Any], expected: list[Any]) -> bool:
    return len(found) == len(expected) and all(map(is_same_value, found, expected))


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
            now, then = contents_of(container), contents_of(before)
            if len(now) == len(then) and all(map(operator.is_, now, then)):
                continue
            if name == "attributes":
                name = next(
                    (
                        n
                        for n in {**container, **before}
                        if container.get(n, _MISSING) is not before.get(n, _MISSING)
                    ),
                    name,
                )
            if name not in DERIVED:
                changed = changed or name
            container.clear()
            if isinstance(container, list):
                container.extend(before)
            else:
                container.update(before)
        return changed


_MISSING = object()
# What nn.RNNBase makes anew whenever its weights are others, as they are in a trace.
DERIVED = {"_flat_weights", "_flat_weight_refs"}
# What every module has; the part of it that a trace reads is in MEMBERS.
OWN = {*vars(torch.nn.Module()), *DERIVED}
