"""An ATen graph that runs op by op, as code for the graphs before and behind it expects that."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from mlcc.torch_private import symints, tracing


class EagerRun:
    """A boxed function that runs a graph; its results lie in memory as the trace says.

    Ops may lay out results in another way than their rules for fake tensors tell, and code that reads them was made for
    what those tell. `tells_strides` is False where only running tells what the trace says of some.
    """

    def __init__(self, gm: GraphModule) -> None:
        self._gm = gm
        (output,) = gm.graph.find_nodes(op="output")
        results = output.args[0]
        values = [one.meta.get("val") if isinstance(one, Node) else None for one in results]
        sources = _sources(gm)
        laid_out = [place for place, value in enumerate(values) if _has_layout(value)]
        self._places = [i for i in laid_out if _names(values[i]) <= sources.keys()]
        self.tells_strides = self._places == laid_out
        self._strides_of = _strides_of(sources, [values[place] for place in self._places])

    def __call__(self, inputs: list[Any]) -> Any:
        """Run on tensors and numbers; the list is emptied."""
        arguments = list(inputs)
        inputs.clear()
        strides = self._strides_of(arguments)
        results = list(self._gm(*arguments))
        for place, stride in zip(self._places, strides, strict=True):
            results[place] = _laid_out(results[place], stride)
        return results


def _has_layout(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout == torch.strided and value.dim() > 1


def _laid_out(result: torch.Tensor, stride: Sequence[int]) -> torch.Tensor:
    sizes = zip(result.shape, result.stride(), stride, strict=True)
    is_as_told = all(size == 1 or has == wanted for size, has, wanted in sizes)
    if is_as_told or result.numel() == 0:
        return result
    other = torch.empty_strided(result.shape, stride, dtype=result.dtype, device=result.device)
    return other.copy_(result)


def _names(value: torch.Tensor) -> set[str]:
    """The symbols in the strides of a fake tensor."""
    symbolic = [one for one in value.stride() if isinstance(one, torch.SymInt)]
    return {facts.name for one in symbolic for facts in symints.symbol_facts(one)}


def _sources(gm: GraphModule) -> dict[str, str]:
    """Where the symbols of a graph come from: "s0" -> "arguments[1].shape[0]"."""
    sources: dict[str, str] = {}
    for place, node in enumerate(gm.graph.find_nodes(op="placeholder")):
        value, name = node.meta.get("val"), f"arguments[{place}]"
        sizes = {name: value}
        if isinstance(value, torch.Tensor):
            sizes = {f"{name}.shape[{dim}]": size for dim, size in enumerate(value.shape)}
        for text, size in sizes.items():
            if isinstance(size, torch.SymInt) and symints.is_atom(size):
                sources.setdefault(symints.sym_name(size), text)
    return sources


def _strides_of(
    sources: Mapping[str, str], values: Sequence[torch.Tensor]
) -> Callable[[list[Any]], list[Sequence[int]]]:
    """A function from the inputs of a graph to the strides of these values."""
    names = set[str]().union(*map(_names, values))
    if not names:
        fixed: list[Sequence[int]] = [value.stride() for value in values]
        return lambda arguments: fixed
    lines = ["def strides_of(arguments):"]
    lines += [f"    {name} = {text}" for name, text in sources.items() if name in names]
    rows = [
        tracing.python_texts([symints.expression(one) for one in value.stride()])
        for value in values
    ]
    lines.append(f"    return [{', '.join('[' + ', '.join(row) + ']' for row in rows)}]")
    scope: dict[str, Any] = {"math": math}
    exec("\n".join(lines), scope)
    strides_of: Callable[[list[Any]], list[Sequence[int]]] = scope["strides_of"]
    return strides_of
