"""torch.compile(f, backend=mlcc.capture.backend.compile): numbers, aliasing, recompiles, caches, fallbacks."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import textwrap
import warnings
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import mlcc
from mlcc._load import load_core
from mlcc.capture import backend, recompiles
from mlcc.importer import fx_graph
from mlcc.torch_private import dynamo
from tests.python.accuracy import check_all, check_form, check_ulp, to_double
from tests.python.functions import (
    BACKWARD,
    CREATIONS,
    GATHERS,
    LIBRARY_FUNCTIONS,
    MOVEMENTS,
    REDUCTIONS,
    THROUGH_AOT,
    A,
)
from tests.python.tracing import DTYPES, FORMS, Compiled, call_of, is_in_table, trace

ROOT = Path(__file__).resolve().parents[2]


def compiled(function: Any, **options: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(function, backend=backend.compile, **options)


# -- numbers


def check_compiled(function: Any, *args: Any, externs: set[str] | None = None) -> None:
    """What the core computes is as good as eager; `externs` are the ATen calls (default: none)."""
    made = trace(function, *args, make=Compiled)
    eager = function(*args)
    eager = list(eager) if isinstance(eager, list | tuple) else [eager]
    exact = function(*to_double(list(args)))
    exact = list(exact) if isinstance(exact, list | tuple) else [exact]
    reference = [
        r if e.dtype.is_floating_point else None for r, e in zip(exact, eager, strict=True)
    ]
    check_all(made(*args), eager, reference)
    assert made.externs == (externs or set())


@pytest.mark.parametrize("form", FORMS)
def test_overload_of_the_table(form: str) -> None:
    """In each dtype that eager and the table take."""
    for dtype in DTYPES:
        tensors, function = call_of(form, dtype)
        try:
            eager = function(*tensors)
        except (RuntimeError, NotImplementedError, TypeError):
            continue
        if not is_in_table(form, dtype):
            continue
        if dtype == torch.float64:
            result = trace(function, *tensors, make=Compiled)(*tensors)[0]
            torch.testing.assert_close(result, eager, rtol=1e-12, atol=1e-12, equal_nan=True)
            continue
        check_compiled(function, *tensors)


# ULP of the correctly rounded f32 result (csrc/codegen/cpu/math.h, rounded up; 1 for one rounding).
ULP = {
    **{name: (getattr(torch, name), 2) for name in LIBRARY_FUNCTIONS},
    "add": (torch.add, 1),
    "mul": (torch.mul, 1),
    "div": (torch.div, 1),
    "sqrt": (torch.sqrt, 1),
    "reciprocal": (torch.reciprocal, 1),
    "rsqrt": (torch.rsqrt, 2),
    "exp": (torch.exp, 2),
    "log": (torch.log, 2),
    "tanh": (torch.tanh, 2),
    "erf": (torch.erf, 2),
    "sigmoid": (torch.sigmoid, 2),
    "neg": (torch.neg, 0),
    "floor": (torch.floor, 0),
    "relu": (torch.relu, 0),
}
SPECIAL = [
    0.0,
    -0.0,
    float("inf"),
    -float("inf"),
    float("nan"),
    1e-45,
    -1e-40,
    3e38,
    -3e38,
    1.0,
    -1.0,
]


@pytest.mark.parametrize("name", ULP)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ulp_of_elementwise_ops(name: str, dtype: torch.dtype) -> None:
    function, bound = ULP[name]
    generator = torch.Generator().manual_seed(1)
    magnitudes = 2.0 ** torch.randint(-30, 7, (4096,), generator=generator)
    x = torch.cat([torch.randn(4096, generator=generator) * magnitudes, torch.tensor(SPECIAL)]).to(
        dtype
    )
    arguments = [x, x.flip(0)] if name in ("add", "mul", "div") else [x]
    (result,) = trace(function, *arguments, make=Compiled)(*arguments)
    eager = function(*arguments)
    assert torch.equal(result.isnan(), eager.isnan())
    exact = function(*(a.double() for a in arguments))
    # Not eager's: its sinh and cosh of f32 overflow early.
    assert torch.equal(result.isinf(), exact.to(dtype).isinf())
    check_ulp(result, exact, bound if dtype == torch.float32 else 1, name)


@pytest.mark.parametrize("name", MOVEMENTS)
def test_movement(name: str) -> None:
    check_compiled(MOVEMENTS[name], A)


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_reduction(name: str, dtype: torch.dtype) -> None:
    check_compiled(REDUCTIONS[name], A.to(dtype))


@pytest.mark.parametrize("name", GATHERS)
def test_gather(name: str) -> None:
    check_compiled(GATHERS[name], A)


@pytest.mark.parametrize("name", CREATIONS)
def test_creation(name: str) -> None:
    check_compiled(CREATIONS[name], A)


@pytest.mark.parametrize("name", THROUGH_AOT)
def test_function_that_writes_in_place_inside(name: str) -> None:
    function, x = THROUGH_AOT[name], torch.randn(4, 5)
    check_all(compiled(function)(x), function(x), function(x.double()))


@pytest.mark.parametrize("name", BACKWARD)
def test_backward(name: str) -> None:
    function = BACKWARD[name]

    def gradient(run: Any, x: torch.Tensor) -> list[torch.Tensor]:
        x = x.detach().requires_grad_()
        y = run(x)
        weights = torch.arange(y.numel(), dtype=y.dtype).reshape(y.shape) / y.numel()
        return [y.detach(), torch.autograd.grad(y, x, weights)[0]]

    check_all(
        gradient(compiled(function), A), gradient(function, A), gradient(function, A.double())
    )


def test_large_reductions() -> None:
    """More than one vector, more than one thread, a length that no width divides."""
    x = torch.randn(3, 100_003, generator=torch.Generator().manual_seed(0))
    for function in (
        lambda x: x.sum(1),
        lambda x: x.softmax(1),
        lambda x: x.var(1),
        lambda x: x.sum(),
    ):
        check_compiled(function, x)


def test_autocast() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.gelu(x @ w).softmax(-1)

    x, w = torch.randn(8, 16), torch.randn(16, 12)
    result, eager = compiled(function)(x, w), function(x, w)
    check_all(result, eager, F.gelu(x.double() @ w.double()).softmax(-1))


# -- shapes


def test_dynamic_shapes_compile_once() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).softmax(-1) + x.shape[0]

    run = compiled(function, dynamic=True)
    before = backend.timings().graphs
    for shape in [(5, 7), (9, 31), (64, 1000)]:
        x = torch.randn(shape)
        check_all(run(x), function(x), function(x.double()))
    assert backend.timings().graphs == before + 1


def _halves(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    n = x.shape[0]
    first, second = x[: n // 2], x[n // 2 :]  # of one size, since they are added
    return first * 2 + second, torch.cat([first, second * 3], dim=1)


def _rows_of_quarters(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    n = x.shape[0]
    quarter = (n // 2 - 1) // 2 + 1  # at least 1, but only by the range of n
    return (x[: n // quarter * quarter].view(-1, n // quarter, x.shape[1]) * 2,)


@pytest.mark.parametrize("function", [_halves, _rows_of_quarters])
def test_sizes_that_guards_make_equal_or_positive(
    function: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing of such a graph is left to eager."""
    fx_graph.forget_logged()
    caplog.set_level("INFO", "mlcc.fallback")
    run = compiled(function, dynamic=True)
    for n in (8, 12, 20):
        x = torch.randn(n, 6)
        check_all(run(x), function(x))
    assert not caplog.records


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (1, 1), (1,), ()])
def test_small_shapes(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    run = compiled(lambda x: [torch.tanh(x) + 1, x.sum(), x.reshape(-1) * 2])
    check_all(run(x), [torch.tanh(x) + 1, x.sum(), x.reshape(-1) * 2])


def test_reductions_of_single_elements() -> None:
    """Sums over axes of one element, some of which the kernel has no axis for."""

    def gradients(run: Any, dtype: torch.dtype) -> list[torch.Tensor]:
        torch.manual_seed(0)
        x, weight, bias = (torch.randn(s).to(dtype).requires_grad_() for s in [(1, 3), 3, 3])
        run(x, 1, weight, bias).square().sum().backward()
        return [x.grad, weight.grad, bias.grad]

    exact = gradients(F.group_norm, torch.float64)
    for dtype in (torch.float32, torch.bfloat16):
        run = compiled(lambda x, groups, weight, bias: F.group_norm(x, groups, weight, bias))
        check_all(gradients(run, dtype), gradients(F.group_norm, dtype), exact)


def test_softmax_over_nothing() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * x, 0).square()

    assert trace(f, torch.randn(0), make=Compiled)(torch.randn(0))[0].shape == (0,)


def test_strides_of_inputs() -> None:
    """Transposed, sliced and expanded inputs, and the strides of what comes out."""
    x = torch.randn(8, 10)
    for view in (x.t(), x[:, ::2], x[1:, 3:], x[:, :1].expand(8, 5), x.unsqueeze(1), x.flip(0)[2:]):
        result = compiled(lambda v: [v + 1, v.sum(-1), v.t().contiguous() if v.dim() == 2 else v])(
            view
        )
        check_all(
            result, [view + 1, view.sum(-1), view.t().contiguous() if view.dim() == 2 else view]
        )


def test_channels_last() -> None:
    x = torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    w = torch.randn(4, 3, 3, 3)
    run = compiled(lambda x, w: F.relu(F.conv2d(x, w)) + 1)
    eager = F.relu(F.conv2d(x, w)) + 1
    check_all(run(x, w), eager, F.relu(F.conv2d(x.double(), w.double())) + 1)


def test_numbers_that_change() -> None:
    """Ints and floats become inputs of the graph at the second value."""

    def function(x: torch.Tensor, n: int, a: float) -> torch.Tensor:
        return x * a + n

    run = compiled(function)
    x = torch.randn(6)
    before = backend.timings().graphs
    for n, a in [(2, 0.5), (3, 0.25), (4, 0.75), (5, 1.5)]:
        check_all(run(x, n, a), function(x, n, a))
    assert backend.timings().graphs <= before + 3


def test_number_that_torch_specializes() -> None:
    """`where` gets the number itself under a guard that torch's cache of AOTAutograd does not check."""

    def function(x: torch.Tensor, a: float) -> tuple[torch.Tensor, float]:
        return torch.where(x > a, x, a), a * 2

    run = compiled(function)
    x = torch.randn(6)
    for a in (0.5, 0.25, 0.75, 1.5):
        result, number = run(x, a)
        check_all(result, function(x, a)[0])
        assert number == a * 2


def test_number_read_from_a_tensor() -> None:
    run = compiled(lambda x: x * x.sum().item())
    x = torch.randn(6)
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        for value in (x, x + 1):
            check_all(run(value), value * value.sum())


def test_places_to_split_at_from_a_tensor() -> None:
    """torch's trace needs their values and breaks the graph, unless we allow item() where no loop is."""
    run = compiled(lambda x, at: torch.tensor_split(x * 2, at))
    x = torch.randn(6)
    for at in (torch.tensor(3), torch.tensor([2, 5])):
        check_all(run(x, at), torch.tensor_split(x * 2, at))


# -- mutation and aliasing


def test_input_is_written() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(y)
        x.mul_(2)
        return x.sum()

    # Whole numbers: their sum is exact in any order.
    x, y = torch.randint(-9, 9, (5, 6)).float(), torch.randint(-9, 9, (6,)).float()
    a, b = x.clone(), x.clone()
    check_all(compiled(function)(a, y), function(b, y))
    assert torch.equal(a, b)


def test_reads_before_a_write_see_the_old_values() -> None:
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        old = x + 1
        kept = x.clone()
        x.copy_(x.flip(0))
        return [old, kept, x * 2]

    x = torch.randn(7)
    a, b = x.clone(), x.clone()
    check_all(compiled(function)(a), function(b))
    assert torch.equal(a, b)


def test_sums_over_a_batch_of_nothing_are_zero() -> None:
    """The gradients of weight and bias have elements though there is none to add up."""

    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.native_group_norm(x, w, b, 0, 2, 1, 1, 0.5)

    results = []
    for run in (function, compiled(function)):
        x = torch.ones(0, 2, dtype=torch.bfloat16, requires_grad=True)
        w, b = (torch.ones(2, dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
        outputs = run(x, w, b)
        sum(output.sum() for output in outputs).backward()
        results.append([*(o.detach() for o in outputs), x.grad, w.grad, b.grad])
    check_all(results[1], results[0])


def test_a_view_is_written() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        x[1:3].mul_(10)
        x[:, 0] = 0
        return x + 1

    x = torch.randn(4, 5)
    a, b = x.clone(), x.clone()
    check_all(compiled(function)(a), function(b))
    assert torch.equal(a, b)


def test_arguments_that_overlap() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return y * 2

    base, other = torch.zeros(8), torch.zeros(8)
    result = compiled(function)(base[:6], base[2:])
    check_all(result, function(other[:6], other[2:]))
    assert torch.equal(base, other)


def _reverse_into(x: torch.Tensor, y: torch.Tensor) -> None:
    x.copy_(y.flip(0))


def _double_and_add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    return x + y


def _count(x: torch.Tensor, y: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    total.add_(1)
    return x * y + total


SHARED: dict[str, Any] = {
    "all of it": (_reverse_into, lambda: [(t := _numbers(1000)), t.view(1000)]),
    "at an offset": (_double_and_add, lambda: [(t := _numbers(1000))[:-3], t[3:]]),
    "columns": (_double_and_add, lambda: [(t := _numbers(40, 30))[:, :20], t[:, 10:]]),
    "transposed": (_double_and_add, lambda: [(t := _numbers(30, 30)), t.t()]),
    "of another dtype": (_double_and_add, lambda: [(t := _numbers(30)), t.view(torch.int32)]),
}
APART: dict[str, Any] = {
    "columns side by side": (_double_and_add, lambda: [(t := _numbers(40, 30))[:, :15], t[:, 15:]]),
    "every second": (_double_and_add, lambda: [(t := _numbers(40))[::2], t[1::2]]),
    "rows": (_double_and_add, lambda: [(t := _numbers(40, 30))[:20], t[20:]]),
    "blocks": (_double_and_add, lambda: [(t := _numbers(6, 8, 10))[:, 2:5, 3:7], t[:, 5:8, 3:7]]),
    "read ones overlap": (_count, lambda: [(t := _numbers(40))[:-1], t[1:], _numbers(39)]),
}


def _numbers(*shape: int) -> torch.Tensor:
    return torch.linspace(-2, 2, prod(shape)).view(shape)


@pytest.mark.parametrize("name", [*SHARED, *APART])
@pytest.mark.parametrize("dynamic", [False, True])
def test_arguments_that_overlap_in_a_later_call(
    name: str, dynamic: bool, caplog: pytest.LogCaptureFixture
) -> None:
    function, make = {**SHARED, **APART}[name]
    torch._dynamo.reset()
    run = torch.compile(function, backend="mlcc", dynamic=dynamic)
    run(*[make()[place] for place in range(len(make()))])  # each from memory of its own
    found, expected = make(), make()
    with caplog.at_level(logging.INFO, logger="mlcc.fallback"):
        result = run(*found)
    check_all([result, *found], [function(*expected), *expected])
    assert ("overlaps another one" in caplog.text) == (name in SHARED)


def test_what_has_no_memory_overlaps_nothing() -> None:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.strided)
    meta = [torch.ones(4, device="meta") for _ in range(2)]
    sparse = torch.eye(3).to_sparse()
    assert not load_core().writes_overlap(
        [nested, *meta, sparse, 3, None, torch.ones(4)], [0, 1, 3]
    )


@pytest.mark.parametrize("function", [_double_and_add, _reverse_into])
def test_overlaps_are_seen_by_a_graph_from_the_cache(function: Any) -> None:
    for _ in range(2):
        torch._dynamo.reset()
        run = torch.compile(function, backend="mlcc")
        run(_numbers(50), _numbers(50))
        t, other = _numbers(60), _numbers(60)
        result = run(t[:50], t[10:])
        check_all([result, t], [function(other[:50], other[10:]), other])


def test_overlaps_are_seen_where_autograd_records() -> None:
    def function(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return (x + y) * w

    run = torch.compile(function, backend="mlcc")
    gradients = []
    for call in (run, function):
        w = _numbers(50).requires_grad_()
        call(_numbers(50), _numbers(50), w)
        t = _numbers(60)
        result = call(t[:50], t[10:], w)
        result.sum().backward()
        gradients.append([result.detach(), w.grad, t])
    check_all(*gradients)


def test_views_of_inputs_are_views() -> None:
    run = compiled(lambda x: [x.t(), x[1], x.view(-1), x + 1])
    x = torch.randn(3, 4)
    transposed, row, flat, _ = run(x)
    assert transposed.data_ptr() == x.data_ptr()
    assert transposed.stride() == (1, 4)
    x.zero_()
    assert row.eq(0).all()
    assert flat.eq(0).all()


@torch.library.custom_op("mlcc_tests::layout_of", mutates_args=())
def layout_of(x: torch.Tensor) -> torch.Tensor:
    """The strides that an ATen call sees."""
    return torch.tensor(x.stride())


@layout_of.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(x.dim(), dtype=torch.int64)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.t().contiguous(),
        lambda x: (x + 1).t().contiguous(),
        lambda x: x.t().contiguous().view(12).view(2, 6),
        lambda x: x[:, ::2].reshape(-1).contiguous(),
        lambda x: x[0].expand(3, 4).contiguous(),
        lambda x: x[0].repeat(3, 1),
        lambda x: x[0] * torch.ones(3, 4),
        lambda x: x[:1].double().float() + torch.zeros(3, 4) * 0,
        lambda x: -(-x.t()),
        lambda x: x.t().double().float(),
        lambda x: x.t(),
        lambda x: x[0, :2].repeat_interleave(2),
    ],
)
def test_rewrites_are_not_seen(function: Any) -> None:
    """ATen calls see the layout that eager gives them, and a fresh result is a tensor of its own."""
    x = torch.randn(3, 4)
    assert torch.equal(compiled(lambda x: layout_of(function(x)))(x), layout_of(function(x)))
    result, eager = compiled(function)(x), function(x)
    check_form(result, eager)
    assert torch.equal(result, eager)
    shares = result.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert shares == (eager.untyped_storage().data_ptr() == x.untyped_storage().data_ptr())


def test_equal_results_are_distinct_tensors() -> None:
    run = compiled(lambda x: [x + 1, x + 1, (x + 1).clone(), x.clone()])
    x = torch.randn(5)
    results = run(x)
    assert len({r.data_ptr() for r in results} | {x.data_ptr()}) == 5


def test_results_share_memory_as_in_eager() -> None:
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        y = x * 2
        return [y, y.view(-1), y[0]]

    y, flat, row = compiled(function)(torch.randn(3, 4))
    assert flat.data_ptr() == y.data_ptr() == row.data_ptr()


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.clone().view(-1),
        lambda x: x.clone().t(),
        lambda x: x.clone()[1],
        lambda x: (x * torch.ones(3, 4))[1],
        lambda x: list(x.clone().split(1)),
        lambda x: x.clone().as_strided((2, 2), (1, 2)),
        lambda x: x.clone().diagonal(),
        lambda x: x.clone().unfold(0, 2, 1),
        lambda x: [(x + 1).view(-1), (x + 1).t()],
        lambda x: [x.exp().view(-1), x.exp().clone().t()],
        lambda x: torch.cat([x.clone(), x])[1],
    ],
)
def test_views_of_fresh_tensors_share_memory_as_in_eager(function: Any) -> None:
    x = torch.randn(3, 4)

    def storages(results: Any) -> list[int]:
        tensors = [x, *(results if isinstance(results, list) else [results])]
        places = [tensor.untyped_storage().data_ptr() for tensor in tensors]
        return [places.index(place) for place in places]

    assert storages(compiled(function)(x)) == storages(function(x))


def _shared_memory(inputs: list[torch.Tensor], results: Any) -> list[int]:
    """Of each tensor, the place of the first one with the same storage."""
    tensors = [*inputs, *(results if isinstance(results, tuple) else [results])]
    places = [tensor.untyped_storage().data_ptr() for tensor in tensors]
    return [places.index(place) for place in places]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.clone()[:2],
        lambda x: (x * 1).t(),
        lambda x: (-(-x)).view(16),
        lambda x: ((x + 1)[1:], (x + 1)[:2]),
        lambda x: (lambda y: (y, y.clone().t()))(x * 2),
        lambda x: x[:1] * torch.ones(3, 1),
        lambda x: (x[:1, None] * 2).repeat(3, 1, 1)[:, 0],
    ],
)
def test_views_of_what_is_computed_share_no_memory(function: Any) -> None:
    x = torch.randn(4, 4)
    wanted, found = function(x), compiled(function)(x)
    torch.testing.assert_close(found, wanted)
    assert _shared_memory([x], found) == _shared_memory([x], wanted)
    for a, b in zip(
        found if isinstance(found, tuple) else [found],
        wanted if isinstance(wanted, tuple) else [wanted],
        strict=True,
    ):
        assert a.stride() == b.stride()


def test_an_input_is_written_with_a_view_of_inputs() -> None:
    def transpose(x: torch.Tensor) -> torch.Tensor:
        return x.copy_(x.t().clone())

    def swap(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        kept = x.t() * 1
        x.copy_(y.t())
        y.copy_(kept)
        return x + y

    for function, count in ((transpose, 1), (swap, 2)):
        found = [torch.randn(4, 4) for _ in range(count)]
        wanted = [x.clone() for x in found]
        result = compiled(function)(*found)
        torch.testing.assert_close(result, function(*wanted))
        torch.testing.assert_close(found, wanted)


def test_batch_norm_updates_its_statistics() -> None:
    def make() -> torch.nn.Module:
        torch.manual_seed(0)
        return torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU()
        )

    ours, theirs = make(), make()
    x = torch.randn(2, 3, 8, 8)
    result, eager = compiled(ours)(x), theirs(x)
    check_all(result.detach(), eager.detach(), make().double()(x.double()).detach())
    torch.testing.assert_close(ours[1].running_mean, theirs[1].running_mean)
    torch.testing.assert_close(ours[1].running_var, theirs[1].running_var)
    assert ours[1].num_batches_tracked == 1


def test_training_step() -> None:
    def make() -> torch.nn.Module:
        torch.manual_seed(0)
        return torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 5)
        )

    ours, theirs = make(), make()
    x, target = torch.randn(12, 8), torch.randint(0, 5, (12,))
    run = compiled(ours)
    for _ in range(3):
        for module, call in ((ours, run), (theirs, theirs)):
            module.zero_grad()
            F.cross_entropy(call(x), target).backward()
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter -= 0.1 * parameter.grad
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_double_call_keeps_results_apart() -> None:
    run = compiled(lambda x: torch.exp(x) + 1)
    a, b = torch.randn(100), torch.randn(100)
    first = run(a)
    kept = first.clone()
    run(b)
    assert torch.equal(first, kept)


def test_random_numbers() -> None:
    run = compiled(lambda x: F.dropout(x, 0.5) + torch.rand(4))
    torch.manual_seed(3)
    a = run(torch.ones(4))
    torch.manual_seed(3)
    b = run(torch.ones(4))
    assert torch.equal(a, b)


def test_index_out_of_range_raises_what_eager_raises() -> None:
    def function(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return F.embedding(i, x) + 1

    x, i = torch.randn(4, 3), torch.tensor([1, 4])
    with pytest.raises(IndexError) as eager:
        function(x, i)
    with pytest.raises(IndexError) as ours:
        compiled(function)(x, i)
    assert str(ours.value) == str(eager.value)


# -- options, modes, recompiles


def test_found_by_name() -> None:
    pytest.importorskip("importlib.metadata")
    names = torch._dynamo.list_backends()
    if "mlcc" not in names:
        pytest.skip("mlcc is not installed in this environment")
    x = torch.randn(5)
    torch._dynamo.reset()
    check_all(torch.compile(lambda x: x + 1, backend="mlcc")(x), x + 1)


def test_options() -> None:
    x = torch.randn(5)
    with pytest.raises(Exception, match="unknown option bisekt; nearest: bisect"):
        compiled(lambda x: x + 1, options={"bisekt": 3})(x)
    with pytest.raises(Exception, match="option strict: expected True or False"):
        compiled(lambda x: x + 1, options={"strict": 3})(x)
    check_all(compiled(lambda x: x + 1, options={"bisect": 0})(x), x + 1)
    with mlcc.config.patch(torch_caches=False):
        check_all(compiled(lambda x: x + 1)(x), x + 1)


def test_modes() -> None:
    x = torch.randn(5)
    for mode in ("default", "reduce-overhead", "max-autotune", None):
        check_all(compiled(lambda x: x + 1, mode=mode)(x), x + 1)
    with pytest.raises(Exception, match="mode fastest: expected one of"):
        compiled(lambda x: x + 1, mode="fastest")(x)


def test_disable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLCC_DISABLE", "1")
    before = backend.timings().graphs
    x = torch.randn(5)
    check_all(compiled(lambda x: x + 1)(x), x + 1)
    assert backend.timings().graphs == before


def test_recompile_is_logged(mlcc_log: Any) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    line = function.__code__.co_firstlineno
    run = compiled(function)
    with mlcc_log("recompiles") as lines:
        run(torch.randn(4, 128))
        run(torch.randn(4, 160))
        run(torch.randn(4, 160).double())
    assert lines[0] == (
        f"recompile 1 of function (test_backend.py:{line}): x.size(1) was 128, now 160; "
        "mark it with torch._dynamo.mark_dynamic(x, 1)"
    )
    assert "x.dtype was Float, now Double" in lines[1]


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (
            "tensor 'x' stride mismatch at index 0. expected 3, actual 1",
            "x.stride(0) was 3, now 1; pass x.contiguous()",
        ),
        (
            "tensor 'x' rank mismatch. expected 2, actual 3",
            "x.dim() was 2, now 3; each rank is compiled once",
        ),
        ("k == 2.5", "k was 2.5; a value that changes should be passed as a tensor"),
        ("GLOBAL_STATE changed: grad_mode ", "grad mode changed; each is compiled once"),
        ("something else", "something else"),
    ],
)
def test_reasons(reason: str, text: str) -> None:
    recompile = dynamo.Recompile(1, "f", "/a/model.py", 31, reason)
    assert recompiles.message(recompile) == f"recompile 1 of f (model.py:31): {text}"


# -- caches


SCRIPT = """
import json, sys, torch
import mlcc.capture.backend as backend
from torch._dynamo.utils import counters

def f(x, w):
    return torch.nn.functional.gelu(x @ w).softmax(-1)

options = json.loads(sys.argv[1])
torch.manual_seed(0)
x, w = torch.randn(6, 8), torch.randn(8, 10, requires_grad=True)
run = torch.compile(f, backend=backend.compile, options=options)
y = run(x, w)
y.square().sum().backward()
with torch.no_grad():
    z = run(x.detach(), w.detach())
print(json.dumps({
    "counters": dict(counters["aot_autograd"]),
    "core": dict(__import__("mlcc").cache_info()),
    "values": [y.sum().item(), w.grad.sum().item(), z.sum().item()],
}))
"""


def run_process(
    cache: Path, options: dict[str, Any] | None = None, **environment: str
) -> dict[str, Any]:
    """One process that compiles forward, backward and inference."""
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), json.dumps(options or {})],
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    del cache
    return json.loads(result.stdout.splitlines()[-1])


def test_second_process_compiles_nothing(fresh_cache: Path) -> None:
    first = run_process(fresh_cache)
    assert first["counters"].get("autograd_cache_saved") == 2
    second = run_process(fresh_cache)
    assert second["counters"].get("autograd_cache_hit") == 2
    assert second["counters"].get("autograd_cache_miss", 0) == 0
    assert second["counters"].get("autograd_cache_bypass", 0) == 0
    assert second["values"] == first["values"]


def test_code_options_never_hit_what_others_compiled(fresh_cache: Path) -> None:
    run_process(fresh_cache)
    other = run_process(fresh_cache, {"bisect": 0})
    assert other["counters"].get("autograd_cache_hit", 0) == 0
    assert other["counters"].get("autograd_cache_miss") == 2
    logged = run_process(fresh_cache, {"logs": "perf", "cache_size_mb": 100})
    assert logged["counters"].get("autograd_cache_hit") == 2


def test_own_store_alone(fresh_cache: Path) -> None:
    """Without torch's caches the kernels still come from our store."""
    run_process(fresh_cache, {"torch_caches": False})
    second = run_process(fresh_cache, {"torch_caches": False})
    assert second["counters"].get("autograd_cache_hit", 0) == 0
    assert second["core"]["disk_hits"] > 0


# -- what fails, and what is not supported


def test_unsupported_graph_runs_eagerly(mlcc_log: Any) -> None:
    x = torch.randn(4, 4)
    with mlcc_log("fallback") as lines:
        result, _ = compiled(lambda x: (x + 1, x.to("meta")))(x)
    check_all(result, x + 1)
    assert any("graph runs eagerly" in line and "device meta" in line for line in lines)


def test_cond_of_both_signs() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

    for x in (torch.ones(3), -torch.ones(3)):
        check_all(compiled(function)(x), function(x))


def _break_importer(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise mlcc.InternalError("a broken importer")

    monkeypatch.setattr(fx_graph, "import_graph", broken)


def test_internal_error_warns_and_runs_eagerly(
    monkeypatch: pytest.MonkeyPatch, fresh_cache: Path
) -> None:
    monkeypatch.setenv("MLCC_STRICT", "0")
    _break_importer(monkeypatch)
    x = torch.randn(5)
    with pytest.warns(UserWarning, match="a broken importer"):
        result = compiled(lambda x: x + 1)(x)
    check_all(result, x + 1)
    (folder,) = (fresh_cache / "repro").iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert "a broken importer" in (folder / "error.txt").read_text()
    assert "aten.add" in (folder / "aten.py").read_text()


def test_internal_error_in_training_runs_eagerly(
    monkeypatch: pytest.MonkeyPatch, fresh_cache: Path
) -> None:
    monkeypatch.setenv("MLCC_STRICT", "0")
    _break_importer(monkeypatch)
    x = torch.randn(5, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled(lambda x: (x * x).sum())(x).backward()
    check_all(x.grad, 2 * x.detach())


def test_internal_error_raises_under_strict(
    monkeypatch: pytest.MonkeyPatch, fresh_cache: Path
) -> None:
    _break_importer(monkeypatch)
    with pytest.raises(Exception, match="a broken importer"):
        compiled(lambda x: x + 1)(torch.randn(5))


def test_twenty_reproducers_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from mlcc.capture import reproducer

    gm = torch.fx.symbolic_trace(lambda x: x + 1)
    options = {"dump_dir": str(tmp_path)}
    for number in range(23):
        reproducer.write(gm, "inference", mlcc.InternalError(f"error {number}"), options)
    texts = [(folder / "error.txt").read_text() for folder in tmp_path.iterdir()]
    assert len(texts) == 20
    assert not any("error 2\n" in text for text in texts)


def test_timings() -> None:
    before = backend.timings()
    compiled(lambda x: x * 3)(torch.randn(5))
    after = backend.timings()
    assert after.graphs == before.graphs + 1
    assert after.callbacks > before.callbacks
    assert len(after.first_executions) == len(before.first_executions) + 1


def test_strides_of_a_result_whose_own_shape_tells_them() -> None:
    # unique gives the transposed of what torch's trace foretells, in a size that only it knows.
    x = torch.randint(0, 2, (5, 4))
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        run = torch.compile(lambda x: torch.unique(x, dim=1) * 2, backend="mlcc", dynamic=True)
        assert torch.equal(run(x), torch.unique(x, dim=1) * 2)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: x[:, -y.shape[0] :] * 2,
        lambda x, y: x[:, -(y.shape[0] + 20) :] * 2,
        lambda x, y: x[:, y.shape[0] - 5 :] * 2,
        lambda x, y: x[:, -y.shape[0]] * 2,
        lambda x, y: x[:, y.shape[0] - 5] * 2,
        lambda x, y: torch.slice_scatter(x, y[: x.shape[0]] + 1, 1, -y.shape[1]),
    ],
)
def test_places_that_count_from_the_end_by_a_symbolic_size(function: Any) -> None:
    # A start of -s0 was taken for one from the front, before the tensor's first element.
    torch._dynamo.reset()
    run = torch.compile(function, backend="mlcc", dynamic=True)
    for rows, columns in ((3, 4), (6, 7), (9, 3)):
        x, y = torch.randn(3, 12), torch.randn(rows, columns)
        assert torch.equal(run(x, y), function(x, y))


def test_cat_beside_a_size_that_a_guard_makes_one(mlcc_log: Any) -> None:
    # The trace knows that 1 and s0 // 8 are the same; only a number told us so.
    torch._dynamo.reset()

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.ones(1, 3), x[: x.shape[0] // 8] * 2], dim=1) + 1

    run = torch.compile(function, backend="mlcc", dynamic=True)
    with mlcc_log("fallback") as lines:
        for rows in (9, 13):
            x = torch.randn(rows, 3)
            assert torch.equal(run(x), function(x))
    assert list(lines) == []


@pytest.mark.parametrize("backend", ["mlcc", "aot_eager"])
def test_results_that_the_trace_foretells_wrongly(backend: str) -> None:
    """torch's trace has other strides for unique along a dimension, another rank for unique_consecutive's last one."""

    def unique(x: torch.Tensor) -> torch.Tensor:
        return torch.unique(x, dim=-1, sorted=False)

    def consecutive(x: torch.Tensor) -> torch.Tensor:
        return torch.unique_consecutive(x[0] * 2, dim=-1)

    x = torch.arange(20.0).reshape(4, 5)
    x[:, 1] = x[:, 0]
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        for function in (unique, consecutive):
            run = torch.compile(function, backend=backend, dynamic=True, fullgraph=True)
            found, expected = run(x), function(x)
            assert torch.equal(found, expected)
            assert found.stride() == expected.stride()
