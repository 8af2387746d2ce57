"""Which function computes which op: the newest version that is not newer than the model's opset."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MICROSOFT = "com.microsoft"

# Gets the node and its inputs; None stands for an input that is left out. Returns a value or a tuple of them.
Function = Callable[..., Any]


@dataclass(frozen=True)
class Handler:
    function: Function
    takes_sizes: bool  # inputs may be Sizes; others get tensors for them
    takes_scope: bool  # the names' values come before the inputs: ops with bodies need them
    takes_unsigned: (
        bool  # inputs may be of unsigned dtypes for which torch has few ops; others get i64
    )


_HANDLERS: dict[tuple[str, str], list[tuple[int, Handler]]] = {}


def op(
    *names: str,
    since: int = 1,
    domain: str = "",
    sizes: bool = False,
    scope: bool = False,
    unsigned: bool = False,
) -> Callable[[Function], Function]:
    def register(function: Function) -> Function:
        for name in names:
            versions = _HANDLERS.setdefault((domain, name), [])
            versions.append((since, Handler(function, sizes, scope, unsigned)))
            versions.sort(key=lambda entry: entry[0])
        return function

    return register


def find(domain: str, name: str, version: int) -> Handler | None:
    found = None
    for since, handler in _HANDLERS.get((domain, name), []):
        if since <= version:
            found = handler
    return found


def names() -> list[tuple[str, str]]:
    return sorted(_HANDLERS)
