"""Functional collectives of two processes."""

from __future__ import annotations

import pytest

from tests.distributed import collectives
from tests.distributed.marks import cases
from tests.distributed.processes import Processes

VALUES = [one.__name__ for one in collectives.WITHOUT_GRADIENTS]
GRADIENTS = [one.__name__ for one in collectives.WITH_GRADIENTS]


@pytest.mark.parametrize("name", cases(VALUES, ["by_the_names_of_eager", "side_by_side"]))
def test_values(pair: Processes, name: str) -> None:
    pair.run("collectives.check", name)


@pytest.mark.parametrize("name", cases(GRADIENTS, ["parts_with_gradient"]))
def test_gradients(pair: Processes, name: str) -> None:
    pair.run("collectives.check_gradients", name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["side_by_side", "reduce_scatter", "all_to_all"])
def test_sizes_that_change(pair: Processes, name: str) -> None:
    pair.run("collectives.check", name, True)


@pytest.mark.slow
def test_gradients_of_sizes_that_change(pair: Processes) -> None:
    pair.run("collectives.check_gradients", "parts_with_gradient", True)
