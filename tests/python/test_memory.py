"""What compilations leave behind; `benchmarks/memory.py` prints the bytes."""

from __future__ import annotations

import gc

import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import mlcc


def test_traces_leave_no_symbols() -> None:
    """torch keeps what it found out about symbols, and with it all of a trace, unless it is told to forget."""
    x = torch.randn(3, 4)

    def alive() -> int:
        gc.collect()
        return sum(type(one) is ShapeEnv for one in gc.get_objects())

    before = alive()
    for _ in range(6):
        mlcc.jit(lambda x: (x.exp() + x.shape[0]).sum(0))(x)
    assert alive() <= before + 3
