"""What AOTAutograd's partition of a joint graph saves and what it computes again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.utils.checkpoint import CheckpointPolicy

from mlcc.torch_private import patches


def min_cut(views: Iterable[str], others: Iterable[str]) -> Callable[..., Any]:
    """torch's partition by minimal cut, where the named aten ops may be computed again too; `views` cost nothing."""

    def packets(names: Iterable[str]) -> frozenset[Any]:
        found = (getattr(torch.ops.aten, name, None) for name in names)
        return frozenset(packet for packet in found if packet is not None)

    more = packets(views), packets(others)

    def partition(joint: Any, *args: Any, **kwargs: Any) -> Any:
        _save_overwritten(joint.graph)
        patches.save_floats()
        with patches.recomputing(*more):
            return min_cut_rematerialization_partition(joint, *args, **kwargs)

    return partition


def recompute(node: torch.fx.Node) -> None:
    """Lets the backward pass compute the node again, whatever that takes."""
    node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE


def save(node: torch.fx.Node) -> None:
    """Lets the forward pass save the node for the backward pass, if that needs it."""
    node.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def gradients_in(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """What depends on gradients of results, in the graph of both passes, and these themselves."""
    found: set[torch.fx.Node] = set()
    for node in graph.nodes:
        is_given = node.op == "placeholder" and "tangents" in str(node.target)
        if node.op != "output" and (is_given or not found.isdisjoint(node.all_input_nodes)):
            found.add(node)
    return found


def _save_overwritten(graph: torch.fx.Graph) -> None:
    """Let the backward pass read a copy of what the forward pass overwrites.

    torch's partition (2.13) takes an input that is written for one that is not: the backward pass would read what was
    written, or compute again from it.
    """
    copy = torch.ops.aten.copy_.default
    writes = [node for node in graph.nodes if node.target is copy]
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    backward = gradients_in(graph)
    needed = set(backward)
    for node in reversed(graph.nodes):
        if node in needed:
            needed.update(node.all_input_nodes)
    written = {node.args[0] for node in writes} & needed - backward
    for overwritten in filter(written.__contains__, inputs):
        with graph.inserting_after(inputs[-1]):
            saved = graph.call_function(torch.ops.aten.clone.default, (overwritten,))
        saved.meta = dict(overwritten.meta)
        save(saved)
        for user in list(overwritten.users):
            if user in needed and user is not saved and user.target is not copy:
                user.replace_input_with(overwritten, saved)
