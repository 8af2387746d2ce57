"""What the backward pass reads of images: they are saved channels-last, and nothing else is."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def saved_by(module: nn.Module, x: Tensor) -> tuple[list[tuple[int, ...]], Any]:
    """Shapes of the tensors with four dimensions that a compiled call saves, and its result."""
    torch._dynamo.reset()
    shapes: list[tuple[int, ...]] = []

    def pack(tensor: Tensor) -> Tensor:
        if tensor.dim() == 4 and not isinstance(tensor, nn.Parameter):
            shapes.append(tuple(tensor.shape))
        return tensor

    compiled = torch.compile(module, backend="mlcc", dynamic=False)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = compiled(x)
    return shapes, result


def test_images_between_convolutions() -> None:
    """What follows a convolution is saved with its channels last; its input is what the caller has."""
    module = nn.Sequential(nn.Conv2d(3, 32, 3, 1, 1), nn.ReLU(), nn.Conv2d(32, 16, 3, 1, 1))
    shapes, result = saved_by(module, torch.randn(4, 3, 8, 10))
    assert sorted(shapes) == [(4, 3, 8, 10), (4, 8, 10, 32)]
    assert result.stride() == (16 * 80, 80, 10, 1)
    result.sum().backward()


def test_under_autocast() -> None:
    """Casts stand between the convolutions and what is saved for them."""
    layers = [nn.Conv2d(3, 32, 3, 1, 1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 16, 3, 1, 1)]
    module = nn.Sequential(*layers)
    with torch.autocast("cpu", torch.bfloat16):
        shapes, result = saved_by(module, torch.randn(4, 3, 8, 10))
    assert shapes.count((4, 8, 10, 32)) > 1
    assert (4, 32, 8, 10) not in shapes
    result.sum().backward()


def test_calls() -> None:
    """Convolutions that stay calls save what they read as it lies."""
    module = nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1), nn.Sigmoid(), nn.Conv2d(8, 4, 3, 1, 1))
    shapes, _ = saved_by(module, torch.randn(4, 3, 8, 10))
    assert (4, 8, 8, 10) in shapes
    assert (4, 8, 10, 8) not in shapes


def test_few_pixels() -> None:
    """They stay calls, too: weights would have to be packed for them in each call."""
    module = nn.Sequential(nn.Conv2d(3, 32, 3, 1, 1), nn.ReLU(), nn.Conv2d(32, 16, 3, 1, 1))
    shapes, _ = saved_by(module, torch.randn(1, 3, 8, 10))
    assert (1, 32, 8, 10) in shapes


def test_results() -> None:
    """What is a result, too, lies as eager lays it."""

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 32, 3), nn.Conv2d(32, 16, 3)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            image = self.first(x).relu()
            return image, self.second(image)

    shapes, (image, _) = saved_by(Both(), torch.randn(4, 3, 12, 12))
    assert (4, 32, 10, 10) in shapes
    assert image.is_contiguous()


def test_channels_last_images() -> None:
    """Such lie as they should already."""
    module = nn.Sequential(nn.Conv2d(3, 32, 3, 1, 1), nn.ReLU(), nn.Conv2d(32, 16, 3, 1, 1))
    x = torch.randn(4, 3, 8, 10).contiguous(memory_format=torch.channels_last)
    shapes, result = saved_by(module, x)
    assert (4, 32, 8, 10) in shapes
    assert result.is_contiguous(memory_format=torch.channels_last)
    result.sum().backward()


def test_other_images() -> None:
    """Tensors of four dimensions that are no images: heads of an attention behind patches of an image."""

    class Patches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(3, 32, 4, 4)

        def forward(self, x: Tensor) -> Tensor:
            tokens = self.patches(x).flatten(2).transpose(1, 2).unflatten(-1, (4, 8))
            return tokens.transpose(1, 2).sigmoid().softmax(-1).exp()

    shapes, _ = saved_by(Patches(), torch.randn(2, 3, 16, 16))
    assert (2, 16, 8, 4) not in shapes


def test_groups_that_are_a_size() -> None:
    """One filter for each channel, of whose number the trace knows nothing (reduced from a crash)."""

    def blur(x: Tensor, filters: Tensor) -> Tensor:
        channels = x.shape[1]
        return F.conv2d(x, filters.expand(channels, 1, 3, 3), padding=1, groups=channels)

    torch._dynamo.reset()
    compiled = torch.compile(blur, backend="mlcc")
    filters = torch.rand(1, 1, 3, 3)
    for channels in (3, 4, 6):
        x = torch.randn(2, channels, 16, 16, requires_grad=True)
        found, expected = compiled(x, filters), blur(x, filters)
        torch.testing.assert_close(found, expected)
        gradients = (torch.autograd.grad(y.square().sum(), x) for y in (found, expected))
        torch.testing.assert_close(*gradients)
