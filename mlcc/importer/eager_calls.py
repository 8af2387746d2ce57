"""Nodes that run in Python: what neither the graph IR nor a dispatcher op expresses, as a call between kernels.

Such a node becomes a graph of itself, which is held here under a name, and in the graph IR an extern call of
`mlcc::eager_call` with that name: the code around it stays compiled.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from mlcc._load import load_core
from mlcc.importer.context import Context
from mlcc.importer.ops.pointwise import symbolic_float
from mlcc.ir.objects import number_of, object_of
from mlcc.ir.types import (
    DTYPES,
    SIZE_TENSOR,
    GraphUnsupported,
    Object,
    Tensor,
    TensorType,
    Unsupported,
    leaves,
)
from mlcc.torch_private import dispatch

TENSORS = ("tensor", "float")


class EagerCall:
    """A graph of one node, known by `key` for as long as this lives."""

    def __init__(self, graph: GraphModule, kinds: Sequence[str]) -> None:
        self._graph = graph
        # Per input: "tensor" or "float", which come as tensors; "size" or "object", which come apart, as numbers.
        self.kinds = kinds
        self.key = f"call{next(_numbers)}"
        _calls[self.key] = self

    def __call__(self, tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> list[torch.Tensor]:
        """The tensors among the results, none of them in the memory of an operand or of another one."""
        rest, numbers = iter(tensors), iter(sizes)
        arguments: list[Any] = []
        for kind in self.kinds:
            value: Any = next(rest if kind in TENSORS else numbers)
            if kind == "object":
                value = object_of(value)
            arguments.append(value.item() if kind == "float" else value)
        results = leaves(self._graph(*arguments))
        taken = {_memory_of(tensor) for tensor in tensors}
        fresh = []
        for result in results:
            if result is None:
                continue
            tensor = _as_tensor(result)
            if _memory_of(tensor) in taken:
                tensor = tensor.clone()
            taken.add(_memory_of(tensor))
            fresh.append(tensor)
        return fresh


def _as_tensor(result: Any) -> torch.Tensor:
    if isinstance(result, torch.Tensor):
        return result
    is_number = isinstance(result, bool | int | float)
    return torch.tensor(result if is_number else number_of(result))


_numbers = itertools.count()
_calls: weakref.WeakValueDictionary[str, EagerCall] = weakref.WeakValueDictionary()


def _run(key: str, tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> list[torch.Tensor]:
    with dispatch.as_outside_of_ops():
        return _calls[key](tensors, sizes)


_library = torch.library.Library("mlcc", "DEF")
_library.define("eager_call(str key, Tensor[] tensors, SymInt[] sizes) -> Tensor[]")
_library.impl("eager_call", _run, "CompositeExplicitAutograd")


def _memory_of(tensor: torch.Tensor) -> int:
    address: int = load_core().address_of(tensor)
    return address


def import_eager_call(context: Context, node: Node) -> Any:
    """The results of a node that runs in Python, as the environment holds them.

    Raises GraphUnsupported where an operand or a result is nothing that the graph IR holds.
    """
    inputs = [one for one in node.all_input_nodes if context.graph_of(one) is None]
    operands = [_operand(context, one) for one in inputs]
    tensors = [operand.handle for operand in operands if isinstance(operand, Tensor)]
    call = EagerCall(_graph_of(context, node, inputs), [_kind(context, one) for one in inputs])
    value = node.meta.get("val")
    results = computed_types(context, node, leaves(value))
    core = context.builder
    arguments = [
        call.key,
        [core.reference(place) for place in range(len(tensors))],
        [operand for operand in operands if not isinstance(operand, Tensor)],
    ]
    types = [one for one in results if one is not None]
    written = _written(node)
    places = [one for one, kind in zip(inputs, call.kinds, strict=True) if kind in TENSORS]
    mutates = [place for place, one in enumerate(places) if one in written]
    facts = {"effects": True, "mutates": mutates, **dispatch.group_work(node.target)}
    handles = core.extern_call("mlcc.eager_call.default", arguments, None, tensors, types, **facts)
    context.imported.eager_calls.append(call)
    return wrapped_results(context, value, handles)


def _kind(context: Context, node: Node) -> str:
    value = context.lookup(node)
    if isinstance(value, Object):
        return "object"
    if isinstance(context.fake(node), torch.SymFloat):
        return "float"
    return "tensor" if isinstance(value, Tensor) else "size"


def _written(node: Node) -> set[Node]:
    """What the node's op writes into."""
    if not dispatch.is_op(node.target):
        return set()
    parameters = node.target._schema.arguments
    given = [*zip(parameters, node.args, strict=False)]
    given += [(one, node.kwargs[one.name]) for one in parameters if one.name in node.kwargs]
    return {
        leaf
        for parameter, value in given
        if parameter.alias_info is not None and parameter.alias_info.is_write
        for leaf in leaves(value)
        if isinstance(leaf, Node)
    }


def _operand(context: Context, node: Node) -> Any:
    """A Tensor, or a size as an argument of the builder's."""
    value, fake = context.lookup(node), context.fake(node)
    if isinstance(value, Tensor):
        return value
    if isinstance(value, Object):
        return context.builder.size(value.size)
    if isinstance(fake, torch.SymFloat):
        try:
            return symbolic_float(context, fake)
        except Unsupported as reason:
            raise GraphUnsupported(str(reason)) from None
    if isinstance(fake, bool | int | torch.SymInt | torch.SymBool):
        return context.builder.size(context.sizes.size(fake))
    raise GraphUnsupported(f"{node.name} is a {type(fake).__name__}")


def _graph_of(context: Context, node: Node, inputs: Sequence[Node]) -> GraphModule:
    """A graph of the node alone, with an input for each of `inputs`; attributes are those of the importer's graph."""
    graph = Graph()
    copies = {one: graph.placeholder(one.name) for one in inputs}
    for one in node.all_input_nodes:
        if one not in copies:
            copies[one] = graph.node_copy(one)
    graph.output(graph.node_copy(node, lambda one: copies[one]))
    return GraphModule(context.module, graph)


def computed_types(context: Context, node: Node, values: Sequence[Any]) -> list[TensorType | None]:
    """The types of results as a call gives them: sizes and objects as tensors, None for None. Binds tensors' sizes."""
    types: list[TensorType | None] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            form = context.tensor_type(node, value)
            context.bind_sizes(form.shape)
            types.append(form)
        elif dispatch.is_object(value) or (
            isinstance(value, int | torch.SymInt) and not isinstance(value, bool)
        ):
            types.append(SIZE_TENSOR)
        elif value is None:
            types.append(None)
        else:
            raise GraphUnsupported(f"{node.name}: result is a {type(value).__name__}")
    return types


def wrapped_results(context: Context, value: Any, handles: Iterable[Any]) -> Any:
    """Results of a call in the structure of the metadata `value`; sizes are read, and None stands in their place."""
    rest = iter(handles)

    def wrap(one: Any) -> Any:
        if isinstance(one, list | tuple):
            return [wrap(item) for item in one]
        if isinstance(one, torch.Tensor):
            return Tensor(next(rest), DTYPES[one.dtype])
        if dispatch.is_object(one):
            return context.read_object(Tensor(next(rest), "i64"))
        if one is not None:
            context.read_size(Tensor(next(rest), "i64"), one)
        return None

    return wrap(value)
