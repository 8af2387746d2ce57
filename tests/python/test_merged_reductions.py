"""Reductions of reductions: one kernel where the last dimensions are reduced, and eager's results everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import mlcc

Function = Callable[[Tensor], Any]

ONE_KERNEL: dict[str, Function] = {
    "max": lambda x: x.amax(-1).amax(-1),
    "min of a whole tensor": lambda x: x.amin(-1).amin(),
    "any": lambda x: (x > 2).any(-1).any(-1),
    "all are finite": lambda x: x.isfinite().all(-1).all(-1).all(),
    "sum of integers": lambda x: x.nan_to_num(0, 9, -9).long().sum(-1).sum(-1),
    "kept dimensions": lambda x: x.abs().amax(-1, keepdim=True).amax(-2, keepdim=True),
}
SEVERAL: dict[str, Function] = {
    "columns": lambda x: x.amax(0).amax(-1),
    "rows, then columns": lambda x: x.amax(-1).amax(0),
    "of a softmax": lambda x: torch.softmax(x, -1).amax(-1).amax(-1),
    "beside another": lambda x: (x.amax(-1).amax(-1), x.amin(-1)),
    "before what it scales": lambda x: x / x.abs().amax(-1, keepdim=True).amax(-2, keepdim=True),
}


@pytest.mark.parametrize("is_special", [False, True])
@pytest.mark.parametrize("name", [*ONE_KERNEL, *SEVERAL])
def test_reductions_of_reductions(name: str, is_special: bool, mlcc_log: Any) -> None:
    function = (ONE_KERNEL | SEVERAL)[name]
    run = mlcc.jit(function)
    for shape in ((3, 5, 7), (2, 1, 40), (6, 130, 3)):
        x = torch.randn(shape)
        if is_special:
            x[0, 0, 1], x[1, -1, -1] = torch.inf, torch.nan
        with mlcc_log("perf") as lines:
            result = run(x)
        torch.testing.assert_close(result, function(x), equal_nan=True)
        if lines and name in ONE_KERNEL and shape == (3, 5, 7):
            assert "1 kernels" in lines[0]


def test_reductions_of_nothing_raise_as_in_eager() -> None:
    run = mlcc.jit(lambda x: x.amax(-1).amax(-1))
    run(torch.randn(3, 4, 5))
    for shape in ((3, 0, 5), (3, 4, 0)):
        with pytest.raises((IndexError, RuntimeError)):
            run(torch.randn(shape))
