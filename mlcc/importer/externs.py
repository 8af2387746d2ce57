"""Externs: nodes imported as a call of their own dispatcher op."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.fx import Node

from mlcc.importer.context import Context
from mlcc.importer.ops.pointwise import symbolic_float
from mlcc.ir.sizes import Size
from mlcc.ir.types import DTYPES, GraphUnsupported, Tensor, Unsupported, source_line
from mlcc.rewrite.expand import MEMORY, MEMORY_AFTER_WRITE
from mlcc.torch_private import dispatch, symints

_MEMORY_FORMATS = {
    torch.contiguous_format: "contiguous_format",
    torch.preserve_format: "preserve_format",
    torch.channels_last: "channels_last",
    torch.channels_last_3d: "channels_last_3d",
}


def import_extern(context: Context, node: Node, bind: Callable[[Iterable[Size]], None]) -> Any:
    """The result of the node's op, called as it is: a Tensor, a list with None for what is no tensor, or None.

    `bind` learns which symbols the call defines. Raises GraphUnsupported for arguments or results that the graph IR
    cannot hold.
    """
    try:
        return _Call(context, node).emit(bind)
    except Unsupported as reason:
        raise GraphUnsupported(f"{node.target}: {reason}") from None


class _Call:
    """One call under construction."""

    def __init__(self, context: Context, node: Node) -> None:
        self._context = context
        self._node = node
        self._operands: list[Any] = []  # handles; arguments refer to them by place
        self._mutates: list[int] = []
        op: Any = node.target
        self._schema = op._schema
        self._name = str(op)
        self._op = op

    def emit(self, bind: Callable[[Iterable[Size]], None]) -> Any:
        """Add the call to the builder and wrap its results."""
        args, kwargs = self._arguments()
        core = self._context.builder
        known = dispatch.is_builtin_op(self._op)
        facts = {
            "random": dispatch.is_random(self._op),
            "effects": not known or self._has_effects(),
            "mutates": self._mutates,
            "aliases": not known or self._may_alias(),
        }
        group_work = dispatch.group_work(self._op)
        value = self._node.meta.get("val")
        if isinstance(value, torch.SymInt) or (
            isinstance(value, int) and not isinstance(value, bool)
        ):
            size = self._context.sizes.size(value)
            bind([size])
            core.extern_size(self._name, args, kwargs, self._operands, size, **facts)
            return None
        results = self._flat_results(value)
        if isinstance(value, list | tuple):
            results = [one if self._is_read(place) else None for place, one in enumerate(results)]
        self._refuse(results)
        types = [self._result_type(one, bind) for one in results]
        handles = core.extern_call(
            self._name, args, kwargs, self._operands, types, **facts, **group_work
        )
        return self._wrap(value, handles)

    def _is_read(self, place: int) -> bool:
        """Whether a node reads the result at `place` as a tensor; a size that the trace knows is no result."""
        result = self._node.meta["val"][place]
        if symints.follows_from_inputs(result):
            return False
        if isinstance(result, torch.Tensor) and result.dtype in DTYPES:
            return True  # what nobody reads is dropped later
        return any(
            user.target is not operator.getitem or (user.args[1] == place and bool(user.users))
            for user in self._node.users
        )

    def _refuse(self, results: list[Any]) -> None:
        for one in results:
            if one is not None and not isinstance(one, torch.Tensor):
                raise GraphUnsupported(f"{self._name}: result is a {type(one).__name__}")

    # -- arguments

    def _arguments(self) -> tuple[list[Any], list[tuple[str, Any]]]:
        parameters = self._schema.arguments
        args = [
            self._argument(value, parameter)
            for value, parameter in zip(self._node.args, parameters, strict=False)
        ]
        by_name = {parameter.name: parameter for parameter in parameters}
        kwargs = [
            (name, self._argument(value, by_name[name]))
            for name, value in self._node.kwargs.items()
        ]
        return args, kwargs

    def _argument(self, value: Any, parameter: Any) -> Any:
        is_write = parameter.alias_info is not None and parameter.alias_info.is_write
        return self._convert(value, is_write)

    def _convert(self, value: Any, is_write: bool) -> Any:
        core = self._context.builder
        if isinstance(value, Node):
            return self._convert_node(value, is_write)
        if isinstance(value, list | tuple):
            return [self._convert(item, is_write) for item in value]
        if value is None or isinstance(value, bool | int | float | complex | str):
            return value
        if isinstance(value, torch.dtype):
            return core.enum("dtype", str(value).removeprefix("torch."))
        if isinstance(value, torch.layout):
            return core.enum("layout", str(value).removeprefix("torch."))
        if isinstance(value, torch.memory_format):
            return core.enum("memory_format", _MEMORY_FORMATS[value])
        if isinstance(value, torch.device):
            return core.enum("device", str(value))
        raise GraphUnsupported(f"{self._name}: argument is a {type(value).__name__}")

    def _convert_node(self, value: Node, is_write: bool) -> Any:
        core = self._context.builder
        tensor = self._context.lookup(value)
        if isinstance(tensor, Tensor):
            place = self._place(tensor.handle)
            if is_write:
                self._mutates.append(place)
            return core.reference(place)
        if isinstance(tensor, list | tuple):
            return [self._convert_node_item(item) for item in tensor]
        fake = value.meta.get("val")
        if isinstance(fake, bool | int | float):
            return fake
        if isinstance(fake, torch.SymFloat):  # its item() is taken when the call runs
            return core.reference(self._place(symbolic_float(self._context, fake).handle))
        if isinstance(fake, torch.SymInt | torch.SymBool):
            return core.size(self._context.sizes.size(fake))
        raise GraphUnsupported(f"{self._name}: argument {value.name} is a {type(fake).__name__}")

    def _convert_node_item(self, item: Any) -> Any:
        if not isinstance(item, Tensor):
            raise GraphUnsupported(f"{self._name}: argument holds a {type(item).__name__}")
        return self._context.builder.reference(self._place(item.handle))

    def _place(self, handle: Any) -> int:
        self._operands.append(handle)
        return len(self._operands) - 1

    # -- facts

    def _has_effects(self) -> bool:
        """An op of torch that gives nothing back is called for what it does; reads behind a write keep their place."""
        return not self._schema.returns or self._node.meta.get(MEMORY) == MEMORY_AFTER_WRITE

    def _may_alias(self) -> bool:
        return any(result.alias_info is not None for result in self._schema.returns)

    # -- results

    def _flat_results(self, value: Any) -> list[Any]:
        if value is None and not self._schema.returns:
            return []
        if isinstance(value, list | tuple):
            return [item for one in value for item in self._flat_item(one)]
        return [value]

    def _flat_item(self, one: Any) -> Sequence[Any]:
        if isinstance(one, list | tuple):
            raise GraphUnsupported(f"{self._name}: result holds a list")
        return [one]

    def _result_type(self, value: Any, bind: Callable[[Iterable[Size]], None]) -> Any:
        if value is None:
            return None
        result = self._context.tensor_type(self._node, value)
        bind(result.shape)
        return result

    def _wrap(self, value: Any, handles: Sequence[Any]) -> Any:
        source = source_line(self._node)
        if source and handles and handles[0] is not None:
            self._context.builder.set_source(handles[0], source)
        tensors = [
            None if handle is None else Tensor(handle, DTYPES[one.dtype])
            for one, handle in zip(self._flat_results(value), handles, strict=True)
        ]
        if isinstance(value, list | tuple):
            return tensors
        return tensors[0] if tensors else None
