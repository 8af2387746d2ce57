"""Packages of models that compute with complex numbers, beside eager in f64."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim

import mlcc
from tests.python import accuracy


class Model(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(*args)


def dense(value: Any) -> Any:
    return [one.contiguous() for one in accuracy.leaves(value)]


def check_package(
    path: Path, function: Callable[..., Any], *args: torch.Tensor, sizes: Any = None, more: Any = ()
) -> None:
    mlcc.export(Model(function).eval(), args, path / "m.mlcc", dynamic_shapes=sizes)
    package = mlcc.load(path / "m.mlcc")
    for given in (args, *more):
        exact = function(*accuracy.to_double(list(given)))
        accuracy.check_all(dense(package(*given)), dense(function(*given)), dense(exact))


def window(n: int, x: torch.Tensor) -> torch.Tensor:
    return torch.hann_window(n, dtype=x.dtype)


def spectrogram(x: torch.Tensor) -> torch.Tensor:
    return torch.stft(x, 400, 160, window=window(400, x), return_complex=True).abs() ** 2


def denoised(x: torch.Tensor) -> torch.Tensor:
    spectrum = torch.stft(x, 64, 16, window=window(64, x), return_complex=True)
    kept = torch.polar(spectrum.abs().sqrt(), spectrum.angle()) + spectrum * 0.5
    return torch.istft(kept, 64, 16, window=window(64, x), length=512)


def mixed_tokens(x: torch.Tensor) -> torch.Tensor:
    return torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real


def global_filter(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    spectrum = torch.fft.rfft2(x, dim=(1, 2), norm="ortho") * torch.view_as_complex(weight)
    return torch.fft.irfft2(spectrum, s=x.shape[1:3], dim=(1, 2), norm="ortho")


def long_convolution(x: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
    spectrum = torch.fft.rfft(x, n=1000) * torch.fft.rfft(kernel, n=1000).conj()
    return torch.fft.irfft(spectrum, n=1000)[..., : x.shape[-1]]


def rotated(x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    turns = torch.polar(torch.ones_like(angle), angle)
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns).flatten(-2)


def fourier_operator(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    spectrum = torch.fft.rfft2(x)
    mixed = torch.zeros(2, 5, 16, 9, dtype=spectrum.dtype)
    low = spectrum[:, :, :4, :4]
    mixed[:, :, :4, :4] = torch.einsum("bixy,ioxy->boxy", low, torch.view_as_complex(weight))
    return torch.fft.irfft2(mixed, s=x.shape[-2:])


def arithmetic(x: torch.Tensor, y: torch.Tensor) -> Any:
    a, b = torch.view_as_complex(x), torch.view_as_complex(y)
    moved = torch.cat([a.transpose(0, 1), b.transpose(0, 1)[:2]])
    results = [a / b, a - 2 * b, (a + 3j) * b.real, a.exp(), b.reciprocal(), moved @ b, a**2, -b]
    return [torch.view_as_real(one.resolve_conj()) for one in [*results, a.conj() * b]]


CASES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "spectrogram": (spectrogram, (torch.randn(2, 4000),)),
    "istft": (denoised, (torch.randn(2, 512),)),
    "FNet": (mixed_tokens, (torch.randn(2, 24, 40),)),
    "global filter": (global_filter, (torch.randn(2, 14, 14, 8), torch.randn(14, 8, 8, 2))),
    "long convolution": (long_convolution, (torch.randn(2, 500), torch.randn(500))),
    "Fourier operator": (
        fourier_operator,
        (torch.randn(2, 4, 16, 16), torch.randn(4, 5, 4, 4, 2)),
    ),
    "rotary positions": (rotated, (torch.randn(2, 8, 16), torch.randn(8, 8))),
    "arithmetic": (arithmetic, (torch.randn(7, 7, 2), torch.randn(7, 7, 2))),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_packages(tmp_path: Path, name: str) -> None:
    function, args = CASES[name]
    check_package(tmp_path, function, *args)


@pytest.mark.parametrize("n", [17, 24, 134, 400, 512])
@pytest.mark.parametrize("sign", [-1, 1])
def test_angles_of_what_is_real(tmp_path: Path, n: int, sign: int) -> None:
    """A zero of the other sign, or one that is rounded, would turn pi into -pi or 0."""
    x = sign * (torch.rand(6, n) + torch.arange(n) % 2)
    mlcc.export(Model(phases).eval(), (x,), tmp_path / "m.mlcc", check=False)
    found, expected = mlcc.load(tmp_path / "m.mlcc")(x), phases(x)
    ends = [0, -1] if n % 2 == 0 else [0]
    torch.testing.assert_close(found[:, ends], expected[:, ends])


def phases(x: torch.Tensor) -> torch.Tensor:
    return torch.fft.rfft(x).angle()


def test_signals_of_any_length(tmp_path: Path) -> None:
    check_package(
        tmp_path,
        spectrogram,
        torch.randn(2, 4000),
        sizes=(({0: Dim("batch", max=8), 1: Dim("length", min=800, max=16000)},),),
        more=[(torch.randn(2, 800),), (torch.randn(2, 5001),)],
    )


class Rotary(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("turns", torch.polar(torch.ones(64, 8), torch.randn(64, 8)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        turns = self.turns[: x.shape[1]]
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turns).flatten(-2)


def test_matrices_are_weights(tmp_path: Path) -> None:
    """Computed at export, also by the first one of a process, and there once."""
    model, x = Model(lambda x: torch.fft.rfft(x).abs()).eval(), torch.randn(50, 208)
    told = [mlcc.export(model, (x,), tmp_path / "m.mlcc", check=False) for _ in range(2)]
    assert told[0].weight_bytes == told[1].weight_bytes
    assert 1000 < told[0].weight_bytes < 20000
    assert told[0].kernels == told[1].kernels


def test_complex_buffers(tmp_path: Path) -> None:
    model = Rotary().eval()
    sizes = ({1: Dim("length", min=2, max=64)},)
    mlcc.export(model, (torch.randn(2, 8, 16),), tmp_path / "m.mlcc", dynamic_shapes=sizes)
    x = torch.randn(2, 33, 16)
    torch.testing.assert_close(mlcc.load(tmp_path / "m.mlcc")(x), model(x))


@pytest.mark.parametrize(
    ("function", "dtype", "reason"),
    [
        (lambda x: torch.fft.rfft(x), torch.float32, "a result is complex"),
        (lambda x: x.abs(), torch.complex64, "an argument is complex"),
        (lambda x: torch.complex(x, x).sinh().abs(), torch.float32, "aten.sinh.default: there is"),
        (lambda x: (torch.complex(x, x) ** 3).abs(), torch.float32, "the exponent 3"),
    ],
)
def test_what_has_no_pairs_is_told(
    tmp_path: Path, function: Any, dtype: torch.dtype, reason: str
) -> None:
    with pytest.raises(mlcc.Error, match=reason):
        mlcc.export(Model(function).eval(), (torch.randn(4, 6, dtype=dtype),), tmp_path / "m.mlcc")


def test_lengths_that_vary_are_told(tmp_path: Path) -> None:
    model, sizes = Model(lambda x: torch.fft.rfft(x).abs()).eval(), (({1: Dim("n", min=8)},),)
    with pytest.raises(mlcc.Error, match="the length of a Fourier transform varies"):
        mlcc.export(model, (torch.randn(4, 16),), tmp_path / "m.mlcc", dynamic_shapes=sizes)


def test_compiled_functions_keep_complex_tensors() -> None:
    x = torch.randn(2, 512)
    found = mlcc.jit(lambda x: torch.fft.rfft(x) * 2)(x)
    torch.testing.assert_close(found, torch.fft.rfft(x) * 2)
