"""Gradients of pooling and what undoes it against eager, to the last bit where eager goes in the same order."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from mlcc import config

_SAMPLES = torch.linspace(0, 0.99, 12).reshape(2, 3, 2)
_DEEP_SAMPLES = torch.linspace(0, 0.99, 18).reshape(2, 3, 3)

IMAGES: dict[str, Any] = {
    "overlapping": lambda x: F.max_pool2d(x, 3, 2, 1),
    "side by side": lambda x: F.max_pool2d(x, 2),
    "apart": lambda x: F.max_pool2d(x, 2, 3),
    "at every element": lambda x: F.max_pool2d(x, 3, 1, 1),
    "of two sizes": lambda x: F.max_pool2d(x, (3, 2), (1, 2), (1, 0)),
    "dilated": lambda x: F.max_pool2d(x, 3, 1, 1, 2),
    "rounded up": lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
    "one dimension": lambda x: F.max_pool1d(x[0], 3, 2, 1),
    "without a batch": lambda x: F.max_pool2d(x[0], 3, 2, 1),
    "adaptive": lambda x: F.adaptive_max_pool2d(x, (5, 7)),
    "fractional": lambda x: F.fractional_max_pool2d(
        x, 3, output_size=(6, 7), _random_samples=_SAMPLES.to(x.dtype)
    ),
}
VOLUMES: dict[str, Any] = {
    "overlapping": lambda x: F.max_pool3d(x, 3, 2, 1),
    "rounded up": lambda x: F.max_pool3d(x, (2, 3, 2), 2, ceil_mode=True),
    "dilated": lambda x: F.max_pool3d(x, 2, 1, 0, (1, 2, 3)),
    "adaptive": lambda x: F.adaptive_max_pool3d(x, (3, 4, 5)),
    "fractional": lambda x: F.fractional_max_pool3d(
        x, 2, output_size=(3, 4, 5), _random_samples=_DEEP_SAMPLES.to(x.dtype)
    ),
}


def _gradient(function: Any, x: torch.Tensor) -> torch.Tensor:
    x = x.detach().requires_grad_()
    result = function(x)
    weight = torch.arange(result.numel()).reshape(result.shape) % 11 - 4.5
    (gradient,) = torch.autograd.grad(result, x, weight.to(x.dtype))
    return gradient


def _input(shape: tuple[int, ...], dtype: torch.dtype, with_ties: bool = False) -> torch.Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    return ((x * 2).round() if with_ties else x).to(dtype)


def _check(function: Any, x: torch.Tensor, tolerance: float = 0) -> None:
    torch._dynamo.reset()
    got = _gradient(torch.compile(function, backend="mlcc"), x)
    want = _gradient(function, x)
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
    assert got.stride() == want.stride()


@pytest.mark.parametrize("name", IMAGES)
def test_gradient_of_images(name: str, mlcc_log: Any) -> None:
    with mlcc_log("fallback") as lines:
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
            _check(IMAGES[name], _input((2, 3, 14, 17), dtype, with_ties=dtype.itemsize == 4))
    assert not any("_backward" in line for line in lines)


@pytest.mark.parametrize("name", VOLUMES)
def test_gradient_of_volumes(name: str, mlcc_log: Any) -> None:
    with mlcc_log("fallback") as lines:
        _check(VOLUMES[name], _input((2, 3, 8, 9, 10), torch.float32, with_ties=True))
    assert not any("_backward" in line for line in lines)


@pytest.mark.parametrize("name", ["overlapping", "side by side", "adaptive"])
def test_gradient_beside_pointwise_ops(name: str) -> None:
    x = _input((2, 3, 14, 17), torch.float32)
    _check(lambda x: IMAGES[name](x.relu()).sigmoid(), x, tolerance=1e-6)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_gradient_among(number: float) -> None:
    x = _input((1, 2, 9, 9), torch.float32)
    x[0, 0, 3, 4] = number
    x[0, 1] = number
    for name in ("side by side", "apart"):  # with one NaN, or nothing else, in a window
        _check(IMAGES[name], x[:, :1] if number != number else x)


def test_gradient_of_a_sum() -> None:
    """What comes from a sum is one number with strides of 0."""
    _check(lambda x: F.max_pool2d(x, 3, 2, 1).sum().expand(4), _input((2, 3, 8, 8), torch.float32))


def test_gradient_of_transposed_images() -> None:
    x = _input((2, 3, 14, 17), torch.float32).transpose(2, 3)
    _check(lambda x: F.max_pool2d(x, 3, 2, 1), x)


def test_gradient_of_channels_last_images(mlcc_log: Any) -> None:
    x = _input((2, 3, 14, 17), torch.float32).contiguous(memory_format=torch.channels_last)
    with mlcc_log("fallback") as lines:
        _check(IMAGES["overlapping"], x)
    assert any("memory format" in line for line in lines)


@pytest.mark.parametrize("name", ["overlapping", "rounded up", "dilated"])
def test_gradient_of_dynamic_sizes(name: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(IMAGES[name], backend="mlcc", dynamic=True)
    for shape in ((2, 3, 14, 17), (4, 2, 20, 9)):
        x = _input(shape, torch.float32)
        got, want = _gradient(compiled, x), _gradient(IMAGES[name], x)
        torch.testing.assert_close(got, want, rtol=0, atol=0)


@pytest.mark.parametrize("is_deterministic", [False, True])
@pytest.mark.parametrize("name", ["overlapping", "apart", "adaptive"])
def test_gradient_on_an_emulated_gpu(name: str, is_deterministic: bool) -> None:
    x = _input((1, 2, 9, 9), torch.float32)
    torch.use_deterministic_algorithms(is_deterministic)
    try:
        with config.patch(gpu="emulate"):
            _check(IMAGES[name], x)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("gpu", ["off", "emulate"])
def test_unpooled(rank: int, gpu: str, mlcc_log: Any) -> None:
    pool = getattr(F, f"max_pool{rank}d")
    unpool = getattr(F, f"max_unpool{rank}d")

    def function(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return unpool(x * 2, places, 2) + 1

    x, places = pool(_input((2, 3, *[6] * rank), torch.float32), 2, return_indices=True)
    torch._dynamo.reset()
    with config.patch(gpu=gpu), mlcc_log("fallback") as lines:
        run = torch.compile(function, backend="mlcc")
        torch.testing.assert_close(run(x, places), function(x, places), rtol=0, atol=0)
        if gpu == "off":  # values for one place: the last one stays
            torch.testing.assert_close(run(x, places * 0), function(x, places * 0), rtol=0, atol=0)
    assert not lines


@pytest.mark.parametrize("wrong", [-1, 36])
def test_unpooling_beyond_the_image_fails_as_in_eager(wrong: int) -> None:
    x, places = F.max_pool2d(_input((2, 3, 6, 6), torch.float32), 2, return_indices=True)
    places[1, 2, 0, 1] = wrong
    torch._dynamo.reset()
    for run in (F.max_unpool2d, torch.compile(F.max_unpool2d, backend="mlcc")):
        with pytest.raises(RuntimeError, match=rf"invalid max index: {wrong} .*of size 6x6"):
            run(x, places, 2)
