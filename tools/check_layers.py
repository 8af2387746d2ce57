#!/usr/bin/env python3
"""Check that includes point downwards only, and that foreign headers and private torch stay in their places."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Folder of csrc -> the folders whose headers it may include, beside its own.
SEES = {
    "support": "",
    "types": "support",
    "graph": "types support",
    "loop": "types support",
    "runtime": "types support",
    "package": "runtime types support",
    "fusion": "graph types support",
    "schedule": "loop types support",
    "lower": "fusion graph schedule loop types support",
    "codegen": "schedule loop runtime types support",
    "driver": "lower fusion graph codegen schedule loop runtime types support",
    "python": "driver package runtime graph types support",
}

# Folder in a folder of csrc -> the folders beside it that it may see. What lies in the outer folder itself sees them
# all, and all of them see that.
SEES_BESIDE = {
    "graph/passes/simplify": "",
    "graph/passes/layout": "",
    "graph/passes/contractions": "layout",
    "graph/passes/attention": "contractions layout",
    "lower/axes": "",
    "lower/element": "axes",
    "lower/loops": "element axes",
    "lower/reductions": "loops element axes",
    "lower/contractions": "loops element axes",
    "lower/attention": "contractions loops element axes",
    "lower/scans_and_updates": "reductions loops element axes",
    "python/process": "",
    "python/tensors": "process",
    "python/build": "process",
    "python/run": "build tensors process",
    "python/call": "run build tensors process",
}

# Headers of others -> the only folders that may include them.
FOREIGN = [
    (re.compile(r"(llvm|llvm-c)/"), ["codegen/cpu"]),
    (re.compile(r"(torch|ATen|c10|pybind11)/|Python\.h$"), ["python"]),
    (re.compile(r"(cuda|nvrtc)\w*\.h$"), []),
]

# The only files of codegen/cpu that others may include; they name no LLVM header.
CPU_API = ("codegen/cpu/client.h", "codegen/cpu/api.h")

# The only Python folder that uses private parts of torch.
PRIVATE_TORCH = "mlcc/torch_private/"

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
PRIVATE_NAME = re.compile(r"torch(?!\.ops\.)(\.\w+)*\._(?!_)\w*(\.\w+)*")


def includes(path: Path) -> Iterator[tuple[int, bool, str]]:
    """Line number, whether in quotes, and name of each include."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match[1] == '"', match[2]


def check_include(path: str, quoted: bool, name: str) -> str | None:
    """What is wrong with an include of `name` in csrc/`path`, or None."""
    layer = path.split("/")[0]
    target = name.split("/")[0]
    if target in SEES:
        if not quoted:
            return f"<{name}>: our own headers are included in quotes"
        if target != layer and target not in SEES[layer].split():
            return f"{name}: {layer} may not see {target}"
        inside = path.startswith("codegen/cpu/")
        if name.startswith("codegen/cpu/") and name not in CPU_API and not inside:
            return f"{name}: from outside codegen/cpu only {' and '.join(CPU_API)} may be included"
        return check_beside(path, name)
    if quoted and name != "mlcc_build_id.h":
        return f'"{name}": write the path from csrc, or <> for a header of others'
    for pattern, folders in FOREIGN:
        if pattern.match(name):
            allowed = any(path.startswith(folder + "/") for folder in folders)
            client = re.match(r"codegen/cpu/(client|api)", path)
            if not allowed or client:
                return f"{name}: allowed only in {', '.join(folders) or 'no folder'}"
    return None


def check_beside(path: str, name: str) -> str | None:
    """What is wrong with an include of `name`, which is in the same layer as csrc/`path`, or None."""
    folder, target = row_of(path), row_of(name)
    if folder == target or folder is None or target is None:
        return None
    outer, _, beside = target.rpartition("/")
    if folder.rpartition("/")[0] == outer and beside not in SEES_BESIDE[folder].split():
        return f"{name}: {folder} may not see {target}"
    return None


def row_of(path: str) -> str | None:
    """The row of SEES_BESIDE that csrc/`path` lies under, at any depth."""
    return next((row for row in SEES_BESIDE if path.startswith(f"{row}/")), None)


def private_torch_uses(text: str) -> Iterator[tuple[int, str]]:
    """Line and name of each private part of torch that Python code imports or names; dispatcher ops are none."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            names = [ast.unparse(node)]
        else:
            continue
        for name in names:
            if PRIVATE_NAME.fullmatch(name):
                yield node.lineno, name


def has_row(path: str) -> bool:
    """Whether the folder of csrc/`path` has a row where those beside it have one."""
    folder = path.rpartition("/")[0]
    outers = {row.rpartition("/")[0] for row in SEES_BESIDE}
    is_inside = any(folder.startswith(f"{outer}/") for outer in outers)
    return not is_inside or folder in outers or row_of(path) is not None


def module_imports() -> dict[str, set[str]]:
    """Module of mlcc -> those that it imports, wherever in its text, for type checkers too."""
    modules = {}
    for path in sorted((ROOT / "mlcc").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text()
    found: dict[str, set[str]] = {}
    for module, text in modules.items():
        names: set[str] = set()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                above = module.split(".")[: -node.level] if node.level else []
                source = ".".join([*above, *filter(None, [node.module])])
                within = {f"{source}.{alias.name}" for alias in node.names}
                names.update(within & modules.keys() or {source})
        found[module] = names & modules.keys() - {module}
    return found


def circles(imports: dict[str, set[str]]) -> Iterator[str]:
    """Modules that import one another, as far as leaves go first."""
    left = {module: set(seen) for module, seen in imports.items()}
    while leaves := [module for module, seen in left.items() if not seen & left.keys()]:
        for module in leaves:
            del left[module]
    if left:
        yield f"mlcc: a circle of imports among {', '.join(sorted(left))}"


def problems() -> Iterator[str]:
    csrc = ROOT / "csrc"
    for path in sorted(p for p in csrc.rglob("*") if p.suffix in {".cpp", ".h", ".def"}):
        relative = path.relative_to(csrc).as_posix()
        if relative.split("/")[0] not in SEES or not has_row(relative):
            yield f"csrc/{relative}: its folder is not in the table of tools/check_layers.py"
            continue
        for number, quoted, name in includes(path):
            if quoted and name.endswith(".def") and "/" not in name:
                name = f"{Path(relative).parent.as_posix()}/{name}"
            problem = check_include(relative, quoted, name)
            if problem:
                yield f"csrc/{relative}:{number}: {problem}"
    yield from circles(module_imports())
    for path in sorted((ROOT / "mlcc").rglob("*.py")):
        relative = path.relative_to(ROOT).as_posix()
        if relative.startswith(PRIVATE_TORCH):
            continue
        for number, name in private_torch_uses(path.read_text()):
            yield f"{relative}:{number}: {name}: only {PRIVATE_TORCH} uses private parts of torch"


def main() -> int:
    found = list(problems())
    for problem in found:
        print(problem)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
