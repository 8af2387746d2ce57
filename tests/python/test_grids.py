"""Quantizations of values that are quantized already are left out of models of ONNX."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import mlcc

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402


def model(path: Path, scales: tuple[float, ...], zero: int, kind: Any = numpy.int8) -> Path:
    """x -> quantized by the first scale -> turned -> by the second -> a pool -> by the third."""
    tensors, nodes, last = [], [], "x"
    moves = ["Transpose", "MaxPool", ""]
    for i, (scale, move) in enumerate(zip(scales, moves, strict=True)):
        tensors.append(numpy_helper.from_array(numpy.float32(scale), f"scale{i}"))
        tensors.append(numpy_helper.from_array(kind(zero), f"zero{i}"))
        nodes.append(helper.make_node("QuantizeLinear", [last, f"scale{i}", f"zero{i}"], [f"q{i}"]))
        names = [f"q{i}", f"scale{i}", f"zero{i}"]
        nodes.append(helper.make_node("DequantizeLinear", names, [f"y{i}"]))
        last = f"y{i}"
        if move == "Transpose":
            nodes.append(helper.make_node(move, [last], [f"m{i}"], perm=[0, 1, 3, 2]))
        elif move == "MaxPool":
            nodes.append(helper.make_node(move, [last], [f"m{i}"], kernel_shape=[2, 2]))
        last = f"m{i}" if move else last
    shape = [1, 2, 6, 5]
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, [1, 2, 4, 5])],
        tensors,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), path)
    return path


@pytest.mark.parametrize("zero", [0, 3])
@pytest.mark.parametrize(
    ("scales", "kept"),
    [
        ((0.1, 0.1, 0.1), 1 + 1),  # the last one gives the model's result
        ((0.1, 0.2, 0.2), 3),
        ((0.1, 0.2, 0.1), 3),
    ],
)
def test_what_is_left_out(scales: tuple[float, ...], kept: int, zero: int, tmp_path: Path) -> None:
    path = model(tmp_path / "m.onnx", scales, zero)
    loaded = mlcc.onnx.load(path).eval()
    ops = Counter(node.op for node in loaded._graph.nodes)
    assert ops["DequantizeLinear"] == kept
    x = torch.randn(1, 2, 6, 5) * 5
    expected = ReferenceEvaluator(str(path)).run(None, {"x": x.numpy()})[0]
    with torch.no_grad():
        found = loaded(x)
    found = found[0] if isinstance(found, tuple) else found
    assert numpy.array_equal(found.numpy(), expected)


def test_integers_of_sixteen_bits(tmp_path: Path) -> None:
    path = model(tmp_path / "m.onnx", (0.1, 0.1, 0.1), 0, numpy.int16)
    assert Counter(n.op for n in mlcc.onnx.load(path)._graph.nodes)["DequantizeLinear"] == 2
