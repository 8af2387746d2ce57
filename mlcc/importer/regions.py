"""Higher-order ops as control flow of the graph IR: extern calls with regions (csrc/graph/control_flow.h).

The graphs that hang on such a node become graphs of their own, with an input for each operand and, after those, for
each size of the outer graph and each constant tensor that any of them mentions.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from mlcc.importer.context import Context, Region
from mlcc.importer.eager_calls import computed_types, wrapped_results
from mlcc.importer.ops.pointwise import symbolic_float
from mlcc.ir.sizes import Size
from mlcc.ir.types import FOREIGN_DTYPES, GraphUnsupported, Tensor, TensorType, leaves
from mlcc.torch_private import symints, trace_state, tracing


@dataclass
class _Form:
    """A higher-order op in the words of the graph IR."""

    name: str
    graphs: list[GraphModule]
    lists: list[Sequence[Any]]  # of operands; those of the regions, in order
    predicate: Any = None
    num_carried: int = 0
    num_rows: int = 0  # operands after the carried ones that regions get row by row
    state: Any = None  # of a random generator
    saves_state: bool = False


def import_control_flow(context: Context, node: Node) -> Any:
    """The results of a higher-order op as the environment holds them; GraphUnsupported for ops that are not known."""
    name = str(node.target)
    form_of = _FORMS.get(name)
    if form_of is None:
        raise GraphUnsupported("no control flow of the graph IR")
    return _ControlFlow(context, node, form_of(context, node)).emit()


class _ControlFlow:
    """One node under construction."""

    def __init__(self, context: Context, node: Node, form: _Form) -> None:
        self._context = context
        self._node = node
        self._form = form
        self._operands: list[Any] = []

    def emit(self) -> Any:
        """Add the node to the builder and wrap its results."""
        region = self._region()
        *before, body = self._form.graphs  # a condition carries nothing
        condition = replace(region, num_carried=0, exported=frozenset())
        before_region = condition if self._form.name in _LOOPS else region
        inner = [self._context.nested(graph, before_region) for graph in before]
        inner.append(self._context.nested(body, region))
        args = self._arguments(inner[-1], region)
        results, types = self._results(inner, region.exported)
        handles = self._context.builder.extern_call(
            self._form.name,
            args,
            None,
            self._operands,
            types,
            regions=[one.builder for one in inner],
        )
        return wrapped_results(self._context, results, handles)

    def _region(self) -> Region:
        is_loop = self._form.name in _LOOPS
        region = Region(
            self._form.num_carried,
            fixed=self._fixed_inputs(),
            num_computed=self._form.num_carried if is_loop else 0,
            exported=frozenset(self._exported_sizes()),
        )
        seen: set[str] = set()
        for graph in self._form.graphs:
            for facts in _symbols_of(graph):
                if facts.name not in seen and self._context.sizes.knows(facts.name):
                    seen.add(facts.name)
                    region.sizes.append(facts)
            for node in graph.graph.nodes:
                if node.op == "get_attr":
                    value = attribute(graph, node)
                    if is_constant_input(value):
                        region.constants.append((graph, str(node.target), value))
        return region

    def _fixed_inputs(self) -> frozenset[int] | None:
        if self._form.name != "scan":
            return None
        *changing, fixed = map(len, self._form.lists)
        return frozenset(range(sum(changing), sum(changing) + fixed))

    def _exported_sizes(self) -> Iterable[int]:
        """Results that are sizes which the graph around does not know."""
        for place, value in enumerate(leaves(self._node.meta["val"])):
            if isinstance(value, torch.SymInt) and not all(
                self._context.sizes.knows(facts.name) for facts in symints.symbol_facts(value)
            ):
                yield place

    # -- arguments

    def _arguments(self, inner: Context, region: Region) -> list[Any]:
        core = self._context.builder
        args: list[Any] = []
        if self._form.predicate is not None:
            args.append(self._plain(self._form.predicate))
        place = 0
        names = self._names_outside(inner)
        for number, operands in enumerate(self._form.lists):
            converted = []
            if self._form.state is not None and not number:
                converted.append(self._plain(self._form.state))
            for operand in operands:
                is_row = 0 <= place - self._form.num_carried < self._form.num_rows
                expected = _renamed(inner.input_types[place], names)
                converted.append(self._operand(operand, expected, is_row))
                place += 1
            args.append(converted)
        args[-1].extend(core.size(self._context.sizes.named(facts)) for facts in region.sizes)
        for _, _, tensor in region.constants:
            args[-1].append(self._reference(self._context.constant_input(self._node, tensor)))
        return args

    def _names_outside(self, inner: Context) -> dict[str, Size]:
        """What the regions' own symbols are in the graph around: a call's graph has its own names for sizes."""
        names: dict[str, Size] = {}
        if self._form.name != "call":
            return names
        operands = [operand for operands in self._form.lists for operand in operands]
        for operand, expected in zip(operands, inner.input_types, strict=False):
            fake = self._context.fake(operand)
            if expected is None or not isinstance(fake, torch.Tensor):
                continue
            found = self._context.tensor_type(self._node, fake)
            for inside, outside in zip(expected.shape, found.shape, strict=False):
                if isinstance(inside, str) and inside.isidentifier():
                    names.setdefault(inside, outside)
        return names

    def _reference(self, tensor: Tensor) -> Any:
        self._operands.append(tensor.handle)
        return self._context.builder.reference(len(self._operands) - 1)

    def _plain(self, operand: Any) -> Any:
        value = self._context.lookup(operand) if isinstance(operand, Node) else None
        if isinstance(value, Tensor):
            return self._reference(value)
        fake = self._context.fake(operand)
        if isinstance(fake, bool | int | torch.SymInt | torch.SymBool):
            return self._context.builder.size(self._context.sizes.size(fake))
        raise GraphUnsupported(f"{self._form.name}: operand is a {type(fake).__name__}")

    def _operand(self, operand: Any, expected: TensorType | None, is_row: bool) -> Any:
        """`expected` is what the regions were traced with; None for a size."""
        fake = self._context.fake(operand)
        if isinstance(fake, torch.SymFloat):
            return self._reference(symbolic_float(self._context, fake))
        if expected is not None and isinstance(fake, int | torch.SymInt):
            return self._reference(self._context.number(operand, expected.dtype))
        if expected is None or not isinstance(fake, torch.Tensor):
            return self._plain(operand)
        found = self._context.tensor_type(self._node, fake)
        tensor = self._context.tensor(operand)
        if is_row:
            return self._reference(self._rows(tensor, found, expected))
        return self._reference(self._context.restrided(tensor, found, expected))

    def _rows(self, tensor: Tensor, found: TensorType, expected: TensorType) -> Tensor:
        strides = found.strides[1:] if found.strides is not None else None
        if strides == expected.strides:
            return tensor
        if expected.strides is None:  # rows are row-major where the whole is
            return self._context.restrided(tensor, found, found._replace(strides=None))
        raise GraphUnsupported(f"{self._form.name}: strides of a row")

    # -- results

    def _results(
        self, inner: list[Context], exported: frozenset[int]
    ) -> tuple[Any, list[TensorType]]:
        """The metadata without the sizes that the graph around knows, and the types of what is left."""
        lead = 1 if self._form.saves_state else 0
        value = self._node.meta["val"]
        kept = [
            leaf if isinstance(leaf, torch.Tensor) or place in exported else None
            for place, leaf in enumerate(leaves(value))
        ]
        kinds = [leaf is not None for leaf in kept[lead:]]
        for one in inner[1 if self._form.name in _LOOPS else 0 :]:
            if kinds != [output.kind == "value" for output in one.imported.outputs]:
                raise GraphUnsupported(f"{self._form.name}: its graphs differ in their results")
        types = computed_types(self._context, self._node, kept)
        _, structure = trace_state.flatten(value)
        results = trace_state.unflatten(kept, structure)
        return results, [one for one in types if one is not None]


def _renamed(form: TensorType | None, names: Mapping[str, Size]) -> TensorType | None:
    """The form with its symbols by other names."""

    def outside(name: re.Match[str]) -> str:
        return f"({names[name[0]]})" if name[0] in names else name[0]

    def rename(size: Size) -> Size:
        if not isinstance(size, str):
            return size
        return names[size] if size in names else re.sub(r"[A-Za-z_]\w*", outside, size)

    if form is None or form.strides is None or not names:
        return form
    return form._replace(strides=[rename(size) for size in form.strides])


def attribute(graph: GraphModule, node: Node) -> Any:
    """What a get_attr node stands for."""
    value: Any = graph
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return value


def is_constant_input(value: Any) -> bool:
    """Whether an attribute is a tensor that the graph takes as an input; small ones stand in it."""
    return isinstance(value, torch.Tensor) and (value.numel() >= 2 or value.dtype in FOREIGN_DTYPES)


def _symbols_of(graph: GraphModule) -> Iterable[symints.SymbolFacts]:
    """Of all sizes that the graph and those inside it mention."""
    for module in graph.modules():
        if not isinstance(module, GraphModule):
            continue
        for node in module.graph.nodes:
            for value in leaves(node.meta.get("val")):
                sizes = (*value.shape, *value.stride()) if _is_strided(value) else (value,)
                for size in sizes:
                    if isinstance(size, torch.SymInt):
                        yield from symints.symbol_facts(size)


def _is_strided(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout == torch.strided


# Forms whose first graph is a condition, and whose carried sizes each round computes anew.
_LOOPS = ("while_loop", "while_loop_stack")


# -- torch's higher-order ops


def _graph(context: Context, node: Any) -> GraphModule:
    value = context.graph_of(node) if isinstance(node, Node) else node
    if not isinstance(value, GraphModule):
        raise GraphUnsupported(f"{node}: no graph")
    return value


def _cond(context: Context, node: Node) -> _Form:
    predicate, then, otherwise, operands = node.args
    graphs = [_graph(context, then), _graph(context, otherwise)]
    return _Form("cond", graphs, [operands], predicate=predicate)


def _while_loop(name: str) -> Callable[[Any, Node], _Form]:
    def form(context: Context, node: Node) -> _Form:
        condition, body, carried, others = node.args
        graphs = [_graph(context, condition), _graph(context, body)]
        lists: list[Any] = [carried, others]
        return _Form(name, graphs, lists, num_carried=len(lists[0]))

    return form


def _scan(context: Context, node: Node) -> _Form:
    body, carried, xs, others = node.args
    lists: list[Any] = [carried, xs, others]
    return _Form(
        "scan",
        [_graph(context, body)],
        lists,
        num_carried=len(lists[0]),
        num_rows=len(lists[1]),
    )


def _map(context: Context, node: Node) -> _Form:
    body, xs, others = node.args
    lists: list[Any] = [[], xs, others]
    return _Form("scan", [_graph(context, body)], lists, num_rows=len(lists[1]))


def _call(context: Context, node: Node) -> _Form:
    graph, _, *operands = node.args
    return _Form("call", [_graph(context, graph)], [operands])


def _save_rng(context: Context, node: Node) -> _Form:
    op, *args = node.args
    value = _fake_result(context, op, args, node.kwargs)
    node.meta["val"] = (_state_like(context, node), value)
    graph, operands = _graph_of_op(op, args, node.kwargs, value)
    return _Form("save_rng", [graph], [operands], saves_state=True)


def _with_rng(context: Context, node: Node) -> _Form:
    state, op, *args = node.args
    node.meta["val"] = _fake_result(context, op, args, node.kwargs)
    graph, operands = _graph_of_op(op, args, node.kwargs, node.meta["val"])
    return _Form("with_rng", [graph], [operands], state=state)


def _fake_result(context: Context, op: Any, args: Any, kwargs: Any) -> Any:
    """What the op gives for fake tensors; torch's partitioner leaves it out of the metadata."""
    fakes = torch.fx.node.map_arg((tuple(args), dict(kwargs)), context.fake)
    return tracing.run_on_fakes(op, *fakes)


def _state_like(context: Context, node: Node) -> torch.Tensor:
    """A tensor of the form of the generator's state: it lies on the CPU."""
    fakes = [context.fake(operand) for operand in node.all_input_nodes]
    on_gpu = any(isinstance(fake, torch.Tensor) and fake.is_cuda for fake in fakes)
    with tracing.outside_fake_mode():
        return torch.cuda.get_rng_state() if on_gpu else torch.get_rng_state()


def _graph_of_op(op: Any, args: Any, kwargs: Any, value: Any) -> tuple[GraphModule, list[Node]]:
    """A graph of one node, and what its inputs stand for."""
    graph = Graph()
    inputs: dict[Node, Node] = {}

    def input_for(node: Node) -> Node:
        if node not in inputs:
            inputs[node] = graph.placeholder(re.sub(r"\W", "_", node.name))
            inputs[node].meta.update(node.meta)
        return inputs[node]

    args, kwargs = torch.fx.node.map_arg((tuple(args), dict(kwargs)), input_for)
    call = graph.call_function(op, args, kwargs)
    call.meta["val"] = value
    results: Any = call
    if isinstance(value, list | tuple):
        results = []
        for place, one in enumerate(value):
            results.append(graph.call_function(operator.getitem, (call, place)))
            results[-1].meta["val"] = one
    graph.output(results)
    return GraphModule({}, graph), list(inputs)


_FORMS: dict[str, Callable[[Any, Node], _Form]] = {
    "cond": _cond,
    "while_loop": _while_loop("while_loop"),
    "while_loop_stack_output": _while_loop("while_loop_stack"),
    "scan": _scan,
    "map_impl": _map,
    "invoke_subgraph": _call,
    "run_and_save_rng_state": _save_rng,
    "run_with_rng_state": _with_rng,
}
