"""An ATen graph that runs op by op, as code for the graphs before and behind it expects that."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from mlcc.torch_private import symints, trace_state, tracing

# Where a size stands among the arguments of a graph: a place, and a dimension (None: it is a number).
_Place = tuple[int, int | None]


class EagerRun:
    """A boxed function that runs a graph; its results lie in memory as the trace says.

    Ops may lay out results in another way than their rules for fake tensors tell, and code that reads them was made for
    what those tell. `tells_strides` is False where sizes of the arguments do not tell what the trace says of some.
    Modes of autograd and autocast around a call do not count: the graph has what they did to the program.
    """

    def __init__(self, gm: GraphModule) -> None:
        self._gm = gm
        (output,) = gm.graph.find_nodes(op="output")
        results = output.args[0]
        values = [one.meta.get("val") if isinstance(one, Node) else None for one in results]
        sources = _sources(gm)
        laid_out = {i: value for i, value in enumerate(values) if _has_layout(value)}
        formulas = {place: _strides_of(value, sources) for place, value in laid_out.items()}
        self._strides = {i: formula for i, formula in formulas.items() if formula is not None}
        self.tells_strides = len(self._strides) == len(laid_out)

    def __call__(self, inputs: list[Any]) -> Any:
        """Run on tensors and numbers; the list is emptied."""
        arguments = list(inputs)
        inputs.clear()
        with torch.no_grad(), trace_state.no_autocast():
            results = list(self._gm(*arguments))
            for place, formula in self._strides.items():
                results[place] = _laid_out(results[place], formula(arguments), arguments)
        return results


def _has_layout(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout == torch.strided and value.dim() > 1


def _laid_out(result: Any, stride: Sequence[int], arguments: Sequence[Any]) -> Any:
    if not _has_layout(result) or result.dim() != len(stride):  # which the trace foretold wrongly
        return result
    sizes = list(zip(result.shape, result.stride(), stride, strict=True))
    if result.numel() == 0 or all(size == 1 or has == told for size, has, told in sizes):
        return result
    memory = result.untyped_storage().data_ptr()
    is_view = any(
        isinstance(one, torch.Tensor) and one.untyped_storage().data_ptr() == memory
        for one in arguments
    )
    if is_view or any(size > 1 and told == 0 for size, _, told in sizes):
        return result
    other = torch.empty_strided(result.shape, stride, dtype=result.dtype, device=result.device)
    return other.copy_(result)


def _sources(gm: GraphModule) -> dict[str, tuple[_Place, int]]:
    """Where the symbols of a graph come from, and their values in the trace."""
    sources: dict[str, tuple[_Place, int]] = {}
    for number, node in enumerate(gm.graph.find_nodes(op="placeholder")):
        value = node.meta.get("val")
        sizes: dict[_Place, Any] = {(number, None): value}
        if isinstance(value, torch.Tensor) and value.layout == torch.strided:
            sizes = {(number, dim): size for dim, size in enumerate(value.shape)}
        for place, size in sizes.items():
            symbol = symints.symbol_of(size)
            if symbol is not None:
                name, hint = symbol
                sources.setdefault(name, (place, hint))
    return sources


def _strides_of(
    value: torch.Tensor, sources: Mapping[str, tuple[_Place, int]]
) -> Callable[[Sequence[Any]], Sequence[int]] | None:
    """A function from the arguments to the strides that the trace says of a value; None where they do not tell."""
    stride = value.stride()
    symbolic = [one for one in stride if isinstance(one, torch.SymInt)]
    if not symbolic:
        return lambda arguments: stride
    if not all(symints.has_expression(one) for one in symbolic):
        return None
    names = list({facts.name for one in symbolic for facts in symints.symbol_facts(one)})
    if not sources.keys() >= set(names):
        return None
    text = ", ".join(tracing.python_texts([symints.as_expression(one) for one in stride]))
    try:
        formula = eval(f"lambda {', '.join(names)}: [{text}]", {"math": math, "torch": torch})
        told = formula(*(sources[name][1] for name in names))
    except Exception:  # what has no text that Python evaluates
        return None
    if not all(type(one) is int for one in told):
        return None
    places = [sources[name][0] for name in names]
    return lambda arguments: formula(*(_size_at(arguments, place) for place in places))


def _size_at(arguments: Sequence[Any], place: _Place) -> int:
    number, dim = place
    size: int = arguments[number] if dim is None else arguments[number].shape[dim]
    return size
