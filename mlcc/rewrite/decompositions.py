"""Which aten ops are taken apart before import, by torch's own decompositions, and why.

An op stands here if what remains are ops that the op table or the importer knows, and the pieces compute as the eager
kernel does: 16-bit inputs are computed in f32 and rounded once. An op that eager runs by a library or by one good
kernel, and that we do not generate (matmul, convolution, attention, sort), does not stand here: it is imported whole,
as an ATen call. Composite ops (`layer_norm`, `cross_entropy`, `linear`, ...) need no row, since AOTAutograd never hands
them on.

Norms and softmax are a dozen ops each, of a millisecond in torch's trace. The importer knows them whole, and they are
taken apart in traces with gradients only: what the backward pass reads is chosen among their parts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from mlcc.ir.types import overflows
from mlcc.rewrite import encoder_layers, quantization
from mlcc.rewrite import own_decompositions as own
from mlcc.torch_private import dispatch, symints

_NORMALIZATIONS = """
    native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward
    _fused_rms_norm _fused_rms_norm_backward
    native_batch_norm native_batch_norm_backward batch_norm_backward
    _native_batch_norm_legit _native_batch_norm_legit_functional _native_batch_norm_legit_no_training
    _batch_norm_with_update _batch_norm_with_update_functional _batch_norm_no_update
"""

_SOFTMAX = """
    _softmax _softmax_backward_data _log_softmax _log_softmax_backward_data _safe_softmax logsumexp
"""

# What the importer has handlers for.
_WHOLE = """
    native_layer_norm _native_batch_norm_legit_no_training _batch_norm_no_update
    _softmax _log_softmax _safe_softmax
"""

_LOSSES = """
    nll_loss_forward nll_loss2d_forward
    mse_loss mse_loss_backward smooth_l1_loss smooth_l1_loss_backward huber_loss huber_loss_backward
    binary_cross_entropy_backward binary_cross_entropy_with_logits
"""

_ACTIVATIONS = """
    celu glu hardshrink log_sigmoid_forward logit mish relu6 selu softshrink
    glu_backward log_sigmoid_backward logit_backward mish_backward _prelu_kernel_backward
"""

_POINTWISE = """
    deg2rad heaviside logaddexp logaddexp2 masked_fill native_dropout_backward rad2deg sinc special_entr
    special_xlog1py
"""

_CREATION = """
    arange.default arange.start eye fill new_empty new_full new_ones new_zeros ones ones_like zero zeros
    zeros_like
"""

_REDUCTIONS = """
    aminmax count_nonzero linalg_vector_norm nansum norm renorm
"""

_MOVEMENTS = """
    _chunk_cat _reshape_alias channel_shuffle diag_embed diagonal_backward pixel_shuffle pixel_unshuffle rot90
    select_backward select_scatter slice_backward stack trace tril triu unsafe_split unsafe_split_with_sizes
    alias_copy expand_copy permute_copy squeeze_copy t_copy transpose_copy unbind_copy unsqueeze_copy view_copy
"""

_INDEXING = """
    _unsafe_masked_index _unsafe_masked_index_put_accumulate block_diag isin linalg_cross tril_indices
    triu_indices unfold_copy narrow_copy diagonal_copy
"""

_GROUPS = [
    _NORMALIZATIONS,
    _SOFTMAX,
    _LOSSES,
    _ACTIVATIONS,
    _POINTWISE,
    _CREATION,
    _REDUCTIONS,
    _MOVEMENTS,
    _INDEXING,
]


def names() -> list[str]:
    """Names of the ops that are taken apart, sorted."""
    return sorted({name for group in _GROUPS for name in group.split()})


def _of_floats(decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """The decomposition for floats only: torch's takes integers too, which eager's kernel refuses by an error."""

    @functools.wraps(decomposition)
    def run(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return decomposition(x, *args, **kwargs) if x.is_floating_point() else NotImplemented

    return run


def _of_numbers_that_fit(decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """The decomposition of a fill unless its number has no place in the dtype, for which eager has an error."""

    @functools.wraps(decomposition)
    def run(x: torch.Tensor, mask: torch.Tensor, value: Any) -> Any:
        return NotImplemented if overflows(value, x.dtype) else decomposition(x, mask, value)

    return run


def _of_dense(decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """The decomposition unless the result has gaps in memory as its input does."""

    @functools.wraps(decomposition)
    def run(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return decomposition(x, *args, **kwargs) if symints.is_dense(x) else NotImplemented

    return run


def _of_gpus(decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """The decomposition of a batch norm where eager's kernel computes it so; for CPUs one of our own."""

    @functools.wraps(decomposition)
    def run(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        computed = own.batch_norm_without_training if x.device.type == "cpu" else decomposition
        return computed(x, *args, **kwargs)

    return run


# What torch's decompositions are not for.
_LIMITED = {
    "_softmax": _of_floats,
    "_log_softmax": _of_floats,
    "masked_fill.Scalar": _of_numbers_that_fit,
    "select_scatter": _of_dense,
    "_native_batch_norm_legit_no_training": _of_gpus,
}


def _in_eager_layout(decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """The decomposition of a batch norm, but its first result does not keep the strides of just any input."""

    @functools.wraps(decomposition)
    def run(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        first, *others = decomposition(x, *args, **kwargs)
        return first.contiguous(memory_format=dispatch.eager_memory_format(x)), *others

    return run


_IN_EAGER_LAYOUT = (
    "native_batch_norm",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit.no_stats",
    "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit_no_training",
)


# Overload -> decomposition of our own.
_OWN: dict[str, Callable[..., Any]] = {
    "_embedding_bag": own.embedding_bag,
    "_embedding_bag_backward": own.embedding_bag_backward,
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams": quantization.fake_quantize_per_tensor_if,
    "_native_multi_head_attention": encoder_layers.native_multi_head_attention,
    "_scaled_dot_product_flash_attention_for_cpu": own.attention_call,
    "_transformer_encoder_layer_fwd": encoder_layers.transformer_encoder_layer,
    "_weight_int8pack_mm": quantization.weight_int8pack_mm,
    "_weight_norm_interface": own.weight_norm,
    "_weight_norm_interface_backward": own.weight_norm_backward,
    "bmm": own.matrix_product,
    "bucketize.Scalar": own.bucketize,
    "bucketize.Tensor": own.bucketize,
    "dist": own.dist,
    "elu_backward": own.elu_backward,
    "ldexp.Tensor": own.ldexp,
    "fake_quantize_per_channel_affine_cachemask": quantization.fake_quantize_per_channel,
    "fake_quantize_per_tensor_affine_cachemask": quantization.fake_quantize_per_tensor,
    "linspace": own.linspace,
    "linspace.Tensor_Tensor": own.linspace,
    "linspace.Tensor_Scalar": own.linspace,
    "linspace.Scalar_Tensor": own.linspace,
    "masked_scatter_backward": own.masked_scatter_backward,
    "max_unpool2d": own.max_unpool2d,
    "histc": own.histc,
    "mm": own.matrix_product,
    "nll_loss_backward": own.nll_loss_backward,
    "nll_loss2d_backward": own.nll_loss_backward,
    "round.decimals": own.round_decimals,
    "searchsorted.Scalar": own.searchsorted,
    "searchsorted.Tensor": own.searchsorted,
    "soft_margin_loss": own.soft_margin_loss,
    "soft_margin_loss_backward": own.soft_margin_loss_backward,
}


# torch's names of ops over lists of tensors, which eager's CPU kernels run tensor by tensor.
_FOREACH = """
    abs add addcdiv addcmul ceil clamp_max clamp_min copy cos div erf exp floor frac lerp log maximum minimum mul neg
    norm pow reciprocal round rsqrt sigmoid sign sin sqrt sub tanh trunc zero
"""

# The op of one tensor where that has another name.
_SINGLE = {
    "maximum": "clamp_min",
    "minimum": "clamp_max",
    "norm": "linalg_vector_norm",
    "zero": "zeros_like",
}


def _tensor_by_tensor(op: Any, single: Any) -> Callable[..., Any]:
    """A _foreach op written out: `single` for each place in its lists, of tensors or of numbers."""
    names = [argument.name for argument in op._schema.arguments]
    # What a single op takes by name only, and the name.
    by_name = {"alpha": "alpha", "dtype": "dtype"}
    if single in (torch.ops.aten.addcmul, torch.ops.aten.addcdiv):
        by_name |= dict.fromkeys(("value", "scalars"), "value")

    def at(value: Any, place: int) -> Any:
        return value[place] if isinstance(value, list | tuple) else value

    def run(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(names, args, strict=False)) | kwargs
        if isinstance(given.get("scalars"), torch.Tensor):
            return NotImplemented
        named = {by_name[name]: given.pop(name) for name in by_name if name in given}
        length = next(len(one) for one in given.values() if isinstance(one, list | tuple))
        return [
            single(
                *(at(one, place) for one in given.values()),
                **{name: at(one, place) for name, one in named.items()},
            )
            for place in range(length)
        ]

    return run


def _foreach() -> dict[Any, Callable[..., Any]]:
    found: dict[Any, Callable[..., Any]] = {}
    for name in _FOREACH.split():
        packet = getattr(torch.ops.aten, f"_foreach_{name}")
        for overload in packet.overloads():
            op = getattr(packet, overload)
            if not any(argument.is_out for argument in op._schema.arguments):
                found[op] = _tensor_by_tensor(op, getattr(torch.ops.aten, _SINGLE.get(name, name)))
    return found


def _unless_in_eager_layout(decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """The decomposition where torch's trace of the whole op mistakes the strides of the result."""

    @functools.wraps(decomposition)
    def run(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if x.is_contiguous(memory_format=dispatch.eager_memory_format(x)):
            return NotImplemented
        return decomposition(x, *args, **kwargs)

    return run


@functools.cache
def table(generated: frozenset[str], has_gradients: bool = False) -> dict[Any, Callable[..., Any]]:
    """Op overload -> function that computes it by other ops; what AOTAutograd takes as `decompositions`.

    Overloads in `generated`, those with a row in the op table, are left whole, and norms unless the trace
    `has_gradients`.
    """
    found = dispatch.decompositions_of(names())
    kept = {op: function for op, function in found.items() if str(op) not in generated}
    for name, wrapper in _LIMITED.items():
        kept[_overload(name)] = wrapper(kept[_overload(name)])
    for name in _IN_EAGER_LAYOUT:
        kept[_overload(name)] = _in_eager_layout(kept[_overload(name)])
    if not has_gradients:
        _leave_whole(kept)
    ours = {_overload(name): function for name, function in _OWN.items()}
    return kept | _foreach() | ours


def _leave_whole(kept: dict[Any, Callable[..., Any]]) -> None:
    for name in _WHOLE.split():
        decomposition = kept.pop(_overload(name))
        if "batch_norm" in name:
            kept[_overload(name)] = _unless_in_eager_layout(decomposition)


def _overload(name: str) -> Any:
    op, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, op), overload or "default")
