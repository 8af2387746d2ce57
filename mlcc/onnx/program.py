"""A model as it is run: nodes with their functions, and graphs of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mlcc._errors import Error
from mlcc.onnx.dtypes import WIDE_UNSIGNED
from mlcc.onnx.registry import Function, Handler
from mlcc.onnx.sizes import Number, Sizes

Scope = dict[str, Any]  # name -> Tensor, Sizes, list (a sequence) or None (an empty optional)


# Key of a scope under which all tensors of the module lie: bodies of functions have scopes of their own.
STORE = ""


def _no_function(*values: Any) -> Any:
    raise Error("onnx: a node has no function")


class Node:
    """An occurrence of an op, which has a function or, as functions of ONNX have, a body."""

    def __init__(
        self,
        op: str,
        domain: str,
        name: str,
        version: int,
        inputs: Sequence[str],
        outputs: Sequence[str],
        attributes: dict[str, Any],
    ) -> None:
        self.op, self.domain, self.name, self.version = op, domain, name, version
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.attributes = attributes
        self.handler: Handler | None = None
        self.function: Function = _no_function  # the handler's
        self.body: Graph | None = None
        self.constants: dict[int, Sizes] = {}  # of inputs that initializers tell
        self.same_type: tuple[int, ...] = ()  # per output: the input whose type it has, or -1
        self.dead: tuple[str, ...] = ()  # names that nothing reads after this node
        self.is_plain = False  # its function gets the values as they are, and one output is wanted

    def get(self, name: str, default: Any = None) -> Any:
        return self.attributes.get(name, default)

    def has_output(self, index: int) -> bool:
        return index < len(self.outputs) and self.outputs[index] != ""

    def numbers(self, index: int, value: Any) -> list[Number] | None:
        """Input `index`, which is `value`, as numbers. Reads data where it is neither Sizes nor an initializer."""
        if isinstance(value, Sizes):
            return value.items
        if index in self.constants:
            return self.constants[index].items
        if value is None:
            return None
        return list(value.reshape(-1).tolist())

    def number(self, index: int, value: Any) -> Number:
        """Input `index`, which is `value`, as one number."""
        numbers = self.numbers(index, value)
        if not numbers:
            raise Error(f"onnx: {self.op} {self.name!r}: input {index} has no value")
        return numbers[0]

    def setting(self, name: str, index: int, value: Any) -> list[Number] | None:
        """What was attribute `name` in older versions and is input `index` in newer ones."""
        if name in self.attributes:
            return list(self.attributes[name])
        return self.numbers(index, value)

    def as_sizes(self, *values: Any) -> list[Sizes] | None:
        """The inputs as Sizes if all of them are known and one of them is computed from sizes."""
        if not any(isinstance(value, Sizes) for value in values):
            return None
        if any(isinstance(value, Sizes) and value.rank > 1 for value in values):
            return None
        found: list[Sizes] = []
        for index, value in enumerate(values):
            if isinstance(value, Sizes):
                found.append(value)
            elif index in self.constants:
                found.append(self.constants[index])
            else:
                return None
        return found


class Graph:
    """Nodes in the order in which they run."""

    def __init__(self, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.nodes: list[Node] = []
        self.constants: dict[
            str, Sizes | str
        ] = {}  # initializers and Constant nodes: values, or keys of the store
        self.input_sizes: tuple[tuple[int, ...], ...] = ()  # 0 where the file tells none
        self.output_types: tuple[int, ...] = ()  # codes of element types; 0 where none is told

    def run(self, scope: Scope) -> list[Any]:
        """Values of the outputs; None for those that a function's body leaves out.

        `scope` has the inputs and what the body reads from outside; it is written to.
        """
        for name, constant in self.constants.items():
            scope[name] = constant if isinstance(constant, Sizes) else scope[STORE][constant]
        keeps_all = torch.compiler.is_compiling()  # values of a trace hold no memory
        for node in self.nodes:
            # In few steps: Dynamo interprets them for each node, which is much of the time of a large model's trace.
            if node.is_plain:
                names = node.inputs
                count = len(names)
                if count == 1:
                    result = node.function(node, scope[names[0]])
                elif count == 2:
                    result = node.function(node, scope[names[0]], scope[names[1]])
                else:
                    result = node.function(node, *[scope[name] for name in names])
                scope[node.outputs[0]] = result[0] if isinstance(result, tuple) else result
            else:
                results = _run_node(node, scope)
                for name, result in zip(node.outputs, results, strict=False):
                    if name:
                        scope[name] = result
            if not keeps_all:
                for name in node.dead:
                    scope.pop(name, None)
        return [scope.get(name) for name in self.outputs]


def as_tensor(value: Any, device: torch.device | None = None) -> Any:
    return value.tensor(device) if isinstance(value, Sizes) else value


def device_of(values: Sequence[Any]) -> torch.device | None:
    for value in values:
        if isinstance(value, torch.Tensor):
            return value.device
    return None


def _run_node(node: Node, scope: Scope) -> Sequence[Any]:
    values = [scope[name] if name else None for name in node.inputs]
    if node.body is not None:
        inner: Scope = dict.fromkeys(node.body.inputs)
        inner[STORE] = scope[STORE]
        inner.update(zip(node.body.inputs, values, strict=False))
        return node.body.run(inner)
    handler = node.handler
    assert handler is not None
    if not handler.takes_sizes and any(isinstance(value, Sizes) for value in values):
        device = device_of(values)
        values = [as_tensor(value, device) for value in values]
    narrow: list[Any] = []
    if not handler.takes_unsigned:
        narrow = [getattr(value, "dtype", None) for value in values]
    is_wide = any(dtype in WIDE_UNSIGNED for dtype in narrow)
    if is_wide:
        values = [_as_i64(value) for value in values]
    function = handler.function
    results = function(node, scope, *values) if handler.takes_scope else function(node, *values)
    if not isinstance(results, tuple):
        results = (results,)
    if is_wide:
        results = tuple(
            result.to(narrow[source]) if source >= 0 and narrow[source] in WIDE_UNSIGNED else result
            for result, source in zip(results, node.same_type, strict=False)
        )
    return results


def _as_i64(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype in WIDE_UNSIGNED:
        return value.to(torch.int64)
    return value
