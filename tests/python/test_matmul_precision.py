"""torch.set_float32_matmul_precision("medium"): operands of f32 products become bf16 where a CPU gains by it."""

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import mlcc
from mlcc._load import load_core

Log = Callable[..., AbstractContextManager[list[str]]]

HAS_PAIRS = "+avx512bf16" in load_core().cpu_info(mlcc.config.resolve())["features"]
needs_pairs = pytest.mark.skipif(not HAS_PAIRS, reason="the CPU multiplies no pairs of bf16")


@pytest.fixture(autouse=True)
def highest() -> Iterator[None]:
    torch._dynamo.reset()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision("highest")
    torch._dynamo.reset()


@pytest.fixture(params=["jit", "compile"])
def compiler(request: pytest.FixtureRequest) -> Callable[..., Any]:
    if request.param == "jit":
        return mlcc.jit
    return lambda f: torch.compile(f, backend="mlcc")


class Block(nn.Module):
    """A layer of a transformer."""

    def __init__(self, width: int = 64, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.projections = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.projections(self.norm(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        means = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        result: Tensor = x + self.out(means.transpose(1, 2).reshape(batch, length, width))
        return result


def error(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted).norm() / wanted.norm())


@needs_pairs
def test_the_setting_when_a_function_is_called_counts(compiler: Callable[..., Any]) -> None:
    block = Block().eval()
    x = torch.randn(2, 128, 64)
    with torch.no_grad():
        wanted = copy.deepcopy(block).double()(x.double())
        f = compiler(block)
        assert error(f(x), wanted) < 1e-6
        torch.set_float32_matmul_precision("medium")
        assert 1e-5 < error(f(x), wanted) < 5e-3
        torch.set_float32_matmul_precision("highest")
        assert error(f(x), wanted) < 1e-6


@needs_pairs
def test_the_option_stands_above_torchs_setting() -> None:
    layer = nn.Linear(64, 64)
    x = torch.randn(8, 64)
    with torch.no_grad():
        wanted = copy.deepcopy(layer).double()(x.double())
        with mlcc.config.patch(matmul_precision="medium"):
            assert error(mlcc.jit(layer)(x), wanted) > 1e-5
        torch.set_float32_matmul_precision("medium")
        with mlcc.config.patch(matmul_precision="high"):
            assert error(mlcc.jit(layer)(x), wanted) < 1e-6


def test_without_instructions_products_stay_as_they_are() -> None:
    torch.set_float32_matmul_precision("medium")
    layer = nn.Linear(64, 64)
    x = torch.randn(8, 64)
    with torch.no_grad(), mlcc.config.patch(cpu="haswell"):
        assert error(mlcc.jit(layer)(x), copy.deepcopy(layer).double()(x.double())) < 1e-6


@needs_pairs
def test_what_is_no_number_passes_through() -> None:
    torch.set_float32_matmul_precision("medium")
    layer = nn.Linear(64, 64, bias=False)
    x = torch.randn(4, 64)
    x[0, 3], x[1, 5], x[2, 7] = float("nan"), float("inf"), -float("inf")
    with torch.no_grad():
        found, wanted = mlcc.jit(layer)(x), layer(x)
    assert torch.equal(found.isnan(), wanted.isnan())
    infinite = wanted.isinf()
    assert infinite.any() and torch.equal(found[infinite], wanted[infinite])


@needs_pairs
def test_convolutions_have_a_setting_of_their_own() -> None:
    torch.set_float32_matmul_precision("medium")
    net = nn.Conv2d(16, 32, 3)
    x = torch.randn(1, 16, 12, 12)
    with torch.no_grad():
        exact = copy.deepcopy(net).double()(x.double())
        # Where a CPU has AMX, eager rounds them all the same.
        assert error(mlcc.jit(net)(x), exact) < 1e-6 + error(net(x), exact)


@needs_pairs
def test_training_rounds_products_forward_and_backward() -> None:
    torch.set_float32_matmul_precision("medium")
    block, x = Block(), torch.randn(4, 128, 64)
    exact = copy.deepcopy(block).double()
    torch.compile(block, backend="mlcc")(x).square().mean().backward()
    exact(x.double()).square().mean().backward()
    for name, parameter in block.named_parameters():
        assert parameter.grad is not None
        wanted = exact.get_parameter(name).grad
        assert wanted is not None
        assert 1e-5 < error(parameter.grad, wanted) < 2e-2, name


def test_another_setting_is_a_reason_to_trace_again(mlcc_log: Log) -> None:
    f = mlcc.jit(nn.Linear(64, 64))
    x = torch.randn(8, 64)
    with torch.no_grad(), mlcc_log("recompiles") as lines:
        f(x)
        torch.set_float32_matmul_precision("medium")
        f(x)
    assert any("the precision of products changed" in line for line in lines), lines


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(mlcc.Error, match="expected highest, high, medium or nothing, found 'low'"):
        mlcc.config.patch(matmul_precision="low")
