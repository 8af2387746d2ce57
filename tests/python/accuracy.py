"""The rule that decides whether a result is as good as eager's (docs: numbers and semantics).

Every result is judged against fp64, as a whole: its root-mean-square error over the root mean square of the reference,
and its largest error over the largest magnitude. Each may be at most twice eager's plus one epsilon of the output's
dtype (four for results of less than 16 elements). NaN and Inf stand in the same places as in eager's result. Integers
and bools are equal.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

# Few numbers are no statistic: eager's error on one sum may be 0 by luck, where any order of adding errs by some ULP.
FEW = 16
SLACK_OF_FEW = 4

# How many times eager's error each kind of error may be: of one result, and of each of many that are judged together,
# where that of some small one is off by luck; errors of its elements come from the same sums upstream.
FACTORS = {"rms": 2, "largest": 2}
FACTORS_TOGETHER = {"rms": 4, "largest": 4}

# From this relative error of eager's on, the exact result is zero, and what f64 gives for it noise as well. The order
# of adding decides how large noise is; that it is noise is what can be asked.
NOISE = 1000.0
FACTORS_OF_NOISE = {"rms": 16, "largest": 16}


class Wrong(AssertionError):
    """A result that the rule refuses; the text says what, and by how much."""


@dataclass(frozen=True)
class Errors:
    """Relative errors of one tensor against the fp64 reference, over its finite elements."""

    rms: float
    largest: float


NO_ERROR = Errors(0.0, 0.0)


def errors(result: torch.Tensor, reference: torch.Tensor) -> Errors:
    """Errors of `result` against `reference` (f64 of the same shape); where the reference is finite."""
    exact = reference.double()
    finite = exact.isfinite() & result.isfinite()
    difference = (result.double() - exact)[finite]
    exact = exact[finite]
    if exact.numel() == 0:
        return NO_ERROR
    scale = exact.square().mean().sqrt().item()
    largest = exact.abs().max().item()
    rms = difference.square().mean().sqrt().item()
    worst = difference.abs().max().item()
    return Errors(_ratio(rms, scale), _ratio(worst, largest))


def _ratio(error: float, scale: float) -> float:
    if error == 0.0:
        return 0.0
    return error / scale if scale > 0.0 else float("inf")


@dataclass(frozen=True)
class Verdict:
    """True if the result is as good as eager's; else `reason` says what is wrong. Errors where they were measured."""

    reason: str = ""
    result: Errors | None = None
    eager: Errors | None = None

    def __bool__(self) -> bool:
        return not self.reason


def judge(
    result: Any,
    eager: Any,
    reference: Any = None,
    name: str = "result",
    factors: dict[str, int] = FACTORS,
    typical: Errors = NO_ERROR,
) -> Verdict:
    """The verdict on one leaf; `reference` is the same in f64 (None: eager's). What is no tensor must be equal.

    Eager's errors count as no less than `typical`.
    """
    if not isinstance(eager, torch.Tensor):
        return Verdict() if result == eager else Verdict(f"{name}: {result!r}, eager's {eager!r}")
    try:
        check_form(result, eager, name)
        if not eager.dtype.is_floating_point:
            _check_equal(result, eager, name)
            return Verdict()
        check_special_values(result, eager, name)
    except Wrong as wrong:
        return Verdict(str(wrong))
    exact = eager.double() if reference is None else reference.double()
    theirs = _larger(errors(eager, exact), typical)
    if theirs.rms > NOISE:
        factors = FACTORS_OF_NOISE
    return _judge_errors(errors(result, exact), theirs, factors, eager, name)


def _judge_errors(
    ours: Errors, theirs: Errors, factors: dict[str, int], eager: torch.Tensor, name: str
) -> Verdict:
    epsilon = torch.finfo(eager.dtype).eps
    if eager.numel() < FEW:
        epsilon *= SLACK_OF_FEW
    for kind, factor in factors.items():
        found, bound = getattr(ours, kind), factor * getattr(theirs, kind) + epsilon
        if not found <= bound:
            reason = (
                f"{name}: {kind} error {found:.3g} against fp64, allowed {bound:.3g}"
                f" (eager has {getattr(theirs, kind):.3g}, dtype {eager.dtype}, shape {tuple(eager.shape)})"
            )
            return Verdict(reason, ours, theirs)
    return Verdict("", ours, theirs)


def judge_all(result: Any, eager: Any, reference: Any = None) -> Verdict:
    """The first bad verdict on the leaves of nested results, else the one with the largest error."""
    ours, theirs = list(leaves(result)), list(leaves(eager))
    exact = [None] * len(theirs) if reference is None else list(leaves(reference))
    if len(ours) != len(theirs):
        return Verdict(f"{len(ours)} results, eager has {len(theirs)}")
    worst = Verdict()
    for place, (a, b, c) in enumerate(zip(ours, theirs, exact, strict=True)):
        verdict = judge(a, b, c, f"result {place}")
        if not verdict:
            return verdict
        if verdict.result and (worst.result is None or verdict.result.rms > worst.result.rms):
            worst = verdict
    return worst


def judge_together(
    result: Any, eager: Any, reference: Any, other_runs: Iterable[Any] = ()
) -> Verdict:
    """As judge_all, but eager's error is that of the same result or the median of all its results, whichever is larger.

    With `other_runs`, eager's results with other roundings, its error of each result is the largest of all runs.

    For the many small gradients of one training step: eager's error of one of them is a single draw of rounding noise,
    and among dozens some are exact by luck. Not eager's worst: where a gradient is zero in exact arithmetic, as that of
    an attention's bias of keys, eager's relative error has no bound, and would let everything pass.
    """
    ours, theirs, exact = (list(leaves(tree)) for tree in (result, eager, reference))
    if len(ours) != len(theirs):
        return Verdict(f"{len(ours)} results, eager has {len(theirs)}")
    measured = _measure(theirs, exact)
    floats = [e for e, b in zip(measured, theirs, strict=True) if b.is_floating_point()]
    typical = Errors(_median(e.rms for e in floats), _median(e.largest for e in floats))
    for run in other_runs:
        others = _measure(list(leaves(run)), exact)
        measured = [_larger(one, other) for one, other in zip(measured, others, strict=True)]
    verdict = Verdict()
    for place, (a, b, c, own) in enumerate(zip(ours, theirs, exact, measured, strict=True)):
        verdict = judge(a, b, c, f"result {place}", FACTORS_TOGETHER, _larger(own, typical))
        if not verdict:
            return verdict
    return verdict


def _measure(results: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]) -> list[Errors]:
    return [
        errors(result, reference) if result.is_floating_point() else NO_ERROR
        for result, reference in zip(results, exact, strict=True)
    ]


def _larger(one: Errors, other: Errors) -> Errors:
    return Errors(max(one.rms, other.rms), max(one.largest, other.largest))


def _median(values: Iterable[float]) -> float:
    return statistics.median(list(values) or [0.0])


def check(
    result: torch.Tensor, eager: torch.Tensor, reference: torch.Tensor | None, name: str = "result"
) -> None:
    """Raise Wrong unless `result` is as good as `eager`, judged against `reference` (None: eager itself)."""
    verdict = judge(result, eager, reference, name)
    if not verdict:
        raise Wrong(verdict.reason)


def check_all(result: Any, eager: Any, reference: Any = None) -> None:
    """`check` for each leaf of nested results."""
    verdict = judge_all(result, eager, reference)
    if not verdict:
        raise Wrong(verdict.reason)


def _check_equal(result: torch.Tensor, eager: torch.Tensor, name: str) -> None:
    if not torch.equal(result, eager):
        wrong = int((result != eager).sum())
        raise Wrong(f"{name}: {wrong} of {eager.numel()} elements differ from eager's")


def check_form(result: torch.Tensor, eager: torch.Tensor, name: str = "result") -> None:
    """Raise Wrong unless dtype, shape and strides (of dimensions longer than 1) are eager's."""
    if result.dtype != eager.dtype:
        raise Wrong(f"{name}: dtype is {result.dtype}, eager's {eager.dtype}")
    if result.shape != eager.shape:
        raise Wrong(f"{name}: shape is {tuple(result.shape)}, eager's {tuple(eager.shape)}")
    if eager.numel() == 0:
        return
    for size, ours, theirs in zip(eager.shape, result.stride(), eager.stride(), strict=True):
        if size > 1 and ours != theirs:
            raise Wrong(f"{name}: strides are {result.stride()}, eager's {eager.stride()}")


def check_special_values(result: torch.Tensor, eager: torch.Tensor, name: str = "result") -> None:
    """Raise Wrong unless NaN, +Inf and -Inf stand where eager has them."""
    for what, test in (("NaN", torch.isnan), ("Inf", torch.isposinf), ("-Inf", torch.isneginf)):
        differ = test(result) != test(eager)
        if bool(differ.any()):
            raise Wrong(f"{name}: {what} stands in {int(differ.sum())} other places than eager's")


def to_double(value: Any) -> Any:
    """A copy of a structure of tensors with all floats in f64; modules are converted by the caller."""
    if isinstance(value, torch.Tensor):
        return value.detach().double() if value.dtype.is_floating_point else value.detach().clone()
    if isinstance(value, list | tuple):
        return type(value)(to_double(item) for item in value)
    if isinstance(value, dict):
        return {key: to_double(item) for key, item in value.items()}
    return value


def leaves(value: Any) -> Iterable[Any]:
    """The leaves of nested lists, tuples and dicts, in order."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from leaves(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from leaves(item)
    else:
        yield value


def ulp_distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """How many representable numbers lie between two tensors of one float dtype (f16, bf16, f32, f64), as i64."""
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]

    def place(x: torch.Tensor) -> torch.Tensor:
        number = x.contiguous().view(bits).long()
        lowest = -(1 << (8 * x.element_size() - 1))
        return torch.where(number < 0, lowest - number, number)

    return (place(a) - place(b)).abs()


def check_ulp(
    result: torch.Tensor, reference: torch.Tensor, bound: float, name: str = "result"
) -> None:
    """Raise Wrong if a finite element is more than `bound` ULP from the reference (f64) rounded to its dtype."""
    rounded = reference.to(result.dtype)
    distance = ulp_distance(result, rounded)
    distance = torch.where(rounded.isfinite() & result.isfinite(), distance, 0)
    worst = int(distance.max()) if distance.numel() else 0
    if worst > bound:
        place = int(distance.argmax())
        found, expected = result.flatten()[place].item(), rounded.flatten()[place].item()
        raise Wrong(
            f"{name}: {worst} ULP at element {place} ({found!r}, expected {expected!r}), allowed {bound}"
        )


def against_double(function: Callable[..., Any], compiled: Callable[..., Any], *args: Any) -> None:
    """Judge `compiled(*args)` by `function(*args)` in the given dtypes and in f64."""
    eager = function(*args)
    reference = function(*to_double(list(args)))
    check_all(compiled(*args), eager, reference)


class InFloat64(TorchFunctionMode):
    """Inside, whatever asks for another float dtype gets f64, so that a function of f64 tensors stays in f64."""

    def __enter__(self) -> InFloat64:
        self._default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch.set_default_dtype(self._default)

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        args = tuple(_widened(value) for value in args)
        kwargs = {name: _widened(value) for name, value in (kwargs or {}).items()}
        if (
            getattr(function, "__name__", "") in _FLOAT_CASTS
            and args
            and isinstance(args[0], torch.Tensor)
        ):
            return args[0].double()
        return function(*args, **kwargs)


_FLOAT_CASTS = {"float", "half", "bfloat16"}


def _widened(value: Any) -> Any:
    if isinstance(value, torch.dtype) and value.is_floating_point:
        return torch.float64
    return value
