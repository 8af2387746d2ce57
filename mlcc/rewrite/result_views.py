"""Results that are views: of an input which the program changes, or of what another result is a view of as well.

AOTAutograd makes the first kind again from the input; of what the graph returns for them only the form counts. But the
graph returns views of the value that is copied into the input, which would then need memory of its own. The second kind
it leaves to the graph where nothing requires gradients.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence

import torch
from torch.fx import GraphModule, Node

from mlcc.rewrite.expand import MEMORY, MEMORY_OF_VIEW
from mlcc.torch_private import dispatch, symints

# Views that the graph IR has as such; others it may compute. So is `view`, where its sizes are numbers.
_WINDOWS = frozenset(
    [
        *("alias", "detach", "expand", "permute", "select", "slice", "squeeze", "t", "transpose"),
        *("split", "split_with_sizes", "unbind", "unsqueeze"),
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
    for place in filter(lambda place: isinstance(results[place], Node), places):
        chain = _views_of(results[place], inputs)
        if chain[0] not in inputs or not _lie_alike(chain[0], inputs[chain[0]]):
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


def keep_shared(gm: GraphModule, num_results: int) -> None:
    """Have views as memory, not as values, where several of the first outputs share what they are views of.

    `return v, v.diagonal()` may give two tensors of their own else. So are views of inputs to symbolic sizes, whose
    place torch takes from what the graph returns for them.
    """
    (output,) = gm.graph.find_nodes(op="output")
    results = [node for node in output.args[0][:num_results] if isinstance(node, Node)]
    chains = [_views_of(node) for node in dict.fromkeys(results)]
    roots = [chain[0] for chain in chains]
    for chain in chains:
        if chain[0].op == "placeholder":
            is_memory = any(len(view.all_input_nodes) > 1 for view in chain[1:])
        else:
            is_memory = roots.count(chain[0]) > 1
        for view in chain[1:] if is_memory else ():
            if view.target is not operator.getitem and not _is_window(view):
                view.meta[MEMORY] = MEMORY_OF_VIEW


def _is_window(view: Node) -> bool:
    name = str(view.target._schema.name.split("::")[1])
    return name in _WINDOWS or (name == "view" and not symints.has_symbols(view.meta["val"]))


def _views_of(result: Node, roots: Collection[Node] = ()) -> list[Node]:
    """What the result is a view of in the end, or one of the roots; the view of it, ..., the result."""
    chain = [result]
    while chain[0] not in roots and _is_view(chain[0]):
        chain.insert(0, chain[0].args[0])
    return chain


def _is_view(node: Node) -> bool:
    if node.target is operator.getitem:
        return dispatch.gives_views(node.args[0].target)
    return dispatch.is_view(node.target) or dispatch.gives_views(node.target)


def _lie_alike(new: Node, old: Node) -> bool:
    """Whether a view of the one has the form of the same view of the other."""
    a, b = new.meta["val"], old.meta["val"]
    return (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())


def _erase_unread(node: Node) -> None:
    if node.users or not _is_view(node):
        return
    operand = node.args[0]
    node.graph.erase_node(node)
    if isinstance(operand, Node):
        _erase_unread(operand)
