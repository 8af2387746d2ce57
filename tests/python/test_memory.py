"""What compilations leave behind; `benchmarks/memory.py` prints the bytes."""

from __future__ import annotations

import gc
import linecache

import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import mlcc


def test_traces_leave_no_symbols() -> None:
    """torch keeps what it found out about symbols, and with it all of a trace, unless it is told to forget."""
    x = torch.randn(3, 4)

    def alive() -> int:
        while gc.collect():  # what finalizers of garbage let go of is garbage of the next round
            pass
        return sum(type(one) is ShapeEnv for one in gc.get_objects())

    def trace(times: int) -> None:
        for _ in range(times):
            mlcc.jit(lambda x: (x.exp() + x.shape[0]).sum(0))(x)

    trace(20)
    before = alive()
    trace(40)
    assert alive() <= before + 5  # a few change places in torch's own caches


def test_traces_leave_no_sources() -> None:
    """torch keeps the Python code of every graph module for tracebacks, twice; a trace takes its own with it."""
    x = torch.randn(3, 4)

    def kept() -> int:
        return sum(name.startswith("<eval_with_key>") for name in linecache.cache)

    def count(dynamic: bool) -> int:
        before = kept()
        mlcc.jit(lambda x: (x.exp() + 2).sum(0), dynamic=dynamic)(x)
        return kept() - before

    assert [count(False), count(True)] == [0, 0]
