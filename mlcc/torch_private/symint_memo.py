"""Arithmetic of symbolic sizes that is done once a trace.

torch computes sizes, strides and what layouts they make anew for each tensor: a BERT of 12 layers takes 40,000
operations, of which 1 in 20 is a new one. Each goes through sympy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

# Of two ints, those whose result depends on nothing but the operands: remainders depend on ranges too.
_METHODS = (
    *("_add", "_sub", "_mul", "_int_floordiv", "_sym_max", "_sym_min"),
    *("_eq", "_ne", "_lt", "_le", "_gt", "_ge"),
)
_MEMO = "_mlcc_memo"  # of a ShapeEnv that remembers
_RESULTS = "_mlcc_results"  # of a tracer, for the graph under way


@dataclass(frozen=True)
class _Memo:
    in_graphs: bool
    results: dict[Any, Any] = field(default_factory=dict)  # by operation and operands


def remember(shape_env: Any, *, in_graphs: bool) -> None:
    """From here on, sizes of this ShapeEnv are computed once from the same operands.

    With `in_graphs` a graph that is traced has one node for them as well. Not for a graph of both passes: the node may
    come from a gradient, and what the forward pass computes from it would belong to the backward pass.
    """
    if _install() and not getattr(shape_env, "_translation_validation_enabled", True):
        setattr(shape_env, _MEMO, _Memo(in_graphs))


@functools.cache
def _install() -> bool:
    """Whether torch's symbols are as we know them (torch 2.13)."""
    from torch.fx.experimental.proxy_tensor import get_proxy_mode
    from torch.fx.experimental.sym_node import SymNode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    known = {"_expr", "_hint", "shape_env", "_optimized_summation"}
    if not known <= {*vars(SymNode), *SymNode.__init__.__code__.co_names}:
        return False
    if not hasattr(ShapeEnv(), "_replacements_version_counter"):
        return False
    methods = [name for name in _METHODS if hasattr(SymNode, name)]
    for name in methods:
        setattr(SymNode, name, _remembering(name, getattr(SymNode, name), get_proxy_mode))
    SymNode.maybe_as_int = _remembering_value(SymNode.maybe_as_int)
    return bool(methods)


def _remembering(
    name: str, compute: Callable[[Any, Any], Any], proxy_mode: Callable[[], Any]
) -> Callable[[Any, Any], Any]:
    @functools.wraps(compute)
    def computed(left: Any, right: Any) -> Any:
        env = left.shape_env
        memo: _Memo | None = getattr(env, _MEMO, None)
        if memo is None or type(left._hint) is not int or type(right._hint) is not int:
            return compute(left, right)
        operands = (
            name,
            left._expr,
            right._expr,
            left._hint,
            right._hint,
            left._optimized_summation,
            right._optimized_summation,
            env._replacements_version_counter,  # of what the trace knows to be equal
        )
        mode = proxy_mode()
        if mode is not None:
            # The graph under way has to have the operation. Its tracer asks again, without the mode.
            if not memo.in_graphs:
                return compute(left, right)
            results: dict[Any, Any] = vars(mode.tracer).setdefault(_RESULTS, {})
            if operands not in results:
                results[operands] = compute(left, right)
            return results[operands]
        result = memo.results.get(operands)
        if result is None:
            result = memo.results[operands] = compute(left, right)
            return result
        # A tracer tells the sizes of two tensors apart by their nodes, although they are equal.
        return type(result)(
            result._expr,
            env,
            result.pytype,
            result._hint,
            optimized_summation=result._optimized_summation,
        )

    return computed


def _remembering_value(maybe_as_int: Callable[[Any], int | None]) -> Callable[[Any], int | None]:
    @functools.wraps(maybe_as_int)
    def value(size: Any) -> int | None:
        env = size.shape_env
        memo: _Memo | None = getattr(env, _MEMO, None)
        if memo is None:
            return maybe_as_int(size)
        key = "maybe_as_int", size._expr, env._replacements_version_counter
        if key not in memo.results:
            memo.results[key] = maybe_as_int(size)
        result: int | None = memo.results[key]
        return result

    return value
