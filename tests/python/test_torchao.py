"""Models that torchao quantized: as eager runs them, weights packed at the size of their integers."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch
from torch import nn

import mlcc

pytestmark = pytest.mark.usefixtures("nothing_kept")

logging.disable(logging.WARNING)  # torchao tells of libraries for GPUs
torchao = pytest.importorskip("torchao.quantization")
logging.disable(logging.NOTSET)

GROUP = 32
CONFIGS = {
    "int8": lambda: torchao.Int8WeightOnlyConfig(),
    "int4": lambda: torchao.IntxWeightOnlyConfig(
        weight_dtype=torch.int4, granularity=torchao.PerGroup(GROUP)
    ),
    "int2": lambda: torchao.IntxWeightOnlyConfig(
        weight_dtype=torch.int2, granularity=torchao.PerGroup(64)
    ),
    "intx by columns": lambda: torchao.IntxWeightOnlyConfig(
        weight_dtype=torch.int8, granularity=torchao.PerAxis(0)
    ),
    "int8 rows": lambda: torchao.Int8DynamicActivationInt8WeightConfig(),
    "int4 of int8 rows": lambda: torchao.Int8DynamicActivationIntxWeightConfig(
        weight_dtype=torch.int4, weight_granularity=torchao.PerGroup(GROUP)
    ),
    "float8": lambda: torchao.Float8WeightOnlyConfig(),
}


def quantized(kind: str, dtype: torch.dtype, *, has_bias: bool = True) -> nn.Module:
    """Two layers with a nonlinearity between them."""
    model = nn.Sequential(
        nn.Linear(128, 192, bias=has_bias), nn.GELU(), nn.Linear(192, 70, bias=has_bias)
    )
    model = model.to(dtype).eval()
    torchao.quantize_(model, CONFIGS[kind]())
    return model


def check(found: torch.Tensor, eager: torch.Tensor) -> None:
    """Within a few roundings of what eager gives: sums are taken in another order."""
    error = 1e-5 if eager.dtype == torch.float32 else 2e-2
    assert found.dtype == eager.dtype
    assert found.stride() == eager.stride()
    scale = eager.abs().max().item()
    torch.testing.assert_close(found, eager, rtol=error, atol=error * scale)


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_models_through_compile(kind: str, dtype: torch.dtype) -> None:
    model = quantized(kind, dtype)
    with torch.no_grad():
        compiled = torch.compile(model, backend="mlcc")
        for rows in (1, 7, 40):
            x = torch.randn(rows, 128).to(dtype)
            for _ in range(2):
                check(compiled(x), model(x))


@pytest.mark.parametrize("kind", CONFIGS)
def test_models_through_jit(kind: str) -> None:
    model = quantized(kind, torch.float32)
    with torch.no_grad():
        compiled = mlcc.jit(model)
        for rows in (1, 7, 40):
            x = torch.randn(rows, 128)
            for _ in range(2):
                check(compiled(x), model(x))


@pytest.mark.parametrize("capture", ["compile", "jit"])
@pytest.mark.parametrize(("kind", "most"), [("int8", 1.1), ("int4", 1.4)])
def test_packs_take_what_integers_take(kind: str, most: float, capture: str) -> None:
    model = quantized(kind, torch.float32, has_bias=False)
    x = torch.randn(4, 128)
    before: Any = mlcc.cache_info()["pack_bytes"]
    with torch.no_grad():
        compiled = mlcc.jit(model) if capture == "jit" else torch.compile(model, backend="mlcc")
        compiled(x)
    packed = mlcc.cache_info()["pack_bytes"] - before
    filled = 128 * 192 + 192 * 96  # columns of whole panels
    assert 0 < packed <= most * filled


def test_a_quantized_copy_has_packs_of_its_own() -> None:
    model = quantized("int8", torch.float32)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for weight in other.parameters():
            if hasattr(weight, "qdata"):
                weight.qdata.neg_()
        compiled = torch.compile(model, backend="mlcc")
        x = torch.randn(3, 128)
        check(compiled(x), model(x))
        again = torch.compile(other, backend="mlcc")
        check(again(x), other(x))
        check(compiled(x), model(x))
