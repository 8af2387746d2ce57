#!/usr/bin/env python3
"""Checks a built wheel: what is in it, what its libraries need, and that it runs where there are no other programs.

usage: check_wheel.py WHEEL. The wheel is installed into an environment of its own, which sees the torch of this
Python but not a mlcc that may be installed beside it.
"""

import re
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WANTED = [
    r"mlcc/__init__\.py",
    r"mlcc/py\.typed",
    r"mlcc/_C\.pyi",
    r"mlcc/_C\.[\w-]+\.so",
    r"mlcc/libmlcc_llvm\.so",
    r"mlcc/libmlcc_runtime\.so",
    r"mlcc/include/mlcc_runtime\.h",
    r"mlcc/_build_info\.py",
    r"mlcc-[\d.]+\.dist-info/licenses/LICENSE",
    r"mlcc-[\d.]+\.dist-info/licenses/THIRD_PARTY\.md",
]
SYSTEM = {
    f"lib{name}" for name in ("c.so.6", "m.so.6", "dl.so.2", "pthread.so.0", "gcc_s.so.1")
} | {
    "libstdc++.so.6",
    "ld-linux-x86-64.so.2",
}
TORCH = {"libtorch_python.so", "libtorch_cpu.so", "libc10.so"}
MOST_MIB = 40
# Of the oldest systems that the wheel is for (docs/install.md).
NEWEST_SYMBOLS = {"GLIBC": (2, 34), "GLIBCXX": (3, 4, 29)}


def missing_and_strange(names: list[str]) -> Iterator[str]:
    for pattern in WANTED:
        if not any(re.fullmatch(pattern, name) for name in names):
            yield f"{pattern} is missing"
    for name in names:
        if not re.match(r"mlcc/|mlcc-[\d.]+\.dist-info/", name):
            yield f"{name} should not be there"


def wrong_metadata(text: str) -> Iterator[str]:
    required = [
        one
        for one in re.findall(r"^Requires-Dist: (.*)$", text, re.M)
        if not re.search(r"; extra == \"peers\"$", one)  # for benchmarks alone
    ]
    if len(required) != 1 or not re.fullmatch(r"torch==\d+\.\d+\.\*", required[0]):
        yield f"requires {required}, expected torch==<major>.<minor>.* alone"
    if "License-Expression: Apache-2.0" not in text:
        yield "the license expression is not Apache-2.0"


def wrong_needs(folder: Path) -> Iterator[str]:
    for library in folder.glob("*/*.so"):
        command = ["readelf", "--wide", "--dynamic", str(library)]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", output))
        allowed = SYSTEM | TORCH if library.name.startswith("_C.") else SYSTEM
        for name in sorted(needed - allowed):
            yield f"{library.name} needs {name}"
        for path in re.findall(r"\(R(?:UN)?PATH\).*\[(.*)\]", output):
            if not all(part.startswith("$ORIGIN/") for part in path.split(":")):
                yield f"{library.name} looks for libraries in {path}"


def too_new(folder: Path) -> Iterator[str]:
    """Symbols of a newer system than those that the wheel is for."""
    for library in folder.glob("*/*.so"):
        command = ["readelf", "--wide", "--version-info", str(library)]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        for kind, text in sorted(set(re.findall(r"Name: (GLIBC|GLIBCXX)_([\d.]+)", output))):
            version = tuple(map(int, text.split(".")))
            if version > NEWEST_SYMBOLS[kind]:
                yield f"{library.name} asks for {kind}_{text}"


def run_wheel(wheel: Path, folder: Path) -> Iterator[str]:
    venv.create(folder / "env", with_pip=False)
    python = folder / "env" / "bin" / "python"
    packages = next((folder / "env" / "lib").glob("python3*")) / "site-packages"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
    options = ["install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([*pip, *options], check=True)
    import torch

    (packages / "torch.pth").write_text(str(Path(torch.__file__).parent.parent) + "\n")
    environment = {"PATH": "/nonexistent", "HOME": str(folder), "MLCC_STRICT": "1"}
    program = str(ROOT / "tests" / "python" / "no_process.py")
    result = subprocess.run(
        [str(python), program],
        env=environment, cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines = result.stdout.splitlines()
    if result.returncode != 0:
        yield f"it does not run:\n{result.stderr}"
    elif not lines[-2].startswith(str(packages)):
        yield f"{lines[-2]} was run instead"
    elif lines[-1] != "[] 0.0 0":
        yield f"it started processes: {lines[-1]}"


def main() -> int:
    wheel = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory(prefix="mlcc-wheel-") as name:
        folder = Path(name)
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder / "content")
            names = archive.namelist()
        metadata = next((folder / "content").glob("*.dist-info/METADATA")).read_text()
        problems = [
            *missing_and_strange(names),
            *wrong_metadata(metadata),
            *wrong_needs(folder / "content"),
            *too_new(folder / "content"),
            *run_wheel(wheel, folder),
        ]
    mib = wheel.stat().st_size / 2**20
    if mib > MOST_MIB:
        problems.append(f"{mib:.1f} MiB, expected at most {MOST_MIB}")
    for problem in problems:
        print(f"{wheel.name}: {problem}", file=sys.stderr)
    if not problems:
        print(f"{wheel.name}: {mib:.1f} MiB, {len(names)} files, runs without any other program")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
