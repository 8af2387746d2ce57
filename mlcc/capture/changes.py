"""What differs between what a trace found and what a call finds, in words for the log of recompiles."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Iterator
from typing import Any

import torch

from mlcc.capture.guards import (
    ModuleState,
    contents_of,
    facts_of_layout,
    is_plain,
    is_same_value,
    path_of,
)

MISSING = object()

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 60


def change_of(what: str, old: Any, new: Any) -> str:
    """For example: global SCALE was 2.0, now 3.0."""
    if old is MISSING:
        return f"{what} is new"
    if new is MISSING:
        return f"{what} is gone"
    if is_plain(old) and is_plain(new):
        return f"{what} was {_short.repr(old)}, now {_short.repr(new)}"
    if type(old) is type(new):
        return f"{what} is another {type(new).__name__} now"
    return f"{what} was {_kind_of(old)}, now {_kind_of(new)}"


def _kind_of(value: Any) -> str:
    return _short.repr(value) if is_plain(value) else f"a {type(value).__name__}"


def of_module(state: ModuleState) -> str:
    """The first difference between the module and what a trace held of it, or ''."""
    if state.module is None:
        return ""
    paths = {id(one.__dict__): path_of(path) for path, one in state.module.named_modules()}
    found = _of_members(state, paths) or next(_of_attributes(state, paths), "")
    return found or next(_of_containers(state, paths), "") or _of_layouts(state)


def _of_members(state: ModuleState, paths: dict[int, str]) -> str:
    """Parameters, buffers, submodules and hooks."""
    assert state.module is not None
    owners = {
        id(one.__dict__[kind]): (paths[id(one.__dict__)], kind)
        for one in state.module.modules()
        for kind in one.__dict__
        if isinstance(one.__dict__[kind], dict)
    }
    for members, held in state.objects:
        found = list(members.values())
        if len(found) == len(held) and all(map(operator.is_, found, held)):
            continue
        path, kind = owners.get(id(members), ("all modules", "hooks"))
        if "hooks" in kind:
            return f"the hooks of {path} changed"
        names = [name for name, one in members.items() if not any(one is other for other in held)]
        words = {"_parameters": "parameter", "_buffers": "buffer", "_modules": "submodule"}
        word = words.get(kind, "member")
        return (
            f"{word} {path}.{names[0]} is another one now"
            if names
            else f"a {word} of {path} is gone"
        )
    return ""


def _of_attributes(state: ModuleState, paths: dict[int, str]) -> Iterator[str]:
    labels = {**state.labels, **paths}
    for scope, names, values in (*state.plain, *state.identical):
        owner = labels.get(id(scope), "an object")
        is_same = is_same_value if (scope, names, values) in state.plain else operator.is_
        for name, old in zip(names, values, strict=True):
            new = scope.get(name, MISSING)
            if not is_same(new, old):
                yield change_of(f"attribute {owner}.{name}", old, new)
    for scope, before in state.names:
        for name in scope:
            if name not in before:
                yield f"attribute {labels.get(id(scope), 'an object')}.{name} is new"


def _of_containers(state: ModuleState, paths: dict[int, str]) -> Iterator[str]:
    assert state.module is not None
    for container, held in state.containers:
        found = contents_of(container)
        if len(found) == len(held) and all(map(is_same_value, found, held)):
            continue
        for one in state.module.modules():
            for name, value in one.__dict__.items():
                if value is container:
                    yield f"what attribute {paths[id(one.__dict__)]}.{name} holds changed"
        yield f"a {type(container).__name__} in an attribute changed"


def _of_layouts(state: ModuleState) -> str:
    for (name, tensor), before in zip(state.named_parameters(), state.layouts, strict=True):
        for word, old, new in zip(_LAYOUT, before, facts_of_layout(tensor), strict=True):
            if old != new:
                old, new = (
                    tuple(one) if isinstance(one, torch.Size) else one for one in (old, new)
                )
                return f"{path_of(name)}.{word} was {old}, now {new}"
    return ""


_LAYOUT = ("dtype", "device", "shape", "stride()", "requires_grad")
