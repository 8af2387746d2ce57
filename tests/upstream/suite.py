"""PyTorch's own tests of TorchInductor, read from a copy of test/inductor/test_torchinductor.py.

The copy is somebody else's file and may be of another version than the torch that runs it. What it imports and this
torch lacks is replaced by something that skips the tests that it decorates.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import sys
import types
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from mlcc import config

MODULE = "test_torchinductor"

Backend = Callable[..., Any]


class _Missing:
    """Stands for a name that this torch does not have: skips what it decorates, and any test that calls it."""

    is_loading = False  # whether the file is being read, where a call makes a decorator

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and isinstance(args[0], (types.FunctionType, type)):
            return unittest.skip(f"{self._name} is missing")(args[0])
        if _Missing.is_loading:
            return self
        raise unittest.SkipTest(f"{self._name} is missing")

    def __getattr__(self, name: str) -> Any:
        return _Missing(f"{self._name}.{name}")


class _Imports(ast.NodeTransformer):
    """`from M import a` becomes an assignment that a missing name does not break."""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> Any:
        if node.level or node.module is None or not node.module.startswith("torch."):
            return node
        lines = [
            f"{alias.asname or alias.name} = _imported({node.module!r}, {alias.name!r})"
            for alias in node.names
        ]
        statements = ast.parse("\n".join(lines)).body
        return [ast.copy_location(one, node) for one in statements]


def _imported(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        pass
    try:
        return importlib.import_module(f"{module}.{name}")
    except ImportError:
        return _Missing(f"{module}.{name}")


def load(path: Path) -> type[unittest.TestCase]:
    """The tests of the file's common part, on the CPU."""
    tree = ast.parse(path.read_text())
    tree.body = [one for node in tree.body for one in _listed(_Imports().visit(node))]
    module = types.ModuleType(MODULE)
    module.__dict__.update(__file__=str(path), _imported=_imported)
    sys.modules[MODULE] = module
    with mock.patch.object(_Missing, "is_loading", True):
        exec(compile(ast.fix_missing_locations(tree), str(path), "exec"), module.__dict__)
    tests = type("CpuTests", (module.TestCase,), {"common": module.check_model, "device": "cpu"})
    module.copy_tests(module.CommonTemplate, tests, "cpu")
    sweep = getattr(module, "SweepInputs2", None)
    if sweep is not None:
        _add_sweep(tests, sweep, module)
    return tests


def _listed(node: Any) -> list[Any]:
    return node if isinstance(node, list) else [node]


def _add_sweep(tests: type, sweep: type, module: types.ModuleType) -> None:
    """The tests of all pairs of input layouts, which the file makes for each device."""
    made = type("SweepInputsCpuTest", (sweep,), {"gen": module.InputGen(10, "cpu")})
    made.populate()  # type: ignore[attr-defined]
    for name, function in vars(made).items():
        if name.startswith("test_"):
            setattr(tests, name, function)


def names(tests: type[unittest.TestCase]) -> list[str]:
    """Names of the tests, sorted."""
    return sorted(unittest.TestLoader().getTestCaseNames(tests))


@contextlib.contextmanager
def swapped(backend: Backend | None) -> Iterator[None]:
    """`backend` in the place of TorchInductor: compile_fx, the default of torch.compile, and the registry's entry.

    None leaves TorchInductor. Tests that ask Inductor for eager's random numbers ask mlcc for them too.
    """
    if backend is None:
        yield
        return

    def compile_fx(graph: torch.fx.GraphModule, inputs: Any, *_: Any, **__: Any) -> Any:
        inductor = importlib.import_module("torch._inductor.config")
        with config.patch(fallback_random=inductor.fallback_random):
            return backend(graph, inputs)

    with contextlib.ExitStack() as stack:
        for module in (importlib.import_module("torch._inductor.compile_fx"), sys.modules[MODULE]):
            stack.enter_context(mock.patch.object(module, "compile_fx", compile_fx))
        yield


def run_one(tests: type[unittest.TestCase], name: str, backend: Backend | None) -> dict[str, str]:
    """{"status": passed, skipped, failed or error, "reason": text} of one test."""
    result = unittest.TestResult()
    with swapped(backend):
        unittest.TestSuite([tests(name)]).run(result)
    if result.skipped:
        return {"status": "skipped", "reason": result.skipped[0][1]}
    for status, problems in (("failed", result.failures), ("error", result.errors)):
        if problems:
            return {"status": status, "reason": problems[0][1][-1500:]}
    if result.unexpectedSuccesses:
        return {"status": "failed", "reason": "passes though the file expects a failure"}
    return {"status": "passed", "reason": ""}
