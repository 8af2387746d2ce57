"""The checks of the source: they find what they are for, and nothing in right code."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("path", "quoted", "name"),
    [
        ("graph/graph.h", True, "loop/ir.h"),
        ("loop/ir.cpp", True, "graph/graph.h"),
        ("runtime/kernel.h", True, "loop/ir.h"),
        ("support/error.cpp", True, "types/dtype.h"),
        ("driver/driver.cpp", True, "python/module.h"),
        ("driver/driver.cpp", True, "codegen/cpu/emit.h"),
        ("codegen/backend.cpp", False, "llvm/IR/Module.h"),
        ("codegen/cpu/client.cpp", False, "llvm/IR/Module.h"),
        ("codegen/cuda/driver.cpp", False, "cuda.h"),
        ("runtime/executable.cpp", False, "ATen/ATen.h"),
        ("graph/graph.cpp", True, "graph.h"),
        ("graph/graph.cpp", False, "support/error.h"),
        ("graph/passes/layout/lay_pads.cpp", True, "graph/passes/attention/attention.h"),
        ("lower/element/formula.cpp", True, "lower/reductions/rows.h"),
        ("graph/passes/simplify/sub/a.cpp", True, "graph/passes/attention/attention.h"),
        ("python/process/options.cpp", True, "python/run/torch_host.h"),
    ],
)
def test_layers_refuse(path: str, quoted: bool, name: str) -> None:
    assert load("check_layers").check_include(path, quoted, name)


@pytest.mark.parametrize(
    ("path", "quoted", "name"),
    [
        ("graph/passes/fold.cpp", True, "graph/graph.h"),
        ("graph/graph.cpp", True, "support/error.h"),
        ("lower/lower.cpp", True, "fusion/fusion.h"),
        ("driver/driver.cpp", True, "codegen/cpu/api.h"),
        ("codegen/cpu/emit.cpp", False, "llvm/IR/Module.h"),
        ("python/module.cpp", False, "torch/csrc/utils/pybind.h"),
        ("driver/version.cpp", True, "mlcc_build_id.h"),
        ("support/hash.cpp", False, "xxhash.h"),
        ("graph/passes/attention/attention.cpp", True, "graph/passes/contractions/contractions.h"),
        ("graph/passes/pipeline.cpp", True, "graph/passes/attention/attention.h"),
        ("lower/reductions/rows.cpp", True, "lower/context.h"),
    ],
)
def test_layers_allow(path: str, quoted: bool, name: str) -> None:
    assert load("check_layers").check_include(path, quoted, name) is None


def test_a_new_folder_needs_a_row() -> None:
    tool = load("check_layers")
    assert tool.has_row("graph/passes/layout/lay_pads.cpp")
    assert tool.has_row("graph/passes/pipeline.cpp")
    assert tool.has_row("codegen/cpu/jit.cpp")
    assert not tool.has_row("graph/passes/more/one.cpp")


def test_circles_of_imports() -> None:
    tool = load("check_layers")
    assert not list(tool.circles({"a": {"b"}, "b": {"c"}, "c": set()}))
    (problem,) = tool.circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}})
    assert "a, b, c, d" in problem or "b, c" in problem
    assert tool.module_imports()["mlcc.capture.jit"] >= {"mlcc.capture.calls", "mlcc.config"}


@pytest.mark.parametrize(
    ("comment", "figures"),
    [
        ("18 streams 20.0, 18.8; of 8 panels 4 KB at a time 500 MB 16.4", 3),
        ("takes 2 ms to compile, 0.9 to 1.4 of a library's time", 3),
        ("3 times as fast as 40 GB/s", 2),
        ("of torch 2.13 and LLVM 19.1: rows of 64 elements, from 0.0 to 1.0", 0),
    ],
)
def test_figures_in_comments(comment: str, figures: int) -> None:
    tool = load("check_comments")
    assert tool.count_figures(comment) == figures
    text = f"int x;\n// {comment[:20]}\n// {comment[20:]}\nint y;  // no part of it\n"
    (first, _), _ = tool.cpp_comments(text)
    assert first == 2
    assert [line for line, _ in tool.python_comments(f"x = 1\n# {comment}\n")] == [2]


@pytest.mark.parametrize(
    "line",
    [
        "from torch._dynamo import x",
        "import torch._C",
        "from torch import _C",
        "if True:\n  from torch.fx._x import y",
        "torch.utils._pytree.tree_flatten(x)",
        "isinstance(x, torch._ops.OpOverload)",
    ],
)
def test_private_torch(line: str) -> None:
    assert list(load("check_layers").private_torch_uses(line))


@pytest.mark.parametrize(
    "line",
    [
        "from torch.fx import Graph",
        "torch.ops.aten._softmax.default(x)",
        "torch.tensor(1)._base",
        "node.target._schema",
        "text = 'torch._dynamo'",
        "torch.__version__",
        "from . import _torch",
    ],
)
def test_what_is_no_private_part_of_torch(line: str) -> None:
    assert not list(load("check_layers").private_torch_uses(line))


CPP = """\
// a comment with { and ( in it
namespace mlcc {
struct Pair {
  int sum() const { return a + b; }
  int a = 0, b = 0;
};

int kTable[] = {1, 2, 3};

template <typename T>
int long_one(const T& value) {
  const char* text = "}";
  char brace = '{';
  auto inner = [&](int x) {
    return x;
  };
  return inner(1'000);
}
}  // namespace mlcc
"""


def test_sizes_of_cpp_functions() -> None:
    found = [(start, length) for start, length, _ in load("check_sizes").cpp_functions(CPP)]
    assert found == [(4, 1), (10, 9)]


def test_build_id_depends_on_names_and_bytes(tmp_path: Path) -> None:
    tool = load("build_id")
    (tmp_path / "a.cpp").write_text("x")
    first = tool.build_id(tmp_path)
    (tmp_path / "a.cpp").write_text("y")
    second = tool.build_id(tmp_path)
    (tmp_path / "a.cpp").rename(tmp_path / "b.cpp")
    third = tool.build_id(tmp_path)
    (tmp_path / "notes.txt").write_text("not a source")
    assert len({first, second, third}) == 3
    assert tool.build_id(tmp_path) == third
