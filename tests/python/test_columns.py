"""Reductions along rows that lie apart (columns): every reduction, dtype, length, layout and kind of neighbour."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import mlcc

PROGRAMS: dict[str, Callable[[Tensor], object]] = {
    "sum": lambda x: x.sum(0),
    "mean of all but the last": lambda x: x.unflatten(0, (-1, 1)).mean((0, 1)),
    "prod": lambda x: (x * 0.1 + 1).prod(0),
    "extremes": lambda x: (x.amax(0), x.amin(0)),
    "place of the largest": lambda x: x.argmax(0),
    "largest and its place": lambda x: x.max(0),
    "any and all": lambda x: ((x > 2).any(0), (x > -9).all(0)),
    "softmax": lambda x: torch.softmax(x, 0),
    "log-softmax": lambda x: torch.log_softmax(x.float(), 0),
    "variance": lambda x: torch.var(x.float(), 0),
    "norm": lambda x: (x - x.mean(0)) / (x.float().std(0) + 1),
    "weighted rows": lambda x: (x * torch.arange(x.shape[0], dtype=x.dtype)[:, None] * 0.01).sum(0),
    "two sums and a result": lambda x: (x.sum(0), (x * x).sum(0), x * 2),
    "parts": lambda x: torch.cat([x, x[:, :3] * 2], 1).sum(0),
    "padded": lambda x: torch.nn.functional.pad(x, (2, 1, 3, 0)).amax(0),
    "the same in all columns": lambda x: (
        x[:1, :1].expand(17, 2).sum(0) + x[:1, :1].bfloat16().expand(9, 2).sum(0)
    ),
    "shifted": lambda x: x.roll(1, 0).sum(0),
}
SHAPES = [(300, 70), (17, 1030), (2048, 16), (83, 1), (33, 2500), (1, 40)]


@pytest.mark.parametrize("dynamic", [None, False])
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_those_of_eager(name: str, dynamic: bool | None) -> None:
    function = PROGRAMS[name]
    compiled = mlcc.jit(function, dynamic=dynamic)
    for shape in SHAPES:
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), function(x), rtol=1e-5, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("cpu", ["", "haswell"])
@pytest.mark.parametrize("dynamic", [None, False])
@pytest.mark.parametrize("batch", [2, 3, 4])
def test_images_of_two_layouts(batch: int, dynamic: bool | None, cpu: str) -> None:
    """More pieces of the images than there are images: what is left over once ran one image too far."""

    def function(gradient: Tensor, image: Tensor) -> tuple[Tensor, Tensor]:
        kept = torch.where(image <= 0, 0.0, gradient)
        return kept, kept.sum((0, 2, 3))

    for channels, height, width in ((1024, 5, 10), (1024, 5, 12), (2048, 7, 7), (512, 9, 9)):
        gradient = torch.randint(-9, 9, (batch, channels, height, width)).float()
        image = torch.randn_like(gradient).to(memory_format=torch.channels_last)
        with mlcc.config.patch(cpu=cpu):
            results = mlcc.jit(function, dynamic=dynamic)(gradient, image)
        for result, expected in zip(results, function(gradient, image), strict=True):
            assert torch.equal(result, expected)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.bool]
)
@pytest.mark.parametrize("name", ["sum", "extremes", "place of the largest", "softmax"])
def test_dtypes(name: str, dtype: torch.dtype) -> None:
    if (name == "softmax" and not dtype.is_floating_point) or (
        name != "sum" and dtype == torch.bool
    ):
        pytest.skip("eager has none")
    function = PROGRAMS[name]
    compiled = mlcc.jit(function, dynamic=False)
    for shape in SHAPES[:3]:
        x = (torch.randn(shape) * 3).to(dtype)
        torch.testing.assert_close(compiled(x), function(x))


def test_an_integer_that_is_reduced_again() -> None:
    def function(x: Tensor) -> Tensor:
        place = x.argmax(0)
        return x.gather(0, place[None] * 0 + 1) + (place * 2 + 1)

    x = torch.randn(100, 200)
    torch.testing.assert_close(mlcc.jit(function)(x), function(x))


def test_sums_are_as_exact_as_those_of_eager() -> None:
    x = torch.randn(40_000, 24) + 3
    exact = x.double().sum(0)
    ours = (mlcc.jit(lambda x: x.sum(0))(x) - exact).abs().max()
    assert ours <= 2 * (x.sum(0) - exact).abs().max() + 1e-2


def test_bits_do_not_depend_on_the_number_of_threads() -> None:
    compiled = mlcc.jit(lambda x: (x.sum(0), torch.softmax(x, 0)), dynamic=False)
    x = torch.randn(3000, 700)
    threads = torch.get_num_threads()
    results = []
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            results.append(compiled(x))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("name", ["sum", "prod", "extremes", "variance", "softmax"])
def test_code_for_few_rows_gives_what_that_for_many_gives(name: str) -> None:
    function = PROGRAMS[name]
    few, many = mlcc.jit(lambda x: function(x)), mlcc.jit(lambda x: function(x))
    few(torch.randn(40, 70))
    many(torch.randn(90, 70))
    for rows in (2, 8, 63, 64, 65, 511, 512, 513, 600, 0 if name == "sum" else 3):
        x = torch.randn(rows, 70)
        torch.testing.assert_close(few(x), function(x), rtol=1e-5, atol=1e-4, equal_nan=True)
        torch.testing.assert_close(few(x), many(x), rtol=0, atol=0, equal_nan=True)
