"""A model as torch.export sees it, in the graph IR: what a package is compiled from."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from mlcc._errors import Error
from mlcc._load import load_core
from mlcc.capture.session import decomposition_table, op_table
from mlcc.importer import fx_graph
from mlcc.importer.context import ImportedGraph
from mlcc.ir.sizes import SizePrinter, UnsupportedSize
from mlcc.ir.types import GraphUnsupported, source_line
from mlcc.rewrite import (
    attention_widths,
    frames,
    grid_sampling,
    ordering,
    selection,
    split_complex,
    vector_products,
)
from mlcc.torch_private import exporting, symints


@dataclass
class Program:
    """The graph of a model with what it needs: `builder` has it, and gives it up when it is compiled."""

    builder: Any
    imported: ImportedGraph
    inputs: list[Any] = field(
        default_factory=list
    )  # of the graph: a tensor, or None for an argument
    input_names: list[str] = field(default_factory=list)
    output_names: list[str] = field(default_factory=list)
    input_tree: dict[str, Any] = field(default_factory=dict)
    output_tree: dict[str, Any] = field(default_factory=dict)
    # Sizes that vary: name in the graph, name for people, least and greatest value.
    symbols: list[tuple[str, str, int, int | None]] = field(default_factory=list)
    # What sizes have to be beside that: an expression that is 1 where it holds, and a text.
    conditions: list[tuple[str, str]] = field(default_factory=list)
    # By names of the model's state_dict: the number of an input, or -1 where no input is that.
    weight_names: list[tuple[str, int]] = field(default_factory=list)
    lines: dict[str, str] = field(default_factory=dict)  # of ops: where the first of each stands


def exported(
    model: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None, dynamic_shapes: Any
) -> ExportedProgram:
    """`model` as an ExportedProgram of these arguments' sizes; one that is such a program stays."""
    if isinstance(model, ExportedProgram):
        if dynamic_shapes is not None:
            raise Error("export: an ExportedProgram has its dynamic_shapes already")
        return model
    if not isinstance(model, torch.nn.Module):
        raise Error(
            f"export: found a {type(model).__name__}, expected a module or an ExportedProgram"
        )
    if model.training:
        raise Error(
            "export: the model is in training mode\n  remedy: call model.eval() before it is exported"
        )
    with torch.no_grad():
        return torch.export.export(
            model, tuple(args), dict(kwargs or {}), dynamic_shapes=dynamic_shapes, strict=False
        )


def plain_arguments(args: Any, kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments as a package takes them: no tensor is two of them, and elements lie apart."""
    if not isinstance(args, tuple | list):
        raise Error(f"export: args is a {type(args).__name__}, expected a tuple")
    leaves, structure = exporting.tree_flatten((tuple(args), dict(kwargs)))
    seen: set[int] = set()
    plain = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            if id(leaf) in seen:
                leaf = leaf.clone()
            elif not symints.is_dense(leaf):
                leaf = leaf.contiguous()
            seen.add(id(leaf))
        plain.append(leaf)
    arguments, keywords = exporting.tree_unflatten(plain, structure)
    return arguments, keywords


def program_of(ep: ExportedProgram, dims: Mapping[str, Any]) -> Program:
    """The program in the graph IR. Error where it does what a package cannot.

    `dims`: the user's `Dim`s, by torch's names of the symbols.
    """
    names_of_sizes = {symbol: dim.__name__ for symbol, dim in dims.items()}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of torch's own, about itself (2.13)
        decompositions = decomposition_table(has_gradients=False) | _without_library()
        ep = ep.run_decompositions(exporting.composite_decompositions() | decompositions)
    _check_effects(ep)
    num_tokens = exporting.drop_tokens(ep)
    constants = exporting.drop_constants(ep)
    attention_widths.fix_widths(ep.graph_module)
    state = {**ep.state_dict, **ep.constants}
    _split_complex(ep, state, decompositions)
    _read_each_once(ep, state)
    inputs: list[Any] = []
    names: list[str] = []
    numbers: dict[str, int] = {}  # of arguments, by the name of their placeholder
    weights: dict[str, int] = {}  # what state_dict has, by its name there
    for spec in ep.graph_signature.input_specs[num_tokens:]:
        if spec.kind == InputKind.USER_INPUT:
            name = getattr(spec.arg, "name", None)
            if name in constants:
                continue
            numbers[str(name)] = len(numbers)
            inputs.append(None)
            names.append(str(name))
        else:
            if str(spec.target) in ep.state_dict:
                weights[str(spec.target)] = len(inputs)
            inputs.append(_detached(state[str(spec.target)]))
            names.append(str(spec.target))
    builder = load_core().GraphBuilder("exported")
    static = {place: None for place, value in enumerate(inputs) if value is not None}
    try:
        with exporting.open_ranges(ep, {symbol: dim.min for symbol, dim in dims.items()}):
            imported = fx_graph.import_graph(
                ep.graph_module, builder, op_table(), static_inputs=static, may_call=False
            )
    except GraphUnsupported as reason:
        raise Error(f"export: {reason}") from None
    if imported.eager_calls or imported.object_inputs or imported.computes_objects:
        raise Error("export: the model calls Python, which a package has not")
    if imported.float_inputs or imported.gpu:
        raise Error("export: packages are for tensors of the CPU, with numbers that are fixed")
    program = Program(builder, imported)
    program.inputs = [*inputs, *(_detached(constant) for constant in imported.constants)]
    program.input_names = [*names, *(f"constant{i}" for i in range(len(imported.constants)))]
    program.weight_names = _weight_names(ep.state_dict, weights)
    program.symbols = [
        (name, names_of_sizes.get(facts.name, facts.name), facts.low or 0, facts.high)
        for name, facts in imported.symbols.items()
    ]
    program.conditions = _conditions(ep, imported, names_of_sizes)
    program.input_tree = _input_tree(ep, numbers)
    program.output_tree = _output_tree(ep, imported)
    values = [output for output in imported.outputs if output.kind == "value"]
    program.output_names = [
        f"output{i}" for i in range(1 + max((v.index for v in values), default=-1))
    ]
    for node in ep.graph_module.graph.nodes:
        if node.op == "call_function":
            program.lines.setdefault(str(node.target), source_line(node))
    return program


def user_dims(
    ep: ExportedProgram,
    model: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    dynamic_shapes: Any,
) -> dict[str, Any]:
    """The user's `Dim`s, by torch's names of the symbols."""
    if dynamic_shapes is None:
        return {}
    bound = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    names: dict[tuple[int, int], Any] = {}  # by tensor and dimension
    if isinstance(dynamic_shapes, Mapping):
        _find_dims(bound, dynamic_shapes, names)
    else:
        _find_dims(list(bound.values()), list(dynamic_shapes), names)
    places = {node.name: node for node in ep.graph_module.graph.find_nodes(op="placeholder")}
    given = exporting.tree_leaves((tuple(args), dict(kwargs)))
    found: dict[str, Any] = {}
    for value, name in zip(given, ep.graph_signature.user_inputs, strict=False):
        fake = places[name].meta.get("val") if isinstance(name, str) and name in places else None
        for dim in range(getattr(value, "ndim", 0)):
            symbol = exporting.symbol_name(fake.shape[dim]) if fake is not None else ""
            if symbol and (id(value), dim) in names:
                found[symbol] = names[id(value), dim]
    return found


def _find_dims(value: Any, spec: Any, names: dict[tuple[int, int], Any]) -> None:
    if isinstance(value, torch.Tensor):
        dims = spec.items() if isinstance(spec, Mapping) else enumerate(spec or ())
        for dim, size in dims:
            if type(size) is Dim:  # one that is derived from another has no range of its own
                names[id(value), dim] = size
    elif isinstance(value, Mapping) and isinstance(spec, Mapping):
        for key, below in value.items():
            _find_dims(below, spec.get(key), names)
    elif isinstance(value, list | tuple) and isinstance(spec, list | tuple):
        for below, of_it in zip(value, spec, strict=False):
            _find_dims(below, of_it, names)


def _check_effects(ep: ExportedProgram) -> None:
    changed = [
        str(spec.target)
        for spec in ep.graph_signature.output_specs
        if spec.kind
        in (
            OutputKind.BUFFER_MUTATION,
            OutputKind.PARAMETER_MUTATION,
            OutputKind.USER_INPUT_MUTATION,
        )
    ]
    if changed:
        raise Error(
            f"export: the model writes into {', '.join(changed)}\n"
            "  remedy: take the state as an argument and return what it becomes"
        )


def _without_library() -> dict[Any, Any]:
    """Decompositions of what else is a call of a library."""
    tables = [
        module.table() for module in (frames, grid_sampling, ordering, selection, vector_products)
    ]
    found = {op: function for table in tables for op, function in table.items()}
    # Checks of data: a package has no error for them.
    aten = torch.ops.aten
    found |= {op: lambda *_: None for op in (aten._assert_async.default, aten._assert_async.msg)}
    return found


def _split_complex(
    ep: ExportedProgram, state: Mapping[str, Any], decompositions: dict[Any, Any]
) -> None:
    """Complex numbers become pairs of real ones. Error where they do not."""
    constants = {
        str(spec.arg.name): state[str(spec.target)]
        for spec in ep.graph_signature.input_specs
        if str(spec.target) in state
    }
    try:
        with exporting.real_constants(ep):
            gone = split_complex.split(ep.graph_module, constants, decompositions)
    except split_complex.NotSplit as reasons:
        raise Error(f"export: there is no kernel for these ops\n{reasons}") from None
    specs = ep.graph_signature.input_specs
    specs[:] = [spec for spec in specs if getattr(spec.arg, "name", None) not in gone]


def _conditions(
    ep: ExportedProgram, imported: ImportedGraph, names_of_sizes: Mapping[str, str]
) -> list[tuple[str, str]]:
    """What the trace assumed of sizes, which torch's own program checks too."""
    printer = SizePrinter(lambda name, facts: None)
    for facts in imported.symbols.values():
        printer.named(facts)  # in the order in which the graph has them: the names are the same
    conditions = []
    for relation in exporting.guards(ep, {facts.name for facts in imported.symbols.values()}):
        try:
            truth = printer.truth(relation)
        except UnsupportedSize:
            continue
        conditions.append((truth, exporting.in_words(relation, names_of_sizes)))
    return conditions


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Equal for what is one tensor under two names."""
    return (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())


def _read_each_once(ep: ExportedProgram, state: Mapping[str, Any]) -> None:
    """Of weights that are one tensor, all are read by the first."""
    nodes = {node.name: node for node in ep.graph_module.graph.find_nodes(op="placeholder")}
    first: dict[tuple[Any, ...], Any] = {}
    for spec in ep.graph_signature.input_specs:
        value = state.get(str(spec.target))
        node = nodes.get(str(getattr(spec.arg, "name", None)))
        if isinstance(value, torch.Tensor) and node is not None:
            found = first.setdefault(_place(value), node)
            if found is not node:
                node.replace_all_uses_with(found)


def _weight_names(
    state: Mapping[str, torch.Tensor], weights: Mapping[str, int]
) -> list[tuple[str, int]]:
    """All names of a state_dict; two for what is one tensor."""
    first: dict[tuple[Any, ...], int] = {}
    for name, number in weights.items():
        first.setdefault(_place(state[name]), number)
    return [(name, first.get(_place(value), -1)) for name, value in state.items()]


def _detached(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        raise Error(f"export: a constant is a {type(value).__name__}, expected a tensor")
    return value.detach().resolve_conj().resolve_neg()


def _input_tree(ep: ExportedProgram, numbers: Mapping[str, int]) -> dict[str, Any]:
    """Of [args, kwargs]: leaves are arguments in the order of the signature."""
    leaves: list[dict[str, Any]] = []
    for spec in ep.graph_signature.input_specs:
        if spec.kind != InputKind.USER_INPUT:
            continue
        name = getattr(spec.arg, "name", None)
        if str(name) in numbers:
            leaves.append({"tensor": numbers[str(name)]})
        else:
            leaves.append(_constant(getattr(spec.arg, "value", None)))
    args, kwargs = exporting.tree_unflatten(_boxes(leaves), ep.call_spec.in_spec)
    return {"list": [tree_of(list(args)), tree_of(kwargs)]}


def _output_tree(ep: ExportedProgram, imported: ImportedGraph) -> dict[str, Any]:
    leaves = [
        {"tensor": output.index} if output.kind == "value" else _constant(output.constant)
        for output in imported.outputs
    ]
    return tree_of(exporting.tree_unflatten(_boxes(leaves), ep.call_spec.out_spec))


def _constant(value: Any) -> dict[str, Any]:
    if value is not None and not isinstance(value, bool | int | float | str):
        raise Error(f"export: an argument or result is a {type(value).__name__}")
    return {"constant": value}


class _Leaf:
    """Stands for a leaf in torch's containers."""

    def __init__(self, tree: dict[str, Any]) -> None:
        self.tree = tree


def _boxes(leaves: Iterable[dict[str, Any]]) -> list[_Leaf]:
    return [_Leaf(leaf) for leaf in leaves]


def tree_of(value: Any) -> dict[str, Any]:
    """Containers of leaves in the form of `mlcc.runtime.trees`; Error where they are of a kind that JSON has not."""
    if isinstance(value, _Leaf):
        return value.tree
    if isinstance(value, Mapping):
        strange = [key for key in value if not isinstance(key, str)]
        if strange:
            raise Error(f"export: a key of an argument or result is {strange[0]!r}, expected text")
        return {"dict": {key: tree_of(below) for key, below in value.items()}}
    if isinstance(value, tuple):
        return {"tuple": [tree_of(below) for below in value]}
    if isinstance(value, list):
        return {"list": [tree_of(below) for below in value]}
    if value is None:
        return {"constant": None}
    raise Error(f"export: an argument or result lies in a {type(value).__name__}")
