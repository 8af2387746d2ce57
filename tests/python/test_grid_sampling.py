"""Grid samplers as gathers (`mlcc.rewrite.grid_sampling`) beside eager in f64, and inside of packages."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim
from torch.nn import functional

import mlcc
from mlcc.rewrite import grid_sampling
from tests.python import accuracy

MODES = ("bilinear", "nearest", "bicubic")
PADDINGS = ("zeros", "border", "reflection")


def image_and_grid(dims: int, *, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    return torch.randn(2, 3, *(7, 8, 5)[:dims]), torch.rand(2, *(4, 6, 9)[:dims], dims) * 5 - 2.5


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize(
    ("dims", "mode", "padding"),
    # torch has no bicubic sampler in three dimensions.
    [*itertools.product([2], range(3), range(3)), *itertools.product([3], range(2), range(3))],
)
def test_samplers(dims: int, mode: int, padding: int, align: bool) -> None:
    x, grid = image_and_grid(dims)
    how: dict[str, Any] = {
        "mode": MODES[mode],
        "padding_mode": PADDINGS[padding],
        "align_corners": align,
    }
    found = grid_sampling.grid_sampler(x, grid, mode, padding, align)
    eager, exact = (
        functional.grid_sample(*of, **how) for of in ((x, grid), (x.double(), grid.double()))
    )
    accuracy.check(found, eager, exact)


@pytest.mark.parametrize("padding", range(3))
def test_images_of_one_pixel(padding: int) -> None:
    x, grid = torch.randn(1, 2, 1, 1), torch.rand(1, 3, 3, 2) * 4 - 2
    for align in (False, True):
        eager = functional.grid_sample(x, grid, padding_mode=PADDINGS[padding], align_corners=align)
        found = grid_sampling.grid_sampler(x, grid, 0, padding, align)
        torch.testing.assert_close(found, eager)


def test_places_that_are_no_numbers_read_nothing_outside() -> None:
    x, grid = image_and_grid(2)
    grid[0, 0, 0, 0], grid[1, 1, 1, 1] = float("nan"), 1e30
    found = grid_sampling.grid_sampler(x, grid, 0, 0, False)
    eager = functional.grid_sample(x, grid, align_corners=False)
    assert torch.equal(found.isnan(), eager.isnan())


def test_half_precision_is_left_to_others() -> None:
    x, grid = (one.bfloat16() for one in image_and_grid(2))
    assert grid_sampling.grid_sampler(x, grid, 0, 0, False) is NotImplemented


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("size", [(2, 3, 5, 6), (2, 3, 1, 4), (2, 3, 4, 5, 6)])
def test_affine_grids(size: tuple[int, ...], align: bool) -> None:
    theta = torch.randn(2, len(size) - 2, len(size) - 1)
    found = grid_sampling.affine_grid_generator(theta, size, align)
    torch.testing.assert_close(found, functional.affine_grid(theta, list(size), align))


class Warp(torch.nn.Module):
    def forward(self, x: torch.Tensor, theta: torch.Tensor) -> Any:
        grid = functional.affine_grid(theta, list(x.shape), align_corners=False)
        sampled = functional.grid_sample(x, grid, padding_mode="border", align_corners=False)
        return sampled, functional.grid_sample(x, grid, mode="nearest", align_corners=True)


def test_packages_warp(tmp_path: Path) -> None:
    model, x = Warp().eval(), torch.randn(2, 3, 9, 7)
    theta = torch.tensor([[[0.9, 0.2, 0.1], [-0.3, 1.1, 0.05]]]).repeat(2, 1, 1)
    mlcc.export(model, (x, theta), tmp_path / "m.mlcc")
    found = mlcc.load(tmp_path / "m.mlcc")(x, theta)
    accuracy.check_all(list(found), list(model(x, theta)), list(model(x.double(), theta.double())))


class Reflected(torch.nn.Module):
    def forward(self, x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        return functional.grid_sample(x, grid, padding_mode="reflection", align_corners=True)


def test_packages_sample_images_of_any_size(tmp_path: Path) -> None:
    model, sizes = Reflected().eval(), ({2: Dim("height", min=1, max=40)}, {1: Dim("rows", max=40)})
    mlcc.export(model, image_and_grid(2), tmp_path / "m.mlcc", dynamic_shapes=sizes)
    package = mlcc.load(tmp_path / "m.mlcc")
    for height, rows in ((7, 4), (1, 40), (33, 2)):
        x, grid = torch.randn(2, 3, height, 8), torch.rand(2, rows, 6, 2) * 4 - 2
        accuracy.check(package(x, grid), model(x, grid), model(x.double(), grid.double()))


def test_packages_sample_volumes(tmp_path: Path) -> None:
    model, (x, grid) = Reflected().eval(), image_and_grid(3)
    mlcc.export(model, (x, grid), tmp_path / "m.mlcc")
    found = mlcc.load(tmp_path / "m.mlcc")(x, grid)
    accuracy.check(found, model(x, grid), model(x.double(), grid.double()))
