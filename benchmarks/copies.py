"""Copies alone, and beside other work, as models have them: eager and mlcc on one thread, interleaved.

Both ways into mlcc are shown: what a call costs beside its kernels is about 25 us through torch.compile, 3 by mlcc.jit.

usage: python benchmarks/copies.py [NAME...]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import mlcc
from benchmarks.harness import compare
from benchmarks.windows import forward_of

_SECONDS_OF_CASE = 0.8


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    """As in rotary embeddings."""
    a, b = x.chunk(2, -1)
    return torch.cat([-b, a], -1)


def skip_connection(x: torch.Tensor) -> torch.Tensor:
    """As on the way up of a U-Net."""
    return torch.cat([x[:, :16].relu(), x[:, 16:] * 2], 1)


def key_cache(x: torch.Tensor) -> torch.Tensor:
    """Keys of earlier tokens and new ones, which lie otherwise in memory."""
    return torch.cat([x[:, :, :-4], x[:, :, -4:].transpose(1, 2).contiguous().transpose(1, 2)], 2)


CASES: dict[str, tuple[tuple[int, ...], Callable[[torch.Tensor], Any]]] = {
    "cat of rows": ((1024, 512), lambda x: torch.cat([x, x], 0)),
    "cat of channels": ((8, 32, 56, 56), lambda x: torch.cat([x, x], 1)),
    "cat of columns": ((1024, 512), lambda x: torch.cat([x, x], 1)),
    "cat of 8": ((8, 32, 28, 28), lambda x: torch.cat([x] * 8, 1)),
    "stack": ((1024, 512), lambda x: torch.stack([x, x])),
    "every second row": ((1024, 512), lambda x: x.slice_scatter(x[:512], 0, 0, None, 2)),
    "every second column": ((1024, 512), lambda x: x.slice_scatter(x[:, :256], 1, 0, None, 2)),
    "stack of columns": ((1024, 512), lambda x: torch.stack([x, x], -1)),
    "flip": ((1024, 512), lambda x: x.flip(-1)),
    "flip of rows": ((1024, 512), lambda x: x.flip(0)),
    "roll": ((1024, 512), lambda x: x.roll(7, -1)),
    "roll of images": ((8, 32, 56, 56), lambda x: x.roll((3, 3), (2, 3))),
    "rotate half": ((8, 16, 128, 64), rotate_half),
    "skip connection": ((8, 32, 56, 56), skip_connection),
    "key cache": ((4, 16, 256, 64), key_cache),
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'case':20s} {'eager ms':>9s} {'compile':>9s} {'jit':>9s} ratios")
    for name in arguments.names or CASES:
        shape, function = CASES[name]
        x = torch.randn(shape)
        torch._dynamo.reset()
        compiled = torch.compile(function, backend="mlcc")
        functions = {
            "eager": forward_of(function, x),
            "compile": forward_of(compiled, x),
            "jit": forward_of(mlcc.jit(function, dynamic=False), x),
        }
        eager, *ours = compare(functions, seconds=_SECONDS_OF_CASE).low_seconds
        times = " ".join(f"{1e3 * seconds:9.3f}" for seconds in (eager, *ours))
        print(f"{name:20s} {times} {' '.join(f'{eager / own:5.2f}' for own in ours)}")


if __name__ == "__main__":
    main()
