"""Attention that is written as its parts: the width of its heads becomes a number.

Kernels for attention keep a row of the result in registers, so they have its width as a constant. Where it is a symbol,
it gets a guard for its value, as those of `scaled_dot_product_attention` do (`_own_decompositions.attention_call`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from mlcc.torch_private import symints

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

# A length that looks like a width gets guards for so many values, not for each; by the text of a graph.
_MOST_VALUES = 4
_num_fixed: Counter[int] = Counter()


def fix_widths(gm: GraphModule) -> None:
    """Adds guards for the widths of heads: columns of what a softmax weighs, and terms of the sums that its scores are.

    Only where keys are more than these: what has more columns than keys is a length, as in attention among channels,
    and its matrix of scores is small. Not where the number of keys is known, for the same reason.
    """
    for product in gm.graph.find_nodes(op="call_function", target=_aten.bmm.default):
        weights, values = product.args
        softmax = _softmax_of(weights)
        if softmax is None:
            continue
        _, keys, width = values.meta["val"].shape
        terms = [below.args[0].meta["val"].shape[-1] for below in _products_below(softmax)]
        become_numbers(gm.graph, keys, [width, *terms])


def become_numbers(graph: Graph, keys: Any, widths: Sequence[Any]) -> bool:
    """Whether there is code for the widths; those among them that are symbols and look like widths become numbers."""
    symbols = [size for size in widths if isinstance(size, torch.SymInt)]
    if not symbols:
        return all(1 < size <= _MOST_WIDTH for size in widths)
    if not isinstance(keys, torch.SymInt):
        return False
    if not all(map(symints.follows_from_inputs, [keys, *symbols])):
        return False
    most = min(_MOST_WIDTH, symints.hint_of(keys) - 1)
    if not all(1 < symints.hint_of(size) <= most for size in widths):
        return False
    text = hash(str(graph))
    if _num_fixed[text] == _MOST_VALUES:
        return False
    _num_fixed[text] += 1
    for size in symbols:
        symints.fix_size(size)
    return all(symints.is_known(size == symints.hint_of(size)) for size in symbols)


def _softmax_of(weights: Any) -> Node | None:
    """What weights come from: a softmax, or the numerators of exp(..) / sum(exp(..)); rows of nothing may be filled."""
    while _is_call(weights, *_PASSED):
        weights = weights.args[0]
    if _is_call(weights, _aten.where.self):
        weights = weights.args[2]
    if _is_call(weights, _aten._softmax.default, _aten._safe_softmax.default):
        return weights
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
