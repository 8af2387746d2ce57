"""What a trace depends on beside its arguments, and what a value met while tracing is."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch


def flatten(value: Any, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[Any], Any]:
    """Leaves of nested tuples, lists and dicts, and their structure, which is hashable."""
    from torch.utils._pytree import tree_flatten

    return tree_flatten(value, is_leaf)


def unflatten(leaves: Sequence[Any], structure: Any) -> Any:
    """The inverse of `flatten`."""
    from torch.utils._pytree import tree_unflatten

    return tree_unflatten(list(leaves), structure)


# Of what they hold in a structure nothing can change without notice.
_OF_PYTHON = frozenset(
    (
        *(None, tuple, list, dict, collections.namedtuple),
        *(collections.OrderedDict, collections.defaultdict, collections.deque),
    )
)


def registered_nodes(structure: Any) -> list[tuple[type, Any]]:
    """(class, context) of the nodes of a structure whose classes are none of Python's."""
    found = [] if structure.type in _OF_PYTHON else [(structure.type, structure.context)]
    for child in structure.children():
        if child.type is not None:
            found += registered_nodes(child)
    return found


def leaf_paths(value: Any) -> list[list[str]]:
    """Where each leaf of `flatten` stands: ["[0]", "[1]", "['key']"]."""
    from torch.utils._pytree import tree_flatten_with_path

    return [[str(key) for key in path] for path, _ in tree_flatten_with_path(value)[0]]


def matmul_precision() -> str:
    """What torch.set_float32_matmul_precision says of products on the CPU: medium (bf16 inside) or highest."""
    return "medium" if torch.backends.mkldnn.matmul.fp32_precision == "bf16" else "highest"


def global_state() -> tuple[Any, ...]:
    """What a trace depends on beside its arguments: grad, inference and autocast modes, determinism, default dtype,
    precision of products."""
    autocast = tuple(
        torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        for device in ("cpu", "cuda")
    )
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        autocast,
        torch.are_deterministic_algorithms_enabled(),
        torch.get_default_dtype(),
        matmul_precision(),
    )


def no_autocast() -> contextlib.AbstractContextManager[Any]:
    """Inside, ops compute in the dtypes of their arguments."""
    return getattr(torch._C, "_DisableAutocast", contextlib.nullcontext)()


def is_of_trace(value: Any) -> bool:
    """Whether it is a tensor as AOTAutograd's traces have them."""
    from torch._subclasses.fake_tensor import FakeTensor
    from torch._subclasses.functional_tensor import FunctionalTensor

    return type(value) in (FakeTensor, FunctionalTensor)


def has_other_storage(value: Any) -> bool:
    """Whether a tensor of a trace was given another memory (`set_`), which its wrapper does not show."""
    from torch._subclasses.functional_tensor import FunctionalTensor

    changed = getattr(torch, "_functionalize_was_storage_changed", None)
    return isinstance(value, FunctionalTensor) and changed is not None and changed(value.elem)


def is_real_parameter(value: Any) -> bool:
    """Whether, in a trace, it is no tensor of it, but a parameter or another one that requires gradients."""
    return is_real_tensor(value) and (value.requires_grad or type(value) is torch.nn.Parameter)


def is_real_tensor(value: Any) -> bool:
    """Whether, in a trace, it is a plain tensor that is none of it."""
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        return False
    is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    return not is_wrapped(value) and not torch._is_functional_tensor(value)


def global_module_hooks() -> list[dict[int, Any]]:
    """The hooks that run around the forward function of every module."""
    hooks = torch.nn.modules.module
    return [hooks._global_forward_hooks, hooks._global_forward_pre_hooks]


def under_modes() -> bool:
    """Whether someone watches or transforms the ops: a dispatch or function mode, a functorch level, or forward-mode
    derivatives."""
    return (
        torch._C._len_torch_dispatch_stack() > 0
        or torch._C._len_torch_function_stack() > 0
        or torch._C._functorch.maybe_current_level() is not None
        or torch.autograd.forward_ad._current_level >= 0
    )


def has_tangents(arguments: Sequence[Any]) -> bool:
    """Whether a tensor among them is a dual one, of forward-mode derivatives."""
    level = torch.autograd.forward_ad._current_level
    return level >= 0 and any(
        isinstance(one, torch.Tensor)
        and torch.autograd.forward_ad.unpack_dual(one, level=level).tangent is not None
        for one in arguments
    )


# Artifacts of TORCH_LOGS that Dynamo writes while it traces.
_OF_TRACING = {
    "bytecode",
    "graph",
    "graph_breaks",
    "graph_code",
    "graph_sizes",
    "guards",
    "side_effects",
    "trace_bytecode",
    "trace_call",
    "trace_source",
    "verbose_guards",
}


def is_tracing_logged() -> bool:
    """Whether TORCH_LOGS asks what Dynamo does: a process that traces nothing has nothing to tell."""
    from torch._logging import _internal

    return not _OF_TRACING.isdisjoint(_internal.log_state.artifact_names)
