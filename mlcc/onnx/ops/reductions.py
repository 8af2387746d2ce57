"""Reductions, cumulative ops, softmax and losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from mlcc.onnx.ops.shapes import normalized, product
from mlcc.onnx.program import Node, as_tensor
from mlcc.onnx.registry import op
from mlcc.onnx.sizes import Sizes


def _product(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    for axis in sorted(axes, reverse=True):
        x = torch.prod(x, axis, keepdim=keep, dtype=x.dtype)
    return x


def _mean(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    if x.dtype.is_floating_point:
        return torch.mean(x, axes, keep)
    return torch.div(
        _sum(x, axes, keep), product(x.shape[axis] for axis in axes), rounding_mode="trunc"
    ).to(x.dtype)


def _sum(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    return torch.sum(x, axes, keep, dtype=x.dtype)


def _extreme(largest: bool) -> Callable[[Tensor, list[int], bool], Tensor]:
    def reduce(x: Tensor, axes: list[int], keep: bool) -> Tensor:
        if any(isinstance(x.shape[axis], int) and x.shape[axis] == 0 for axis in axes):
            if x.dtype == torch.bool:
                worst: Any = not largest
            elif x.dtype.is_floating_point:
                worst = float("-inf") if largest else float("inf")
            else:
                worst = torch.iinfo(x.dtype).min if largest else torch.iinfo(x.dtype).max
            shape = [
                1 if i in axes else extent
                for i, extent in enumerate(x.shape)
                if keep or i not in axes
            ]
            return torch.full(shape, worst, dtype=x.dtype, device=x.device)
        return torch.amax(x, axes, keep) if largest else torch.amin(x, axes, keep)

    return reduce


def _norm(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    squares = x.float() if not x.dtype.is_floating_point else x
    return torch.sqrt(torch.sum(squares * squares, axes, keep)).to(x.dtype)


def _log_sum_exp(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    return torch.logsumexp(x.double() if not x.dtype.is_floating_point else x, axes, keep).to(
        x.dtype
    )


_REDUCTIONS: dict[str, Callable[[Tensor, list[int], bool], Tensor]] = {
    "ReduceSum": _sum,
    "ReduceMean": _mean,
    "ReduceProd": _product,
    "ReduceMax": _extreme(True),
    "ReduceMin": _extreme(False),
    "ReduceL1": lambda x, axes, keep: _sum(torch.abs(x), axes, keep),
    "ReduceL2": _norm,
    "ReduceSumSquare": lambda x, axes, keep: _sum(x * x, axes, keep),
    "ReduceLogSum": lambda x, axes, keep: torch.log(torch.sum(x, axes, keep)).to(x.dtype),
    "ReduceLogSumExp": _log_sum_exp,
}

_ON_NUMBERS: dict[str, Callable[[Any], Any]] = {"ReduceSum": sum, "ReduceProd": product}


@op(*_REDUCTIONS, sizes=True)
def reduce(node: Node, x: Any, axes: Any = None) -> Any:
    wanted = node.setting("axes", 1, axes)
    keep = bool(node.get("keepdims", 1))
    if isinstance(x, Sizes):
        if node.op in _ON_NUMBERS and (wanted or not node.get("noop_with_empty_axes", 0)):
            return Sizes([_ON_NUMBERS[node.op](x.items)], int(keep and x.rank), x.dtype)
        x = as_tensor(x)
    if not wanted:
        if node.get("noop_with_empty_axes", 0):
            return _of_nothing(node.op, x)
        wanted = list(range(x.dim()))
    if x.dim() == 0:
        return _REDUCTIONS[node.op](x.unsqueeze(0), [0], False)
    return _REDUCTIONS[node.op](x, [normalized(axis, x.dim()) for axis in wanted], keep)


def _of_nothing(name: str, x: Tensor) -> Tensor:
    """No axis is reduced, but what is done before and after the sum still is."""
    if name in ("ReduceL1", "ReduceL2"):
        return torch.abs(x)
    if name == "ReduceSumSquare":
        return x * x
    return torch.log(x) if name == "ReduceLogSum" else x


@op("ArgMax", "ArgMin")
def arg_extreme(node: Node, x: Tensor) -> Tensor:
    axis, keep = normalized(node.get("axis", 0), x.dim()), bool(node.get("keepdims", 1))
    function = torch.argmax if node.op == "ArgMax" else torch.argmin
    if node.get("select_last_index", 0):
        return x.shape[axis] - 1 - function(torch.flip(x, [axis]), axis, keep)
    return function(x, axis, keep)


@op("CumSum", "CumProd", sizes=True)
def cumulate(node: Node, x: Any, axis: Any) -> Tensor:
    x = as_tensor(x)
    dim = normalized(int(node.number(1, axis)), x.dim())
    if node.get("reverse", 0):
        x = torch.flip(x, [dim])
    is_sum = node.op == "CumSum"
    result = torch.cumsum(x, dim, dtype=x.dtype) if is_sum else torch.cumprod(x, dim, dtype=x.dtype)
    if node.get("exclusive", 0):
        pads = [0, 0] * (x.dim() - 1 - dim) + [1, 0]
        result = F.pad(result.narrow(dim, 0, x.shape[dim] - 1), pads, value=0 if is_sum else 1)
    return torch.flip(result, [dim]) if node.get("reverse", 0) else result


def _on_rows(function: Callable[[Tensor, int], Tensor], node: Node, x: Tensor) -> Tensor:
    """Before version 13 all axes from `axis` on were one."""
    axis = normalized(node.get("axis", 1), x.dim())
    rows = x.reshape(product(x.shape[:axis]), product(x.shape[axis:]))
    return function(rows, 1).reshape(x.shape)


@op("Softmax")
def softmax_of_rows(node: Node, x: Tensor) -> Tensor:
    return _on_rows(torch.softmax, node, x)


@op("Softmax", since=13)
def softmax(node: Node, x: Tensor) -> Tensor:
    return torch.softmax(x, node.get("axis", -1))


@op("LogSoftmax")
def log_softmax_of_rows(node: Node, x: Tensor) -> Tensor:
    return _on_rows(torch.log_softmax, node, x)


@op("LogSoftmax", since=13)
def log_softmax(node: Node, x: Tensor) -> Tensor:
    return torch.log_softmax(x, node.get("axis", -1))


def _hardmax(x: Tensor, axis: int) -> Tensor:
    largest = torch.argmax(x, axis, keepdim=True)
    return torch.zeros_like(x).scatter(axis, largest, 1.0)


@op("Hardmax")
def hardmax_of_rows(node: Node, x: Tensor) -> Tensor:
    return _on_rows(_hardmax, node, x)


@op("Hardmax", since=13)
def hardmax(node: Node, x: Tensor) -> Tensor:
    return _hardmax(x, normalized(node.get("axis", -1), x.dim()))


def _nll(node: Node, log_p: Tensor, target: Tensor, weight: Tensor | None) -> Tensor:
    ignored = node.get("ignore_index")
    classes = log_p.shape[1]
    target = target.to(torch.int64)
    mask = None if ignored is None else target != ignored
    safe = target if mask is None else torch.where(mask, target, 0)
    safe = torch.where(safe < 0, safe + classes, safe)
    loss = -torch.gather(log_p, 1, safe.unsqueeze(1)).squeeze(1)
    factor = torch.ones_like(loss) if weight is None else weight[safe]
    if mask is not None:
        factor = factor * mask.to(factor.dtype)
    loss = loss * factor
    reduction = node.get("reduction", "mean")
    if reduction == "none":
        return loss
    return torch.sum(loss) if reduction == "sum" else torch.sum(loss) / torch.sum(factor)


@op("NegativeLogLikelihoodLoss")
def negative_log_likelihood(
    node: Node, x: Tensor, target: Tensor, weight: Tensor | None = None
) -> Tensor:
    return _nll(node, x, target, weight)


@op("SoftmaxCrossEntropyLoss")
def cross_entropy(
    node: Node, x: Tensor, target: Tensor, weight: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    log_p = torch.log_softmax(x, 1)
    return _nll(node, log_p, target, weight), log_p
