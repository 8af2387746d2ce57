"""AOTAutograd's ATen graph into mlcc's graph IR, node by node.

Each node is imported by a handler of `mlcc.importer.handlers`, or by a row of the op table, or else as an extern: a
call of the same dispatcher op at run time, logged once with its reason. What no dispatcher op expresses either
(higher-order ops that are no control flow, arguments that are objects) runs in Python, as a call as well. Values that
the graph IR cannot hold (devices that it does not know, sparse tensors, ...) raise `GraphUnsupported`; the caller runs
such a graph eagerly.

Values keep the dtype, shape, strides and device of the graph's fake tensors. SymInts become text; none ever becomes an
int.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node

from mlcc._errors import Error, InternalError
from mlcc.importer.context import (
    Context,
    ImportedGraph,
    Output,
    Region,
    log_externs,
    logged_externs,
)
from mlcc.importer.eager_calls import import_eager_call
from mlcc.importer.externs import import_extern
from mlcc.importer.handlers import HANDLERS
from mlcc.importer.ops.pointwise import pointwise, symbolic_float
from mlcc.importer.ops.random import DRAWS, Seeds
from mlcc.importer.regions import attribute, import_control_flow, is_constant_input
from mlcc.ir.op_table import OpTable
from mlcc.ir.sizes import UnsupportedSize
from mlcc.ir.types import (
    FOREIGN_DTYPES,
    SIZE_TENSOR,
    GraphUnsupported,
    Object,
    Tensor,
    TensorType,
    Unsupported,
    leaves,
    overflows,
    source_line,
)
from mlcc.rewrite.expand import (
    MEMORY,
    MEMORY_AFTER_WRITE,
    MEMORY_OF_VIEW,
    MEMORY_OF_WRITE,
    NotExpanded,
    expanded,
)
from mlcc.torch_private import dispatch, symints, tracing


def import_graph(
    gm: GraphModule,
    builder: Any,
    table: OpTable,
    fallback_random: bool = False,
    static_inputs: Mapping[int, tuple[int, int] | None] | None = None,
    may_call: bool = True,
) -> ImportedGraph:
    """Fill `builder` (mlcc._C.GraphBuilder) with the nodes of `gm`, a functional ATen graph with fake tensors in its
    metadata. Raises GraphUnsupported with the reason where the graph cannot be expressed. With `fallback_random` draws
    of random numbers are externs. `static_inputs` are the places of inputs that live for many calls, with the
    range of integers that is promised of some; where they are given, constants are static too. `may_call`: whether ops
    that have kernels may be calls of ATen where these are faster."""
    try:
        importer = Importer(
            expanded(gm, table),
            builder,
            table,
            fallback_random=fallback_random,
            static_inputs=static_inputs,
            may_call=may_call,
        )
    except (UnsupportedSize, NotExpanded) as reason:
        raise GraphUnsupported(str(reason)) from None
    try:
        importer.run()
    except (UnsupportedSize, NotExpanded, GraphUnsupported) as reason:
        unsupported = GraphUnsupported(str(reason))
        unsupported.traces = importer.stack_trace()
        raise unsupported from None
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
MEMORY_REASONS = {
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


class Importer(Context):
    """The state of one import."""

    def __init__(
        self,
        gm: GraphModule,
        builder: Any,
        table: OpTable,
        region: Region | None = None,
        fallback_random: bool = False,
        static_inputs: Mapping[int, tuple[int, int] | None] | None = None,
        may_call: bool = True,
    ) -> None:
        super().__init__(gm, builder, table)
        self.may_call = may_call
        self._static_inputs = static_inputs
        self._region = region
        self._constants: dict[str, Tensor] = {}  # a region's, by the name of the attribute
        self._num_regions = 0
        self._num_objects = 0
        self._fallback_random = fallback_random
        self._seeds: dict[str, Seeds] = {}  # by device
        self._node: Node | None = None  # under way

    def stack_trace(self) -> str:
        """Where the user wrote the node that was imported last, in torch's words, or ''."""
        return (self._node.meta.get("stack_trace") or "") if self._node is not None else ""

    # -- the walk

    def run(self) -> None:
        """Import every node, then set the outputs."""
        nodes = list(self.module.graph.nodes)
        inputs = [node for node in nodes if node.op == "placeholder"]
        self.imported.num_inputs = len(inputs)
        computed: list[tuple[Tensor, Any]] = []
        for place, node in enumerate(inputs):
            self._node = node
            if self._region is not None and self._region.computes(place, node.meta.get("val")):
                computed.append((self._import_computed_size(node), node.meta["val"]))
            else:
                self._import_placeholder(node, place)
        if self._region is not None:
            self._import_surroundings(self._region)
        for tensor, size in computed:
            self.read_size(tensor, size)
        for node in nodes:
            self._node = node
            if node.op == "get_attr":
                self._import_constant(node)
        for node in nodes:
            self._node = node
            if node.op == "call_function":
                self._import_call(node)
            elif node.op == "output":
                self._import_output(node)
            elif node.op not in ("placeholder", "get_attr"):
                raise GraphUnsupported(f"{node.name}: {node.op} node")
        self._check_symbols()

    def _check_symbols(self) -> None:
        for name, torch_name in self._used_symbols.items():
            if name not in self._bound_symbols and torch_name not in self.numbers:
                raise GraphUnsupported(f"no input has the size {torch_name} by itself")

    def _import_placeholder(self, node: Node, place: int) -> None:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            form = self.tensor_type(node, value)
            self.input_types.append(form)
            self.bind_sizes(form.shape)
            known = self._static_inputs or {}
            handle = self.builder.add_input(
                _identifier(node.name), *form, static=place in known, range=known.get(place)
            )
            self._env[node] = Tensor(handle, form.dtype)
        elif isinstance(value, torch.SymInt | int) and not isinstance(value, bool):
            if isinstance(value, torch.SymInt) and symints.is_ragged(value):
                raise GraphUnsupported(f"input {node.name} is the lengths of a nested tensor")
            self.input_types.append(None)
            size = self.sizes.size(value)
            self.bind_sizes([size])
            self.builder.add_size_input(_identifier(node.name), size)
        elif isinstance(value, torch.SymFloat):
            self.input_types.append(None)
            number = Tensor(self.builder.add_input(_identifier(node.name), "f64", []), "f64")
            self.numbers[symints.sym_name(value)] = number
            self.imported.float_inputs.append(place)
        elif dispatch.is_object(value) and self._region is None:
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
        if isinstance(value, GraphModule) or dispatch.is_object(value):
            return  # whoever takes it has it in a graph of its own
        if not isinstance(value, torch.Tensor):
            raise GraphUnsupported(f"constant {node.target} is a {type(value).__name__}")
        node.meta.setdefault("val", value)
        if is_constant_input(value):
            self._env[node] = self.constant_input(node, value)
            return
        form = self.tensor_type(node, value)
        with tracing.outside_fake_mode():
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
            None if region.fixed is None else dict.fromkeys(region.fixed),
            self.may_call,
        )
        inner.run()
        for name, count in inner.imported.nodes.items():
            self.imported.nodes[name] = self.imported.nodes.get(name, 0) + count
        for name, count in inner.imported.externs.items():
            self.imported.externs[name] = self.imported.externs.get(name, 0) + count
        self.imported.told += inner.imported.told
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
        if dispatch.is_op(target):
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
        elif dispatch.is_higher_order(target):
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
            self._tell(name, "call of Python", str(reason))
            return result

    def _read_float(self, node: Node) -> bool:
        """item() of a float tensor: the number stays a tensor of the graph, so that nobody has to wait for it."""
        value, source = node.meta.get("val"), self._env.get(node.args[0])
        if not isinstance(value, torch.SymFloat) or not isinstance(source, Tensor):
            return False
        scalar = self.reshape(source, []) if self.fake(node.args[0]).dim() else source
        self.numbers[symints.sym_name(value)] = self.cast(scalar, "f64")
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
        if dispatch.is_foretold_wrongly(node):
            raise GraphUnsupported(f"{name}: the trace gives its result another rank")
        try:
            result = self.extern(node)
        except GraphUnsupported as unsupported:
            result = import_eager_call(self, node)
            self._tell(name, "call of Python", str(unsupported))
        else:
            self._tell(name, "ATen call", reason)
        return result

    def _tell(self, name: str, what: str, reason: str) -> None:
        if name == "aten.copy_.default" or reason == CONTRACTION:
            return  # the driver says which of these remain: kernels do most of them
        told = (name, what, reason)
        if told not in self.imported.told:
            self.imported.told += (told,)
        log_externs([told])

    def _extern_reason(self, node: Node, name: str) -> str | None:
        """Why the node is an extern from the outset, or None."""
        if MEMORY in node.meta:
            return MEMORY_REASONS[node.meta[MEMORY]]
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
        for place, name in dispatch.number_arguments(node.target):
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
            if dispatch.is_object(self.graph_of(result)):
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

    def symbolic_float(self, value: Any) -> Tensor:
        """A SymFloat as a 0-d f64 tensor; Unsupported where its expression has no counterpart."""
        return symbolic_float(self, value)

    def next_seed(self, device: str) -> Tensor:
        """The seed of one more draw of random numbers on the device, a 0-d i64 tensor."""
        if device not in self._seeds:
            count = sum(str(node.target) in DRAWS for node in self.module.graph.nodes)
            self._seeds[device] = Seeds(self, device, 2 * count)
        return self._seeds[device].next(self)

    def extern(self, node: Node) -> Any:
        """The node as a call of its dispatcher op; its result as the environment holds it."""
        return import_extern(self, node, self.bind_sizes)


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


def _identifier(name: str) -> str:
    return re.sub(r"\W", "_", name)


def _count(counts: dict[str, int], name: str) -> None:
    counts[name] = counts.get(name, 0) + 1


def forget_logged() -> None:
    """Log each extern anew."""
    logged_externs.clear()
