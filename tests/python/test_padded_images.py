"""Images that are written into what a convolution behind them pads: against eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mlcc


class Padded(nn.Module):
    """A convolution, what follows it, and a reader of the padded image."""

    def __init__(self, follow: Callable[[Tensor], Tensor], reader: nn.Module) -> None:
        super().__init__()
        self.first, self.reader = nn.Conv2d(16, 32, 1), reader
        self.follow = follow

    def forward(self, x: Tensor) -> Tensor:
        """The image that the reader makes, and what else is computed from that before it."""
        y = self.follow(self.first(x))
        return self.reader(y) * 2


class PaddedTwice(nn.Module):
    """An image that several read as it is, and two with borders of different widths."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.small = nn.Conv2d(16, 32, 1), nn.Conv2d(32, 32, 3, padding=1)
        self.large, self.plain = nn.Conv2d(32, 32, 5, padding=2), nn.Conv2d(32, 32, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Sums of all."""
        y = self.first(x).relu()
        return self.small(y) + self.large(y) + self.plain(y) + y


class Given(nn.Module):
    """The padded image and what is padded."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(16, 32, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Both."""
        y = self.layer(x).relu()
        return F.pad(y, (1, 2, 0, 3), value=float("-inf")), y


READERS: dict[str, Callable[[], nn.Module]] = {
    "3x3": lambda: nn.Conv2d(32, 32, 3, padding=1),
    "depthwise": lambda: nn.Conv2d(32, 32, 3, padding=1, groups=32),
    "depthwise of stride 2": lambda: nn.Conv2d(32, 32, 3, 2, 1, groups=32),
    "dilated, wide": lambda: nn.Conv2d(32, 48, (1, 3), 1, (0, 2), (1, 2)),
    "groups": lambda: nn.Conv2d(32, 64, 3, 2, 2, groups=2),
    "gone around": lambda: nn.Sequential(
        nn.ConstantPad2d((1, 0, 3, 2), -1.5), nn.Conv2d(32, 32, 3)
    ),
    "cut": lambda: nn.Sequential(nn.ConstantPad2d((-1, 2, 1, -1), 0.5), nn.Conv2d(32, 32, 3)),
    "same": lambda: nn.Conv2d(32, 32, (2, 4), padding="same"),
}
FOLLOW: dict[str, Callable[[Tensor], Tensor]] = {
    "alone": lambda x: x,
    "clamped": F.relu6,
    "gelu": F.gelu,
}


def check(module: nn.Module, function: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """As near to eager as sums in another order are, in its layout."""
    tolerance = {torch.float64: 1e-12, torch.float32: 2e-5}.get(x.dtype, 3e-2)
    with torch.no_grad():
        expected, ours = module(x), function(x)
    torch.testing.assert_close(ours, expected, atol=tolerance, rtol=tolerance, equal_nan=True)
    assert ours.stride() == expected.stride()


@pytest.mark.parametrize(
    ("reader", "follow"),
    [*((reader, "clamped") for reader in READERS), ("3x3", "alone"), ("depthwise", "gelu")],
)
def test_readers(reader: str, follow: str) -> None:
    """Sizes, batches and layouts, which become symbols after the first."""
    torch.manual_seed(0)
    module = Padded(FOLLOW[follow], READERS[reader]()).eval()
    static, compiled = mlcc.jit(module, dynamic=False), mlcc.jit(module)
    for batch, height, width in ((1, 14, 14), (2, 9, 13), (3, 8, 5)):
        x = torch.randn(batch, 16, height, width)
        for image in (x, x.contiguous(memory_format=torch.channels_last)):
            check(module, static, image)
            check(module, compiled, image)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes(dtype: torch.dtype) -> None:
    """Sums are rounded before they are padded."""
    torch.manual_seed(0)
    for reader in ("3x3", "depthwise"):
        module = Padded(F.relu6, READERS[reader]()).eval().to(dtype)
        check(module, mlcc.jit(module), torch.randn(2, 16, 9, 11).to(dtype))


@pytest.mark.parametrize("channels", [1, 3, 4, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_images_of_few_channels(channels: int, dtype: torch.dtype) -> None:
    """Padded as they lie."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(channels, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 16, 1)]
    module = nn.Sequential(*layers).eval().to(dtype)
    compiled = mlcc.jit(module)
    for height, width in ((20, 20), (13, 9)):
        x = torch.randn(2, channels, height, width).to(dtype)
        for image in (x, x.contiguous(memory_format=torch.channels_last)):
            check(module, compiled, image)


def test_other_readers() -> None:
    """They see the image as if it had no border."""
    torch.manual_seed(0)
    module = PaddedTwice().eval()
    compiled = mlcc.jit(module)
    for height, width in ((14, 14), (7, 9), (16, 3)):
        check(module, compiled, torch.randn(2, 16, height, width))


def test_borders_are_written_in_each_call() -> None:
    """What an earlier call left in the memory is not read."""
    torch.manual_seed(0)
    module = Padded(F.relu, READERS["depthwise"]()).eval()
    compiled = mlcc.jit(module)
    x = torch.randn(1, 16, 12, 12)
    for image in (x, torch.full_like(x, float("nan")), x, torch.full_like(x, float("inf")), x):
        check(module, compiled, image)


def test_pads_that_are_given_out() -> None:
    """The padded image itself is a result, with a border of any number."""
    torch.manual_seed(0)
    module = Given()
    x = torch.randn(2, 16, 9, 9).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        for ours, eager in zip(mlcc.jit(module)(x), module(x), strict=True):
            torch.testing.assert_close(ours, eager, atol=1e-5, rtol=1e-5)
            assert ours.stride() == eager.stride()


def test_images_that_are_saved() -> None:
    """Gradients read the padded image, or the image."""
    torch.manual_seed(0)
    for reader in ("3x3", "depthwise", "groups"):
        module = Padded(F.relu6, READERS[reader]())
        compiled = torch.compile(module, backend="mlcc")
        x = torch.randn(2, 16, 10, 12)
        found = []
        for function in (module, compiled):
            image = x.clone().requires_grad_()
            module.zero_grad()
            function(image).square().sum().backward()
            found.append([image.grad, *(p.grad.clone() for p in module.parameters())])
        for ours, eager in zip(found[1], found[0], strict=True):
            torch.testing.assert_close(ours, eager, atol=2e-3, rtol=1e-3)
