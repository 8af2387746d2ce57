"""Fits the tables of csrc/codegen/cpu/math_tables.h: rerun it after a change, and keep what it prints.

usage: python tools/fit_functions.py > csrc/codegen/cpu/math_tables.h

The range of a function is cut into sixteen pieces, and the coefficients of one power in all pieces make a table: a
vector register looks sixteen of them up at once. In each piece the polynomial is the least-squares fit, on Chebyshev
nodes, of the relative error; coefficients are rounded to f32 from the lowest power, the rest fitted again after each.

What needs no pieces is one polynomial, in f32 or f64: the interpolation on Chebyshev nodes of what is left when the
first terms, which are exact, are taken away.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import mpmath
import numpy

PIECES = 16
NODES = 200
# The number of each piece is the rounded number of steps: piece i lies around i * step.
ERF_STEP, ERF_DEGREE = 0.25, 5
TANH_STEP, TANH_DEGREE = 9 / 16, 7
ERFC_CENTER, ERFC_TERMS = 3.625, 23  # of several the one where rounding leaves least
ERF_TERMS = 24

Function = Callable[[Any], Any]
# A polynomial: its name, its meaning, the function, the range and the number of terms.
Row = tuple[str, str, Function, float, float, int]


def fit(function: Function, low: float, high: float, center: float, degree: int) -> list[float]:
    """Coefficients in (x - center), the lowest power first, each an f32."""
    angles = numpy.pi * (numpy.arange(NODES) + 0.5) / NODES
    x = (low + high) / 2 + (high - low) / 2 * numpy.cos(angles)
    rest = numpy.array([float(function(mpmath.mpf(float(value)))) for value in x])
    weight = 1 / numpy.abs(rest)
    coefficients: list[float] = []
    for power in range(degree + 1):
        powers = [(x - center) ** p * weight for p in range(power, degree + 1)]
        solution, *_ = numpy.linalg.lstsq(numpy.stack(powers, 1), rest * weight, rcond=None)
        coefficients.append(float(numpy.float32(solution[0])))
        rest = rest - coefficients[-1] * (x - center) ** power
    return coefficients


def tables_by_power(function: Function, step: float, degree: int) -> list[list[float]]:
    """For each power the coefficients of all pieces."""
    pieces = [
        fit(function, max((i - 0.5) * step, 0), (i + 0.5) * step, i * step, degree)
        for i in range(PIECES)
    ]
    return [list(column) for column in zip(*pieces, strict=True)]


def erf_over_x(x: Any) -> Any:
    """Even and smooth, so that a relative error of it is one of erf, near 0 as well."""
    return mpmath.erf(x) / x if x else 2 / mpmath.sqrt(mpmath.pi)


def tanh_over_x(x: Any) -> Any:
    """As erf_over_x."""
    return mpmath.tanh(x) / x if x else mpmath.mpf(1)


def roots_of_two() -> tuple[list[float], list[float]]:
    """2^(i/16) as f32, and what rounding took."""
    exact = [mpmath.mpf(2) ** (mpmath.mpf(i) / PIECES) for i in range(PIECES)]
    rounded = [float(numpy.float32(float(value))) for value in exact]
    rests = [float(value - kept) for value, kept in zip(exact, rounded, strict=True)]
    return rounded, [float(numpy.float32(rest)) for rest in rests]


def interpolate(function: Function, low: float, high: float, count: int, bits: int) -> list[float]:
    """The polynomial of `count` terms through the function at Chebyshev nodes, the lowest power first."""
    middle, half = (mpmath.mpf(low) + high) / 2, (mpmath.mpf(high) - low) / 2
    nodes = [middle + half * mpmath.cos(mpmath.pi * (i + 0.5) / count) for i in range(count)]
    matrix = mpmath.matrix([[node**power for power in range(count)] for node in nodes])
    solution = mpmath.lu_solve(matrix, mpmath.matrix([function(node) for node in nodes]))
    return [rounded(coefficient, bits) for coefficient in solution]


def without(function: Function, terms: Function, order: int) -> Function:
    """(function(x) - terms(x)) / x^order, not too near to 0: digits enough are left behind the difference."""

    def rest(x: Any) -> Any:
        x = x if abs(x) > 1e-12 else mpmath.mpf(1e-12)
        return (function(x) - terms(x)) / x**order

    return rest


def of_square(function: Function) -> Function:
    """A function of x as one of x^2."""
    return lambda square: function(mpmath.sqrt(square))


def log_by_quotient(s: Any) -> Any:
    """log(1 + f) - f + f^2/2 = s (f^2/2 + s^2 R) with s = f / (2 + f): R, which is even in s."""
    return (mpmath.log((1 + s) / (1 - s)) - 2 * s) / s**3


def scaled_erfc(center: float) -> Function:
    """e^(x^2) erfc(x) (x + c), nearly constant, at t = (x - c) / (x + c)."""

    def function(t: Any) -> Any:
        x = center * (1 + t) / (1 - t)
        return mpmath.exp(x * x) * mpmath.erfc(x) * (x + center)

    return function


def erfc_row(name: str, center: float, low: float, high: float, count: int) -> Row:
    """That of erfc between two numbers."""
    meaning = f"e^(x^2) erfc(x) (x + c) in (x - c)/(x + c), c = {center}, up to {high}"
    first, last = ((x - center) / (x + center) for x in (low, high))
    return name, meaning, scaled_erfc(center), first, last, count


SINE = of_square(without(mpmath.sin, lambda x: x, 3))
COSINE = of_square(without(mpmath.cos, lambda x: 1 - x * x / 2, 4))
ARCSINE = of_square(without(mpmath.asin, lambda x: x, 3))
ARCTANGENT = of_square(without(mpmath.atan, lambda x: x, 3))
HYPERBOLIC_SINE = of_square(without(mpmath.sinh, lambda x: x, 3))
LOGARITHM = without(mpmath.log1p, lambda x: x - x * x / 2, 3)
# A little more than the ranges, since where an argument is reduced it may be rounded beyond them.
QUARTER_PI_SQUARED = 0.617
HALF_LN2 = 0.3469
TAN_OF_EIGHTH_SQUARED = 0.1717


def polynomials_of_f32() -> list[Row]:
    """Those with coefficients of f32."""
    return [
        ("kExp2F32", "(2^r - 1)/r", without(lambda r: 2**r, lambda _: 1, 1), -1 / 32, 1 / 32, 3),
        ("kLogF32", "(log(1 + f) - f + f^2/2)/f^3", LOGARITHM, -0.25, 0.5, 9),
        ("kSinF32", "(sin(r) - r)/r^3 in r^2", SINE, 0, QUARTER_PI_SQUARED, 3),
        ("kCosF32", "(cos(r) - 1 + r^2/2)/r^4 in r^2", COSINE, 0, QUARTER_PI_SQUARED, 3),
        ("kAsinF32", "(asin(s) - s)/s^3 in s^2", ARCSINE, 0, 0.25, 5),
        ("kAtanF32", "(atan(t) - t)/t^3 in t^2", ARCTANGENT, 0, 1, 9),
        ("kSinhF32", "(sinh(x) - x)/x^3 in x^2", HYPERBOLIC_SINE, 0, 1, 4),
    ]


def erf_polynomials() -> list[Row]:
    """Those of erf and erfc in f64."""
    small = of_square(erf_over_x)
    return [
        (
            "kErfSmallF64",
            "erf(x)/x in 2 (x/3)^2 - 1",
            lambda t: small(4.5 * (t + 1)),
            -1,
            1,
            ERF_TERMS,
        ),
        (
            "kErfLargeF64",
            "erf(x) in (x - 4.5)/1.5",
            lambda t: mpmath.erf(4.5 + 1.5 * t),
            -1,
            1,
            ERF_TERMS,
        ),
        ("kErfTinyF64", "erf(x)/x - 1 in x^2, up to 3/4", lambda t: small(t) - 1, 0, 9 / 16, 10),
        erfc_row("kErfcF64", center=ERFC_CENTER, low=0.75, high=27.3, count=ERFC_TERMS),
        erfc_row("kShortErfcF64", center=3.25, low=0, high=10.1, count=11),
    ]


def polynomials_of_f64() -> list[Row]:
    """Those with coefficients of f64."""
    log2 = without(lambda r: mpmath.log(1 + r, 2), lambda _: 0, 1)
    exponential = without(mpmath.expm1, lambda r: r, 2)
    return [
        ("kLog2F64", "log2(1 + r)/r, to 38 bits", log2, -1 / 32, 1 / 16, 7),
        ("kExpF64", "(e^r - 1 - r)/r^2", exponential, -HALF_LN2, HALF_LN2, 10),
        ("kShortExpF64", "the same to 29 bits", exponential, -HALF_LN2, HALF_LN2, 5),
        (
            "kLogF64",
            "(log((1 + s)/(1 - s)) - 2s)/s^3 in s^2",
            of_square(log_by_quotient),
            0,
            0.0401,
            8,
        ),
        ("kSinF64", "as kSinF32", SINE, 0, QUARTER_PI_SQUARED, 6),
        ("kCosF64", "as kCosF32", COSINE, 0, QUARTER_PI_SQUARED, 6),
        ("kAsinF64", "as kAsinF32", ARCSINE, 0, 0.25, 13),
        ("kAtanF64", "as kAtanF32, up to tan(pi/8)", ARCTANGENT, 0, TAN_OF_EIGHTH_SQUARED, 11),
        ("kSinhF64", "as kSinhF32", HYPERBOLIC_SINE, 0, 1, 7),
        ("kPowLogF64", "(log(1 + r) - r + r^2/2)/r^3", LOGARITHM, -1 / 32, 1 / 16, 10),
        *erf_polynomials(),
    ]


def rounded(value: Any, bits: int) -> float:
    """To so many bits."""
    with mpmath.workprec(bits):
        return float(+value)


def pow_pieces() -> tuple[list[float], list[float], list[float]]:
    """For each sixteenth of the bits from 0.75 to 1.5: 1/middle in 8 bits, and -log of it in two parts.

    The first part is a multiple of 2^-42, so that its sum with such a multiple for the exponent is exact. The two
    pieces beside 1 have 1 and 0.
    """
    inverses, logs, rests = [], [], []
    for i in range(PIECES):
        low = 0.75 + i / 32 if i < 8 else 1 + (i - 8) / 16
        middle = low + (1 / 64 if i < 8 else 1 / 32)
        inverse = 1.0 if i in (7, 8) else round(128 / middle) / 128
        exact = -mpmath.log(inverse)
        first = mpmath.nint(exact * 2**42) / 2**42
        inverses.append(inverse)
        logs.append(float(first))
        rests.append(rounded(exact - first, 53))
    return inverses, logs, rests


def pow_logs_to_two() -> list[float]:
    """-log2 of the inverses of pow_pieces."""
    return [rounded(-mpmath.log(inverse, 2), 53) for inverse in pow_pieces()[0]]


def two_over_pi() -> list[str]:
    """64 zero bits, then the bits of 2/pi behind the point, in words of 64."""
    words = 21
    with mpmath.workprec(64 * words + 64):
        bits = int(mpmath.floor(2 / mpmath.pi * mpmath.mpf(2) ** (64 * words)))
    return ["0x0"] + [
        f"0x{bits >> 64 * (words - 1 - i) & (1 << 64) - 1:016x}" for i in range(words)
    ]


def _numbers(values: Sequence[float]) -> str:
    """In hexadecimal, without the zeros behind what an f32 holds."""
    return ", ".join(re.sub(r"\.?0*p", "p", float(value).hex()) for value in values)


def print_table(name: str, values: Sequence[float]) -> None:
    """One table as C++."""
    print(f"inline constexpr MathTable {name} = {{{{{_numbers(values)}}}}};")


def print_tables(name: str, comment: str, tables: Sequence[Sequence[float]]) -> None:
    """An array of tables as C++."""
    print(f"\n// {comment}\ninline constexpr MathTable {name}[] = {{")
    for table in tables:
        print(f"    {{{{{_numbers(table)}}}}},")
    print("};")


def print_array(name: str, comment: str, kind: str, values: Sequence[str]) -> None:
    """Any numbers as C++."""
    print(f"\n// {comment}\ninline constexpr {kind} {name}[] = {{{', '.join(values)}}};")


def main() -> None:
    """Print the header; clang-format breaks its lines."""
    mpmath.mp.dps = 70
    print("// Made by tools/fit_functions.py, which says how; not to be edited.\n#pragma once\n")
    print("#include <array>\n#include <cstdint>\n\nnamespace mlcc::codegen::cpu {\n")
    print("// A number for each of sixteen pieces of a function's range.")
    print("using MathTable = std::array<float, 16>;")
    print("using MathTable64 = std::array<double, 16>;\n")
    rounded, rests = roots_of_two()
    print("// 2^(i/16), and what rounding took from it")
    print_table("kRootsOfTwo", rounded)
    print_table("kRootsOfTwoRest", rests)
    print_tables(
        "kErf",
        f"erf(x)/x around i * {ERF_STEP}: one table a power, the lowest first",
        tables_by_power(erf_over_x, ERF_STEP, ERF_DEGREE),
    )
    print_tables(
        "kTanh",
        f"tanh(x)/x around i * {TANH_STEP}: one table a power, the lowest first",
        tables_by_power(tanh_over_x, TANH_STEP, TANH_DEGREE),
    )
    inverses, logs, rests = pow_pieces()
    print("\n// Pieces of [0.75, 1.5) by its bits: 1/middle, -log of it in two parts, -log2 of it")
    tables = {
        "kPowInverse": inverses,
        "kPowLog": logs,
        "kPowLogRest": rests,
        "kPowLog2": pow_logs_to_two(),
    }
    for name, values in tables.items():
        print(f"inline constexpr MathTable64 {name} = {{{{{_numbers(values)}}}}};")
    print("\n// Polynomials, the lowest power first")
    for bits, rows in ((24, polynomials_of_f32()), (53, polynomials_of_f64())):
        for name, meaning, function, low, high, count in rows:
            coefficients = interpolate(function, low, high, count, bits)
            print_array(name, meaning, "double", [_numbers([c]) for c in coefficients])
    print_array("kTwoOverPi", "64 zero bits, then 2/pi behind the point", "uint64_t", two_over_pi())
    print("\n}  // namespace mlcc::codegen::cpu")


if __name__ == "__main__":
    main()
