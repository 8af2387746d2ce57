"""Values that are multiples of a quantization's scale already, so that to quantize them again changes nothing.

Tools that quantize put QuantizeLinear and DequantizeLinear around every op, also around those that only move elements.
"""

from __future__ import annotations

from collections.abc import Hashable

import torch

from mlcc.onnx.program import Node

# Whose results are elements of their first input.
_MOVES = frozenset(
    (
        "Flatten",
        "Identity",
        "MaxPool",
        "Reshape",
        "Slice",
        "Split",
        "Squeeze",
        "Transpose",
        "Unsqueeze",
    )
)


class Grids:
    """Follows the nodes of a graph, in order."""

    def __init__(self) -> None:
        self._grid: dict[str, Hashable] = {}  # of a value: the quantization whose multiple it is
        self._quantized: dict[str, tuple[str, Hashable]] = {}  # what QuantizeLinear gives: of what

    def without_rounding(self, node: Node) -> str | None:
        """Of a DequantizeLinear: the value that it gives once more; None where it rounds something."""
        if not node.inputs or not node.outputs:
            return None
        if node.op in _MOVES and node.domain == "" and node.inputs[0] in self._grid:
            for name in node.outputs[:1] if node.op == "MaxPool" else node.outputs:
                self._grid[name] = self._grid[node.inputs[0]]
        parameters = _parameters(node)
        if parameters is None:
            return None
        if node.op == "QuantizeLinear":
            self._quantized[node.outputs[0]] = node.inputs[0], parameters
            return None
        of, by = self._quantized.get(node.inputs[0], ("", None))
        if by == parameters and self._grid.get(of) == parameters:
            return of
        self._grid[node.outputs[0]] = parameters
        return None


def _parameters(node: Node) -> Hashable | None:
    """Scale and zero point of a whole tensor, by their values: of no more than 16 bits, which f32 holds exactly."""
    if node.op not in ("QuantizeLinear", "DequantizeLinear") or node.domain != "":
        return None
    scale = node.constants.get(1)
    zero = node.constants.get(2)
    if len(node.inputs) != 3 or scale is None or zero is None or len(scale.items) != 1:
        return None
    if zero.dtype.itemsize > 2 or zero.dtype.is_floating_point or scale.dtype != torch.float32:
        return None
    if node.get("output_dtype", 0) or node.get("precision", 0) or node.get("block_size", 0):
        return None
    return float(scale.number), int(zero.number), str(zero.dtype)
