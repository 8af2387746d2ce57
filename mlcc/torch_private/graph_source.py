"""Dynamo's graphs as Python text, for a process that has their compiled form and needs to run one eagerly after all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch


@dataclass(frozen=True)
class GraphSource:
    """A graph's function as text, and the graphs that it calls by the names of its attributes."""

    text: str
    inner: dict[str, GraphSource]

    def function(self) -> Callable[..., Any]:
        """The graph as a function that runs it eagerly."""
        names: dict[str, Any] = {}
        exec(compile(self.text, "<a graph of Dynamo>", "exec"), names)
        forward = names["forward"]
        owner = SimpleNamespace(**{name: one.function() for name, one in self.inner.items()})

        def run(*arguments: Any) -> Any:
            return forward(owner, *arguments)

        return run


def source_of(gm: torch.fx.GraphModule) -> GraphSource:
    """The text of a graph. ValueError where it holds more than graphs: tensors, or modules with parameters."""
    from torch.fx.graph_module import _format_import_block
    from torch.package import sys_importer

    inner = {}
    for node in gm.graph.find_nodes(op="get_attr"):
        held = getattr(gm, str(node.target), None)
        if not isinstance(held, torch.fx.GraphModule):
            raise ValueError(f"the graph holds {node.target}")
        inner[str(node.target)] = source_of(held)
    if gm.graph.find_nodes(op="call_module"):
        raise ValueError("the graph calls a module")
    code = gm.graph.python_code(root_module="self")
    imports = _format_import_block(code.globals, sys_importer)
    return GraphSource(f"{imports}\n{code.src}", inner)
