"""Requests to memory for rows that come later (gathers, columns, pieces, transposed operands): results are eager's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import mlcc

PROGRAMS: dict[str, Callable[[Tensor, Tensor], object]] = {
    "rows": lambda x, i: x[i] * 2,
    "rows from the end": lambda x, i: x[i - x.shape[0]],
    "embedding and positions": lambda x, i: torch.nn.functional.embedding(i, x) + x[: i.numel()],
    "rows of rows": lambda x, i: x[i][i % i.numel()],
    "blocks": lambda x, i: x.unflatten(1, (-1, 4))[i].sum(-1),
    "rows and their norms": lambda x, i: x[i] / x[i].norm(dim=1, keepdim=True),
    "added rows": lambda x, i: x.index_add(0, i, x[: i.numel()] * 2),
    "columns": lambda x, i: torch.softmax(x, 0),
    "gathered columns": lambda x, i: x[i].amax(0),
    "transposed": lambda x, i: x.t() + 1,
    "halves": lambda x, i: x[:, : x.shape[1] // 2] * x[:, x.shape[1] // 2 :].sigmoid(),
    "images of a channel": lambda x, i: torch.nn.functional.instance_norm(x.unflatten(1, (4, -1))),
    "rows and columns of what is cheap": lambda x, i: (
        (x * 2 + 1).relu().sum(0),
        (x * 2 + 1).relu().sum(1),
    ),
}


@pytest.mark.parametrize("dynamic", [None, False])
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_those_of_eager(name: str, dynamic: bool | None) -> None:
    function = PROGRAMS[name]
    compiled = mlcc.jit(function, dynamic=dynamic)
    for rows, columns, picked in [
        (3000, 132, 1000),
        (3000, 132, 1),
        (600, 1000, 0),
        (2500, 36, 77),
    ]:
        x, index = torch.randn(rows, columns), torch.randint(0, rows, (picked,))
        if picked == 0 and name == "gathered columns":
            continue  # eager refuses
        torch.testing.assert_close(compiled(x, index), function(x, index), rtol=1e-4, atol=1e-4)


def test_an_index_out_of_range_is_eagers_error() -> None:
    x = torch.randn(3000, 132)
    compiled = mlcc.jit(lambda x, i: x[i] * 2)
    compiled(x, torch.tensor([0, 2999]))
    for index in ([0, 3000], [3000], [0, 1, 2, 3, -3001]):
        with pytest.raises(IndexError, match="out of bounds for dimension 0 with size 3000"):
            compiled(x, torch.tensor(index))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int8])
def test_dtypes(dtype: torch.dtype) -> None:
    x, index = (torch.randn(9000, 300) * 9).to(dtype), torch.randint(0, 9000, (500,))
    for function in (lambda x, i: x[i] + 1, lambda x, i: x.amax(0), lambda x, i: x.t() + 1):
        torch.testing.assert_close(mlcc.jit(function)(x, index), function(x, index))
