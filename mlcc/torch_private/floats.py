"""Python floats that Dynamo has made symbols of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

# What torch.nn.functional.embedding takes by place.
_OF_EMBEDDING = ("input", "weight", "padding_idx", "max_norm", "norm_type")


def reads_floats(module: Any) -> bool:
    """Whether a graph depends on symbolic floats.

    AOTAutograd turns some of them into numbers under a guard, and torch's cache checks no guards on floats when it
    finds the graph again (torch 2.13): it would answer with another call's numbers.
    """
    if not isinstance(module, torch.fx.GraphModule):
        return False
    return any(
        isinstance(node.meta.get("example_value"), torch.SymFloat) for node in module.graph.nodes
    )


def restart_for_numbers(module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> None:
    """Ask Dynamo to begin again where its trace has symbolic floats that can only be numbers.

    AOTAutograd asks for the same behind its own trace, which is lost then.
    """
    try:
        from torch._dynamo.exc import TensorifyScalarRestartAnalysis
        from torch._dynamo.symbolic_convert import TensorifyState
        from torch.utils._sympy.symbol import SymT, symbol_is_type

        mode = torch._guards.detect_fake_mode(list(example_inputs))
        known = {str(one) for one in mode.shape_env.replacements if symbol_is_type(one, SymT.FLOAT)}
        found = [
            name
            for name in sorted(known | _unread(module))
            if not TensorifyState.should_specialize(name)
        ]
    except (ImportError, AttributeError):  # a torch that does it in another way
        return
    for name in found:
        TensorifyState.specialize(name)
    if found:
        raise TensorifyScalarRestartAnalysis


def _unread(module: torch.fx.GraphModule) -> set[str]:
    """Symbols that an embedding is given and does not look at: the kind of a norm, where none is limited."""
    found = set()
    for node in module.graph.nodes:
        if node.target is not torch.nn.functional.embedding:
            continue
        given = dict(zip(_OF_EMBEDDING, node.args, strict=False)) | node.kwargs
        kind = given.get("norm_type")
        if not isinstance(kind, torch.fx.Node) or len(kind.users) > 1:
            continue
        value = kind.meta.get("example_value")
        if given.get("max_norm") is None and isinstance(value, torch.SymFloat):
            found.add(str(value.node.expr))
    return found
