"""A seeded sample of `make fuzz`, its judge and its reduction, and the programs that it has found wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import sympy
import torch

import mlcc
from mlcc.capture import reads, trace_symbols
from tests.fuzz import run
from tests.fuzz.modes import DRAWS
from tests.fuzz.program_check import (
    TORCHS_OWN,
    check_program,
    compare,
    fails_without_mlcc,
    other_runs,
    reduce_program,
)
from tests.fuzz.program_run import Leaf, Subject, run_program
from tests.fuzz.torch_programs import Input, Program, draw_program
from tests.pool import Lost, Pool
from tests.python.accuracy import Wrong

SAMPLE = 12


@pytest.mark.slow
@pytest.mark.parametrize("mode", DRAWS)
def test_sample(mode: str) -> None:
    failures = {seed: check_program(DRAWS[mode](seed)) for seed in range(SAMPLE)}
    assert {seed: failure for seed, failure in failures.items() if failure} == {}


def test_programs_are_those_of_their_seeds_and_of_many_kinds() -> None:
    programs = [draw_program(seed) for seed in range(200)]
    assert programs[7] == draw_program(7)
    assert len({program.text for program in programs}) > 190
    text = "\n".join(program.text for program in programs)
    words = "sum( _( scatter torch.cat index bfloat16 max_pool2d interpolate F.pad cumsum [None,"
    for word in words.split():
        assert word in text
    assert {program.entry for program in programs} == {"jit", "compile"}
    assert any(program.backward for program in programs)


def test_programs_around_states_are_of_many_kinds() -> None:
    programs = [DRAWS["states"](seed) for seed in range(200)]
    assert programs[7] == DRAWS["states"](7)
    text = "\n".join(program.text for program in programs)
    words = "copy_( add_( index_put_( index_copy_( .clone() [-1] .t() .expand( .view( self.seen.append( self.h0 ="
    for word in words.split():
        assert word in text
    assert {program.holder for program in programs} == {"", "buffers", "attributes"}
    assert {program.entry for program in programs} == {"jit", "compile"}
    overlapping = ("b0[:-3]", "b0[1:-2]")
    assert any(set(overlapping) <= set(call) for program in programs for call in program.calls)


def program_of(*statements: str, inputs: int = 1) -> Program:
    made = tuple(Input((5, 4), "float32", seed, "") for seed in range(2, 2 + 2 * inputs, 2))
    return Program(made, statements, ("v0",), "jit", False, False)


class WrongSine:
    """mlcc.jit, but sines are wrong."""

    def __init__(self, function: Any, dynamic: bool) -> None:
        del dynamic
        self.function = function

    def __call__(self, *tensors: torch.Tensor) -> Any:
        before = torch.Tensor.sin
        torch.Tensor.sin = lambda x: before(x) + 1e-3
        try:
            return self.function(*tensors)
        finally:
            torch.Tensor.sin = before


def test_a_failure_is_found_and_reduced(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(mlcc, "jit", WrongSine)
    program = program_of(
        "x1.mul_(2)",
        "v0 = x0 + x1",
        "v1 = v0.sin()",
        "v2 = v1.exp().sum(-1)",
        "v3 = x0 * 2",
        inputs=2,
    )
    program = replace(program, outputs=("v2", "v3"))
    failure = check_program(program)
    assert failure is not None
    assert failure.kind.startswith("wrong")
    small, failure = reduce_program(program, failure)
    assert small.statements == ("v1 = x0.sin()",)
    assert small.inputs[0].shape == (3, 3)
    script = tmp_path / "script.py"
    script.write_text(small.as_script(failure.text))
    monkeypatch.undo()
    environment = {**os.environ, "PYTHONPATH": str(run.ROOT)}
    subprocess.run([sys.executable, script], env=environment, check=True, capture_output=True)


def test_failures_of_torchs_own_tracing_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    program = program_of("v0 = x0.expand(2, *x0.shape)", "v0.fill_(3)")
    failure = check_program(program)
    assert failure is not None
    assert fails_without_mlcc(program, failure)
    monkeypatch.setattr(mlcc, "jit", WrongSine)
    program = program_of("v0 = x0.sin()")
    failure = check_program(program)
    assert failure is not None
    assert not fails_without_mlcc(program, failure)
    kinds = ["", f"{TORCHS_OWN}wrong", "wrong"]
    results = [(run.Task(seed), {"kind": kind}) for seed, kind in enumerate(kinds)]
    assert run.report(results[:2]) == 0
    assert run.report(results) == 1


def leaf_of(leaves: list[Leaf], name: str) -> torch.Tensor:
    (found,) = (leaf.tensor for leaf in leaves if leaf.name == name)
    return found


STATE = Input((4, 4), "float32", 2, "")
STATES = (STATE, Input((7, 4), "float32", 4, ""))


def around_a_state(*statements: str, entry: str = "jit", **changes: Any) -> Program:
    """Of a module's buffer h0 and an argument x0."""
    calls = (("b0[3:]",), ("b0[3:]",))
    made = Program(STATES, statements, ("v0",), entry, False, False, 1, "buffers", calls)
    return replace(made, **changes)


class Sharing:
    """mlcc.jit, but the first result is what `change` makes of it."""

    def __init__(self, change: Change) -> None:
        self.change = change

    def __call__(self, function: Any, dynamic: bool) -> Any:
        def run(*tensors: torch.Tensor) -> Any:
            first, *others = function(*tensors)
            return [self.change(first, tensors), *others]

        return run


Change = Callable[[torch.Tensor, Sequence[torch.Tensor]], torch.Tensor]
KEPT = torch.empty(5, 4)
SHARED: dict[str, tuple[str, Change]] = {
    "an argument": ("v0 = x0 * 1", lambda result, given: given[0].mul_(1)),
    "nothing, in eager an argument": ("v0 = x0[:]", lambda result, given: result.clone()),
    "each result": ("v0 = x0 + 1", lambda result, given: KEPT.copy_(result)),
}


@pytest.mark.parametrize("name", SHARED)
def test_whose_memory_a_result_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    statement, change = SHARED[name]
    assert check_program(program_of(statement)) is None
    monkeypatch.setattr(mlcc, "jit", Sharing(change))
    failure = check_program(program_of(statement))
    assert failure is not None
    assert failure.kind.startswith("wrong memory")


class Forgetful:
    """mlcc.jit, but what is compiled again is wrong."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, function: Any, dynamic: bool) -> Any:
        self.made += 1
        return function if self.made == 1 else WrongSine(function, dynamic)


def test_what_is_wrong_after_a_reset_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlcc, "jit", Forgetful())
    failure = check_program(program_of("v0 = x0.sin()"))
    assert failure is not None
    assert failure.kind.startswith("after a reset")


@pytest.mark.parametrize("holder", ["", "buffers", "attributes"])
@pytest.mark.parametrize("entry", ["jit", "compile"])
def test_states_live_through_all_calls(entry: str, holder: str) -> None:
    program = around_a_state("h0.add_(x0)", "v0 = h0 * 2", entry=entry, holder=holder)
    assert check_program(program) is None
    leaves = run_program(program, Subject.of(program))
    first, second = (leaf_of(leaves, f"state 0 of call {call}") for call in range(2))
    given = program.make_inputs(1)[1][3:]
    torch.testing.assert_close(second, first + given)


def test_a_program_around_states_is_reduced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlcc, "jit", WrongSine)
    program = around_a_state("h0.add_(x0)", "v1 = h0 * 2", "v0 = v1.sin()", "h0.zero_()")
    failure = check_program(program)
    assert failure is not None
    small, _ = reduce_program(program, failure)
    assert small.statements == ("v0 = h0.sin()",)
    assert (small.num_states, small.holder, len(small.calls)) == (1, "", 1)


def test_judge() -> None:
    eager = torch.tensor([1.0, 100.0, float("nan")])
    near = eager * (1 + 2e-6)
    compare(near, eager, [eager.double()], "result")
    with pytest.raises(Wrong, match="1 of 3 elements differ, the first at 1"):
        compare(eager + torch.tensor([0.0, 0.1, 0.0]), eager, [eager.double()], "result")
    with pytest.raises(Wrong):
        compare(torch.zeros(3), eager, [eager.double()], "result")
    unsteady = torch.tensor([1.0, float("inf"), float("nan")])
    compare(torch.tensor([1.0, 0.0, float("nan")]), eager, [unsteady], "result")
    with pytest.raises(Wrong):
        compare(torch.tensor([1, 2]), torch.tensor([1, 3]), [torch.tensor([1, 3])], "result")
    compare(torch.tensor([1, 2]), torch.tensor([1, 3]), [torch.tensor([1, 2])], "result")


PIDS = """
import json, os, sys
for line in sys.stdin:
    seed = json.loads(line)["seed"]
    if seed == 3:
        os._exit(7)
    print(json.dumps({"outcome": {"kind": "", "pid": os.getpid()}}), flush=True)
"""


def test_a_crash_is_a_failure_and_workers_are_replaced() -> None:
    pool: Pool[run.Task] = Pool(["-c", PIDS], 1, 60, dict(os.environ), lifetime=2)
    outcomes = {task.seed: outcome for task, outcome in pool.run([run.Task(n) for n in range(7)])}
    assert outcomes.pop(3) == Lost("crash, exit status 7, at its start")
    pids = [outcomes[seed]["pid"] for seed in sorted(outcomes)]  # type: ignore[call-overload]
    assert [pids.index(pid) for pid in pids] == [0, 0, 2, 3, 3, 5]
    assert run.record_of(Lost("crash"))["kind"] == "crash"


def test_the_judge_takes_normalizations_apart() -> None:
    """Their gradients cancel inside: what eager's one kernel gives for slightly other inputs does not show it."""
    program = program_of("v0 = F.layer_norm(x0, x0.shape[-1:])")
    program = replace(program, inputs=(Input((3, 3), "float64", 90979, ""),), backward=True)
    runs = other_runs(program)
    assert runs is not None
    gradients = [leaf_of(run, "gradient 0 of call 0") for run in runs]
    assert not torch.equal(gradients[1], gradients[2])


# -- found by `make fuzz`

FLOAT = Input((3, 3), "float32", 4, "")
HALF_T = Input((3, 3, 3), "float16", 4, ".mT")


def found(*statements: str, of: Input = HALF_T, **changes: Any) -> Program:
    return replace(program_of(*statements), **{"inputs": (of,), **changes})


FOUND = {
    "strides of put": found("v0 = x0.put(torch.tensor([0, 2, 0]), x0.flatten()[:3])"),
    "strides of batch norm": found(
        "v0 = F.batch_norm(x0[None], None, None, training=True)",
        of=replace(HALF_T, dtype="float32"),
    ),
    "strides of select_scatter": found(
        "v0 = x0.select_scatter(x0.select(-2, 0), -2, -1)",
        of=Input((3, 4), "float32", 4, "[..., ::2]"),
    ),
    "strides of a diagonal of what lies otherwise": found(
        "v0 = x0.exp().permute(2, 0, 1).diagonal()", of=replace(HALF_T, dtype="float32")
    ),
    "bucketize of a number": found(
        "v0 = torch.bucketize(x0, x0.flatten())", of=Input((), "float32", 4, "")
    ),
    # Kernels and their reference agree on what the IR leaves open.
    "casts of NaN": found("v1 = x0 * 0", "v0 = (v1 / v1).int()"),
    "casts out of range": found(
        "v0 = torch.stack([(x0 * 3e38).to(torch.int16).int(), (x0 * 3e9).int()])",
        of=replace(HALF_T, dtype="float32"),
    ),
    "casts of a number out of range": found(
        "v0 = (x0 > 0) + torch.tensor([1e30, -1e30]).to(torch.int64)[:, None, None]"
    ),
    "a product with 0 in a transposed loop": found(
        "v1 = x0[None].to(memory_format=torch.channels_last) * 1",
        "v0 = (v1 == x0) * 0",
        of=Input((16, 3, 3), "float16", 4, ""),
    ),
    "a size of which a gradient knows a function only": found(
        "v0 = F.unfold(x0, 2, dilation=2, padding=1, stride=2)",
        of=Input((3, 2, 3, 3), "float32", 4, ""),
        dynamic=True,
        backward=True,
    ),
    "the memory behind a diagonal": found(
        "v0 = torch.as_strided(x0.diagonal(), (2,), (1,)).erf()",
        of=Input((3, 4), "float32", 4, ""),
        dynamic=True,
    ),
    "the memory behind a diagonal of every second column": found(
        "v0 = torch.as_strided(x0[:, ::2].diagonal(), (2,), (1,)).erf()",
        of=Input((3, 4), "float32", 4, ""),
    ),
    "a size that is 1 by a guard": found(
        "v0 = F.avg_pool1d(x0, 2) > x0", of=Input((3, 2), "float32", 4, ""), dynamic=True
    ),
    "the gradient of elu at NaN": found(
        "v1 = x0 * 100",
        "v0 = F.elu(v1.atanh())",
        of=Input((4, 16), "float32", 4, ""),
        backward=True,
    ),
    # erf is next to -1 there.
    "a sum that cancels within one node": found(
        "v1 = x0.log_softmax(-1)", "v0 = F.gelu(v1)", of=Input((3, 33), "float32", 45346, "")
    ),
    "computed floats that are compared for equality": found(
        "v1 = torch.ops.aten.special_exp2.default(x0)",
        "v0 = v1 / (v1.abs().amax(-2, keepdim=True) + 1)",
        of=Input((2, 8, 33), "float64", 139292, ""),
        backward=True,
    ),
    "a gradient that has no memory": found(
        "v0 = F.max_pool2d(x0[None], 2)",
        "v2 = x0[None].sgn()",
        "v1 = F.cosine_similarity(v2, v2, -1)",
        of=Input((16, 2, 16), "float64", 4, ""),
        outputs=("v0", "v1"),
        backward=True,
        entry="compile",
    ),
    "shape and elements of two inputs change": found(
        "x1.unsqueeze_(0)", "x0.mul_(2)", "v0 = x0 + 1", inputs=(FLOAT, FLOAT)
    ),
    "a view of an argument that begins within its memory": found(
        "v0 = x0.reshape(x0.shape[::-1])", of=Input((3, 5, 8), "uint8", 4, "[1:]"), dynamic=True
    ),
    "another dtype of an expanded input": found(
        "v1 = x0.broadcast_to(x0.shape)", "v0 = v1.view(torch.int32)[1:]", of=FLOAT, dynamic=True
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_found(name: str) -> None:
    with mlcc.config.patch(verify="always", strict=True):
        assert check_program(FOUND[name]) is None


def test_a_text_that_a_library_evaluates_reads_no_globals_of_the_user() -> None:
    """As sympy does during a trace with symbolic sizes."""
    scope: dict[str, Any] = {"value": torch.ones(2)}
    exec("def function():\n    return value", scope)
    outside = reads.OutsideValues(
        scope["function"],
        "function",
        trace_symbols.TypeQuestions(trace_symbols.Symbols({}, lambda place: False)),
    )
    with outside.watch():
        assert sympy.sympify("E + x") == sympy.E + sympy.Symbol("x")
    told = pytest.raises(mlcc.Error, match="the global value")  # of the user, also from a text
    with told, outside.watch():
        scope["function"]()


def test_gradients_that_have_no_memory_have_no_roundings() -> None:
    """The gradient of a sign is a tensor of zeros without memory: eager's own, which the judge must not write to."""
    program = Program(
        (Input((3,), "float32", 2, ""),), ("v0 = x0 * x0.sgn()",), ("v0",), "jit", False, True
    )
    runs = other_runs(program)
    assert runs is not None
    assert len(runs) == 3
