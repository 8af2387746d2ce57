"""Products of the same rows in one kernel beside kernels of their own: projections and gated layers.

usage: products.py [--cases NAME[,NAME...]] [--rows R[,R...]] [--seconds 2.0] [--dtype float32]
                   [--threads 1] [--dynamic]

Both ways take turns, of one thread by its CPU time, since other work may stand on the machine. Told are the medians of
a call, and of the ratios of neighbouring turns; above 1 the joined kernel is faster. Results are compared with eager's.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor, nn

import mlcc
from benchmarks import harness


class Projections(nn.Module):
    """Queries, keys and values; `width` is that of keys and of values."""

    def __init__(self, depth: int, width: int, bias: bool) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(depth, n, bias=bias) for n in (depth, width, width))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.q(x), self.k(x), self.v(x)


class Gated(nn.Module):
    """A gated layer without its last product."""

    def __init__(self, depth: int, width: int, act: Callable[[Tensor], Tensor], bias: bool) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(depth, width, bias=bias) for _ in range(2))
        self.act = act

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (self.act(self.gate(x)) * self.up(x),)


CASES: dict[str, tuple[int, Callable[[], nn.Module]]] = {
    "qkv512": (512, lambda: Projections(512, 512, True)),
    "qkv768": (768, lambda: Projections(768, 768, True)),
    "qkv2048": (2048, lambda: Projections(2048, 2048, False)),
    "gqa768": (768, lambda: Projections(768, 256, True)),
    "gqa2048": (2048, lambda: Projections(2048, 512, False)),
    "mlp512": (512, lambda: Gated(512, 1408, nn.functional.silu, False)),
    "mlp768": (768, lambda: Gated(768, 3072, nn.functional.gelu, True)),
    "mlp2048": (2048, lambda: Gated(2048, 5632, nn.functional.silu, False)),
}


def measure(module: nn.Module, x: Tensor, seconds: float, dynamic: bool) -> harness.Comparison:
    """Of calls whose products are apart and joined."""
    tolerance = 1e-3 if x.dtype == torch.float32 else 5e-2
    ways = {}
    for name, joined in (("apart", False), ("joined", True)):
        compiled = mlcc.jit(lambda x, module=module: module(x), dynamic=dynamic)
        with mlcc.config.patch(join_products=joined):
            found = compiled(x)
        for one, other in zip(found, module(x), strict=True):
            torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
        ways[name] = lambda compiled=compiled: compiled(x)
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    return harness.compare(ways, seconds=seconds, min_rounds=8, max_rounds=100_000, clock=clock)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--rows", default="1,4,16,128,512,1024")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dynamic", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    dtype: torch.dtype = getattr(torch, args.dtype)
    for name in args.cases.split(","):
        depth, make = CASES[name]
        module = make().to(dtype)
        for rows in map(int, args.rows.split(",")):
            mlcc.clear_packs()
            x = torch.randn(rows, depth).to(dtype)
            with torch.no_grad():
                compared = measure(module, x, args.seconds, args.dynamic)
            apart, joined = (compared.spread(way).median * 1e6 for way in ("apart", "joined"))
            ratio = compared.ratio("joined").median
            print(
                f"{name:8} {rows:5} rows: apart {apart:8.0f} us, joined {joined:8.0f} us, {ratio:.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
