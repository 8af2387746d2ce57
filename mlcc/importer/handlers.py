"""Which ATen ops the importer knows beside those of the op table, and the functions that import them.

A handler returns a Tensor, or a list of them for an op with several results, or raises Unsupported with a reason; the
node then becomes an extern. The importer checks the result's dtype against eager's and adds strides and source.
"""

from __future__ import annotations

from mlcc.importer.ops import attention_gradients, gguf_weights
from mlcc.importer.ops.adaptive_pools import (
    adaptive_avg_pool,
    adaptive_avg_pool_backward,
    adaptive_max_pool,
)
from mlcc.importer.ops.creation import arange, empty, full, iota
from mlcc.importer.ops.index_maps import (
    as_strided,
    broadcast_in_dim,
    cat,
    diagonal,
    embedding,
    expand,
    flip,
    gather,
    index_select,
    index_tensor,
    permute,
    repeat,
    reshape,
    roll,
    select,
    slice_tensor,
    split,
    take,
    transpose,
    unbind,
    unsafe_index,
)
from mlcc.importer.ops.normalizations import (
    batch_norm_without_training,
    layer_norm,
    log_softmax,
    safe_softmax,
    softmax,
)
from mlcc.importer.ops.padding import (
    constant_pad,
    extended,
    reflected_backward,
    replicated_backward,
)
from mlcc.importer.ops.pointwise import (
    convert_element_type,
    copy_from,
    copy_of_first,
    first_argument,
    hardtanh,
    multiply_add,
    nan_or_infinity,
    nan_to_num,
    power,
    signbit,
    to_copy,
)
from mlcc.importer.ops.reductions import (
    extreme,
    extreme_index,
    extreme_with_index,
    mean,
    prod,
    std,
    std_mean,
    sum_,
    truth,
    var,
    var_mean,
)
from mlcc.importer.ops.unpooling import max_unpool, pool_backward
from mlcc.importer.ops.updates import (
    cumulative,
    cumulative_extreme,
    diagonal_scatter,
    embedding_dense_backward,
    index_add,
    index_copy,
    index_fill,
    index_put,
    index_reduce,
    logcumsumexp,
    masked_scatter,
    put,
    scatter,
    scatter_reduce,
    slice_scatter,
    unsafe_index_put,
)
from mlcc.importer.ops.windows import (
    avg_pool,
    avg_pool_backward,
    col2im,
    im2col,
    max_pool,
    unfold,
)
from mlcc.ir.types import Handler


def _aten(handler: Handler, *names: str) -> dict[str, Handler]:
    return {f"aten.{name}": handler for name in names}


# Overload -> handler. The op table's overloads need no row here unless numbers decide how they are computed.
HANDLERS: dict[str, Handler] = {
    **attention_gradients.HANDLERS,
    **gguf_weights.HANDLERS,
    # pointwise
    **_aten(power, "pow.Tensor_Scalar"),
    **_aten(nan_to_num, "nan_to_num.default"),
    **_aten(
        nan_or_infinity,
        "isnan.default",
        "isinf.default",
        "isposinf.default",
        "isneginf.default",
    ),
    **_aten(signbit, "signbit.default"),
    **_aten(hardtanh, "hardtanh.default"),
    "prims.fma.default": multiply_add,
    # casts and copies
    **_aten(to_copy, "_to_copy.default"),
    **_aten(copy_of_first, "clone.default", "lift_fresh_copy.default"),
    **_aten(
        first_argument, "alias.default", "detach.default", "lift.default", "lift_fresh.default"
    ),
    **_aten(copy_from, "copy.default"),
    "prims.convert_element_type.default": convert_element_type,
    # index maps
    **_aten(reshape, "view.default", "_unsafe_view.default", "reshape.default"),
    **_aten(reshape, "unsqueeze.default", "squeeze.default", "squeeze.dim", "squeeze.dims"),
    **_aten(expand, "expand.default"),
    **_aten(permute, "permute.default"),
    **_aten(transpose, "t.default", "transpose.int"),
    **_aten(flip, "flip.default"),
    **_aten(slice_tensor, "slice.Tensor"),
    **_aten(select, "select.int"),
    **_aten(diagonal, "diagonal.default"),
    **_aten(as_strided, "as_strided.default"),
    **_aten(split, "split.Tensor", "split_with_sizes.default"),
    **_aten(unbind, "unbind.int"),
    **_aten(cat, "cat.default"),
    **_aten(repeat, "repeat.default"),
    **_aten(roll, "roll.default"),
    **_aten(constant_pad, "constant_pad_nd.default"),
    **_aten(slice_scatter, "slice_scatter.default"),
    **_aten(diagonal_scatter, "diagonal_scatter.default"),
    "prims.broadcast_in_dim.default": broadcast_in_dim,
    "prims.split_dim.default": reshape,
    "prims.collapse_view.default": reshape,
    "prims.squeeze.default": reshape,
    "prims.transpose.default": permute,
    # reductions
    **_aten(sum_, "sum.default", "sum.dim_IntList"),
    **_aten(prod, "prod.default", "prod.dim_int"),
    **_aten(mean, "mean.default", "mean.dim"),
    **_aten(extreme("max"), "amax.default", "max.default"),
    **_aten(extreme("min"), "amin.default", "min.default"),
    **_aten(extreme_with_index("max"), "max.dim"),
    **_aten(extreme_with_index("min"), "min.dim"),
    **_aten(extreme_index("argmax"), "argmax.default"),
    **_aten(extreme_index("argmin"), "argmin.default"),
    **_aten(truth("any"), "any.default", "any.dim", "any.dims"),
    **_aten(truth("all"), "all.default", "all.dim", "all.dims"),
    **_aten(var, "var.default", "var.dim", "var.correction"),
    **_aten(std, "std.default", "std.dim", "std.correction"),
    **_aten(var_mean, "var_mean.default", "var_mean.dim", "var_mean.correction"),
    **_aten(std_mean, "std_mean.default", "std_mean.dim", "std_mean.correction"),
    # norms
    **_aten(
        batch_norm_without_training,
        "_native_batch_norm_legit_no_training.default",
        "_batch_norm_no_update.default",
    ),
    **_aten(layer_norm, "native_layer_norm.default"),
    **_aten(softmax, "_softmax.default"),
    **_aten(log_softmax, "_log_softmax.default"),
    **_aten(safe_softmax, "_safe_softmax.default"),
    # gathers
    **_aten(embedding, "embedding.default"),
    **_aten(index_select, "index_select.default"),
    **_aten(index_tensor, "index.Tensor"),
    **_aten(unsafe_index, "_unsafe_index.Tensor"),
    **_aten(gather, "gather.default"),
    **_aten(take, "take.default"),
    # updates at computed places
    **_aten(
        scatter,
        "scatter.src",
        "scatter.value",
        "scatter.reduce",
        "scatter.value_reduce",
        "scatter_add.default",
    ),
    **_aten(scatter_reduce, "scatter_reduce.two"),
    **_aten(index_put, "index_put.default"),
    **_aten(unsafe_index_put, "_unsafe_index_put.default"),
    **_aten(index_add, "index_add.default"),
    **_aten(index_copy, "index_copy.default"),
    **_aten(index_fill, "index_fill.int_Scalar", "index_fill.int_Tensor"),
    **_aten(index_reduce, "index_reduce.default"),
    **_aten(put, "put.default"),
    **_aten(masked_scatter, "masked_scatter.default"),
    **_aten(embedding_dense_backward, "embedding_dense_backward.default"),
    # scans
    **_aten(cumulative("add"), "cumsum.default"),
    **_aten(cumulative("mul"), "cumprod.default"),
    **_aten(logcumsumexp, "logcumsumexp.default"),
    **_aten(cumulative_extreme("max"), "cummax.default"),
    **_aten(cumulative_extreme("min"), "cummin.default"),
    # padding
    **_aten(extended("reflect"), *(f"reflection_pad{n}d.default" for n in (1, 2, 3))),
    **_aten(extended("replicate"), *(f"replication_pad{n}d.default" for n in (1, 2, 3))),
    **_aten(reflected_backward, *(f"reflection_pad{n}d_backward.default" for n in (1, 2, 3))),
    **_aten(replicated_backward, *(f"replication_pad{n}d_backward.default" for n in (1, 2, 3))),
    # windows
    **_aten(unfold, "unfold.default"),
    **_aten(im2col, "im2col.default"),
    **_aten(col2im, "col2im.default"),
    **_aten(max_pool(2), "max_pool2d_with_indices.default"),
    **_aten(max_pool(3), "max_pool3d_with_indices.default"),
    **_aten(adaptive_max_pool(2), "adaptive_max_pool2d.default"),
    **_aten(adaptive_max_pool(3), "adaptive_max_pool3d.default"),
    **_aten(avg_pool(2), "avg_pool2d.default"),
    **_aten(avg_pool(3), "avg_pool3d.default"),
    **_aten(avg_pool_backward(2), "avg_pool2d_backward.default"),
    **_aten(avg_pool_backward(3), "avg_pool3d_backward.default"),
    **_aten(adaptive_avg_pool(2), "_adaptive_avg_pool2d.default"),
    **_aten(adaptive_avg_pool(3), "_adaptive_avg_pool3d.default"),
    **_aten(adaptive_avg_pool_backward(2), "_adaptive_avg_pool2d_backward.default"),
    **_aten(adaptive_avg_pool_backward(3), "_adaptive_avg_pool3d_backward.default"),
    **_aten(max_unpool(2), "max_unpool2d.default"),
    **_aten(max_unpool(3), "max_unpool3d.default"),
    **_aten(
        pool_backward(2),
        "max_pool2d_with_indices_backward.default",
        "adaptive_max_pool2d_backward.default",
        "fractional_max_pool2d_backward.default",
    ),
    **_aten(
        pool_backward(3),
        "max_pool3d_with_indices_backward.default",
        "adaptive_max_pool3d_backward.default",
        "fractional_max_pool3d_backward.default",
    ),
    # creation
    **_aten(full, "full.default", "full_like.default", "scalar_tensor.default"),
    **_aten(
        empty,
        "empty.memory_format",
        "empty_like.default",
        "empty_permuted.default",
        "empty_strided.default",
        "new_empty_strided.default",
    ),
    **_aten(arange, "arange.start_step"),
    "prims.iota.default": iota,
}
