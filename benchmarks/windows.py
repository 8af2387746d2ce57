"""Pooling, padding, columns and interpolation of mid-size images: eager and mlcc on one thread, interleaved.

usage: python benchmarks/windows.py [--backward] [NAME...]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name)

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.harness import compare

_SECONDS_OF_CASE = 0.5

IMAGES: dict[str, Callable[[torch.Tensor], Any]] = {
    "max 3x3 step 2": lambda x: F.max_pool2d(x, 3, 2, 1),
    "max 2x2": lambda x: F.max_pool2d(x, 2),
    "average 3x3": lambda x: F.avg_pool2d(x, 3, 1, 1),
    "average 2x2": lambda x: F.avg_pool2d(x, 2),
    "adaptive average": lambda x: F.adaptive_avg_pool2d(x, 7),
    "adaptive average, uneven": lambda x: F.adaptive_avg_pool2d(x, 10),
    "adaptive max, uneven": lambda x: F.adaptive_max_pool2d(x, 10),
    "columns 3x3": lambda x: F.unfold(x[:2], 3, padding=1),
    "reflected": lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    "replicated": lambda x: F.pad(x, (1, 1, 1, 1), mode="replicate"),
    "circular": lambda x: F.pad(x, (1, 1, 1, 1), mode="circular"),
    "padded": lambda x: F.pad(x, (1, 1, 1, 1)),
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "bicubic": lambda x: F.interpolate(x[:2], scale_factor=2, mode="bicubic"),
}
LAYOUTS = {"rows": torch.contiguous_format, "channels last": torch.channels_last}


def forward_of(function: Callable[..., Any], x: torch.Tensor) -> Callable[[], Any]:
    """A call without gradients."""

    def run() -> Any:
        with torch.no_grad():
            return function(x)

    return run


def backward_of(function: Callable[..., Any], x: torch.Tensor) -> Callable[[], Any]:
    """The gradient of a result computed before."""
    x = x.detach().requires_grad_()
    result = function(x)
    weight = torch.randn_like(result)
    return lambda: torch.autograd.grad(result, x, weight, retain_graph=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backward", action="store_true")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    prepare = backward_of if arguments.backward else forward_of
    print(f"{'case':34s} {'eager ms':>9s} {'mlcc ms':>9s} ratio")
    for name in arguments.names or IMAGES:
        for layout, memory_format in LAYOUTS.items():
            x = torch.randn(8, 64, 56, 56).contiguous(memory_format=memory_format)
            torch._dynamo.reset()
            compiled = torch.compile(IMAGES[name], backend="mlcc")
            functions = {"eager": prepare(IMAGES[name], x), "mlcc": prepare(compiled, x)}
            eager, ours = compare(functions, seconds=_SECONDS_OF_CASE).low_seconds
            row = f"{name + ', ' + layout:34s} {1e3 * eager:9.3f} {1e3 * ours:9.3f}"
            print(f"{row} {eager / ours:5.2f}")


if __name__ == "__main__":
    main()
