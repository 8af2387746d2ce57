"""The settings of tests/python, and a pair of processes."""

from collections.abc import Iterator

import pytest

from tests.distributed.processes import Processes
from tests.python import conftest as _  # noqa: F401 (sets the environment, which processes inherit)


@pytest.fixture(scope="module")
def pair() -> Iterator[Processes]:
    """Two processes that run functions of one file one after the other."""
    processes = Processes(2)
    try:
        yield processes
    finally:
        processes.stop()
