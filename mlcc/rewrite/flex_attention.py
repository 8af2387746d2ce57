"""flex_attention in plain ops: scores by a product, what the user's functions make of each, softmax, another product.

The core makes one kernel of these ops (docs/decisions/0026), whatever the functions compute, with no matrix of scores
in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Tensor],
    block_mask: Sequence[Any],
    scale: float,
    kernel_options: dict[str, Any],
    score_mod_other_buffers: Sequence[Any] = (),
    mask_mod_other_buffers: Sequence[Any] = (),
) -> tuple[Tensor, Tensor, Tensor]:
    """The results of the higher-order op: means of values, and of each row of scores log2(sum(exp)) and the largest,
    which is divided by log(2) too.

    Tensors are [batch, heads, length, width]; several heads of queries may share one of keys and values. `block_mask`
    ends with the function that tells which scores count; its tables of blocks follow from that function and are not
    read, as in eager. Rows in which no score counts give 0.
    """
    del kernel_options
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    keys, values = _for_each_query_head(key, query), _for_each_query_head(value, query)
    scores = query.to(wide) @ keys.to(wide).mT * scale
    places = [torch.arange(n, dtype=torch.int32, device=query.device) for n in scores.shape]
    is_seen = _for_each_score(block_mask[-1], 0, len(mask_mod_other_buffers))
    modified = _for_each_score(score_mod, 1, len(score_mod_other_buffers))
    scores = torch.where(
        is_seen(*places, *mask_mod_other_buffers),
        modified(scores, *places, *score_mod_other_buffers),
        -math.inf,
    )
    means = torch.ops.aten._safe_softmax(scores, -1).to(query.dtype) @ values
    norms = torch.logsumexp(scores, -1)
    return _in_order_of(means, query), norms / math.log(2), scores.amax(-1) / math.log(2)


def _for_each_query_head(shared: Tensor, query: Tensor) -> Tensor:
    """Keys or values as if each batch and each head of queries had its own."""
    batch, heads = query.shape[:2]
    shared_heads, length, width = shared.shape[1:]
    sizes = (batch, shared_heads, heads // shared_heads, length, width)
    return shared.unsqueeze(2).expand(sizes).reshape(batch, heads, length, width)


def _for_each_score(
    function: Callable[..., Tensor], num_scores: int, num_buffers: int
) -> Callable[..., Tensor]:
    """A function of one score (or none), its four places and buffers as one of all scores and places."""
    for mapped in reversed(range(4)):
        of_places = tuple(0 if place == mapped else None for place in range(4))
        function = torch.vmap(function, (*(0,) * num_scores, *of_places, *(None,) * num_buffers))
    return function


def _in_order_of(means: Tensor, query: Tensor) -> Tensor:
    """The result as eager lays it out: dimensions as in the query, but rows side by side."""
    inside_out = [3, *sorted((2, 1, 0), key=query.stride)]
    order = inside_out[::-1]
    back = sorted(range(4), key=order.__getitem__)
    # What is contiguous already keeps the strides of its dimensions of one element.
    return means.permute(order).clone(memory_format=torch.contiguous_format).permute(back)
