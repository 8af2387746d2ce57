"""Files that onnxruntime.quantization makes: eagerly, compiled and as packages, beside ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mlcc

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")

KINDS = ("dynamic", "static", "static_operators", "nbits")
SHAPES = {"layers": (4, 64), "convolutions": (2, 3, 12, 12)}


def model(name: str) -> Any:
    random = np.random.default_rng(0)

    def weight(*shape: int) -> Any:
        return (random.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    if name == "layers":
        tensors = {"w1": weight(64, 96), "b1": weight(96), "w2": weight(96, 32)}
        nodes = [("MatMul", "x w1", "a"), ("Add", "a b1", "b"), ("Relu", "b", "c")]
        nodes += [("MatMul", "c w2", "d"), ("Softmax", "d", "y")]
    else:
        tensors = {"w1": weight(8, 3, 3, 3), "b1": weight(8), "w2": weight(8, 8, 3, 3)}
        tensors |= {"w3": weight(8, 10)}
        nodes = [("Conv", "x w1 b1", "a"), ("Relu", "a", "b"), ("Conv", "b w2", "c")]
        nodes += [("GlobalAveragePool", "c", "d"), ("Flatten", "d", "e"), ("MatMul", "e w3", "y")]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(op, given.split(), [made]) for op, given, made in nodes],
        "g",
        [onnx.helper.make_tensor_value_info("x", 1, SHAPES[name])],
        [onnx.helper.make_tensor_value_info("y", 1, None)],
        [onnx.numpy_helper.from_array(value, key) for key, value in tensors.items()],
    )
    opsets = [onnx.helper.make_opsetid("", 17)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)


def quantized(name: str, kind: str, folder: Path) -> Path:
    from onnxruntime import quantization

    source, target = folder / "source.onnx", folder / "quantized.onnx"
    onnx.save(model(name), source)
    if kind == "dynamic":
        quantization.quantize_dynamic(source, target)
    elif kind == "nbits":
        pytest.importorskip("onnx_ir")
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

        quantizer = MatMulNBitsQuantizer(onnx.load(source), block_size=32, is_symmetric=True)
        quantizer.process()
        quantizer.model.save_model_to_file(str(target))
    else:
        form = quantization.QuantFormat
        quantization.quantize_static(
            source,
            target,
            Reader(name),
            quant_format=form.QDQ if kind == "static" else form.QOperator,
            per_channel=kind == "static",
        )
    return target


class Reader:
    """Values by which the tool finds the ranges."""

    def __init__(self, name: str) -> None:
        self._left: Iterator[Any] = iter([given(name, seed) for seed in range(4)])

    def get_next(self) -> Any:
        return next(self._left, None)


def given(name: str, seed: int = 7) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {"x": random.standard_normal(SHAPES[name]).astype(np.float32)}


def check(found: Any, expected: Any) -> None:
    """A value at the edge of a step of the quantization may be rounded to the other side."""
    distance = np.abs(np.asarray(found) - expected).max()
    assert found.shape == expected.shape
    assert distance <= 0.03 * np.abs(expected).max()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SHAPES)
def test_quantized(name: str, kind: str, tmp_path: Path) -> None:
    path, feed = quantized(name, kind, tmp_path), given(name)
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, feed)
    module, x = mlcc.onnx.load(path), torch.from_numpy(feed["x"])
    with torch.no_grad():
        check(module(x), expected)
        check(mlcc.jit(module)(x), expected)
        check(torch.compile(module, backend="mlcc")(x), expected)
        mlcc.export(module, (x,), tmp_path / "m.mlcc")
    check(mlcc.runtime.load(tmp_path / "m.mlcc")(feed["x"]), expected)
