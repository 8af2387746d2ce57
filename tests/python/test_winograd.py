"""3x3 convolutions from transformed images: values, NaN and Inf, symbolic sizes, threads, filters that change."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mlcc
from tests.python.accuracy import check_all


class Block(nn.Module):
    """A convolution with what surrounds one in a residual net."""

    def __init__(self, channels: int, columns: int, padding: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, columns, 3, padding=padding)
        self.norm = nn.BatchNorm2d(columns)
        nn.init.normal_(self.norm.running_mean)
        nn.init.uniform_(self.norm.running_var, 0.5, 2)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        y = self.norm(self.conv(x))
        return torch.relu(y + residual)


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    with torch.no_grad():
        yield


def compiled(module: nn.Module, dynamic: bool = False, **options: Any) -> Any:
    return torch.compile(module, backend="mlcc", dynamic=dynamic, options=options)


def graphs_of(dump: Any) -> str:
    return "".join(path.read_text() for path in sorted(dump.glob("*inference/*fused.graph")))


def judge(module: nn.Module, found: Tensor, *inputs: Tensor) -> None:
    exact = copy.deepcopy(module).double()(*(each.double() for each in inputs))
    eager = module(*inputs)
    assert found.shape == eager.shape and found.stride() == eager.stride()
    check_all([found], [eager], [exact])


# Images, sides, channels of the image and of the result, padding.
CASES = [
    (1, 14, 14, 64, 64, 1),
    (2, 13, 15, 128, 96, 1),
    (3, 7, 7, 256, 128, 1),
    (1, 28, 9, 100, 65, 1),
    (1, 16, 16, 48, 200, 0),
    (2, 10, 11, 320, 64, 2),
]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("cpu", ["", "haswell", "skylake-avx512"])
def test_values(case: tuple[int, ...], cpu: str, tmp_path: Any) -> None:
    images, height, width, channels, columns, padding = case
    block = Block(channels, columns, padding).eval()
    x = torch.randn(images, channels, height, width).contiguous(memory_format=torch.channels_last)
    residual = torch.randn_like(block.conv(x))
    with mlcc.config.patch(dump="graph", dump_dir=str(tmp_path)):
        found = compiled(block, cpu=cpu)(x, residual)
    assert "f32[" in graphs_of(tmp_path) and ", 16, " in graphs_of(tmp_path)
    judge(block, found, x, residual)


@pytest.mark.parametrize("channels_last", [False, True])
def test_symbolic_sizes(channels_last: bool) -> None:
    block = Block(96, 80).eval()
    run = compiled(block, dynamic=True)
    for images, height, width in [
        (2, 14, 12),
        (3, 13, 15),
        (5, 3, 4),
        (2, 2, 2),
        (2, 31, 30),
        (4, 5, 28),
    ]:
        x = torch.randn(images, 96, height, width)
        residual = torch.randn(images, 80, height, width)
        if channels_last:
            x, residual = (t.contiguous(memory_format=torch.channels_last) for t in (x, residual))
        judge(block, run(x, residual), x, residual)


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf, 3e38])
@pytest.mark.parametrize("side", [8, 9])
def test_what_is_not_finite_stays_in_its_windows(number: float, side: int) -> None:
    conv = nn.Conv2d(64, 70, 3, padding=1).eval()
    run = compiled(conv)
    for row, column in [(0, 0), (1, 1), (3, 4), (side - 1, side - 1), (side - 1, 2)]:
        x = torch.randn(2, 64, side, side)
        x[1, 5, row, column] = number
        found, expected = run(x), conv(x)
        assert torch.equal(found.isnan(), expected.isnan())
        assert torch.equal(found.isinf(), expected.isinf())
        finite = expected.isfinite()
        torch.testing.assert_close(found[finite], expected[finite], rtol=1e-5, atol=1e-4)


def test_transforms_that_overflow() -> None:
    """Sums of four pixels that no window adds up."""
    conv = nn.Conv2d(64, 64, 3, padding=1, bias=False).eval()
    conv.weight.zero_()
    conv.weight[:, :, 1, 1] = torch.eye(64)
    x = torch.full((1, 64, 8, 8), 2e38)
    x[:, :, :, ::2] = -2e38
    assert torch.equal(compiled(conv)(x), x)


def test_filters_that_are_not_finite() -> None:
    conv = nn.Conv2d(64, 64, 3, padding=1).eval()
    conv.weight[3, 4, 1, 2] = torch.inf
    x = torch.randn(1, 64, 9, 9)
    found, expected = compiled(conv)(x), conv(x)
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.isinf(), expected.isinf())
    finite = expected.isfinite()
    torch.testing.assert_close(found[finite], expected[finite], rtol=1e-5, atol=1e-5)


def test_filters_that_change() -> None:
    block = Block(64, 64).eval()
    run = compiled(block)
    x, residual = torch.randn(1, 64, 12, 12), torch.randn(1, 64, 12, 12)
    judge(block, run(x, residual), x, residual)
    block.conv.weight.mul_(-2)
    judge(block, run(x, residual), x, residual)
    block.conv.weight.data.copy_(torch.randn(64, 64, 3, 3))
    judge(block, run(x, residual), x, residual)
    block.load_state_dict(Block(64, 64).state_dict())
    judge(block, run(x, residual), x, residual)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_any_number_of_threads(threads: int) -> None:
    conv = nn.Conv2d(128, 192, 3, padding=1).eval()
    x = torch.randn(2, 128, 15, 15)
    with mlcc.config.patch(num_threads=threads):
        found = compiled(conv)(x)
    judge(conv, found, x)
    with mlcc.config.patch(num_threads=1):
        torch._dynamo.reset()
        torch.testing.assert_close(compiled(conv)(x), found, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "options", [{"winograd": False}, {"weights": "steal"}, {"pack_weights": False}]
)
def test_where_nothing_is_transformed(options: dict[str, Any], tmp_path: Any) -> None:
    conv = nn.Conv2d(64, 64, 3, padding=1).eval()
    x = torch.randn(1, 64, 14, 14)
    expected = conv(x)
    with mlcc.config.patch(dump="graph", dump_dir=str(tmp_path)):
        found = compiled(conv, **options)(x)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert graphs_of(tmp_path) and ", 16, " not in graphs_of(tmp_path)


def test_kernels_are_verified() -> None:
    """Beside the sums that the convolution means, in the interpreter."""
    conv = nn.Conv2d(64, 64, 3, padding=1).eval()
    x = torch.randn(1, 64, 6, 7)
    with mlcc.config.patch(verify="always", strict=True):
        judge(conv, compiled(conv)(x), x)
