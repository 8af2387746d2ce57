"""Ops by family; importing this package puts all of them into the registry."""

from mlcc.onnx.ops import (
    attention,
    control_flow,
    convolutions,
    elementwise,
    images,
    indexing,
    microsoft,
    normalization,
    pooling,
    quantization,
    recurrent,
    reductions,
    shapes,
    signals,
)

__all__ = [
    "attention",
    "control_flow",
    "convolutions",
    "elementwise",
    "images",
    "indexing",
    "microsoft",
    "normalization",
    "pooling",
    "quantization",
    "recurrent",
    "reductions",
    "shapes",
    "signals",
]
