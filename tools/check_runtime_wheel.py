#!/usr/bin/env python3
"""Checks the wheel mlcc-runtime: what is in it, what its library needs, and that it runs a package with numpy alone.

usage: check_runtime_wheel.py RUNTIME_WHEEL WHEEL. WHEEL is that of mlcc, which writes the package, in an environment
that sees the torch of this Python. The other one has no torch, but a link to this Python's numpy.
"""

import ast
import json
import re
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

from check_wheel import too_new, wrong_needs

WANTED = {
    *(
        f"mlcc_runtime/{name}.py"
        for name in ("__init__", "__main__", "calls", "library", "model", "tensors")
    ),
    *("mlcc_runtime/trees.py", "mlcc_runtime/py.typed", "mlcc_runtime/libmlcc_runtime.so"),
    *("mlcc_runtime/include/mlcc_runtime.h", "mlcc_runtime/include/mlcc_runtime.hpp"),
}
MOST_KIB = 250
OLDEST_PYTHON = (3, 10)

WRITE = """
import sys, torch, mlcc, mlcc_runtime
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval()
dims = ({0: torch.export.Dim("batch", min=1, max=8)},)
mlcc.export(model, (torch.ones(2, 4),), sys.argv[1], target="x86-64", dynamic_shapes=dims)
x = torch.arange(12.0).view(3, 4)
print(mlcc.load(sys.argv[1])(x).tolist())
assert mlcc_runtime.load(sys.argv[1])(x.numpy()).tolist() == mlcc.load(sys.argv[1])(x).tolist()
"""
RUN = """
import json, sys, numpy, mlcc_runtime
assert "torch" not in sys.modules and mlcc_runtime.__file__.startswith(sys.prefix)
model = mlcc_runtime.load(sys.argv[1])
print(json.dumps(model(numpy.arange(12, dtype="f4").reshape(3, 4)).tolist()))
try:
    model(numpy.ones((9, 4), "f4"))
except mlcc_runtime.PackageError as error:
    print(error)
"""


def strange_contents(wheel: Path) -> Iterator[str]:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        sources = {name: archive.read(name) for name in names if name.endswith(".py")}
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        required = re.findall(rb"^Requires-Dist: (.*)$", archive.read(metadata), re.M)
    for name in sorted(WANTED - names):
        yield f"{name} is missing"
    for name in sorted(names - WANTED):
        if not re.match(r"mlcc_runtime-[\d.]+\.dist-info/", name):
            yield f"{name} should not be there"
    if len(required) != 1 or not re.match(rb"numpy\b", required[0]):
        yield f"requires {required}, expected numpy alone"
    for name, text in sources.items():
        try:
            ast.parse(text, feature_version=OLDEST_PYTHON)
        except SyntaxError as error:
            yield f"{name} is not of Python {'.'.join(map(str, OLDEST_PYTHON))}: {error}"
    if not re.search(r"-py3-none-manylinux_\d+_\d+_\w+\.whl$", wheel.name):
        yield "its tag is not py3-none-manylinux"
    kib = wheel.stat().st_size / 1024
    if kib > MOST_KIB:
        yield f"{kib:.0f} KiB, expected at most {MOST_KIB}"


def environment(folder: Path, wheels: list[Path], seen: list[Path]) -> Path:
    """The Python of a new environment with these wheels, and links to these folders and files."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
    options = ["install", "--quiet", "--no-deps", "--no-index", *map(str, wheels)]
    subprocess.run([*pip, *options], check=True)
    packages = next((folder / "lib").glob("python3*")) / "site-packages"
    for path in seen:
        (packages / path.name).symlink_to(path)
    return python


def runs_of_wheel(runtime: Path, full: Path, folder: Path) -> Iterator[str]:
    import numpy
    import torch

    torch_path = folder / "torch.pth"
    torch_path.write_text(str(Path(torch.__file__).parent.parent) + "\n")
    writer = environment(folder / "full", [runtime, full], [torch_path])
    numpy_folder = Path(numpy.__file__).parent
    numpy_parts = [numpy_folder, *numpy_folder.parent.glob("numpy.libs")]
    bare = environment(folder / "bare", [runtime], numpy_parts)
    told = []
    for python, program in ((writer, WRITE), (bare, RUN)):
        result = subprocess.run(
            [python, "-c", program, folder / "model.mlcc"],
            env={"PATH": "/nonexistent", "HOME": str(folder)},
            cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if result.returncode != 0:
            yield f"it does not run:\n{result.stderr}"
            return
        told.append(result.stdout.splitlines())
    if json.loads(told[1][0]) != json.loads(told[0][0]):
        yield f"found {told[1][0]}, with torch {told[0][0]}"
    if told[1][1:] != ["size batch: found 9, expected 1 to 8"]:
        yield f"of a size that does not fit it says {told[1][1:]}"


def main() -> int:
    runtime, full = (Path(argument).resolve() for argument in sys.argv[1:])
    with tempfile.TemporaryDirectory(prefix="mlcc-wheel-") as name:
        folder = Path(name)
        with zipfile.ZipFile(runtime) as archive:
            archive.extractall(folder / "content")
        problems = [
            *strange_contents(runtime),
            *wrong_needs(folder / "content"),
            *too_new(folder / "content"),
            *runs_of_wheel(runtime, full, folder),
        ]
    for problem in problems:
        print(f"{runtime.name}: {problem}", file=sys.stderr)
    if not problems:
        print(
            f"{runtime.name}: {runtime.stat().st_size / 1024:.0f} KiB, runs a package with numpy alone"
        )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
