"""The kinds of random programs, by name."""

from __future__ import annotations

from collections.abc import Callable

from tests.fuzz.state_programs import draw_state_program
from tests.fuzz.torch_programs import Program, draw_program

DRAWS: dict[str, Callable[[int], Program]] = {
    "programs": draw_program,
    "states": draw_state_program,
}
