"""The kinds of random programs, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.fuzz.state_programs import draw_state_program
from tests.fuzz.torch_programs import Program, draw_program

DRAWS: dict[str, Callable[[int], Program]] = {
    "programs": draw_program,
    "states": draw_state_program,
}
ENTRIES = ("drawn", "compile", "jit")


def draw(mode: str, seed: int, entry: str = "drawn") -> Program:
    """The program of a mode and seed, compiled by another entry than the drawn one if one is named."""
    program = DRAWS[mode](seed)
    return program if entry == "drawn" else replace(program, entry=entry)
