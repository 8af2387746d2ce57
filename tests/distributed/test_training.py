"""A small GPT trained for 20 steps by two processes is what one process trains."""

from __future__ import annotations

import pytest

from tests.distributed.processes import Processes

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_ddp(pair: Processes, dtype: str) -> None:
    pair.run("training.by_ddp", dtype)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("by_block", [False, True])
def test_fsdp(pair: Processes, dtype: str, by_block: bool) -> None:
    pair.run("training.by_fsdp", dtype, by_block)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("sequence", [False, True])
def test_tensor_parallel(pair: Processes, dtype: str, sequence: bool) -> None:
    pair.run("training.by_tensors", dtype, sequence)
