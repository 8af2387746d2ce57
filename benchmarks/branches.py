"""A block of 16 branches that are too small for threads each: eager and mlcc on one thread and on several, interleaved.

usage: python benchmarks/branches.py [--threads 2] [--rows N...]
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

_BRANCHES, _COLUMNS = 16, 256
_SECONDS = 1.0


def branches(xs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Rows of other lengths each, so that the branches share no loop."""
    return [torch.softmax(x * 2, -1) for x in xs]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, nargs="+", default=[4, 16, 64, 128, 256])
    arguments = parser.parse_args()
    print(
        f"{'rows':>5s} {'threads':>7s} {'eager us':>9s} {'mlcc us':>9s} {'one thread / several':>20s}"
    )
    for rows in arguments.rows:
        xs = [torch.randn(rows, _COLUMNS + i) for i in range(_BRANCHES)]
        alone = 0.0
        for threads in (1, arguments.threads):
            torch.set_num_threads(threads)
            compiled = mlcc.jit(branches, dynamic=False)
            functions = {"eager": partial(branches, xs), "mlcc": partial(compiled, xs)}
            eager, ours = compare(functions, seconds=_SECONDS).low_seconds
            alone = alone or ours
            print(
                f"{rows:5d} {threads:7d} {1e6 * eager:9.1f} {1e6 * ours:9.1f} {alone / ours:20.2f}"
            )


if __name__ == "__main__":
    main()
