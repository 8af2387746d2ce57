"""Containers of arguments and results as JSON, so that no code is needed to make them again.

{"list": [...]}, {"tuple": [...]}, {"dict": {...}}    containers
{"tensor": 3}                                         the input or output of that number
{"constant": 0.5}                                     what it was when the model was exported
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def flatten(tree: Mapping[str, Any], value: Any) -> list[Any]:
    """The tensors of a value that looks as the tree says, by number; TypeError where it looks otherwise."""
    found: dict[int, Any] = {}
    _flatten(tree, value, "", found)
    return [found[number] for number in sorted(found)]


def _flatten(tree: Mapping[str, Any], value: Any, place: str, found: dict[int, Any]) -> None:
    ((kind, inside),) = tree.items()
    if kind == "tensor":
        found[inside] = value
    elif kind == "constant":
        if value is not inside and value != inside:
            raise TypeError(f"argument{place}: found {value!r}, exported with {inside!r}")
    elif kind == "dict":
        if not isinstance(value, Mapping):
            raise TypeError(f"argument{place}: found {type(value).__name__}, expected a dict")
        if set(value) != set(inside):
            raise TypeError(
                f"argument{place}: found keys {sorted(value)}, expected {sorted(inside)}"
            )
        for key, below in inside.items():
            _flatten(below, value[key], f"{place}[{key!r}]", found)
    else:
        if not isinstance(value, Sequence):
            raise TypeError(f"argument{place}: found {type(value).__name__}, expected a {kind}")
        if len(value) != len(inside):
            raise TypeError(f"argument{place}: found {len(value)} values, expected {len(inside)}")
        for index, below in enumerate(inside):
            _flatten(below, value[index], f"{place}[{index}]", found)


def unflatten(tree: Mapping[str, Any], tensors: Sequence[Any]) -> Any:
    """The value again."""
    ((kind, inside),) = tree.items()
    if kind == "tensor":
        return tensors[inside]
    if kind == "constant":
        return inside
    if kind == "dict":
        return {key: unflatten(below, tensors) for key, below in inside.items()}
    values = [unflatten(below, tensors) for below in inside]
    return tuple(values) if kind == "tuple" else values


def numbers(tree: Mapping[str, Any]) -> list[int]:
    """Those of the tensors, in the order of the leaves."""
    ((kind, inside),) = tree.items()
    if kind == "tensor":
        return [inside]
    below = inside.values() if kind == "dict" else () if kind == "constant" else inside
    return [number for one in below for number in numbers(one)]
