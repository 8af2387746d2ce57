"""Graphs with complex tensors become graphs of real ones, which alone there is code for."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node

from mlcc.ir.types import source_line
from mlcc.rewrite import complex_pairs
from mlcc.rewrite.fourier import NoPair, Pair
from mlcc.rewrite.inlining import inlined


class NotSplit(Exception):  # noqa: N818 (an expected answer)
    """Complex numbers where there is no pair for them; the text has a line for each."""


def split(
    gm: GraphModule,
    constants: Mapping[str, torch.Tensor],
    decompositions: dict[Any, Callable[..., Any]],
) -> list[str]:
    """Computes with pairs what `gm` computes with complex tensors; names of inputs that are gone.

    `constants`: values of inputs, by their nodes' names: those that are complex become two real ones that `gm` holds.
    """
    if not any(_is_complex(node) for node in gm.graph.nodes):
        return []
    splitter = _Splitter(gm, decompositions)
    gone = splitter.split_constants(constants)
    for node in list(gm.graph.nodes):
        if node.op == "call_function":
            splitter.split(node)
    splitter.finish()
    return gone


def _is_complex(node: Node) -> bool:
    found = node.meta.get("val")
    values = found if isinstance(found, list | tuple) else [found]
    return any(isinstance(value, torch.Tensor) and value.is_complex() for value in values)


class _Splitter:
    def __init__(self, gm: GraphModule, decompositions: dict[Any, Callable[..., Any]]) -> None:
        self._gm = gm
        self._decompositions = decompositions
        self._rules = complex_pairs.table()
        self._pairs: dict[Node, Any] = {}  # a pair of nodes, or a list of such
        self._failed: set[Node] = set()
        self._reasons: list[str] = []

    def split_constants(self, constants: Mapping[str, torch.Tensor]) -> list[str]:
        gone = []
        inputs = self._gm.graph.find_nodes(op="placeholder")
        first = next(node for node in self._gm.graph.nodes if node not in inputs)
        for node in inputs:
            if not _is_complex(node):
                continue
            value = constants.get(node.name)
            if value is None:
                self._fail(node, f"{node.name}: an argument is complex, expected its view_as_real")
                continue
            with self._gm.graph.inserting_before(first):
                real, imag = value.detach().resolve_conj().real, value.detach().resolve_conj().imag
                self._pairs[node] = Pair(
                    self._constant(f"{node.name}_real", real.contiguous(), node.meta["val"]),
                    self._constant(f"{node.name}_imag", imag.contiguous(), node.meta["val"]),
                )
            gone.append(node.name)
        return gone

    def _constant(self, name: str, value: torch.Tensor, fake: torch.Tensor) -> Node:
        setattr(self._gm, name, value)
        node = self._gm.graph.create_node("get_attr", name)
        node.meta["val"] = fake.new_empty(value.shape, dtype=value.dtype)
        return node

    def split(self, node: Node) -> None:
        """Makes pairs of what the node takes and gives, if something of that is complex."""
        sources = node.all_input_nodes
        if any(source in self._failed for source in sources):
            self._failed.add(node)
            return
        if not _is_complex(node) and not any(source in self._pairs for source in sources):
            return
        if node.target is operator.getitem:
            self._pairs[node] = self._pairs[node.args[0]][node.args[1]]
            return
        if node.target is torch.ops.aten.sym_size.int:
            node.args = (self._pairs[node.args[0]].real, *node.args[1:])
            return
        rule = self._rules.get(node.target)
        if rule is None:
            self._fail(node, f"{node.target}: there is no code for complex numbers")
            return
        self._replace(node, rule)

    def _replace(self, node: Node, rule: Callable[..., Any]) -> None:
        args, kwargs = (_filled(value, self._pairs) for value in (node.args, node.kwargs))
        before = set(self._gm.graph.nodes)
        name = f"{node.name}_parts"
        with self._gm.graph.inserting_before(node):
            try:
                result = inlined(self._gm, rule, args, kwargs, self._decompositions, name)
            except NoPair as reason:
                self._fail(node, f"{node.target}: {reason}")
                return
        for one in self._gm.graph.nodes:
            if one not in before and "stack_trace" in node.meta:
                one.meta["stack_trace"] = node.meta["stack_trace"]
        if isinstance(result, Node):
            node.replace_all_uses_with(result)
        self._pairs[node] = result

    def _fail(self, node: Node, reason: str) -> None:
        self._failed.add(node)
        line = source_line(node)
        self._reasons.append(f"  {reason}" + (f" ({line})" if line else ""))

    def finish(self) -> None:
        """Takes away what is complex. NotSplit where something could not be split, or is a result."""
        results = self._gm.graph.output_node().all_input_nodes
        self._reasons += [
            f"  {node.name}: a result is complex, expected its view_as_real"
            for node in results
            if node in self._pairs
        ]
        if self._reasons:
            raise NotSplit("\n".join(self._reasons))
        for node in reversed(list(self._pairs)):
            self._gm.graph.erase_node(node)
        self._gm.graph.eliminate_dead_code()
        self._gm.graph.lint()
        self._gm.recompile()


def _filled(value: Any, pairs: Mapping[Node, Any]) -> Any:
    """Pairs in place of complex nodes."""
    if isinstance(value, Node):
        return pairs.get(value, value)
    if isinstance(value, list | tuple):
        return type(value)(_filled(one, pairs) for one in value)
    if isinstance(value, dict):
        return {key: _filled(one, pairs) for key, one in value.items()}
    return value
