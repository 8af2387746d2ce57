"""What the shared libraries export and need, and that a broken mlcc leaves `import torch` alone."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import mlcc

PACKAGE = Path(mlcc.__file__).parent
SYSTEM = {
    "libc.so.6",
    "libm.so.6",
    "libdl.so.2",
    "libpthread.so.0",
    "libstdc++.so.6",
    "libgcc_s.so.1",
    "ld-linux-x86-64.so.2",
}


def readelf(option: str, library: Path) -> str:
    return subprocess.run(
        ["readelf", "--wide", option, str(library)], check=True, capture_output=True, text=True
    ).stdout


def needed(library: Path) -> set[str]:
    lines = readelf("--dynamic", library).splitlines()
    return {line.split("[")[1].rstrip("]") for line in lines if "(NEEDED)" in line}


def exported(library: Path) -> set[str]:
    names = set()
    for line in readelf("--dyn-syms", library).splitlines():
        columns = line.split()
        if len(columns) < 8 or columns[4] not in ("GLOBAL", "WEAK", "UNIQUE"):
            continue
        if columns[6] not in ("UND", "ABS"):
            names.add(columns[7].split("@")[0])
    return names


def core_library() -> Path:
    found = sorted(PACKAGE.glob("_C.*.so"))
    assert len(found) == 1, found
    return found[0]


def llvm_library() -> Path:
    library = PACKAGE / "libmlcc_llvm.so"
    if not library.exists():
        pytest.skip("built without LLVM")
    return library


def test_llvm_library_exports_three_names() -> None:
    names = {"mlcc_llvm_api", "__jit_debug_register_code", "__jit_debug_descriptor"}
    assert exported(llvm_library()) == names


def test_llvm_library_needs_only_the_libraries_of_every_system() -> None:
    assert needed(llvm_library()) <= SYSTEM - {"libstdc++.so.6"}


def test_core_exports_its_init_function_only() -> None:
    assert exported(core_library()) == {"PyInit__C"}


def test_core_needs_three_libraries_of_torch() -> None:
    torch_libraries = {"libtorch_python.so", "libtorch_cpu.so", "libc10.so"}
    assert needed(core_library()) - SYSTEM <= torch_libraries


def test_import_torch_without_core(tmp_path: Path) -> None:
    ignore = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(PACKAGE, tmp_path / "mlcc", ignore=ignore)
    info = tmp_path / "mlcc-0.0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mlcc\nVersion: 0.0.1\n")
    (info / "entry_points.txt").write_text(
        "[torch.backends]\nmlcc = mlcc.torch_private.autoload:autoload\n"
    )
    code = (
        "import sys\n"
        "sys.meta_path[:] = [f for f in sys.meta_path if '__editable__' not in repr(f)]\n"
        "import torch, mlcc\n"
        "assert mlcc.__file__.startswith(sys.argv[1]), mlcc.__file__\n"
        "assert 'mlcc.torch_private.autoload' in sys.modules\n"
        "print(torch.ones(2).sum().item())\n"
        "try: mlcc.cache_info()\n"
        "except mlcc.Error as error: print(error)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    first, second = result.stdout.splitlines()
    assert first == "2.0"
    assert second.startswith("the compiled core cannot be loaded")
    assert result.stderr == ""
