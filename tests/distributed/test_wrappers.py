"""DDP, FSDP2 and a step written by hand, each against itself in eager."""

from __future__ import annotations

import pytest

from tests.distributed.marks import cases
from tests.distributed.processes import Processes

HOOKS = ["", "allreduce_hook", "fp16_compress_hook", "halves"]
OPTIONS = ["", "mixed", "kept", "copies"]


@pytest.mark.parametrize("hook", cases(HOOKS, ["halves"]))
def test_ddp(pair: Processes, hook: str) -> None:
    pair.run("wrappers.ddp", hook)


@pytest.mark.slow
@pytest.mark.parametrize("unused", [False, True])
def test_ddp_skips(pair: Processes, unused: bool) -> None:
    pair.run("wrappers.ddp_skips", unused)


@pytest.mark.parametrize("option", cases(OPTIONS, [""]))
def test_fsdp(pair: Processes, option: str) -> None:
    pair.run("wrappers.fsdp", option)


def test_a_step_in_one_function(pair: Processes) -> None:
    pair.run("wrappers.whole_step")
