"""A model compiled by torch.compile and a function compiled by mlcc.jit, beside eager. usage: quickstart.py"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import nn

import mlcc


class Block(nn.Module):
    """A gated layer with a norm, as in language models."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.gate = nn.Linear(width, 3 * width)
        self.up = nn.Linear(width, 3 * width)
        self.down = nn.Linear(3 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [rows, width]; the result has its shape."""
        normed = self.norm(x)
        return x + self.down(nn.functional.silu(self.gate(normed)) * self.up(normed))


def milliseconds(call: Callable[[], object], rounds: int = 20) -> float:
    """The fastest of some calls."""
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return min(times) * 1e3


def main() -> None:
    """Compile, compare, measure."""
    model = Block(256).eval()
    x = torch.randn(128, 256)
    with torch.no_grad():
        compiled = torch.compile(model, backend="mlcc")
        begin = time.perf_counter()
        result = compiled(x)
        print(f"first call {time.perf_counter() - begin:.2f} s")
        torch.testing.assert_close(result, model(x))
        eager, ours = milliseconds(lambda: model(x)), milliseconds(lambda: compiled(x))
        print(f"model: eager {eager:.3f} ms, mlcc {ours:.3f} ms")

    @mlcc.jit
    def normalize(x: torch.Tensor) -> torch.Tensor:
        return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-5)

    for rows in (10, 1000):  # one trace serves both
        y = torch.randn(rows, 300)
        expected = (y - y.mean(-1, keepdim=True)) / (y.std(-1, keepdim=True) + 1e-5)
        torch.testing.assert_close(normalize(y), expected)
    print("function: right for 10 and for 1000 rows")


if __name__ == "__main__":
    main()
