"""Decompositions of our own: where torch's leave what cannot be fused, or where its trace mistakes what eager gives.

Each computes what eager's kernel computes, 16-bit numbers in f32 and rounded once unless it says otherwise; one that
returns NotImplemented leaves the op to an ATen call. `decompositions.py` says which op each of them is for.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch

from mlcc.torch_private import dispatch, symints


def nll_loss_backward(
    grad_output: torch.Tensor,
    self: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: torch.Tensor,
) -> torch.Tensor:
    """The gradient of nll_loss and nll_loss2d as a comparison with the class number: no zeros to scatter into.

    `self` is [C], [N, C] or [N, C, H, W], `target` has its shape without C; both are as the forward pass took them, so
    that no target is out of range. `reduction` is 0 (none), 1 (mean) or 2 (sum).
    """
    dim = min(1, self.dim() - 1)
    scale = -(grad_output / total_weight) if reduction == 1 else -grad_output
    if reduction == 0 and self.dim() > 1:
        scale = scale.unsqueeze(dim)
    class_shape = [1] * self.dim()
    class_shape[dim] = self.shape[dim]
    classes = torch.arange(self.shape[dim], device=self.device).view(class_shape)
    if weight is not None:
        scale = scale * weight.view(class_shape)
    target = target.unsqueeze(dim)
    chosen = (classes == target) & (target != ignore_index)
    return torch.where(chosen, scale, torch.zeros([], dtype=self.dtype, device=self.device))


def soft_margin_loss(self: torch.Tensor, target: torch.Tensor, reduction: int = 1) -> torch.Tensor:
    """By eager's steps, each rounded to the dtype: among float16 exp overflows to an infinite loss."""
    loss = torch.log1p(torch.exp(-self * target))
    if reduction == 0:
        return loss
    return loss.mean() if reduction == 1 else loss.sum()


def soft_margin_loss_backward(
    grad_output: torch.Tensor, self: torch.Tensor, target: torch.Tensor, reduction: int
) -> torch.Tensor:
    """By eager's steps: torch's decomposition has sigmoid(y) - 1, of which nothing is left for large y."""
    norm = 1 / self.numel() if reduction == 1 and self.numel() else 1.0
    z = torch.exp(-target * self)
    return target * z * -norm / (z + 1) * grad_output


def elu_backward(
    grad_output: torch.Tensor,
    alpha: float,
    scale: float,
    input_scale: float,
    is_result: bool,
    self_or_result: torch.Tensor,
) -> torch.Tensor:
    """The gradient of elu; of NaN it is NaN, as in eager's vectors (those left over give `grad_output`)."""
    wide = _wide(grad_output.dtype)
    grad, x = grad_output.to(wide), self_or_result.to(wide)
    factor = alpha * scale
    below = (
        input_scale * (x + factor)
        if is_result
        else input_scale * factor * torch.exp(x * input_scale)
    )
    return torch.where(x > 0, grad * scale, grad * below).to(grad_output.dtype)


def weight_norm(v: torch.Tensor, g: torch.Tensor, dim: int = 0) -> Any:
    """v * (g / norm), rounded once as in eager, and the norms over all dimensions but `dim` in the shape of `g`."""
    if v.dtype != g.dtype or v.dim() == 0:
        return NotImplemented
    wide = _wide(v.dtype)
    x = v.to(wide)
    others = _all_but(dim, v)
    norm = torch.linalg.vector_norm(x, 2, others, keepdim=True) if others else x.abs()
    kept = torch.float32 if g.dtype == torch.bfloat16 else g.dtype
    return (x * (g.to(wide) / norm)).to(v.dtype), norm.to(kept)


def weight_norm_backward(
    grad_w: torch.Tensor,
    saved_v: torch.Tensor,
    saved_g: torch.Tensor,
    saved_norms: torch.Tensor,
    dim: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of `v` and `g` in `weight_norm`."""
    wide = _wide(saved_v.dtype)
    grad, v, g, norm = (x.to(wide) for x in (grad_w, saved_v, saved_g, saved_norms))
    others = _all_but(dim, v)
    along = ((grad * v).sum(others, keepdim=True) if others else grad * v) / norm
    return (g / norm * (grad - v * (along / norm))).to(saved_v.dtype), along.to(saved_g.dtype)


def _all_but(dim: int, x: torch.Tensor) -> list[int]:
    return [i for i in range(x.dim()) if i != dim]


def _wide(dtype: torch.dtype) -> torch.dtype:
    """What is computed in: float32 for 16-bit floats."""
    return torch.float32 if dtype.is_floating_point and dtype.itemsize == 2 else dtype


def batch_norm_without_training(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor,
    running_var: torch.Tensor,
    momentum: float,
    eps: float,
) -> Any:
    """A factor and an offset for each channel, as eager's kernels for CPUs compute it.

    Torch's decomposition subtracts, scales twice and adds for each element. These two depend on parameters and
    buffers alone.
    """
    del momentum
    wide = _wide(x.dtype)
    factor = 1 / torch.sqrt(running_var.to(wide) + eps)
    if weight is not None:
        factor = factor * weight.to(wide)
    offset = -running_mean.to(wide) * factor
    if bias is not None:
        offset = offset + bias.to(wide)
    of_channels = [1, -1] + [1] * (x.dim() - 2)
    result = x.to(wide) * factor.view(of_channels) + offset.view(of_channels)
    return result.to(x.dtype), x.new_zeros((0,)), x.new_zeros((0,))


def matrix_product(a: torch.Tensor, b: torch.Tensor) -> Any:
    """mm and bmm that are no more than products and sums of rows, taken apart where sizes of 1 in every call tell so.

    `a` is [M, K] or [B, M, K] and `b` [K, N] or [B, K, N]. Where K is 1 nothing is added up; where M and N are, there
    is one sum for each pair; batches of a matrix and a vector each (M or N is 1) are memory-bound, and eager's kernel
    takes 4 to 20 times as long. One matrix and one vector alone are a call, which is as fast.
    """
    are_matched = a.dtype == b.dtype and a.shape[:-2] == b.shape[:-2] and a.shape[-1] == b.shape[-2]
    if a.is_complex() or a.dtype == torch.bool or not are_matched:
        return NotImplemented
    if _is_one(a.shape[-1]):
        return (a * b).contiguous()  # as eager; a product alone keeps the layout of its operands
    is_row, is_column = _is_one(a.shape[-2]), _is_one(b.shape[-1])
    is_batch = a.dim() == 3 and not _is_one(a.shape[0])
    if not (is_row and is_column) and not (is_batch and (is_row or is_column)):
        return NotImplemented
    wide = _wide(a.dtype)
    left, right = (a, b.mT) if is_column else (a.mT, b)
    sums = (left.to(wide) * right.to(wide)).sum(-1 if is_column else -2, dtype=wide).to(a.dtype)
    return sums.contiguous().reshape([*a.shape[:-1], b.shape[-1]])


def _is_one(size: Any) -> bool:
    return isinstance(size, int) and size == 1


def attention_call(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any
) -> Any:
    """The call as it is, of heads whose width the trace knows: kernels for attention have it as a constant.

    A width that was a symbol gets a guard for its value, so that another width is another compilation; so does it that
    keys and values are as many, and numbers of heads of which several share their keys. What the user declared to be
    dynamic stays so, and the call with it.
    """
    sizes = [*query.shape, *key.shape, *value.shape]
    if not all(map(symints.follows_from_inputs, sizes)):
        return NotImplemented
    for width in (query.shape[-1], key.shape[-1], value.shape[-1]):
        symints.fix_size(width)
    bool(key.shape[:-1] == value.shape[:-1])
    if query.dim() == 4 and query.shape[1] != key.shape[1]:
        for heads in (query.shape[1], key.shape[1]):
            symints.fix_size(heads)
    return NotImplemented


def max_unpool2d(self: torch.Tensor, indices: torch.Tensor, output_size: list[int]) -> Any:
    """In the memory format of `self`, as eager's kernel: torch's trace takes the result for row-major always."""
    if not dispatch.is_channels_last(self):
        return NotImplemented
    rows = torch.contiguous_format
    result = torch.ops.aten.max_unpool2d.default(
        self.clone(memory_format=rows), indices.clone(memory_format=rows), output_size
    )
    return result.contiguous(memory_format=torch.channels_last)


def embedding_bag(
    weight: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: torch.Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Any:
    """Sums of bf16: torch's trace expects a second result as long as `indices`, which eager leaves empty."""
    is_fast = mode == 0 and padding_idx < 0 and weight.dtype == torch.bfloat16
    if not is_fast:
        return NotImplemented
    if per_sample_weights is not None:
        per_sample_weights = per_sample_weights.contiguous()
    sums = torch.ops.aten._embedding_bag_forward_only.default(
        weight.contiguous(),
        indices,
        offsets,
        scale_grad_by_freq,
        mode,
        sparse,
        per_sample_weights,
        include_last_offset,
        padding_idx,
    )[0]
    bags = offsets.new_zeros([sums.shape[0]])
    return sums, offsets.new_empty([0]), bags, bags.clone()


def embedding_bag_backward(
    grad: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    offset2bag: torch.Tensor,
    bag_size: torch.Tensor,
    maximum_indices: torch.Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: torch.Tensor | None,
    padding_idx: int = -1,
) -> Any:
    """Rows of the gradient of sums (mode 0) and means (1) added up by index; the offsets say whose row it is."""
    is_simple = mode < 2 and not sparse and not scale_grad_by_freq
    if not is_simple or grad.dtype not in (torch.float32, torch.float64):
        return NotImplemented
    numbers = torch.arange(indices.shape[0], dtype=offsets.dtype, device=indices.device)
    behind = searchsorted(offsets, numbers, right=True)
    if behind is NotImplemented:
        return NotImplemented
    bag = torch.clamp(behind - 1, 0, grad.shape[0] - 1)
    rows = torch.ops.aten._unsafe_index(grad, [bag])
    if mode == 1:
        rows = rows / torch.ops.aten._unsafe_index(bag_size, [bag]).unsqueeze(1)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(1)
    if padding_idx >= 0:
        rows = torch.where((indices == padding_idx).unsqueeze(1), 0, rows)
    zeros = grad.new_zeros([num_weights, grad.shape[1]])
    return zeros.index_put((indices,), rows, accumulate=True)


def linspace(*args: Any, dtype: torch.dtype | None = None, **options: Any) -> Any:
    """By torch's reference, which rounds otherwise than eager among integers: those are left to eager."""
    if dtype is not None and not dtype.is_floating_point:
        return NotImplemented
    return dispatch.reference("linspace")(*args, dtype=dtype, **options)


def dist(self: torch.Tensor, other: torch.Tensor, p: float = 2) -> torch.Tensor:
    """As eager: the norm of the difference."""
    return torch.norm(self - other, p)


def round_decimals(self: torch.Tensor, *, decimals: int) -> Any:
    """Like eager's kernel, which rounds 16-bit numbers once."""
    if not self.is_floating_point():
        return NotImplemented
    wide = self.to(_wide(self.dtype))
    power = 10.0 ** abs(decimals)
    rounded = (
        torch.round(wide * power) / power if decimals > 0 else torch.round(wide / power) * power
    )
    return rounded.to(self.dtype)


def ldexp(self: torch.Tensor, other: torch.Tensor) -> Any:
    """A float with an integer exponent is scaled and rounded once, as by the C library.

    In a wider dtype no power of two overflows, and the product is exact. float64 has none: such an op is a call, as
    are those of different floats. Of one dtype or of integers eager rounds the power before the product.
    """
    if self.dtype.is_complex or other.dtype.is_complex:
        return NotImplemented
    if self.dtype == other.dtype or not (self.is_floating_point() or other.is_floating_point()):
        return self * torch.pow(2.0, other)
    floats = (torch.float16, torch.bfloat16, torch.float32)
    if self.dtype not in floats or other.dtype == torch.bool or other.is_floating_point():
        return NotImplemented
    wide = torch.float32 if self.dtype == torch.float16 else torch.float64
    # Beyond the bounds all results are zero or infinite: float16 has 2**-24 to 2**16, the others 2**-149 to 2**128.
    bound = 60 if self.dtype == torch.float16 else 300
    power = torch.exp2(other.to(wide).clamp(-bound, bound))
    return (self.to(wide) * power).to(self.dtype)


def masked_scatter_backward(
    grad_output: torch.Tensor, mask: torch.Tensor, sizes: list[int]
) -> torch.Tensor:
    """The gradient of `source`: how many were chosen before says where each chosen element goes."""
    mask = mask.expand(grad_output.shape).reshape(-1)
    place = torch.where(mask, mask.cumsum(0) - 1, 0)
    chosen = torch.where(mask, grad_output.reshape(-1), 0)
    zeros = grad_output.new_zeros([math.prod(sizes)])
    return zeros.index_put((place,), chosen, accumulate=True).reshape(sizes)


def histc(self: torch.Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    """Between given ends, by the order of eager's roundings; ends that the data tell are left to eager."""
    if (
        self.dtype not in (torch.float32, torch.float64)
        or min >= max
        or not math.isfinite(max - min)
    ):
        return NotImplemented
    x = self.reshape(-1)
    low, high = (torch.full((), end, dtype=x.dtype, device=x.device) for end in (min, max))
    place = torch.clamp_max(((x - low) * bins / (high - low)).to(torch.int64), bins - 1)
    is_inside = (x >= low) & (x <= high)
    place = torch.where(is_inside, place, 0)
    counts = torch.zeros([bins], dtype=x.dtype, device=x.device)
    return torch.ops.aten._unsafe_index_put(counts, [place], is_inside.to(x.dtype), True)


def searchsorted(
    sorted_sequence: torch.Tensor,
    self: torch.Tensor | float,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: torch.Tensor | None = None,
) -> Any:
    """The steps of eager's binary search, as many as any element takes: also NaN end up where eager puts them."""
    length = sorted_sequence.shape[-1] if sorted_sequence.dim() else 1
    if not symints.follows_from_inputs(length):
        return NotImplemented
    if sorter is not None:
        sorted_sequence = sorted_sequence.gather(-1, sorter)
    if not isinstance(self, torch.Tensor):
        dtype = torch.result_type(sorted_sequence, self)  # a number takes part as in arithmetic
        self = torch.full((), self, dtype=dtype, device=sorted_sequence.device)
    rows: torch.Tensor | int = 0
    if sorted_sequence.dim() > 1:
        lead = sorted_sequence.shape[:-1]
        if lead != self.shape[:-1]:
            return NotImplemented
        rows = torch.arange(math.prod(lead), device=self.device).reshape([*lead, 1]) * length
    flat = sorted_sequence.reshape(-1)
    low = torch.zeros(self.shape, dtype=torch.int64, device=self.device)
    high = low + length
    is_right = right or side == "right"
    for step in itertools.count():
        if length < 2**step:  # a symbolic size becomes one between two powers of 2
            break
        middle = torch.clamp_max((low + high) >> 1, length - 1)
        found = torch.ops.aten._unsafe_index(flat, [rows + middle])
        is_above = found > self if is_right else found >= self
        is_below = ~is_above & (low < high)
        high = torch.where(is_below, high, torch.maximum(middle, low))
        low = torch.where(is_below, middle + 1, low)
    return low.to(torch.int32) if out_int32 else low


def bucketize(
    self: torch.Tensor | float,
    boundaries: torch.Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
) -> Any:
    """searchsorted among one row of boundaries."""
    if boundaries.dim() != 1:
        return NotImplemented
    return searchsorted(boundaries, self, out_int32=out_int32, right=right)
