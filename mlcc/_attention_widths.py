"""Attention that is written as its parts: the width of its heads becomes a number.

Kernels for attention keep a row of the result in registers, so they have its width as a constant. Where it is a symbol,
it gets a guard for its value, as those of `scaled_dot_product_attention` do (`_own_decompositions.attention_call`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from mlcc import _torch_compat

_aten = torch.ops.aten

# What may stand between a softmax and the product with its weights. Ranks and dtypes are not looked at: a guard that
# was not needed costs a compilation for another width, and no result.
_PASSED = frozenset(
    [
        *(_aten.view.default, _aten.reshape.default, _aten._unsafe_view.default),
        *(_aten.expand.default, _aten.unsqueeze.default, _aten.squeeze.dim),
        *(_aten.clone.default, _aten.alias.default, _aten._to_copy.default),
        torch.ops.prims.convert_element_type.default,
    ]
)
_MOST_WIDTH = 256  # graph/attention_call.h


def fix_widths(gm: GraphModule) -> None:
    """Adds guards for the widths of heads: columns of what a softmax weighs, and terms of the sums that its scores are.

    Not where the number of keys is known: what varies is something else that only looks like a width then.
    """
    for product in gm.graph.find_nodes(op="call_function", target=_aten.bmm.default):
        weights, values = product.args
        exponentials = _exponentials_of(weights)
        if exponentials is None:
            continue
        _, keys, width = values.meta["val"].shape
        if not isinstance(keys, torch.SymInt) or _torch_compat.is_known(keys == width):
            continue
        _torch_compat.fix_size(width, most=_MOST_WIDTH)
        for below in _products_below(exponentials):
            _torch_compat.fix_size(below.args[0].meta["val"].shape[-1], most=_MOST_WIDTH)


def _exponentials_of(weights: Any) -> Node | None:
    """The numerators of exp(..) / sum(exp(..)), where no row is empty or such rows are filled."""
    while _is_call(weights, *_PASSED):
        weights = weights.args[0]
    if _is_call(weights, _aten.where.self):
        weights = weights.args[2]
    if not _is_call(weights, _aten.div.Tensor):
        return None
    numerators, sums = weights.args
    is_softmax = _is_call(numerators, _aten.exp.default) and _is_call(sums, _aten.sum.dim_IntList)
    return numerators if is_softmax else None


def _products_below(node: Node) -> list[Node]:
    """The nearest ones that it is computed from."""
    found, seen, waiting = [], {node}, [node]
    while waiting:
        one = waiting.pop()
        if _is_call(one, _aten.bmm.default):
            found.append(one)
            continue
        waiting += [source for source in one.all_input_nodes if source not in seen]
        seen.update(one.all_input_nodes)
    return found


def _is_call(value: Any, *targets: Any) -> bool:
    return isinstance(value, Node) and value.target in targets
