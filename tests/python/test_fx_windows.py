"""Pooling, windows, padding and interpolation against eager: values, indices, gradients, sizes, emulated GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import mlcc
from mlcc import config

CASES: dict[str, Any] = {
    "max": lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True),
    "max of a whole number of windows": lambda x: F.max_pool2d(x, 2, return_indices=True),
    "max, dilated": lambda x: F.max_pool2d(x, 3, 1, 1, 2, return_indices=True),
    "max, rounded up": lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True, return_indices=True),
    "max in one dimension": lambda x: F.max_pool1d(x[0], 3, 2, 1),
    "max in three dimensions": lambda x: F.max_pool3d(x, 2, 2),
    "max, adaptive": lambda x: F.adaptive_max_pool2d(x, (4, 5), return_indices=True),
    "average": lambda x: F.avg_pool2d(x, 3, 1, 1),
    "average of what is inside": lambda x: F.avg_pool2d(
        x, 3, 2, 1, ceil_mode=True, count_include_pad=False
    ),
    "average, rounded up": lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
    "average, apart": lambda x: F.avg_pool2d(x, 2, 3),
    "average over more than there is": lambda x: F.avg_pool2d(x, 640, 320, 320, ceil_mode=True),
    "average over more than there is inside": lambda x: F.avg_pool2d(
        x, (64, 2), 64, (32, 0), ceil_mode=True, count_include_pad=False
    ),
    "largest of more than there is": lambda x: F.max_pool2d(
        x, (64, 3), (64, 2), (32, 1), ceil_mode=True, return_indices=True
    ),
    "average by a number": lambda x: F.avg_pool2d(x, (3, 2), divisor_override=4),
    "average in three dimensions": lambda x: F.avg_pool3d(x, (2, 3, 3), 2, 1),
    "average, adaptive": lambda x: F.adaptive_avg_pool2d(x, (4, 5)),
    "power average": lambda x: F.lp_pool2d(x.abs() + 1, 2, 3),
    "columns": lambda x: F.unfold(x, (3, 2), padding=1, stride=2, dilation=2),
    "image of columns": lambda x: F.fold(F.unfold(x, 3, padding=1), x.shape[2:], 3, padding=1),
    "unfold": lambda x: x.unfold(3, 5, 3) * 2,
    "reflected": lambda x: F.pad(x, (1, 2, 3, 4), mode="reflect"),
    "reflected in one dimension": lambda x: F.pad(x[0], (5, 2), mode="reflect"),
    "replicated": lambda x: F.pad(x, (1, 2, 3, 0), mode="replicate"),
    "replicated and cut off": lambda x: F.pad(x, (1, -2, -3, 0), mode="replicate"),
    "replicated in one dimension": lambda x: F.pad(x[0], (0, 3), mode="replicate"),
    "circular": lambda x: F.pad(x, (1, 2, 3, 4), mode="circular"),
    "reflected in three dimensions": lambda x: F.pad(x, (1, 2, 3, 4, 1, 0), mode="reflect"),
    "rolled": lambda x: x.roll((3, -1, 0), (2, 3, 1)) * 2,
    "rolled as one row": lambda x: x.roll(-7),
    "parts of an outer dimension": lambda x: torch.cat(
        [x[:, 1:].relu(), x.transpose(2, 3).reshape(x.shape), x * 2], 1
    ),
    "strided by numbers": lambda x: (x * 2).as_strided((3, 4, 1, 5), (40, 3, 7, 2), 11),
    "strided with repeats": lambda x: (x + 1).as_strided((4, 2, 3), (1, 0, 1)),
    "strided memory of a view": lambda x: (x + 1).flatten()[7:].as_strided((4, 3), (3, 1), 2),
    "strided from a piece on": lambda x: (x + 1).flatten().split(900)[1].as_strided((2, 3), (3, 1)),
    "diagonal": lambda x: x.diagonal(1, 2, 3) * 2,
    "padded with a number": lambda x: F.pad(x, (1, 2, -3, 4), value=2.5),
    "nearest": lambda x: F.interpolate(x, size=(31, 13)),
    "exactly nearest": lambda x: F.interpolate(x, size=(7, 50), mode="nearest-exact"),
    "linear": lambda x: F.interpolate(x[0], size=37, mode="linear"),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "bilinear, corners": lambda x: F.interpolate(x, (13, 31), mode="bilinear", align_corners=True),
    "bicubic": lambda x: F.interpolate(x, size=(20, 40), mode="bicubic"),
}


def _results(function: Any, x: torch.Tensor) -> list[torch.Tensor]:
    x = x.clone().requires_grad_()
    results = function(x)
    results = list(results) if isinstance(results, tuple) else [results]
    weight = torch.arange(results[0].numel()).reshape(results[0].shape) % 7 - 3
    (gradient,) = torch.autograd.grad((results[0] * weight).sum(), x)
    return [*(r.detach() for r in results), gradient]


def _input(dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, 3, 16, 20, generator=generator).to(dtype)


@pytest.mark.parametrize("name", CASES)
def test_as_eager(name: str) -> None:
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
        if "three" in name and dtype == torch.bfloat16:
            continue  # eager has no such kernel
        x = _input(dtype)
        torch._dynamo.reset()
        got = _results(torch.compile(CASES[name], backend="mlcc"), x)
        for a, b in zip(got, _results(CASES[name], x), strict=True):
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["max", "average", "average, adaptive", "reflected", "bilinear"])
def test_channels_last(name: str) -> None:
    x = _input(torch.float32).contiguous(memory_format=torch.channels_last)
    torch._dynamo.reset()
    got = _results(torch.compile(CASES[name], backend="mlcc"), x)
    want = _results(CASES[name], x)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    assert got[0].stride() == want[0].stride()
    if "max" in name or "average" in name:
        assert got[-1].stride() == want[-1].stride()


@pytest.mark.parametrize("name", CASES)
def test_dynamic_sizes(name: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(CASES[name], backend="mlcc", dynamic=True)
    with torch.no_grad():
        for size in ((2, 3, 16, 20), (1, 4, 24, 40)):
            x = torch.randn(size)
            got, want = compiled(x), CASES[name](x)
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


BY_SIZES: dict[str, Any] = {
    "padded to a multiple": lambda x: F.pad(x, (0, 0, 0, (8 - x.shape[2] % 8) % 8)),
    "padded in front": lambda x: F.pad(x, (x.shape[3] // 2, 1), value=3),
    "padded along two dimensions": lambda x: F.pad(
        x, (x.shape[3], 1, x.shape[1], x.shape[2]), value=-1
    ),
    "cut off": lambda x: F.pad(x, (-(x.shape[3] // 3), -(x.shape[3] // 4))),
    "rolled": lambda x: x.roll((3, -20, 1), (2, 3, 1)),
    "rolled by half": lambda x: x.roll(x.shape[3] // 2, 3),
}


@pytest.mark.parametrize("name", BY_SIZES)
@pytest.mark.parametrize("gpu", ["", "emulate"])
def test_by_symbolic_sizes(name: str, gpu: str, mlcc_log: Any) -> None:
    """Padding and rolling, also by numbers that depend on the sizes, with gradients: one graph, no call."""
    function = BY_SIZES[name]
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="mlcc", dynamic=True)
    for size in ((2, 3, 13, 9), (1, 4, 24, 10)):
        x = torch.randn(size)
        with config.patch(gpu=gpu), mlcc_log("fallback") as lines:
            got = _results(compiled, x)
        assert lines == []
        for a, b in zip(got, _results(function, x), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)
            assert a.stride() == b.stride()


@pytest.mark.parametrize(
    "name", ["max", "average of what is inside", "columns", "reflected", "replicated", "bilinear"]
)
def test_emulated_gpu(name: str) -> None:
    x = _input(torch.float32)[:1]
    torch._dynamo.reset()
    with config.patch(gpu="emulate"):
        got = _results(torch.compile(CASES[name], backend="mlcc"), x)
    for a, b in zip(got, _results(CASES[name], x), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_places_of_the_lowest_number() -> None:
    """Where nothing is larger than the padding the first element inside counts, as in eager."""
    x = torch.full((1, 1, 6, 6), float("-inf"))
    for dilation in (1, 2):

        def pooled(x: torch.Tensor, dilation: int = dilation) -> Any:
            return F.max_pool2d(x, 3, 2, 1, dilation, return_indices=True)

        torch._dynamo.reset()
        got = torch.compile(pooled, backend="mlcc")(x)
        torch.testing.assert_close(got, pooled(x), rtol=0, atol=0)


def test_no_calls(mlcc_log: Any) -> None:
    """That pooling is generated and not an ATen call."""
    torch._dynamo.reset()
    with mlcc_log("fallback") as lines, torch.no_grad():
        torch.compile(CASES["max"], backend="mlcc")(_input(torch.float32))
        torch.compile(CASES["average"], backend="mlcc")(_input(torch.float32))
    assert not lines


@pytest.mark.parametrize("groups", [2, 3])
def test_groups_that_divide_symbolic_channels_need_no_call(groups: int, mlcc_log: Any) -> None:
    """torch writes what the groups' statistics come to as a strided view; that is all of it follows from a guard."""

    def normalized(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.group_norm(x, groups, weight, bias)

    compiled = mlcc.jit(normalized)
    with mlcc_log("fallback") as lines:
        for channels in (4 * groups, groups, 7 * groups):
            arguments = torch.randn(2, channels, 5, 3), torch.randn(channels), torch.randn(channels)
            torch.testing.assert_close(compiled(*arguments), normalized(*arguments))
    assert not lines
    odd = 4 * groups + 1
    with pytest.raises(RuntimeError, match="divisible"):
        compiled(torch.randn(2, odd, 5, 3), torch.randn(odd), torch.randn(odd))
