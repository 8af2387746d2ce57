"""Attention of com.microsoft."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from mlcc._errors import Error
from mlcc.onnx.ops.microsoft import heads_of, merged
from mlcc.onnx.program import Node
from mlcc.onnx.registry import MICROSOFT, op


def _attend(
    node: Node, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, window: int = -1
) -> Tensor:
    """`mask` is added to the scores; `causal`: the last query sees all keys, the one before it one less."""
    scale = node.get("scale", 0.0) or 1.0 / math.sqrt(q.shape[-1])
    soft_cap = node.get("softcap", 0.0)
    if causal:
        rows = torch.arange(q.shape[2], device=q.device).unsqueeze(1) + (k.shape[2] - q.shape[2])
        columns = torch.arange(k.shape[2], device=q.device)
        seen = columns <= rows
        if window > 0:
            seen = seen & (columns > rows - window)
        future = torch.zeros(seen.shape, dtype=q.dtype, device=q.device).masked_fill(
            ~seen, -math.inf
        )
        mask = future if mask is None else mask + future
    if not soft_cap:
        return F.scaled_dot_product_attention(q, k, v, mask, scale=scale)
    scores = soft_cap * torch.tanh(torch.matmul(q, k.transpose(-1, -2)) * scale / soft_cap)
    return torch.matmul(torch.softmax(scores if mask is None else scores + mask, -1), v)


def _padding_mask(
    node: Node, mask: Tensor | None, batch: Any, keys: Any, dtype: torch.dtype
) -> Tensor | None:
    """What is added to the scores: `mask` has lengths, or a 1 for each key (and query) that counts."""
    if mask is None:
        return None
    if mask.dim() == 1:
        if mask.shape[0] != batch:
            raise Error(
                f"onnx: {node.op} {node.name!r}: masks of first and last positions are not supported"
            )
        kept = torch.arange(keys, device=mask.device) < mask.unsqueeze(1)
    else:
        kept = mask != 0
    if kept.dim() == 2:
        kept = kept[:, None, None, :]
    elif kept.dim() == 3:
        kept = kept.unsqueeze(1)
    hidden = node.get("mask_filter_value", -10000.0)
    return torch.zeros(kept.shape, dtype=dtype, device=kept.device).masked_fill(~kept, hidden)


def _self_attention(
    node: Node, projected: Tensor, mask: Tensor | None, past: Tensor | None, bias: Tensor | None
) -> tuple[Any, ...]:
    count = node.get("num_heads")
    sizes = node.get("qkv_hidden_sizes") or [projected.shape[-1] // 3] * 3
    q, k, v = (heads_of(part, count) for part in torch.split(projected, sizes, -1))
    if past is not None:
        k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
    added = _padding_mask(node, mask, q.shape[0], k.shape[2], q.dtype)
    if bias is not None:
        added = bias if added is None else added + bias
    y = merged(_attend(node, q, k, v, added, bool(node.get("unidirectional", 0))))
    return y, torch.stack([k, v]) if node.has_output(1) else None


@op("Attention", domain=MICROSOFT)
def attention(
    node: Node, x: Tensor, weight: Tensor, bias: Tensor | None = None, mask: Tensor | None = None,
    past: Tensor | None = None, added: Tensor | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    if node.get("do_rotary", 0):
        raise Error(f"onnx: Attention {node.name!r}: do_rotary is not supported")
    y = torch.matmul(x, weight)
    return _self_attention(node, y if bias is None else y + bias, mask, past, added)


@op("QAttention", domain=MICROSOFT)
def quantized_attention(
    node: Node, x: Tensor, weight: Tensor, bias: Tensor, x_scale: Tensor, w_scale: Tensor,
    mask: Tensor | None = None, x_zero: Tensor | None = None, w_zero: Tensor | None = None,
    past: Tensor | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    left, right = x.to(torch.int32), weight.to(torch.int32)
    left = left if x_zero is None else left - x_zero.to(torch.int32)
    right = right if w_zero is None else right - w_zero.to(torch.int32)
    y = torch.matmul(left, right).to(torch.float32) * (x_scale * w_scale) + bias
    return _self_attention(node, y, mask, past, None)


@op("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(
    node: Node, query: Tensor, key: Tensor | None = None, value: Tensor | None = None, bias: Tensor | None = None,
    padding: Tensor | None = None, added: Tensor | None = None, past_key: Tensor | None = None,
    past_value: Tensor | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    count = node.get("num_heads")
    if key is None:  # [batch, length, heads, 3, size]
        query, key, value = query.permute(3, 0, 1, 2, 4).flatten(3).unbind(0)
    if value is None:
        key, value = key.permute(3, 0, 1, 2, 4).flatten(3).unbind(0)
    if bias is not None:
        widths = [query.shape[-1], query.shape[-1], bias.shape[0] - 2 * query.shape[-1]]
        b_q, b_k, b_v = torch.split(bias, widths)
        query = query + b_q
        key = key + (b_k if key.dim() == 3 else heads_of(b_k.reshape(1, 1, -1), count))
        value = value + (b_v if value.dim() == 3 else heads_of(b_v.reshape(1, 1, -1), count))
    q = heads_of(query, count)
    k = heads_of(key, count) if key.dim() == 3 else key
    v = heads_of(value, count) if value.dim() == 3 else value
    if past_key is not None and past_value is not None:
        k, v = torch.cat([past_key, k], 2), torch.cat([past_value, v], 2)
    mask = _padding_mask(node, padding, q.shape[0], k.shape[2], q.dtype)
    if added is not None:
        mask = added if mask is None else mask + added
    return merged(_attend(node, q, k, v, mask, bool(node.get("unidirectional", 0)))), k, v


def rotate(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, interleaved: bool) -> Tensor:
    """`x` [batch, heads, length, size]; `cos` and `sin` [positions, half of what is turned]."""
    c, s = F.embedding(positions, cos).unsqueeze(1), F.embedding(positions, sin).unsqueeze(1)
    width = 2 * cos.shape[1]
    turned, rest = x[..., :width], x[..., width:]
    if interleaved:
        a, b = turned[..., 0::2], turned[..., 1::2]
        y = torch.stack([a * c - b * s, b * c + a * s], -1).flatten(-2)
    else:
        a, b = turned.chunk(2, -1)
        y = torch.cat([a * c - b * s, b * c + a * s], -1)
    return torch.cat([y, rest], -1)


@op("RotaryEmbedding", domain=MICROSOFT)
def rotary_embedding(node: Node, x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    is_flat = x.dim() == 3
    count = node.get("num_heads", 0) or (x.shape[-1] // (2 * cos.shape[1]) if is_flat else 0)
    y = heads_of(x, count) if is_flat else x
    if positions.dim() < 2:
        steps = torch.arange(y.shape[2], device=x.device)
        positions = (positions.reshape(1, 1) + steps).expand(y.shape[0], -1)
    y = rotate(y, cos, sin, positions.to(torch.int64), bool(node.get("interleaved", 0)))
    return merged(y) if is_flat else y


@op("GroupQueryAttention", domain=MICROSOFT)
def group_query_attention(
    node: Node, query: Tensor, key: Tensor | None, value: Tensor | None, past_key: Tensor | None,
    past_value: Tensor | None, lengths: Tensor, total: Any, cos: Tensor | None = None, sin: Tensor | None = None,
    positions: Tensor | None = None, added: Tensor | None = None, *others: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The cache grows: what is new comes after what is past, which has no padding."""
    count, groups = node.get("num_heads"), node.get("kv_num_heads")
    if key is None or value is None:
        size = query.shape[-1] // (count + 2 * groups)
        query, key, value = torch.split(query, [count * size, groups * size, groups * size], -1)
    q, k, v = heads_of(query, count), heads_of(key, groups), heads_of(value, groups)
    before: Any = 0 if past_key is None else past_key.shape[2]
    if node.get("do_rotary", 0):
        assert cos is not None and sin is not None
        if positions is None:
            steps = torch.arange(q.shape[2], device=q.device) + before
            positions = steps.unsqueeze(0).expand(q.shape[0], -1)
        interleaved = bool(node.get("rotary_interleaved", 0))
        q, k = (rotate(part, cos, sin, positions.to(torch.int64), interleaved) for part in (q, k))
    if past_key is not None and past_value is not None:
        k, v = torch.cat([past_key, k], 2), torch.cat([past_value, v], 2)
    columns = torch.arange(k.shape[2], device=q.device)
    unused = columns > lengths.reshape(-1, 1)
    mask = torch.zeros(unused.shape, dtype=q.dtype, device=q.device).masked_fill(unused, -math.inf)[
        :, None, None
    ]
    if added is not None:
        mask = mask + added
    wide_k, wide_v = (part.repeat_interleave(count // groups, 1) for part in (k, v))
    y = _attend(node, q, wide_k, wide_v, mask, True, node.get("local_window_size", -1))
    return merged(y), k, v
