"""Fits the tables of csrc/codegen/cpu/math_tables.h: rerun it after a change, and keep what it prints.

usage: python tools/fit_functions.py > csrc/codegen/cpu/math_tables.h

The range of a function is cut into sixteen pieces, and the coefficients of one power in all pieces make a table: a
vector register looks sixteen of them up at once. In each piece the polynomial is the least-squares fit, on Chebyshev
nodes, of the relative error; coefficients are rounded to f32 from the lowest power, the rest fitted again after each.
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

Function = Callable[[Any], Any]


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


def main() -> None:
    """Print the header; clang-format breaks its lines."""
    mpmath.mp.dps = 40
    print("// Made by tools/fit_functions.py, which says how; not to be edited.\n#pragma once\n")
    print("#include <array>\n\nnamespace mlcc::codegen::cpu {\n")
    print("// A number for each of sixteen pieces of a function's range.")
    print("using MathTable = std::array<float, 16>;\n")
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
    print("\n}  // namespace mlcc::codegen::cpu")


if __name__ == "__main__":
    main()
