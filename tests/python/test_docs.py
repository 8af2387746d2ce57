"""The documentation is right: its programs run, its references are in step, what is public is described."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SAYS = re.compile(r"  # (?:-> (?P<value>.*)|raises (?P<error>\w+))$")


def blocks(page: str) -> list[tuple[int, str]]:
    """The Python blocks of a page: the line where each begins, and its text."""
    text = (ROOT / page).read_text()
    return [(text[: match.start()].count("\n") + 2, match[1]) for match in BLOCK.finditer(text)]


def statements(page: str, line: int, source: str) -> Iterator[tuple[ast.stmt, re.Match[str] | None]]:
    """The statements of a block, each with what the comment behind it says."""
    lines = source.splitlines()
    for statement in ast.parse(source, page).body:
        assert statement.end_lineno is not None
        says = SAYS.search(lines[statement.end_lineno - 1])
        ast.increment_lineno(statement, line - 1)
        yield statement, says


def run_block(page: str, line: int, source: str, names: dict[str, Any]) -> None:
    """Execute a block; values and errors that it tells of must come."""
    for statement, says in statements(page, line, source):
        where = f"{page}:{statement.lineno}"
        if says is None:
            exec(compile(ast.Module([statement], []), page, "exec"), names)
        elif says["error"]:
            assert isinstance(statement, ast.Expr), where
            with pytest.raises(Exception) as caught:
                eval(compile(ast.Expression(statement.value), page, "eval"), names)
            assert type(caught.value).__name__ == says["error"], where
        else:
            assert isinstance(statement, ast.Expr), where
            value = eval(compile(ast.Expression(statement.value), page, "eval"), names)
            assert str(value) == says["value"], where


# -- programs


@pytest.mark.parametrize(
    ("line", "source"),
    blocks("docs/known_differences.md")[1:],
    ids=lambda part: str(part) if isinstance(part, int) else "",
)
def test_known_difference(line: int, source: str) -> None:
    page = "docs/known_differences.md"
    names: dict[str, Any] = {"__name__": "docs"}
    begin, prelude = blocks(page)[0]
    run_block(page, begin, prelude, names)
    run_block(page, line, source, names)
