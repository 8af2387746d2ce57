"""Convolutions against eager and float64: values, strides, NaN and Inf, symbolic sizes, gradients, chains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mlcc

# Input channels, output channels, image, and what conv takes.
CASES: dict[str, tuple[int, int, tuple[int, ...], dict[str, Any]]] = {
    "3x3": (32, 64, (14, 14), {"kernel_size": 3, "padding": 1}),
    "3x3 without bias": (32, 64, (14, 14), {"kernel_size": 3, "padding": 1, "bias": False}),
    "3x3 without padding": (32, 64, (9, 11), {"kernel_size": 3}),
    "1x1": (48, 40, (7, 7), {"kernel_size": 1}),
    "1x1 of stride 2": (48, 40, (9, 8), {"kernel_size": 1, "stride": 2}),
    "rows that go on": (16, 48, (13, 13), {"kernel_size": 3, "padding": 1}),
    "stem": (3, 64, (37, 41), {"kernel_size": 7, "stride": 2, "padding": 3}),
    "odd": (5, 33, (13, 7), {"kernel_size": (3, 5), "stride": (2, 1), "padding": (0, 3)}),
    "dilated": (16, 32, (15, 15), {"kernel_size": 3, "dilation": (2, 3), "padding": 2}),
    "groups": (64, 96, (8, 8), {"kernel_size": 3, "padding": 1, "groups": 4}),
    "small groups": (64, 64, (8, 8), {"kernel_size": 3, "padding": 1, "groups": 16}),
    "depthwise": (32, 32, (8, 9), {"kernel_size": 3, "padding": 1, "groups": 32}),
    "depthwise, more": (8, 32, (8, 9), {"kernel_size": 3, "padding": 1, "groups": 8}),
    "whole": (16, 32, (6, 6), {"kernel_size": 6}),
    "one pixel": (64, 32, (1, 1), {"kernel_size": 3, "padding": 1}),
    "same": (16, 32, (9, 9), {"kernel_size": (2, 4), "padding": "same"}),
    "1d": (16, 32, (50,), {"kernel_size": 5, "padding": 2, "stride": 3}),
    "3d": (8, 32, (5, 6, 7), {"kernel_size": 3, "padding": (1, 0, 2), "stride": (1, 2, 1)}),
    "circular": (16, 32, (9, 9), {"kernel_size": 3, "padding": 1, "padding_mode": "circular"}),
}


def layer_of(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    """A module in eval mode and the shape of its inputs behind the batch."""
    inputs, outputs, image, arguments = CASES[name]
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[len(image) - 1]
    torch.manual_seed(0)
    layer = kind(inputs, outputs, **arguments)
    # Alone it would stay a call.
    return nn.Sequential(layer, nn.LeakyReLU(0.5)).eval(), (inputs, *image)


def strides(x: Tensor) -> list[int]:
    """The stride of a single element means nothing."""
    return [stride for stride, size in zip(x.stride(), x.shape, strict=True) if size > 1]


def check(ours: Tensor, module: nn.Module, x: Tensor) -> None:
    """Values against float64, as exact as eager's but for a small factor; strides as eager's."""
    with torch.no_grad():
        eager = module(x)
        exact = module.double()(x.double())
        module.to(x.dtype)
    assert ours.shape == eager.shape
    assert strides(ours) == strides(eager)
    if ours.numel():
        scale = exact.abs().max()
        error = (ours - exact).abs().max() / scale
        assert error <= max(4 * (eager - exact).abs().max() / scale, 2e-6)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_layers(name: str, batch: int) -> None:
    """Each layer, its input lying channels-first and, where there is such a format, channels-last."""
    module, shape = layer_of(name)
    x = torch.randn(batch, *shape)
    compiled = mlcc.jit(module)
    with torch.no_grad():
        check(compiled(x), module, x)
        if len(shape) == 3:
            last = x.contiguous(memory_format=torch.channels_last)
            check(compiled(last), module, last)
        strided = torch.randn(2 * batch, *shape)[::2]
        check(compiled(strided), module, strided)


@pytest.mark.parametrize("name", ["3x3", "1x1", "depthwise"])
def test_empty_batches(name: str) -> None:
    """No images give no images."""
    module, shape = layer_of(name)
    with torch.no_grad():
        check(mlcc.jit(module)(torch.randn(0, *shape)), module, torch.randn(0, *shape))


OTHER_DTYPES = (torch.float64, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", OTHER_DTYPES)
@pytest.mark.parametrize("name", ["3x3", "1x1 of stride 2", "stem", "groups", "depthwise", "1d"])
@pytest.mark.parametrize("has_bias", [False, True])
def test_other_dtypes(dtype: torch.dtype, name: str, has_bias: bool) -> None:
    """Results have the input's dtype, and are rounded once as eager's are."""
    module, shape = layer_of(name)
    if not has_bias:
        module[0].bias = None
    module.to(dtype)
    x = torch.randn(2, *shape, dtype=dtype)
    if len(shape) == 3:
        x = x.contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        ours = mlcc.jit(module)(x)
        assert ours.dtype == dtype
        check(ours, module, x)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_special_numbers(number: float) -> None:
    """A NaN or an infinity of the image reaches the pixels that eager shows it at, and no others."""
    module, shape = layer_of("3x3")
    x = torch.randn(1, *shape)
    x[0, 3, 0, 5] = number
    with torch.no_grad():
        ours, eager = mlcc.jit(module)(x), module(x)
    assert torch.equal(ours.isfinite(), eager.isfinite())
    torch.testing.assert_close(ours, eager, equal_nan=True, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["3x3", "1x1 of stride 2", "stem", "groups", "1d"])
def test_symbolic_sizes(name: str) -> None:
    """Batches and images of sizes that were not seen before."""
    module, shape = layer_of(name)
    compiled = mlcc.jit(module)
    with torch.no_grad():
        for batch, more in [(2, 0), (3, 0), (5, 1), (4, 6), (2, 3), (3, 9)]:
            x = torch.randn(batch, shape[0], *(size + more for size in shape[1:]))
            check(compiled(x), module, x)


def test_weights_that_change() -> None:
    """Weights that are arguments."""

    def function(x: Tensor, w: Tensor) -> Tensor:
        return F.conv2d(x.relu(), w, padding=1).relu()

    compiled = mlcc.jit(function)
    for _ in range(3):
        x, w = torch.randn(2, 16, 12, 12), torch.randn(32, 16, 3, 3)
        torch.testing.assert_close(compiled(x, w), function(x, w), atol=1e-4, rtol=1e-4)


class Block(nn.Module):
    """Convolutions with everything between them that keeps images."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, 2, 1)
        self.first = nn.Conv2d(32, 32, 3, 1, 1, bias=False)
        self.norm = nn.BatchNorm2d(32)
        self.depthwise = nn.Conv2d(32, 32, 3, 1, 1, groups=32)
        self.gate = nn.Conv2d(32, 32, 1)
        self.up = nn.ConvTranspose2d(32, 32, 2, 2)
        self.join = nn.Conv2d(64, 40, 3, 1, 1)
        self.last = nn.Linear(40, 10)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Numbers, a mean and an image."""
        x = F.max_pool2d(self.stem(x).relu(), 3, 2, 1)
        y = self.norm(self.first(x)).relu() + x
        y = F.relu6(self.depthwise(y))
        y = y * torch.sigmoid(self.gate(F.adaptive_avg_pool2d(y, 1)))
        z = torch.cat(
            (self.up(F.avg_pool2d(y, 2)), F.pad(y, (1, 2, 0, 0), mode="reflect")[..., 1:-2]), 1
        )
        z = F.gelu(self.join(z))
        return self.last(z.mean((2, 3))), y.amax((1, 2)), z


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_chains(memory_format: torch.memory_format) -> None:
    """A network's results and their strides."""
    torch.manual_seed(0)
    module = Block().eval().to(memory_format=memory_format)
    nn.init.uniform_(module.norm.running_var, 0.5, 1.5)
    x = torch.randn(2, 3, 64, 48).contiguous(memory_format=memory_format)
    with torch.no_grad():
        for ours, eager in zip(mlcc.jit(module)(x), module(x), strict=True):
            torch.testing.assert_close(ours, eager, atol=1e-5, rtol=1e-4)
            assert ours.stride() == eager.stride()


TRANSPOSED: dict[str, tuple[int, int, tuple[int, ...], dict[str, Any]]] = {
    "2x2 of stride 2": (64, 32, (8, 9), {"kernel_size": 2, "stride": 2}),
    "4x4 of stride 2": (40, 48, (7, 7), {"kernel_size": 4, "stride": 2, "padding": 1}),
    "3x3 of stride 2": (
        *(16, 32, (9, 7)),
        {"kernel_size": 3, "stride": 2, "padding": 1, "output_padding": 1},
    ),
    "3x3": (32, 33, (9, 9), {"kernel_size": 3, "padding": 2, "dilation": 2, "bias": False}),
    "gaps": (32, 32, (5, 6), {"kernel_size": (1, 2), "stride": 3, "output_padding": (2, 1)}),
    "groups": (32, 64, (8, 8), {"kernel_size": 3, "padding": 1, "groups": 2}),
    "rows that no window sees": (
        *(32, 32, (2, 8)),
        {
            "kernel_size": (1, 3),
            "stride": (1, 3),
            "padding": (0, 2),
            "dilation": 2,
            "output_padding": (1, 1),
        },
    ),
    "dilated": (16, 16, (8, 8), {"kernel_size": 3, "stride": 2, "dilation": 2}),
    "1d": (16, 32, (30,), {"kernel_size": 5, "padding": 2, "stride": 3}),
    "3d": (8, 32, (4, 5, 6), {"kernel_size": 2, "stride": (2, 1, 2), "padding": (0, 1, 1)}),
}


def transposed_layer(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    """The same as `layer_of` of a transposed convolution."""
    inputs, outputs, image, arguments = TRANSPOSED[name]
    kind = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[len(image) - 1]
    torch.manual_seed(0)
    layer = kind(inputs, outputs, **arguments)
    return nn.Sequential(layer, nn.LeakyReLU(0.5)).eval(), (inputs, *image)


@pytest.mark.parametrize("name", TRANSPOSED)
def test_transposed(name: str) -> None:
    """Transposed convolutions of images in both formats."""
    module, shape = transposed_layer(name)
    x = torch.randn(2, *shape)
    compiled = mlcc.jit(module)
    with torch.no_grad():
        check(compiled(x), module, x)
        if len(shape) == 3:
            last = x.contiguous(memory_format=torch.channels_last)
            check(compiled(last), module, last)


def gradients(module: nn.Module, function: Any, x: Tensor) -> list[Tensor]:
    """Of a sum, of which each element has another weight."""
    x = x.detach().requires_grad_()
    return list(torch.autograd.grad(function(x).sin().sum(), (x, *module.parameters())))


def check_gradients(module: nn.Module, function: Any, x: Tensor) -> None:
    """Against float64, as exact as eager's but for a small factor; strides as eager's."""
    ours, eager = gradients(module, function, x), gradients(module, module, x)
    exact = gradients(module.double(), module, x.double())
    module.to(x.dtype)
    for mine, theirs, wanted in zip(ours, eager, exact, strict=True):
        assert mine.shape == theirs.shape
        assert strides(mine) == strides(theirs)
        scale = wanted.abs().max()
        error = (mine - wanted).abs().max() / scale
        assert error <= max(4 * (theirs - wanted).abs().max() / scale, 2e-6)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", [*CASES, *TRANSPOSED])
def test_gradients(name: str, dynamic: bool) -> None:
    """Gradients of the image, the weights and the bias, of two layers: what the first computes is an image."""
    module, shape = (layer_of if name in CASES else transposed_layer)(name)
    torch._dynamo.reset()
    first = nn.Sequential(nn.LeakyReLU(0.5), module)
    compiled = torch.compile(first, backend="mlcc", dynamic=dynamic)
    for batch in (12, 3) if dynamic else (12,):
        check_gradients(first, compiled, torch.randn(batch, *shape))


@pytest.mark.parametrize("dtype", OTHER_DTYPES)
@pytest.mark.parametrize("name", ["3x3", "1x1 of stride 2", "stem", "groups", "depthwise"])
def test_gradients_of_other_dtypes(dtype: torch.dtype, name: str) -> None:
    """Sums over pixels are not rounded before the end."""
    module, shape = layer_of(name)
    module = nn.Sequential(nn.LeakyReLU(0.5), module).to(dtype)
    torch._dynamo.reset()
    compiled = torch.compile(module, backend="mlcc", dynamic=False)
    check_gradients(module, compiled, torch.randn(12, *shape, dtype=dtype))


@pytest.mark.parametrize("batch", [1, 4, 6, 30])
@pytest.mark.parametrize("side", [3, 12, 96])
def test_parts(batch: int, side: int) -> None:
    """Gradients of weights that are summed over several images, one by one, or over rows of them."""
    module = nn.Sequential(nn.Conv2d(16, 32, 3, 1, 1), nn.ReLU(), nn.Conv2d(32, 16, 3, 2, 1))
    compiled = torch.compile(module, backend="mlcc", dynamic=False)
    check_gradients(module, compiled, torch.randn(batch, 16, side, side))


def test_images_of_calls() -> None:
    """Gradients of weights from images that calls lay channels-first."""
    module = nn.Sequential(nn.Conv2d(64, 32, 1), nn.ReLU(), nn.Conv2d(32, 64, 1))
    compiled = torch.compile(module, backend="mlcc", dynamic=False)
    check_gradients(module, compiled, torch.randn(8, 64, 4, 4))


def test_training() -> None:
    """Steps of a network with batch norms, some of whose convolutions stay calls, in both formats."""
    layers = [nn.Conv2d(3, 32, 7, 2, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    layers += [nn.Conv2d(32, 64, 3, 2, 1, bias=False), nn.BatchNorm2d(64), nn.Hardswish()]
    layers += [nn.Conv2d(64, 64, 3, 1, 1, groups=64), nn.ReLU(), nn.ConvTranspose2d(64, 24, 2, 2)]
    layers += [nn.GELU(), nn.Conv2d(24, 5, 1)]
    module = nn.Sequential(*layers)
    compiled = torch.compile(module, backend="mlcc")
    x = torch.randn(2, 3, 64, 48)
    check_gradients(module, compiled, x)
    check_gradients(module, compiled, x.contiguous(memory_format=torch.channels_last))
    check_gradients(module, compiled, torch.randn(3, 3, 32, 32))


def test_code_for_unknown_sizes_holds_no_sizes(mlcc_log: Any) -> None:
    """Blocks are as large as the image asks for when the kernel runs: a trace at another size finds its kernels."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 32, 7, 2, 3), nn.Conv2d(32, 64, 3, 1, 1), nn.Conv2d(64, 64, 1)]
    module = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2]).eval()
    new = []  # contractions so far
    with mlcc_log("cache") as lines, torch.no_grad():
        for size in (40, 96, 64):
            torch._dynamo.reset()
            x = torch.randn(1, 3, size, size)
            torch._dynamo.mark_dynamic(x, 2)
            torch._dynamo.mark_dynamic(x, 3)
            # Blocks of transformed images follow the size of the trace.
            compiled = torch.compile(module, backend="mlcc", options={"winograd": False})
            check(compiled(x), module, x)
            found = [line for line in lines if line.endswith("is new")]
            new.append(sum("kernel contract" in line for line in found))
    assert new[0] > 0
    assert new == new[:1] * 3


@pytest.mark.parametrize("size", [7, 8])
def test_an_image_that_shrinks_to_a_pixel_whose_trace_says_so(size: int) -> None:
    """A guard says that the symbolic size is 1: the next image's is a number, its result's an expression."""
    module = nn.Sequential(nn.Conv2d(1, 8, 7, stride=2), nn.Conv2d(8, 16, 1, padding=1)).eval()
    x = torch.randn(3, 1, size, size)
    with torch.no_grad():
        check(mlcc.jit(module)(x), module, x)
        check(torch.compile(module, backend="mlcc", dynamic=True)(x), module, x)
    check_gradients(module, torch.compile(module, backend="mlcc", dynamic=True), x)


def _pixel(x: Tensor) -> Tensor:
    return F.adaptive_avg_pool2d(x, 1)


def _norm(x: Tensor) -> Tensor:
    return F.group_norm(x[:1], 4)


@pytest.mark.parametrize("function", [_pixel, _norm, nn.Conv2d(16, 8, 3)])
@pytest.mark.parametrize("dynamic", [False, True])
def test_strides_of_single_elements(function: Callable[[Tensor], Tensor], dynamic: bool) -> None:
    """They tell a caller's next op that an image lies channels-last."""
    for batch in (2, 1):
        x = torch.randn(batch, 16, 8, 8).to(memory_format=torch.channels_last)
        with torch.no_grad():
            found = mlcc.jit(function, dynamic=dynamic)(x)
            assert found.stride() == function(x).stride()
