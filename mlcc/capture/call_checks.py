"""What is looked at before each call of a compiled graph: kernels need it, and no guard tells it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mlcc._load import load_core
from mlcc.capture import eager_fallback, sharing
from mlcc.torch_private import trace_state

# Of arguments that a graph computes with: what it computes is to have no more than 64 bits.
INT_LIMIT = 2**31


def or_eager(
    compiled: Callable[..., Any],
    eager: Callable[..., Any],
    written: list[int],
    integers: list[int],
    limit: int,
) -> Callable[..., Any]:
    """`compiled`, or `eager` where its arguments are not as kernels need them.

    One that is written overlaps another one, one of the `integers` is not below the `limit`, or they carry forward-mode
    derivatives: kernels know nothing of those.
    """
    overlap = load_core().writes_overlap
    has_tangents = trace_state.has_tangents

    def is_large(number: Any) -> bool:
        return (
            type(number) is int and not -limit <= number < limit
        )  # lengths in nested tensors are none

    def run(*arguments: Any) -> Any:
        if written and overlap(arguments, written):
            reason = "an argument that is written overlaps another one"
        elif integers and any(is_large(arguments[place]) for place in integers):
            reason = "an integer, or what is computed from it, may have more than 64 bits"
        elif has_tangents(arguments):
            reason = "an argument carries a forward-mode derivative"
        else:
            return compiled(*arguments)
        eager_fallback.tell("a call", reason)
        return eager(*arguments)

    return run  # Dynamo runs what a backend gives it untraced


def or_elsewhere(
    compiled: Callable[..., Any],
    own: list[torch.Tensor],
    eager: Callable[..., Any],
    merged: sharing.Sharing,
) -> Callable[..., Any]:
    """`compiled`, or `eager` where arguments, and the `own` tensors, overlap in another way than those of the trace."""

    def run(*arguments: Any) -> Any:
        if sharing.sharing_of([*own, *arguments]) == merged:
            return compiled(*arguments)
        eager_fallback.tell("a call", "arguments overlap in another way than those of the trace")
        return eager(*arguments)

    return run
