"""A process that ends is an error of the others, not a wait without end."""

from __future__ import annotations

import time

import pytest

from tests.distributed.marks import cases
from tests.distributed.processes import Processes


@pytest.mark.parametrize("in_backward", cases([False, True], [True]))
def test_a_process_that_ends(in_backward: bool) -> None:
    processes = Processes(2)
    try:
        start = time.monotonic()
        left, gone = processes.outcomes("failing.dies", in_backward)
        assert "result" in left, left
        assert "closed" in left["result"] or "reset" in left["result"], left["result"]
        assert "the process ended" in gone["error"]
        assert time.monotonic() - start < 150
    finally:
        processes.stop()


def test_a_process_that_does_not_take_part(pair: Processes) -> None:
    told, silent = pair.run("failing.stays_away")
    assert "imed out" in told
    assert silent == ""


@pytest.mark.slow
def test_a_program_that_raises_is_told_with_its_place(pair: Processes) -> None:
    """The tests' own: a failure in one process fails the test, and the next one has new processes."""
    with pytest.raises(
        AssertionError, match=r"(?s)process 0: .*no attribute 'nothing_of_this_name'"
    ):
        pair.run("failing.nothing_of_this_name")
    assert pair.run("overlap.trace")
