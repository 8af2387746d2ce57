"""Fourier transforms as products (`mlcc.rewrite.fourier`) beside torch's, judged in f64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mlcc.rewrite import fourier
from mlcc.rewrite.fourier import NoPair, Pair
from tests.python import accuracy

# One step, several, primes, primes that are long, and products of such.
LENGTHS = (1, 2, 3, 16, 31, 61, 64, 67, 80, 122, 131, 134, 400, 512, 1000, 1024, 4099)


def as_pair(x: torch.Tensor) -> Pair:
    return Pair(x.real.contiguous(), x.imag.contiguous())


def judge(found: Any, function: Any, x: torch.Tensor) -> None:
    expected, exact = function(x), function(x.to(torch.promote_types(x.dtype, torch.float64)))
    if isinstance(found, Pair):
        found = torch.stack([*found], -1)
        expected, exact = torch.view_as_real(expected), torch.view_as_real(exact)
    # The largest of many errors is a single draw.
    factors = {"rms": 2, "largest": 3}
    verdict = accuracy.judge(found.contiguous(), expected.contiguous(), exact, factors=factors)
    assert verdict, verdict.reason


@pytest.mark.parametrize("n", LENGTHS)
def test_transforms_are_as_exact_as_torchs(n: int) -> None:
    torch.manual_seed(n)
    real, numbers = torch.randn(33, n), torch.randn(33, n, dtype=torch.complex64)
    judge(fourier.transform(as_pair(numbers), -1), torch.fft.fft, numbers)
    judge(
        fourier.transform(as_pair(numbers), 1), lambda x: torch.fft.ifft(x, norm="forward"), numbers
    )
    judge(fourier.of_real(real, -1), torch.fft.rfft, real)
    half = numbers[:, : n // 2 + 1].contiguous()
    judge(
        fourier.to_real(as_pair(half), n, 1),
        lambda x: torch.fft.irfft(x, n, norm="forward"),
        half,
    )


@pytest.mark.parametrize("n", [24, 67, 400])
def test_doubles_are_doubles(n: int) -> None:
    x = torch.randn(5, n, dtype=torch.float64)
    found = fourier.of_real(x, -1)
    torch.testing.assert_close(torch.complex(*found), torch.fft.rfft(x), rtol=1e-12, atol=1e-11)


def test_a_length_that_varies_is_refused() -> None:
    with pytest.raises(NoPair, match="varies"):
        fourier.length("s0")
