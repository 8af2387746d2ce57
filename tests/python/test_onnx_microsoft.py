"""Ops of com.microsoft, beside ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import mlcc

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")

RNG = np.random.default_rng(0)


def f(*shape: int, scale: float = 1.0) -> Any:
    return (RNG.standard_normal(shape) * scale).astype(np.float32)


def u(*shape: int) -> Any:
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def i32(*items: int, shape: Any = None) -> Any:
    return np.array(items, np.int32).reshape(shape if shape is not None else -1)


def scalar(value: float, dtype: Any = np.float32) -> Any:
    return np.array(value, dtype)


def zero(value: int) -> Any:
    return np.array(value, np.uint8)


def check(op: str, inputs: list[Any], outputs: str, attributes: dict[str, Any]) -> None:
    """An output of the name "-" is left out."""
    names = [f"i{k}" if value is not None else "" for k, value in enumerate(inputs)]
    infos = [
        onnx.helper.make_tensor_value_info(
            n, onnx.helper.np_dtype_to_tensor_dtype(v.dtype), v.shape
        )
        for n, v in zip(names, inputs, strict=True)
        if n
    ]
    results = ["" if name == "-" else name for name in outputs.split()]
    node = onnx.helper.make_node(op, names, results, domain="com.microsoft", **attributes)
    graph = onnx.helper.make_graph(
        [node], "g", infos, [onnx.ValueInfoProto(name=n) for n in results if n]
    )
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
    proto = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
    session = runtime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    feeds = {name: value for name, value in zip(names, inputs, strict=True) if name}
    expected = session.run(None, feeds)
    found = mlcc.onnx.load(proto)(*[torch.from_numpy(value) for value in feeds.values()])
    found = found if isinstance(found, tuple) else (found,)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.shape == theirs.shape
        limit = 1 if theirs.dtype == np.uint8 else 1e-4 * max(1.0, float(np.abs(theirs).max()))
        assert np.abs(mine.numpy().astype(np.float64) - theirs).max() <= limit


Case = tuple[str, list[Any], str, dict[str, Any]]
PADS = {"pads": [1, 1, 1, 1]}
FOUR = {"num_heads": 4}
GROUPS = {"num_heads": 4, "kv_num_heads": 2}
NBITS = {"K": 64, "N": 6, "block_size": 16}

CASES: list[Case] = [
    ("Gelu", [f(2, 3)], "y", {}),
    ("FastGelu", [f(2, 16), f(16)], "y", {}),
    ("BiasGelu", [f(2, 16), f(16)], "y", {}),
    ("QuickGelu", [f(2, 16)], "y", {"alpha": 1.5}),
    ("FusedConv", [f(1, 4, 8, 8), f(6, 4, 3, 3), f(6)], "y", {"activation": "Relu", **PADS}),
    (
        "FusedConv",
        [f(1, 4, 8, 8), f(6, 4, 3, 3), f(6), f(1, 6, 8, 8)],
        "y",
        {"activation": "Tanh", **PADS},
    ),
    ("FusedMatMul", [f(2, 5, 3), f(2, 5, 4)], "y", {"transA": 1, "alpha": 0.5}),
    ("SkipLayerNormalization", [f(2, 3, 16), f(2, 3, 16), f(16), f(16), f(16)], "y - - sum", {}),
    ("SkipSimplifiedLayerNormalization", [f(2, 3, 16), f(2, 3, 16), f(16), f(16)], "y - - sum", {}),
    (
        "EmbedLayerNormalization",
        [
            i32(1, 2, 3, 4, shape=(2, 2)),
            i32(0, 1, 1, 0, shape=(2, 2)),
            f(9, 8),
            f(6, 8),
            f(2, 8),
            f(8),
            f(8),
        ],
        "y mask",
        {},
    ),
    ("MatMulNBits", [f(3, 64), u(6, 4, 8), f(24)], "y", {"bits": 4, **NBITS}),
    ("MatMulNBits", [f(2, 3, 64), u(6, 4, 8), f(24), u(12)], "y", {"bits": 4, **NBITS}),
    ("MatMulNBits", [f(3, 64), u(6, 4, 16), f(24), u(24)], "y", {"bits": 8, **NBITS}),
    ("MatMulNBits", [f(3, 64), u(6, 4, 4), f(24), None, None, f(6)], "y", {"bits": 2, **NBITS}),
    ("DynamicQuantizeMatMul", [f(3, 8), u(8, 4), f(1, scale=0.1), u(1), f(4)], "y", {}),
    ("MatMulIntegerToFloat", [u(3, 8), u(8, 4), f(1), f(1), u(1), u(1), f(4)], "y", {}),
    (
        "QLinearAdd",
        [u(8), scalar(0.1), zero(3), u(8), scalar(0.2), zero(9), scalar(0.3), zero(100)],
        "y",
        {},
    ),
    (
        "QLinearMul",
        [u(8), scalar(0.1), zero(3), u(8), scalar(0.2), zero(9), scalar(3), zero(100)],
        "y",
        {},
    ),
    ("QLinearSigmoid", [u(2, 8), scalar(0.05), zero(128), scalar(1 / 256), zero(0)], "y", {}),
    (
        "QLinearSoftmax",
        [u(2, 3, 8), scalar(0.05), zero(128), scalar(1 / 256), zero(0)],
        "y",
        {"axis": 1, "opset": 17},
    ),
    (
        "QLinearSoftmax",
        [u(2, 3, 8), scalar(0.05), zero(128), scalar(1 / 256), zero(0)],
        "y",
        {"axis": 1, "opset": 11},
    ),
    (
        "QLinearGlobalAveragePool",
        [u(1, 3, 4, 4), scalar(0.1), zero(2), scalar(0.2), zero(5)],
        "y",
        {},
    ),
    (
        "QLinearConcat",
        [scalar(0.2), zero(3), u(2, 3), scalar(0.1), zero(2), u(2, 4), scalar(0.3), zero(9)],
        "y",
        {"axis": 1},
    ),
    (
        "QGemm",
        [
            u(3, 8),
            scalar(0.1),
            zero(3),
            u(8, 4),
            scalar(0.02),
            zero(8),
            i32(9, -8, 7, 6),
            scalar(0.5),
            zero(4),
        ],
        "y",
        {},
    ),
    ("Attention", [f(2, 5, 16), f(16, 48, scale=0.2), f(48)], "y", FOUR),
    ("Attention", [f(2, 5, 16), f(16, 48, scale=0.2), f(48), i32(3, 5)], "y", FOUR),
    (
        "Attention",
        [f(2, 5, 16), f(16, 48, scale=0.2), f(48), None, f(2, 2, 4, 3, 4)],
        "y p",
        {"unidirectional": 1, **FOUR},
    ),
    (
        "QAttention",
        [u(2, 5, 16), u(16, 48), f(48), scalar(0.01), scalar(0.01), None, zero(120), zero(128)],
        "y",
        FOUR,
    ),
    ("MultiHeadAttention", [f(2, 5, 16), f(2, 7, 16), f(2, 7, 16), f(48)], "y", FOUR),
    (
        "MultiHeadAttention",
        [f(2, 5, 16), f(2, 5, 16), f(2, 5, 16), None, None, f(1, 4, 5, 5)],
        "y",
        FOUR,
    ),
    ("RotaryEmbedding", [f(2, 4, 5, 8), np.arange(10).reshape(2, 5), f(20, 4), f(20, 4)], "y", {}),
    ("RotaryEmbedding", [f(2, 5, 32), np.array([3]), f(20, 4), f(20, 4)], "y", {"interleaved": 1}),
    (
        "GroupQueryAttention",
        [
            f(2, 5, 64),
            f(2, 5, 32),
            f(2, 5, 32),
            None,
            None,
            i32(4, 4),
            i32(5, shape=()),
            f(20, 8),
            f(20, 8),
        ],
        "y k v",
        {"do_rotary": 1, **GROUPS},
    ),
    (
        "GroupQueryAttention",
        [
            f(2, 1, 64),
            f(2, 1, 32),
            f(2, 1, 32),
            f(2, 2, 6, 16),
            f(2, 2, 6, 16),
            i32(6, 6),
            i32(7, shape=()),
            f(20, 8),
            f(20, 8),
        ],
        "y k v",
        {"do_rotary": 1, **GROUPS},
    ),
    (
        "GroupQueryAttention",
        [f(1, 1, 128), None, None, f(1, 2, 6, 16), f(1, 2, 6, 16), i32(6), i32(7, shape=())],
        "y k v",
        {"local_window_size": 3, "softcap": 5.0, **GROUPS},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=[f"{case[0]}_{i}" for i, case in enumerate(CASES)])
def test_op(case: Case) -> None:
    check(*case)
