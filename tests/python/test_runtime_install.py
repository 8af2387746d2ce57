"""The C runtime as it is installed for programs: found by CMake and pkg-config, shared and static."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLES = ROOT / "examples" / "packages"

TOOLS = ("cmake", "ninja", "g++", "gcc")

pytestmark = pytest.mark.skipif(
    any(shutil.which(tool) is None for tool in TOOLS), reason=f"needs {', '.join(TOOLS)}"
)


def run(*command: object, **environment: str) -> str:
    result = subprocess.run(
        [str(one) for one in command],
        env={**os.environ, **environment},
        check=False,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("installed")
    run(ROOT / "scripts" / "install_runtime.sh", folder / "first")
    (folder / "first").rename(folder / "prefix")  # what is installed may be moved
    yield folder / "prefix"


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of the example's package and image, and what the example is to print."""
    folder = tmp_path_factory.mktemp("classifier")
    shown = run(sys.executable, EXAMPLES / "classifier.py", folder, PYTHONPATH=str(ROOT))
    return folder, shown.splitlines()[-1] + "\n"


def _check(program: Path, classifier: tuple[Path, str], library_path: Path | None) -> None:
    """It prints the class, and asks for the shared library only where it is to."""
    folder, expected = classifier
    dynamic = run("readelf", "-dW", program)
    assert ("libmlcc_runtime.so.1" in dynamic) == (library_path is not None)
    environment = {} if library_path is None else {"LD_LIBRARY_PATH": str(library_path)}
    shown = run(program, folder / "classifier.mlcc", folder / "image.f32", **environment)
    assert shown == expected


@pytest.mark.parametrize("target", ["mlcc::runtime", "mlcc::runtime_static"])
def test_cmake_finds_it(
    target: str, prefix: Path, classifier: tuple[Path, str], tmp_path: Path
) -> None:
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16)\n"
        "project(classify LANGUAGES C)\n"
        "find_package(mlcc_runtime 0.1 REQUIRED CONFIG)\n"
        f"add_executable(classify {EXAMPLES}/classify.c)\n"
        f"target_link_libraries(classify PRIVATE {target})\n"
    )
    build = tmp_path / "build"
    run("cmake", "-G", "Ninja", "-S", tmp_path, "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", build)
    is_shared = target == "mlcc::runtime"
    _check(build / "classify", classifier, prefix / "lib" if is_shared else None)


@pytest.mark.skipif(shutil.which("pkg-config") is None, reason="needs pkg-config")
@pytest.mark.parametrize("kind", ["shared", "static"])
def test_pkg_config_finds_it(
    kind: str, prefix: Path, classifier: tuple[Path, str], tmp_path: Path
) -> None:
    (found,) = prefix.glob("lib*/**/pkgconfig")
    options = ["--static"] if kind == "static" else []
    asked = ["pkg-config", *options, "--cflags", "--libs", "mlcc_runtime"]
    flags = run(*asked, PKG_CONFIG_PATH=str(found))
    if kind == "static":
        flags = flags.replace("-lmlcc_runtime", "-l:libmlcc_runtime.a")
    run("gcc", "-std=c11", EXAMPLES / "classify.c", "-o", tmp_path / "classify", *flags.split())
    _check(tmp_path / "classify", classifier, found.parent if kind == "shared" else None)


def test_what_is_installed(prefix: Path) -> None:
    (library,) = prefix.glob("lib*/**/libmlcc_runtime.so.[0-9].[0-9]*")
    names = {path.name for path in prefix.rglob("*") if not path.is_dir()}
    assert names == {
        *("libmlcc_runtime.so", "libmlcc_runtime.so.1", library.name, "libmlcc_runtime.a"),
        *("mlcc_runtime.h", "mlcc_runtime.hpp", "mlcc_runtime.pc"),
        *("mlcc_runtime-config.cmake", "mlcc_runtime-config-version.cmake"),
    }
    assert (library.parent / "libmlcc_runtime.so.1").resolve() == library
    assert "Library soname: [libmlcc_runtime.so.1]" in run("readelf", "-dW", library)
    shown = run("readelf", "--dyn-syms", "-W", library)
    exported = set(re.findall(r" (\w+)@@MLCC_1", shown))
    assert {"mlcc_package_open", "mlcc_run", "mlcc_context_create"} <= exported
    assert not any(
        str(prefix.parent / "first") in path.read_text() for path in prefix.rglob("*.[pc][cm]*")
    )
