"""What a call costs beside its kernels: tiny tensors through eager, mlcc.jit and torch.compile, one thread, in turns.

usage: python benchmarks/dispatch.py [--seconds 2] [NAME...]

Median microseconds of process time per call. `python` is mlcc.jit without its look-up in the core, as calls run that
need Python or AOTAutograd's autograd function.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import mlcc
from benchmarks.harness import compare

_SUBMODULES = 150


def one_op(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """What eager does in one call."""
    return torch.mul(x, w)


def many_modules() -> torch.nn.Module:
    """Modules that compute nothing, to be found unchanged, and one that computes."""
    idle = (torch.nn.Dropout() for _ in range(_SUBMODULES - 1))
    return torch.nn.Sequential(*idle, torch.nn.Tanh()).eval()


def _forward(run: Callable[..., Any], *arguments: torch.Tensor) -> Callable[[], Any]:
    return lambda: run(*arguments)


def _forward_and_backward(run: Callable[..., Any], *arguments: torch.Tensor) -> Callable[[], Any]:
    ones = torch.ones_like(arguments[0])
    sought = [one for one in arguments if one.requires_grad]
    return lambda: torch.autograd.grad(run(*arguments), sought, ones)


# What is called, whether its arguments need gradients, and how.
CASES: dict[str, tuple[Callable[[], Any], int, bool, Callable[..., Any]]] = {
    "one op": (lambda: one_op, 2, False, _forward),
    "one op, gradients": (lambda: one_op, 2, True, _forward),
    "one op, with backward": (lambda: one_op, 2, True, _forward_and_backward),
    f"{_SUBMODULES} modules": (many_modules, 1, False, _forward),
    f"{_SUBMODULES} modules, gradients": (many_modules, 1, True, _forward),
}


def _contenders(function: Any) -> dict[str, Any]:
    torch._dynamo.reset()
    in_python: Any = mlcc.jit(function)
    getattr(in_python, "_mlcc_jit", in_python)._add_to_dispatch = lambda *_: None
    return {
        "eager": function,
        "jit": mlcc.jit(function),
        "python": in_python,
        "torch.compile": torch.compile(function, backend="mlcc"),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    names = ("eager", "jit", "python", "torch.compile")
    print(f"{'us per call':24s}", *(f"{name:>13s}" for name in names))
    for name in arguments.names or CASES:
        make, count, trains, way = CASES[name]
        tensors = [torch.randn(8).requires_grad_(trains) for _ in range(count)]
        runs = _contenders(make())
        calls = {one: way(run, *tensors) for one, run in runs.items()}
        found = compare(calls, seconds=arguments.seconds, warmup=3, clock=time.process_time)
        medians = (1e6 * found.spread(one).median for one in names)
        print(f"{name:24s}", *(f"{median:13.2f}" for median in medians), flush=True)


if __name__ == "__main__":
    main()
