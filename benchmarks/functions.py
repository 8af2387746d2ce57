"""Elementary functions of a million elements: eager and mlcc on one thread, interleaved.

usage: python benchmarks/functions.py [--dtype NAME] [NAME...]
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import mlcc
from benchmarks.harness import compare

_ELEMENTS = 1 << 20
_SECONDS_OF_CASE = 0.2
UNARY = [
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "acosh",
    "atanh",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log1p",
    "log2",
    "log10",
    "erf",
    "erfc",
    "sigmoid",
    "sinc",
]
BINARY = ["pow", "atan2", "hypot", "logaddexp"]


def operands(name: str, dtype: torch.dtype) -> list[torch.Tensor]:
    """Numbers of the function's domain."""
    generator = torch.Generator().manual_seed(0)
    lowest = 1.01 if name == "acosh" else 0.05
    x = torch.rand(_ELEMENTS, generator=generator) * 0.9 + lowest
    y = torch.rand(_ELEMENTS, generator=generator) * 3
    return [x.to(dtype), y.to(dtype)] if name in BINARY else [x.to(dtype)]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dtype = getattr(torch, arguments.dtype)
    print(f"{'function':10s} {'eager ns':>9s} {'mlcc ns':>9s} ratio")
    for name in arguments.names or UNARY + BINARY:
        function = getattr(torch, name)
        compiled = mlcc.jit(lambda *args, function=function: function(*args))
        args = operands(name, dtype)
        found = compare(
            {"eager": partial(function, *args), "mlcc": partial(compiled, *args)},
            seconds=_SECONDS_OF_CASE,
        )
        eager, ours = (1e9 * low / _ELEMENTS for low in found.low_seconds)
        print(f"{name:10s} {eager:9.2f} {ours:9.2f} {found.ratio('mlcc').median:5.2f}", flush=True)


if __name__ == "__main__":
    main()
