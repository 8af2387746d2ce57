"""Copies alone, and beside other work, as models have them: eager and mlcc on one thread, interleaved.

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

from benchmarks.harness import compare
from benchmarks.windows import forward_of

_SECONDS_OF_CASE = 0.5


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
    print(f"{'case':20s} {'eager ms':>9s} {'mlcc ms':>9s} ratio")
    for name in arguments.names or CASES:
        shape, function = CASES[name]
        x = torch.randn(shape)
        torch._dynamo.reset()
        compiled = torch.compile(function, backend="mlcc")
        functions = {"eager": forward_of(function, x), "mlcc": forward_of(compiled, x)}
        eager, ours = compare(functions, seconds=_SECONDS_OF_CASE).low_seconds
        print(f"{name:20s} {1e3 * eager:9.3f} {1e3 * ours:9.3f} {eager / ours:5.2f}")


if __name__ == "__main__":
    main()
