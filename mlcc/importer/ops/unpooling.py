"""How values go back to the places that pooling took them from: updates of planes of zeros."""

from __future__ import annotations

import math
from typing import Any

from torch.fx import Node

from mlcc.importer.context import Context
from mlcc.importer.ops.updates import is_ordered
from mlcc.ir.types import Tensor, Unsupported, device_of


def pool_backward(rank: int) -> Any:
    """The gradients of max_pool, adaptive_max_pool and fractional_max_pool over the last `rank` dimensions.

    Eager goes through row-major planes in the same order, so that sums of 16-bit floats round alike.
    """

    def handler(context: Context, node: Node) -> Tensor:
        bound = context.bind(node)
        if context.tensor_type(node, node.meta["val"]).strides is not None:
            raise Unsupported("eager's kernel for this memory format is faster")
        gradient = context.tensor(bound["grad_output"])
        return _put_back(context, node, gradient, bound["indices"], rank, "add", "none")

    return handler


def max_unpool(rank: int) -> Any:
    """max_unpool2d and max_unpool3d to row-major images; of values for one place the last one stays, as in eager."""

    def handler(context: Context, node: Node) -> Tensor:
        bound = context.bind(node)
        image = node.meta["val"].shape[-rank:]
        if not all(isinstance(size, int) for size in image):
            raise Unsupported("sizes are no constants")
        error = "max_unpool " + "x".join(map(str, image))
        x = context.tensor(bound["self"])
        return _put_back(context, node, x, bound["indices"], rank, "set", error)

    return handler


def _put_back(
    context: Context,
    node: Node,
    x: Tensor,
    indices: Any,
    rank: int,
    combine: str,
    error: str,
) -> Tensor:
    """Zeros of the node's shape, joined with the elements of `x` at their row-major places in the last `rank` dims."""
    result, source = node.meta["val"], context.fake(indices)
    lead = context.shape(result)[:-rank]
    extent, count = (context.size(math.prod(t.shape[-rank:])) for t in (result, source))
    zero = context.number(0, x.dtype, device_of(result))
    handle = context.builder.scatter(
        context.expand(zero, [*lead, extent]).handle,
        context.reshape(context.tensor(indices), [*lead, count]).handle,
        context.reshape(x, [*lead, count]).handle,
        len(lead),
        combine,
        is_ordered(),
        error,
    )
    return context.reshape(Tensor(handle, x.dtype), context.shape(result))
