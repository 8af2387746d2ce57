#!/usr/bin/env python3
"""Check that no function is longer than 100 lines and no file longer than 700, tests and tables (.def) apart."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_FUNCTION = 100
MAX_FILE = 700
FOLDERS = ("csrc", "tools", "mlcc", "benchmarks", "examples", "scripts")

# Comments, raw strings, strings and character literals of C++ (a digit separator is none of them).
NOISE = re.compile(
    r"""//[^\n]*|/\*.*?\*/|R"(?P<tag>[^()\s]*)\(.*?\)(?P=tag)"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'""",
    re.DOTALL,
)
SCOPE = re.compile(r"\b(namespace|class|struct|union|enum)\b|extern\s*$")


def cpp_functions(text: str) -> Iterator[tuple[int, int, str]]:
    """First line, length and head of each outermost function body, found by its braces."""
    text = NOISE.sub(lambda match: "\n" * match[0].count("\n"), text)
    text = re.sub(
        r"^[ \t]*#.*(?:\\\n.*)*$", lambda m: "\n" * m[0].count("\n"), text, flags=re.MULTILINE
    )
    line, head_line, head = 1, 1, ""
    stack: list[str | None] = []  # the head of a function, None for a scope
    start = 0
    for char in text:
        if char == "\n":
            line += 1
        inside = any(entry is not None for entry in stack)
        if char == "{":
            is_function = not inside and "(" in head and not SCOPE.search(head.split("(")[0])
            if is_function:
                start = head_line
            stack.append(" ".join(head.split()) if is_function or inside else None)
            head = ""
        elif char == "}":
            entry = stack.pop() if stack else None
            if entry is not None and not any(other is not None for other in stack):
                yield start, line - start + 1, entry
            head = ""
        elif char == ";":
            head = ""
        elif not inside:
            if not head.strip():
                head_line = line
            head += char


def python_functions(text: str) -> Iterator[tuple[int, int, str]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            yield node.lineno, node.end_lineno - node.lineno + 1, node.name


def problems() -> Iterator[str]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in {".cpp", ".h", ".py"}:
                continue
            text = path.read_text()
            relative = path.relative_to(ROOT)
            lines = text.count("\n")
            if lines > MAX_FILE:
                yield f"{relative}: {lines} lines; at most {MAX_FILE}"
            functions = python_functions(text) if path.suffix == ".py" else cpp_functions(text)
            for start, length, head in functions:
                if length > MAX_FUNCTION:
                    yield f"{relative}:{start}: {length} lines; at most {MAX_FUNCTION}: {head[:60]}"


def main() -> int:
    found = list(problems())
    for problem in found:
        print(problem)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
