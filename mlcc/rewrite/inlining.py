"""Functions of tensors as nodes of a graph that torch has traced."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.fx import GraphModule, Node

from mlcc.torch_private import trace_state, tracing


def inlined(
    gm: GraphModule,
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    decompositions: dict[Any, Callable[..., Any]],
    name: str,
) -> Any:
    """`function` of nodes and numbers as nodes of `gm`, where nodes are being inserted; its results.

    Constants become attributes of `gm` that begin with `name`, but for those that it has.
    """
    leaves, structure = trace_state.flatten((tuple(args), dict(kwargs)))
    leaves = [_graph_of(gm, leaf) or leaf for leaf in leaves]
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Node)]
    form: list[Any] = []

    def run(*values: Any) -> Any:
        filled = list(leaves)
        for place, value in zip(places, values, strict=True):
            filled[place] = value
        args, kwargs = trace_state.unflatten(filled, structure)
        results, result_structure = trace_state.flatten(function(*args, **kwargs))
        form.append(result_structure)
        return results

    fakes = [leaves[place].meta["val"] for place in places]
    inputs = [node.meta.get("val") for node in gm.graph.find_nodes(op="placeholder")]
    inner = tracing.trace_on_fakes(run, fakes, decompositions, inputs)
    inner.graph.eliminate_dead_code()
    outer = dict(
        zip(
            [one for one in inner.graph.nodes if one.op == "placeholder"],
            [leaves[place] for place in places],
            strict=True,
        )
    )
    _carry_constants(gm, inner, name)
    results = gm.graph.graph_copy(inner.graph, outer)
    return trace_state.unflatten(results, form[-1])


def _carry_constants(gm: GraphModule, inner: GraphModule, name: str) -> None:
    known = {
        id(getattr(gm, str(one.target), None)): one.target
        for one in gm.graph.find_nodes(op="get_attr")
    }
    for one in inner.graph.find_nodes(op="get_attr"):
        constant = operator.attrgetter(str(one.target))(inner)
        one.target = known.setdefault(id(constant), f"{name}_{one.name}")
        one.meta["val"] = constant
        setattr(gm, one.target, constant)


def _graph_of(gm: GraphModule, leaf: Any) -> GraphModule | None:
    if not isinstance(leaf, Node) or leaf.op != "get_attr":
        return None
    found = operator.attrgetter(str(leaf.target))(gm)
    return found if isinstance(found, GraphModule) else None
