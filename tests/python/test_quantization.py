"""Quantized models of PT2E: their operators are taken apart, and their products are of integers."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest
import torch
from torch import nn

import mlcc
from tests.python.accuracy import check_all
from tests.python.sessions import Sessions

logging.disable(logging.WARNING)  # torchao tells of libraries for GPUs
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pt2e = pytest.importorskip("torchao.quantization.pt2e.quantize_pt2e")
    x86 = pytest.importorskip("torchao.quantization.pt2e.quantizer.x86_inductor_quantizer")
logging.disable(logging.NOTSET)

OPS = torch.ops.quantized_decomposed
INF, NAN = float("inf"), float("nan")


def jitted(function: Callable[..., Any], *args: Any) -> Any:
    """Its result; nothing of it runs as a call, or eagerly."""
    with torch.no_grad(), mlcc.config.patch(strict=True):
        return mlcc.jit(function)(*args)


def calls_of(function: Callable[..., Any], *args: Any) -> list[str]:
    """What the one compiled graph of a call leaves to torch."""
    session = Sessions(function)
    with torch.no_grad():
        session(*args)
    (graph,) = session.graphs
    return [step for step in graph.executable.steps if step.startswith("call")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("integers", "low", "high", "zero"),
    [(torch.uint8, 0, 255, 121), (torch.int8, -128, 127, -3), (torch.uint8, 0, 127, 0)],
)
def test_tensors(dtype: torch.dtype, integers: torch.dtype, low: int, high: int, zero: int) -> None:
    x = (torch.randn(33, 70) * 4).to(dtype)
    scale = torch.tensor([0.031])

    def by_numbers(x: torch.Tensor) -> Any:
        q = OPS.quantize_per_tensor(x, 0.031, zero, low, high, integers)
        return q, OPS.dequantize_per_tensor(q, 0.031, zero, low, high, integers)

    def by_tensors(x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> Any:
        q = OPS.quantize_per_tensor.tensor(x, scale, zero, low, high, integers)
        return q, OPS.dequantize_per_tensor.tensor(q, scale, zero, low, high, integers)

    zeros = torch.tensor([zero])
    for function, args in ((by_numbers, (x,)), (by_tensors, (x, scale, zeros))):
        for found, eager in zip(jitted(function, *args), function(*args), strict=True):
            torch.testing.assert_close(found, eager, rtol=0, atol=0)
        assert not calls_of(function, *args)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_channels(axis: int) -> None:
    x = torch.randn(5, 6, 7) * 4
    scales = torch.rand(x.shape[axis]) + 0.01
    zeros = torch.randint(-5, 5, (x.shape[axis],))

    def function(x: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> Any:
        q = OPS.quantize_per_channel(x, scales, zeros, axis, -128, 127, torch.int8)
        by_none = OPS.dequantize_per_channel(q, scales, None, axis, -128, 127, torch.int8)
        return q, OPS.dequantize_per_channel(q, scales, zeros, axis, -128, 127, torch.int8), by_none

    for found, eager in zip(
        jitted(function, x, scales, zeros), function(x, scales, zeros), strict=True
    ):
        torch.testing.assert_close(found, eager, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "x",
    [torch.randn(9, 9), torch.rand(50) + 1, -torch.rand(3, 3) - 1, torch.zeros(4), torch.ones(1)],
)
def test_chosen_scales(x: torch.Tensor, dtype: torch.dtype) -> None:
    x = x.to(dtype)

    def function(x: torch.Tensor) -> Any:
        return (
            *OPS.choose_qparams(x, 0, 255, 1e-5, torch.uint8),
            *OPS.choose_qparams(x, -128, 127, 1e-5, torch.int8),
            *OPS.choose_qparams_symmetric(x, -127, 127, 1e-5, torch.int8),
            *OPS.choose_qparams_symmetric(x, 0, 255, 1e-5, torch.uint8),
        )

    for found, eager in zip(jitted(function, x), function(x), strict=True):
        torch.testing.assert_close(found, eager, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_weights_of_torch(dtype: torch.dtype) -> None:
    x, scales = torch.randn(5, 64).to(dtype), torch.rand(40).to(dtype)
    weight = torch.randint(-128, 128, (40, 64), dtype=torch.int8)
    function = torch.ops.aten._weight_int8pack_mm
    found, eager = jitted(function, x, weight, scales), function(x, weight, scales)
    exact = (x.double() @ weight.double().t()) * scales.double()
    check_all(found, eager, exact)
    assert not calls_of(lambda *args: function(*args), x, weight, scales)


_FAKED = {
    "tensor": lambda x, s, z: torch.fake_quantize_per_tensor_affine(x, 0.0371, 3, -128, 127),
    "if": lambda x, s, z: torch.fake_quantize_per_tensor_affine(x, s[:1], z[:1], 0, 255),
    "on": lambda x, s, z: torch._fake_quantize_per_tensor_affine_cachemask_tensor_qparams(
        x, s[0], z[0], torch.ones(1, dtype=torch.int64), -8, 7
    ),
    "off": lambda x, s, z: torch._fake_quantize_per_tensor_affine_cachemask_tensor_qparams(
        x, s[0], z[0], torch.zeros(1, dtype=torch.int64), -8, 7
    ),
    "channels": lambda x, s, z: torch.fake_quantize_per_channel_affine(x, s, z, 1, -128, 127),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", _FAKED)
def test_fake_quantization(kind: str, dtype: torch.dtype, caplog: pytest.LogCaptureFixture) -> None:
    special = [nan, inf, -inf, 1e30, -1e30, 1e18, -0.0, 0.05, 0.15, 0.25, -0.05, 1e-40]
    x = torch.cat([torch.randn(120) * 20, torch.tensor(special)]).reshape(-1, 4).to(dtype)
    scales, zeros = torch.rand(4) * 0.2 + 0.01, torch.randint(-5, 5, (4,), dtype=torch.int32)
    compiled = torch.compile(_FAKED[kind], backend="mlcc", options={"strict": True})
    with caplog.at_level(logging.INFO, "mlcc.fallback"):
        for found, eager in zip(
            as_list(compiled(x, scales, zeros)),
            as_list(_FAKED[kind](x, scales, zeros)),
            strict=True,
        ):
            torch.testing.assert_close(found, eager, rtol=0, atol=0, equal_nan=True)
    assert not caplog.records
    if kind in ("on", "off"):
        return  # they have no gradients
    leaves = [x.clone().requires_grad_() for _ in range(2)]
    for function, leaf in zip((compiled, _FAKED[kind]), leaves, strict=True):
        function(leaf, scales, zeros).square().nansum().backward()
    torch.testing.assert_close(leaves[0].grad, leaves[1].grad, rtol=0, atol=0, equal_nan=True)


def as_list(results: Any) -> list[torch.Tensor]:
    """One result, or several."""
    return list(results) if isinstance(results, tuple) else [results]


class Linear(nn.Module):
    """A product of integers with zero points and scales on both sides, as PT2E writes it."""

    def __init__(self, columns: int, terms: int, weight_zero: int, dtype: torch.dtype) -> None:
        super().__init__()
        low, high = (0, 256) if dtype == torch.uint8 else (-128, 128)
        self.register_buffer("q", torch.randint(low, high, (columns, terms), dtype=dtype))
        self.register_buffer("scales", torch.rand(columns) + 0.5)
        self.register_buffer("zeros", torch.full((columns,), weight_zero, dtype=dtype))

    def forward(
        self, x: torch.Tensor, zero: torch.Tensor, scale: torch.Tensor, wide: bool = False
    ) -> torch.Tensor:
        """`x` of [rows, terms], integers; a zero point and a scale for each row. `wide`: in float64."""
        to = torch.float64 if wide else torch.float32
        weight = (self.q.to(to) - self.zeros.unsqueeze(-1)) * self.scales.to(to).unsqueeze(-1)
        return ((x.to(to) - zero) * scale.to(to)) @ weight.t()


@pytest.mark.parametrize("cpu", ["", "skylake-avx512", "haswell"])
@pytest.mark.parametrize("left", [torch.uint8, torch.int8])
@pytest.mark.parametrize("right", [torch.uint8, torch.int8])
@pytest.mark.parametrize(("rows", "columns", "terms"), [(1, 64, 128), (7, 33, 31), (40, 70, 516)])
def test_sums_are_exact(
    cpu: str, left: torch.dtype, right: torch.dtype, rows: int, columns: int, terms: int
) -> None:
    """Also where all bytes are at their limits, whose pairs leave 16 bits."""
    limits = (0, 256) if left == torch.uint8 else (-128, 128)
    for weight_zero, row_zero in ((0, 0), (5, 0), (0, 9), (7, 100)):
        module = Linear(columns, terms, weight_zero, right)
        x = torch.randint(*limits, (rows, terms), dtype=left)
        x[0] = limits[0] if row_zero else limits[1] - 1
        module.q[0] = module.q.max()
        zero = torch.full((rows, 1), row_zero, dtype=left)
        scale = torch.rand(rows, 1) + 0.5
        with mlcc.config.patch(cpu=cpu):
            found = jitted(module, x, zero, scale)
        # The sum is exact; a cast and two scales round. In float64 each product does.
        torch.testing.assert_close(
            found.double(), module(x, zero, scale, wide=True), rtol=4 * 2**-24, atol=1e-9
        )


class Whole(nn.Module):
    """Bytes with scales and zero points of rows, of which a program takes parts."""

    def __init__(self, program: Callable[[Any, torch.Tensor], Any]) -> None:
        super().__init__()
        self.program = program
        self.register_buffer("q", torch.randint(-128, 128, (120, 64), dtype=torch.int8))
        self.register_buffer("scales", torch.rand(120, 1) + 0.5)
        self.register_buffer("zeros", torch.randint(-9, 9, (120, 1), dtype=torch.int8))

    def forward(self, x: torch.Tensor) -> Any:
        """Of [rows, 64]."""
        return self.program(self, x)


PARTS: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "rows": lambda m, x: x.float()[:3] @ (m.q.float() - 3).t(),
    "columns": lambda m, x: (x.float() - 1) @ m.q[:40].float().t(),
    "middle columns": lambda m, x: (x.float() - 1) @ m.q[40:80].float().t(),
    "terms": lambda m, x: x.float()[:, :32] @ (m.q[:, :32].float() - 3).t(),
    "scales": lambda m, x: x.float() @ (m.q[:40].float() * m.scales[:40]).t(),
    "scales alone": lambda m, x: x.float() @ (m.q[:40].clone().float() * m.scales[:40]).t(),
    "zeros": lambda m, x: x.float() @ (m.q[40:80].float() - m.zeros[:40].float()).t(),
    "padded": lambda m, x: nn.functional.pad(x.float() - 3, (2, 3))[:, :64] @ m.q.float().t(),
    "thirds": lambda m, x: sum(x.float() @ w.t() for w in (m.q.float() * m.scales).chunk(3)),
    "of floats": lambda m, x: torch.sin(x.float()) @ (m.q[:40].float() * m.scales[:40]).t(),
    "of floats by terms": lambda m, x: torch.sin(x.float()[:, :32]) @ m.q[:, :32].float().t(),
    "repeated": lambda m, x: torch.sin(x.float()) @ m.q[:, :1].expand(120, 64).float().t(),
}


@pytest.mark.parametrize("part", PARTS)
def test_parts_of_tensors(part: str) -> None:
    module = Whole(PARTS[part])
    x = torch.randint(0, 256, (8, 64), dtype=torch.uint8)
    found, eager = jitted(module, x), module(x)
    torch.testing.assert_close(found, eager, rtol=1e-4, atol=1e-5 * eager.abs().max().item())


@pytest.mark.parametrize(
    ("left", "right", "zeros"),
    [(-128, -128, (255, 255)), (255, 127, (-255, -255)), (255, -128, (-128, 255))],
)
def test_zeros_that_no_byte_is(left: int, right: int, zeros: tuple[int, int]) -> None:
    module = Linear(40, 16_384, 0, torch.int8)
    module.q[:] = right
    x = torch.full((2, 16_384), left, dtype=torch.uint8 if left > 127 else torch.int8)

    def function(x: torch.Tensor) -> torch.Tensor:
        return (x.float() - zeros[0]) @ (module.q.float() - zeros[1]).t()

    with torch.no_grad():
        found = torch.compile(function, backend="mlcc")(x)
    torch.testing.assert_close(found, function(x), rtol=1e-4, atol=0)


@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float16])
def test_other_results(out_dtype: torch.dtype) -> None:
    q, scale, zero = torch.arange(256).to(torch.uint8), torch.tensor([0.0123]), torch.tensor([7])

    def by_numbers(q: torch.Tensor) -> Any:
        return OPS.dequantize_per_tensor(q, 0.0123, 7, 0, 255, torch.uint8, out_dtype=out_dtype)

    def by_tensors(q: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> Any:
        op = OPS.dequantize_per_tensor.tensor
        return op(q, scale, zero, 0, 255, torch.uint8, out_dtype=out_dtype)

    with torch.no_grad():
        for function, args in ((by_numbers, (q,)), (by_tensors, (q, scale, zero))):
            found = mlcc.jit(function)(*args)
            torch.testing.assert_close(found, function(*args), rtol=0, atol=0)


def test_scales_meet_before_sums() -> None:
    """Each is far out, their product is not."""
    module = Linear(40, 64, 0, torch.int8)
    x = torch.randint(0, 256, (3, 64), dtype=torch.uint8)

    def function(x: torch.Tensor) -> torch.Tensor:
        return (x.float() * 1e36) @ (module.q.float() * 1e-36).t()

    with torch.no_grad():
        found = torch.compile(function, backend="mlcc")(x)
    torch.testing.assert_close(found, function(x), rtol=1e-4, atol=1e-2)


def test_sums_that_leave_i32_are_of_floats() -> None:
    x = torch.full((2, 70_000), 255, dtype=torch.uint8)
    module = Linear(32, 70_000, 0, torch.int8)
    module.q[:] = 127
    zero, scale = torch.zeros(2, 1, dtype=torch.uint8), torch.ones(2, 1)
    found = jitted(module, x, zero, scale)
    torch.testing.assert_close(found.double(), module(x, zero, scale, wide=True), rtol=1e-5, atol=0)


@pytest.mark.parametrize("scale", [INF, NAN, 0.0, 1e-40])
def test_scales_that_are_no_numbers(scale: float) -> None:
    x = torch.randint(0, 256, (3, 64), dtype=torch.uint8)
    module = Linear(40, 64, 0, torch.int8)
    zero, scales = torch.zeros(3, 1, dtype=torch.uint8), torch.tensor([[1.0], [scale], [2.0]])
    found, exact = jitted(module, x, zero, scales), module(x, zero, scales, wide=True)
    torch.testing.assert_close(found[::2].double(), exact[::2], rtol=1e-6, atol=1e-9)
    assert found[1].isfinite().equal(exact[1].isfinite())


def converted(model: nn.Module, x: torch.Tensor, *, is_dynamic: bool = False) -> Any:
    """The model as PT2E quantizes it for `x` like this one."""
    exported = torch.export.export(model, (x,)).module()
    config = x86.get_default_x86_inductor_quantization_config(is_dynamic=is_dynamic)
    quantizer = x86.X86InductorQuantizer().set_global(config)
    prepared = pt2e.prepare_pt2e(exported, quantizer)
    prepared(x)
    return pt2e.convert_pt2e(prepared)


class Network(nn.Module):
    """Convolutions with pads, steps and groups, a pooling, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 32, 3, padding=1)
        self.wide = nn.Conv2d(32, 64, 3, stride=2, padding=1, bias=False)
        self.point = nn.Conv2d(64, 32, 1)
        self.grouped = nn.Conv2d(32, 32, 3, groups=32, padding=1)
        self.last = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of [N, 3, H, W]."""
        x = torch.relu(self.wide(torch.relu(self.first(x))))
        x = torch.relu(self.point(x))
        x = x + torch.relu(self.grouped(x))
        return self.last(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))


def close(found: torch.Tensor, eager: torch.Tensor) -> None:
    """But for numbers that sums in another order round to the next integer."""
    error = (found - eager).abs() / eager.abs().max()
    assert error.max() < 0.02
    assert error.median() < 2e-3


@pytest.mark.parametrize("is_dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("through", ["jit", "compile"])
def test_models(is_dynamic: bool, through: str) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(70, 96), nn.ReLU(), nn.Linear(96, 33, bias=False)).eval()
    networks: list[tuple[nn.Module, torch.Tensor]] = [(model, torch.randn(12, 70))]
    if not is_dynamic:
        networks.append((Network().eval(), torch.randn(2, 3, 16, 16)))
    for network, x in networks:
        module = converted(copy.deepcopy(network), x, is_dynamic=is_dynamic)
        compiled: Any = (
            mlcc.jit(module) if through == "jit" else torch.compile(module, backend="mlcc")
        )
        with torch.no_grad():
            for _ in range(2):
                close(compiled(x), module(x))


def test_products_are_of_integers() -> None:
    """The kernels read the weights as bytes: four terms of a column side by side."""
    x = torch.randn(12, 64)
    module = converted(nn.Sequential(nn.Linear(64, 96), nn.ReLU()).eval(), x)
    mlcc.clear_packs()
    before = mlcc.cache_info()["pack_bytes"]
    jitted(module, x)
    # The weights, and what a zero point adds up to for each column.
    assert mlcc.cache_info()["pack_bytes"] - before <= 64 * 96 + 4 * 96 + 4096
