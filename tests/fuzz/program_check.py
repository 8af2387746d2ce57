"""Whether a program compiled by mlcc does what it does eagerly, and the smallest program that still does not.

Results and inputs (programs write into them) are compared in dtype, shape, strides and values. A float r of eager's may
be missed by

    e (32 |r| + 8 rms(r)) + 16 max(s, median(s))

with e the epsilon of its dtype and s how far eager parts from itself: in float64, and where inputs and what ops give
are off by one epsilon. Where the kind of a value (NaN, infinity, an integer, a bool) changes with these runs nothing is
judged, and neither is a program that eager itself refuses then. Strides may also be those that torch's own tracing
gives.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import mlcc
from tests.fuzz.program_run import Leaf, Subject, all_inputs, run_program
from tests.fuzz.torch_programs import Program
from tests.python.accuracy import InFloat64, Wrong, check_form
from tests.python.roundings import OtherRoundings, perturbed
from tests.warm import Warmth, digests

NUM_PERTURBED = 2
# Eager's own limits, told as such.
REFUSALS = ("Could not guard on data-dependent", "data-dependent")


@dataclass(frozen=True)
class Failure:
    """What went wrong: a kind, by which a smaller program's failure counts as the same, and the text."""

    kind: str
    text: str


# What the kind of a failure starts with that `aot_eager` shows as well.
TORCHS_OWN = "aot_eager too: "

Inputs = list[list[torch.Tensor]]


def other_runs(program: Program) -> list[list[Leaf]] | None:
    """Eager with other roundings and in float64; None if eager refuses one of them."""
    runs = []
    try:
        for seed in range(NUM_PERTURBED):
            inputs = [[perturbed(t, seed) for t in call] for call in all_inputs(program)]
            with OtherRoundings(seed):
                runs.append(_run_eagerly(program, inputs))
        doubles = [
            [
                t.detach().double().requires_grad_(t.requires_grad)
                if t.dtype.is_floating_point
                else t
                for t in call
            ]
            for call in all_inputs(program)
        ]
        with InFloat64():
            runs.append(_run_eagerly(program, doubles))
    except Exception:  # of eager, on purpose: it says that the program has no steady answer
        return None
    return runs


def _run_eagerly(program: Program, inputs: Inputs | None = None) -> list[Leaf]:
    return run_program(program, Subject.of(program), inputs)


def check_program(program: Program) -> Failure | None:
    """What is wrong with mlcc's answers on the program's sizes and, where sizes are symbols, on larger ones.

    A second time, after all that torch has compiled is forgotten but for its caches, they are the same.
    """
    return examine(program)[0]


def examine(program: Program) -> tuple[Failure | None, Warmth]:
    """What is wrong with a program, and what it gave the first time."""
    cold = Warmth()
    with cold.measured():
        failure, shown = _check_calls(program, _compiled(program))
    cold.digests = digests(shown)
    if failure is None and shown:
        failure = _check_again(program, cold)
    return failure, cold


def _check_again(program: Program, cold: Warmth) -> Failure | None:
    try:
        reason = run_again(program).difference(cold)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        return Failure(
            f"after a reset raises {type(error).__name__} {_shape_of(text)}", text[:4000]
        )
    return Failure(f"after a reset {_shape_of(reason)}", reason) if reason else None


def run_again(program: Program) -> Warmth:
    """What a program gives at all sizes of which something can be said, on the caches of the first time."""
    warm, shown = Warmth(), list[Leaf]()
    with warm.measured(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        subject = _compiled(program)
        for one in _sizes(program):
            try:
                _run_eagerly(one)
            except Exception:
                continue
            shown += run_program(one, subject)
    warm.digests = digests(shown)
    return warm


def _compiled(program: Program, backend: str = "mlcc") -> Subject:
    if program.entry == "jit" and backend == "mlcc":
        return Subject.of(program, functools.partial(mlcc.jit, dynamic=program.dynamic))
    torch._dynamo.reset()
    wrap = functools.partial(torch.compile, backend=backend, dynamic=program.dynamic)
    return Subject.of(program, wrap)


def fails_without_mlcc(program: Program, failure: Failure) -> bool:
    """Whether torch's own tracing with eager's kernels, `aot_eager`, fails in the same way."""
    other, _ = _check_calls(program, _compiled(program, "aot_eager"))
    return other is not None and other.kind.replace("aot_eager", "mlcc") == failure.kind


def _sizes(program: Program) -> tuple[Program, ...]:
    return (program, program.resized()) if program.dynamic else (program,)


def _check_calls(program: Program, subject: Subject) -> tuple[Failure | None, list[Leaf]]:
    """What is wrong, and what was shown at all sizes; nothing where nothing can be said of it."""
    shown = []
    for one in _sizes(program):
        failure, leaves = _check_call(one, subject)
        if failure is not None or leaves is None:
            return failure, []
        shown += leaves
    return None, shown


class _Judge:
    """Eager's results of a program, and those of its other roundings, which are run when they are asked for."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self.eager = _run_eagerly(program)

    @cached_property
    def _others(self) -> list[list[Leaf]]:
        """Nothing where eager refuses one of them."""
        runs = other_runs(self._program) or []
        return runs if all(len(run) == len(self.eager) for run in runs) else []

    @property
    def is_steady(self) -> bool:
        """Whether eager takes the other roundings, so that something can be said."""
        return bool(self._others)

    def check(self, result: torch.Tensor, place: int) -> None:
        """Raise Wrong unless one result is right."""
        name, eager, _ = self.eager[place]
        try:
            compare(result, eager, [], name)  # near without any allowance: nothing to ask for
        except Wrong:
            compare(result, eager, [run[place].tensor for run in self._others], name)


def _check_call(program: Program, subject: Subject) -> tuple[Failure | None, list[Leaf] | None]:
    """What is wrong at one size, and what was shown; None where mlcc need not take the program."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            judge = _Judge(program)
        except Exception:
            return None, []  # of these sizes
        try:
            ours = run_program(program, subject)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            if any(word in text for word in REFUSALS) or _torch_refuses(program):
                return None, None
            if not judge.is_steady:
                return None, None
            return Failure(f"raises {type(error).__name__} {_shape_of(text)}", text[:4000]), None
        failure = _find_failure(program, ours, judge)
        return (failure if failure is not None and judge.is_steady else None), ours


def _find_failure(program: Program, ours: list[Leaf], judge: _Judge) -> Failure | None:
    if len(ours) != len(judge.eager):
        text = f"{len(ours)} results, eager has {len(judge.eager)}"
        return Failure("number of results", text)
    for place, (leaf, expected) in enumerate(zip(ours, judge.eager, strict=True)):
        try:
            judge.check(leaf.tensor, place)
            if leaf.has_form:
                check_form(leaf.tensor, expected.tensor, leaf.name)
        except Wrong as wrong:
            if "strides" in str(wrong) and _torch_foresees(program, place, leaf):
                continue
            is_memory = "written over" in leaf.name
            what = f"memory of {leaf.name.split()[0]}: " if is_memory else ""
            return Failure(f"wrong {what}{_shape_of(str(wrong))}", str(wrong))
    return None


def _torch_refuses(program: Program) -> bool:
    """Whether no trace of the program can be made, because it asks for values."""
    if program.holder:
        program = replace(program, holder="")
    try:
        make_fx(program.function, tracing_mode="fake")(*_first_arguments(program))
    except Exception:  # of torch, on purpose
        return True
    return False


def _first_arguments(program: Program) -> list[torch.Tensor]:
    """Of a function."""
    inputs = [tensor.detach() for tensor in program.make_inputs()]
    bases = inputs[program.num_states :]
    return [*inputs[: program.num_states], *program.arguments(0, bases)]


def _torch_foresees(program: Program, place: int, leaf: Leaf) -> bool:
    """Whether torch's own tracing, without mlcc, gives a result these strides, which are not eager's."""
    strides = leaf.tensor.stride()
    if leaf.place and not program.num_states:
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            inputs = [mode.from_tensor(tensor.detach()) for tensor in program.make_inputs()]
            results = program.function(*program.arguments(0, inputs))
        what, number = leaf.place
        if {"result": results, "input": inputs}[what][number].stride() == strides:
            return True
    foreseen = run_program(program, _compiled(program, "aot_eager"))[place].tensor
    return foreseen.stride() == strides


def show(program: Program) -> int:
    """What a script of a failure does: print what is wrong; the exit status."""
    failure = check_program(program)
    print(failure.text if failure else "right")
    return int(failure is not None)


def _shape_of(text: str) -> str:
    """The words of a message, by which two are the same."""
    line = text.splitlines()[0]
    return " ".join(re.findall(r"[A-Za-z_]{3,}", line.split(": ", 1)[-1])[:4])


def compare(
    result: torch.Tensor, eager: torch.Tensor, others: list[torch.Tensor], name: str
) -> None:
    """Raise Wrong unless `result` is as near to eager's as this file's head says."""
    if (result.dtype, result.shape) != (eager.dtype, eager.shape):
        check_form(result, eager, name)
    if any(other.shape != eager.shape for other in others):
        return
    if eager.dtype.is_floating_point:
        bad = _bad_floats(result.double(), eager.double(), others, torch.finfo(eager.dtype).eps)
    else:
        bad = result != eager
        for other in others:
            bad &= other.to(eager.dtype) == eager
    if bool(bad.any()):
        place = int(bad.flatten().nonzero()[0])
        raise Wrong(
            f"{name}: {int(bad.sum())} of {eager.numel()} elements differ, the first at {place}:"
            f" {result.flatten()[place].item()!r}, eager has {eager.flatten()[place].item()!r}"
        )


def _kind(values: torch.Tensor) -> torch.Tensor:
    return values.isnan() * 2 + values.isposinf() * 1 - values.isneginf() * 1


def _bad_floats(
    result: torch.Tensor, eager: torch.Tensor, others: list[torch.Tensor], epsilon: float
) -> torch.Tensor:
    kind = _kind(eager)
    steady = torch.ones_like(kind, dtype=torch.bool)
    spread = torch.zeros_like(eager)
    for other in others:
        steady &= _kind(other.double()) == kind
        distance = (other.double() - eager).abs()
        spread = spread.maximum(distance.nan_to_num(0.0, 0.0, 0.0))
    finite = eager[kind == 0]
    if finite.numel() == 0:
        return (_kind(result) != kind) & steady
    rms = finite.square().mean().sqrt()
    usual = spread[kind == 0].median()
    bound = epsilon * (32 * eager.abs() + 8 * rms) + 16 * spread.maximum(usual)
    far = (result - eager).abs() > bound
    return steady & ((_kind(result) != kind) | (far & (kind == 0)))


# -- reduction


def reduce_program(
    program: Program, failure: Failure, told: Callable[[], None] = lambda: None
) -> tuple[Program, Failure]:
    """A smaller program that fails in the same way, by leaving out what can be left out; calls `told` at each step."""
    best, found = program, failure
    is_smaller = True
    while is_smaller:
        is_smaller = False
        seen = {best}
        for candidate in map(_without_unused, _smaller(best)):
            if candidate in seen:
                continue
            seen.add(candidate)
            told()
            result = _failure_of(candidate)
            if result is not None and result.kind == failure.kind:
                best, found, is_smaller = candidate, result, True
                break
    return best, found


def _names(text: str) -> list[str]:
    return re.findall(r"\b[vxh]\d+\b", text)


def _without_unused(program: Program) -> Program:
    """Without values that nothing reads and the last inputs that nothing reads."""
    used = set(program.outputs)
    kept = []
    for line in reversed(program.statements):
        name, equals, _ = line.partition(" = ")
        if not equals or not re.fullmatch(r"v\d+", name) or name in used:
            used.update(_names(line))
            kept.append(line)
    made = replace(program, statements=tuple(reversed(kept)))
    while len(made.call_texts[0]) > 1 and f"x{len(made.call_texts[0]) - 1}" not in used:
        if made.calls:
            made = replace(made, calls=tuple(texts[:-1] for texts in made.calls))
        else:
            made = replace(made, inputs=made.inputs[:-1])
    while made.num_states and f"h{made.num_states - 1}" not in used:
        states = made.num_states - 1
        inputs = (*made.inputs[:states], *made.inputs[states + 1 :])
        made = replace(made, inputs=inputs, num_states=states)
    return made


def _failure_of(program: Program) -> Failure | None:
    try:
        _run_eagerly(program)
    except Exception:
        return None  # no program at all
    return check_program(program)


def _smaller(program: Program) -> Iterator[Program]:
    """What may be tried, the largest steps first."""
    if len(program.outputs) > 1:
        for output in program.outputs:
            yield replace(program, outputs=(output,))
        for place in range(len(program.outputs)):
            outputs = program.outputs[:place] + program.outputs[place + 1 :]
            yield replace(program, outputs=outputs)
    if program.backward:
        yield replace(program, backward=False)
    if program.entry == "compile":
        yield replace(program, entry="jit")
    if program.holder:
        yield replace(program, holder="")
    for place in range(len(program.calls) if len(program.calls) > 1 else 0):
        yield replace(program, calls=program.calls[:place] + program.calls[place + 1 :])
    for place in reversed(range(len(program.statements))):
        statements = program.statements[:place] + program.statements[place + 1 :]
        lost, equals, value = program.statements[place].partition(" = ")
        if not equals or not re.fullmatch(r"v\d+", lost):
            yield replace(program, statements=statements)  # a write
            continue
        for other in dict.fromkeys(_names(value)):  # an operand in the place of the result
            outputs = tuple(other if name == lost else name for name in program.outputs)
            renamed = tuple(re.sub(rf"\b{lost}\b", other, line) for line in statements)
            yield replace(program, statements=renamed, outputs=outputs)
    if program.dynamic:
        yield replace(program, dynamic=False)
    for place, one in enumerate(program.inputs):
        for simpler in _simpler(one):
            inputs = (*program.inputs[:place], simpler, *program.inputs[place + 1 :])
            yield replace(program, inputs=inputs)


def _simpler(one: Any) -> Iterator[Any]:
    if one.layout:
        yield replace(one, layout="")
    for dim, size in enumerate(one.shape):
        if size > 3:
            yield replace(one, shape=(*one.shape[:dim], 3, *one.shape[dim + 1 :]))
