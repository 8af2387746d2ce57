"""Ops by family; importing this package puts all of them into the registry."""

from mlcc.onnx.ops import (
    control_flow,
    convolutions,
    elementwise,
    images,
    indexing,
    normalization,
    pooling,
    quantization,
    recurrent,
    reductions,
    shapes,
    signals,
)

__all__ = [
    "control_flow",
    "convolutions",
    "elementwise",
    "images",
    "indexing",
    "normalization",
    "pooling",
    "quantization",
    "recurrent",
    "reductions",
    "shapes",
    "signals",
]
