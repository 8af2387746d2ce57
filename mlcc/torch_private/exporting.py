"""Private parts of torch around torch.export."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._export.utils import _get_decomp_for_cia
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.utils._pytree import tree_flatten as tree_flatten
from torch.utils._pytree import tree_leaves as tree_leaves
from torch.utils._pytree import tree_unflatten as tree_unflatten
from torch.utils._sympy.value_ranges import ValueRanges


def composite_decompositions() -> dict[Any, Callable[..., Any]]:
    """How torch.export takes composite ops (`linear`, `layer_norm`, ...) apart, which a trace never shows."""
    known = {
        op: decomposition
        for op, decomposition in torch.export.default_decompositions().items()
        if _is_composite(op)
    }
    return known | {op: _get_decomp_for_cia(op) for op in _left_out() if op not in known}


def _left_out() -> list[Any]:
    """Composite ops that torch.export keeps whole (2.13)."""
    aten = torch.ops.aten
    names = [name for name in dir(aten) if name.startswith("upsample_")]
    overloads = [getattr(getattr(aten, name), "vec", None) for name in names]
    return [op for op in overloads if op is not None and _is_composite(op)]


def _is_composite(op: Any) -> bool:
    has_kernel = getattr(op, "has_kernel_for_dispatch_key", None)
    return has_kernel is not None and bool(
        has_kernel(torch._C.DispatchKey.CompositeImplicitAutograd)
    )


@contextmanager
def open_ranges(ep: ExportedProgram, least: Mapping[str, int]) -> Iterator[None]:
    """Inside sizes may be what the program promises: the trace had assumed 2 or more of all that vary (2.13).

    `least`: what the user said, by name of the symbol; others that are promised to be 2 or more are 1 or more.
    """
    before: list[tuple[dict[Any, Any], Any, Any]] = []
    for value in _values(ep):
        for size in value.shape:
            if not isinstance(size, torch.SymInt):
                continue
            ranges = size.node.shape_env.var_to_range
            for symbol in size.node.expr.free_symbols:
                promised = ep.range_constraints.get(symbol, ranges[symbol])
                low = least.get(str(symbol), 1 if promised.lower == 2 else promised.lower)
                before.append((ranges, symbol, ranges[symbol]))
                ranges[symbol] = ValueRanges(low, promised.upper)
    try:
        yield
    finally:  # the caller may go on with the program
        for ranges, symbol, range_ in reversed(before):
            ranges[symbol] = range_


@contextmanager
def real_constants(ep: ExportedProgram) -> Iterator[None]:
    """Inside, real tensors may be constants of what is traced on the program's fake ones."""
    mode = next((getattr(value, "fake_mode", None) for value in _values(ep)), None)
    if mode is None:
        yield
        return
    before, mode.allow_non_fake_inputs = mode.allow_non_fake_inputs, True
    try:
        yield
    finally:
        mode.allow_non_fake_inputs = before


def drop_constants(ep: ExportedProgram) -> set[str]:
    """Takes arguments that are no tensors out of the graph, which holds their values; their names."""
    dropped = set()
    for spec in ep.graph_signature.input_specs:
        if not isinstance(spec.arg, ConstantArgument):
            continue
        for node in ep.graph_module.graph.find_nodes(op="placeholder"):
            if node.name == spec.arg.name and not node.users:
                ep.graph_module.graph.erase_node(node)
                dropped.add(node.name)
    return dropped


def _values(ep: ExportedProgram) -> list[torch.Tensor]:
    """The fake tensors of its inputs."""
    nodes = ep.graph_module.graph.find_nodes(op="placeholder")
    values = [node.meta.get("val") for node in nodes]
    return [value for value in values if isinstance(value, torch.Tensor)]


def symbol_name(size: Any) -> str:
    """The name of a size that is one symbol, else ""."""
    expression = getattr(getattr(size, "node", None), "expr", None)
    return str(expression) if expression is not None and expression.is_Symbol else ""


def input_shapes(ep: ExportedProgram) -> list[tuple[Any, ...] | None]:
    """Sizes of each argument, symbols among them; None of what is no tensor."""
    values = {
        node.name: node.meta.get("val")
        for node in ep.graph_module.graph.find_nodes(op="placeholder")
    }
    found = [
        values.get(name) if isinstance(name, str) else None
        for name in ep.graph_signature.user_inputs
    ]
    return [tuple(value.shape) if isinstance(value, torch.Tensor) else None for value in found]


def hints(ep: ExportedProgram) -> dict[str, int]:
    """What symbols were when the program was traced, by name."""
    found: dict[str, int] = {}
    for value in _values(ep):
        for size in value.shape:
            if symbol_name(size):
                found[symbol_name(size)] = int(size.node.hint)
    return found


def sizes_at(shape: Sequence[Any], values: Mapping[str, int]) -> list[int]:
    """Sizes where symbols have these values."""
    numbers = []
    for size in shape:
        if not isinstance(size, torch.SymInt):
            numbers.append(int(size))
            continue
        expression = size.node.expr
        known = {symbol: values[str(symbol)] for symbol in expression.free_symbols}
        numbers.append(int(expression.subs(known)))
    return numbers


def drop_tokens(ep: ExportedProgram) -> int:
    """Makes plain calls of ops with effects, which torch chains by tokens; how many of these the signature counts.

    Their order is that of the graph. Tokens are the first inputs and outputs.
    """
    graph = ep.graph_module.graph
    count = sum(spec.kind == InputKind.TOKEN for spec in ep.graph_signature.input_specs)
    if not count:
        return 0
    for node in graph.find_nodes(op="call_function", target=torch.ops.higher_order.with_effects):
        token, op, *args = node.args
        with graph.inserting_before(node):
            call = graph.call_function(op, tuple(args), dict(node.kwargs))
        call.meta = {key: value for key, value in node.meta.items() if key != "val"}
        results = node.meta["val"][1:]
        call.meta["val"] = results[0] if len(results) == 1 else results or None
        for user in list(node.users):
            place = user.args[1]
            if place == 0:
                user.replace_all_uses_with(token)
            elif len(results) == 1:
                user.replace_all_uses_with(call)
            else:
                user.args = (call, place - 1)
                continue
            graph.erase_node(user)
        graph.erase_node(node)
    output = graph.output_node()
    output.args = (tuple(output.args[0])[count:],)
    for placeholder in graph.find_nodes(op="placeholder")[:count]:
        graph.erase_node(placeholder)
    return count


def guards(ep: ExportedProgram, names: Collection[str]) -> list[Any]:
    """Relations of sympy over sizes of these names that the trace has taken for granted."""
    environments = {
        id(size.node.shape_env): size.node.shape_env
        for value in _values(ep)
        for size in value.shape
        if isinstance(size, torch.SymInt)
    }
    found: dict[str, Any] = {}
    for environment in environments.values():
        for guard in environment.guards:
            relation = environment.replace(guard.expr)
            symbols = {str(symbol) for symbol in relation.free_symbols}
            if symbols and symbols <= set(names):
                found.setdefault(str(relation), relation)
    return list(found.values())


def in_words(relation: Any, names: Mapping[str, str]) -> str:
    """The relation with people's names of sizes."""
    import sympy

    shown = {
        symbol: sympy.Symbol(names[str(symbol)], integer=True)
        for symbol in relation.free_symbols
        if str(symbol) in names
    }
    return str(relation.xreplace(shown))
