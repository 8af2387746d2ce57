"""Programs that hypothesis draws: shapes, strides, dtypes, broadcasts and aliasing, against eager.

The draws are the same in each run; `pytest --hypothesis-profile=long` looks further.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, note
from torch._subclasses.fake_tensor import FakeTensorMode

import mlcc
from mlcc.ir.types import GraphUnsupported
from tests.python.accuracy import check_all, to_double
from tests.python.tracing import DTYPES, FORMS, Compiled, _overload, call_of, is_in_table, trace

SIZES = [0, 1, 2, 3, 5, 8, 17, 33]
SHAPES = st.lists(st.sampled_from(SIZES), min_size=0, max_size=4).map(tuple)


def values(draw: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Plain numbers: special values have tests of their own."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    return torch.randint(1, 9, shape, generator=generator).to(dtype)


@st.composite
def layouts(draw: Any, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of that shape, somehow in memory: permuted, every second element, shifted, or with stride 0."""
    stretched = [dim for dim in range(len(shape)) if draw(st.integers(0, 5)) == 0]
    steps = [draw(st.sampled_from([1, 1, 1, 2])) for _ in shape]
    starts = [draw(st.sampled_from([0, 0, 1])) for _ in shape]
    order = draw(st.permutations(range(len(shape))))
    held = [
        1 if dim in stretched else size * steps[dim] + starts[dim] for dim, size in enumerate(shape)
    ]
    base = values(draw, dtype, tuple(held[dim] for dim in order))
    tensor = base.permute([list(order).index(dim) for dim in range(len(shape))])
    for dim in range(len(shape)):
        if dim not in stretched:
            tensor = tensor[(slice(None),) * dim + (slice(starts[dim], None, steps[dim]),)]
            tensor = tensor.narrow(dim, 0, shape[dim])
    return tensor.expand(shape)


@st.composite
def broadcasts(draw: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts to this one."""
    kept = tuple(1 if draw(st.integers(0, 4)) == 0 else size for size in shape)
    dropped = draw(st.integers(0, len(shape))) if draw(st.booleans()) else 0
    return kept[dropped:]


def check(function: Callable[..., Any], tensors: list[torch.Tensor], dynamic: bool) -> None:
    """What the core computes is as good as eager, strides included."""
    eager = function(*tensors)
    with FakeTensorMode() as mode:
        if function(*map(mode.from_tensor, tensors)).stride() != eager.stride():
            return  # torch's own tracing foresees other strides than eager then makes
    try:
        made = trace(function, *tensors, dynamic=dynamic, make=Compiled)
    except GraphUnsupported:  # make_fx gives strides symbols of their own; Dynamo does not
        assert dynamic
        return
    exact = function(*to_double(tensors))
    reference = exact if eager.dtype.is_floating_point else None
    check_all(made(*tensors), [eager], [reference])


@given(st.data())
def test_overload_of_the_table(data: Any) -> None:
    """Any form of the op table, on operands of drawn layouts that broadcast."""
    draw = data.draw
    dtype = draw(st.sampled_from(DTYPES))
    form = draw(st.sampled_from([form for form in FORMS if is_in_table(form, dtype)]))
    plain, call = call_of(form, dtype)
    shape = draw(SHAPES)
    tensors = []
    for place, one in enumerate(plain):
        whole = place == 0 or "backward" in form
        tensors.append(draw(layouts(shape if whole else draw(broadcasts(shape)), one.dtype)))
    if "backward" not in form and draw(st.booleans()):
        for place in range(1, len(tensors)):
            if tensors[place].dtype == tensors[0].dtype and tensors[0].dim() > 0:
                tensors[place] = tensors[0].flip(0) if draw(st.booleans()) else tensors[0]
    try:
        call(*tensors)
    except (RuntimeError, NotImplementedError, TypeError):
        return
    check(call, tensors, dynamic=draw(st.booleans()))


# Continuous functions without poles, so that eager and mlcc are judged on the same footing.
SMOOTH: list[Callable[..., torch.Tensor]] = [
    lambda a, b: a + b,
    lambda a, b: a * b,
    lambda a, b: a - b * 0.5,
    lambda a, b: torch.maximum(a, b),
    lambda a, b: a.tanh() * b,
    lambda a, b: a.sigmoid() + b.abs(),
    lambda a, b: torch.where(b > 0, a, b),
]
REDUCTIONS: list[Callable[[torch.Tensor, int], torch.Tensor]] = [
    lambda x, d: x.sum(d, keepdim=True),
    lambda x, d: x.mean(d, keepdim=True),
    lambda x, d: x - x.amax(d, keepdim=True),
    lambda x, d: x.softmax(d),
    lambda x, d: x.var(d, correction=0, keepdim=True) + x,
    lambda x, d: torch.cat([x, x.flip(d)], d),
]
VIEWS: list[Callable[[torch.Tensor, int], torch.Tensor]] = [
    lambda x, d: x.transpose(0, d),
    lambda x, d: x.flip(d),
    lambda x, d: x.unsqueeze(d).squeeze(d),
    lambda x, d: x[..., ::2],
    lambda x, d: x.flatten(),
    lambda x, d: x.narrow(d, 0, max(1, x.shape[d] // 2)),
    lambda x, d: x.roll(1, d),
]


@st.composite
def programs(draw: Any) -> Callable[..., torch.Tensor]:
    """A few steps over a value and the inputs."""
    steps = []
    for _ in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(["smooth", "smooth", "reduction", "view"]))
        table: Any = {"smooth": SMOOTH, "reduction": REDUCTIONS, "view": VIEWS}[kind]
        steps.append((kind, draw(st.sampled_from(table)), draw(st.integers(0, 3))))

    def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        value = x
        for kind, step, place in steps:
            if kind == "smooth":
                other = y if value.shape == y.shape else value * 0.5
                value = step(value, other)
            elif value.dim():
                value = step(value, place % value.dim())
        return value * 1

    run.__name__ = ", ".join(f"{kind} {table_place(step)} {place}" for kind, step, place in steps)
    return run


def table_place(step: Any) -> int:
    """Which one of its table a step is, for the report of a failure."""
    return next(table.index(step) for table in (SMOOTH, REDUCTIONS, VIEWS) if step in table)


@given(st.data())
def test_program(data: Any) -> None:
    """Steps that fuse: pointwise ops, reductions with their neighbours, and index maps between them."""
    draw = data.draw
    dtype = draw(st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
    shape = tuple(max(1, size) for size in draw(SHAPES))
    tensors = [draw(layouts(shape, dtype)) for _ in range(2)]
    program = draw(programs())
    note(program.__name__)
    check(program, tensors, dynamic=draw(st.booleans()))


@given(st.data())
def test_arguments_that_share_memory_and_are_written(data: Any) -> None:
    """mlcc.jit of a function that writes into views of its arguments leaves memory as eager does."""
    draw = data.draw
    length = draw(st.sampled_from([4, 9, 40]))
    starts = [draw(st.integers(0, length)) for _ in range(2)]
    steps = [draw(st.sampled_from([1, 2])) for _ in range(2)]
    count = draw(st.integers(1, length))
    shared, part = draw(st.booleans()), draw(st.integers(0, count - 1))
    operation = draw(st.sampled_from(["add", "mul", "copy", "twice"]))

    def function(
        x: torch.Tensor, y: torch.Tensor, part: int = part, operation: str = operation
    ) -> torch.Tensor:
        target = x[part:]
        if operation == "add":
            target.add_(y[part:])
        elif operation == "mul":
            x.mul_(2)
            target.mul_(y[part:])
        elif operation == "copy":
            target.copy_(y[part:] + 1)
        else:
            target += 1
            y += target.sum()
        return x * y

    def call(run: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
        memory = [torch.arange(3.0 * length + 2) for _ in range(2)]
        bases = [memory[0], memory[0] if shared else memory[1]]
        x, y = (
            base[start : start + step * count : step]
            for base, start, step in zip(bases, starts, steps, strict=True)
        )
        return [run(x, y), *memory]

    jitted = mlcc.jit(function)
    for _ in range(2):
        try:
            expected = call(function)
        except RuntimeError as error:  # a write to what is also read
            with pytest.raises(RuntimeError, match=re.escape(str(error))):
                call(jitted)
            continue
        for ours, eagers in zip(call(jitted), expected, strict=True):
            torch.testing.assert_close(ours, eagers)


def test_forms_are_overloads() -> None:
    """What the strategies draw from exists."""
    assert len(FORMS) > 80
    assert all(isinstance(_overload(form), torch._ops.OpOverload) for form in FORMS)
    with pytest.raises(AttributeError):
        _overload("aten.no_such_op.default")
