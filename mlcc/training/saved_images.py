"""Images that the forward pass saves for the backward pass, channels-last.

Convolutions are computed on channels-last data. What the caller gets lies as eager lays it, but what only the backward
pass reads may lie as both passes have it anyway: it is saved as a tensor whose channels are its last dimension.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from mlcc.torch_private import symints, tracing

# Ops whose results lie as their images do, beside pointwise ones.
_OF_IMAGES = frozenset(
    [
        *("_to_copy", "prims::convert_element_type"),  # casts, as of autocast
        *("adaptive_avg_pool2d", "alias", "avg_pool2d", "cat", "clone", "constant_pad_nd"),
        *("detach", "max_pool2d_with_indices", "upsample_bilinear2d", "upsample_nearest2d"),
    ]
)

# Channels of a group, and pixels of all images, below which a convolution is left to a library
# (graph/convolution.h, graph/convolution.cpp).
_LEAST_CHANNELS = 16
_LEAST_PIXELS = 256


def save_channels_last(
    partition: Callable[..., Any], pointwise: Container[str]
) -> Callable[..., Any]:
    """A partition function that saves images so. `pointwise`: names of aten's packets."""

    def partition_and_save(joint: Any, *args: Any, num_fwd_outputs: int, **kwargs: Any) -> Any:
        forward, backward = partition(joint, *args, num_fwd_outputs=num_fwd_outputs, **kwargs)
        _restride(forward, backward, num_fwd_outputs, pointwise)
        return forward, backward

    return partition_and_save


def _restride(
    forward: GraphModule, backward: GraphModule, num_results: int, pointwise: Container[str]
) -> None:
    (output,) = forward.graph.find_nodes(op="output")
    outputs = list(output.args[0])
    images = _images(forward.graph, pointwise) - set(outputs[:num_results])
    readers = {node.name: node for node in backward.graph.find_nodes(op="placeholder")}
    saved = [place for place in range(num_results, len(outputs)) if outputs[place] in images]
    for place in saved:
        node = outputs[place]
        if node.name not in readers or not _is_row_major(node.meta["val"]):
            continue
        with forward.graph.inserting_before(output):
            outputs[place] = _channels_last(forward.graph, node)
        _read_channels_last(backward.graph, readers[node.name], outputs[place].meta["val"])
    if saved:
        output.args = (outputs, *output.args[1:])
        forward.recompile()
        backward.recompile()


def _images(graph: Graph, pointwise: Container[str]) -> set[Any]:
    """What convolutions that are no calls compute, and what is computed from that alike."""
    images: set[Any] = set()
    for node in graph.nodes:
        target = node.target
        if target is torch.ops.aten.convolution.default:
            is_image = _is_image(node) and _has_code(node, images)
        elif getattr(target, "__name__", "") == "getitem":
            is_image = node.args[0] in images
        elif hasattr(target, "_schema"):
            name = target._schema.name.removeprefix("aten::")
            is_image = _reads_image(node, images, name in pointwise, name in _OF_IMAGES)
        else:
            is_image = False
        if is_image:
            images.add(node)
    return images


def _reads_image(node: Node, images: set[Any], is_pointwise: bool, is_moved: bool) -> bool:
    operands = [one for one in node.all_input_nodes if one in images]
    if is_moved:
        return bool(operands)
    shape = getattr(node.meta.get("val"), "shape", None)
    return is_pointwise and any(
        one.meta["val"].shape == shape for one in operands if _is_image(one)
    )


def _is_image(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dim() in (4, 5) and value.device.type == "cpu"


def _has_code(node: Node, images: set[Any]) -> bool:
    is_known = symints.is_known  # adds no guard
    image, weight, *_, is_transposed, _, groups = node.args
    if not weight.meta["val"].dtype.is_floating_point:
        return False
    count, _, *sides = (image if is_transposed else node).meta["val"].shape
    if is_known(count * math.prod(sides) < _LEAST_PIXELS):
        return False
    rows, columns = weight.meta["val"].shape[:2]
    if isinstance(groups, Node):  # a size
        groups = groups.meta["val"]
    is_grouped = not is_transposed and is_known(groups > 1)
    if is_grouped and is_known(rows == groups) and is_known(columns == 1):
        return image in images
    return is_known((columns if is_transposed else rows // groups) >= _LEAST_CHANNELS)


def _is_row_major(value: Any) -> bool:
    """And surely not channels-last, which it may be too where dimensions have one element."""
    if not isinstance(value, torch.Tensor) or value.dim() not in (4, 5):
        return False
    expected: Any = 1
    for size, stride in zip(reversed(value.shape), reversed(value.stride()), strict=True):
        if not symints.is_known(stride == expected):
            return False
        expected = expected * size
    return symints.is_known(value.shape[1] > 1)


def _channels_last(graph: Graph, node: Node) -> Node:
    dims = [0, *range(2, node.meta["val"].dim()), 1]
    view = tracing.add_call(graph, torch.ops.aten.permute.default, (node, dims), {})
    kwargs = {"memory_format": torch.contiguous_format}
    return tracing.add_call(graph, torch.ops.aten.clone.default, (view,), kwargs)


def _read_channels_last(graph: Graph, placeholder: Node, value: Any) -> None:
    """The placeholder becomes `value`; its readers get what it was, as a view."""
    placeholder.meta["val"] = value
    last = graph.find_nodes(op="placeholder")[-1]
    readers = list(placeholder.users)
    dims = [0, value.dim() - 1, *range(1, value.dim() - 1)]
    with graph.inserting_after(last):
        view = tracing.add_call(graph, torch.ops.aten.permute.default, (placeholder, dims), {})
    for reader in readers:
        reader.replace_input_with(placeholder, view)
