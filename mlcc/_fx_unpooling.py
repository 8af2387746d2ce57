"""How values go back to the places that pooling took them from: updates of planes of zeros."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from torch.fx import Node

from mlcc._fx_types import Tensor, Unsupported, device_of
from mlcc._fx_updates import is_ordered

if TYPE_CHECKING:
    from mlcc.fx_import import Importer


def pool_backward(rank: int) -> Any:
    """The gradients of max_pool, adaptive_max_pool and fractional_max_pool over the last `rank` dimensions.

    Eager goes through row-major planes in the same order, so that sums of 16-bit floats round alike.
    """

    def handler(importer: Importer, node: Node) -> Tensor:
        bound = importer.bind(node)
        if importer.tensor_type(node, node.meta["val"]).strides is not None:
            raise Unsupported("eager's kernel for this memory format is faster")
        gradient = importer.tensor(bound["grad_output"])
        return _put_back(importer, node, gradient, bound["indices"], rank, "add", "none")

    return handler


def max_unpool(rank: int) -> Any:
    """max_unpool2d and max_unpool3d to row-major images; of values for one place the last one stays, as in eager."""

    def handler(importer: Importer, node: Node) -> Tensor:
        bound = importer.bind(node)
        image = node.meta["val"].shape[-rank:]
        if not all(isinstance(size, int) for size in image):
            raise Unsupported("sizes are no constants")
        error = "max_unpool " + "x".join(map(str, image))
        x = importer.tensor(bound["self"])
        return _put_back(importer, node, x, bound["indices"], rank, "set", error)

    return handler


def _put_back(
    importer: Importer,
    node: Node,
    x: Tensor,
    indices: Any,
    rank: int,
    combine: str,
    error: str,
) -> Tensor:
    """Zeros of the node's shape, joined with the elements of `x` at their row-major places in the last `rank` dims."""
    result, source = node.meta["val"], importer.fake(indices)
    lead = importer.shape(result)[:-rank]
    extent, count = (importer.size(math.prod(t.shape[-rank:])) for t in (result, source))
    zero = importer.number(0, x.dtype, device_of(result))
    handle = importer.builder.scatter(
        importer.expand(zero, [*lead, extent]).handle,
        importer.reshape(importer.tensor(indices), [*lead, count]).handle,
        importer.reshape(x, [*lead, count]).handle,
        len(lead),
        combine,
        is_ordered(),
        error,
    )
    return importer.reshape(Tensor(handle, x.dtype), importer.shape(result))
