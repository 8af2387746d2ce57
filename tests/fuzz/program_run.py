"""What the calls of a program show: results, arguments and states, gradients, and whose memory each result is.

After each call all its results are written over, with other numbers each. Whatever shares their memory then shows it:
arguments, states, results of this call and of earlier ones, and what later calls compute.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from tests.fuzz.torch_programs import Program
from tests.memory import snapshot, write_over


class Leaf(NamedTuple):
    """A tensor as it was at some time, with its strides."""

    name: str
    tensor: torch.Tensor
    has_form: bool  # its strides are to be eager's

    @property
    def place(self) -> tuple[str, int] | None:
        """Of a result or argument of a call: which."""
        what, number, *_ = self.name.split()
        return (what, int(number)) if self.has_form and what in ("result", "input") else None


@dataclass
class Subject:
    """The function or module of a program, and what it is called by: itself or compiled."""

    target: Any
    call: Callable[..., Any]

    @classmethod
    def of(cls, program: Program, wrap: Callable[[Any], Any] = lambda target: target) -> Subject:
        """Of a new function or module, for programs that differ in sizes alone."""
        target = program.function
        return cls(target, wrap(target))


def run_program(
    program: Program, subject: Subject, inputs: Sequence[Sequence[torch.Tensor]] | None = None
) -> list[Leaf]:
    """All calls, with the inputs of each; by default the program's."""
    run = _Run(program, subject)
    for call, made in enumerate(inputs or all_inputs(program)):
        run.call(call, made)
    return run.leaves


def all_inputs(program: Program) -> list[list[torch.Tensor]]:
    """Those of each call."""
    return [program.make_inputs(call) for call in range(len(program.call_texts))]


class _Run:
    def __init__(self, program: Program, subject: Subject) -> None:
        self._program = program
        self._subject = subject
        self._states: list[torch.Tensor] = []
        self._results: list[torch.Tensor] = []  # of all calls
        self.leaves: list[Leaf] = []

    def call(self, number: int, inputs: Sequence[torch.Tensor]) -> None:
        """One of them: what it shows, then what memory is whose."""
        program = self._program
        if number == 0:
            self._set_states(inputs[: program.num_states])
        bases = inputs[program.num_states :]
        given = [base.clone() if program.backward else base for base in bases]
        arguments = program.arguments(number, given)
        if not program.holder:
            arguments = [*self._states, *arguments]
        results = list(self._subject.call(*arguments))
        self._show(results, "result", f"of call {number}")
        self._show(given, "input", f"of call {number}")
        if program.backward:
            self._show(_gradients(results, bases), "gradient", f"of call {number}", has_form=False)
        self._read_states()
        self._show(self._states, "state", f"of call {number}")
        write_over(results, len(self._results))
        self._results += results
        when = f"as call {number}'s results are written over"
        self._show(self._results, "result", when, has_form=False)
        self._show(given, "input", when, has_form=False)
        self._show(self._states, "state", when, has_form=False)

    def _set_states(self, states: Sequence[torch.Tensor]) -> None:
        self._states = list(states)
        if self._program.holder:
            self._subject.target.seen = []
            for place, state in enumerate(states):
                setattr(self._subject.target, f"h{place}", state)

    def _read_states(self) -> None:
        """After a call, and what it has collected; they take no graph along to the next one."""
        module, states = self._subject.target, self._states
        if not self._program.holder:
            self._states = [one.detach() if one.grad_fn else one for one in states]
            return
        for place in range(self._program.num_states):
            state = getattr(module, f"h{place}")
            if state.grad_fn:
                setattr(module, f"h{place}", state.detach())
        states = [getattr(module, f"h{place}") for place in range(self._program.num_states)]
        self._states = [*states, *module.seen]

    def _show(
        self, tensors: Sequence[torch.Tensor], what: str, when: str, has_form: bool = True
    ) -> None:
        for place, tensor in enumerate(tensors):
            self.leaves.append(Leaf(f"{what} {place} {when}", snapshot(tensor), has_form))


def _gradients(
    results: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    floats = [one for one in results if isinstance(one, torch.Tensor) and one.requires_grad]
    leaves = [tensor for tensor in inputs if tensor.requires_grad]
    if not floats or not leaves:
        return []
    weights = [torch.linspace(0.5, 1.5, o.numel(), dtype=o.dtype).view(o.shape) for o in floats]
    found = torch.autograd.grad(floats, leaves, weights, allow_unused=True)
    return [gradient for gradient in found if gradient is not None]
