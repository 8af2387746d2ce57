"""Reductions of reductions: eager, mlcc with one kernel for each of the two, and with the pass that makes them one.

One thread, interleaved; about 25 us of each call are torch.compile's. The pass leaves the cases behind the line alone:
both ways are the same there.

usage: python benchmarks/merged_reductions.py
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import mlcc  # noqa: F401
from benchmarks.harness import compare
from benchmarks.windows import forward_of

_SECONDS_OF_CASE = 0.4
_SHAPES = ((8, 16, 32), (64, 56, 56), (8, 512, 512), (1024, 256, 4), (4, 4, 100000), (100000, 4, 4))

MERGED: dict[str, Callable[[torch.Tensor], Any]] = {
    "max of rows' max": lambda x: x.amax(-1).amax(-1),
    "max of all": lambda x: x.amax(-1).amax(),
    "any": lambda x: (x > 2).any(-1).any(-1),
    "sum of integers": lambda x: x.int().sum(-1, dtype=torch.int32).sum(-1, dtype=torch.int32),
}
APART: dict[str, Callable[[torch.Tensor], Any]] = {
    "rows, then columns": lambda x: x.amax(-1).amax(0),
    "beside another": lambda x: (x.amax(-1).amax(-1), x.amin(-1)),
}


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    print(f"{'case':20s} {'shape':>22s} {'eager us':>9s} {'two':>9s} {'pass':>9s} gain")
    for number, (name, function) in enumerate((MERGED | APART).items()):
        if number == len(MERGED):
            print("---")
        for shape in _SHAPES:
            x = torch.randn(shape)
            for dynamic in (False, True):
                torch._dynamo.reset()
                # bisect: no rewrite at all.
                apart, merged = (
                    torch.compile(
                        function, backend="mlcc", dynamic=dynamic, options={"bisect": last}
                    )
                    for last in (0, -1)
                )
                functions = {
                    "eager": forward_of(function, x),
                    "two": forward_of(apart, x),
                    "pass": forward_of(merged, x),
                }
                times = compare(functions, seconds=_SECONDS_OF_CASE).low_seconds
                text = " ".join(f"{1e6 * seconds:9.1f}" for seconds in times)
                sizes = "x".join(map(str, shape)) + (" symbolic" if dynamic else "")
                print(f"{name:20s} {sizes:>22s} {text} {times[1] / times[2]:.2f}")


if __name__ == "__main__":
    main()
