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

# Python module -> the test file that covers it, when not tests/python/test_<module>.py or test_fx_<module>.py.
COVERED_BY = {
    "__init__": "test_package.py",
    "__main__": "test_package.py",
    "_build_info": "test_package.py",
    "_channels": "test_package.py",
    "_environment": "test_nothing_silent.py",
    "_errors": "test_package.py",
    "_load": "test_package.py",
    "_version": "test_package.py",
    "capture/call_checks": "test_backend.py",
    "capture/calls": "test_jit_arguments.py",
    "capture/changes": "test_jit_recompiles.py",
    "capture/code_owners": "test_jit.py",
    "capture/eager_fallback": "test_nothing_silent.py",
    "capture/code_that_ran": "test_warm_start.py",
    "capture/compiled_graph": "test_backend.py",
    "capture/entries": "test_jit.py",
    "capture/frame_files": "test_warm_start.py",
    "capture/guards": "test_jit.py",
    "capture/held_values": "test_jit_recompiles.py",
    "capture/inductor_options": "test_default_backend.py",
    "capture/module_digest": "test_warm_start.py",
    "capture/modes": "test_nothing_silent.py",
    "capture/private_files": "test_cache_archive.py",
    "capture/reads": "test_jit.py",
    "capture/recompiles": "test_backend.py",
    "capture/reproducer": "test_backend.py",
    "capture/session": "test_backend.py",
    "capture/sharing": "test_torch_caches.py",
    "capture/trace_symbols": "test_symbols.py",
    "capture/trace_store": "test_warm_start.py",
    "capture/traced": "test_jit_state.py",
    "capture/traced_results": "test_jit_arguments.py",
    "cli": "test_package.py",
    "config": "test_package.py",
    "importer/context": "test_fx_import.py",
    "importer/eager_calls": "test_fx_eager.py",
    "importer/externs": "test_fx_import.py",
    "importer/fx_graph": "test_fx_import.py",
    "importer/handlers": "test_fx_import.py",
    "importer/ops/attention_gradients": "test_attention_ops.py",
    "gguf_blocks": "test_gguf.py",
    "importer/ops/gguf_weights": "test_gguf.py",
    "importer/ops/creation": "test_fx_import.py",
    "importer/ops/index_maps": "test_fx_import.py",
    "importer/ops/padding": "test_fx_windows.py",
    "importer/ops/pointwise": "test_fx_import.py",
    "importer/ops/reductions": "test_fx_import.py",
    "ir/op_table": "test_fx_import.py",
    "ir/sizes": "test_fx_import.py",
    "ir/types": "test_fx_import.py",
    "logging": "test_package.py",
    "opened_models": "test_package_commands.py",
    "onnx/backend": "test_onnx.py",
    "onnx/building": "test_onnx.py",
    "onnx/dtypes": "test_onnx.py",
    "onnx/loading": "test_onnx.py",
    "onnx/module": "test_onnx.py",
    "onnx/ops/attention": "test_onnx_microsoft.py",
    "onnx/ops/control_flow": "test_onnx.py",
    "onnx/ops/convolutions": "test_onnx.py",
    "onnx/ops/elementwise": "test_onnx.py",
    "onnx/ops/images": "test_onnx.py",
    "onnx/ops/indexing": "test_onnx.py",
    "onnx/ops/microsoft": "test_onnx_microsoft.py",
    "onnx/ops/normalization": "test_onnx.py",
    "onnx/ops/pooling": "test_onnx.py",
    "onnx/ops/quantization": "test_onnx.py",
    "onnx/ops/recurrent": "test_onnx.py",
    "onnx/ops/reductions": "test_onnx.py",
    "onnx/ops/shapes": "test_onnx.py",
    "onnx/ops/signals": "test_onnx.py",
    "onnx/ops/windows": "test_onnx.py",
    "onnx/program": "test_onnx.py",
    "onnx/reading": "test_onnx.py",
    "onnx/registry": "test_onnx.py",
    "onnx/sizes": "test_onnx.py",
    "packages/check": "test_export.py",
    "packages/loading": "test_export.py",
    "packages/program": "test_export.py",
    "runtime/__main__": "test_export.py",
    "runtime/library": "test_export.py",
    "runtime/model": "test_export.py",
    "runtime/tensors": "test_export.py",
    "runtime/trees": "test_export.py",
    "torch_private/exporting": "test_export.py",
    "rewrite/decompositions": "test_fx_import.py",
    "rewrite/complex_pairs": "test_split_complex.py",
    "rewrite/flex_attention": "test_fx_flex.py",
    "rewrite/inlining": "test_fx_expand.py",
    "rewrite/result_views": "test_in_place.py",
    "capture/aot_graph": "test_torch_caches.py",
    "capture/background": "test_tiers.py",
    "capture/eager_run": "test_tiers.py",
    "torch_private/settings": "test_jit_imports.py",
    "torch_private/aot": "test_torch_caches.py",
    "torch_private/aot_key": "test_warm_start.py",
    "torch_private/aot_metadata": "test_aliasing.py",
    "torch_private/aot_partition": "test_autograd.py",
    "torch_private/artifacts": "test_cache_archive.py",
    "torch_private/autoload": "test_package.py",
    "torch_private/control_flow": "test_onnx.py",
    "torch_private/dispatch": "test_fx_import.py",
    "torch_private/dynamo": "test_backend.py",
    "torch_private/frame_guards": "test_warm_start.py",
    "torch_private/frames": "test_warm_start.py",
    "torch_private/graph_source": "test_warm_start.py",
    "torch_private/inductor": "test_default_backend.py",
    "torch_private/stance": "test_stances.py",
    "torch_private/symints": "test_fx_import.py",
    "torch_private/trace_state": "test_jit_state.py",
    "torch_private/traced_code": "test_warm_start.py",
    "torch_private/tracing": "test_jit.py",
    "training/recompute": "test_autograd.py",
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
        if path.name == "__init__.py" and path.parent.name != "mlcc":
            continue  # one sentence
        module = path.relative_to(ROOT / "mlcc").with_suffix("").as_posix()
        usual = (f"test_{path.stem}.py", f"test_fx_{path.stem}.py")
        wanted = (COVERED_BY[module],) if module in COVERED_BY else usual
        if not any((tests / name).exists() for name in wanted):
            yield f"{path.relative_to(ROOT)}: no tests/python/{' or '.join(wanted)}"


def main() -> int:
    found = [*missing_passes(), *missing_folders(), *missing_tools(), *missing_modules()]
    for problem in found:
        print(problem)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
