"""Decompositions of the calls that torch makes of a whole encoder layer, or of a whole multi-head attention.

`nn.TransformerEncoderLayer` in eval mode is one such call where no gradient is asked for (its "fast path"). Taken
apart it is products, attention, norms and activations, which fuse like those of any other model.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional

# What a mask is over: [queries, keys], [batch, keys], or all of [batch, heads, queries, keys].
_OF_QUERIES, _OF_KEYS, _OF_SCORES = 0, 1, 2


def transformer_encoder_layer(
    src: torch.Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor,
    ffn_bias_1: torch.Tensor,
    ffn_weight_2: torch.Tensor,
    ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> Any:
    """Self-attention and two linear layers around an activation, each with a residual sum and a norm.

    `src` is [batch, length, embed_dim]; the norms stand before their part (`norm_first`) or behind its sum.
    """
    if src.is_nested or src.dim() != 3:
        return NotImplemented
    if src.numel() == 0:
        return src.clone()

    def norm_1(x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, [embed_dim], norm_weight_1, norm_bias_1, eps)

    def norm_2(x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, [embed_dim], norm_weight_2, norm_bias_2, eps)

    def feed_forward(x: torch.Tensor) -> torch.Tensor:
        hidden = functional.linear(x, ffn_weight_1, ffn_bias_1)
        return functional.linear(
            functional.gelu(hidden) if use_gelu else functional.relu(hidden),
            ffn_weight_2,
            ffn_bias_2,
        )

    def attention(x: torch.Tensor) -> Any:
        weights = (qkv_weight, qkv_bias, proj_weight, proj_bias)
        results = native_multi_head_attention(
            x, x, x, embed_dim, num_heads, *weights, mask, need_weights=False, mask_type=mask_type
        )
        return results if results is NotImplemented else results[0]

    src = src.contiguous()
    attended = attention(norm_1(src) if norm_first else src)
    if attended is NotImplemented:
        return NotImplemented
    if norm_first:
        x = attended + src
        return feed_forward(norm_2(x)) + x
    x = norm_1(attended + src)
    return norm_2(feed_forward(x) + x)


def native_multi_head_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> Any:
    """Projections, attention and the projection of its result; and weights, of which there are none if not needed.

    What the mask tells counts not at all, whatever dtype it has: a row without any key is NaN.
    """
    if any(x.is_nested or x.dim() != 3 for x in (query, key, value)) or query.numel() == 0:
        return NotImplemented
    heads = _projected(query, key, value, num_head, qkv_weight, qkv_bias)
    if heads is NotImplemented:
        return NotImplemented
    q, k, v = heads
    weights = query.new_empty([0])
    if mask is None and not need_weights:
        means = functional.scaled_dot_product_attention(q, k, v)
    else:
        scores = q @ k.mT / math.sqrt(embed_dim // num_head)
        if mask is not None:
            mask = _over_scores(mask, mask_type, scores)
            if mask is None:
                return NotImplemented
            scores = scores.masked_fill(mask, -math.inf)
        every = torch.softmax(scores, -1)
        means = every @ v
        if need_weights:
            weights = every.sum(1) / num_head if average_attn_weights else every
    joined = means.transpose(1, 2).reshape(query.shape)
    return functional.linear(joined, proj_weight, proj_bias), weights


def _projected(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    num_head: int,
    weight: torch.Tensor,
    bias: torch.Tensor,
) -> Any:
    """Queries, keys and values as [batch, heads, length, width]: by one product if they are made of one tensor."""
    if query.shape != key.shape or key.shape != value.shape or query.shape[2] % num_head:
        return NotImplemented
    batch, length, width = query.shape
    heads = [batch, length, -1, num_head, width // num_head]
    if query is key and key is value:
        projected = functional.linear(query, weight, bias).reshape(heads)
        return projected.permute(2, 0, 3, 1, 4).unbind()
    parts = zip((query, key, value), weight.chunk(3), bias.chunk(3), strict=True)
    return [functional.linear(x, w, b).reshape(heads)[:, :, 0].transpose(1, 2) for x, w, b in parts]


def _over_scores(
    mask: torch.Tensor, mask_type: int | None, scores: torch.Tensor
) -> torch.Tensor | None:
    """Where scores are hidden; None where mask and type do not fit, for which eager has an error."""
    batch, _, queries, keys = scores.shape
    shapes: dict[int | None, Any] = {
        _OF_QUERIES: (queries, keys),
        _OF_KEYS: (batch, keys),
        _OF_SCORES: tuple(scores.shape),
    }
    if shapes.get(mask_type) != tuple(mask.shape):
        return None
    mask = mask.to(torch.bool)
    return mask[:, None, None] if mask_type == _OF_KEYS else mask
