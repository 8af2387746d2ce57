"""Other builds and other versions of mlcc on the same caches."""

from __future__ import annotations

import ast
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from mlcc._load import load_core
from tests.caches.folders import At, Cases, empty_folder, variables
from tests.pool import Record

ROOT = Path(__file__).resolve().parent.parent.parent


def run(rng: random.Random, count: int, cases: Cases, at: At) -> Record:
    """Another build and another version of mlcc on the same caches: each finds what it stored, and nothing else."""
    faults: list[str] = []
    with empty_folder() as folder, empty_folder() as places:
        packages = {"this": ROOT}
        for name in ("build", "version")[:count]:
            packages[name] = _other_mlcc(places / name, name)
        order = list(packages)
        rng.shuffle(order)
        seen: set[str] = set()
        names: dict[str, Any] = {}
        for name in [*order, *order]:
            at(name)
            names[name], work = _work_of(packages[name], folder, cases, faults)
            if faults:
                break
            has_kernels = name in seen or (name != "build" and bool(seen & {"this", "version"}))
            found = [not work["compiled"], not work["traced"]]
            if found != [has_kernels, name in seen]:  # a kernel's key has the build alone
                faults.append(f"{name} after {[*seen]}: {work}")
            seen.add(name)
        if not faults and not _are_others(names):
            faults.append(f"the copies say that they are {names}")
    return {"faults": faults, "done": len(seen)}


def _are_others(names: dict[str, Any]) -> bool:
    """Whether the copies are what they are to be, by (version, build, code generator) of each."""
    own, build, version = names["this"], names["build"], names.get("version")
    differs = [one != other for one, other in zip(own, build, strict=True)]
    return differs == [False, True, True] and version in (None, ("99.0.0", *own[1:]))


def _other_mlcc(root: Path, what: str) -> Path:
    """A copy of mlcc that says that it is another build, or another version."""
    package = root / "mlcc"
    ignore = shutil.ignore_patterns(*([] if what == "build" else ["*.so"]))
    shutil.copytree(ROOT / "mlcc", package, ignore=ignore)
    if what == "version":
        for library in (ROOT / "mlcc").glob("*.so"):
            (package / library.name).symlink_to(library)
        (package / "_version.py").write_text('__version__ = "99.0.0"\n')
        return root
    own = load_core().build_id().encode()
    for library in package.glob("*.so"):
        library.write_bytes(_with_another_id(library.read_bytes(), own))
    return root


def _with_another_id(data: bytes, own: bytes) -> bytes:
    """Compilers may keep a text in pieces of eight bytes."""
    for place in range(0, len(own), 8):
        piece = own[place : place + 8]
        data = data.replace(piece, piece[::-1])
    return data


_VERSION = """
import sys
sys.path[:0] = [{package!r}, {root!r}]
import mlcc
from mlcc._load import load_core
assert mlcc.__file__.startswith({package!r}), mlcc.__file__
core = load_core()
print((mlcc.__version__, core.build_id(), core.cpu_info()["emitter"]))
from tests.caches import programs
faults = [programs.check(programs.Case(*case)) for case in {cases!r}]
print((list(filter(None, faults)), programs.work_done()))
"""


def _work_of(
    package: Path, folder: Path, cases: Cases, faults: list[str]
) -> tuple[Any, dict[str, int]]:
    """What a copy says that it is, and what a process of it compiles and traces."""
    code = _VERSION.format(
        package=str(package), root=str(ROOT), cases=[tuple(case) for case in cases]
    )
    environment = {**variables(folder), "PYTHONPATH": str(package)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=package
    )
    if done.returncode:
        faults.append(done.stderr[-2000:])
        return (), {}
    name, answer = map(ast.literal_eval, done.stdout.splitlines()[-2:])
    found, work = answer
    faults += found
    return name, work
