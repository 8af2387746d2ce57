#!/usr/bin/env python3
"""Check that no comment or docstring of csrc and mlcc tells more than two measured figures.

Measurements belong to docs/decisions or beside the benchmark that repeats them; what a cost model compares with is a
named field or a named constant whose comment says what it means. Counted are decimal numbers and numbers with a unit of
time, of speed or a share ("3 ms", "40 GB/s", "15 %", "2 times"); of ranges and lists each number.
"""

import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MOST_FIGURES = 2

UNITS = r"[num\u00b5\u03bc]?s|cycles?|[KMGT]i?B(?:/s)?|[GT]FLOPS|%|percent|per cent|times|x"
NUMBER = r"(?<![\w.^*/-])\d[\d,]*(?:\.\d+)?"
# "0.86", "3 ms", "12x"; of "0.4 to 0.8 of" and "2, 3 and 4 times" each number counts.
FIGURE = re.compile(
    rf"{NUMBER} ?(?:{UNITS})(?![\w/])|{NUMBER}(?=(?:,| to| and| or) \d[\d.]* ?(?:{UNITS})(?![\w/]))"
    r"|(?<![\w.^])\d+\.\d+(?![\w.])"
)
CPP_COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|//([^\n]*)|/\*(.*?)\*/', re.DOTALL)
# Numbers that are no measurements: bounds and values of ranges, versions, sizes of memory by powers of two.
EXACT = re.compile(
    r"(?:[-+]|\bversion |\bCUDA |\bNVRTC |\btorch |\bPython |\bLLVM |\bABI )\d+\.\d+|\[\d+\.\d+, \d+\.\d+[\])]"
    r"|(?<!\d)[012]\.[05](?!\d)|\b\d+ ?[KMG]i?B\b(?!/s)"
)


def cpp_comments(text: str) -> Iterator[tuple[int, str]]:
    """First line and text of each comment; lines of // that follow one another are one."""
    start = last = 0
    block: list[str] = []
    for match in CPP_COMMENT.finditer(text):
        if match[0].startswith('"'):
            continue
        line = text.count("\n", 0, match.start()) + 1
        is_alone = not text[text.rfind("\n", 0, match.start()) + 1 : match.start()].strip()
        is_next = line == last + 1 and is_alone and match[1] is not None
        if block and not is_next:
            yield start, " ".join(block)
            block = []
        if not block:
            start = line
        block.append(match[1] if match[1] is not None else match[2])
        last = line
    if block:
        yield start, " ".join(block)


def python_comments(text: str) -> Iterator[tuple[int, str]]:
    """First line and text of each comment and docstring."""
    block: list[str] = []
    start = last = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            if block and token.start[0] != last + 1:
                yield start, " ".join(block)
                block = []
            if not block:
                start = token.start[0]
            block.append(token.string.lstrip("#"))
            last = token.start[0]
        elif token.type == tokenize.STRING and token.line.strip().startswith(('"""', 'r"""')):
            yield token.start[0], token.string
    if block:
        yield start, " ".join(block)


def count_figures(comment: str) -> int:
    """Of measurements, as far as their form tells."""
    return len(FIGURE.findall(EXACT.sub(" ", comment)))


def problems() -> Iterator[str]:
    for folder in ("csrc", "mlcc"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in {".cpp", ".h", ".def", ".cuh", ".py"}:
                continue
            text = path.read_text()
            comments = python_comments(text) if path.suffix == ".py" else cpp_comments(text)
            for line, comment in comments:
                figures = count_figures(comment)
                if figures > MOST_FIGURES:
                    shown = " ".join(comment.split())[:90]
                    yield f"{path.relative_to(ROOT)}:{line}: {figures} figures in a comment: {shown}"


def main() -> int:
    found = list(problems())
    for problem in found:
        print(problem)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
