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
    ],
)
def test_layers_allow(path: str, quoted: bool, name: str) -> None:
    assert load("check_layers").check_include(path, quoted, name) is None


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
