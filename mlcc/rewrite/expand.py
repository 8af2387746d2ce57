"""Higher-order ops that are other ops in a wrap, written out: mutating ops, ops whose order tokens tell, attention."""

from __future__ import annotations

import copy
import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from mlcc.ir.op_table import OpTable
from mlcc.rewrite import decompositions
from mlcc.rewrite.flex_attention import flex_attention
from mlcc.rewrite.inlining import inlined
from mlcc.torch_private import dispatch

# In a node's metadata: its memory counts, not its value only. It is an extern then; one that stands after a write keeps
# its place among the nodes with effects.
MEMORY = "mlcc_memory"
MEMORY_OF_VIEW = "of a view"
MEMORY_OF_WRITE = "of a write"
MEMORY_AFTER_WRITE = "after a write"


class NotExpanded(Exception):  # noqa: N818 (an expected answer)
    """Such an op in a form that is not written out; the text says which."""


def expanded(gm: GraphModule, table: OpTable) -> GraphModule:
    """The same graph without auto_functionalized, auto_functionalized_v2, with_effects and, on CPUs, flex_attention;
    `gm` stays as it is.

    A mutating op becomes clones and the op itself, which writes into them. Ops with effects keep their order by
    themselves, so that tokens pass through. What attention becomes is taken apart down to the ops of `table`.
    """
    if not any(_is_wrapper(node) for node in gm.graph.nodes):
        return gm
    result = GraphModule(gm, copy.deepcopy(gm.graph))
    for node in list(result.graph.nodes):
        if not _is_wrapper(node):
            continue
        if str(node.target) == "with_effects":
            _unwrap_effects(node)
        elif _is_attention(node):
            _write_out_attention(result, node, table)
            result.graph.eliminate_dead_code()  # what made the tables of blocks
        else:
            _write_out(result, node)
    result.graph.lint()
    return result


def _is_wrapper(node: Node) -> bool:
    if node.op != "call_function" or not dispatch.is_higher_order(node.target):
        return False
    return (
        str(node.target) == "with_effects"
        or _is_attention(node)
        or dispatch.functional_form(node.target) is not None
    )


def _is_attention(node: Node) -> bool:
    return str(node.target) == "flex_attention" and node.args[0].meta["val"].device.type == "cpu"


def _replace_items(node: Node, items: list[Any]) -> None:
    """The node's results, one for each item, for those who take them out of it."""
    for user in list(node.users):
        if user.target is not operator.getitem:
            raise NotExpanded(f"{node.name}: {user.name} takes all results at once")
        user.replace_all_uses_with(items[user.args[1]])
        user.graph.erase_node(user)
    node.graph.erase_node(node)


def _unwrap_effects(node: Node) -> None:
    token, op, *args = node.args
    with node.graph.inserting_before(node):
        call = node.graph.call_function(op, tuple(args), dict(node.kwargs))
        value = node.meta["val"]
        number = len(op._schema.returns)
        call.meta = dict(node.meta)
        call.meta["val"] = None if not number else value[1] if number == 1 else tuple(value[1:])
        items: list[Any] = [token, call]
        if number > 1:
            items[1:] = [
                node.graph.call_function(operator.getitem, (call, i)) for i in range(number)
            ]
            for item, one in zip(items[1:], value[1:], strict=True):
                item.meta["val"] = one
    _replace_items(node, items)


def _write_out(gm: GraphModule, node: Node) -> None:
    function: Any = dispatch.functional_form(node.target)
    before = set(gm.graph.nodes)
    with gm.graph.inserting_before(node):
        copied = inlined(gm, function, node.args, node.kwargs, {}, node.name)
        for one in gm.graph.nodes:
            if one in before:
                continue
            if one.op == "get_attr":
                raise NotExpanded(f"{node.name}: holds a constant")
            one.meta[MEMORY] = MEMORY_OF_WRITE
        results = [_after_write(gm, result) for result in copied]
    _replace_items(node, results)


def _write_out_attention(gm: GraphModule, node: Node, table: OpTable) -> None:
    """Only the results that somebody reads, since others would want the scores."""
    wanted = {user.args[1] for user in node.users if user.target is operator.getitem}

    def function(*args: Any, **kwargs: Any) -> list[Any]:
        results = flex_attention(*args, **kwargs)
        return [result if place in wanted else None for place, result in enumerate(results)]

    with gm.graph.inserting_before(node):
        known = decompositions.table(frozenset(table.overloads()))
        results = inlined(gm, function, node.args, node.kwargs, known, node.name)
    _replace_items(node, results)


def _after_write(gm: GraphModule, result: Any) -> Any:
    """A value of its own for memory as it is after the write, so that nobody reads it before."""
    if not isinstance(result, Node) or not isinstance(result.meta.get("val"), torch.Tensor):
        return result
    value = gm.graph.call_function(torch.ops.aten.alias.default, (result,))
    value.meta.update(val=result.meta["val"], **{MEMORY: MEMORY_AFTER_WRITE})
    return value
