"""mlcc.onnx: models of ONNX as modules of torch."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mlcc

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnx.reference")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

from tests.onnx import run as suite  # noqa: E402

assert_close = functools.partial(torch.testing.assert_close, rtol=1e-4, atol=1e-4)

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def info(name: str, shape: Any = None, kind: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes: list[Any], inputs: list[Any], outputs: list[Any], **initializers: Any) -> Any:
    tensors = [
        numpy_helper.from_array(np.asarray(value), name) for name, value in initializers.items()
    ]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    return helper.make_node(op, inputs.split(), outputs.split(), **attributes)


def random(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def heads() -> Any:
    """Splits rows into heads by sizes that it computes."""
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "n"),
        node("Gather", "s one", "t"),
        node("Unsqueeze", "n axes", "n1"),
        node("Unsqueeze", "t axes", "t1"),
        node("Concat", "n1 t1 rest", "target", axis=0),
        node("Reshape", "x target", "y"),
        node("Transpose", "y", "z", perm=[0, 2, 1, 3]),
    ]
    constants = {
        "zero": np.int64(0),
        "one": np.int64(1),
        "axes": np.array([0]),
        "rest": np.array([4, -1]),
    }
    return model(nodes, [info("x", ["n", "t", 8])], [info("z")], **constants)


def convnet() -> Any:
    nodes = [
        node("Conv", "x w b", "c", pads=[1, 1, 1, 1]),
        node("BatchNormalization", "c scale shift mean var", "n"),
        node("Relu", "n", "r"),
        node("MaxPool", "r", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("GlobalAveragePool", "p", "g"),
        node("Flatten", "g", "f"),
        node("Gemm", "f fc.weight fc.bias", "y", transB=1),
    ]
    tensors = {
        "w": random(8, 3, 3, 3),
        "b": random(8),
        "scale": random(8),
        "shift": random(8),
        "mean": random(8),
    }
    tensors |= {"var": np.abs(random(8)) + 1, "fc.weight": random(5, 8), "fc.bias": random(5)}
    return model(nodes, [info("x", ["n", 3, 16, 16])], [info("y", ["n", 5])], **tensors)


# Cases of onnx's own suite that are drawn, over all ops.
def _drawn() -> list[Any]:
    known = suite.known_misses()
    found = [
        case
        for case in suite.cases(mlcc.onnx.Backend)
        if case[0] == "NodeModel" and case[1] not in known
    ]
    return [pytest.param(case, id=name) for _, name, case in found[::12]]


@pytest.mark.parametrize("case", _drawn())
def test_suite(case: Any) -> None:
    assert suite.failure(case) is None


def test_names_are_kept() -> None:
    module = mlcc.onnx.load(convnet())
    assert set(module.state_dict()) == {
        "w",
        "b",
        "scale",
        "shift",
        "mean",
        "var",
        "fc.weight",
        "fc.bias",
    }
    trained = {name for name, _ in module.named_parameters()}
    assert trained == {"w", "b", "scale", "shift", "fc.weight", "fc.bias"}
    assert module.input_names == ("x",)
    assert module.output_names == ("y",)


def test_names_that_modules_cannot_have() -> None:
    names = ["/a/b", "forward", "a..b", "p", "p.q"]
    nodes = [helper.make_node("Sum", names, ["y"])]
    module = mlcc.onnx.load(model(nodes, [], [info("y")], **{name: random(2) for name in names}))
    assert "/a/b" in module.state_dict()
    assert len(module.state_dict()) == len(names)
    assert_close(module(), torch.from_numpy(5 * random(2)))


def test_compiles_as_one_graph() -> None:
    x = random(2, 3, 16, 16)
    expected = ReferenceEvaluator(convnet()).run(None, {"x": x})[0]
    module = mlcc.onnx.load(convnet())
    compiled = torch.compile(module, backend="mlcc", fullgraph=True)
    with torch.no_grad():
        assert_close(module(torch.from_numpy(x)), torch.from_numpy(expected))
        assert_close(compiled(torch.from_numpy(x)), torch.from_numpy(expected))
        assert_close(mlcc.jit(module)(torch.from_numpy(x)), torch.from_numpy(expected))


def test_trains() -> None:
    module = mlcc.onnx.load(convnet())
    compiled = torch.compile(module, backend="mlcc", fullgraph=True)
    x = torch.from_numpy(random(2, 3, 16, 16))
    compiled(x).square().sum().backward()
    found = {name: p.grad.clone() for name, p in module.named_parameters()}
    module.zero_grad()
    module(x).square().sum().backward()
    for name, parameter in module.named_parameters():
        assert_close(found[name], parameter.grad)


def test_sizes_stay_symbolic() -> None:
    module = mlcc.onnx.load(heads())
    dims = {"n": torch.export.Dim("n", min=1, max=64), "t": torch.export.Dim("t", min=2, max=128)}
    x = torch.from_numpy(random(2, 5, 8))
    ep = torch.export.export(module, (x,), dynamic_shapes=({0: dims["n"], 1: dims["t"]},))
    other = torch.from_numpy(random(7, 3, 8))
    assert_close(ep.module()(other), other.reshape(7, 3, 4, 2).permute(0, 2, 1, 3))
    assert not any("_local_scalar_dense" in str(n.target) for n in ep.graph.nodes)


def test_dynamic_sizes_compile_once() -> None:
    module = mlcc.onnx.load(heads())
    compiled = torch.compile(module, backend="mlcc", fullgraph=True, dynamic=True)
    with torch.compiler.set_stance(skip_guard_eval_unsafe=False):
        for n, t in ((2, 5), (3, 7), (9, 4)):
            x = torch.from_numpy(random(n, t, 8))
            assert_close(compiled(x), x.reshape(n, t, 4, 2).permute(0, 2, 1, 3))


def test_package(tmp_path: Path) -> None:
    path = tmp_path / "net.mlccpkg"
    module = mlcc.onnx.load(convnet())
    x = random(2, 3, 16, 16)
    mlcc.export(module, (torch.from_numpy(x),), path)
    expected = ReferenceEvaluator(convnet()).run(None, {"x": x})[0]
    found = mlcc.load(path)(torch.from_numpy(x))
    assert_close(found, torch.from_numpy(expected))


def branches() -> Any:
    def branch(op: str) -> Any:
        return helper.make_graph([node(op, "x two", "r")], op, [], [info("r")])

    nodes = [node("If", "c", "y", then_branch=branch("Add"), else_branch=branch("Mul"))]
    return model(
        nodes, [info("c", [], BOOL), info("x", [3])], [info("y")], two=np.full(3, 2, np.float32)
    )


def test_if_by_data() -> None:
    module = mlcc.onnx.load(branches())
    compiled = torch.compile(module, backend="mlcc", fullgraph=True)
    x = torch.from_numpy(random(3))
    for run in (module, compiled):
        assert_close(run(torch.tensor(True), x), x + 2)
        assert_close(run(torch.tensor(False), x), x * 2)


def test_if_of_sizes_is_folded() -> None:
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "n"),
        node("Equal", "n three", "c"),
        *branches().graph.node,
    ]
    constants = {"zero": np.int64(0), "three": np.int64(3), "two": np.float32(2)}
    module = mlcc.onnx.load(model(nodes, [info("x", ["n"])], [info("y")], **constants))
    ep = torch.export.export(module, (torch.ones(3),))
    assert "cond" not in str(ep.graph)
    assert_close(module(torch.ones(3)), torch.full((3,), 3.0))
    assert_close(module(torch.ones(4)), torch.full((4,), 2.0))


def test_numbers_as_arguments() -> None:
    nodes = [node("Reshape", "x target", "r"), node("If", "c", "y", **_branches_on("r"))]
    proto = model(
        nodes,
        [info("x"), info("target", [2], INT64), info("c", [], BOOL)],
        [info("y")],
        two=np.float32(2),
    )
    module = mlcc.onnx.load(proto)
    x = torch.from_numpy(random(6))
    for run in (module, torch.compile(module, backend="mlcc", fullgraph=True), mlcc.jit(module)):
        assert_close(run(x, [2, 3], True), x.reshape(2, 3) + 2)
        assert_close(run(x, [3, 2], False), x.reshape(3, 2) * 2)
    assert_close(module(x, torch.tensor([2, 3]), torch.tensor(True)), x.reshape(2, 3) + 2)


def _branches_on(name: str) -> dict[str, Any]:
    def branch(op: str) -> Any:
        return helper.make_graph([node(op, f"{name} two", "b")], op, [], [info("b")])

    return {"then_branch": branch("Add"), "else_branch": branch("Mul")}


def power_loop(condition: str) -> Any:
    """Doubles `v`, and collects it where the loop ends after a number of trips."""
    body_nodes = [node("Add", "v v", "w")]
    outputs = [info("go", [], BOOL), info("w", [2])]
    if condition == "known":
        body_nodes += [node("Identity", "on", "go"), node("Identity", "w", "kept")]
        outputs.append(info("kept", [2]))
    else:
        body_nodes += [node("ReduceMax", "w", "m", keepdims=0), node("Less", "m limit", "go")]
    inputs = [info("i", [], INT64), info("on", [], BOOL), info("v", [2])]
    body = helper.make_graph(body_nodes, "body", inputs, outputs)
    names = "y all" if condition == "known" else "y"
    first = "trips go_on x" if condition == "known" else "most go_on x"
    nodes = [node("Loop", first, names, body=body)]
    constants = {
        "trips": np.int64(3),
        "go_on": np.bool_(True),
        "limit": np.float32(100),
        "most": np.int64(50),
    }
    return model(nodes, [info("x", [2])], [info(name) for name in names.split()], **constants)


@pytest.mark.parametrize("condition", ["known", "data"])
def test_loop(condition: str) -> None:
    proto = power_loop(condition)
    x = np.array([1, 3], np.float32)
    expected = ReferenceEvaluator(proto).run(None, {"x": x})
    module = mlcc.onnx.load(proto)
    for run in (module, torch.compile(module, backend="mlcc", fullgraph=True)):
        found = run(torch.from_numpy(x))
        found = found if isinstance(found, tuple) else (found,)
        for mine, theirs in zip(found, expected, strict=True):
            assert_close(mine, torch.from_numpy(theirs))


def test_local_functions() -> None:
    inner = [
        helper.make_node("Mul", ["a", "b"], ["t"]),
        helper.make_node("LeakyRelu", ["t"], ["r"]),
    ]
    slope = onnx.AttributeProto(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="slope")
    inner[1].attribute.append(slope)
    opsets = [helper.make_opsetid("", 21)]
    function = helper.make_function("mine", "F", ["a", "b"], ["r"], inner, opsets, ["slope"])
    nodes = [helper.make_node("F", ["x", "w"], ["y"], domain="mine", slope=0.5)]
    proto = model(nodes, [info("x", [4])], [info("y")], w=random(4))
    proto.functions.append(function)
    proto.opset_import.append(helper.make_opsetid("mine", 1))
    x = torch.from_numpy(random(4)) - 1
    expected = torch.nn.functional.leaky_relu(x * torch.from_numpy(random(4)), 0.5)
    assert_close(mlcc.onnx.load(proto)(x), expected)


def with_external_data(path: Path, location: str) -> Path:
    proto = model([node("MatMul", "x w", "y")], [info("x", [2, 64])], [info("y")], w=random(64, 32))
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "64"), ("length", str(64 * 32 * 4))):
        tensor.external_data.add(key=key, value=value)
    path.write_bytes(proto.SerializeToString())
    return path


def test_external_data(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(bytes(64) + random(64, 32).tobytes())
    module = mlcc.onnx.load(with_external_data(tmp_path / "m.onnx", "weights.bin"))
    x = random(2, 64)
    assert_close(module(torch.from_numpy(x)), torch.from_numpy(x @ random(64, 32)))


def test_external_data_outside_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(bytes(64) + random(64, 32).tobytes())
    inner = tmp_path / "inner"
    inner.mkdir()
    for location in ("../weights.bin", str(tmp_path / "weights.bin"), "link"):
        (inner / "link").unlink(missing_ok=True)
        (inner / "link").symlink_to(tmp_path / "weights.bin")
        with pytest.raises(mlcc.Error, match="folder"):
            mlcc.onnx.load(with_external_data(inner / "m.onnx", location))


def test_external_data_that_is_too_short(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(bytes(100))
    with pytest.raises(mlcc.Error, match="which has 100"):
        mlcc.onnx.load(with_external_data(tmp_path / "m.onnx", "weights.bin"))


def test_all_unknown_ops_are_listed() -> None:
    nodes = [
        helper.make_node("Strange", ["x"], ["a"], name="first"),
        helper.make_node("Odd", ["a"], ["y"], name="second", domain="some.where"),
    ]
    proto = model(nodes, [info("x", [2])], [info("y")])
    with pytest.raises(
        mlcc.Error, match=re.compile("Strange.*'first'.*some.where.Odd.*'second'", re.DOTALL)
    ):
        mlcc.onnx.load(proto)


def test_what_is_not_a_model(tmp_path: Path) -> None:
    with pytest.raises(mlcc.Error, match="not a model"):
        mlcc.onnx.load(b"not a model at all")
    with pytest.raises(mlcc.Error, match=re.escape("missing.onnx")):
        mlcc.onnx.load(tmp_path / "missing.onnx")


def test_arguments() -> None:
    module = mlcc.onnx.load(branches())
    x = torch.ones(3)
    assert_close(module(x=x, c=torch.tensor(True)), x + 2)
    with pytest.raises(mlcc.Error, match="no value for the inputs x"):
        module(torch.tensor(True))
    with pytest.raises(mlcc.Error, match="no input 'z'"):
        module(torch.tensor(True), z=x)


def test_identities_are_no_nodes() -> None:
    nodes = [
        node("Identity", "w", "w2"),
        node("MatMul", "x w2", "h"),
        node("Identity", "h", "h2"),
        node("Shape", "h2", "s"),
        node("Identity", "s", "s2"),
        node("Reshape", "x s2", "r"),
        node("Add", "h2 r", "z"),
        node("Identity", "z", "y"),
    ]
    module = mlcc.onnx.load(model(nodes, [info("x", ["n", 4])], [info("y")], w=random(4, 4)))
    kept = [one.op for one in module._graph.nodes]
    assert kept == ["MatMul", "Shape", "Reshape", "Add", "Identity"]  # an output keeps its own
    x = torch.randn(3, 4)
    assert_close(module(x), x @ module.w + x)


def test_values_that_are_sizes_reach_ops_that_take_tensors() -> None:
    nodes = [
        node("Shape", "x", "s"),
        node("Cast", "s", "f", to=FLOAT),
        node("Softmax", "f", "y"),
        node("TopK", "f k", "values places"),
    ]
    inputs = [info("x", ["n", "m"])]
    module = mlcc.onnx.load(model(nodes, inputs, [info("y"), info("values")], k=np.array([1])))
    y, values = module(torch.zeros(2, 3))
    assert_close(y, torch.tensor([2.0, 3.0]).softmax(0))
    assert_close(values, torch.tensor([3.0]))


def test_unsigned_values_are_computed_in_wider_ones() -> None:
    nodes = [node("Cast", "x", "u", to=TensorProto.UINT32), node("Mul", "u u", "y")]
    module = mlcc.onnx.load(model(nodes, [info("x", [2])], [info("y", kind=TensorProto.UINT32)]))
    assert module(torch.tensor([2.0, 3.0])).tolist() == [4, 9]


def collecting_loop(counter: Any) -> Any:
    """y[i] = x * (i + 1) while i + 1 < limit, where i is a tensor of the loop, as TensorFlow's exporter writes it."""
    body = helper.make_graph(
        [
            node("Add", "i one", "next"),
            node("Cast", "next", "factor", to=FLOAT),
            node("Mul", "x factor", "row"),
            node("Less", "next limit", "on"),
        ],
        "body",
        [info("count", [], INT64), info("was_on", [], BOOL), info("i", [], TensorProto.INT32)],
        [info("on", [], BOOL), info("next", [], TensorProto.INT32), info("row")],
    )
    nodes = [node("Loop", " on0 start", "last y", body=body)]
    nodes[0].input[:] = ["", "on0", "start"]
    constants = {"one": np.int32(1), "start": np.int32(0), "on0": np.bool_(True)} | counter
    inputs = [info("x", ["n"])]
    if not counter:
        inputs.append(info("limit", [], TensorProto.INT32))
    return mlcc.onnx.load(model(nodes, inputs, [info("y")], **constants))


def test_a_loop_that_collects_values_runs_where_eager_does() -> None:
    x, limit = torch.randn(4), torch.tensor(3, dtype=torch.int32)
    expected = torch.stack([x, 2 * x, 3 * x])
    known = collecting_loop({"limit": np.int32(3)})
    unknown = collecting_loop({})
    assert_close(known(x), expected)
    assert_close(unknown(x, limit), expected)
    assert_close(torch.compile(known, backend="mlcc")(x), expected)
    assert_close(torch.compile(unknown, backend="mlcc")(x, limit), expected)
    with pytest.warns(mlcc.EagerFallbackWarning, match="how often it runs is data"):
        assert_close(mlcc.jit(unknown)(x, limit), expected)


def test_a_loop_that_counts_by_constants_is_exported(tmp_path: Path) -> None:
    x = torch.randn(4)
    module = collecting_loop({"limit": np.int32(3)})
    mlcc.export(module, (x,), tmp_path / "loop.mlcc")
    assert_close(mlcc.load(tmp_path / "loop.mlcc")(x), torch.stack([x, 2 * x, 3 * x]))
    with pytest.raises(mlcc.Error, match="how often it runs is data"):
        mlcc.export(collecting_loop({}), (x, torch.tensor(3, dtype=torch.int32)), tmp_path / "no")


def test_jit_runs_a_model_eagerly_that_reads_data() -> None:
    long = [node("Relu", "x", "r0"), *[node("Relu", f"r{i}", f"r{i + 1}") for i in range(40)]]
    then = helper.make_graph(long, "then", [], [info("r40")])
    otherwise = helper.make_graph([node("Neg", "x", "n")], "else", [], [info("n")])
    nodes = [node("If", "c", "y", then_branch=then, else_branch=otherwise)]
    module = mlcc.onnx.load(model(nodes, [info("x"), info("c", [], BOOL)], [info("y")]))
    x, jitted = torch.randn(6), mlcc.jit(module)
    with pytest.warns(mlcc.EagerFallbackWarning, match="asks for the value of a tensor"):
        assert_close(jitted(x, torch.tensor(True)), x.relu())
    assert_close(jitted(x, torch.tensor(False)), -x)
