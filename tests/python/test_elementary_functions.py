"""Elementary functions in kernels: special numbers as in eager, all 16-bit inputs, huge angles, powers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.python.functions import LIBRARY_FUNCTIONS
from tests.python.tracing import Compiled, trace

UNARY = [*LIBRARY_FUNCTIONS, "angle", "erf", "exp", "log", "sigmoid", "tanh"]
BINARY = ["atan2", "hypot", "pow", "xlogy"]
SIGNED = [0.0, 0.3, 0.5, 1.0, 1.5, 2.0, 3.0, 7.25, 80.0, 1e4, 3e38, float("inf")]
# Denormals of f32 and of f64 among them.
TINY = [5e-324, 1e-310, 1e-45, 1e-40, 2e-38, 1e-20, 1e-7]


def special_numbers(dtype: torch.dtype) -> torch.Tensor:
    """Both signs of what is likely to go wrong, and NaN."""
    numbers = SIGNED + TINY + [torch.finfo(dtype).max, torch.finfo(dtype).tiny]
    return torch.tensor([*numbers, *(-x for x in numbers), float("nan")], dtype=dtype)


def check_alike(result: torch.Tensor, eager: torch.Tensor, steps: int) -> None:
    """At most `steps` units in the last place apart; signs of zeros, infinities and NaN are equal."""
    assert result.dtype == eager.dtype
    assert torch.equal(result.isnan(), eager.isnan())
    known = ~eager.isnan()
    result, eager = result[known], eager[known]
    assert torch.equal(result.signbit() & (result == 0), eager.signbit() & (eager == 0))
    distance = (_place(result) - _place(eager)).abs()
    assert distance.max().item() <= steps, (result[distance.argmax()], eager[distance.argmax()])


def _place(x: torch.Tensor) -> torch.Tensor:
    """The number of each float in their order."""
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    bits = x.contiguous().view(integer).long()
    lowest = torch.iinfo(integer).min
    return torch.where(bits < 0, lowest - bits, bits)


def check_generated(function: Any, *args: torch.Tensor) -> torch.Tensor:
    """The function's result from kernels alone."""
    compiled = trace(function, *args, make=Compiled)
    assert compiled.externs == set()
    (result,) = compiled(*args)
    return result


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", [*UNARY, "sinc"])
def test_special_numbers(name: str, dtype: torch.dtype) -> None:
    function = getattr(torch, name)
    x = special_numbers(dtype).repeat(3)
    check_alike(check_generated(function, x), function(x), steps=6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", BINARY)
def test_special_pairs(name: str, dtype: torch.dtype) -> None:
    function = getattr(torch, name)
    numbers = special_numbers(dtype)
    x, y = numbers.repeat(len(numbers)), numbers.repeat_interleave(len(numbers))
    check_alike(check_generated(function, x, y), function(x, y), steps=6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["logaddexp", "logaddexp2"])
def test_sums_of_exponentials(name: str, dtype: torch.dtype) -> None:
    """Near 0 terms cancel, in eager too."""
    function = getattr(torch, name)
    numbers = special_numbers(dtype)
    x, y = numbers.repeat(len(numbers)), numbers.repeat_interleave(len(numbers))
    epsilon = torch.finfo(dtype).eps
    torch.testing.assert_close(
        check_generated(function, x, y),
        function(x, y),
        rtol=4 * epsilon,
        atol=2 * epsilon,
        equal_nan=True,
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", UNARY)
def test_all_short_floats(name: str, dtype: torch.dtype) -> None:
    """Computed in f32 and rounded once: at most one step from the exact result, and mostly that itself."""
    function = getattr(torch, name)
    x = torch.arange(1 << 16).to(torch.int16).view(dtype)
    result, exact = check_generated(function, x), function(x.double()).to(dtype)
    check_alike(result, exact, steps=1)
    assert (result != exact)[~exact.isnan()].float().mean().item() < 0.001


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_huge_angles(name: str) -> None:
    """The reduction by multiples of pi / 2 is exact for every f32; positions of a RoPE among them."""
    function = getattr(torch, name)
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(0x47000000, 0x7F800000, (4096,), generator=generator, dtype=torch.int64)
    angles = torch.cat([bits.to(torch.int32).view(torch.float32), torch.arange(131072).float()])
    check_alike(check_generated(function, angles), function(angles.double()).float(), steps=2)


EXPONENTS = [0, 1, 2, 3, 4, -1, -2, 0.5, -0.5, 1.7, -1.3, 0.1, 17, 100.5, float("inf")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("exponent", EXPONENTS)
def test_powers(exponent: float, dtype: torch.dtype) -> None:
    """A number as exponent: eager computes some of them without pow."""
    x = torch.cat([special_numbers(dtype), torch.linspace(-3, 9, 99, dtype=dtype)])
    steps = 6 if dtype in (torch.float32, torch.float64) else 1
    result = check_generated(lambda x: x**exponent, x)
    check_alike(result, x**exponent, steps)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_powers_of_two_are_exact(dtype: torch.dtype) -> None:
    n = torch.arange(-160, 140).to(dtype)
    assert torch.equal(check_generated(lambda n: 2.0**n, n), 2.0**n)


@pytest.mark.parametrize(("function", "first"), [(torch.erf, 3.92), (torch.tanh, 9.02)])
def test_what_rounds_to_one_is_one(function: Any, first: float) -> None:
    """Exactly: 1 + erf(-9) is 0, and so is what is made of it."""
    x = torch.cat([torch.linspace(first, 12, 1000), torch.tensor([100.0, 3e38, torch.inf])])
    x = torch.cat([x, -x])
    assert torch.equal(check_generated(function, x), x.sign())


LOSSES = {
    "celu": lambda x: F.celu(x, 0.7),
    "selu": F.selu,
    "log_sigmoid": F.logsigmoid,
    "binary_cross_entropy": lambda x: F.binary_cross_entropy(x.sigmoid(), x.detach().sign().abs()),
    "with_logits": lambda x: F.binary_cross_entropy_with_logits(x, x.detach().sign().abs()),
    "soft_margin": lambda x: F.soft_margin_loss(x, x.detach().sign()),
    "mish": F.mish,
}


@pytest.mark.parametrize("name", LOSSES)
def test_compositions(name: str) -> None:
    """What becomes a kernel by its decomposition, with its gradient."""
    function = LOSSES[name]
    x = torch.linspace(-30, 30, 333)
    results = []
    for run in (function, torch.compile(function, backend="mlcc")):
        leaf = x.clone().requires_grad_()
        value = run(leaf)
        value.sum().backward()
        results.append((value.detach(), leaf.grad))
    for eager, result in zip(*results, strict=True):
        torch.testing.assert_close(result, eager, rtol=2e-6, atol=1e-7)
