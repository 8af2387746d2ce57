"""Run the test suite of the package onnx through mlcc.onnx.Backend and compare with the list of known misses.

usage: run.py [--compile] [--share=N] [--filter=REGEX] [--write]
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import unittest
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MISSES = Path(__file__).parent / "misses.txt"

# Codes of element types that the second count leaves out: strings, floats of 8 bits and what is smaller than a byte.
_RARE_TYPES = {8, *range(17, 27)}


def plain_names() -> set[str]:
    """Node cases without rare types, sequences, optionals, ai.onnx.ml and training."""
    from onnx.backend.test.loader import load_model_tests

    found = set()
    for case in load_model_tests(kind="node"):
        graph = case.model.graph
        types = [value.type for value in (*graph.input, *graph.output)]
        is_rare = any(
            t.tensor_type.elem_type in _RARE_TYPES or not t.HasField("tensor_type") for t in types
        )
        if not is_rare and not any("ml" in n.domain or "training" in n.domain for n in graph.node):
            found.add(case.name)
    return found


def known_misses() -> dict[str, str]:
    lines = MISSES.read_text().splitlines() if MISSES.exists() else []
    return dict(line.split("\t", 1) for line in lines if line)


def cases(backend: Any) -> Iterator[tuple[str, str, unittest.TestCase]]:
    """Group, name and case, CPU alone."""
    import onnx.backend.test

    for group, kind in onnx.backend.test.BackendTest(backend, __name__).test_cases.items():
        for name in sorted(vars(kind)):
            if name.startswith("test_") and name.endswith("_cpu"):
                yield (
                    group.removeprefix("OnnxBackend").removesuffix("Test"),
                    name.removesuffix("_cpu"),
                    kind(name),
                )


def failure(case: unittest.TestCase) -> str | None:
    import torch

    torch.manual_seed(0)  # cases of random ops must not pass by chance now and then
    result = unittest.TestResult()
    case.run(result)
    problems = [text for _, text in result.failures + result.errors]
    problems += [f"skipped: {reason}" for _, reason in result.skipped]
    if not problems:
        return None
    if "AssertionError" in problems[0]:
        return "other values: " + " ".join(problems[0].split("AssertionError", 1)[1].split())[:120]
    return " ".join(problems[0].strip().splitlines()[-1].split())[:160]


def compiled_backend() -> Any:
    import torch

    import mlcc

    def compiler(module: Any) -> Any:
        torch.compiler.reset()
        return torch.compile(module, backend="mlcc")

    return type("CompiledBackend", (mlcc.onnx.Backend,), {"compiler": staticmethod(compiler)})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--compile", action="store_true", help="through torch.compile(backend='mlcc')"
    )
    parser.add_argument("--share", type=int, default=1, help="every Nth case")
    parser.add_argument("--filter", default="", help="cases whose names have this pattern")
    parser.add_argument("--write", action="store_true", help="write the list of misses")
    options = parser.parse_args()
    warnings.simplefilter("ignore")

    import os

    import mlcc

    found: dict[str, str] = {}
    passed: Counter[str] = Counter()
    total: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ONNX_HOME"] = folder  # onnx keeps what it makes of its models there
        backend = compiled_backend() if options.compile else mlcc.onnx.Backend
        plain = plain_names()
        chosen = [c for c in cases(backend) if re.search(options.filter, c[1])][:: options.share]
        for group, name, case in chosen:
            groups = [group, "all"]
            if name in plain:
                groups.append("NodeModel without rare types")
            total.update(groups)
            reason = failure(case)
            if reason is None:
                passed.update(groups)
            else:
                found[name] = reason
    known = known_misses()
    for group in total:
        print(f"{group}: {passed[group]} of {total[group]}")
    if options.write:
        lines = [f"{name}\t{known.get(name, reason)}\n" for name, reason in sorted(found.items())]
        MISSES.write_text("".join(lines))
        return 0
    ran = {name for _, name, _ in chosen}
    for name in sorted(set(known) & ran - set(found)):
        print(f"passes now: {name}")
    unexpected = sorted(set(found) - set(known))
    for name in unexpected:
        print(f"FAILED {name}: {found[name]}")
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
