"""What AOTAutograd found out about inputs and outputs of the graph that is being compiled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def _metadata() -> Any:
    """What AOTAutograd found out about inputs and outputs of the graph being compiled; None where it does not say."""
    return getattr(torch._guards.TracingContext.try_get(), "fw_metadata", None)


def written_inputs() -> tuple[int, tuple[int, ...]]:
    """How many inputs the graph being compiled has, its parameters first, and which of them the function writes into.

    (0, ()) where torch does not say.
    """
    info = getattr(_metadata(), "input_info", None) or []
    return len(info), tuple(place for place, one in enumerate(info) if one.mutates_data)


def num_tokens() -> int:
    """How many of the first inputs and outputs of the graph being compiled, no backward pass, are tokens of effects.

    torch passes None for them, but not to a graph that comes from its cache (torch 2.13).
    """
    return len(getattr(_metadata(), "tokens", None) or ())


def allow_repeated_backward() -> None:
    """Tell torch that the backward pass of the graph being compiled leaves saved tensors as they are.

    Else torch refuses a second run (`retain_graph=True`) of a pass that was compiled for one, or comes from its cache.
    """
    donated = getattr(_metadata(), "bw_donated_idxs", None)
    if donated:
        donated.clear()  # the list is also that of the metadata of tensor subclasses


def static_inputs(count: int) -> list[int]:
    """Places of parameters and buffers that Dynamo lifted, and of what `mark_static_address` marked.

    Nothing where the graph being compiled has not `count` inputs.
    """
    metadata = _metadata()
    info = getattr(metadata, "input_info", None) or []
    lifted = getattr(metadata, "static_input_indices", None) or []
    return list(lifted) if len(info) == count else []


def lifted_places(gm: Any) -> list[int]:
    """Places of parameters and buffers that Dynamo lifted among the arguments of its module."""
    return [
        place
        for place, node in enumerate(gm.graph.find_nodes(op="placeholder"))
        if node.meta.get("tensor_dict", {}).get("_dynamo_static_input_type")
    ]


def inner_places(inputs: Sequence[Any]) -> list[range]:
    """Of each input of a traced function: the places of what AOTAutograd's graph takes for it.

    One place but for tensor subclasses, instead of which their parts are passed, sizes that are symbols behind them.
    """
    found = []
    start = 0
    for one in inputs:
        stop = start + len(parts_of(one))
        found.append(range(start, stop))
        start = stop
    return found


def parts_of(value: Any) -> list[Any]:
    """What AOTAutograd's graph takes for an input: the value, or a tensor subclass's parts, its symbols behind them."""
    if not isinstance(value, torch.Tensor) or not is_traceable_wrapper_subclass(value):
        return [value]
    names, _ = value.__tensor_flatten__()
    symbols = [one for one in (*value.shape, *value.stride()) if isinstance(one, torch.SymInt)]
    return [*(part for name in names for part in parts_of(getattr(value, name))), *symbols]


def changed_inputs(metadata: Any, count: int) -> list[int]:
    """Which of `count` inputs the traced function changes, their elements or their form; all if torch does not say."""
    info = getattr(metadata, "input_info", None)
    if info is None:
        return list(range(count))
    return [i for i, one in enumerate(info) if one.mutates_data or one.mutates_metadata]


def reshapes_what_it_writes(metadata: Any) -> bool:
    """Whether an input's elements and its form both change.

    AOTAutograd's epilogue then gives the input the strides of the functional result, which lie densely, not its own.
    """
    info = getattr(metadata, "input_info", None)
    return info is not None and any(one.mutates_data and one.mutates_metadata for one in info)


def returns_views(metadata: Any) -> bool:
    """Whether a result of the traced function is a view of an input; True if torch does not say."""
    info = getattr(metadata, "output_info", None)
    return info is None or any(one.output_type.name == "alias_of_input" for one in info)


def _first_result() -> int:
    """The place of the first result among the outputs: tokens and inputs that torch writes itself come before."""
    return num_tokens() + int(getattr(_metadata(), "num_mutated_inp_runtime_indices", 0))


def num_results() -> int:
    """How many outputs of the graph being compiled, no backward pass, are for the caller: saved tensors follow them."""
    metadata = _metadata()
    info = getattr(metadata, "output_info", None)
    if metadata is None or info is None:
        return 0
    return _first_result() + len(info) + int(metadata.num_intermediate_bases)


def outputs_made_again() -> list[int]:
    """Places of the results of the graph being compiled that torch makes again as views of inputs."""
    return [
        place
        for place, one in enumerate(
            getattr(_metadata(), "output_info", None) or (), _first_result()
        )
        if one.output_type.name in ("alias_of_input", "is_input")
    ]


def needs_no_wrapper(metadata: Any) -> bool:
    """Whether the compiled graph alone does what the function does: plain outputs, inputs written by the graph only."""
    try:
        plain = {"non_alias", "unsafe_view_alias"}
        by_graph = {"NOT_MUTATED", "MUTATED_IN_GRAPH"}
        return (
            all(
                one.mutation_type.name in by_graph
                and not one.mutates_metadata
                and not one.mutates_storage_metadata
                for one in metadata.input_info
            )
            and all(one.output_type.name in plain for one in metadata.output_info)
            and metadata.num_intermediate_bases == 0
            and not metadata.is_rng_op_functionalized
            and not metadata.tokens
        )
    except AttributeError:
        return False


@dataclass(frozen=True)
class GradientForm:
    """How the outputs of a forward graph, and the gradients of its results, lead to the backward graph."""

    num_results: int  # the first outputs; what is saved follows
    num_numbers: int  # the last outputs, which come first in the backward graph
    # Per result with a gradient: its place, and the form of the gradient: (memory format, None, None), or sizes and
    # strides.
    gradients: list[tuple[int, tuple[Any, Any, Any]]]
    allows_deterministic: bool


def gradient_form(metadata: Any) -> GradientForm | None:
    """None where AOTAutograd's autograd function does more than to run two graphs, or torch does not say."""
    try:
        if not needs_no_wrapper(metadata) or not _has_plain_gradients(metadata):
            return None
        forms = [one.memory_format for one in metadata.subclass_tangent_meta]
        places = [place for place, one in enumerate(metadata.output_info) if one.requires_grad]
        return GradientForm(
            len(metadata.output_info),
            metadata.num_symints_saved_for_bw,
            [
                (place, (form.memory_format, form.size, form.stride))
                for place, form in zip(places, forms, strict=True)
            ],
            metadata.deterministic is not False,
        )
    except (AttributeError, ValueError):
        return None


def _has_plain_gradients(metadata: Any) -> bool:
    """Whether plain tensors, numbers and nothing else go to the backward graph, and gradients alone come back."""
    return (
        all(one.requires_grad == one.requires_grad_for_backward for one in metadata.output_info)
        and metadata.num_symints_saved_for_bw is not None
        and all(type(one).__name__ == "PlainTensorMeta" for one in metadata.subclass_tangent_meta)
        and not metadata.num_tensors_saved_with_no_vc_check
        and not metadata.num_opaque_objects_saved_for_bw
        and not metadata.num_graphsafe_rng_states
        and not metadata.num_backward_tokens
        and not metadata.indices_of_inputs_that_requires_grad_with_mutations_in_bw
        and metadata.grad_enabled_mutation is None
    )
