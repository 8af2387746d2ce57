"""Results that are views: of an input which the program changes, or of what another result is a view of as well.

AOTAutograd makes the first kind again from the input; of what the graph returns for them only the form counts. But the
graph returns views of the value that is copied into the input, which would then need memory of its own. The second kind
it leaves to the graph where nothing requires gradients.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch.fx import GraphModule, Node

from mlcc import _torch_compat
from mlcc._fx_expand import MEMORY, MEMORY_OF_VIEW

# Views that the graph IR has as such; others it may compute.
_WINDOWS = frozenset(
    [
        *("alias", "detach", "expand", "permute", "select", "slice", "squeeze", "t", "transpose"),
        *("split", "split_with_sizes", "unbind", "unsqueeze", "view"),
    ]
)


def take_from_inputs(gm: GraphModule, places: Sequence[int]) -> None:
    """Let the outputs at `places` of a functional graph be made of the inputs that they are views of.

    Before: `copy_(x, new); return new[1:]`. After: `copy_(x, new); return x[1:]`. Others stay as they are.
    """
    (output,) = gm.graph.find_nodes(op="output")
    inputs = {
        copy.args[1]: copy.args[0]
        for copy in gm.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
        if copy.args[0].op == "placeholder"
    }
    results = list(output.args[0])
    for place in places:
        chain = _views_down_to(results[place], inputs)
        if chain is None or not _lie_alike(chain[0], inputs[chain[0]]):
            continue
        made: dict[Node, Node] = {chain[0]: inputs[chain[0]]}
        with gm.graph.inserting_before(output):
            for view in chain[1:]:
                made[view] = gm.graph.node_copy(view, lambda node, made=made: made.get(node, node))
        results[place] = made[chain[-1]]
    if results == list(output.args[0]):
        return
    before = [node for node in output.args[0] if isinstance(node, Node)]
    output.args = (type(output.args[0])(results),)
    for node in before:
        _erase_unread(node)
    gm.recompile()


def keep_shared(gm: GraphModule) -> None:
    """Have views as memory, not as values, where several outputs share what they are views of.

    Before the call `return v, v.diagonal()` may give two tensors of their own.
    """
    (output,) = gm.graph.find_nodes(op="output")
    chains = [_views_of(node) for node in dict.fromkeys(output.all_input_nodes)]
    roots = [chain[0] for chain in chains]
    for chain in chains:
        if chain[0].op == "placeholder" or roots.count(chain[0]) == 1:
            continue
        for view in chain[1:]:
            if view.target is not operator.getitem and _name_of(view) not in _WINDOWS:
                view.meta[MEMORY] = MEMORY_OF_VIEW


def _views_of(result: Node) -> list[Node]:
    """What the result is a view of in the end, the view of it, ..., the result."""
    chain = [result]
    while _is_view(chain[0]):
        chain.insert(0, chain[0].args[0])
    return chain


def _is_view(node: Node) -> bool:
    if node.target is operator.getitem:
        return _torch_compat.gives_views(node.args[0].target)
    return _torch_compat.is_view(node.target) or _torch_compat.gives_views(node.target)


def _name_of(node: Node) -> str:
    return str(node.target._schema.name.split("::")[1])


def _views_down_to(result: object, roots: dict[Node, Node]) -> list[Node] | None:
    """A root, the view of it, the view of that, ..., the result; None where the result is no view of a root."""
    chain: list[Node] = []
    node = result
    while isinstance(node, Node):
        chain.insert(0, node)
        if node in roots:
            return chain
        if not _torch_compat.is_view(node.target):
            return None
        node = node.args[0]
    return None


def _lie_alike(new: Node, old: Node) -> bool:
    """Whether a view of the one has the form of the same view of the other."""
    a, b = new.meta["val"], old.meta["val"]
    return (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())


def _erase_unread(node: Node) -> None:
    if node.users or not _torch_compat.is_view(node.target):
        return
    operand = node.args[0]
    node.graph.erase_node(node)
    if isinstance(operand, Node):
        _erase_unread(operand)
