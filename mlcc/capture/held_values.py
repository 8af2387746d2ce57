"""What a trace of `mlcc.jit` read from outside of its arguments and module: the values that a call must find again.

Places of values are what another process can find: a module's global, a variable of the jitted function's closure, an
attribute of a function, class or module.
"""

from __future__ import annotations

import copy
import gc
import sys
import types
from dataclasses import dataclass
from typing import Any

from mlcc.capture.changes import MISSING, change_of
from mlcc.capture.guards import Guard, always, is_plain, is_same_value
from mlcc.capture.reach import contents
from mlcc.torch_private import fingerprints

# By position and by name.
Defaults = tuple[tuple[Any, ...], dict[str, Any]]


class NowhereError(Exception):
    """Another process could not find a value where this one did."""


@dataclass(frozen=True)
class Place:
    """Where a value stands: in the closure of the jitted function, or at a function, class or module."""

    kind: str  # "global", "cell", "attribute" or "defaults"
    module: str  # of the owner
    qualname: str  # of the owner; "" for a module, or for the jitted function
    name: str
    digest: str  # of the value


class HeldValues:
    """Plain values, functions and classes, and where a trace read them."""

    def __init__(self) -> None:
        self._globals: dict[tuple[int, str], tuple[dict[str, Any], str, Any]] = {}
        self._cells: dict[int, tuple[types.CellType, str, Any]] = {}
        # Of functions, classes and modules: the owner stands beside the dict of its attributes.
        self._attributes: dict[tuple[int, str], tuple[dict[str, Any], str, Any]] = {}
        self._owners: dict[int, Any] = {}
        self._defaults: dict[int, tuple[types.FunctionType, Defaults]] = {}

    def hold_global(self, scope: dict[str, Any], name: str, value: Any) -> None:
        self._globals.setdefault((id(scope), name), (scope, name, value))

    def hold_cell(self, cell: types.CellType, name: str, value: Any) -> None:
        self._cells.setdefault(id(cell), (cell, name, value))

    def hold_attribute(self, owner: Any, scope: dict[str, Any], name: str, value: Any) -> None:
        """`scope` is where the attributes of `owner` stand."""
        self._owners[id(scope)] = owner
        self._attributes.setdefault((id(scope), name), (scope, name, value))

    def hold_defaults(self, function: types.FunctionType, values: Defaults) -> None:
        self._defaults.setdefault(id(function), (function, values))

    @property
    def globals(self) -> list[tuple[dict[str, Any], tuple[str, ...], tuple[Any, ...]]]:
        """(the dict, names, values) of the globals and attributes."""
        return [(scope, (name,), (value,)) for scope, name, value in self._named()]

    @property
    def cells(self) -> list[tuple[types.CellType, Any]]:
        """(cell, value) of the closure variables."""
        return [(cell, value) for cell, _, value in self._cells.values()]

    @property
    def defaults(self) -> list[tuple[types.FunctionType, Defaults]]:
        """(function, its default arguments)."""
        return list(self._defaults.values())

    def holds(self) -> Guard:
        """Whether a call would read equal values."""
        named, cells, defaults = self._named(), self.cells, self.defaults
        if not named and not cells and not defaults:
            return always

        def guard(leaves: list[Any]) -> bool:
            del leaves
            return (
                all(is_same_value(scope.get(name, MISSING), value) for scope, name, value in named)
                and all(is_same_value(contents(cell, MISSING), value) for cell, value in cells)
                and all(_are_same(defaults_of(function), held) for function, held in defaults)
            )

        return guard

    def change(self) -> str:
        """The first value that a call would find to be another one, in words, or ''."""
        for scope, name, old in self._globals.values():
            new = scope.get(name, MISSING)
            if not is_same_value(new, old):
                return change_of(f"global {name}", old, new)
        for cell, name, old in self._cells.values():
            new = contents(cell, MISSING)
            if not is_same_value(new, old):
                return change_of(f"closure variable {name}", old, new)
        for scope, name, old in self._attributes.values():
            new = scope.get(name, MISSING)
            if not is_same_value(new, old):
                owner = getattr(self._owners[id(scope)], "__name__", "a wrapper")
                return change_of(f"attribute {owner}.{name}", old, new)
        for function, held in self._defaults.values():
            if not _are_same(defaults_of(function), held):
                return f"the default arguments of {function.__name__} changed"
        return ""

    def put_back(self) -> str:
        """Attributes as they were; the name of one that was another, or ''."""
        changed = ""
        for scope, name, before in self._attributes.values():
            if not is_same_value(scope.get(name, MISSING), before):
                changed = name
                owner = self._owners[id(scope)]
                if isinstance(owner, type):
                    setattr(owner, name, before)
                else:
                    scope[name] = before
        return changed

    def _named(self) -> list[tuple[dict[str, Any], str, Any]]:
        return [*self._globals.values(), *self._attributes.values()]

    # -- for another process

    def places(self, function: Any) -> list[Place]:
        """Where all of it stands. NowhereError where another process could not find something.

        `function` is the one that is jitted. Values without a digest raise fingerprints.NoFingerprintError.
        """
        digest = fingerprints.of_value
        found = [
            Place("global", module_of(scope), "", name, digest(value))
            for scope, name, value in self._globals.values()
        ]
        own = _cells_of(function)
        for cell, name, value in self._cells.values():
            if own.get(name) is not cell:
                raise NowhereError(f"closure variable {name} of another function")
            found.append(Place("cell", "", "", name, digest(value)))
        for scope, name, value in self._attributes.values():
            owner = _place_of(self._owners[id(scope)], function)
            found.append(Place("attribute", *owner, name, digest(value)))
        for one, values in self._defaults.values():
            found.append(Place("defaults", *_place_of(one, function), "", digest(values)))
        return found

    @classmethod
    def found_again(cls, places: list[Place], function: Any) -> HeldValues | None:
        """What this process finds there; None where something is another value."""
        held = cls()
        for place in places:
            owner = _owner_at(place, function)
            if owner is None or not held._take(place, owner):
                return None
        return held

    def _take(self, place: Place, owner: Any) -> bool:
        """Hold the value at a place, if it is the one that was there."""
        scope: dict[str, Any] = {}
        cell = _cells_of(owner).get(place.name) if place.kind == "cell" else None
        value: Any = MISSING
        if cell is not None:
            value = contents(cell, MISSING)
        elif place.kind == "defaults":
            value = defaults_of(owner)
        elif place.kind != "cell":
            scope = attributes_of(owner)
            value = scope.get(place.name, MISSING)
        if value is MISSING or fingerprints.of_value(value) != place.digest:
            return False
        if cell is not None:
            self.hold_cell(cell, place.name, copy_of(value))
        elif place.kind == "defaults":
            self.hold_defaults(owner, copies_of(value))
        elif place.kind == "global":
            self.hold_global(scope, place.name, copy_of(value))
        else:
            self.hold_attribute(owner, scope, place.name, copy_of(value))
        return True


def attributes_of(owner: Any) -> dict[str, Any]:
    """The dict in which the attributes of a function, class or module stand: of a class, that behind its proxy."""
    if isinstance(owner, type):
        behind = (one for one in gc.get_referents(vars(owner)) if type(one) is dict)
        return next(behind, {})
    return vars(owner)


def copy_of(value: Any) -> Any:
    """What is compared later: plain values are copied, since lists and dicts change."""
    return copy.deepcopy(value) if is_plain(value) else value


def copies_of(defaults: Defaults) -> Defaults:
    positional, named = defaults
    return tuple(map(copy_of, positional)), {n: copy_of(v) for n, v in named.items()}


def defaults_of(function: types.FunctionType) -> Defaults:
    """The default arguments of a function."""
    return function.__defaults__ or (), function.__kwdefaults__ or {}


def values_of(defaults: Defaults) -> list[Any]:
    """All of them, in order."""
    return [*defaults[0], *defaults[1].values()]


def _are_same(found: Defaults, expected: Defaults) -> bool:
    return (
        len(found[0]) == len(expected[0])
        and list(found[1]) == list(expected[1])
        and all(map(is_same_value, values_of(found), values_of(expected)))
    )


def _cells_of(function: Any) -> dict[str, types.CellType]:
    code = getattr(function, "__code__", None)
    if code is None:
        return {}
    return dict(zip(code.co_freevars, function.__closure__ or (), strict=True))


def module_of(scope: dict[str, Any]) -> str:
    """The name of the module whose globals these are; NowhereError where it is not imported by that name."""
    name = scope.get("__name__")
    if not isinstance(name, str) or getattr(sys.modules.get(name), "__dict__", None) is not scope:
        raise NowhereError(f"a module that was not imported by its name: {name}")
    return name


def _place_of(owner: Any, function: Any) -> tuple[str, str]:
    """(module, qualified name); ("", "") for the jitted function."""
    if owner is function:
        return "", ""
    if isinstance(owner, types.ModuleType):
        place = owner.__name__, ""
    else:
        place = str(getattr(owner, "__module__", "")), str(getattr(owner, "__qualname__", ""))
    if _at(*place) is not owner:
        raise NowhereError(f"attributes or defaults of {place[1] or place[0] or owner}")
    return place


def _owner_at(place: Place, function: Any) -> Any:
    return _at(place.module, place.qualname) if place.module else function


def _at(module: str, qualname: str) -> Any:
    """The module, function or class of that name; None where there is none."""
    found: Any = sys.modules.get(module)
    for name in filter(None, qualname.split(".")):
        found = getattr(found, name, None)
    return found
