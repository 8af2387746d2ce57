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


def test_an_index_at_a_place_from_memory_is_checked_before_it_is_read() -> None:
    x, i, j = (
        torch.randn(3000, 132),
        torch.randint(0, 3000, (1000,)),
        torch.randint(0, 1000, (500,)),
    )
    compiled = mlcc.jit(lambda x, i, j: x[i][j] * 2)
    torch.testing.assert_close(compiled(x, i, j), x[i][j] * 2)
    for place in (1000, 10**12, -(10**12), 2**62):
        j[100] = place
        with pytest.raises(IndexError, match="out of bounds"):
            compiled(x, i, j)


def test_an_index_at_a_place_that_the_row_has_computed() -> None:
    def function(a: Tensor, i: Tensor, w: Tensor) -> Tensor:
        at = a.sum(1) - torch.arange(a.shape[0]) * 10**8
        return w[i[at]] * a

    a = torch.zeros(4000, 132, dtype=torch.int64)
    a[:, 0] = torch.arange(4000) * 10**8 + torch.randint(0, 1000, (4000,))
    i, w = torch.randint(0, 4000, (1000,)), torch.randint(0, 9, (4000, 132))
    torch.testing.assert_close(mlcc.jit(function)(a, i, w), function(a, i, w))


def test_a_chain_of_gathers_compiles_in_time() -> None:
    def function(x: Tensor, *indices: Tensor) -> Tensor:
        for index in indices:
            x = x[index]
        return x

    x, indices = torch.randn(3000, 132), [torch.randint(0, 3000, (3000,)) for _ in range(20)]
    torch.testing.assert_close(mlcc.jit(function)(x, *indices), function(x, *indices))


def test_sizes_whose_difference_is_a_divisor() -> None:
    def difference(x: Tensor, y: Tensor) -> Tensor:
        return x[:, y.shape[0] :].reshape(-1, 4).t() + 1

    def quotient(x: Tensor, y: Tensor) -> Tensor:
        return x[:, : y.shape[0] // 4].reshape(-1, 4).t() + 1

    for function in (difference, quotient):
        compiled = mlcc.jit(function, dynamic=True)
        for columns, taken in [(1024, 1024), (1024, 2), (500, 500), (500, 100)]:
            x, y = torch.randn(3000, columns), torch.randn(taken)
            torch.testing.assert_close(compiled(x, y), function(x, y))
