"""What the tests of a GPU share: which device it is, and the judging of compiled functions."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tests.python.accuracy import judge_all, to_double
from tests.python.tracing import Compiled, trace

EMULATED = os.environ.get("MLCC_GPU") == "emulate"
QUICK = os.environ.get("MLCC_GPU_CHECK_QUICK") == "1"
DEVICE = torch.device("cpu" if EMULATED else "cuda")
# Of cases that take the host a compiler run each, the emulated GPU tries every so many-th.
STRIDE = (6 if QUICK else 2) if EMULATED else 1


def compiled(function: Any, **keywords: Any) -> Any:
    """`function` by torch.compile."""
    return torch.compile(function, backend="mlcc", **keywords)


def on_device(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Random numbers, the same on each device."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator, dtype=dtype).to(DEVICE)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(DEVICE, dtype)
    return torch.randint(1, 9, shape, generator=generator).to(DEVICE, dtype)


def failures(
    functions: Mapping[str, Callable[..., Any]], *inputs: torch.Tensor, dynamic: bool = False
) -> list[str]:
    """What is wrong with the functions, compiled as one graph, of the same inputs; judged against fp64."""

    def all_of(*tensors: torch.Tensor) -> list[Any]:
        return [result for function in functions.values() for result in flat(function(*tensors))]

    with DEVICE:
        made = trace(all_of, *inputs, dynamic=dynamic, make=Compiled)
        ours = made(*inputs)
        wrong = []
        for name, function in functions.items():
            eager = flat(function(*inputs))
            exact = flat(function(*to_double(list(inputs))))
            mine, ours = ours[: len(eager)], ours[len(eager) :]
            if not (verdict := judge_all(mine, eager, exact)):
                wrong.append(f"{name}: {verdict.reason}")
    if not EMULATED:
        assert made.graph.gpu.startswith("cuda"), "the graph has no device"
    assert made.executable.stats["kernels"] > 0, "no kernel was made"
    return wrong


def flat(result: Any) -> list[Any]:
    """A list of results."""
    return list(result) if isinstance(result, list | tuple) else [result]


def chunks(names: Sequence[Any], size: int) -> list[list[Any]]:
    """Neighbours that share a graph; of an emulated GPU only some."""
    pieces = [list(names[start : start + size]) for start in range(0, len(names), size)]
    return pieces[::STRIDE]


def check(function: Callable[..., Any], *inputs: torch.Tensor, dynamic: bool = False) -> None:
    """One function of `failures`."""
    assert not (wrong := failures({"function": function}, *inputs, dynamic=dynamic)), wrong


def synchronize() -> None:
    """Wait for the device."""
    if not EMULATED:
        torch.cuda.synchronize()
