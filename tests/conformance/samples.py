"""One op, one dtype: run torch's own samples eagerly and compiled, and say what differs."""

from __future__ import annotations

import itertools
import logging
import random
import re
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from mlcc.importer import fx_graph
from mlcc.torch_private import tracing
from tests.memory import snapshot, write_over
from tests.python.accuracy import judge
from tests.warm import Caches, Warmth, digests

ROOT = Path(__file__).resolve().parent.parent.parent
# Every sample is run forward; each third one in each of the other modes, by a seed.
EVERY_OF_MODE = 3
# Some of torch's OpInfos set this seed themselves, which compiled code does not see.
SEED = 42

# Their values are whatever the memory held.
UNINITIALIZED = {
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
}

Function = Callable[..., Any]
Backend = Callable[[torch.fx.GraphModule, list[Any]], Function]


class Mode(Enum):
    """How a sample is run."""

    FORWARD = "forward"
    BACKWARD = "backward"  # and the forward that belongs to it
    DYNAMIC = "dynamic"  # forward, every size a symbol
    WRAPPED = "wrapped"  # forward, between pointwise ops, so that kernels are fused


@dataclass
class Outcome:
    """What became of an op with one dtype. A sample counts once for each mode that it is run in."""

    op: str
    dtype: str
    tried: int = 0  # samples that eager passes, and those that it refuses
    passed: int = 0
    by_dynamo: int = 0  # samples that AOTAutograd cannot trace alone
    by_eager: int = 0  # samples with a graph that the backend leaves to eager as a whole
    untraced: int = 0  # samples that torch's own tracing refuses: they fail under aot_eager too
    unjudged: int = 0  # samples that pass since eager itself gives other values each time
    foreseen: int = (
        0  # samples whose results share memory otherwise than in eager, under aot_eager too
    )
    seconds: float = 0.0
    reasons: list[str] = field(default_factory=list)  # of failures, at most a few
    calls: dict[str, str] = field(default_factory=dict)  # ATen calls in compiled graphs, and why
    warmth: Warmth = field(
        default_factory=Warmth
    )  # of what is right, where torch's cache takes part

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return self.passed == self.tried and not self.reasons

    def add(self, name: str, reason: str | None) -> None:
        """Count one result; `reason` is None where it is right."""
        self.tried += 1
        if reason is None:
            self.passed += 1
        elif len(self.reasons) < 5:
            self.reasons.append(f"{name}: {reason}")


class OpCheck:
    """Runs the samples of one OpInfo with one dtype; with caches, as Dynamo compiles them."""

    def __init__(
        self, info: Any, dtype: torch.dtype, backend: Backend, caches: Caches = Caches.NONE
    ) -> None:
        self._caches = caches
        self._info = info
        self._dtype = dtype
        self._backend = backend
        self._limits = _tolerances(info, dtype)
        self._fallbacks = _Fallbacks()
        self._outcome = Outcome(full_name(info), str(dtype).removeprefix("torch."))

    def run(self, count: int | None, on_sample: Callable[[int], None]) -> Outcome:
        """All samples, or `count` of them by a seed; `on_sample` hears of each."""
        with self._fallbacks:
            for index, sample in self._samples(count, with_grad=False):
                on_sample(index)
                for mode in (Mode.FORWARD, Mode.DYNAMIC, Mode.WRAPPED):
                    if self._runs(index, mode):
                        self._check(index, sample, mode)
            for index, sample in (
                self._samples(count, with_grad=True) if self._has_backward() else ()
            ):
                if self._runs(index, Mode.BACKWARD):
                    on_sample(index)
                    self._check(index, sample, Mode.BACKWARD)
        self._outcome.calls = self._fallbacks.calls
        return self._outcome

    def _runs(self, index: int, mode: Mode) -> bool:
        if mode is Mode.FORWARD:
            return True
        seed = f"{SEED} {self._outcome.op} {self._outcome.dtype} {mode.value}"
        return (index + random.Random(seed).randrange(EVERY_OF_MODE)) % EVERY_OF_MODE == 0

    def _has_backward(self) -> bool:
        dtypes = self._info.supported_backward_dtypes("cpu")
        return bool(self._info.supports_autograd) and self._dtype in dtypes

    def _samples(self, count: int | None, with_grad: bool) -> Iterator[tuple[int, Any]]:
        _seed()
        inputs = self._info.sample_inputs("cpu", self._dtype, requires_grad=with_grad)
        samples = list(enumerate(inputs))
        if count is not None and len(samples) > count:
            chooser = random.Random(f"{SEED} {self._outcome.op} {self._outcome.dtype}")
            samples = sorted(chooser.sample(samples, count), key=lambda pair: pair[0])
        yield from samples

    def _check(self, index: int, sample: Any, mode: Mode) -> None:
        call = Call(self._info, sample, mode)
        if call.with_grad and not call.differentiable_inputs():
            return
        eager, error = _attempt(lambda: call.run(call.function))
        if call.with_grad and (error is not None or not eager.gradients):
            return  # no gradient in eager either
        name = f"sample {index}{'' if mode is Mode.FORWARD else f' {mode.value}'}"
        if error is not None:
            self._outcome.add(name, self._check_refusal(call, error))
            return
        self._outcome.add(name, self._check_result(call, eager))

    def _check_refusal(self, call: Call, error: Exception) -> str | None:
        """Eager raises `error`: so must the compiled op."""
        _, found = _attempt(lambda: call.run(self._by_dynamo(call, self._backend)))
        if found is None:
            return f"eager raises {type(error).__name__}, here nothing is raised"
        expected = (type(error), torch._dynamo.exc.TorchRuntimeError)
        return None if isinstance(found, expected) else f"eager raises {error!r}, here {found!r}"

    def _check_result(self, call: Call, eager: Result) -> str | None:
        warmth = Warmth()
        try:
            with warmth.measured():
                result = self._run_compiled(call)
        except Exception as error:
            if not _is_ours(error) and not self._runs_by_aot_eager(call):
                self._outcome.untraced += 1
                return None
            return _describe(error)
        self._outcome.by_eager += self._fallbacks.were_seen()
        kind = self._compare_kinds(result, eager)
        if kind is not None or call.name in UNINITIALIZED:
            return kind
        reason = self._compare(call, result, eager)
        if reason is not None and not self._is_deterministic(call, eager):
            self._outcome.unjudged += 1
            return None
        reason = reason or self._compare_memory(call, result, eager)
        if reason is None and self._caches is not Caches.NONE:
            warmth.digests = result.digests()
            reason = self._check_again(call, warmth) if self._caches is Caches.COLD else None
            self._outcome.warmth.add(warmth)
        return reason

    def _check_again(self, call: Call, cold: Warmth) -> str | None:
        """What differs after a reset."""
        warm = Warmth()
        with warm.measured():
            result, error = _attempt(lambda: self._run_compiled(call))
        if error is not None:
            return f"after a reset: {_describe(error)}"
        warm.digests = result.digests()
        reason = warm.difference(cold)
        return f"after a reset: {reason}" if reason else None

    def _compare_memory(self, call: Call, result: Result, eager: Result) -> str | None:
        """What shares memory otherwise than in eager, and otherwise than as torch's own tracing has it."""
        place = self._other_memory(result, eager)
        if place is None:
            return None
        traced, error = _attempt(lambda: self._run_by(call, _aot_eager()))
        if error is None and self._other_memory(result, traced) is None:
            self._outcome.foreseen += 1
            return None
        return f"inputs and outputs, as outputs are written over: tensor {place} is not as in eager"

    def _other_memory(self, result: Result, eager: Result) -> int | None:
        pairs = zip(result.memory, eager.memory, strict=True)
        differ = (place for place, (a, b) in enumerate(pairs) if not self._is_close(a, b))
        return next(differ, None)

    def _run_compiled(self, call: Call) -> Result:
        return self._run_by(call, self._backend)

    def _run_by(self, call: Call, backend: Backend) -> Result:
        """Through AOTAutograd, or by Dynamo where tracing with fake tensors alone is refused."""
        _seed()
        if self._caches is not Caches.NONE:
            return call.run(self._by_dynamo(call, backend))
        try:
            function = self._by_aot(call, backend)
        except Exception as error:
            if _is_ours(error):
                raise
            self._outcome.by_dynamo += backend is self._backend
            function = self._by_dynamo(call, backend)
        return call.run(function)

    def _by_aot(self, call: Call, backend: Backend) -> Function:
        tensors = call.copy_tensors()
        graph = _as_graph(call.function, len(tensors))
        with torch.set_grad_enabled(call.with_grad):
            if call.mode is not Mode.DYNAMIC:
                return backend(graph, tensors)
            if any(tensor.layout != torch.strided for tensor in tensors):
                return self._by_dynamo(
                    call, backend
                )  # symbolic strides are for those that have strides
            fakes = tracing.Fakes()
            inputs = [fakes.tensor(place, one, True) for place, one in enumerate(tensors)]
            with fakes.tracing():
                return backend(graph, inputs)

    def _by_dynamo(self, call: Call, backend: Backend) -> Function:
        torch._dynamo.reset()
        dynamic = call.mode is Mode.DYNAMIC
        return torch.compile(call.function, backend=backend, dynamic=dynamic)

    def _runs_by_aot_eager(self, call: Call) -> bool:
        return _attempt(lambda: call.run(self._by_dynamo(call, _aot_eager())))[1] is None

    def _is_deterministic(self, call: Call, eager: Result) -> bool:
        again = call.run(call.function)
        return self._compare(call, again, eager, in_float64=False) is None

    def _compare_kinds(self, result: Result, eager: Result) -> str | None:
        """The first difference in number, types, shapes and strides, or None."""
        if len(result.leaves()) != len(eager.leaves()):
            return f"{len(result.leaves())} outputs, expected {len(eager.leaves())}"
        for place, (found, expected) in enumerate(result.paired(eager)):
            reason = _kind_difference(found, expected)
            if reason is not None:
                return f"{eager.name_of(place)}: {reason}"
        shared = result.shared - eager.shared
        return f"{min(shared)} share memory, in eager they do not" if shared else None

    def _compare(
        self, call: Call, result: Result, eager: Result, in_float64: bool = True
    ) -> str | None:
        """The first difference in values that matters, or None."""
        reference: Result | None = None
        for place, (found, expected) in enumerate(result.paired(eager)):
            if self._is_close(found, expected):
                continue
            reference = reference or _reference(call, eager, in_float64)
            exact = reference.leaves()[place]
            verdict = judge(_dense(found), _dense(expected), _dense(exact))
            if not verdict:
                return f"{eager.name_of(place)}: {verdict.reason}"
        return None

    def _is_close(self, found: Any, expected: Any) -> bool:
        if not isinstance(expected, torch.Tensor):
            return True  # the kinds were compared, values included
        rtol, atol = map(
            max, self._limits, torch.testing._comparison.default_tolerances(expected.dtype)
        )
        try:
            torch.testing.assert_close(found, expected, rtol=rtol, atol=atol, equal_nan=True)
        except AssertionError:
            return False
        return True


class _Fallbacks(logging.Handler):
    """Hears of what mlcc leaves to eager, inside `with`: graphs as a whole, and ATen calls in others."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._logger = logging.getLogger("mlcc.fallback")
        self._seen = False
        self.calls: dict[str, str] = {}

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        self._seen |= "graph runs eagerly" in text
        call = re.fullmatch(r"(\S+): ATen call \((.*)\)", text, re.DOTALL)
        if call is not None:
            self.calls.setdefault(call[1], call[2])

    def were_seen(self) -> bool:
        """Whether there was a graph since this was last asked."""
        seen, self._seen = self._seen, False
        return seen

    def __enter__(self) -> _Fallbacks:
        fx_graph.forget_logged()
        self._logger.setLevel(logging.INFO)
        self._logger.addHandler(self)
        return self

    def __exit__(self, *error: object) -> None:
        self._logger.removeHandler(self)


@dataclass
class Result:
    """Leaves of what an op returned, the gradients, and the inputs that it changed."""

    outputs: list[Any]
    gradients: list[Any]
    changed: list[torch.Tensor]
    shared: set[str]  # "input 0 and output 1", for each two that lie in one storage
    memory: list[torch.Tensor]  # inputs and outputs after each output was written over

    def leaves(self) -> list[Any]:
        """All of them in order."""
        return [*self.outputs, *map(_row_major, self.gradients), *self.changed]

    def digests(self) -> list[str]:
        """Of all tensors."""
        leaves = (*self.outputs, *self.gradients, *self.changed, *self.memory)
        return digests([leaf for leaf in leaves if isinstance(leaf, torch.Tensor)])

    def paired(self, other: Result) -> list[tuple[Any, Any]]:
        """Leaves of both."""
        return list(zip(self.leaves(), other.leaves(), strict=True))

    def name_of(self, place: int) -> str:
        """In words, for a message."""
        for word, items in (("output", self.outputs), ("gradient", self.gradients)):
            if place < len(items):
                return f"{word} {place}"
            place -= len(items)
        return f"changed input {place}"


class Call:
    """A sample as a function of its tensors, and fresh copies of those."""

    def __init__(self, info: Any, sample: Any, mode: Mode) -> None:
        self.name = info.name
        self.mode = mode
        self.with_grad = mode is Mode.BACKWARD
        self._op = info.op
        leaves, self._spec = tree_flatten((sample.input, sample.args, sample.kwargs))
        self._tensors: list[torch.Tensor] = []
        self._leaves = [self._slot(leaf) for leaf in leaves]

    def _slot(self, leaf: Any) -> Any:
        """A tensor's place in the list (one that comes twice has one place), or the plain value."""
        if not isinstance(leaf, torch.Tensor):
            return leaf
        for place, tensor in enumerate(self._tensors):
            if tensor is leaf:
                return _Slot(place)
        self._tensors.append(leaf)
        return _Slot(len(self._tensors) - 1)

    def function(self, *tensors: torch.Tensor) -> tuple[Any, ...]:
        """The op; returns the leaves of its result."""
        wrapped = self.mode is Mode.WRAPPED
        if wrapped:
            tensors = tuple(map(_unchanged, tensors))
        leaves = [tensors[leaf.place] if isinstance(leaf, _Slot) else leaf for leaf in self._leaves]
        value, args, kwargs = tree_unflatten(leaves, self._spec)
        results = tuple(tree_flatten(self._op(value, *args, **kwargs))[0])
        return tuple(map(_changed, results)) if wrapped else results

    def in_float64(self) -> Call:
        """The same with float64 for every other floating-point type."""
        wide = object.__new__(Call)
        wide.__dict__.update(self.__dict__)
        wide._leaves = [torch.float64 if leaf in _FLOATS else leaf for leaf in self._leaves]
        wide._tensors = [_widened(tensor) for tensor in self._tensors]
        return wide

    def copy_tensors(self) -> list[torch.Tensor]:
        """Fresh tensors with the same elements, strides and shared storages."""
        storages: dict[int, torch.UntypedStorage] = {}
        return [_copy(tensor, storages, self.with_grad) for tensor in self._tensors]

    def differentiable_inputs(self) -> bool:
        """Whether some input requires a gradient."""
        return any(tensor.requires_grad for tensor in self._tensors)

    def run(self, function: Function) -> Result:
        """Forward, and backward where asked for, on fresh copies."""
        tensors = self.copy_tensors()
        _seed()
        with warnings.catch_warnings(), torch.set_grad_enabled(self.with_grad):
            warnings.simplefilter("ignore")
            outputs = list(function(*tensors))
            gradients = _gradients(outputs, tensors) if self.with_grad else []
        changed = [
            t.detach() for t, old in zip(tensors, self._tensors, strict=True) if _differ(t, old)
        ]
        shared = _shared(tensors, outputs)
        shown = [snapshot(one) if _is_strided(one) else one for one in outputs]
        changed = [snapshot(one) for one in changed]
        written = [one for one in outputs if _is_strided(one) and not one.is_inference()]
        write_over(written)
        memory = [snapshot(one) for one in (*tensors, *written) if _is_strided(one)]
        return Result(shown, gradients, changed, shared, memory)


def _shared(inputs: Sequence[Any], outputs: Sequence[Any]) -> set[str]:
    named = [(f"input {i}", value) for i, value in enumerate(inputs)]
    named += [(f"output {i}", value) for i, value in enumerate(outputs)]
    storages = [
        (name, value.untyped_storage().data_ptr())
        for name, value in named
        if _is_strided(value) and value.numel() > 0
    ]
    return {f"{a} and {b}" for (a, x), (b, y) in itertools.combinations(storages, 2) if x == y}


def _row_major(gradient: Any) -> Any:
    """AOTAutograd lays out gradients like the forward's results, eager like what came from behind: both are right."""
    return gradient.contiguous() if _is_strided(gradient) else gradient


def _is_strided(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout == torch.strided


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """With a place for every element, for the judge."""
    return tensor if _is_strided(tensor) else tensor.to_dense()


def _unchanged(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers, by arithmetic that no compiler takes away; integers may be indices."""
    if tensor.layout != torch.strided:
        return tensor
    if tensor.dtype == torch.bool:
        return tensor.logical_and(tensor.logical_or(tensor))
    if tensor.is_floating_point():
        return tensor * 0.5 + tensor * 0.5
    return tensor if tensor.is_complex() else tensor * 3 - tensor * 2


def _changed(result: Any) -> Any:
    """Other numbers, one for each."""
    if not isinstance(result, torch.Tensor) or result.layout != torch.strided:
        return result
    if result.dtype == torch.bool:
        return result.logical_not()
    return result * 0.5 if result.is_floating_point() or result.is_complex() else result * 3


@dataclass(frozen=True)
class _Slot:
    place: int


_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def full_name(info: Any) -> str:
    """Name and variant of an OpInfo."""
    return info.name + (f".{info.variant_test_name}" if info.variant_test_name else "")


def _seed() -> None:
    import numpy

    torch.manual_seed(SEED)
    random.seed(SEED)
    numpy.random.seed(SEED)


def _attempt(function: Callable[[], Result]) -> tuple[Any, Exception | None]:
    try:
        return function(), None
    except Exception as error:
        return None, error


def _copy(
    tensor: torch.Tensor, storages: dict[int, torch.UntypedStorage], with_grad: bool
) -> torch.Tensor:
    plain = tensor.detach()
    if plain.layout != torch.strided or plain.is_conj() or plain.is_neg():
        copy = plain.clone()
    else:
        storage = plain.untyped_storage()
        copied = storages.setdefault(storage._cdata, storage.clone())
        copy = torch.empty(0, dtype=plain.dtype)
        copy.set_(copied, plain.storage_offset(), plain.size(), plain.stride())
    return copy.requires_grad_(with_grad and tensor.requires_grad)


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype not in _FLOATS:
        return tensor
    return tensor.detach().double().requires_grad_(tensor.requires_grad)


def _gradients(outputs: Sequence[Any], tensors: Sequence[torch.Tensor]) -> list[Any]:
    """Of all inputs that want one, for a fixed random gradient of all outputs that have one."""
    roots = [o for o in outputs if isinstance(o, torch.Tensor) and o.requires_grad]
    leaves = [tensor for tensor in tensors if tensor.requires_grad]
    if not roots or not leaves:
        return []
    generator = torch.Generator().manual_seed(SEED)
    weights = [
        torch.randn(root.shape, generator=generator, dtype=torch.float64).to(root.dtype)
        for root in roots
    ]
    return list(torch.autograd.grad(roots, leaves, weights, allow_unused=True))


def _differ(tensor: torch.Tensor, original: torch.Tensor) -> bool:
    if tensor.layout != torch.strided or tensor.shape != original.shape:
        return False
    return not torch.equal(_bits(tensor), _bits(original))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)


def _kind_difference(found: Any, expected: Any) -> str | None:
    """In type, dtype, shape, strides; for what is no tensor also in value."""
    if type(found) is not type(expected):
        return f"is a {type(found).__name__}, expected a {type(expected).__name__}"
    if not isinstance(expected, torch.Tensor):
        same = found == expected or (found != found and expected != expected)
        return None if same else f"is {found!r}, expected {expected!r}"
    for name in ("layout", "dtype", "shape"):
        mine, theirs = getattr(found, name), getattr(expected, name)
        if mine != theirs:
            return f"{name} is {mine}, expected {theirs}"
    if expected.layout == torch.strided and expected.numel() > 0:
        mine, theirs = _strides(found), _strides(expected)
        if mine != theirs:
            return f"strides are {found.stride()}, expected {expected.stride()}"
    return None


def _strides(tensor: torch.Tensor) -> list[int]:
    """Of the dimensions where they mean something."""
    return [st for size, st in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


def _reference(call: Call, eager: Result, in_float64: bool) -> Result:
    """In float64 where eager can; else eager's own result, which leaves one epsilon."""
    if in_float64:
        wide = call.in_float64()
        result, error = _attempt(lambda: wide.run(wide.function))
        if error is None and _same_shapes(result, eager):
            return result
    return eager


def _same_shapes(result: Result, eager: Result) -> bool:
    if len(result.leaves()) != len(eager.leaves()):
        return False
    return all(
        getattr(a, "shape", None) == getattr(b, "shape", None) for a, b in result.paired(eager)
    )


def _tolerances(info: Any, dtype: torch.dtype) -> tuple[float, float]:
    """(rtol, atol): the largest of torch's defaults for inputs of `dtype` and of the op's own for its tests."""
    from torch.testing._internal.common_device_type import toleranceOverride

    rtol, atol = torch.testing._comparison.default_tolerances(dtype)
    for decorator in info.decorators:
        if getattr(decorator, "device_type", None) not in (None, "cpu"):
            continue
        for inner in getattr(decorator, "decorators", [decorator]):
            if isinstance(inner, toleranceOverride) and dtype in inner.d:
                limits = inner.d[dtype]
                rtol, atol = max(rtol, limits.rtol), max(atol, limits.atol)
    return rtol, atol


def _as_graph(function: Function, inputs: int) -> torch.fx.GraphModule:
    """A graph that calls `function` once, as Dynamo would hand it to a backend."""
    graph = torch.fx.Graph()
    places = tuple(graph.placeholder(f"x{index}") for index in range(inputs))
    graph.output(graph.call_function(function, places))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def _aot_eager() -> Backend:
    """torch's tracing alone: what it makes of a call is foreseen."""
    backend: Backend = torch._dynamo.lookup_backend("aot_eager")
    return backend


def _is_ours(error: BaseException) -> bool:
    """Whether an exception was raised in mlcc's code, not by torch while it traced."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and frames[-1].filename.startswith(str(ROOT / "mlcc"))


def _describe(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:600]}"


def _first(reasons: Iterator[str | None]) -> str | None:
    return next((reason for reason in reasons if reason is not None), None)
