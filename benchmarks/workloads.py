"""Memory-bound workloads: each is a function of tensors in PyTorch, and its inputs for a footprint in bytes.

for workload in WORKLOADS.values():
    case = workload.case(8 * MIB)     # inputs and results together about 8 MiB
    case.function(*case.inputs)

All numbers are random, by a fixed seed. What the roofline needs (bytes that must move, arithmetic) is derived from the
function by `benchmarks/roofline.py`, except where a part of an input is read only: `Case.bytes_read`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import tree_leaves

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Case:
    """A function and what to call it with; `in_place` names the inputs that it changes, by position."""

    function: Callable[..., object]
    inputs: tuple[Tensor, ...]
    bytes_read: int | None = None  # of the inputs, where less than all of them is needed
    in_place: tuple[int, ...] = ()
    is_random: bool = False  # no two contenders draw the same

    def pure(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """All tensors of a call that changes nothing: what the function changes in place comes after its results."""
        own = [x.clone() if i in self.in_place else x for i, x in enumerate(inputs)]
        results = self.function(*own)
        tensors = [leaf for leaf in tree_leaves(results) if isinstance(leaf, Tensor)]
        return (*tensors, *(own[i] for i in self.in_place))


@dataclass(frozen=True)
class Workload:
    """A function of tensors, and how to make its inputs."""

    name: str
    title: str
    make: Callable[[int], Case]

    def case(self, footprint: int) -> Case:
        """At about `footprint` bytes of inputs and results; the same numbers at each call."""
        torch.manual_seed(0)
        return self.make(footprint)


WORKLOADS: dict[str, Workload] = {}


def workload(title: str) -> Callable[[Callable[[int], Case]], Callable[[int], Case]]:
    """Registers a function from a footprint to a case under its own name."""

    def register(make: Callable[[int], Case]) -> Callable[[int], Case]:
        name = make.__name__
        WORKLOADS[name] = Workload(name, title, make)
        return make

    return register


def _rows(footprint: int, bytes_per_row: int) -> int:
    return max(1, round(footprint / bytes_per_row))


def _matrices(count: int, footprint: int, width: int, arrays: int, size: int = 4) -> list[Tensor]:
    """`count` matrices with rows of `width` numbers, where `arrays` such matrices make the footprint."""
    rows = _rows(footprint, arrays * width * size)
    dtype = {2: torch.bfloat16, 4: torch.float32}[size]
    return [torch.randn(rows, width, dtype=dtype) for _ in range(count)]


# -- pointwise


@workload("gelu of one tensor")
def pointwise_1(footprint: int) -> Case:
    return Case(functional.gelu, tuple(_matrices(1, footprint, 1024, 2)))


@workload("x * sigmoid(y)")
def pointwise_2(footprint: int) -> Case:
    return Case(lambda x, y: x * torch.sigmoid(y), tuple(_matrices(2, footprint, 1024, 3)))


@workload("four inputs, eight operations")
def pointwise_4(footprint: int) -> Case:
    def function(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
        return torch.relu(a * b + c) * 0.5 + (d - a).abs() * b

    return Case(function, tuple(_matrices(4, footprint, 1024, 5)))


@workload("eight inputs summed as products")
def pointwise_8(footprint: int) -> Case:
    def function(*x: Tensor) -> Tensor:
        return x[0] * x[1] + x[2] * x[3] + x[4] * x[5] + x[6] * x[7]

    return Case(function, tuple(_matrices(8, footprint, 1024, 9)))


@workload("gelu, sigmoid and tanh over an affine map")
def pointwise_chain(footprint: int) -> Case:
    def function(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        y = x * scale + shift
        return functional.gelu(y) * torch.sigmoid(x) + torch.tanh(y)

    (x,) = _matrices(1, footprint, 1024, 2)
    return Case(function, (x, torch.randn(1024), torch.randn(1024)))


@workload("sin, cos, exp and log in a row")
def transcendental(footprint: int) -> Case:
    def function(x: Tensor) -> Tensor:
        return torch.sin(x) * torch.cos(x) + torch.log(torch.exp(x) + 1)

    return Case(function, tuple(_matrices(1, footprint, 1024, 2)))


@workload("rows and columns broadcast")
def broadcast(footprint: int) -> Case:
    (x,) = _matrices(1, footprint, 1024, 2)
    row, column = torch.randn(1024), torch.randn(x.shape[0], 1)
    return Case(lambda x, row, column: (x + row) * column, (x, row, column))


@workload("outer sum of two vectors")
def broadcast_outer(footprint: int) -> Case:
    rows = _rows(footprint, 1024 * 4)
    return Case(lambda a, b: torch.relu(a[:, None] + b), (torch.randn(rows), torch.randn(1024)))


@workload("a transposed operand beside a straight one")
def transpose(footprint: int) -> Case:
    side = max(1, math.isqrt(footprint // 12))
    return Case(lambda x, y: x.t() * 2 + y, (torch.randn(side, side), torch.randn(side, side)))


@workload("heads brought to the front, with a bias")
def transpose_heads(footprint: int) -> Case:
    tokens = _rows(footprint, 2 * 768 * 4)

    def function(x: Tensor, bias: Tensor) -> Tensor:
        return (x + bias).unflatten(1, (12, 64)).transpose(0, 1).contiguous()

    return Case(function, (torch.randn(tokens, 768), torch.randn(768)))


# -- softmax and losses


@workload("softmax of rows of 1024")
def softmax(footprint: int) -> Case:
    return Case(lambda x: torch.softmax(x, -1), tuple(_matrices(1, footprint, 1024, 2)))


@workload("softmax of rows of 1024 with scale and mask")
def softmax_masked(footprint: int) -> Case:
    rows = _rows(footprint, 1024 * 9)

    def function(x: Tensor, mask: Tensor) -> Tensor:
        return torch.softmax((x * 0.125).masked_fill(mask, -torch.inf), -1)

    mask = torch.rand(rows, 1024) < 0.3
    return Case(function, (torch.randn(rows, 1024), mask))


@workload("log-softmax of rows of 1024")
def log_softmax(footprint: int) -> Case:
    return Case(lambda x: torch.log_softmax(x, -1), tuple(_matrices(1, footprint, 1024, 2)))


@workload("softmax over the first dimension")
def softmax_columns(footprint: int) -> Case:
    rows = _rows(footprint, 2 * 1024 * 4)
    return Case(lambda x: torch.softmax(x, 0), (torch.randn(rows, 1024),))


def _cross_entropy(footprint: int, classes: int) -> Case:
    rows = _rows(footprint, classes * 4)
    return Case(
        functional.cross_entropy, (torch.randn(rows, classes), torch.randint(0, classes, (rows,)))
    )


@workload("cross entropy of 32,000 classes")
def cross_entropy_32k(footprint: int) -> Case:
    return _cross_entropy(footprint, 32000)


@workload("cross entropy of 128,256 classes")
def cross_entropy_128k(footprint: int) -> Case:
    return _cross_entropy(footprint, 128256)


@workload("gradient of softmax")
def softmax_backward(footprint: int) -> Case:
    def function(gradient: Tensor, y: Tensor) -> Tensor:
        product = gradient * y
        return product - y * product.sum(-1, keepdim=True)

    return Case(function, tuple(_matrices(2, footprint, 1024, 3)))


@workload("smooth L1 loss, the mean of all")
def smooth_l1(footprint: int) -> Case:
    return Case(functional.smooth_l1_loss, tuple(_matrices(2, footprint, 1024, 2)))


# -- norms


@workload("layer norm of 768, then gelu")
def layer_norm_gelu(footprint: int) -> Case:
    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return functional.gelu(functional.layer_norm(x, (768,), weight, bias))

    (x,) = _matrices(1, footprint, 768, 2)
    return Case(function, (x, torch.randn(768), torch.randn(768)))


@workload("residual sum and its layer norm of 768, both kept")
def layer_norm_residual(footprint: int) -> Case:
    def function(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        total = x + y
        return total, functional.layer_norm(total, (768,), weight, bias)

    return Case(function, (*_matrices(2, footprint, 768, 4), torch.randn(768), torch.randn(768)))


@workload("gradient of layer norm of 768: of input, weight and bias")
def layer_norm_backward(footprint: int) -> Case:
    gradient, x = _matrices(2, footprint, 768, 3)
    _, mean, scale = torch.native_layer_norm(x, (768,), None, None, 1e-5)

    def function(
        gradient: Tensor, x: Tensor, mean: Tensor, scale: Tensor, weight: Tensor
    ) -> object:
        return torch.ops.aten.native_layer_norm_backward(
            gradient, x, (768,), mean, scale, weight, weight, [True, True, True]
        )

    return Case(function, (gradient, x, mean, scale, torch.randn(768)))


@workload("RMS norm of 4096 after a residual sum")
def rms_norm(footprint: int) -> Case:
    def function(x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        total = x + y
        return total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + 1e-6) * weight

    return Case(function, (*_matrices(2, footprint, 4096, 3), torch.randn(4096)))


@workload("RMS norm of 2048, then SwiGLU with a second tensor")
def rms_norm_swiglu(footprint: int) -> Case:
    def function(x: Tensor, gate: Tensor, weight: Tensor) -> Tensor:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return functional.silu(gate) * (x * scale * weight)

    return Case(function, (*_matrices(2, footprint, 2048, 3), torch.randn(2048)))


def _images(footprint: int, arrays: int) -> Tensor:
    """Images of 64 channels and 28 x 28 places, where `arrays` such tensors make the footprint."""
    return torch.randn(_rows(footprint, arrays * 64 * 28 * 28 * 4), 64, 28, 28)


@workload("group norm of images, then SiLU")
def group_norm(footprint: int) -> Case:
    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return functional.silu(functional.group_norm(x, 8, weight, bias))

    return Case(function, (_images(footprint, 2), torch.randn(64), torch.randn(64)))


@workload("batch norm of images with frozen statistics, a sum and relu")
def batch_norm(footprint: int) -> Case:
    def function(x: Tensor, y: Tensor, mean: Tensor, var: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return torch.relu(functional.batch_norm(x, mean, var, w, b) + y)

    x = _images(footprint, 3)
    statistics = (torch.randn(64), torch.rand(64) + 0.5, torch.randn(64), torch.randn(64))
    return Case(function, (x, torch.randn_like(x), *statistics))


@workload("batch norm of images in training, then relu")
def batch_norm_training(footprint: int) -> Case:
    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.relu(functional.batch_norm(x, None, None, weight, bias, training=True))

    return Case(function, (_images(footprint, 2), torch.randn(64), torch.randn(64)))


# -- gated units, positions


def _gated(activation: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor) -> Tensor:
        gate, up = x.chunk(2, -1)
        return activation(gate) * up

    return function


@workload("SwiGLU over halves of rows of 2 x 2048")
def swiglu(footprint: int) -> Case:
    rows = _rows(footprint, 3 * 2048 * 4)
    return Case(_gated(functional.silu), (torch.randn(rows, 4096),))


@workload("GeGLU over halves of rows of 2 x 2048")
def geglu(footprint: int) -> Case:
    rows = _rows(footprint, 3 * 2048 * 4)
    return Case(_gated(functional.gelu), (torch.randn(rows, 4096),))


@workload("rotary positions on heads of 64")
def rope(footprint: int) -> Case:
    tokens = _rows(footprint, 2 * 12 * 64 * 4)

    def function(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat((-second, first), -1) * sin

    return Case(
        function, (torch.randn(12, tokens, 64), torch.randn(tokens, 64), torch.randn(tokens, 64))
    )


# -- computed places


@workload("rows of 256 gathered from a table of twice as many")
def gather_rows(footprint: int) -> Case:
    rows = _rows(footprint, 2 * 256 * 4)
    table, index = torch.randn(2 * rows, 256), torch.randint(0, 2 * rows, (rows,))
    return Case(
        lambda table, index: table[index] * 2, (table, index), bytes_read=rows * (256 * 4 + 8)
    )


@workload("token and position embeddings of 768, summed")
def embedding(footprint: int) -> Case:
    tokens = _rows(footprint, 3 * 768 * 4)
    table, positions = torch.randn(30522, 768), torch.randn(tokens, 768)
    index = torch.randint(0, 30522, (tokens,))

    def function(index: Tensor, table: Tensor, positions: Tensor) -> Tensor:
        return functional.embedding(index, table) + positions

    bytes_read = tokens * (2 * 768 * 4 + 8)
    return Case(function, (index, table, positions), bytes_read=bytes_read)


@workload("rows of 64 added at computed places of a table")
def scatter_add(footprint: int) -> Case:
    rows = _rows(footprint, 3 * 64 * 4 // 2)
    base, source = torch.zeros(max(1, rows // 4), 64), torch.randn(rows, 64)
    index = torch.randint(0, base.shape[0], (rows,))
    return Case(lambda base, index, source: base.index_add(0, index, source), (base, index, source))


@workload("cumulative sums of rows of 1024")
def cumsum(footprint: int) -> Case:
    return Case(lambda x: torch.cumsum(x, -1), tuple(_matrices(1, footprint, 1024, 2)))


@workload("largest element in windows of 3 x 3, step 2")
def max_pool(footprint: int) -> Case:
    images = torch.randn(_rows(footprint, 5 * 64 * 28 * 28), 64, 28, 28)
    return Case(lambda x: functional.max_pool2d(x, 3, 2, 1), (images,))


@workload("mean of windows of 2 x 2, step 2")
def avg_pool(footprint: int) -> Case:
    images = torch.randn(_rows(footprint, 5 * 64 * 28 * 28), 64, 28, 28)
    return Case(lambda x: functional.avg_pool2d(x, 2), (images,))


# -- reductions


@workload("variance and mean of rows of 1024")
def variance(footprint: int) -> Case:
    return Case(lambda x: torch.var_mean(x, -1), tuple(_matrices(1, footprint, 1024, 1)))


@workload("sum of squares of everything")
def sum_all(footprint: int) -> Case:
    return Case(lambda x: (x * x).sum(), tuple(_matrices(1, footprint, 1024, 1)))


@workload("sums of columns")
def sum_columns(footprint: int) -> Case:
    return Case(lambda x: x.sum(0), tuple(_matrices(1, footprint, 1024, 1)))


@workload("largest of each row and where it stands")
def argmax(footprint: int) -> Case:
    return Case(lambda x: torch.max(x, -1), tuple(_matrices(1, footprint, 1024, 1)))


@workload("mean over the places of images")
def mean_places(footprint: int) -> Case:
    return Case(lambda x: torch.relu(x).mean((2, 3)), (_images(footprint, 1),))


# -- small dtypes


@workload("bf16: gelu of rows with a bias")
def bf16_bias_gelu(footprint: int) -> Case:
    (x,) = _matrices(1, footprint, 1024, 2, size=2)
    bias = torch.randn(1024, dtype=torch.bfloat16)
    return Case(lambda x, bias: functional.gelu(x + bias), (x, bias))


@workload("bf16: layer norm of 768")
def bf16_layer_norm(footprint: int) -> Case:
    (x,) = _matrices(1, footprint, 768, 2, size=2)
    weight, bias = torch.randn(2, 768, dtype=torch.bfloat16)
    return Case(lambda x, w, b: functional.layer_norm(x, (768,), w, b), (x, weight, bias))


@workload("bf16: softmax of rows of 1024")
def bf16_softmax(footprint: int) -> Case:
    return Case(lambda x: torch.softmax(x, -1), tuple(_matrices(1, footprint, 1024, 2, size=2)))


@workload("f32 to int8 by a scale per row")
def int8_quantize(footprint: int) -> Case:
    rows = _rows(footprint, 1024 * 5)

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        scale = x.abs().amax(-1, keepdim=True) / 127
        return torch.clamp(torch.round(x / scale), -128, 127).to(torch.int8), scale

    return Case(function, (torch.randn(rows, 1024),))


@workload("int8 to f32 by scale and zero point, with a sum")
def int8_dequantize(footprint: int) -> Case:
    rows = _rows(footprint, 1024 * 9)

    def function(q: Tensor, scale: Tensor, zero: Tensor, residual: Tensor) -> Tensor:
        return (q.to(torch.float32) - zero) * scale + residual

    q = torch.randint(-128, 127, (rows, 1024), dtype=torch.int8)
    per_row = (torch.rand(rows, 1), torch.randn(rows, 1))
    return Case(function, (q, *per_row, torch.randn(rows, 1024)))


# -- optimizers, dropout, joined tensors


def _parameters(footprint: int, arrays: int) -> Sequence[int]:
    """Numbers of elements of a list of parameters like a transformer's: large, small and tiny ones in turn."""
    total, sizes = footprint // (4 * arrays), []
    while total > 0:
        for size in (589824, 768, 2359296, 3072, 768):
            sizes.append(min(size, total))
            total -= sizes[-1]
            if total <= 0:
                break
    return sizes


def _adam_step(*tensors: Tensor) -> None:
    """Of parameters, gradients and the two moments, each a quarter of the tensors."""
    count = len(tensors) // 4
    parameters, gradients, first, second = (
        list(tensors[i * count : (i + 1) * count]) for i in range(4)
    )
    torch._foreach_lerp_(first, gradients, 0.1)
    torch._foreach_mul_(second, 0.999)
    torch._foreach_addcmul_(second, gradients, gradients, 0.001)
    denominators = torch._foreach_sqrt(second)
    torch._foreach_add_(denominators, 1e-8)
    torch._foreach_addcdiv_(parameters, first, denominators, -1e-3)


def _adamw_step(*tensors: Tensor) -> None:
    torch._foreach_mul_(list(tensors[: len(tensors) // 4]), 1 - 1e-5)
    _adam_step(*tensors)


def _optimizer_case(step: Callable[..., None], footprint: int) -> Case:
    sizes = _parameters(footprint, 7)  # four read, three of them written
    count = len(sizes)
    tensors = [torch.randn(size) for _ in range(3) for size in sizes]
    tensors += [torch.rand(size) for size in sizes]
    return Case(step, tuple(tensors), in_place=(*range(count), *range(2 * count, 4 * count)))


@workload("a step of Adam over a list of parameters")
def adam(footprint: int) -> Case:
    return _optimizer_case(_adam_step, footprint)


@workload("a step of AdamW over a list of parameters")
def adamw(footprint: int) -> Case:
    return _optimizer_case(_adamw_step, footprint)


@workload("dropout and a residual sum")
def dropout(footprint: int) -> Case:
    inputs = tuple(_matrices(2, footprint, 1024, 3))
    return Case(lambda x, y: functional.dropout(x, 0.1) + y, inputs, is_random=True)


@workload("three tensors side by side, then gelu")
def concat(footprint: int) -> Case:
    rows = _rows(footprint, 2 * 1536 * 4)
    parts = tuple(torch.randn(rows, 512) for _ in range(3))
    return Case(lambda a, b, c: functional.gelu(torch.cat((a, b * 2, c + 1), -1)), parts)


@workload("rows stacked below each other with zeros around")
def pad_concat(footprint: int) -> Case:
    rows = _rows(footprint, 4 * 1024 * 4)

    def function(a: Tensor, b: Tensor) -> Tensor:
        return functional.pad(torch.cat((a, b), 0), (8, 8)) * 2

    return Case(function, (torch.randn(rows, 1024), torch.randn(rows, 1024)))
