"""Values of a graph that are neither tensors nor numbers: meshes, process groups, objects of registered classes.

The graph IR knows each of them by a number, which is a size there. Who runs the graph keeps the objects themselves
here, for as long as the call takes; calls of Python find them by their numbers.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

_objects: dict[int, Any] = {}
_numbers = itertools.count(1)
_of_call: ContextVar[list[int]] = ContextVar("mlcc.objects")  # numbers of the call under way


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Objects that are given a number inside are there until the end."""
    numbers: list[int] = []
    token = _of_call.set(numbers)
    try:
        yield
    finally:
        _of_call.reset(token)
        for number in numbers:
            del _objects[number]


def number_of(value: Any) -> int:
    """A new number of an object; inside of `kept`."""
    number = next(_numbers)
    _of_call.get().append(number)
    _objects[number] = value
    return number


def object_of(number: int) -> Any:
    """The object that has this number."""
    return _objects[number]
