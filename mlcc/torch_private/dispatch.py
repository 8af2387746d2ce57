"""Dispatcher ops: what their schemas tell, torch's decompositions and type promotion, ops by other ops."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch


def scan(
    step: Callable[..., Any],
    carried: Sequence[torch.Tensor],
    rows: Sequence[torch.Tensor],
    others: Sequence[torch.Tensor],
) -> Any:
    """torch's scan over dimension 0 of `rows` as it stands in graphs: flat lists, and no look at `step` by Dynamo."""
    from torch._higher_order_ops.scan import scan_op

    return scan_op(step, list(carried), list(rows), tuple(others))


def functional_form(op: Any) -> Callable[..., Any] | None:
    """What a higher-order op that stands for a mutating op does to its arguments, in plain ops."""
    from torch._higher_order_ops import auto_functionalize

    forms = {
        "auto_functionalized": auto_functionalize.auto_functionalized_dense,
        "auto_functionalized_v2": auto_functionalize.auto_functionalized_v2_dense,
    }
    return forms.get(str(op)) if is_higher_order(op) else None


def decompositions_of(names: Sequence[str]) -> dict[Any, Callable[..., Any]]:
    """torch's decompositions of the named aten ops, functional overloads only; unknown names are left out.

    A name is an op ("native_layer_norm": all overloads) or one overload ("all.dim").
    """
    from torch._decomp import get_decompositions

    ops = []
    for name in names:
        packet_name, _, overload_name = name.partition(".")
        packet = getattr(torch.ops.aten, packet_name, None)
        if packet is None:
            continue
        op = getattr(packet, overload_name, None) if overload_name else packet
        if op is not None:
            ops.append(op)
    found: dict[Any, Callable[..., Any]] = get_decompositions(ops)
    return {op: function for op, function in found.items() if not _is_out_overload(op)}


def _is_out_overload(op: Any) -> bool:
    return is_op(op) and any(a.is_out for a in op._schema.arguments)


def reference(name: str) -> Callable[..., Any]:
    """torch's implementation of one of its functions by other ops."""
    from torch import _refs

    function: Callable[..., Any] = getattr(_refs, name)
    return function


def eager_memory_format(tensor: torch.Tensor) -> torch.memory_format:
    """The memory format in which eager's kernels give a result for a tensor, where they do not keep its strides."""
    from torch._prims_common import suggest_memory_format

    return suggest_memory_format(tensor)


def is_channels_last(tensor: torch.Tensor) -> bool:
    """Whether eager's kernels take a tensor of four dimensions for one in the memory format channels_last."""
    return tensor.dim() == 4 and eager_memory_format(tensor) == torch.channels_last


_PROMOTION_KINDS = {
    "default": "DEFAULT",
    "int_to_float": "INT_TO_FLOAT",
    "same": "NO_OPMATH",
    "compare": "ALWAYS_BOOL",
    "logical": "ALWAYS_BOOL",
    "test": "ALWAYS_BOOL",
    "select": "NO_OPMATH",
    "bool_to_long": "BOOL_TO_LONG",
}


def promote(rule: str, arguments: Sequence[Any]) -> tuple[torch.dtype, torch.dtype]:
    """torch's (dtype to compute in, dtype of the result) for tensors and numbers under one of the op table's rules.

    Arguments are (fake) tensors, Python numbers and SymInts; nothing is read but dtype, rank and kind.
    """
    from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

    kind = getattr(ELEMENTWISE_TYPE_PROMOTION_KIND, _PROMOTION_KINDS[rule])
    computed, result = elementwise_dtypes(*arguments, type_promotion_kind=kind)
    return computed, result


def is_op(target: Any) -> bool:
    """Whether a graph node's target is an overload of a dispatcher op."""
    return isinstance(target, torch._ops.OpOverload)


def is_view(op: Any) -> bool:
    """Whether it is a dispatcher op whose one result is a view of its first argument."""
    if not is_op(op) or len(op._schema.returns) != 1 or not op._schema.arguments:
        return False
    info = op._schema.returns[0].alias_info
    first = op._schema.arguments[0].alias_info
    return info is not None and not info.is_write and first is not None and not first.is_write


def gives_views(op: Any) -> bool:
    """Whether it is a dispatcher op whose result is a list of views of its first argument, as split's."""
    if not is_op(op) or len(op._schema.returns) != 1 or not op._schema.arguments:
        return False
    is_list = str(op._schema.returns[0].type) == "List[Tensor]"
    return is_list and op._schema.arguments[0].alias_info is not None


@functools.cache
def number_arguments(op: Any) -> tuple[tuple[int, str], ...]:
    """Place and name of an op's arguments that are numbers of any dtype (Scalars), which may be optional.

    Integers that are sizes or places are not among them.
    """
    schema = getattr(op, "_schema", None)

    def is_number(one: Any) -> bool:
        inner = one.getElementType() if one.kind() == "OptionalType" else one
        return bool(inner.kind() == "NumberType")

    return tuple(
        (place, argument.name)
        for place, argument in enumerate(schema.arguments if schema is not None else ())
        if is_number(argument.type)
    )


def is_random(op: Any) -> bool:
    """Whether a dispatcher op draws random numbers."""
    return torch.Tag.nondeterministic_seeded in op.tags


def is_foretold_wrongly(node: torch.fx.Node) -> bool:
    """Whether the fake result has another rank than the real one: `unique_consecutive` with dim < 0 (torch 2.13)."""
    if node.target is not torch.ops.aten.unique_consecutive.default:
        return False
    dim = node.kwargs.get("dim", node.args[3] if len(node.args) > 3 else None)
    return dim is not None and node.meta["val"][0].dim() != node.args[0].meta["val"].dim()


def is_object(value: Any) -> bool:
    """Whether a value in a graph is an object that torch passes on and does not look into, or the fake one of such."""
    if isinstance(value, torch.ScriptObject):
        return True
    try:
        from torch._library.fake_class_registry import FakeScriptObject
        from torch._library.opaque_object import is_opaque_value
    except ImportError:  # an older torch has no others
        return False
    return isinstance(value, FakeScriptObject) or is_opaque_value(value)


def is_higher_order(op: Any) -> bool:
    """Whether a graph node's target takes graphs or Python callables."""
    return isinstance(op, torch._ops.HigherOrderOperator)


def is_builtin_op(op: Any) -> bool:
    """Whether torch itself defines this dispatcher op, so that its schema can be trusted to tell all its effects."""
    return op.namespace in {"aten", "prims", "prim"}


# Functional collectives: they read their operands until someone waits for their results.
_BEGIN = {
    "all_gather_into_tensor",
    "all_gather_into_tensor_coalesced",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all_single",
    "broadcast",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced",
}


def group_work(op: Any) -> dict[str, bool]:
    """Whether an op begins work that processes do together, or waits for it, as facts of the graph IR."""
    if not is_op(op):
        return {}
    namespace, name = op._schema.name.split("::")
    if namespace == "_dtensor" and name == "shard_dim_alltoall":
        return {"begins": True, "waits": True}
    if namespace != "_c10d_functional" or op._overloadname != "default":
        return {}
    return {"waits": True} if name == "wait_tensor" else {"begins": True} if name in _BEGIN else {}


# How ops are dispatched where no other op is under way: when this module is imported.
_PLAIN_DISPATCH = (
    torch._C._dispatch_tls_local_include_set(),
    torch._C._dispatch_tls_local_exclude_set(),
)


@contextlib.contextmanager
def as_outside_of_ops() -> Iterator[None]:
    """Inside of an op of ours: ops are dispatched as in plain Python without gradients, on which functorch relies."""
    with torch.no_grad(), torch._C._ForceDispatchKeyGuard(*_PLAIN_DISPATCH):
        yield
