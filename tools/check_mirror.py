#!/usr/bin/env python3
"""Check that the tests mirror the sources: each pass, each folder of csrc or tools and each module has its tests."""

import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Folder of csrc -> where its tests and those of the folders in it are, when not in tests/cpp/<folder>.
TESTED_ELSEWHERE = {
    "lower": "tests/cpp/lower",
    "python": "tests/python",
    "graph/passes": "tests/lit/graph/passes",
    "loop/passes": "tests/lit/loop/passes",
}

# Sources in a folder of passes that are not passes.
NOT_A_PASS = {"pipeline", "passes", "registry"}

# Python module -> the test file that covers it, when not tests/python/test_<module>.py.
COVERED_BY = {
    "__init__": "test_package.py",
    "__main__": "test_package.py",
    "_autoload": "test_package.py",
    "_build_info": "test_package.py",
    "_channels": "test_package.py",
    "_errors": "test_package.py",
    "_fx_creation": "test_fx_import.py",
    "_fx_extern": "test_fx_import.py",
    "_fx_handlers": "test_fx_import.py",
    "_fx_index_maps": "test_fx_import.py",
    "_fx_padding": "test_fx_windows.py",
    "_fx_pointwise": "test_fx_import.py",
    "_fx_reductions": "test_fx_import.py",
    "_fx_sizes": "test_fx_import.py",
    "_fx_types": "test_fx_import.py",
    "_jit_guards": "test_jit.py",
    "_load": "test_package.py",
    "_op_table": "test_fx_import.py",
    "_reads": "test_jit.py",
    "_recompiles": "test_backend.py",
    "_recompute": "test_autograd.py",
    "_reproducer": "test_backend.py",
    "_result_views": "test_in_place.py",
    "_sharing": "test_torch_caches.py",
    "_torch_compat": "test_backend.py",
    "_torch_sizes": "test_fx_import.py",
    "_version": "test_package.py",
    "cli": "test_package.py",
    "config": "test_package.py",
    "decompositions": "test_fx_import.py",
    "logging": "test_package.py",
}


def missing_passes() -> Iterator[str]:
    for layer in ("graph", "loop"):
        passes = ROOT / "csrc" / layer / "passes"
        for source in sorted(passes.rglob("*.cpp")):
            if source.stem in NOT_A_PASS:
                continue
            place = source.parent.relative_to(passes)
            folder = ROOT / "tests" / "lit" / layer / "passes" / place
            if not list(folder.glob(f"{source.stem}*.mlcc")):
                yield f"{source.relative_to(ROOT)}: no {folder.relative_to(ROOT)}/{source.stem}*.mlcc"


def missing_folders() -> Iterator[str]:
    csrc = ROOT / "csrc"
    for folder in sorted({path.parent for path in csrc.rglob("*.cpp")}):
        name = folder.relative_to(csrc).as_posix()
        outer = [folder for folder in TESTED_ELSEWHERE if f"{name}/".startswith(f"{folder}/")]
        wanted = TESTED_ELSEWHERE[max(outer)] if outer else f"tests/cpp/{name}"
        places = [ROOT / wanted, ROOT / wanted.replace(name, name.replace("/", "_"))]
        if not any(place.is_dir() and any(place.iterdir()) for place in places):
            yield f"csrc/{name}: no tests in {wanted}"


def missing_tools() -> Iterator[str]:
    """A tool that is a folder has its tests in tests/cpp/<folder>."""
    for folder in sorted({path.parent for path in (ROOT / "tools").glob("*/*.cpp")}):
        if not list((ROOT / "tests" / "cpp" / folder.name).glob("*_test.cpp")):
            yield f"tools/{folder.name}: no tests in tests/cpp/{folder.name}"


def missing_modules() -> Iterator[str]:
    tests = ROOT / "tests" / "python"
    for path in sorted((ROOT / "mlcc").rglob("*.py")):
        module = path.stem
        wanted = COVERED_BY.get(module, f"test_{module.lstrip('_')}.py")
        if not (tests / wanted).exists():
            yield f"{path.relative_to(ROOT)}: no tests/python/{wanted}"


def main() -> int:
    found = [*missing_passes(), *missing_folders(), *missing_tools(), *missing_modules()]
    for problem in found:
        print(problem)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
