"""Builds mlcc with CMake against the torch of the running Python. See pyproject.toml for the rest.

Environment: MLCC_CMAKE_ARGS (more arguments for CMake), MLCC_PREBUILT (a build folder; an editable install
then links its libraries instead of compiling).
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent

# What benchmarks/suite.py puts beside mlcc; none of them asks for a torch of its own.
PEERS = [
    "jax==0.10.*",
    "onnx==1.23.*",
    "onnxruntime==1.32.*",
    "onnxscript==0.7.*",
    "openvino==2026.4.*",
]


def torch_minor() -> str:
    """The minor version of the installed torch, for example 2.13, read without importing it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        sys.exit(
            "mlcc is built against the installed torch, and this build does not see one: use --no-build-isolation"
        )
    text = (Path(spec.submodule_search_locations[0]) / "version.py").read_text()
    match = re.search(r"__version__ = '(\d+\.\d+)\.", text)
    if match is None:
        sys.exit("mlcc: cannot read the version of the installed torch")
    return match.group(1)


class CMakeBuild(build_ext):
    """Runs CMake and installs the two shared libraries beside the Python files."""

    def run(self) -> None:
        inplace = self.inplace or getattr(self, "editable_mode", False)
        prebuilt = os.environ.get("MLCC_PREBUILT")
        if inplace and prebuilt:
            subprocess.check_call([sys.executable, str(ROOT / "tools" / "link_build.py"), prebuilt])
            return
        for tool in ("cmake", "ninja"):
            if shutil.which(tool) is None:
                sys.exit(
                    f"mlcc: {tool} not found; see README.md for the packages that a build needs"
                )
        build = Path(self.build_temp).resolve()
        prefix = ROOT if inplace else Path(self.build_lib).resolve()
        configure = ["cmake", "-S", str(ROOT), "-B", str(build), "-G", "Ninja"]
        configure += ["-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_FLAGS_RELEASE=-O2 -DNDEBUG"]
        configure += [
            "-DMLCC_WITH_TESTS=OFF",
            "-DMLCC_WERROR=OFF",
            f"-DPython_EXECUTABLE={sys.executable}",
        ]
        configure += os.environ.get("MLCC_CMAKE_ARGS", "").split()
        subprocess.check_call(configure)
        subprocess.check_call(["cmake", "--build", str(build), "--target", "python_package"])
        subprocess.check_call(
            ["cmake", "--install", str(build), "--prefix", str(prefix), "--strip"]
        )

    def get_outputs(self) -> list[str]:
        return []

    def get_output_mapping(self) -> dict[str, str]:
        return {}


if sys.platform != "linux":
    sys.exit("Windows and macOS are unsupported")

setup(
    ext_modules=[Extension("mlcc._C", sources=[])],
    cmdclass={"build_ext": CMakeBuild},
    install_requires=[f"torch=={torch_minor()}.*"],
    extras_require={"peers": PEERS},
)
