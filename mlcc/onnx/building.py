"""From a ModelProto to a program: functions of nodes are found, functions of ONNX become bodies."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import torch

from mlcc._errors import Error
from mlcc.onnx import registry
from mlcc.onnx.dtypes import DTYPES, WIDE_UNSIGNED
from mlcc.onnx.grids import Grids
from mlcc.onnx.program import Graph, Node
from mlcc.onnx.reading import read_tensor
from mlcc.onnx.sizes import Sizes

# Elements of an initializer that may be a shape, a list of axes, pads or the like.
_MOST_CONSTANTS = 64

_MOST_NESTED = 64  # functions and bodies in each other
_MOST_NODES = 2**18  # with those of functions, which may call each other twice and twice again
_MOST_VERSION = 2**31 - 1

# Inputs that are measured or chosen, not trained.
_NOT_TRAINED: dict[str, tuple[int, ...]] = {
    "BatchNormalization": (3, 4),
    "Clip": (1, 2),
    "DequantizeLinear": (1, 2),
    "Pad": (2,),
    "QuantizeLinear": (1, 2),
    "Resize": (1, 2),
    "Upsample": (1,),
}

# Ops that may give Sizes whatever they get.
_GIVES_SIZES = frozenset(
    {"Cast", "ConstantOfShape", "OptionalHasElement", "Range", "SequenceLength", "Shape", "Size"}
)

_WIDE_UNSIGNED = frozenset(code for code, dtype in DTYPES.items() if dtype in WIDE_UNSIGNED)

_Attributes = Mapping[str, onnx.AttributeProto]


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


class Builder:
    def __init__(self, model: onnx.ModelProto, folder: Path | None) -> None:
        self._model, self._folder = model, folder
        self._opsets = {_domain(entry.domain): entry.version for entry in model.opset_import} or {
            "": 1
        }
        for domain, version in self._opsets.items():
            if not 1 <= version <= _MOST_VERSION:
                raise Error(
                    f"onnx: the opset of domain {domain!r} is {version}, expected 1 or more"
                )
        self._functions = {
            (_domain(f.domain), f.name, getattr(f, "overload", "")): f for f in model.functions
        }
        self._types: dict[str, onnx.TypeProto] = {}
        self._inferred = False
        self._unknown: list[str] = []
        self._depth = 0
        self._num_nodes = 0
        self._is_wide_unsigned = _has_wide_unsigned(model)
        self._not_trained: set[str] = set()
        self.tensors: dict[
            str, tuple[torch.Tensor, bool]
        ] = {}  # key -> tensor, whether it is trained

    def build(self) -> Graph:
        proto = self._model.graph
        if proto.sparse_initializer:
            raise Error("onnx: sparse initializers are not supported")
        self._not_trained = {
            node.input[i]
            for node in proto.node
            for i in _NOT_TRAINED.get(node.op_type, ())
            if i < len(node.input)
        }
        graph = self._graph(proto, {}, self._opsets, {})
        initializers = {tensor.name for tensor in proto.initializer}
        graph.input_sizes = tuple(
            tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
            for value in proto.input
            if value.name not in initializers
        )
        graph.output_types = tuple(value.type.tensor_type.elem_type for value in proto.output)
        if self._unknown:
            raise Error(
                "onnx: these ops are not known\n" + "\n".join(f"  {line}" for line in self._unknown)
            )
        return graph

    def _graph(
        self,
        proto: onnx.GraphProto,
        known: Mapping[str, Sizes],
        opsets: Mapping[str, int],
        attributes: _Attributes,
    ) -> Graph:
        initializers = {tensor.name for tensor in proto.initializer}
        inputs = [value.name for value in proto.input if value.name not in initializers]
        graph = Graph(inputs, [value.name for value in proto.output])
        inner = {name: value for name, value in known.items() if name not in inputs}
        for tensor in proto.initializer:
            self._add_constant(
                graph, inner, tensor.name, read_tensor(tensor, self._folder), trained=True
            )
        self._add_nodes(graph, proto.node, inner, opsets, attributes)
        return graph

    def _add_constant(
        self, graph: Graph, known: dict[str, Sizes], name: str, value: torch.Tensor, trained: bool
    ) -> None:
        if value.dim() <= 1 and value.numel() <= _MOST_CONSTANTS and (value.dim() or value.numel()):
            if value.dtype not in (torch.float8_e8m0fnu,) and not value.dtype.is_complex:
                known[name] = Sizes(value.reshape(-1).tolist(), value.dim(), value.dtype)
            is_size = value.dtype == torch.int64 or (
                value.dtype == torch.int32 and not (trained and value.dim())
            )
            if is_size or (value.dtype == torch.bool and value.numel() == 1):
                graph.constants[name] = known[name]
                return
        key = name
        while key in self.tensors:
            key += "_"
        self.tensors[key] = (
            value,
            trained and value.dtype.is_floating_point and name not in self._not_trained,
        )
        graph.constants[name] = key

    def _add_nodes(
        self,
        graph: Graph,
        protos: Iterable[onnx.NodeProto],
        known: dict[str, Sizes],
        opsets: Mapping[str, int],
        attributes: _Attributes,
    ) -> None:
        reads: list[set[str]] = []
        protos = list(protos)
        has_bodies = any(a.type == a.GRAPH for proto in protos for a in proto.attribute)
        made_by_identity = {p.output[0] for p in protos if p.op_type == "Identity" and p.output}
        left_out = set() if has_bodies else made_by_identity - set(graph.outputs)
        same: dict[str, str] = {}  # what these give -> what they get
        grids = Grids()
        # Names whose values are no Sizes.
        tensors = {name for name, value in graph.constants.items() if isinstance(value, str)}
        for proto in protos:
            self._check_node(proto, opsets)
            if proto.op_type == "Constant" and _domain(proto.domain) == "":
                self._add_constant(
                    graph,
                    known,
                    proto.output[0],
                    self._constant_value(proto, attributes),
                    trained=False,
                )
                continue
            if proto.op_type == "Identity" and proto.input[0] in known:
                known[proto.output[0]] = known[proto.input[0]]
            if proto.op_type == "Identity" and proto.output[0] in left_out:
                same[proto.output[0]] = same.get(proto.input[0], proto.input[0])
                continue
            node = self._node(proto, known, opsets, attributes)
            node.inputs = tuple(same.get(name, name) for name in proto.input)
            rounded = grids.without_rounding(node)
            if rounded is not None and proto.output[0] not in graph.outputs and not has_bodies:
                same[proto.output[0]] = rounded
                continue
            self._find_plain(node, tensors)
            graph.nodes.append(node)
            reads.append(set(node.inputs) | _free_names(proto))
        seen = set(graph.outputs)
        made = {name for node in graph.nodes for name in node.outputs if name}
        for node, names in zip(reversed(graph.nodes), reversed(reads), strict=True):
            gone = [
                name
                for name in (*sorted(names), *node.outputs)
                if name in made and name not in seen
            ]
            node.dead = tuple(dict.fromkeys(gone))
            seen |= names

    def _find_plain(self, node: Node, tensors: set[str]) -> None:
        """Tells whether the node is plain, and adds to `tensors` what it gives."""
        handler = node.handler
        if handler is None or handler.takes_scope:
            return
        node.function = handler.function
        has_tensors = tensors.issuperset(node.inputs)
        if node.op not in _GIVES_SIZES and (has_tensors or not handler.takes_sizes):
            tensors.update(name for name in node.outputs if name)
        node.is_plain = (
            len(node.outputs) == 1
            and all((*node.inputs, *node.outputs))
            and (has_tensors or handler.takes_sizes)
            and (handler.takes_unsigned or not self._is_wide_unsigned)
        )

    def _check_node(self, proto: onnx.NodeProto, opsets: Mapping[str, int]) -> None:
        self._num_nodes += 1
        if self._num_nodes > _MOST_NODES:
            raise Error(f"onnx: the model has more than {_MOST_NODES} nodes, functions written out")
        domain = _domain(proto.domain)
        if (domain, proto.op_type, getattr(proto, "overload", "")) in self._functions:
            return
        schema = _schema(domain, proto.op_type, opsets.get(domain, 1))
        if schema is None:
            return
        for what, found, least, most in (
            ("inputs", len(proto.input), schema.min_input, schema.max_input),
            ("outputs", len(proto.output), schema.min_output, schema.max_output),
        ):
            if not least <= found <= most:
                raise Error(
                    f"onnx: {proto.op_type} {proto.name!r}: found {found} {what}, expected {least} to {most}"
                )

    def _node(
        self,
        proto: onnx.NodeProto,
        known: Mapping[str, Sizes],
        opsets: Mapping[str, int],
        outer: _Attributes,
    ) -> Node:
        domain = _domain(proto.domain)
        version = opsets.get(domain, 1)
        raw = _bound_attributes(proto, outer)
        values = {name: self._attribute(a, known, opsets, outer) for name, a in raw.items()}
        name = proto.name or next((output for output in proto.output if output), "")
        node = Node(proto.op_type, domain, name, version, proto.input, proto.output, values)
        node.constants = {i: known[name] for i, name in enumerate(proto.input) if name in known}
        function = self._functions.get((domain, proto.op_type, getattr(proto, "overload", "")))
        if function is not None:
            node.body = self._body(function, proto, known, raw)
            return node
        node.handler = registry.find(domain, proto.op_type, version)
        schema = _schema(domain, proto.op_type, version)
        if proto.op_type == "QuantizeLinear" and len(proto.input) > 2:
            values["zero_type"] = self._type_of(proto.input[2]).tensor_type.elem_type
        if proto.op_type == "CastLike":
            values["like_type"] = self._type_of(proto.input[1]).tensor_type.elem_type
        if node.handler is not None:
            node.same_type = (
                _same_types(schema, proto) if schema is not None else (0,) * len(proto.output)
            )
            return node
        function = self._schema_function(schema, proto, version) if schema is not None else None
        if function is None:
            shown = f"{domain}.{proto.op_type}" if domain else proto.op_type
            self._unknown.append(f"{shown} (version {version}): node {name!r}")
            return node
        node.body = self._body(function, proto, known, raw)
        return node

    def _body(
        self,
        function: onnx.FunctionProto,
        proto: onnx.NodeProto,
        known: Mapping[str, Sizes],
        raw: _Attributes,
    ) -> Graph:
        self._depth += 1
        if self._depth > _MOST_NESTED:
            raise Error(
                f"onnx: function {function.name!r} is nested more than {_MOST_NESTED} times"
            )
        graph = Graph(function.input, function.output)
        inner = {
            name: known[outer]
            for name, outer in zip(function.input, proto.input, strict=False)
            if outer in known
        }
        opsets = {
            **self._opsets,
            **{_domain(entry.domain): entry.version for entry in function.opset_import},
        }
        defaults = {attribute.name: attribute for attribute in function.attribute_proto}
        self._add_nodes(graph, function.node, inner, opsets, {**defaults, **raw})
        self._depth -= 1
        return graph

    def _schema_function(
        self, schema: onnx.defs.OpSchema, proto: onnx.NodeProto, version: int
    ) -> onnx.FunctionProto | None:
        if schema.has_function:
            return onnx.FunctionProto.FromString(schema.get_function_with_opset_version(version))
        if not schema.has_context_dependent_function:
            return None
        versions = [v for v in schema.context_dependent_function_opset_versions if v <= version]
        types = [self._type_of(name) for name in proto.input]
        text = schema.get_context_dependent_function_with_opset_version(
            max(versions, default=version),
            proto.SerializeToString(),
            [t.SerializeToString() for t in types],
        )
        return onnx.FunctionProto.FromString(text) if text else None

    def _type_of(self, name: str) -> onnx.TypeProto:
        """What the file tells, or else what onnx infers; nothing of values in functions."""
        if not self._types:
            self._types = _told_types(self._model.graph)
        if name not in self._types and not self._inferred:
            self._inferred = True
            # A model above 2 GB is a ValueError.
            with contextlib.suppress(ValueError, onnx.shape_inference.InferenceError):
                self._types |= _told_types(onnx.shape_inference.infer_shapes(self._model).graph)
        return self._types.get(name, onnx.TypeProto())

    def _constant_value(self, proto: onnx.NodeProto, outer: _Attributes) -> torch.Tensor:
        for name, attribute in _bound_attributes(proto, outer).items():
            value = onnx.helper.get_attribute_value(attribute)
            if name == "value" and isinstance(value, onnx.TensorProto):
                return read_tensor(value, self._folder)
            if name in ("value_int", "value_ints"):
                return torch.tensor(
                    value if name == "value_int" else list(value), dtype=torch.int64
                )
            if name in ("value_float", "value_floats"):
                return torch.tensor(
                    value if name == "value_float" else list(value), dtype=torch.float32
                )
        raise Error(f"onnx: Constant {proto.output[0]!r}: it has no value that is supported")

    def _attribute(
        self,
        proto: onnx.AttributeProto,
        known: Mapping[str, Sizes],
        opsets: Mapping[str, int],
        outer: _Attributes,
    ) -> Any:
        kind = onnx.AttributeProto
        if proto.type == kind.TENSOR:
            value = read_tensor(proto.t, self._folder)
            # A number is not held as a tensor: what holds one cannot be a constant of a trace.
            return (
                Sizes(value.reshape(-1).tolist(), value.dim(), value.dtype)
                if value.numel() == 1
                else value
            )
        if proto.type == kind.GRAPH:
            self._depth += 1
            if self._depth > _MOST_NESTED:
                raise Error(f"onnx: bodies are nested more than {_MOST_NESTED} times")
            graph = self._graph(proto.g, known, opsets, outer)
            self._depth -= 1
            return graph
        value = onnx.helper.get_attribute_value(proto)
        if value is None:
            raise Error(f"onnx: attribute {proto.name!r}: type {proto.type} is not known")
        if proto.type == kind.STRING:
            return value.decode("utf-8", "replace")
        if proto.type == kind.STRINGS:
            return [text.decode("utf-8", "replace") for text in value]
        if proto.type in (kind.INTS, kind.FLOATS):
            return list(value)
        return value


def _has_wide_unsigned(model: onnx.ModelProto) -> bool:
    """Whether some value may be of such a dtype, as far as inputs, tensors and attributes tell."""

    def in_tensor(tensor: onnx.TensorProto) -> bool:
        return tensor.data_type in _WIDE_UNSIGNED

    def in_nodes(nodes: Iterable[onnx.NodeProto]) -> bool:
        return any(
            (a.i in _WIDE_UNSIGNED and (a.name == "to" or a.name.endswith("dtype")))
            or in_tensor(a.t)
            or in_graph(a.g)
            for node in nodes
            for a in node.attribute
        )

    def in_graph(graph: onnx.GraphProto) -> bool:
        return (
            any(v.type.tensor_type.elem_type in _WIDE_UNSIGNED for v in graph.input)
            or any(map(in_tensor, graph.initializer))
            or in_nodes(graph.node)
        )

    return in_graph(model.graph) or any(in_nodes(f.node) for f in model.functions)


def _told_types(graph: onnx.GraphProto) -> dict[str, onnx.TypeProto]:
    types = {v.name: v.type for v in (*graph.input, *graph.value_info, *graph.output)}
    for tensor in graph.initializer:
        types[tensor.name] = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
    return types


def _bound_attributes(proto: onnx.NodeProto, outer: _Attributes) -> dict[str, onnx.AttributeProto]:
    """The node's attributes; those that name an attribute of the function around it have that one's value."""
    bound = {}
    for attribute in proto.attribute:
        if not attribute.ref_attr_name:
            bound[attribute.name] = attribute
        elif attribute.ref_attr_name in outer:
            bound[attribute.name] = outer[attribute.ref_attr_name]
    return bound


def _free_names(proto: onnx.NodeProto) -> set[str]:
    """What the node's bodies read, of which some are names of their own."""
    names: set[str] = set()
    for attribute in proto.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            names.update(value.name for value in attribute.g.output)
            for node in attribute.g.node:
                names.update(node.input)
                names |= _free_names(node)
    return names


def _schema(domain: str, name: str, version: int) -> onnx.defs.OpSchema | None:
    try:
        return onnx.defs.get_schema(name, version, domain)
    except onnx.defs.SchemaError:
        return None


def _same_types(schema: onnx.defs.OpSchema, proto: onnx.NodeProto) -> tuple[int, ...]:
    def parameter(formal: Sequence[Any], index: int) -> str:
        return str(formal[min(index, len(formal) - 1)].type_str) if formal else ""

    sources = [parameter(schema.inputs, i) for i in range(len(proto.input))]
    found = []
    for i in range(len(proto.output)):
        wanted = parameter(schema.outputs, i)
        found.append(sources.index(wanted) if wanted in sources else -1)
    return tuple(found)
