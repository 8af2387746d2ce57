"""Products of the same rows in one kernel: projections to queries, keys and values, gated layers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import mlcc
from tests.python.accuracy import check_all, to_double

Log = Callable[..., AbstractContextManager[list[str]]]


pytestmark = pytest.mark.usefixtures("nothing_kept")


class Projections(torch.nn.Module):
    """Queries, keys and values of the same rows, each with something of its own behind it."""

    def __init__(self, depth: int, widths: tuple[int, int, int], bias: bool = True) -> None:
        super().__init__()
        self.q, self.k, self.v = (torch.nn.Linear(depth, width, bias=bias) for width in widths)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.q(x) * 0.125, self.k(x).relu(), self.v(x)


class Gated(torch.nn.Module):
    """A gated layer."""

    def __init__(
        self, depth: int, width: int, act: Callable[[torch.Tensor], torch.Tensor], bias: bool
    ) -> None:
        super().__init__()
        self.gate, self.up = (torch.nn.Linear(depth, width, bias=bias) for _ in range(2))
        self.act = act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.gate(x)) * self.up(x)


def kernels(log: list[str]) -> list[str]:
    """What kernels of products consist of."""
    return [line.split(": ", 1)[1].split(" over")[0] for line in log if ": contract" in line]


def check(module: torch.nn.Module, *inputs: torch.Tensor, dynamic: bool = False) -> None:
    """As good as eager for each of the inputs, by the code for the first one where sizes are symbols."""
    with torch.no_grad():
        compiled = mlcc.jit(module, dynamic=dynamic)
        exact = copy.deepcopy(module).double()
        for x in inputs:
            for _ in range(2):
                check_all(compiled(x), module(x), exact(*to_double([x])))


ROWS = [1, 4, 7, 13, 40, 130]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("depth", "width"), [(64, 96), (333, 257)])
def test_projections(rows: int, depth: int, width: int, dtype: torch.dtype) -> None:
    check(Projections(depth, (width, width, width)).to(dtype), torch.randn(rows, depth).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("depth", "width"), [(101, 70), (700, 257)])
def test_gated(rows: int, depth: int, width: int, dtype: torch.dtype) -> None:
    for act, bias in ((F.silu, False), (F.gelu, True)):
        check(Gated(depth, width, act, bias).to(dtype), torch.randn(rows, depth).to(dtype))


def test_no_rows() -> None:
    check(Gated(48, 130, torch.nn.SiLU(), bias=False), torch.randn(0, 48))


@pytest.mark.parametrize("cpu", ["", "haswell", "x86-64"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_any_number(cpu: str, dtype: torch.dtype) -> None:
    with mlcc.config.patch(cpu=cpu):
        for first in (3, 40):
            inputs = [torch.randn(rows, 96).to(dtype) for rows in (first, 1, 5, 12, 23, 300)]
            check(Gated(96, 80, F.silu, True).to(dtype), *inputs, dynamic=True)
            check(Projections(96, (64, 64, 64)).to(dtype), *inputs, dynamic=True)


@pytest.mark.parametrize("cpu", ["", "haswell"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("first", [3, 33])
def test_each_number_of_rows(cpu: str, dtype: torch.dtype, first: int) -> None:
    """A tile for each height, from one weight that is packed. Not by eager's error: its code is another CPU's."""
    module = torch.nn.Linear(130, 161).to(dtype)
    with torch.no_grad(), mlcc.config.patch(cpu=cpu):
        compiled = mlcc.jit(module, dynamic=True)
        for rows in (first, *range(41)):
            x = torch.randn(rows, 130).to(dtype)
            torch.testing.assert_close(compiled(x), module(x))


@pytest.mark.parametrize("cpu", ["", "haswell"])
@pytest.mark.parametrize("terms", [3, 96, 97, 1030])
def test_each_number_of_rows_of_bytes(cpu: str, terms: int) -> None:
    weight = torch.nn.Parameter(torch.randint(-128, 128, (terms, 72), dtype=torch.int8), False)
    with torch.no_grad(), mlcc.config.patch(cpu=cpu):
        compiled = mlcc.jit(lambda x, w: torch._int_mm(x, w))
        for rows in (33, *range(1, 41)):
            x = torch.randint(-128, 128, (rows, terms), dtype=torch.int8)
            torch.testing.assert_close(compiled(x, weight), torch._int_mm(x, weight))


@pytest.mark.parametrize("cpu", ["haswell", "skylake-avx512"])
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16])
@pytest.mark.parametrize("terms", [2, 97, 260])
def test_pairs_of_16_bits(cpu: str, dtype: torch.dtype, terms: int) -> None:
    """Bytes are widened to them where no instruction takes bytes."""
    bounds = torch.iinfo(dtype)
    weight = torch.nn.Parameter(
        torch.randint(bounds.min, bounds.max + 1, (terms, 70), dtype=dtype), False
    )
    weight[:, :2], weight[:, 2:4] = bounds.min, bounds.max
    with torch.no_grad(), mlcc.config.patch(cpu=cpu):
        for dynamic in (False, True):
            compiled = mlcc.jit(lambda x, w: x @ w, dynamic=dynamic)
            for rows in (70, 8, 1, 33):
                x = torch.randint(bounds.min, bounds.max + 1, (rows, terms), dtype=dtype)
                x[0] = bounds.min
                assert torch.equal(compiled(x, weight), x @ weight)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_bytes_that_change(dtype: torch.dtype) -> None:
    """Copies of both operands, words of which are filled up."""
    with torch.no_grad():
        compiled = mlcc.jit(lambda x, w: x @ w)
        for terms in (301, 302, 64, 7, 1):
            x, w = (torch.randint(-128, 256, s).to(dtype) for s in ((300, terms), (terms, 130)))
            assert torch.equal(compiled(x, w), x @ w)


@pytest.mark.parametrize("cpu", ["", "haswell"])
@pytest.mark.parametrize(("terms", "dtype"), [(16, torch.float32), (30, torch.bfloat16)])
def test_few_terms_of_wide_rows(cpu: str, terms: int, dtype: torch.dtype) -> None:
    """Where rows of the result lie pages apart, tiles stand side by side."""
    with mlcc.config.patch(cpu=cpu):
        module = torch.nn.Sequential(torch.nn.Linear(terms, 2048), torch.nn.ReLU()).to(dtype)
        inputs = [torch.randn(rows, terms).to(dtype) for rows in (33, 0, 1, 7, 12, 13, 40, 300)]
        check(module, *inputs, dynamic=True)
        check(module, inputs[-1])


@pytest.mark.parametrize("cpu", ["", "haswell"])
def test_long_sums_of_few_rows(cpu: str) -> None:
    with mlcc.config.patch(cpu=cpu):
        inputs = [torch.randn(rows, 4100) for rows in (60, 1, 2, 5, 7, 11, 13, 24, 25, 61, 120)]
        check(torch.nn.Linear(4100, 530), *inputs, dynamic=True)


@pytest.mark.parametrize("cpu", ["", "haswell"])
def test_long_sums_of_a_changing_operand(cpu: str) -> None:
    """It is read as it lies, several panels side by side: sums of some other rows than the trace had."""
    w = torch.randn(2100, 1030)
    with torch.no_grad(), mlcc.config.patch(cpu=cpu):
        compiled = mlcc.jit(lambda x, w: x @ w)
        for rows in (5, 2, 12, 40, 130):
            x = torch.randn(rows, 2100)
            check_all(compiled(x, w), x @ w, x.double() @ w.double())


@pytest.mark.parametrize("cpu", ["", "haswell"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_long_sums_in_turns(cpu: str, dynamic: bool) -> None:
    with mlcc.config.patch(cpu=cpu):
        x = torch.randn(301, 4100)
        check(Gated(4100, 530, F.silu, True), x, x[:100], dynamic=dynamic)
        check(Projections(4100, (530, 530, 530)), x, x[:100], dynamic=dynamic)


def test_float64() -> None:
    module = Gated(300, 90, F.silu, True).double()
    x = torch.randn(20, 300, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(mlcc.jit(module)(x), module(x), rtol=1e-12, atol=1e-11)


def test_a_kernel_for_all(mlcc_log: Log) -> None:
    x = torch.randn(40, 96)
    with torch.no_grad(), mlcc_log("fusion") as log:
        mlcc.jit(Projections(96, (64, 64, 64)), dynamic=False)(x)
        assert [kernel.count("contract") for kernel in kernels(log)] == [3]
    with torch.no_grad(), mlcc_log("fusion") as log:
        mlcc.jit(Gated(96, 64, F.silu, False), dynamic=False)(x)
        assert [kernel.count("contract") for kernel in kernels(log)] == [2]


def test_widths_of_their_own(mlcc_log: Log) -> None:
    """Keys and values of grouped queries share a kernel, queries have theirs."""
    module, x = Projections(96, (128, 64, 64), bias=False), torch.randn(40, 96)
    with mlcc_log("fusion") as log:
        check(module, x)
    assert sorted(kernel.count("contract") for kernel in kernels(log)) == [1, 2]


def test_switched_off(mlcc_log: Log) -> None:
    module, x = Gated(96, 64, F.silu, False), torch.randn(40, 96)
    with mlcc.config.patch(join_products=False), mlcc_log("fusion") as log:
        check(module, x)
    assert [kernel.count("contract") for kernel in kernels(log)] == [1, 1]


def test_weights_that_training_changes_stay_apart(mlcc_log: Log) -> None:
    module, x = Gated(96, 64, F.silu, True), torch.randn(80, 96)
    compiled = torch.compile(module, backend="mlcc", dynamic=False)
    with mlcc_log("fusion") as log:
        found = compiled(x)
        found.sum().backward()
    torch.testing.assert_close(found, module(x), rtol=1e-4, atol=1e-5)
    assert all(kernel.count("contract") == 1 for kernel in kernels(log))


def test_each_weight_is_kept_once() -> None:
    module, x = Gated(96, 64, F.silu, False), torch.randn(40, 96)
    check(module, x)
    info = mlcc.cache_info()
    assert (info["packs"], info["pack_bytes"]) == (2, 2 * 96 * 64 * 4)


def test_tied_weights_are_packed_once() -> None:
    module, x = Projections(96, (64, 64, 64)), torch.randn(40, 96)
    module.v.weight = module.q.weight
    check(module, x)
    assert mlcc.cache_info()["packs"] == 2


def test_weights_are_stolen() -> None:
    module, x = Gated(256, 192, F.silu, False), torch.randn(40, 256)
    with torch.no_grad(), mlcc.config.patch(weights="steal"):
        expected, before = module(x), copy.deepcopy(module.state_dict())
        compiled = mlcc.jit(module)
        for _ in range(3):
            torch.testing.assert_close(compiled(x), expected, rtol=1e-4, atol=1e-5)
        info = mlcc.cache_info()
        assert (info["stolen"], info["pack_bytes"]) == (2, 0)
        for name, weight in module.state_dict().items():
            assert torch.equal(weight, before[name])


def test_results_that_others_read_too() -> None:
    """The gate itself is a result, and read by what the other product's sums are read by."""

    class Both(Gated):
        def forward(self, x: torch.Tensor) -> Any:
            gate, up = self.act(self.gate(x)), self.up(x)
            return gate, gate * up, up.sum(1)

    for rows in (1, 5, 40):
        check(Both(96, 70, F.silu, True), torch.randn(rows, 96))


def test_what_lies_between() -> None:
    """A product between two of the same rows reads the first one's result, and the second one reads none."""

    class Between(Projections):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            first = self.q(x)
            return first, self.k(first), self.v(x)

    check(Between(64, (64, 64, 64)), torch.randn(9, 64))


def test_rows_that_are_written_between() -> None:
    class Step(Projections):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            first = self.q(x)
            x.copy_(first)
            return first, self.k(x)

    module, x = Step(64, (64, 64, 64)), torch.randn(9, 64)
    with torch.no_grad():
        mine, theirs = x.clone(), x.clone()
        found, expected = mlcc.jit(module)(mine), module(theirs)
    for one, other in zip((*found, mine), (*expected, theirs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_verified() -> None:
    with mlcc.config.patch(verify="always"):
        check(Gated(96, 70, F.gelu, True), torch.randn(13, 96), torch.randn(40, 96), dynamic=True)
        check(Projections(96, (70, 70, 70)), torch.randn(13, 96), torch.randn(40, 96), dynamic=True)


def test_threads_give_the_same_bits() -> None:
    modules: list[torch.nn.Module] = [
        Gated(700, 333, F.silu, True),
        Projections(700, (333, 333, 333)),
    ]
    before = torch.get_num_threads()
    for module in modules:
        for rows in (1, 5, 129):
            x, results = torch.randn(rows, 700), []
            compiled = mlcc.jit(module, dynamic=False)
            with torch.no_grad():
                for threads in (1, 2, 3):
                    torch.set_num_threads(threads)
                    found = compiled(x)
                    results.append(found if isinstance(found, tuple) else (found,))
            for result in results:
                assert all(map(torch.equal, result, results[0]))
    torch.set_num_threads(before)
