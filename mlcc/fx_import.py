"""AOTAutograd's ATen graph into mlcc's graph IR, node by node.

Each node is imported by a handler of `mlcc._fx_handlers`, or by a row of the op table, or else as an extern: a call of
the same dispatcher op at run time, logged once with its reason. What no dispatcher op expresses either (higher-order
ops that are no control flow, arguments that are objects) runs in Python, as a call as well. Values that the graph IR
cannot hold (devices that it does not know, sparse tensors, ...) raise `GraphUnsupported`; the caller runs such a graph
eagerly.

Values keep the dtype, shape, strides and device of the graph's fake tensors. SymInts become text; none ever becomes an
int.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Node

from mlcc import _torch_compat, _torch_sizes
from mlcc._errors import Error, InternalError
from mlcc._fx_eager import EagerCall, import_eager_call
from mlcc._fx_expand import (
    MEMORY,
    MEMORY_AFTER_WRITE,
    MEMORY_OF_VIEW,
    MEMORY_OF_WRITE,
    NotExpanded,
    expanded,
)
from mlcc._fx_extern import import_extern
from mlcc._fx_handlers import HANDLERS
from mlcc._fx_pointwise import pointwise, symbolic_float
from mlcc._fx_random import DRAWS, Seeds
from mlcc._fx_regions import Region, attribute, import_control_flow, is_constant_input
from mlcc._fx_sizes import Size, SizePrinter, UnsupportedSize
from mlcc._fx_types import (
    DTYPES,
    FLOATS,
    FOREIGN_DTYPES,
    LIMITS,
    SIZE_TENSOR,
    GraphUnsupported,
    Object,
    Tensor,
    TensorType,
    Unsupported,
    device_of,
    leaves,
    overflows,
    source_line,
)
from mlcc._op_table import OpTable
from mlcc.logging import get_logger


@dataclass(frozen=True)
class Output:
    """One output of the FX graph: what it is and, for a value, its place among the executable's outputs."""

    # "value"; "float": a Python float, a tensor of the executable; "object": the executable returns its number;
    # "constant": what the executable does not return; of regions also "size", which the outer graph's metadata tells
    kind: str
    index: int = 0
    constant: Any = None


@dataclass
class ImportedGraph:
    """What importing found beside the graph itself, which is in the builder."""

    outputs: list[Output] = field(default_factory=list)
    # Tensors that stand in the FX graph; they follow the caller's inputs when the executable is called.
    constants: list[torch.Tensor] = field(default_factory=list)
    num_inputs: int = 0  # of the FX graph
    # Places of inputs that are Python floats; the executable takes them as 0-d f64 tensors.
    float_inputs: list[int] = field(default_factory=list)
    # Places of inputs that are objects; the executable takes their numbers.
    object_inputs: list[int] = field(default_factory=list)
    computes_objects: bool = False
    # Nodes that do arithmetic or move data (no placeholders, outputs, pure views, getitems), by op; externs among them.
    nodes: dict[str, int] = field(default_factory=dict)
    externs: dict[str, int] = field(default_factory=dict)
    gpu: str = ""  # the device beside the CPU, "cuda:0"
    # What runs in Python, which the graph names only: it lives as long as this.
    eager_calls: list[EagerCall] = field(default_factory=list)


def import_graph(
    gm: GraphModule,
    builder: Any,
    table: OpTable,
    fallback_random: bool = False,
    static_inputs: frozenset[int] | None = None,
) -> ImportedGraph:
    """Fill `builder` (mlcc._C.GraphBuilder) with the nodes of `gm`, a functional ATen graph with fake tensors in its
    metadata. Raises GraphUnsupported with the reason where the graph cannot be expressed. With `fallback_random` draws
    of random numbers are externs. `static_inputs` are the places of inputs that live for many calls; where they are
    given, constants are static too."""
    try:
        importer = Importer(
            expanded(gm, table),
            builder,
            table,
            fallback_random=fallback_random,
            static_inputs=static_inputs,
        )
        importer.run()
    except (UnsupportedSize, NotExpanded) as reason:
        raise GraphUnsupported(str(reason)) from None
    return importer.imported


# Ops whose only purpose was at trace time.
_DROPPED = {
    "aten._assert_tensor_metadata.default",
    "aten.sym_constrain_range.default",
    "aten.sym_constrain_range_for_size.default",
}

# Ops whose results torch's tracing takes for tensors of floats, which they are not.
_QUANTIZING = (
    "aten.quantize_per_",
    "aten._make_per_tensor_quantized",
    "aten._make_per_channel_quantized",
    "aten._empty_affine_quantized",
    "aten._empty_per_channel_affine_quantized",
)

# The core generates these calls, or says itself why it does not.
CONTRACTION = "a matrix product, a convolution or attention"

# The same where memory counts.
_MEMORY_REASONS = {
    MEMORY_OF_VIEW: "a view of memory that another result shows as well",
    MEMORY_OF_WRITE: "memory that a custom op writes into",
    MEMORY_AFTER_WRITE: "memory that a custom op writes into",
}

# Why an op that is meant to be an ATen call is one.
_EXTERN_REASONS = {
    "aten.binary_cross_entropy": "eager's kernel refuses what is no probability",
    "aten.addmm": CONTRACTION,
    "aten.baddbmm": CONTRACTION,
    "aten.bmm": CONTRACTION,
    "aten.convolution": CONTRACTION,
    "aten.convolution_backward": CONTRACTION,
    "aten.mm": CONTRACTION,
    "aten._int_mm": CONTRACTION,
    "aten._scaled_dot_product_flash_attention_for_cpu": CONTRACTION,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": CONTRACTION,
}

_logged: set[tuple[str, str]] = set()


class Importer:
    """The state of one import. Handlers use its public methods."""

    def __init__(
        self,
        gm: GraphModule,
        builder: Any,
        table: OpTable,
        region: Region | None = None,
        fallback_random: bool = False,
        static_inputs: frozenset[int] | None = None,
    ) -> None:
        self.builder = builder
        self._static_inputs = static_inputs
        # What the regions of a higher-order op get for their operands; None for a size.
        self.input_types: list[TensorType | None] = []
        self._region = region
        self.table = table
        self.imported = ImportedGraph()
        self.sizes = SizePrinter(self._declare_symbol)
        self.module = gm
        self._env: dict[Node, Any] = {}
        self.numbers: dict[str, Tensor] = {}  # floats of the trace, by torch's name of the symbol
        self._bound_symbols: set[str] = set()
        self._used_symbols: dict[str, str] = {}  # name -> torch's name
        self._constants: dict[str, Tensor] = {}  # a region's, by the name of the attribute
        self._num_regions = 0
        self._num_objects = 0
        self._fallback_random = fallback_random
        self._seeds: dict[str, Seeds] = {}  # by device

    # -- the walk

    def run(self) -> None:
        """Import every node, then set the outputs."""
        nodes = list(self.module.graph.nodes)
        inputs = [node for node in nodes if node.op == "placeholder"]
        self.imported.num_inputs = len(inputs)
        computed: list[tuple[Tensor, Any]] = []
        for place, node in enumerate(inputs):
            if self._region is not None and self._region.computes(place, node.meta.get("val")):
                computed.append((self._import_computed_size(node), node.meta["val"]))
            else:
                self._import_placeholder(node, place)
        if self._region is not None:
            self._import_surroundings(self._region)
        for tensor, size in computed:
            self.read_size(tensor, size)
        for node in nodes:
            if node.op == "get_attr":
                self._import_constant(node)
        for node in nodes:
            if node.op == "call_function":
                self._import_call(node)
            elif node.op == "output":
                self._import_output(node)
            elif node.op not in ("placeholder", "get_attr"):
                raise GraphUnsupported(f"{node.name}: {node.op} node")
        self._check_symbols()

    def _declare_symbol(self, name: str, facts: _torch_sizes.SymbolFacts) -> None:
        if facts.hint is not None and not -(2**63) <= facts.hint < 2**63:
            raise GraphUnsupported(f"{facts.name} is {facts.hint}, which has more than 64 bits")
        low = _UNBOUNDED if facts.low is None else max(facts.low, _UNBOUNDED)
        high = None if facts.high is None or facts.high >= 2**63 else facts.high
        self.builder.add_symbol(name, low, high, facts.hint)
        self._used_symbols[name] = facts.name

    def _check_symbols(self) -> None:
        for name, torch_name in self._used_symbols.items():
            if name not in self._bound_symbols and torch_name not in self.numbers:
                raise GraphUnsupported(f"no input has the size {torch_name} by itself")

    def bind_sizes(self, sizes: Iterable[Size]) -> None:
        """Those among the sizes that are symbols have a value from here on."""
        self._bound_symbols.update(
            size for size in sizes if isinstance(size, str) and size.isidentifier()
        )

    def _import_placeholder(self, node: Node, place: int) -> None:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            form = self.tensor_type(node, value)
            self.input_types.append(form)
            self.bind_sizes(form.shape)
            static = self._static_inputs is not None and place in self._static_inputs
            handle = self.builder.add_input(_identifier(node.name), *form, static=static)
            self._env[node] = Tensor(handle, form.dtype)
        elif isinstance(value, torch.SymInt | int) and not isinstance(value, bool):
            if isinstance(value, torch.SymInt) and _torch_sizes.is_ragged(value):
                raise GraphUnsupported(f"input {node.name} is the lengths of a nested tensor")
            self.input_types.append(None)
            size = self.sizes.size(value)
            self.bind_sizes([size])
            self.builder.add_size_input(_identifier(node.name), size)
        elif isinstance(value, torch.SymFloat):
            self.input_types.append(None)
            number = Tensor(self.builder.add_input(_identifier(node.name), "f64", []), "f64")
            self.numbers[_torch_sizes.sym_name(value)] = number
            self.imported.float_inputs.append(place)
        elif _torch_compat.is_object(value) and self._region is None:
            self.imported.object_inputs.append(place)
            entry = self._new_object()
            self.builder.add_size_input(_identifier(node.name), entry.size)
            self._env[node] = entry
        else:
            raise GraphUnsupported(f"input {node.name} is a {type(value).__name__}")

    def _import_computed_size(self, node: Node) -> Tensor:
        self.input_types.append(SIZE_TENSOR)
        return Tensor(self.builder.add_input(_identifier(node.name), *SIZE_TENSOR), "i64")

    def read_size(self, tensor: Tensor, size: Any) -> None:
        """Make the number in an i64 tensor without dimensions the value of the SymInt `size`, a new symbol."""
        text = self.sizes.size(size)
        self.bind_sizes([text])
        name = "aten._local_scalar_dense.default"
        self.builder.extern_size(name, [tensor.handle], None, None, text)

    def _new_object(self) -> Object:
        """One that has a number from here on."""
        name = f"object{self._num_objects}"
        self._num_objects += 1
        self.builder.add_symbol(name, 1, None, 1)
        return Object(name)

    def read_object(self, number: Tensor) -> Object:
        """The object whose number is in an i64 tensor without dimensions."""
        self.imported.computes_objects = True
        entry = self._new_object()
        name = "aten._local_scalar_dense.default"
        self.builder.extern_size(name, [number.handle], None, None, entry.size)
        return entry

    def _import_surroundings(self, region: Region) -> None:
        """Inputs for what a region takes from the graph around it."""
        for number, facts in enumerate(region.sizes):
            name = self.sizes.named(facts)
            self.bind_sizes([name])
            self.builder.add_size_input(f"size{number}", name)
        for number, (graph, target, value) in enumerate(region.constants):
            form = self._form_of_constant(f"constant {target}", value)
            handle = self.builder.add_input(f"constant{number}", *form)
            if graph is self.module:
                self._constants[target] = Tensor(handle, form.dtype)

    def _import_constant(self, node: Node) -> None:
        if str(node.target) in self._constants:
            self._env[node] = self._constants[str(node.target)]
            return
        value = attribute(self.module, node)
        if isinstance(value, GraphModule) or _torch_compat.is_object(value):
            return  # whoever takes it has it in a graph of its own
        if not isinstance(value, torch.Tensor):
            raise GraphUnsupported(f"constant {node.target} is a {type(value).__name__}")
        node.meta.setdefault("val", value)
        if is_constant_input(value):
            self._env[node] = self.constant_input(node, value)
            return
        form = self.tensor_type(node, value)
        with _torch_compat.outside_fake_mode():
            number = value.item() if value.numel() == 1 else 0
        handle = self.full(form.shape, form.dtype, number, form.device)
        self._env[node] = Tensor(handle, form.dtype)

    def _form_of_constant(self, name: str, value: torch.Tensor) -> TensorType:
        try:
            return self._tensor_type(name, value)
        except UnsupportedSize as reason:
            raise GraphUnsupported(str(reason)) from None

    def constant_input(self, node: Node, value: torch.Tensor) -> Tensor:
        """An input for a tensor that stands in the FX graph."""
        if self._region is not None:
            raise GraphUnsupported(f"{node.name}: a constant in a region of a region")
        form = self._form_of_constant(node.name, value)
        self.imported.constants.append(value)
        name = f"constant{len(self.imported.constants) - 1}"
        static = self._static_inputs is not None
        return Tensor(self.builder.add_input(name, *form, static=static), form.dtype)

    def graph_of(self, node: Node) -> Any:
        """The graph that a get_attr node stands for; None for other nodes."""
        return attribute(self.module, node) if node.op == "get_attr" else None

    def nested(self, gm: GraphModule, region: Region) -> Importer:
        """The importer of a region, when it has run."""
        builder = type(self.builder)(f"region{self._num_regions}")
        self._num_regions += 1
        inner = Importer(
            expanded(gm, self.table),
            builder,
            self.table,
            region,
            self._fallback_random,
            region.fixed,
        )
        inner.run()
        for name, count in inner.imported.nodes.items():
            self.imported.nodes[name] = self.imported.nodes.get(name, 0) + count
        for name, count in inner.imported.externs.items():
            self.imported.externs[name] = self.imported.externs.get(name, 0) + count
        self.imported.gpu = self.imported.gpu or inner.imported.gpu
        self.imported.eager_calls.extend(inner.imported.eager_calls)
        return inner

    def _import_call(self, node: Node) -> None:
        target = node.target
        if target is operator.getitem:
            source, index = node.args
            self._env[node] = self._env[source][index]
            if self._env[node] is None:  # a number that stands in the metadata
                node.meta.setdefault("val", source.meta["val"][index])
            return
        if _torch_compat.is_op(target):
            name = str(target)
            if name in _DROPPED:
                return
            if name.startswith(_QUANTIZING):
                raise GraphUnsupported(f"{name}: its result is quantized")
            if name == "aten._local_scalar_dense.default" and self._read_float(node):
                return
            if not name.startswith("aten.sym_"):
                self._import_op(node, name)
                return
        elif _torch_compat.is_higher_order(target):
            self._env[node] = self._import_higher_order(node)
            return
        # Arithmetic on sizes stands in the metadata of its result.
        if not isinstance(
            node.meta.get("val"), int | torch.SymInt | torch.SymBool | torch.SymFloat | float
        ):
            raise GraphUnsupported(f"{node.name}: {target} is no dispatcher op")

    def _import_higher_order(self, node: Node) -> Any:
        try:
            return import_control_flow(self, node)
        except (GraphUnsupported, UnsupportedSize) as reason:
            name = f"higher_order.{node.target}"
            _count(self.imported.nodes, name)
            _count(self.imported.externs, name)
            result = import_eager_call(self, node)
            _log_extern(name, str(reason), "call of Python")
            return result

    def _read_float(self, node: Node) -> bool:
        """item() of a float tensor: the number stays a tensor of the graph, so that nobody has to wait for it."""
        value, source = node.meta.get("val"), self._env.get(node.args[0])
        if not isinstance(value, torch.SymFloat) or not isinstance(source, Tensor):
            return False
        scalar = self.reshape(source, []) if self.fake(node.args[0]).dim() else source
        self.numbers[_torch_sizes.sym_name(value)] = self.cast(scalar, "f64")
        return True

    def _import_op(self, node: Node, name: str) -> None:
        reason = self._extern_reason(node, name)
        result: Any = None
        if reason is None:
            try:
                result = self._checked(node, self._run_handler(node, name))
            except (Unsupported, UnsupportedSize) as unsupported:
                reason = str(unsupported)
            except Error as error:
                if isinstance(error, InternalError):
                    raise
                reason = str(error)
        if reason is not None:
            result = self._called(node, name, reason)
        self._env[node] = result
        if name not in PURE_VIEWS:
            _count(self.imported.nodes, name)
            if reason is not None:
                _count(self.imported.externs, name)

    def _called(self, node: Node, name: str, reason: str) -> Any:
        if _torch_compat.is_foretold_wrongly(node):
            raise GraphUnsupported(f"{name}: the trace gives its result another rank")
        try:
            result = self.extern(node)
        except GraphUnsupported as unsupported:
            result = import_eager_call(self, node)
            _log_extern(name, str(unsupported), "call of Python")
        else:
            _log_extern(name, reason)
        return result

    def _extern_reason(self, node: Node, name: str) -> str | None:
        """Why the node is an extern from the outset, or None."""
        if MEMORY in node.meta:
            return _MEMORY_REASONS[node.meta[MEMORY]]
        for value in leaves([node.meta.get("val"), [self.fake(a) for a in node.all_input_nodes]]):
            if isinstance(value, torch.Tensor) and value.dtype in FOREIGN_DTYPES:
                return f"dtype {value.dtype}"
        overflow = self._overflow(node)
        if overflow:
            return overflow
        if name in DRAWS:
            return "fallback_random" if self._fallback_random else None
        if name in HANDLERS or self.table.knows(name):
            return None
        return _EXTERN_REASONS.get(name.rsplit(".", 1)[0], "no rule for this op")

    def _overflow(self, node: Node) -> str:
        """Says which number of the node its dtype cannot hold, for most of which eager has an error; or ''."""
        fake = node.meta.get("val")
        if not isinstance(fake, torch.Tensor):
            return ""
        for place, name in _torch_compat.number_arguments(node.target):
            number = node.args[place] if place < len(node.args) else node.kwargs.get(name)
            if overflows(number, fake.dtype):
                return f"{number} is no {str(fake.dtype).removeprefix('torch.')}"
        return ""

    def _run_handler(self, node: Node, name: str) -> Any:
        handler = HANDLERS.get(name) or DRAWS.get(name)
        if handler is not None:
            return handler(self, node)
        return pointwise(self, node)

    def _checked(self, node: Node, result: Any) -> Any:
        """The handler's result with the strides of the node's fake tensors; Unsupported where a dtype differs."""
        fake = node.meta["val"]
        if isinstance(result, Tensor):
            self._check_tensor(result, fake, node)
        else:
            for tensor, one in zip(result, fake, strict=True):
                self._check_tensor(tensor, one, node)
        return result

    def _check_tensor(self, tensor: Tensor, fake: torch.Tensor, node: Node) -> None:
        form = self.tensor_type(node, fake)
        if tensor.dtype != form.dtype:
            raise Unsupported(f"result is {tensor.dtype} here, {form.dtype} in eager")
        device = tensor.handle.device
        if device != form.device:
            raise Unsupported(f"result is on {device} here, on {form.device} in eager")
        if form.strides is not None:
            self.builder.set_strides(tensor.handle, form.strides)
        source = source_line(node)
        if source:
            self.builder.set_source(tensor.handle, source)

    def _import_output(self, node: Node) -> None:
        handles: list[Any] = []
        places: dict[Node, int] = {}
        (results,) = node.args
        for result in results if isinstance(results, list | tuple) else [results]:
            if self._region is not None and self._region.exports(
                len(self.imported.outputs), self.fake(result)
            ):
                self.imported.outputs.append(Output("value", len(handles)))
                handles.append(self._size_tensor(self.fake(result)).handle)
                continue
            if result is None or isinstance(result, int | float):
                self.imported.outputs.append(Output("constant", constant=result))
                continue
            if self._region is not None and isinstance(self.fake(result), int | torch.SymInt):
                self.imported.outputs.append(Output("size"))
                continue
            if not isinstance(result, Node):
                raise GraphUnsupported(f"output {result!r} is a {type(result).__name__}")
            if _torch_compat.is_object(self.graph_of(result)):
                self.imported.outputs.append(Output("constant", constant=self.graph_of(result)))
                continue
            if self._region is not None:
                self._import_region_output(self._region, result, handles)
                continue
            if result not in places:
                places[result] = len(handles)
                handles.append(self._output_handle(result))
            self.imported.outputs.append(Output(self._output_kind(result), places[result]))
        self.builder.set_outputs(handles)

    def _output_kind(self, node: Node) -> str:
        if isinstance(self._env.get(node), Object):
            return "object"
        return "float" if isinstance(self.fake(node), torch.SymFloat) else "value"

    def _size_tensor(self, size: Any) -> Tensor:
        """A size as a fresh i64 tensor without dimensions, the truth of a relation of sizes as a bool."""
        is_truth = isinstance(size, bool | torch.SymBool)
        tensor = Tensor(self.builder.size_value(self.sizes.size(size)), "i64")
        return self.cast(tensor, "bool") if is_truth else tensor

    def _import_region_output(self, region: Region, node: Node, handles: list[Any]) -> None:
        """One output for each result; what is carried has the strides of its input."""
        tensor = self._env.get(node)
        if not isinstance(tensor, Tensor):
            raise GraphUnsupported(f"output {node.name} of a region is no tensor")
        place = len(self.imported.outputs)
        if place < region.num_carried:
            expected = self.input_types[place]
            assert expected is not None  # of a size: SIZE_TENSOR
            tensor = self.restrided(tensor, self.tensor_type(node, self.fake(node)), expected)
        self.imported.outputs.append(Output("value", len(handles)))
        handles.append(tensor.handle)

    def restrided(self, tensor: Tensor, found: TensorType, expected: TensorType) -> Tensor:
        """The same elements in the strides of `expected`."""
        if found.strides == expected.strides:
            return tensor
        if tensor.dtype in FOREIGN_DTYPES.values():
            raise GraphUnsupported(f"{tensor.dtype} in other strides than its region expects")
        copy = self.copy(tensor)
        strides = expected.strides
        self.builder.set_strides(copy.handle, [] if strides is None else strides)
        return copy

    def _output_handle(self, node: Node) -> Any:
        value = self._env.get(node)
        if isinstance(value, Tensor):
            return value.handle
        if isinstance(value, Object):
            return self.builder.size_result(value.size)
        size = self.fake(node)
        if isinstance(size, torch.SymFloat):
            try:
                return symbolic_float(self, size).handle
            except Unsupported as reason:
                raise GraphUnsupported(f"output {node.name}: {reason}") from None
        if isinstance(size, int | torch.SymInt) and not isinstance(size, bool):
            return self.builder.size_result(self.sizes.size(size))
        raise GraphUnsupported(f"output {node.name} is a {type(size).__name__}")

    # -- what handlers read

    def bind(self, node: Node) -> dict[str, Any]:
        """The node's arguments by the names of its op's schema, defaults filled in."""
        schema = node.target._schema
        bound = dict(node.kwargs)
        for argument, value in zip(schema.arguments, node.args, strict=False):
            bound[argument.name] = value
        for argument in schema.arguments:
            if argument.name not in bound:
                bound[argument.name] = argument.default_value
        return bound

    def fake(self, argument: Any) -> Any:
        """The fake tensor or symbolic number that a node stands for; anything else as it is."""
        return argument.meta.get("val") if isinstance(argument, Node) else argument

    def tensor(self, argument: Any) -> Tensor:
        """The value of a node; Unsupported if it is no tensor."""
        value = self._env.get(argument) if isinstance(argument, Node) else None
        if not isinstance(value, Tensor):
            raise Unsupported(f"argument {argument} is no tensor")
        return value

    def size(self, argument: Any) -> Size:
        """A size argument: an int, or a node that is a SymInt."""
        value = self.fake(argument)
        if not isinstance(value, int | torch.SymInt):
            raise Unsupported(f"argument {argument} is no size")
        return self.sizes.size(value)

    def shape(self, fake: torch.Tensor) -> list[Size]:
        """A fake tensor's shape."""
        return self.sizes.sizes(fake.shape)

    def tensor_type(self, node: Node, value: torch.Tensor) -> TensorType:
        """What the graph IR says of a fake tensor."""
        return self._tensor_type(node.name, value)

    def _tensor_type(self, name: str, value: torch.Tensor) -> TensorType:
        if value.layout != torch.strided:
            raise GraphUnsupported(f"{name}: layout {value.layout}")
        if value.dtype not in DTYPES:
            raise GraphUnsupported(f"{name}: dtype {value.dtype}")
        try:
            device = device_of(value)
        except GraphUnsupported as reason:
            raise GraphUnsupported(f"{name}: {reason}") from None
        if device != "cpu":
            self.imported.gpu = self.imported.gpu or device
            if device != self.imported.gpu:
                raise GraphUnsupported(f"{name}: devices {self.imported.gpu} and {device}")
        shape = self.sizes.sizes(value.shape)
        strides = None if _is_row_major(value) else self.sizes.sizes(value.stride())
        return TensorType(DTYPES[value.dtype], shape, strides, device)

    # -- what handlers build

    def cast(self, tensor: Tensor, dtype: str) -> Tensor:
        """The value rounded to `dtype`; itself if it has that dtype."""
        if tensor.dtype == dtype:
            return tensor
        return Tensor(self.builder.cast(tensor.handle, dtype), dtype)

    def pointwise(self, op: str, *operands: Tensor, dtype: str | None = None) -> Tensor:
        """One pointwise op over operands of one dtype; `dtype` is the result's where it is another."""
        handle = self.builder.pointwise(op, [x.handle for x in self.fitted(operands)])
        return Tensor(handle, dtype or operands[-1].dtype)

    def cat(self, operands: Sequence[Tensor], dim: int) -> Tensor:
        """Operands of one dtype one after the other along `dim` (counted from the front)."""
        if len(operands) == 1:
            return operands[0]
        handle = self.builder.cat([x.handle for x in self.fitted(operands, dim)], dim)
        return Tensor(handle, operands[0].dtype)

    def fitted(self, operands: Sequence[Tensor], apart: int | None = None) -> Sequence[Tensor]:
        """The operands with one text for each size that they share, but for that of dimension `apart`.

        By a guard of the trace two sizes may be the same although their expressions are not. Without `apart` operands
        are broadcast: a size of 1 may stand beside any other.
        """
        if not self._used_symbols or len(operands) < 2:
            return operands
        shapes: list[list[Size]] = [x.handle.shape for x in operands]
        rank = max(map(len, shapes))
        wanted = [
            _common_size([shape[d] for shape in shapes if len(shape) >= -d], apart is None)
            for d in range(-rank, 0)
        ]
        fitted = []
        for x, shape in zip(operands, shapes, strict=True):
            for d, size in enumerate(shape):
                same = wanted[rank - len(shape) + d]
                if size not in (1, same) and d != apart:
                    x = self.slice(x, d, 0, same)  # an index map that keeps every index
            fitted.append(x)
        return fitted

    def copy(self, tensor: Tensor) -> Tensor:
        """A fresh tensor of the same elements."""
        return self.pointwise("copy", tensor)

    def reshape(self, tensor: Tensor, shape: Sequence[Size]) -> Tensor:
        """The same elements in row-major order."""
        return Tensor(self.builder.reshape(tensor.handle, list(shape)), tensor.dtype)

    def expand(self, tensor: Tensor, shape: Sequence[Size]) -> Tensor:
        """Broadcasts as NumPy does, to exactly `shape`."""
        return Tensor(self.builder.expand(tensor.handle, list(shape)), tensor.dtype)

    def broadcast(self, tensor: Tensor, shape: list[Size], wanted: list[Size]) -> Tensor:
        """A tensor of shape `shape` expanded to `wanted`; sizes may be the same by a guard of the trace only."""
        while len(shape) > len(wanted) and shape[0] == 1:
            shape = shape[1:]
            tensor = self.reshape(tensor, shape)
        for d, (size, same) in enumerate(zip(reversed(shape), reversed(wanted), strict=False)):
            if size not in (1, same):
                tensor = self.slice(tensor, len(shape) - 1 - d, 0, same)
        return tensor if shape == wanted else self.expand(tensor, wanted)

    def slice(self, tensor: Tensor, dim: int, start: Size, length: Size, step: int = 1) -> Tensor:
        """`length` elements along `dim` (counted from the front) from `start` on."""
        return Tensor(self.builder.slice(tensor.handle, dim, start, length, step), tensor.dtype)

    def reduce(self, op: str, tensor: Tensor, dims: Sequence[int], keepdim: bool) -> Tensor:
        """sum, prod, max, min in the operand's dtype; any, all of bool; argmax, argmin to i64 over one dim.

        Without dims a fresh tensor of the same elements.
        """
        if not dims:
            return self.copy(tensor)
        dtype = "i64" if op in ("argmax", "argmin") else tensor.dtype
        return Tensor(self.builder.reduce(op, tensor.handle, list(dims), keepdim), dtype)

    def full(self, shape: Sequence[Size], dtype: str, number: float, device: str = "cpu") -> Any:
        """Handle of a constant tensor; the number is converted as C does."""
        if dtype in FLOATS:
            return self.builder.full(list(shape), dtype, float(number), device)
        return self.builder.full_int(list(shape), dtype, wrap_integer(number, dtype), device)

    def number(self, value: Any, dtype: str, device: str = "cpu") -> Tensor:
        """A Python number, SymInt or SymFloat (or the node of one) as a 0-d constant of `dtype`.

        A number of the CPU may stand beside tensors of any device. A SymFloat is there whatever `device` says.
        """
        value = self.fake(value)
        if isinstance(value, torch.SymInt):
            handle = self.builder.size_value(self.sizes.size(value), device)
            return self.cast(Tensor(handle, "i64"), dtype)
        if isinstance(value, torch.SymFloat):
            return self.cast(symbolic_float(self, value), dtype)
        if not isinstance(value, bool | int | float):
            raise Unsupported(f"{value!r} is no number")
        return Tensor(self.full([], dtype, value, device), dtype)

    def next_seed(self, device: str) -> Tensor:
        """The seed of one more draw of random numbers on the device, a 0-d i64 tensor."""
        if device not in self._seeds:
            count = sum(str(node.target) in DRAWS for node in self.module.graph.nodes)
            self._seeds[device] = Seeds(self, device, 2 * count)
        return self._seeds[device].next(self)

    def extern(self, node: Node) -> Any:
        """The node as a call of its dispatcher op; its result as the environment holds it."""
        return import_extern(self, node, self.bind_sizes)

    def lookup(self, node: Node) -> Any:
        """What the environment holds for a node: a Tensor, a list of them, or None for sizes."""
        return self._env.get(node)


_UNBOUNDED = -(2**63)

# Ops that move no data by themselves: they do not count as nodes.
PURE_VIEWS = {
    f"aten.{name}"
    for name in (
        "_unsafe_view.default",
        "alias.default",
        "detach.default",
        "diagonal.default",
        "expand.default",
        "permute.default",
        "select.int",
        "slice.Tensor",
        "split.Tensor",
        "split_with_sizes.default",
        "squeeze.default",
        "squeeze.dim",
        "squeeze.dims",
        "t.default",
        "transpose.int",
        "unbind.int",
        "unsqueeze.default",
        "view.default",
    )
}


def wrap_integer(number: float, dtype: str) -> int:
    """A number as an integer of `dtype` in two's complement, as a C cast gives it; Unsupported if it has a fraction."""
    if dtype == "bool":
        return int(bool(number))
    if int(number) != number:
        raise Unsupported(f"{number} as {dtype}")
    low, high = LIMITS[dtype]
    return (int(number) - low) % (high - low + 1) + low


def _common_size(sizes: Sequence[Size], broadcasts: bool) -> Size:
    """One text for sizes that are the same, a number if one of them is; a 1 may broadcast to the others."""
    counted = [size for size in sizes if size != 1] if broadcasts else sizes
    numbers = [size for size in counted if isinstance(size, int)]
    return next(iter(numbers or counted), 1)


def _identifier(name: str) -> str:
    return re.sub(r"\W", "_", name)


def _count(counts: dict[str, int], name: str) -> None:
    counts[name] = counts.get(name, 0) + 1


def _is_row_major(value: torch.Tensor) -> bool:
    """Whether the strides are exactly torch's for a contiguous tensor of that shape; adds no guard."""
    expected: Any = 1
    for size, stride in zip(reversed(value.shape), reversed(value.stride()), strict=True):
        if not _same_size(stride, expected):
            return False
        # torch counts a size of 0 as 1 in the strides before it
        if not (isinstance(size, int) and size == 0):
            expected = expected * size
    return True


def _same_size(a: Any, b: Any) -> bool:
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return bool(_plain(a) == _plain(b))


def _plain(size: Any) -> Any:
    return _torch_sizes.sym_expr(size) if isinstance(size, torch.SymInt) else size


def forget_logged() -> None:
    """Log each extern anew."""
    _logged.clear()


def _log_extern(name: str, reason: str, what: str = "ATen call") -> None:
    if name == "aten.copy_.default" or reason == CONTRACTION:
        return  # the driver says which of these remain: kernels do most of them
    if (name, reason) not in _logged:
        _logged.add((name, reason))
        get_logger("fallback").info("%s: %s (%s)", name, what, reason)
