"""Normalizations and dropout."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from mlcc.onnx.ops.shapes import normalized
from mlcc.onnx.program import Node, as_tensor
from mlcc.onnx.registry import op


@op("BatchNormalization")
def batch_normalization(
    node: Node, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor
) -> Any:
    epsilon = node.get("epsilon", 1e-5)
    if node.get("training_mode", 0):
        return _batch_norm_in_training(node, x, scale, bias, mean, var)
    dtype = x.dtype
    if not (dtype == scale.dtype == mean.dtype):
        x = x.to(torch.float32)
    return F.batch_norm(
        x, mean.to(x.dtype), var.to(x.dtype), scale.to(x.dtype), bias.to(x.dtype), eps=epsilon
    ).to(dtype)


def _batch_norm_in_training(
    node: Node, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor
) -> tuple[Tensor, ...]:
    momentum, epsilon = node.get("momentum", 0.9), node.get("epsilon", 1e-5)
    axes = [0, *range(2, x.dim())]
    now, spread = torch.mean(x, axes), torch.var(x, axes, unbiased=False)
    view = [1, -1, *[1] * (x.dim() - 2)]
    y = (x - now.reshape(view)) / torch.sqrt(spread.reshape(view) + epsilon)
    y = y * scale.reshape(view) + bias.reshape(view)
    return y, mean * momentum + now * (1 - momentum), var * momentum + spread * (1 - momentum)


@op("InstanceNormalization")
def instance_normalization(node: Node, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    return F.instance_norm(x, weight=scale, bias=bias, eps=node.get("epsilon", 1e-5))


@op("LayerNormalization")
def layer_normalization(node: Node, x: Tensor, scale: Tensor, bias: Tensor | None = None) -> Any:
    axis, epsilon = normalized(node.get("axis", -1), x.dim()), node.get("epsilon", 1e-5)
    shape = list(x.shape[axis:])
    if (
        not node.has_output(1)
        and list(scale.shape) == shape
        and (bias is None or list(bias.shape) == shape)
    ):
        return F.layer_norm(x, shape, scale, bias, epsilon)
    axes = list(range(axis, x.dim()))
    wide = x.to(torch.float32) if node.get("stash_type", 1) == 1 else x
    mean = torch.mean(wide, axes, keepdim=True)
    inverse = torch.rsqrt(torch.mean((wide - mean) ** 2, axes, keepdim=True) + epsilon)
    y = ((wide - mean) * inverse).to(x.dtype) * scale
    return y if bias is None else y + bias, mean, inverse


@op("RMSNormalization")
def rms_normalization(node: Node, x: Tensor, scale: Tensor) -> Tensor:
    axis = normalized(node.get("axis", -1), x.dim())
    wide = x.to(torch.float32) if node.get("stash_type", 1) == 1 else x
    axes = list(range(axis, x.dim()))
    inverse = torch.rsqrt(torch.mean(wide * wide, axes, keepdim=True) + node.get("epsilon", 1e-5))
    return (wide * inverse).to(x.dtype) * scale


@op("GroupNormalization")
def group_normalization_by_groups(node: Node, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """Before version 21 scale and bias were one per group."""
    groups = node.get("num_groups")
    part = x.shape[1] // groups
    return F.group_norm(
        x,
        groups,
        scale.repeat_interleave(part),
        bias.repeat_interleave(part),
        node.get("epsilon", 1e-5),
    )


@op("GroupNormalization", since=21)
def group_normalization(node: Node, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    return F.group_norm(x, node.get("num_groups"), scale, bias, node.get("epsilon", 1e-5))


@op("MeanVarianceNormalization")
def mean_variance_normalization(node: Node, x: Tensor) -> Tensor:
    axes = node.get("axes", [0, 2, 3])
    mean = torch.mean(x, axes, keepdim=True)
    spread = torch.mean(x * x, axes, keepdim=True) - mean * mean
    return (x - mean) / (torch.sqrt(spread) + 1e-9)


@op("LpNormalization")
def lp_normalization(node: Node, x: Tensor) -> Tensor:
    axis, p = node.get("axis", -1), node.get("p", 2)
    norm = (
        torch.sum(torch.abs(x), axis, True) if p == 1 else torch.sqrt(torch.sum(x * x, axis, True))
    )
    return torch.where(
        norm == 0, torch.zeros_like(x), x / torch.where(norm == 0, torch.ones_like(norm), norm)
    )


@op("LRN")
def local_response_normalization(node: Node, x: Tensor) -> Tensor:
    size = node.get("size")
    before, after = (size - 1) // 2, size // 2
    squares = F.pad(x * x, [0, 0] * (x.dim() - 2) + [before, after])
    total = squares.narrow(1, 0, x.shape[1])
    for i in range(1, size):
        total = total + squares.narrow(1, i, x.shape[1])
    return x / (node.get("bias", 1.0) + node.get("alpha", 1e-4) / size * total) ** node.get(
        "beta", 0.75
    )


@op("Dropout")
def dropout_without_training(node: Node, x: Tensor) -> Any:
    return (x, torch.ones_like(x, dtype=torch.bool)) if node.has_output(1) else x


@op("Dropout", since=12, sizes=True)
def dropout(node: Node, x: Any, ratio: Any = None, training: Any = None) -> Any:
    x = as_tensor(x)
    share = 0.5 if ratio is None else float(node.number(1, ratio))
    active = training is not None and bool(node.number(2, training))
    if not active or share == 0.0:
        return (x, torch.ones_like(x, dtype=torch.bool)) if node.has_output(1) else x
    mask = torch.rand_like(x) >= share
    return x * mask.to(x.dtype) / (1 - share), mask
