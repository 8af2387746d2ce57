"""Channels-last regions against none: conv nets whose inner images nobody sees, and the same ones where all are seen.

usage: python benchmarks/layout.py [--sizes NAME=BxS[,...]] [--seconds 5] [--threads 1] [--clock wall|cpu]

Inside of a graph images lie channels-last from the first convolution to the last. A net that gives all its inner images
out (the results of its activations) must lay each of them out as eager does, row by row, so each convolution converts
its result; kernels and fusion are the same otherwise. Both are `mlcc.jit(module, dynamic=False)` under no_grad, in
turns; the ratio is the time of the second one over that of the first.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import mlcc  # noqa: E402
from benchmarks.apart import geometric_mean  # noqa: E402
from benchmarks.contraction_nets import NETS  # noqa: E402
from benchmarks.harness import compare  # noqa: E402
from benchmarks.suite import CLOCKS, TOLERANCE  # noqa: E402

_SIZES = "resnet18=1x224,resnet50=1x224,mobilenet=1x224,unet=1x128"


class AllSeen(nn.Module):
    """A net that also gives out the results of its activations."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.seen: list[Tensor] = []
        for module in net.modules():
            if isinstance(module, nn.ReLU | nn.ReLU6):
                module.register_forward_hook(self._see)

    def _see(self, module: nn.Module, args: Any, result: Tensor) -> None:
        self.seen.append(result)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """The result, and the images."""
        self.seen = []
        result = self.net(x)
        seen, self.seen = self.seen, []
        return (result, *seen)


def measure(name: str, batch: int, size: int, arguments: argparse.Namespace) -> float:
    """Prints the row and returns its ratio."""
    kind = NETS[name]
    net = kind.build(batch, size, kind.width)
    seen = AllSeen(kind.build(batch, size, kind.width).module)
    apart = mlcc.jit(net.module, dynamic=False)
    together = mlcc.jit(seen, dynamic=False)
    with torch.no_grad():
        found, expected = together(*net.inputs)[0], apart(*net.inputs)
        torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE * expected.abs().max())
        timed = compare(
            {"none": lambda: together(*net.inputs), "regions": lambda: apart(*net.inputs)},
            seconds=arguments.seconds,
            threads=arguments.threads,
            clock=CLOCKS[arguments.clock],
        )
    ratio = timed.ratio("regions").median
    none, regions = (timed.spread(one).median * 1e3 for one in ("none", "regions"))
    shape = f"{batch}x{size}"
    print(f"{name:10} {shape:6}  regions {regions:8.2f} ms  none {none:8.2f} ms  {ratio:.2f}x")
    return ratio


def main() -> None:
    """Print a row for each net, and the geometric mean."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--sizes", default=_SIZES)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    arguments = parser.parse_args()
    ratios = []
    for row in arguments.sizes.split(","):
        name, _, shape = row.partition("=")
        batch, _, size = shape.partition("x")
        ratios.append(measure(name, int(batch), int(size), arguments))
    print(f"geometric mean {geometric_mean(ratios):.2f}")


if __name__ == "__main__":
    main()
