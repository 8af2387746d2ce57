"""Errors: eager's type and text under mlcc.jit; under torch.compile Dynamo's while tracing, eager's at run time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import mlcc
from tests.python.behaviour import compiled, jitted


def error_of(function: Callable[..., Any], *arguments: Any) -> tuple[type, str]:
    with pytest.raises(Exception) as raised:
        function(*arguments)
    return type(raised.value), str(raised.value)


X = torch.randn(4, 3)
ONES = torch.ones(2, 3)
INTS = torch.arange(4)


# What shapes, dtypes and devices decide: found while tracing.
WHILE_TRACING: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "shapes of a sum": (lambda x, y: x + y, (X, torch.ones(5))),
    "shapes of a product": (lambda x, y: x @ y, (X, X)),
    "shapes of a batched product": (torch.bmm, (torch.ones(2, 3, 4), torch.ones(3, 4, 2))),
    "shapes of cat": (lambda x, y: torch.cat([x, y]), (X, torch.ones(2, 2))),
    "a view of another number": (lambda x: x.view(5, 3), (X,)),
    "a view across strides": (lambda x: x.t().view(12), (X,)),
    "an expansion": (lambda x: x.expand(4, 5), (X,)),
    "a dimension out of range": (lambda x: x.sum(2), (X,)),
    "a selected row out of range": (lambda x: x[7], (X,)),
    "too many indices": (lambda x: x[0, 0, 0], (X,)),
    "a step of 0": (lambda x: x[::0], (X,)),
    "dtypes of a product": (lambda x, y: x @ y, (X, torch.ones(3, 2, dtype=torch.float64))),
    "dtype of an index": (lambda x, y: x.gather(0, y), (X, X)),
    "dtype of a mean": (lambda x: x.mean(), (INTS,)),
    "a write of another dtype": (lambda x, y: x.add_(y), (INTS.clone(), X[:, 0])),
    "a write of another shape": (lambda x, y: x.add_(y), (torch.ones(3), X)),
    "bitwise and of floats": (lambda x: x & x, (X,)),
    "softmax of ints": (lambda x: x.softmax(0), (INTS,)),
    "a convolution of other channels": (
        lambda x, w: F.conv2d(x, w),
        (torch.ones(1, 2, 4, 4), torch.ones(1, 3, 2, 2)),
    ),
    "another device": (lambda x, y: x + y, (X, torch.ones(4, 3, device="meta"))),
    "a wrong argument": (lambda x: torch.sum(x, dims=3), (X,)),
    "a wrong method": (lambda x: x.no_such_method(), (X,)),
}


@pytest.mark.parametrize("name", WHILE_TRACING)
def test_while_tracing_under_jit(name: str) -> None:
    function, arguments = WHILE_TRACING[name]
    assert error_of(jitted(function), *arguments) == error_of(function, *arguments)


@pytest.mark.parametrize("name", WHILE_TRACING)
def test_while_tracing_under_torch_compile(name: str) -> None:
    """As with another backend over the same AOTAutograd."""
    function, arguments = WHILE_TRACING[name]
    ours = error_of(compiled(function), *arguments)
    torch._dynamo.reset()
    theirs = error_of(torch.compile(function, backend="aot_eager"), *arguments)
    assert ours[0] == theirs[0]
    assert _first_lines(ours[1]) == _first_lines(theirs[1])


def _first_lines(text: str) -> list[str]:
    """What happened; what follows names places in the source and the backend."""
    lines = [line.strip() for line in text.replace("aot_eager", "mlcc").splitlines()]
    return [line for line in lines if line and "from user code" not in line][:2]


# What values decide: found at run time.
FAR = torch.tensor([1, 4])
ZERO = torch.tensor([3, 0, 1, 0])

AT_RUN_TIME: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "index_put": (lambda x, i: x.clone().index_put((i,), x[:2]), (X, FAR)),
    "index_copy": (lambda x, i: x.index_copy(0, i, x[:2]), (X, FAR)),
    "index_fill": (lambda x, i: x.index_fill(0, i, 2.0), (X, FAR)),
    "scatter_add": (lambda x, i: x.scatter_add(0, i[None], x[:1, :2]), (X, FAR)),
    "scatter_reduce": (lambda x, i: x.scatter_reduce(1, i[None], x, "amax"), (X, FAR)),
    "take": (lambda x, i: x.take(i * 4) + 1, (X, FAR)),
    "put": (lambda x, i: x.put(i * 4, x[0, :2]), (X, FAR)),
    "embedding bag": (lambda x, i: F.embedding_bag(i[None], x), (X, FAR)),
    "floor division of ints": (lambda x, y: x // y, (INTS, ZERO)),
    "division of ints, truncated": (
        lambda x, y: torch.div(x, y, rounding_mode="trunc"),
        (INTS, ZERO),
    ),
    "remainder of ints": (lambda x, y: x % y, (INTS, ZERO)),
    "fmod of ints": (lambda x, y: torch.fmod(x, y), (INTS, ZERO)),
    "fmod of small ints": (
        lambda x, y: torch.fmod(x, y),
        (INTS.to(torch.int8), ZERO.to(torch.int8)),
    ),
    "binary cross entropy of what is no probability": (
        lambda x: F.binary_cross_entropy(x, x.clamp(0, 1)) * 2,
        (X + 2,),
    ),
    "argmax of bools": (lambda x: x.argmax(), (torch.ones(3).bool(),)),
    "argmin of bools": (lambda x: x.argmin(0) + 1, (torch.ones(3).bool(),)),
    "max of nothing": (lambda x: (x + 1).max() * 2, (torch.ones(0, 3),)),
    "min of nothing": (lambda x: x.min(), (torch.ones(0),)),
    "max along nothing": (lambda x: x.max(0), (torch.ones(0, 3),)),
    "min along nothing": (lambda x: (x * 2).min(1)[1], (torch.ones(3, 0).int(),)),
    "a masked fill beyond float16": (lambda x: x.masked_fill(x > 0, -1e9) + 1, (X.half(),)),
    "a fill beyond bfloat16": (lambda x: torch.full_like(x, 1e39) * x, (X.bfloat16(),)),
    "a masked fill beyond int8": (lambda x: x.masked_fill(x > 0, 1000), (INTS.to(torch.int8),)),
    "a padding beyond uint8": (lambda x: F.pad(x, (1, 1), value=300), (INTS.to(torch.uint8),)),
    "a scattered number beyond float16": (
        lambda x: x.scatter(0, torch.tensor([[0, 1, 0]]), 7e4),
        (X.half(),),
    ),
    "a limit beyond float16": (lambda x: x.clamp(max=1e5) + 1, (X.half(),)),
    "a bool subtracted from a number": (lambda x: 2 - x, (X > 0,)),
    "a singular matrix": (lambda x: torch.linalg.inv(x * 0) + 1, (torch.eye(3),)),
    "not positive definite": (lambda x: torch.linalg.cholesky(x - 2) * 2, (torch.eye(3),)),
    "multinomial": (lambda x: torch.multinomial(x * -1, 2), (torch.ones(4),)),
    "repeat_interleave": (
        lambda x, n: x.repeat_interleave(n, output_size=4),
        (torch.ones(2), torch.tensor([1, -2])),
    ),
}


@pytest.mark.parametrize("name", AT_RUN_TIME)
@pytest.mark.parametrize("way", [compiled, jitted])
def test_at_run_time(name: str, way: Callable[..., Any]) -> None:
    function, arguments = AT_RUN_TIME[name]
    run, expected = way(function), error_of(function, *arguments)
    for _ in range(2):
        assert error_of(run, *arguments) == expected


def test_in_the_backward_pass() -> None:
    """An error in a derivative comes out of backward()."""

    class Refusing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return torch.linalg.cholesky(gradient - 2)

    def function(x: torch.Tensor) -> torch.Tensor:
        return Refusing.apply(x)

    def backward(run: Callable[..., Any]) -> tuple[type, str]:
        x = torch.eye(3, requires_grad=True)
        return error_of((run(x) * torch.eye(3)).sum().backward)

    assert backward(compiled(function)) == backward(function)


def test_arguments_after_an_error() -> None:
    """What a failed call has not written stays; the next call is as the first."""

    def function(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x.index_select(0, i).exp().sum()

    for way in (compiled, jitted):
        run, x = way(function), X.clone()
        assert error_of(run, x, FAR) == error_of(function, x, FAR)
        assert torch.equal(x, X)
        torch.testing.assert_close(run(x, FAR - 1), function(x, FAR - 1))


@pytest.mark.parametrize("way", [compiled, jitted])
def test_from_python(way: Callable[..., Any]) -> None:
    """Wrong calls of the function itself are Python's errors."""

    def function(x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        return x * scale

    run = mlcc.jit(function) if way is jitted else way(function)
    with pytest.raises(TypeError, match="scales"):
        run(X, scales=2.0)
    with pytest.raises(TypeError, match="argument"):
        run()
    with pytest.raises((TypeError, RuntimeError)):
        run(X, scale="two")
