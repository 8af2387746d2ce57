"""Ops that the backward pass of attention by its parts is made of, which torch has no op for.

`training/saved_scores.py` puts them into the graph of a training step, and they become nodes of the graph IR. Each is
a kernel of torch as well, for graphs that run eagerly, with the same random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node

from mlcc.importer.context import Context
from mlcc.importer.ops.random import bound_of_words, words_under
from mlcc.ir.types import Handler, Tensor, device_of

_library = torch.library.Library("mlcc", "FRAGMENT")


def _op(schema: str) -> Callable[[Callable[..., Any]], Any]:
    """Makes an op of a function of tensors, of fake ones too."""

    def define(function: Callable[..., Any]) -> Any:
        _library.define(schema)
        name = schema.partition("(")[0]
        _library.impl(name, function, "CompositeExplicitAutograd")
        return getattr(torch.ops.mlcc, name).default

    return define


@_op("dropout_mask(Tensor seed, SymInt[] sizes, float kept) -> Tensor")
def dropout_mask(seed: torch.Tensor, sizes: Sequence[int], kept: float) -> torch.Tensor:
    """bool of shape `sizes`, true with probability `kept`: bits of places under a 0-d i64 (element/philox.h)."""
    word = (1 << 32) - 1
    counter = torch.arange(math.prod(sizes), device=seed.device)
    left, right = counter & word, ((counter ^ seed) >> 32) & word
    for number in range(10):
        product = left * 0xD256D193  # whose bits are right where it overflows
        key = (seed + number * 0x9E3779B9) & word
        left, right = ((product >> 32) & word) ^ key ^ right, product & word
    return (left.to(torch.int32) < bound_of_words(kept)).reshape(sizes)


@torch.library.register_fake("mlcc::dropout_mask", lib=_library)
def _fake_mask(seed: torch.Tensor, sizes: Sequence[int], kept: float) -> torch.Tensor:
    """Else a trace with symbolic sizes computes all rounds on fake tensors, half a second."""
    del kept
    return seed.new_empty(sizes, dtype=torch.bool)


@_op(
    "attend_gradients(Tensor weights, Tensor of_scores, Tensor of_means, Tensor queries, Tensor keys)"
    " -> (Tensor, Tensor, Tensor)"
)
def attend_gradients(
    weights: torch.Tensor,
    of_scores: torch.Tensor,
    of_means: torch.Tensor,
    queries: torch.Tensor,
    keys: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What queries, keys and values get, of shape [.., length, width] each; all are f32 or all f64.

    Weights and gradients of scores are [.., queries, keys], gradients of means [.., queries, columns]. Heads, the last
    of the outer dimensions, lie beside each other in the rows of the results.
    """
    results = of_scores @ keys, of_scores.mT @ queries, weights.mT @ of_means
    of_queries, of_keys, of_values = map(_with_heads_in_rows, results)
    return of_queries, of_keys, of_values


def _with_heads_in_rows(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(-3, -2).contiguous().transpose(-3, -2) if x.dim() > 2 else x


# ---- as nodes of the graph IR


def _dropout_mask(context: Context, node: Node) -> Tensor:
    bound, fake = context.bind(node), node.meta["val"]
    words = words_under(context, context.tensor(bound["seed"]), fake)
    limit = context.number(bound_of_words(bound["kept"]), "i32", device_of(fake))
    return context.pointwise("lt", words, limit, dtype="bool")


def _attend_gradients(context: Context, node: Node) -> list[Tensor]:
    operands = [context.tensor(one) for one in node.args]
    handle = context.builder.attend_gradients(*(one.handle for one in operands))
    everything = Tensor(handle, operands[0].dtype)
    begin: Any = 0
    results = []
    for fake in node.meta["val"]:
        count = fake.numel()
        part = context.slice(everything, 0, context.size(begin), context.size(count))
        begin = begin + count
        results.append(_as_heads(context, part, context.shape(fake)))
    return results


def _as_heads(context: Context, part: Tensor, shape: list[Any]) -> Tensor:
    if len(shape) == 2:
        return context.reshape(part, shape)
    *outer, heads, length, width = shape
    order = list(range(len(shape)))
    order[-3:-1] = order[-2], order[-3]
    rows = context.reshape(part, [*outer, length, heads, width])
    return Tensor(context.builder.permute(rows.handle, order), rows.dtype)


HANDLERS: dict[str, Handler] = {
    "mlcc.dropout_mask.default": _dropout_mask,
    "mlcc.attend_gradients.default": _attend_gradients,
}
