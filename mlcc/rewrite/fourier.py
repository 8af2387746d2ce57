"""Discrete Fourier transforms as products with constant matrices, for programs that have no library to call.

Numbers are pairs of real tensors. A length that is a product of small numbers takes a step for each of them, as the
algorithm of Cooley and Tukey does, so that sums are short: they are as exact as a library's. A long prime length is a
convolution of a length that is a power of two (Bluestein).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from mlcc.torch_private import tracing


class Pair(NamedTuple):
    """A complex tensor."""

    real: torch.Tensor
    imag: torch.Tensor


# Terms of a step; of one whose length is a prime.
_MOST_TERMS = 32
_MOST_PRIME = 64

# What a step costs beside its products, in terms: it reads and writes all elements.
_STEP = 100


class NoPair(Exception):  # noqa: N818 (an expected answer)
    """What is not computed with pairs; the text says why."""


def transform(x: Pair, sign: int) -> Pair:
    """sum_j x[j] exp(sign * 2 pi i * j * k / n) for every k, along the last dimension."""
    n = length(x.real.shape[-1])
    if n == 1:
        return x
    step = _first_step(n)
    if step == n:
        return _product(x, _matrix(n, sign, x.real.dtype))
    if not step:
        return _by_convolution(x, n, sign)
    rest = n // step
    below = Pair(*(_columns(part, step, rest) for part in x))
    one = _product(below, _matrix(step, sign, x.real.dtype))
    other = transform(_turned(_times(one, _factors(n, rest, step, sign, x.real.dtype))), sign)
    return Pair(*(part.transpose(-1, -2).flatten(-2) for part in other))


def of_real(x: torch.Tensor, sign: int) -> Pair:
    """The transform's first n // 2 + 1 elements; the others are conjugates of these in reversed order."""
    n = length(x.shape[-1])
    step, half = _first_step(n), n // 2 + 1
    if n == 1:
        return Pair(x, torch.zeros_like(x))
    if step == n:
        return _halves(_rows_times(x, _matrix_of_real(n, half, sign, x.dtype)))
    if not step:
        found = _by_convolution(Pair(x, torch.zeros_like(x)), n, sign)
        return _with_real_ends(Pair(found.real[..., :half], found.imag[..., :half]), n)
    # Of the first step's results, too, the others are conjugates of the first.
    rest, count = n // step, step // 2 + 1
    one = _halves(_rows_times(_columns(x, step, rest), _matrix_of_real(step, count, sign, x.dtype)))
    other = _turned(transform(_turned(_times(one, _factors(n, rest, count, sign, x.dtype))), sign))
    mirrored = [part[..., 1 : (step + 1) // 2].flip(-2, -1) for part in other]
    real = torch.cat([other.real, mirrored[0]], -1).flatten(-2)
    imag = torch.cat([other.imag, -mirrored[1]], -1).flatten(-2)
    found = Pair(real[..., :half], imag[..., :half])
    return found if _has_real_ends(n) else _with_real_ends(found, n)


def to_real(x: Pair, n: int, sign: int) -> torch.Tensor:
    """The transform of n elements of which the first n // 2 + 1 are given, and the others are conjugates of these."""
    n = length(n)
    if n == 1:
        return x.real
    step = _first_step(n)
    if step == n:
        half = n // 2 + 1
        parts = torch.cat([x.real[..., :half], x.imag[..., :half]], -1)
        return _rows_times(parts, _matrix_of_halves(n, sign, x.real.dtype))
    last = (n + 1) // 2
    real = torch.cat([x.real, x.real[..., 1:last].flip(-1)], -1)
    # What has no partner is real; its imaginary part is not looked at.
    imag = torch.cat([x.imag, -x.imag[..., 1:last].flip(-1)], -1)
    if not step:
        return _by_convolution(Pair(real, imag), n, sign).real
    rest = n // step
    below = Pair(_columns(real, step, rest), _columns(imag, step, rest))
    one = _product(below, _matrix(step, sign, x.real.dtype))
    turned = _turned(_times(one, _factors(n, rest, step, sign, x.real.dtype)))
    if _first_step(rest) == rest:
        found = _rows_times(torch.cat([*turned], -1), _matrix_to_real(rest, sign, x.real.dtype))
    else:
        found = transform(turned, sign).real
    return found.transpose(-1, -2).flatten(-2)


def length(size: int | torch.SymInt) -> int:
    """The number; NoPair where it varies."""
    if not isinstance(size, int):
        raise NoPair("the length of a Fourier transform varies, expected a number")
    return size


@functools.lru_cache(maxsize=256)
def _plan(n: int) -> tuple[int, int]:
    """What a transform of this length costs, in terms of each result, and its first step: n if it is the only one, 0
    if there is none."""
    best = (n, n) if n <= _MOST_TERMS or (n <= _MOST_PRIME and _is_prime(n)) else (0, 0)
    for step in range(2, min(_MOST_TERMS, n // 2) + 1):
        if n % step == 0:
            cost = step + _STEP + _plan(n // step)[0]
            if not best[1] or cost < best[0]:
                best = (cost, step)
    if best[1]:
        return best
    factor = next((prime for prime in range(2, math.isqrt(n) + 1) if n % prime == 0), n)
    if factor < n and factor <= _MOST_PRIME:
        return factor + _STEP + _plan(n // factor)[0], factor
    return 2 * _plan(_power_of_two(2 * n - 1))[0] * 2, 0


def _first_step(n: int) -> int:
    return _plan(n)[1]


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % factor for factor in range(2, math.isqrt(n) + 1))


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()


def _columns(x: torch.Tensor, step: int, rest: int) -> torch.Tensor:
    """Elements j = first * rest + second as [second, first]."""
    return x.unflatten(-1, (step, rest)).transpose(-1, -2)


def _turned(x: Pair) -> Pair:
    return Pair(x.real.transpose(-1, -2), x.imag.transpose(-1, -2))


def _halves(x: torch.Tensor) -> Pair:
    count = x.shape[-1] // 2
    return Pair(x[..., :count], x[..., count:])


def _product(x: Pair, matrix: torch.Tensor) -> Pair:
    return _halves(_rows_times(torch.cat([*x], -1), matrix))


def _rows_times(x: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """One product, whatever strides the rows have: a batch of products would hold a matrix for each."""
    product = x.reshape(-1, x.shape[-1]) @ matrix
    return product.reshape([*x.shape[:-1], matrix.shape[-1]])


def _times(x: Pair, factor: Pair) -> Pair:
    return Pair(
        x.real * factor.real - x.imag * factor.imag, x.real * factor.imag + x.imag * factor.real
    )


def _has_real_ends(n: int) -> bool:
    """Whether what is real by its symmetry comes out so: each step adds products with 0, and none is rounded."""
    step = _first_step(n)
    if step in (0, n):
        return step == n
    rest = n // step
    return (n % 2 == 1 or rest % 2 == 0) and _has_real_ends(rest)


def _with_real_ends(x: Pair, n: int) -> Pair:
    """A rounded 0 would decide which angle a negative number has."""
    return Pair(x.real, torch.where(_is_real(n), torch.zeros([], dtype=x.imag.dtype), x.imag))


def _by_convolution(x: Pair, n: int, sign: int) -> Pair:
    """With 2 j k = j^2 + k^2 - (k - j)^2: a convolution with exp(-sign * pi i * j^2 / n)."""
    size = _power_of_two(2 * n - 1)
    chirp = _chirp(n, sign, x.real.dtype)
    padded = Pair(*(torch.nn.functional.pad(part, (0, size - n)) for part in _times(x, chirp)))
    found = _times(transform(padded, -1), _spectrum_of_chirp(n, size, sign, x.real.dtype))
    back = transform(found, 1)
    return _times(Pair(back.real[..., :n], back.imag[..., :n]), chirp)


# Constants: computed in f64, of angles that are less than a turn.


def _kept(compute: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which computes real tensors once, also while torch traces with fake ones."""
    kept = functools.lru_cache(maxsize=64)(compute)

    @functools.wraps(compute)
    def run(*args: Any) -> Any:
        with tracing.outside_traces():
            return kept(*args)

    return run


def _constant(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return value.to(dtype).contiguous()


def _waves(places: torch.Tensor, n: int, sign: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Of exp(sign * 2 pi i * places / n)."""
    angle = (places % n).double() * (2 * math.pi / n)
    # Of whole quarters of a turn they are exact.
    return tuple(torch.where(x.abs() < 1e-14, 0.0, x) for x in (angle.cos(), sign * angle.sin()))


def _products_of_places(rows: int, columns: int) -> torch.Tensor:
    return torch.arange(rows).unsqueeze(1) * torch.arange(columns)


@_kept
def _matrix(n: int, sign: int, dtype: torch.dtype) -> torch.Tensor:
    """[real, imag] to [real, imag]."""
    real, imag = _waves(_products_of_places(n, n), n, sign)
    return _constant(torch.cat([torch.cat([real, imag], 1), torch.cat([-imag, real], 1)]), dtype)


@_kept
def _matrix_to_real(n: int, sign: int, dtype: torch.dtype) -> torch.Tensor:
    """[real, imag] to the real part."""
    return _constant(_matrix(n, sign, dtype)[:, :n], dtype)


@_kept
def _matrix_of_real(n: int, count: int, sign: int, dtype: torch.dtype) -> torch.Tensor:
    """A real row to the first `count` of [real, imag]."""
    return _constant(torch.cat([*_waves(_products_of_places(n, count), n, sign)], 1), dtype)


@_kept
def _matrix_of_halves(n: int, sign: int, dtype: torch.dtype) -> torch.Tensor:
    """The first n // 2 + 1 of [real, imag] to n real elements."""
    half = n // 2 + 1
    real, imag = _waves(_products_of_places(half, n), n, sign)
    places = torch.arange(half)
    weight = torch.where((places == 0) | (2 * places == n), 1.0, 2.0).unsqueeze(1).double()
    return _constant(torch.cat([weight * real, -weight * imag]), dtype)


@_kept
def _factors(n: int, rows: int, columns: int, sign: int, dtype: torch.dtype) -> Pair:
    """exp(sign * 2 pi i * row * column / n)."""
    real, imag = _waves(_products_of_places(rows, columns), n, sign)
    return Pair(_constant(real, dtype), _constant(imag, dtype))


@_kept
def _is_real(n: int) -> torch.Tensor:
    """Which of the first n // 2 + 1 elements of the transform of real ones are real."""
    places = torch.arange(n // 2 + 1)
    return (places == 0) | (2 * places == n)


@_kept
def _chirp(n: int, sign: int, dtype: torch.dtype) -> Pair:
    """exp(sign * pi i * j^2 / n)."""
    real, imag = _waves(torch.arange(n) ** 2, 2 * n, sign)
    return Pair(_constant(real, dtype), _constant(imag, dtype))


@_kept
def _spectrum_of_chirp(n: int, size: int, sign: int, dtype: torch.dtype) -> Pair:
    """Of the conjugate of the chirp, on both sides of 0, over `size`."""
    real, imag = _chirp(n, -sign, torch.float64)
    kernel = torch.zeros(size, dtype=torch.complex128)
    kernel[:n] = torch.complex(real, imag)
    kernel[size - n + 1 :] = kernel[1:n].flip(0)
    found = torch.fft.fft(kernel) / size
    return Pair(_constant(found.real, dtype), _constant(found.imag, dtype))
