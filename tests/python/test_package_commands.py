"""`mlcc export`, `inspect`, `run` and `bench` for packages and models of ONNX."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch
from torch import nn
from torch.export import Dim

import mlcc
from mlcc import cli, package_commands

pytestmark = pytest.mark.usefixtures("nothing_kept")

Capture = pytest.CaptureFixture[str]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu()).softmax(-1)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    shapes = ({0: Dim("batch", min=1, max=16)},)
    mlcc.export(Net().eval(), (torch.ones(4, 8),), tmp_path / "m.mlcc", dynamic_shapes=shapes)
    return tmp_path / "m.mlcc"


@pytest.fixture
def onnx_file(tmp_path: Path) -> Path:
    """y = relu(x w) + bias for x of [batch, 8] and a bias that is one number."""
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto
    weight = numpy.random.default_rng(0).standard_normal((8, 3)).astype(numpy.float32)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["p"]),
            helper.make_node("Relu", ["p"], ["r"]),
            helper.make_node("Add", ["r", "bias"], ["y"]),
        ],
        "g",
        [
            helper.make_tensor_value_info("x", kind.FLOAT, ["batch", 8]),
            helper.make_tensor_value_info("bias", kind.FLOAT, []),
        ],
        [helper.make_tensor_value_info("y", kind.FLOAT, ["batch", 3])],
        [onnx.numpy_helper.from_array(weight, "w")],
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def told(capsys: Capture, *arguments: object, status: int = 0) -> str:
    """What a command prints: its output where it works, else its message."""
    assert cli.main([str(one) for one in arguments]) == status
    found = capsys.readouterr()
    return found.err if status else found.out


def refused(capsys: Capture, *arguments: object) -> str:
    with pytest.raises(SystemExit) as end:
        cli.main([str(one) for one in arguments])
    assert end.value.code == 2
    return capsys.readouterr().err


def test_inspect_tells_parts_and_kernels(package: Path, capsys: Capture) -> None:
    shown = told(capsys, "inspect", package)
    for row in (r"size batch +1 to 16", r"input +x: f32 \[batch, 8\]", r"bytes of weights +\d+"):
        assert re.search(row, shown)
    kernels = mlcc.load(package).manifest["kernels"]
    assert sum(kernel["flops"] for kernel in kernels) >= 2 * 4 * (8 * 16 + 16 * 3)
    assert all(kernel["bytes"] > 0 for kernel in kernels)
    assert any(kernel["line"].startswith("test_package_commands.py:") for kernel in kernels)
    assert f"{len(kernels)} kernels" in shown
    parts = dict(package_commands.sections(package))
    assert set(parts) == {"manifest", "plan", "code", "weights", "targets"}
    assert sum(parts.values()) <= package.stat().st_size
    assert (
        json.loads(told(capsys, "inspect", "--manifest", package))["sizes"]["batch"]["usual"] == 4
    )


def test_work_of_a_product(tmp_path: Path) -> None:
    model = nn.Linear(256, 256, bias=False).eval()
    mlcc.export(model, (torch.ones(96, 256),), tmp_path / "m.mlcc", target="x86-64-v3", check=False)
    (kernel,) = json.loads(_manifest(tmp_path / "m.mlcc"))["kernels"]
    assert 1 <= kernel["flops"] / (2 * 96 * 256 * 256) < 1.1
    assert 1 <= kernel["bytes"] / (4 * (2 * 96 * 256 + 256 * 256)) < 1.1


def _manifest(path: Path) -> bytes:
    """The JSON in the file, also of a package that this machine does not run."""
    contents = path.read_bytes()
    return contents[contents.index(b'{\n "format"') : contents.index(b"\n}") + 2]


def test_inspect_takes_older_manifests(capsys: Capture) -> None:
    package_commands._print_kernels(["add (1 nodes)"])
    assert "add (1 nodes)          ?          ?" in capsys.readouterr().out


def test_run_of_a_package(package: Path, tmp_path: Path, capsys: Capture) -> None:
    x = numpy.random.default_rng(0).standard_normal((5, 8)).astype(numpy.float32)
    numpy.savez(tmp_path / "in.npz", x=x)
    shown = told(
        capsys, "run", package, "--inputs", tmp_path / "in.npz", "--outputs", tmp_path / "out.npz"
    )
    assert shown.startswith("output0: float32 [5, 3] from 0.")
    with torch.no_grad():
        expected = Net()(torch.from_numpy(x)).numpy()
    numpy.testing.assert_allclose(
        numpy.load(tmp_path / "out.npz")["output0"], expected, rtol=1e-5, atol=1e-6
    )


def test_run_makes_inputs_up(package: Path, capsys: Capture) -> None:
    shown = told(capsys, "run", package, "--size", "batch=7")
    assert "size batch: 7\ninput x: f32 [7, 8], made up\noutput0: float32 [7, 3]" in shown
    assert told(capsys, "run", package, "--size", "batch=7") == shown
    assert told(capsys, "run", package, "--size", "batch=7", "--seed", "1") != shown
    assert "size batch: 4" in told(capsys, "run", package)


def test_bench_of_a_package(package: Path, capsys: Capture) -> None:
    assert "ms a call (median of" in told(capsys, "bench", package, "--seconds", "0.01")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--size", "batch=17"], "size batch: found 17, expected 1 to 16"),
        (["--size", "length=2"], "size length: the model has no such size; those that vary: batch"),
        (["--size", "batch=x"], "--size batch: found x, expected a number"),
        (["--size", "batch"], "--size: found 'batch', expected NAME=VALUE"),
        (["--inputs", "none.npz"], "none.npz: no .npz file of arrays"),
        (["--inputs", __file__], "no .npz file of arrays"),
        (["--threads", "0"], "--threads: found 0, expected at least 1"),
    ],
)
def test_run_refuses(arguments: list[str], message: str, package: Path, capsys: Capture) -> None:
    assert message in told(capsys, "run", package, *arguments, status=1)


def test_run_refuses_arrays_that_do_not_fit(package: Path, tmp_path: Path, capsys: Capture) -> None:
    given = tmp_path / "in.npz"
    numpy.savez(given, y=1)
    assert "no array 'x'; found y" in told(capsys, "run", package, "--inputs", given, status=1)
    numpy.savez(given, x=numpy.ones((2, 8)))
    assert "found dtype float64" in told(capsys, "run", package, "--inputs", given, status=1)
    numpy.savez(given, x=numpy.ones((2, 9), numpy.float32))
    assert "input x" in told(capsys, "run", package, "--inputs", given, status=1)
    assert "no such file" in told(capsys, "run", tmp_path / "none.mlcc", status=1)
    assert "unrecognized arguments: --what" in refused(capsys, "run", package, "--what")
    (tmp_path / "x.mlcc").write_text("no package" * 10)
    assert "no package of mlcc" in told(capsys, "bench", tmp_path / "x.mlcc", status=1)


def test_export_of_onnx(onnx_file: Path, tmp_path: Path, capsys: Capture) -> None:
    made = tmp_path / "made.mlcc"
    shown = told(capsys, "export", onnx_file, made, "--size", "batch=1:8", "--target", "x86-64")
    assert shown.startswith(f"{made}: ") and "largest error" in shown
    x = numpy.random.default_rng(0).standard_normal((8, 8)).astype(numpy.float32)
    bias = numpy.array(0.5, numpy.float32)
    numpy.savez(tmp_path / "in.npz", x=x, bias=bias)
    found = []
    for file in (made, onnx_file):
        told(capsys, "run", file, "--inputs", tmp_path / "in.npz", "--outputs", tmp_path / "o.npz")
        found.append(next(iter(numpy.load(tmp_path / "o.npz").values())))
    with torch.no_grad():
        expected = mlcc.onnx.load(onnx_file)(torch.from_numpy(x), torch.from_numpy(bias)).numpy()
    for one in found:
        numpy.testing.assert_allclose(one, expected, rtol=1e-5, atol=1e-5)


def test_export_with_fixed_sizes_and_constants(
    onnx_file: Path, tmp_path: Path, capsys: Capture
) -> None:
    made = tmp_path / "made.mlcc"
    options = ["--size", "batch=3", "--constant", "bias=2.0", "--no-check", "--threads", "2"]
    assert "largest error" not in told(capsys, "export", onnx_file, made, *options)
    package = mlcc.load(made)
    assert [info.sizes for info in package.inputs] == [(3, 8)] and package.manifest["threads"] == 2
    assert package.run([torch.zeros(3, 8)])[0].eq(2).all()


def test_export_of_other_forms(onnx_file: Path, tmp_path: Path, capsys: Capture) -> None:
    fixed = ["--size", "batch=3"]
    told(capsys, "export", onnx_file, tmp_path / "net", *fixed, "--format", "bundle")
    assert "int net_run(" in (tmp_path / "net.h").read_text()
    assert (tmp_path / "net.o").read_bytes()[:4] == b"\x7fELF"
    told(capsys, "export", onnx_file, tmp_path / "net.mlcc", *fixed, "--refit")
    assert mlcc.load(tmp_path / "net.mlcc").weights
    shown = told(capsys, "inspect", tmp_path / "net.mlcc")
    assert "bytes of recipes" in shown and "stack" in shown


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "the model leaves these sizes open: batch\n  remedy: --size batch=1, or"),
        (["--size", "length=2"], "the model leaves no size length open; those that are: batch"),
        (["--size", "batch=2:1"], "expected MIN <= USUAL <= MAX"),
        (["--size", "batch=a"], "expected SIZE, MIN:MAX or MIN:MAX:USUAL"),
        (["--size", "batch=2", "--constant", "z=1"], "the model has no input z"),
        (["--size", "batch=2", "--constant", "bias=a"], "--constant bias: found 'a'"),
        (["--size", "batch=2", "--target", "vax"], "vax"),
        (["--size", "batch=2", "--threads", "0"], "found 0 threads"),
    ],
)
def test_export_refuses(
    options: list[str], message: str, onnx_file: Path, tmp_path: Path, capsys: Capture
) -> None:
    made = tmp_path / "made.mlcc"
    assert message in told(capsys, "export", onnx_file, made, *options, status=1)
    assert not made.exists()


def test_export_of_a_saved_program(tmp_path: Path, capsys: Capture) -> None:
    x = torch.randn(4, 8)
    program = torch.export.export(
        Net().eval(), (x,), dynamic_shapes=({0: Dim("batch", min=1, max=16)},)
    )
    torch.export.save(program, tmp_path / "m.pt2")
    assert "largest error" in told(capsys, "export", tmp_path / "m.pt2", tmp_path / "m.mlcc")
    with torch.no_grad():
        torch.testing.assert_close(mlcc.load(tmp_path / "m.mlcc")(x), Net()(x))
    message = told(capsys, "export", tmp_path / "m.pt2", "m.mlcc", "--size", "batch=2", status=1)
    assert "a .pt2 has its sizes" in message
    assert "neither a model of ONNX nor" in told(capsys, "export", __file__, "m.mlcc", status=1)
    assert "no such file" in told(capsys, "export", "none.onnx", "m.mlcc", status=1)
    assert "the following arguments are required" in refused(capsys, "export", "m.pt2")


def test_inspect_and_bench_of_onnx(onnx_file: Path, tmp_path: Path, capsys: Capture) -> None:
    shown = told(capsys, "inspect", onnx_file)
    for row in (r"opsets +ai.onnx 17", r"x: f32 \[batch, 8\]", r"weights +96", r"MatMul, 1 times"):
        assert re.search(row, shown)
    shown = told(capsys, "bench", onnx_file, "--seconds", "0.01", "--size", "batch=2")
    assert "mlcc: " in shown and "ONNX Runtime" in shown
    (tmp_path / "x.onnx").write_bytes(b"\xff\xff")
    assert "not a model of ONNX" in told(capsys, "inspect", tmp_path / "x.onnx", status=1)


def test_no_traceback_from_the_shell(package: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "mlcc", "run", str(package), "--size", "batch=99"],
        cwd=Path(mlcc.__file__).parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (
        result.returncode == 1 and result.stderr == "mlcc: size batch: found 99, expected 1 to 16\n"
    )
