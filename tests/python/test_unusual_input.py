"""What inputs may look like: no elements, no dimensions, shared memory, odd addresses, very many elements."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import mlcc

Program = Callable[[Tensor], object]


def _normed(x: Tensor) -> Tensor:
    return functional.gelu(functional.layer_norm(x, x.shape[-1:], eps=0.1)) * 2


def _standardized_columns(x: Tensor) -> Tensor:
    return (x - x.mean(0)) * torch.rsqrt(x.var(0, correction=0) + 0.1)


def _gathered(x: Tensor) -> Tensor:
    rows = torch.arange(x.shape[0]).flip(0)
    return x[rows] + x.index_select(0, rows)


def _scattered(x: Tensor) -> Tensor:
    return torch.zeros(x.shape[0] + 1, x.shape[1]).index_add(0, torch.arange(x.shape[0]), x)


PROGRAMS: dict[str, Program] = {
    "pointwise": lambda x: torch.relu(x * 3 + 1) - x.exp(),
    "softmax": lambda x: torch.softmax(x, -1),
    "softmax of columns": lambda x: torch.softmax(x, 0),
    "log-softmax": lambda x: torch.log_softmax(x * 0.5, -1),
    "layer norm": _normed,
    "standardized columns": _standardized_columns,
    "sums": lambda x: (x.sum(0), x.sum(1), x.sum(), (x * x).mean()),
    "products and counts": lambda x: (x.prod(1), (x > 0).sum(0), x.bool().any(), x.bool().all()),
    "cumulative sums": lambda x: (x.cumsum(0), x.cumsum(1)),
    "transposed": lambda x: x.t() * 2 + x.t().contiguous(),
    "joined": lambda x: torch.cat((x, x * 2, x), 1),
    "stacked": lambda x: torch.stack((x, -x), 1).flatten(0, 1),
    "padded": lambda x: functional.pad(x, (1, 2, 0, 3)) + 1,
    "flipped and rolled": lambda x: x.flip(0) + x.roll(1, 1) + x.roll(2),
    "gathered": _gathered,
    "scattered": _scattered,
    "windows": lambda x: functional.avg_pool1d(functional.pad(x, (1, 1)), 3, 1),
    "bf16": lambda x: torch.softmax(x.bfloat16() * 2, -1),
}


LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "no rows": lambda: torch.randn(0, 7),
    "no columns": lambda: torch.randn(7, 0),
    "nothing at all": lambda: torch.randn(0, 0),
    "one element": lambda: torch.randn(1, 1),
    "one row": lambda: torch.randn(1, 300),
    "one column": lambda: torch.randn(300, 1),
    "a row repeated": lambda: torch.randn(1, 20).expand(30, 20),
    "a column repeated": lambda: torch.randn(30, 1).expand(30, 20),
    "a number repeated": lambda: torch.randn(()).expand(30, 20),
    "rows that overlap": lambda: torch.randn(200).as_strided((12, 9), (5, 1), 3),
    "far behind the beginning": lambda: torch.randn(5000)[4001:4961].view(30, 32),
    "every third of every second": lambda: torch.randn(40, 63)[::2, 1::3],
    "at an odd address": lambda: torch.frombuffer(
        bytearray(b"?" + torch.randn(600).numpy().tobytes()), dtype=torch.float32, offset=1
    ).view(20, 30),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dynamic", [False, None])
def test_of_two_dimensions(name: str, layout: str, dynamic: bool | None) -> None:
    torch.manual_seed(0)
    program, x = PROGRAMS[name], LAYOUTS[layout]()
    assert _agrees(mlcc.jit(program, dynamic=dynamic), program, x)


def _agrees(compiled: Program, program: Program, x: Tensor) -> bool:
    """As eager, its error included."""
    try:
        expected = program(x)
    except Exception as error:
        with pytest.raises(type(error)):
            compiled(x)
        return True
    torch.testing.assert_close(compiled(x), expected, equal_nan=True)
    return True


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_without_dimensions(dtype: torch.dtype) -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        return x + x, x.sum(), x.amax(), x.reshape(1, 1).expand(3, 4) * 2, torch.stack((x, x))

    x = torch.tensor(3).to(dtype)
    torch.testing.assert_close(mlcc.jit(program)(x), program(x))


def test_one_that_reads_what_another_writes() -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        return y + 1

    found, expected = torch.arange(10.0), torch.arange(10.0)
    result = mlcc.jit(program)(found[:8], found[2:])
    assert torch.equal(result, program(expected[:8], expected[2:]))
    assert torch.equal(found, expected)


def test_more_elements_than_32_bits_count() -> None:
    """Rows that begin behind 2^31, and a sum over 2^32 elements that share memory."""
    rows, columns = (1 << 16) + 2, 1 << 15
    x = torch.zeros(rows, columns, dtype=torch.int8)
    x[-1, -3:] = torch.tensor([5, 7, 9], dtype=torch.int8)
    result = mlcc.jit(lambda x: x * 2 + 1)(x)
    assert result[-1, -4:].tolist() == [1, 11, 15, 19]
    assert result[0, :2].tolist() == [1, 1]
    sums = mlcc.jit(lambda x: (x.sum(1), x.sum()))(x)
    assert sums[0][-2:].tolist() == [0, 21]
    assert int(sums[1]) == 21
    del result, x
    ones = torch.ones((), dtype=torch.int8).expand(1 << 16, 1 << 16)
    assert int(mlcc.jit(lambda x: x.sum())(ones)) == 1 << 32


NUMBERS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "product": lambda x, n: x * n,
    "quotient": lambda x, n: x / n,
    "float": lambda x, n: x * float(n),
    "integer arithmetic": lambda x, n: x * (n % 7) + n // 2**60,
    "one more": lambda x, n: x + (n + 1),
    "square": lambda x, n: x + n * n % 1000003,
    "branch": lambda x, n: x + 1 if n * n > 0 else x - 1,
}


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("dynamic", [None, True])
def test_integers_of_more_than_64_bits(name: str, dynamic: bool | None) -> None:
    """In the first call, and in calls of what was traced for smaller ones."""
    function, x = NUMBERS[name], torch.linspace(-1, 1, 3)
    for numbers in (
        (2**63, 3),
        (5, 6, 2**63, 2**64, -(2**63) - 1, 7),
        (3, 2**63 - 1, -(2**63), 2**32),
    ):
        torch._dynamo.reset()
        run = torch.compile(function, backend="mlcc", dynamic=dynamic)
        for number in numbers:
            try:
                expected = function(x, number)
            except Exception as error:
                with pytest.raises(type(error)):
                    run(x, number)
            else:
                torch.testing.assert_close(run(x, number), expected)


def test_what_eager_refuses_of_a_number() -> None:
    x = torch.tensor(3, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match="not implemented"):
        torch.logcumsumexp(x, 0)
    for run in (mlcc.jit(torch.logcumsumexp), torch.compile(torch.logcumsumexp, backend="mlcc")):
        with pytest.raises(RuntimeError, match="not implemented"):
            run(x, 0)
