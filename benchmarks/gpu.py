"""Times mlcc on a GPU beside eager and TorchInductor. usage: gpu.py [--rivals inductor,autotune] [--seconds S]

Each case is one line of JSON: whether mlcc's results are as good as eager's against fp64, and for each contestant the
median time per call, the host's part, and the seconds of the first call. On an emulated GPU only the answers of tiny
sizes are looked at. Exit status 1: a wrong answer.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
import torch._functorch.config  # noqa: E402
from torch import nn  # noqa: E402

from benchmarks.gpu_cases import Case, memory_cases, model_cases  # noqa: E402
from benchmarks.gpu_timing import (  # noqa: E402
    DEVICE,
    EMULATED,
    bytes_of,
    record,
    sets_of_buffers,
    time_calls,
)
from tests.python.accuracy import InFloat64, Verdict, judge_all, judge_together, leaves, to_double  # noqa: E402

# How each contestant compiles.
BACKENDS: dict[str, dict[str, Any]] = {
    "mlcc": {"backend": "mlcc"},
    "inductor": {"backend": "inductor"},
    "autotune": {"backend": "inductor", "mode": "max-autotune-no-cudagraphs"},
}


class Contestant:
    """A case compiled in one way, or eager."""

    def __init__(self, case: Case, name: str) -> None:
        self.case = case
        # A copy of a module: gradients and the steps of optimizers are its own.
        function = (
            copy.deepcopy(case.function) if isinstance(case.function, nn.Module) else case.function
        )
        self.module = function if isinstance(function, nn.Module) else None
        torch._dynamo.reset()
        self.run = torch.compile(function, **BACKENDS[name]) if name in BACKENDS else function

    def evaluate(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """What is judged: results, and gradients where they are what is timed."""
        if not self.case.backward:
            with torch.no_grad():
                return list(leaves(self.run(*inputs)))
        wanted = self._differentiated(inputs)
        result = self.run(*inputs)
        if self.module is not None:
            return [result.detach(), *torch.autograd.grad(result, wanted)]
        return list(torch.autograd.grad(result, wanted, _weights_like(result)))

    def step(self, sets: list[list[torch.Tensor]]) -> Callable[[int], object]:
        """What is timed, of the number of a set of inputs."""
        if not self.case.backward:
            return lambda turn: self.run(*sets[turn])
        if self.module is not None:
            return self._training_step(sets)
        # The graph of the forward pass stays, so that each call is a backward pass alone.
        held = []
        for inputs in sets:
            wanted = self._differentiated(inputs)
            result = self.run(*inputs)
            held.append((result, wanted, _weights_like(result)))
        return lambda turn: torch.autograd.grad(*held[turn], retain_graph=True)

    def _training_step(self, sets: list[list[torch.Tensor]]) -> Callable[[int], object]:
        assert self.module is not None
        optimizer = torch.optim.AdamW(self.module.parameters(), lr=1e-4)

        def train(turn: int) -> None:
            optimizer.zero_grad()
            self.run(*sets[turn]).backward()
            optimizer.step()

        return train

    def _differentiated(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        if self.module is not None:
            return list(self.module.parameters())
        return [tensor.requires_grad_() for tensor in inputs if tensor.is_floating_point()]


def _weights_like(result: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator(device=result.device).manual_seed(9)
    return torch.randn(result.shape, generator=generator, device=result.device).to(result.dtype)


def judge(case: Case, ours: list[torch.Tensor], inputs: list[torch.Tensor]) -> Verdict:
    """mlcc's results beside eager's, against fp64."""
    eager = Contestant(case, "eager").evaluate(inputs)
    in_double = copy.copy(case)
    function = case.function
    if isinstance(function, nn.Module):
        object.__setattr__(in_double, "function", copy.deepcopy(function).double())
    with InFloat64():
        exact = Contestant(in_double, "eager").evaluate(to_double(inputs))
    if case.backward:
        return judge_together(ours, eager, exact)
    return judge_all(ours, eager, exact)


def run_case(case: Case, rivals: list[str]) -> bool:
    """Judge and time one case; whether the answers are right."""
    inputs = case.make(DEVICE)
    contestants = {name: Contestant(case, name) for name in ("eager", "mlcc", *rivals)}
    fields: dict[str, Any] = {
        "step": "benchmarks",
        "kind": "benchmark",
        "case": case.name,
        "class": case.kind,
    }
    cold = {}
    results: dict[str, list[torch.Tensor]] = {}
    for name, contestant in contestants.items():
        start = time.perf_counter()
        try:
            results[name] = contestant.evaluate(inputs)
        except Exception as error:
            if name in ("eager", "mlcc"):
                raise
            print(f"{case.name}: {name}: {error}", file=sys.stderr)
            continue
        _synchronize()
        cold[name] = time.perf_counter() - start
    verdict = judge(case, results["mlcc"], inputs)
    fields |= {"right": bool(verdict), "reason": verdict.reason}
    if case.kind == "memory":
        moved = case.moved or (lambda given, made: bytes_of(given) + bytes_of(made))
        fields["bytes"] = moved(inputs, results["eager"])
    times = _times(case, {n: contestants[n] for n in results}, inputs, cold)
    if not EMULATED:
        fields["times"] = times
    record(**fields)
    return bool(verdict)


def _times(
    case: Case,
    contestants: dict[str, Contestant],
    inputs: list[torch.Tensor],
    cold: dict[str, float],
) -> dict[str, Any]:
    """By contestant; of a model one set of inputs will do, since its weights and activations exceed the cache."""
    count = sets_of_buffers(bytes_of(inputs)) if case.kind == "memory" else 1
    # Each contestant has leaves of its own, but the same memory to read.
    sets = [inputs, *(case.make(DEVICE) for _ in range(count - 1))]
    context = nullcontext() if case.backward else torch.no_grad()
    with context:
        steps = {name: contestant.step(sets) for name, contestant in contestants.items()}
        if EMULATED:
            for step in steps.values():
                step(0)
            return {}
        timed = time_calls(steps, count)
    return {name: {**asdict(t), "cold_s": cold[name]} for name, t in timed.items()}


def _synchronize() -> None:
    if not EMULATED:
        torch.cuda.synchronize()


def cases() -> Iterator[Case]:
    """All, one at a time: models are large."""
    yield from memory_cases(small=EMULATED)
    for make in model_cases(EMULATED, DEVICE):
        yield make()


def main() -> None:
    """Run the cases for which there is time."""
    parser = argparse.ArgumentParser(description="mlcc on a GPU beside eager and TorchInductor")
    parser.add_argument("--rivals", default="", help="inductor, autotune")
    parser.add_argument("--seconds", type=float, default=1e9, help="no case begins after these")
    parser.add_argument("--case", default="", help="only those whose name holds this")
    arguments = parser.parse_args()
    # The graph of a forward pass that is timed backwards is gone through more than once.
    torch._functorch.config.donated_buffer = False
    rivals = [name for name in arguments.rivals.split(",") if name]
    start = time.perf_counter()
    good = True
    for case in cases():
        if arguments.case not in case.name:
            continue
        if time.perf_counter() - start > arguments.seconds:
            print(f"no time for {case.name}", file=sys.stderr)
            break
        try:
            good = run_case(case, rivals) and good
        except Exception as error:
            good = False
            reason = f"{type(error).__name__}: {error}"[:1000]
            record(
                step="benchmarks",
                kind="benchmark",
                case=case.name,
                right=False,
                reason=reason,
                **{"class": case.kind},
            )
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
