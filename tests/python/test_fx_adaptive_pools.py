"""Adaptive pooling whose windows differ in size, against eager: values, places, gradients, layouts, emulated GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from mlcc import config

# Calls, where eager's kernel is faster.
CALLED = ("average in one dimension", "average of many windows in a row")

CASES: dict[str, Any] = {
    "average": lambda x: F.adaptive_avg_pool2d(x, (5, 7)),
    "average, one of two even": lambda x: F.adaptive_avg_pool2d(x, (7, 6)),
    "average, even": lambda x: F.adaptive_avg_pool2d(x, (7, 17)),
    "average of more windows than elements": lambda x: F.adaptive_avg_pool2d(x, (20, 34)),
    "average of many windows in a row": lambda x: F.adaptive_avg_pool2d(x, (9, 30)),
    "average of everything": lambda x: F.adaptive_avg_pool2d(x, 1),
    "average in one dimension": lambda x: F.adaptive_avg_pool1d(x[0], 5),
    "average in one dimension, even": lambda x: F.adaptive_avg_pool1d(x[0, :, :, :15], 5),
    "average without a batch": lambda x: F.adaptive_avg_pool2d(x[0], 4),
    "average beside pointwise ops": lambda x: F.adaptive_avg_pool2d(x.sin(), 6).sigmoid(),
    "largest": lambda x: F.adaptive_max_pool2d(x, (5, 7), return_indices=True),
    "largest, one of two even": lambda x: F.adaptive_max_pool2d(x, (7, 6), return_indices=True),
    "largest of more windows than elements": lambda x: F.adaptive_max_pool2d(
        x, (20, 34), return_indices=True
    ),
    "largest in one dimension": lambda x: F.adaptive_max_pool1d(x[0], 5, return_indices=True),
}
VOLUMES: dict[str, Any] = {
    "average": lambda x: F.adaptive_avg_pool3d(x, (3, 4, 5)),
    "largest": lambda x: F.adaptive_max_pool3d(x, (3, 4, 5), return_indices=True),
}


def _input(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """With ties."""
    return (torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 4).round().to(dtype)


def _results(function: Any, x: torch.Tensor) -> list[torch.Tensor]:
    x = x.detach().requires_grad_()
    results = function(x)
    results = list(results) if isinstance(results, tuple) else [results]
    weight = torch.arange(results[0].numel()).reshape(results[0].shape) % 7 - 3
    (gradient,) = torch.autograd.grad(results[0], x, weight.to(x.dtype))
    return [*(r.detach() for r in results), gradient]


def _check(function: Any, x: torch.Tensor) -> None:
    torch._dynamo.reset()
    got = _results(torch.compile(function, backend="mlcc"), x)
    tolerance = 2e-2 if x.dtype.itemsize == 2 else 1e-5
    for a, b in zip(got, _results(function, x), strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
        assert a.stride() == b.stride()


@pytest.mark.parametrize("name", CASES)
def test_images(name: str, mlcc_log: Any) -> None:
    with mlcc_log("fallback") as lines:
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
            _check(CASES[name], _input((2, 3, 14, 17), dtype))
    called = {line.split(":")[0] for line in lines if "_backward" not in line}
    assert called == ({"aten._adaptive_avg_pool2d.default"} if name in CALLED else set())


@pytest.mark.parametrize("name", VOLUMES)
def test_volumes(name: str, mlcc_log: Any) -> None:
    with mlcc_log("fallback") as lines:
        _check(VOLUMES[name], _input((2, 3, 8, 9, 10)))
    assert all("_backward" in line for line in lines)


@pytest.mark.parametrize("name", ["average", "average, even", "largest"])
def test_channels_last_images(name: str) -> None:
    x = _input((2, 3, 14, 17)).contiguous(memory_format=torch.channels_last)
    _check(CASES[name], x)


def test_gradient_of_even_windows(mlcc_log: Any) -> None:
    with mlcc_log("fallback") as lines:
        _check(CASES["average, even"], _input((2, 3, 14, 17)))
    assert not lines


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("name", ["average", "largest"])
def test_images_with(name: str, number: float) -> None:
    """A number in one window must not reach the next one, which masked elements of the largest window lie in."""
    x = _input((1, 2, 14, 17))
    x[0, 0, 3, 4] = number
    got = torch.compile(CASES[name], backend="mlcc")(x)
    torch.testing.assert_close(got, CASES[name](x), equal_nan=True)


@pytest.mark.parametrize("name", ["average", "largest"])
def test_dynamic_sizes(name: str) -> None:
    """Calls, with the right results."""
    torch._dynamo.reset()
    compiled = torch.compile(CASES[name], backend="mlcc", dynamic=True)
    for shape in ((2, 3, 14, 17), (1, 4, 11, 8)):
        x = _input(shape)
        torch.testing.assert_close(compiled(x), CASES[name](x))


@pytest.mark.parametrize("name", ["average", "average, even", "largest"])
def test_emulated_gpu(name: str) -> None:
    with config.patch(gpu="emulate"):
        _check(CASES[name], _input((1, 2, 8, 10)))
