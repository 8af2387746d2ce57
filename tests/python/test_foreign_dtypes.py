"""Dtypes that no kernel computes: such nodes are ATen calls, the rest of their graph is kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.python.sessions import Sessions


def check(f: Callable[..., Any], *args: Any, dynamic: bool = False) -> list[Any]:
    compiled = Sessions(f, dynamic)
    for _ in range(2):
        torch.testing.assert_close(compiled(*args), f(*args))
    compiled.check_all_compiled()
    return compiled.graphs


def complex_tensor(*shape: int, dtype: torch.dtype = torch.complex64) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_filter_by_fft(dynamic: bool) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.fft.irfft(torch.fft.rfft(x * 2 + 1) * w, n=x.shape[-1]).relu() * 3

    graphs = check(f, torch.randn(3, 16), complex_tensor(9), dynamic=dynamic)
    assert graphs[0].stats["kernels"] == 2
    assert "c64[" in graphs[0].graph_text


def test_rotary_embedding_with_complex_numbers() -> None:
    def f(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        turned = pairs * torch.polar(torch.ones_like(angles), angles)
        return torch.view_as_real(turned).flatten(-2).to(x.dtype) + 1

    check(f, torch.randn(2, 5, 8), torch.randn(5, 4))


@pytest.mark.parametrize(
    "f",
    [
        lambda z: z.conj() * 2j + (1 - 3j),
        lambda z: torch.view_as_real(z.conj().resolve_conj()) + 1,
        lambda z: z.conj().imag + 1,
        lambda z: (z.conj().imag, z.conj().imag * 2),
        lambda z: (z.real + 1, z.imag * 2, z.abs(), z.angle()),
        lambda z: z.real.sum() + z.imag.relu().sum(),
        lambda z: (z * z.conj()).real.exp(),
        lambda z: torch.where(z.real > 0, z, -z),
        lambda z: (z.conj(), z.mT, z.conj().mH),
        lambda z: z.to(torch.complex128) @ torch.ones(3, 2, dtype=torch.complex128),
    ],
)
def test_complex_programs(f: Callable[..., Any]) -> None:
    check(f, complex_tensor(4, 3))
    check(f, complex_tensor(4, 3).conj())


def test_a_view_of_a_complex_input_is_written_to() -> None:
    def f(z: torch.Tensor) -> torch.Tensor:
        torch.view_as_real(z).mul_(2).add_(1)
        return z * 2

    compiled = Sessions(f)
    for make in (lambda z: z, torch.conj_physical):
        given = make(complex_tensor(3, 2))
        expected = given.clone()
        torch.testing.assert_close(compiled(given), f(expected))
        torch.testing.assert_close(given, expected)


def test_results_that_are_views_of_each_other() -> None:
    def f(z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        product = z * 2
        return product, torch.view_as_real(product)

    z = complex_tensor(3)
    product, parts = torch.compile(f, backend="mlcc")(z)
    parts.add_(1)
    torch.testing.assert_close(product, z * 2 + (1 + 1j))


def test_a_complex_module_is_trained() -> None:
    w = complex_tensor(4, 4).requires_grad_()
    x = torch.randn(5, 4)

    def f(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (torch.fft.fft(x.exp()) @ w).abs().tanh().sum()

    f(w, x).backward()
    expected, w.grad = w.grad, None
    compiled = Sessions(f)
    compiled(w, x).backward()
    torch.testing.assert_close(w.grad, expected)
    assert len(compiled.graphs) == 2
    compiled.check_all_compiled()


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_unsigned_integers(dtype: torch.dtype) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.to(torch.float32) * 2 + y, (y.abs() * 100).to(dtype)

    check(f, torch.arange(7).to(dtype), torch.randn(7))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_small_floats(dtype: torch.dtype) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.to(torch.float32) * 2 + y, (y * 2).to(dtype).to(torch.float32)

    check(f, torch.randn(7).to(dtype), torch.randn(7))
