"""Windows of convolutions and pooling: their attributes and how they are padded."""

from __future__ import annotations

from typing import Any

from mlcc.onnx.program import Node


class Window:
    def __init__(self, kernel: list[int], strides: list[int], dilations: list[int]) -> None:
        self.kernel, self.strides, self.dilations = kernel, strides, dilations

    @property
    def spans(self) -> list[int]:
        return [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True)]


def window_of(node: Node, rank: int, kernel: list[int] | None = None) -> Window:
    kernel = node.get("kernel_shape", kernel)
    assert kernel is not None
    return Window(
        list(kernel), list(node.get("strides", [1] * rank)), list(node.get("dilations", [1] * rank))
    )


def pads_of(node: Node, sizes: list[Any], window: Window) -> tuple[list[Any], list[Any]]:
    """Elements before and after each axis."""
    rank, auto = len(sizes), node.get("auto_pad", "NOTSET")
    if auto in ("NOTSET", "VALID"):
        pads = node.get("pads", [0] * (2 * rank)) if auto == "NOTSET" else [0] * (2 * rank)
        return list(pads[:rank]), list(pads[rank:])
    begin, end = [], []
    for size, span, stride in zip(sizes, window.spans, window.strides, strict=True):
        total = ((size + stride - 1) // stride - 1) * stride + span - size
        total = max(total, 0)
        small = total // 2
        begin.append(small if auto == "SAME_UPPER" else total - small)
        end.append(total - begin[-1])
    return begin, end


def flat_pads(begin: list[Any], end: list[Any]) -> list[Any]:
    """As torch wants them: the last axis first."""
    return [amount for pair in reversed(list(zip(begin, end, strict=True))) for amount in pair]
