"""An LSTM and a selective scan (as in Mamba) by torch's scan: eager and mlcc.

usage: python benchmarks/control_flow.py [--threads N]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from torch._higher_order_ops import scan

Tensors = tuple[torch.Tensor, ...]


def lstm(
    x: torch.Tensor, h: torch.Tensor, c: torch.Tensor, w: torch.Tensor, u: torch.Tensor
) -> Any:
    """States and outputs of one layer."""

    def step(carried: Tensors, x: torch.Tensor) -> Any:
        h, c = carried
        i, f, g, o = (x + h @ u).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        return (h, c), h.clone()

    return scan(step, (h, c), x @ w)


def selective_scan(
    x: torch.Tensor, dt: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor
) -> Any:
    """Outputs of a state space whose step depends on the input."""

    def step(h: torch.Tensor, row: Tensors) -> Any:
        x, dt, b, c = row
        h = (dt[..., None] * a).exp() * h + (dt * x)[..., None] * b[:, None]
        return h, (h * c[:, None]).sum(-1)

    batch, width = x.shape[1:]
    return scan(step, x.new_zeros(batch, width, a.shape[1]), (x, dt, b, c))


def seconds_of(function: Callable[..., Any], *args: torch.Tensor) -> float:
    """The best of some runs."""
    for _ in range(2):
        function(*args)
    best = float("inf")
    for _ in range(10):
        start = time.perf_counter()
        function(*args)
        best = min(best, time.perf_counter() - start)
    return best


def main() -> None:
    """Print a row for each program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=1)
    torch.set_num_threads(parser.parse_args().threads)
    length, batch, width, states = 128, 4, 64, 16
    shapes = {
        lstm: [
            (length, batch, width),
            (batch, width),
            (batch, width),
            (width, 4 * width),
            (width, 4 * width),
        ],
        selective_scan: [
            (length, batch, width),
            (length, batch, width),
            (width, states),
            (length, batch, states),
            (length, batch, states),
        ],
    }
    for function, sizes in shapes.items():
        args = [torch.randn(size) * 0.1 for size in sizes]
        with torch.no_grad():
            eager = seconds_of(function, *args)
            torch._dynamo.reset()  # eager's scan is traced by Dynamo too
            ours = seconds_of(torch.compile(function, backend="mlcc"), *args)
        times = f"eager {eager * 1e3:8.2f} ms, mlcc {ours * 1e3:7.2f} ms"
        print(f"{function.__name__:15} {times}, {eager / ours:5.1f} times")


if __name__ == "__main__":
    main()
