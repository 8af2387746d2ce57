"""Models of ONNX that are damaged or made to do harm: an error each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mlcc

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent.parent
DEPTH = 10_000


def test_damaged_files() -> None:
    command = [sys.executable, str(ROOT / "tests/fuzz/onnx_files.py"), "--runs", "200"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    refused, loaded = (int(part.split()[0]) for part in done.stdout.strip().split(","))
    assert refused + loaded == 200
    assert refused > 40


def field(number: int, text: bytes) -> bytes:
    """A field of a protobuf that has a length."""
    length, rest = [], len(text)
    while rest > 127:
        length.append(rest & 127 | 128)
        rest >>= 7
    return bytes([number << 3 | 2, *length, rest]) + text


def nested_bodies() -> bytes:
    graph = b""
    for _ in range(DEPTH):  # graph.node.attribute.g
        graph = field(1, field(5, field(6, graph)))
    return field(7, graph)


def nested_types() -> bytes:
    kind = b""
    for _ in range(DEPTH):  # sequence_type.elem_type
        kind = field(4, field(1, kind))
    return field(7, field(11, field(2, kind)))


@pytest.mark.parametrize("text", [nested_bodies(), nested_types()], ids=["bodies", "types"])
def test_nested_deeply(text: bytes) -> None:
    with pytest.raises(mlcc.Error, match="not a model of ONNX"):
        mlcc.onnx.load(text)


def model_of(node: Any, *tensors: Any, **more: Any) -> Any:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph([node], "g", inputs, outputs, list(tensors))
    opsets = more.pop("opset_imports", [helper.make_opsetid("", 17)])
    return helper.make_model(graph, opset_imports=opsets, **more)


def relu() -> Any:
    return helper.make_node("Relu", ["x"], ["y"])


def test_functions_that_call_each_other_twice() -> None:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    functions = []
    for i in range(40):
        op, domain = ("Relu", "") if i == 0 else (f"f{i - 1}", "own")
        nodes = [
            helper.make_node(op, ["a"], ["b"], domain=domain),
            helper.make_node(op, ["b"], ["c"], domain=domain),
        ]
        functions.append(helper.make_function("own", f"f{i}", ["a"], ["c"], nodes, opsets))
    node = helper.make_node("f39", ["x"], ["y"], domain="own")
    with pytest.raises(mlcc.Error, match="more than 262144 nodes"):
        mlcc.onnx.load(model_of(node, opset_imports=opsets, functions=functions))


def test_a_function_that_calls_itself() -> None:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    inner = helper.make_node("f", ["a"], ["b"], domain="own")
    function = helper.make_function("own", "f", ["a"], ["b"], [inner], opsets)
    node = helper.make_node("f", ["x"], ["y"], domain="own")
    with pytest.raises(mlcc.Error, match="nested more than 64 times"):
        mlcc.onnx.load(model_of(node, opset_imports=opsets, functions=[function]))


@pytest.mark.parametrize(
    ("kind", "sizes", "text"),
    [
        (TensorProto.FLOAT, [2**40], "tensor 'w': "),  # more than it has
        (TensorProto.FLOAT, [2**62, 2**62], "tensor 'w': "),
        (TensorProto.FLOAT, [-1], r"tensor 'w': found sizes \[-1\]"),
        (127, [2], "tensor 'w': element type 127 is not known"),
    ],
)
def test_tensors(kind: int, sizes: list[int], text: str) -> None:
    tensor = TensorProto(name="w", data_type=kind, dims=sizes, raw_data=b"01234567")
    with pytest.raises(mlcc.Error, match=text):
        mlcc.onnx.load(model_of(relu(), tensor))


def test_text_that_is_none() -> None:
    text = model_of(relu()).SerializeToString().replace(b"Relu", b"Rel\xff")
    with pytest.raises(mlcc.Error, match=r"NodeProto.op_type: found b'Rel\\xff', expected text"):
        mlcc.onnx.load(text)


def test_versions() -> None:
    with pytest.raises(mlcc.Error, match="the opset of domain '' is -1, expected 1 or more"):
        mlcc.onnx.load(model_of(relu(), opset_imports=[helper.make_opsetid("", -1)]))


def test_numbers_of_inputs_and_outputs() -> None:
    with pytest.raises(mlcc.Error, match="Relu 'r': found 2 inputs, expected 1 to 1"):
        mlcc.onnx.load(model_of(helper.make_node("Relu", ["x", "x"], ["y"], name="r")))
    with pytest.raises(mlcc.Error, match="Relu 'r': found 0 outputs, expected 1 to 1"):
        mlcc.onnx.load(model_of(helper.make_node("Relu", ["x"], [], name="r")))


def test_an_attribute_without_a_type() -> None:
    node = helper.make_node("Flatten", ["x"], ["y"], axis=1)
    node.attribute[0].ClearField("type")
    with pytest.raises(mlcc.Error, match="attribute 'axis': type 0 is not known"):
        mlcc.onnx.load(model_of(node))
