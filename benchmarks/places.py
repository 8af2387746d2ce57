"""Searches, counts and writes at computed places over a million numbers: eager and mlcc on one thread, interleaved.

usage: python benchmarks/places.py [NAME...]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.harness import compare

_SECONDS_OF_CASE = 0.5

X = torch.randn(1000, 1000)
SORTED, ORDER = X.sort()
FEW, MANY = (torch.randn(count).sort()[0] for count in (1000, 100_000))
BAGS, ROWS = torch.arange(0, 4096 * 20, 20), torch.randint(0, 100_000, (4096 * 20,))
SIZES = torch.full((4096,), 20)
GRADIENT = torch.randn(4096, 64)


def gradient_of_bags(gradient: torch.Tensor) -> Any:
    """Of a table of 100,000 rows, from that of sums of 20 each."""
    arguments = (ROWS, BAGS, ROWS[:0], SIZES, SIZES, 100_000, False, 0, False, None)
    return torch.ops.aten._embedding_bag_backward(gradient, *arguments)


CASES: dict[str, tuple[Callable[..., Any], torch.Tensor]] = {
    "searchsorted, 1000": (lambda x: torch.searchsorted(FEW, x), X),
    "searchsorted, 100000": (lambda x: torch.searchsorted(MANY, x), X),
    "searchsorted, row by row": (lambda x: torch.searchsorted(SORTED, x), X),
    "searchsorted by a sorter": (lambda x: torch.searchsorted(X, x, sorter=ORDER), X),
    "bucketize, 10": (lambda x: torch.bucketize(x, FEW[::100].contiguous()), X),
    "histc": (lambda x: torch.histc(x, 100, -3, 3), X),
    "mask with one value": (lambda x: torch.index_put(x, (x > 0,), torch.tensor(0.5)), X),
    "masked_scatter, gradient": (
        lambda x: torch.ops.aten.masked_scatter_backward(x, x > 0, list(x.shape)),
        X,
    ),
    "renorm": (lambda x: torch.renorm(x, 2, 0, 5.0), X),
    "dist": (lambda x: torch.dist(x, X + 1), X),
    "rounding to decimals": (lambda x: torch.round(x, decimals=3), X),
    "embedding bags, gradient": (gradient_of_bags, GRADIENT),
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    torch.set_num_threads(1)
    print(f"{'case':34s} {'eager ms':>9s} {'mlcc ms':>9s} ratio")
    for name in parser.parse_args().names or CASES:
        function, x = CASES[name]
        torch._dynamo.reset()
        compiled = torch.compile(function, backend="mlcc")
        functions = {"eager": partial(function, x), "mlcc": partial(compiled, x)}
        eager, ours = compare(functions, seconds=_SECONDS_OF_CASE).low_seconds
        print(f"{name:34s} {1e3 * eager:9.3f} {1e3 * ours:9.3f} {eager / ours:5.2f}")


if __name__ == "__main__":
    main()
