"""Integers within few bits: found in weights, packed several to a byte, and looked at again when they change."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import mlcc
from mlcc.capture.promises import promised_ranges

pytestmark = pytest.mark.usefixtures("nothing_kept")

COLUMNS, TERMS, GROUP = 96, 256, 32
# What stands beside the integers: a scale of f32 and a zero point for each group.
BESIDE = COLUMNS * TERMS // GROUP * 5


class Quantized(torch.nn.Module):
    """Integers of [COLUMNS, TERMS] with scales and zero points of groups."""

    def __init__(self, low: int, high: int, dtype: torch.dtype = torch.int8, zero: int = 0) -> None:
        super().__init__()
        groups = COLUMNS, TERMS // GROUP
        self.register_buffer("q", torch.randint(low, high + 1, (COLUMNS, TERMS), dtype=dtype))
        self.register_buffer("scales", torch.rand(groups) + 0.5)
        self.register_buffer("zeros", torch.full(groups, zero, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The product with the transposed weight."""
        value = self.q.view(COLUMNS, -1, GROUP).to(x.dtype) - self.zeros.unsqueeze(-1)
        return x @ (value * self.scales.to(x.dtype).unsqueeze(-1)).view(COLUMNS, TERMS).t()


def through_compile(module: torch.nn.Module) -> Callable[..., Any]:
    return torch.compile(module, backend="mlcc")


@pytest.fixture(params=[mlcc.jit, through_compile], ids=["jit", "compile"])
def compiler(request: pytest.FixtureRequest) -> Any:
    """What compiles a module."""
    torch._dynamo.reset()
    return request.param


def check(compiled: Any, module: torch.nn.Module, rows: int = 3) -> None:
    """Equal to the module in f64, but for roundings of f32."""
    x = torch.randn(rows, TERMS)
    with torch.no_grad():
        expected = module(x.double())
        error = (compiled(x).double() - expected).abs().max() / expected.abs().max()
    assert error < 1e-5


def pack_bytes() -> int:
    """Of all packs."""
    return int(mlcc.cache_info()["pack_bytes"])


def test_what_is_promised() -> None:
    def range_of(low: int, high: int, dtype: torch.dtype = torch.int8, count: int = 5000) -> Any:
        value = torch.randint(low, high + 1, (count,), dtype=dtype)
        value[-2:] = torch.tensor([low, high])
        return promised_ranges([(value, range(7, 8))]).get(7)

    assert range_of(0, 0) == (0, 0)
    assert range_of(-1, 1) == (-8, 7)
    assert range_of(0, 3, torch.uint8) == (0, 15)
    assert range_of(-3, 3) == (-8, 7)
    assert range_of(3, 15, torch.uint8) == (0, 15)
    assert range_of(-8, 8) is None
    assert range_of(0, 16, torch.uint8) is None
    assert range_of(0, 1, torch.int64) is None
    assert range_of(0, 1, count=64) is None
    strided = torch.zeros(100, 200, dtype=torch.int8)[::2, 1::2]
    strided[-1, -1] = 100
    assert not promised_ranges([(strided, range(1)), (torch.zeros(5000), range(1, 2))])


@pytest.mark.parametrize(
    ("low", "high", "dtype", "part"),
    [
        (-8, 7, torch.int8, 2),
        (0, 15, torch.uint8, 2),
        (-2, 1, torch.int8, 2),
        (-9, 7, torch.int8, 1),
    ],
)
@pytest.mark.parametrize("rows", [1, 6, 40])
def test_packs(
    compiler: Any, low: int, high: int, dtype: torch.dtype, part: int, rows: int
) -> None:
    module = Quantized(low, high, dtype, zero=1)
    before = pack_bytes()
    compiled = compiler(module)
    for _ in range(2):
        check(compiled, module, rows)
    taken = pack_bytes() - before
    assert COLUMNS * TERMS // part <= taken <= 1.1 * COLUMNS * TERMS // part + BESIDE


@pytest.mark.parametrize("cpu", ["haswell", "x86-64-v2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_other_targets(cpu: str, dtype: torch.dtype) -> None:
    for low, high in ((-8, 7), (0, 3)):
        module = Quantized(low, high, zero=1)
        x = torch.randn(5, TERMS).to(dtype)
        with mlcc.config.patch(cpu=cpu), torch.no_grad():
            expected = module(x.double())
            found = mlcc.jit(module)(x).double()
        error = 1e-5 if dtype == torch.float32 else 2e-2
        assert (found - expected).abs().max() / expected.abs().max() < error


def write_in_place(module: Quantized) -> None:
    module.q[5, 7] = 8


def write_data(module: Quantized) -> None:
    module.q.data.copy_(torch.randint(-128, 128, module.q.shape, dtype=torch.int8))


def set_zeros(module: Quantized) -> None:
    module.zeros[3, 1] = -5


def load(module: Quantized) -> None:
    module.load_state_dict(Quantized(-100, 100, zero=3).state_dict())


@pytest.mark.parametrize("change", [write_in_place, write_data, set_zeros, load])
def test_a_broken_promise_is_seen(compiler: Any, change: Callable[[Quantized], None]) -> None:
    module = Quantized(-8, 7)
    compiled = compiler(module)
    for _ in range(2):
        check(compiled, module)
    change(module)
    for _ in range(2):
        check(compiled, module)
    module.load_state_dict(Quantized(-8, 7).state_dict())
    check(compiled, module)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_weights_of_zeros(compiler: Any, dtype: torch.dtype) -> None:
    module = Quantized(0, 0, dtype)
    compiled = compiler(module)
    x = torch.randn(3, TERMS)
    with torch.no_grad():
        assert torch.equal(compiled(x), module(x))
    module.load_state_dict(Quantized(0, 100, dtype, zero=7).state_dict())
    check(compiled, module)


def test_forgotten_packs_are_looked_at_again() -> None:
    """A change that a fingerprint misses is seen behind `clear_packs`."""
    module = Quantized(-8, 7)
    compiled = mlcc.jit(module)
    check(compiled, module)
    module.q.data[50, 100:105] = 77
    mlcc.clear_packs()
    check(compiled, module)


def test_what_the_graph_writes_is_not_promised() -> None:
    class Counts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(1, dtype=torch.int64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls.add_(1)
            return x * self.calls

    torch._dynamo.reset()
    compiled = torch.compile(Counts(), backend="mlcc")
    x = torch.ones(4)
    with torch.no_grad():
        assert [compiled(x)[0].item() for _ in range(3)] == [1, 2, 3]


def test_what_is_kept_is_not_looked_at_again() -> None:
    module = Quantized(-8, 7)
    compiled = mlcc.jit(module)
    check(compiled, module)
    before = mlcc.cache_info()["pack_misses"]
    for _ in range(3):
        check(compiled, module)
    assert mlcc.cache_info()["pack_misses"] == before


def test_other_weights_for_one_graph() -> None:
    module, other = Quantized(-8, 7), Quantized(-128, 127, zero=-7)
    compiled = torch.compile(module, backend="mlcc")
    with torch.no_grad():
        for state in (module, other, module):
            x = torch.randn(2, TERMS)
            found = torch.func.functional_call(compiled, dict(state.named_buffers()), (x,))
            torch.testing.assert_close(found, state(x), rtol=1e-4, atol=1e-3)


_PROGRAM = """
import json, sys, torch
from tests.python.test_promises import Quantized, TERMS
how, low, high = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
import mlcc
torch.manual_seed(0)
module = Quantized(low, high)
compiled = mlcc.jit(module) if how == "jit" else torch.compile(module, backend="mlcc")
x = torch.randn(2, TERMS)
with torch.no_grad():
    expected = module(x.double())
    error = (compiled(x).double() - expected).abs().max() / expected.abs().max()
print(json.dumps({"error": error.item(), "bytes": mlcc.cache_info()["pack_bytes"]}))
"""


@pytest.mark.parametrize("how", ["jit", "compile"])
def test_a_second_process_with_another_checkpoint(tmp_path: Path, how: str) -> None:
    def run(low: int, high: int) -> dict[str, float]:
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, how, str(low), str(high)],
            env=os.environ
            | {
                "MLCC_CACHE_DIR": str(tmp_path / "mlcc"),
                "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "torch"),
                "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
                "MLCC_WARM_START": "1",
            },
            capture_output=True,
            text=True,
            check=True,
            timeout=600,
        )
        record: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        assert record["error"] < 1e-5
        return record

    few = run(-8, 7)["bytes"]
    assert run(-8, 7)["bytes"] == few
    assert run(-128, 127)["bytes"] > few
    assert run(-8, 7)["error"] < 1e-5
