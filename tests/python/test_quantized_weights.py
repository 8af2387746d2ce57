"""Weights of few bits: dequantized in the product's kernel, packed at their own size, static inside of subclasses."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

import mlcc
from tests.python.accuracy import check_all, to_double

pytestmark = pytest.mark.usefixtures("nothing_kept")

Dequantize = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Quantized(torch.nn.Module):
    """Integers of `rows` x `terms`, scales and zero points of groups; `apart`: scales follow the product."""

    def __init__(
        self,
        columns: int,
        terms: int,
        group: int,
        *,
        integers: torch.dtype = torch.int8,
        dtype: torch.dtype = torch.float32,
        has_zeros: bool = True,
    ) -> None:
        super().__init__()
        low, high = (0, 16) if integers == torch.uint8 else (-8, 8)
        groups = terms // group
        self.group, self.dtype, self.has_zeros = group, dtype, has_zeros
        self.register_buffer("q", torch.randint(low, high, (columns, terms), dtype=integers))
        self.register_buffer("scales", torch.rand(columns, groups) + 0.1)
        self.register_buffer("zeros", torch.randint(low, high, (columns, groups), dtype=integers))

    def weight(self) -> torch.Tensor:
        """Of [columns, terms]."""
        columns, terms = self.q.shape
        value = self.q.view(columns, terms // self.group, self.group).to(self.scales.dtype)
        if self.has_zeros:
            value = value - self.zeros.unsqueeze(-1)
        return (value * self.scales.unsqueeze(-1)).view(columns, terms).to(self.dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The product with the transposed weight."""
        return x @ self.weight().to(x.dtype).t()


class OfColumns(torch.nn.Module):
    """Bytes whose scales follow the product."""

    def __init__(self, columns: int, terms: int) -> None:
        super().__init__()
        self.register_buffer("q", torch.randint(-128, 128, (columns, terms), dtype=torch.int8))
        self.register_buffer("scales", torch.rand(columns))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The product with the transposed weight."""
        return (x @ self.q.to(x.dtype).t()) * self.scales.to(x.dtype)


def exact_of(module: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """In f64, of the same integers."""
    module = copy.deepcopy(module)
    for name, buffer in list(module.named_buffers()):
        if buffer.is_floating_point():
            setattr(module, name, buffer.double())
    if isinstance(module, Quantized):
        module.dtype = torch.float64
    result: torch.Tensor = module(to_double([x])[0])
    return result


def check(module: torch.nn.Module, x: torch.Tensor, **options: Any) -> Any:
    """The function that was compiled, after calls with and without kept packs that are as good as eager's."""
    with torch.no_grad():
        compiled = mlcc.jit(module, **options)
        for _ in range(2):
            check_all(compiled(x), module(x), exact_of(module, x))
    return compiled


def kept_bytes() -> int:
    """Of all packs."""
    return int(mlcc.cache_info()["pack_bytes"])


@pytest.mark.parametrize("rows", [1, 2, 5, 12, 13, 33, 100])
@pytest.mark.parametrize(
    ("columns", "terms", "group"), [(64, 64, 32), (77, 96, 16), (130, 256, 256), (3, 32, 8)]
)
def test_sizes(rows: int, columns: int, terms: int, group: int) -> None:
    check(Quantized(columns, terms, group), torch.randn(rows, terms))
    check(OfColumns(columns, terms), torch.randn(rows, terms))


@pytest.mark.parametrize("cpu", ["", "haswell"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("rows", "terms", "group"), [(1, 1024, 32), (7, 2080, 1040), (40, 1024, 128)]
)
def test_dtypes(dtype: torch.dtype, rows: int, terms: int, group: int, cpu: str) -> None:
    with mlcc.config.patch(cpu=cpu):
        x = torch.randn(rows, terms).to(dtype)
        check(OfColumns(70, terms), x)
        check(Quantized(70, terms, group, dtype=dtype), x)
        check(Quantized(70, terms, group, integers=torch.uint8), x)
        check(Quantized(70, terms, group, has_zeros=False), x)


@pytest.mark.parametrize("terms", [1, 3, 33, 255, 1023])
def test_odd_depths(terms: int) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        check(OfColumns(40, terms), torch.randn(9, terms).to(dtype))
        check(Quantized(40, terms, terms, dtype=dtype), torch.randn(9, terms).to(dtype))


def test_rows_of_any_number() -> None:
    module = Quantized(96, 512, 64)
    with torch.no_grad():
        compiled = mlcc.jit(module)
        for rows in (5, 1, 12, 40, 300, 2):
            x = torch.randn(rows, 512)
            check_all(compiled(x), module(x), exact_of(module, x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [3, 40])
def test_packs_have_the_size_of_integers(rows: int, dtype: torch.dtype) -> None:
    module = Quantized(256, 1024, 128, dtype=dtype)
    before = kept_bytes()
    check(module, torch.randn(rows, 1024).to(dtype))
    assert 0 < kept_bytes() - before <= 1.2 * 256 * 1024


class WithMinima(Quantized):
    """Weights of a scale times an integer, plus or minus a number of the group."""

    def __init__(self, columns: int, terms: int, group: int, *, is_added: bool) -> None:
        super().__init__(columns, terms, group, integers=torch.uint8, has_zeros=False)
        self.is_added = is_added
        self.register_buffer("minima", torch.rand(columns, terms // group))

    def weight(self) -> torch.Tensor:
        """Of [columns, terms]."""
        scaled = super().weight().unflatten(1, (-1, self.group))
        minima = self.minima.unsqueeze(-1)
        return (scaled + minima if self.is_added else scaled - minima).flatten(1)


@pytest.mark.parametrize("cpu", ["", "haswell"])
@pytest.mark.parametrize("is_added", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 8, 9, 40])
def test_minima_of_groups(rows: int, is_added: bool, cpu: str) -> None:
    with mlcc.config.patch(cpu=cpu):
        check(WithMinima(70, 256, 32, is_added=is_added), torch.randn(rows, 256))


@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("group", [40, 1040])
def test_minima_that_cancel(group: int, rows: int) -> None:
    module = WithMinima(33, 1040, group, is_added=False)
    module.minima.copy_(7.5 * module.scales)
    check(module, torch.rand(rows, 1040) + 1)


@pytest.mark.parametrize("cpu", ["", "haswell"])
def test_rows_that_are_infinite(cpu: str) -> None:
    x = torch.randn(1, 128)
    x[0, 3] = float("inf")
    module = WithMinima(70, 128, 32, is_added=False)
    with torch.no_grad(), mlcc.config.patch(cpu=cpu):
        found, eager = mlcc.jit(module)(x), module(x)
        assert torch.equal(found.isnan(), eager.isnan())
        assert torch.equal(found == float("inf"), eager == float("inf"))


@pytest.mark.parametrize("rows", [1, 4, 9])
@pytest.mark.parametrize("shape", [(), (1,), (4, 1), (1, 4, 1), (70, 1, 1), (70, 4, 1)])
def test_shapes_of_scales(shape: tuple[int, ...], rows: int) -> None:
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            q = torch.randint(-128, 128, (70, 4, 32), dtype=torch.int8)
            self.register_buffer("q", q)
            self.register_buffer("scales", torch.rand(shape) + 0.1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ (self.q.to(self.scales.dtype) * self.scales).flatten(1).t()

    with mlcc.config.patch(verify="always", strict=True):
        check(Scaled(), torch.randn(rows, 128))


@pytest.mark.parametrize("cpu", ["", "haswell", "x86-64"])
def test_numbers_that_four_bits_tell(cpu: str) -> None:
    def function(q: torch.Tensor, z: torch.Tensor) -> list[torch.Tensor]:
        bits = [(q >> shift) & 15 for shift in range(8)]
        signed = [bit.to(torch.int8) + added for bit in bits for added in (-128, -8, 0, 112, 113)]
        unsigned = [bit + added for bit in bits for added in (0, 3, 240, 241, 248)]
        others = [other for bit in bits for other in (bit + z, bit - z, z - bit)]
        return [number.float() for number in signed + unsigned + others]

    q, z = torch.arange(256, dtype=torch.uint8), torch.randint(0, 256, (256,), dtype=torch.uint8)
    with mlcc.config.patch(cpu=cpu):
        for found, eager in zip(mlcc.jit(function)(q, z), function(q, z), strict=True):
            assert torch.equal(found, eager)


@pytest.mark.parametrize("rows", [1, 3, 40])
def test_integers_made_of_what_is_rounded(rows: int) -> None:
    class Again(Quantized):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scales = self.scales.bfloat16().unsqueeze(-1)
            values = self.q.view(*self.scales.shape, self.group).bfloat16() * scales
            return x @ (values.to(torch.int8).bfloat16() * scales).flatten(1).t()

    module, x = Again(70, 256, 32), torch.randn(rows, 256).bfloat16()
    with torch.no_grad():
        torch.testing.assert_close(mlcc.jit(module)(x), module(x), rtol=2e-2, atol=0.2)


@pytest.mark.parametrize("rows", [1, 7, 12, 40])
def test_bytes_as_doubles(rows: int) -> None:
    with mlcc.config.patch(strict=True):
        check(OfColumns(70, 33), torch.randn(rows, 33).double())


def test_a_change_of_any_part_is_seen() -> None:
    module, x = Quantized(64, 128, 32), torch.randn(4, 128)
    compiled = check(module, x)
    for part in (module.q, module.scales, module.zeros):
        with torch.no_grad():
            part[3] += 1
            check_all(compiled(x), module(x), exact_of(module, x))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 0.0])
@pytest.mark.parametrize("columns", [64, 70])
def test_special_scales(value: float, columns: int) -> None:
    module, x = Quantized(columns, 128, 32), torch.randn(4, 128)
    module.scales[5, 2] = value
    with torch.no_grad():
        torch.testing.assert_close(
            mlcc.jit(module)(x), module(x), equal_nan=True, rtol=1e-4, atol=1e-3
        )


def test_what_else_reads_the_weight() -> None:
    class Twice(Quantized):
        def forward(self, x: torch.Tensor) -> Any:
            weight = self.weight()
            return x @ weight.t(), weight.sum()

    module, x = Twice(64, 128, 32), torch.randn(4, 128)
    with torch.no_grad():
        for found, eager in zip(mlcc.jit(module)(x), module(x), strict=True):
            torch.testing.assert_close(found, eager, rtol=1e-4, atol=1e-3)


def test_gates_that_multiply_the_same_rows() -> None:
    class Gated(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.up, self.down = (
                Quantized(*size, 32) for size in [(96, 64), (96, 64), (64, 96)]
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.down(torch.nn.functional.silu(self.gate(x)) * self.up(x))
            return result

    module = Gated()
    for rows in (1, 40):
        x = torch.randn(rows, 64)
        with torch.no_grad():
            torch.testing.assert_close(mlcc.jit(module)(x), module(x), rtol=1e-3, atol=1e-1)


def test_kernels_are_verified() -> None:
    with mlcc.config.patch(verify="always", strict=True):
        for rows in (1, 5, 40):
            for dtype in (torch.float32, torch.bfloat16):
                check(Quantized(70, 256, 32, dtype=dtype), torch.randn(rows, 256).to(dtype))
                check(OfColumns(70, 256), torch.randn(rows, 256).to(dtype))


class InParts(torch.Tensor):
    """A weight of bytes and scales, as libraries for quantization make them."""

    q: torch.Tensor
    scales: torch.Tensor

    @staticmethod
    def __new__(cls, q: torch.Tensor, scales: torch.Tensor) -> InParts:
        made: InParts = torch.Tensor._make_wrapper_subclass(cls, q.shape, dtype=scales.dtype)
        made.q, made.scales = q, scales
        return made

    def __repr__(self) -> str:
        return f"InParts({self.q.shape})"

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["q", "scales"], None

    @classmethod
    def __tensor_unflatten__(cls, parts: Any, context: Any, size: Any, stride: Any) -> InParts:
        del context, size, stride
        return cls(parts["q"], parts["scales"])

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if op in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            return cls(args[0].q, args[0].scales)
        raise NotImplementedError(op)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is torch.nn.functional.linear:
            x, weight = args[0], args[1]
            bias = args[2] if len(args) > 2 else (kwargs or {}).get("bias")
            result = (x @ weight.q.t().to(x.dtype)) * weight.scales
            return result if bias is None else result + bias
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))


def test_what_lies_inside_of_a_parameter_is_static() -> None:
    linear = torch.nn.Linear(256, 96).eval()
    q = torch.randint(-128, 128, (96, 256), dtype=torch.int8)
    scales = torch.rand(96) / 100
    linear.weight = torch.nn.Parameter(InParts(q, scales), requires_grad=False)
    x = torch.randn(3, 256)
    before = kept_bytes()
    with torch.no_grad():
        compiled = torch.compile(linear, backend="mlcc")
        for _ in range(2):
            torch.testing.assert_close(compiled(x), linear(x))
        assert 0 < kept_bytes() - before <= 1.1 * q.numel()
        q[3] += 1
        torch.testing.assert_close(compiled(x), linear(x))
