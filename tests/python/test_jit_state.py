"""What mlcc.jit keeps a trace from, or holds it against, beside arguments: state that no graph records."""

from __future__ import annotations

import collections
import functools
import operator
import random
import sys
import types
from collections.abc import Callable
from typing import Any, ClassVar

import numpy
import pytest
import torch

import mlcc
from mlcc._errors import SideEffectError
from mlcc.capture.reads import TensorReads
from tests.python.jit_contract import lookup

X = torch.arange(12, dtype=torch.float32).reshape(4, 3)


def in_core(jitted: Any, *args: Any) -> bool:
    return lookup(jitted)._dispatch(*args) is not NotImplemented


def check(jitted: Callable[..., Any], expected: torch.Tensor, *args: Any) -> None:
    torch.testing.assert_close(jitted(*args), expected, rtol=0, atol=0)


def test_default_arguments() -> None:
    def scaled(x: torch.Tensor, scale: Any = [2.0], *, shift: float = 3.0) -> torch.Tensor:
        return x * scale[0] + shift

    jitted = mlcc.jit(scaled)
    check(jitted, X * 2 + 3, X)
    assert in_core(jitted, X)
    assert scaled.__defaults__ and scaled.__kwdefaults__
    scaled.__defaults__[0][0] = 5.0
    check(jitted, X * 5 + 3, X)
    scaled.__kwdefaults__["shift"] = 7.0
    check(jitted, X * 5 + 7, X)
    scaled.__defaults__ = ([1.0],)
    check(jitted, X + 7, X)
    assert in_core(jitted, X)


helper_scale = [2.0]


def helper(x: torch.Tensor, scale: list[float] = helper_scale) -> torch.Tensor:
    return x * scale[0]


def test_default_arguments_of_what_is_called() -> None:
    jitted = mlcc.jit(lambda x: helper(x) + 1)
    check(jitted, X * 2 + 1, X)
    helper_scale[0] = 3.0
    try:
        check(jitted, X * 3 + 1, X)
    finally:
        helper_scale[0] = 2.0


def test_a_default_argument_that_grows() -> None:
    def count(x: torch.Tensor, seen: list[int] = []) -> torch.Tensor:
        seen.append(1)
        return x * len(seen)

    jitted = mlcc.jit(count)
    for times in (1, 2, 3):
        check(jitted, X * times, X)


def scaled_by_attribute(x: torch.Tensor) -> torch.Tensor:
    return x * scaled_by_attribute.scale  # type: ignore[attr-defined]


def counted(x: torch.Tensor) -> torch.Tensor:
    counted.calls += 1  # type: ignore[attr-defined]
    return x * counted.calls  # type: ignore[attr-defined]


def test_attributes_of_functions() -> None:
    jitted = mlcc.jit(scaled_by_attribute)
    for scale in (2.0, 3.0):
        scaled_by_attribute.scale = scale  # type: ignore[attr-defined]
        check(jitted, X * scale, X)
    counted.calls = 0  # type: ignore[attr-defined]
    jitted = mlcc.jit(counted)
    for times in (1, 2, 3):
        check(jitted, X * times, X)


@functools.lru_cache
def table(size: int) -> torch.Tensor:
    return torch.arange(size, dtype=torch.float32)


def test_a_cached_function_keeps_no_tensor_of_the_trace() -> None:
    jitted = mlcc.jit(lambda x: x + table(3))
    for _ in range(2):
        check(jitted, X + torch.arange(3), X)
    assert table(3).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("seed", "draw"),
    [
        (random.seed, lambda x: x * random.random()),
        (numpy.random.seed, lambda x: x * float(numpy.random.rand())),
        (torch.manual_seed, lambda x: (torch.manual_seed(5), x * torch.rand(3))[1]),
    ],
    ids=["random", "numpy", "torch"],
)
def test_generators_advance_as_in_eager(seed: Callable[[int], Any], draw: Any) -> None:
    jitted = mlcc.jit(draw)
    found = []
    for function in (draw, jitted):
        seed(0)
        found.append([function(X) for _ in range(3)])
    for ours, eagers in zip(*found, strict=True):
        assert torch.equal(ours, eagers)


def test_gradients_that_are_read() -> None:
    def step(weight: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            if weight.grad is not None:
                weight -= weight.grad
        return weight * 1

    weight = torch.nn.Parameter(torch.ones(3))
    jitted = mlcc.jit(step)
    check(jitted, torch.ones(3), weight)
    weight.grad = torch.ones(3)
    check(jitted, torch.zeros(3), weight)


def test_only_the_arguments_are_watched() -> None:
    x = torch.ones(3, requires_grad=True)
    other = torch.ones(3, requires_grad=True)
    with TensorReads([x, 2.0]):
        assert other.grad is None
        assert other.is_leaf
        for read in (lambda: x.grad, lambda: x.is_leaf, lambda: x.storage_offset()):
            with pytest.raises(SideEffectError, match="of an argument"):
                read()


def test_outputs_that_eager_refuses() -> None:
    jitted = mlcc.jit(lambda x, out: torch.mul(x, 0.5, out=out))
    out = torch.empty(4, 3)
    assert jitted(X, out) is out
    assert torch.equal(out, X * 0.5)
    with pytest.raises(RuntimeError, match="can't be cast"):
        jitted(X, torch.empty(4, 3, dtype=torch.int64))


def test_results_that_are_sizes() -> None:
    jitted = mlcc.jit(lambda x: (x + 1, [x.shape, x.shape[1:]], x.shape[0]))
    for rows in (4, 5):
        x = torch.ones(rows, 3)
        _, sizes, count = jitted(x)
        assert sizes == [torch.Size([rows, 3]), torch.Size([3])]
        assert all(type(size) is torch.Size for size in sizes)
        assert count == rows
    assert in_core(jitted, X)
    assert mlcc.jit(lambda x: x.shape)(X) == X.shape


def test_ints_whose_products_are_too_large() -> None:
    jitted = mlcc.jit(lambda x, n: x * float(n * n))
    for n in (3, 5, 2**31 - 1, 2**40, 2**63):
        check(jitted, X * float(n * n), X, n)


def test_numbers_and_objects_that_no_trace_takes() -> None:
    check(mlcc.jit(lambda x, n: x * n), X * 1j, X, 1j)
    generators = [torch.Generator().manual_seed(3) for _ in range(2)]
    jitted = mlcc.jit(lambda x, g: x + torch.rand(3, generator=g))
    for _ in range(2):
        check(jitted, X + torch.rand(3, generator=generators[0]), X, generators[1])


def test_attributes_of_arguments() -> None:
    jitted = mlcc.jit(lambda x: x * getattr(x, "scale", 1.0))
    x = torch.ones(3)
    for scale in (None, 3.0, None):
        if scale is None:
            x.__dict__.pop("scale", None)
        else:
            x.scale = scale
        check(jitted, torch.full((3,), scale or 1.0), x)


def plus(x: torch.Tensor) -> torch.Tensor:
    return x + 1


activation: Any = torch.relu


class Settings:
    scale = 2.0


def test_functions_and_settings_that_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    this = sys.modules[__name__]
    settings = types.ModuleType("settings")
    settings.__file__ = __file__
    settings.scale = 3.0  # type: ignore[attr-defined]
    monkeypatch.setattr(this, "settings", settings, raising=False)

    def computed(x: torch.Tensor) -> torch.Tensor:
        return activation(plus(x) - 3) * Settings.scale * settings.scale

    jitted = mlcc.jit(computed)
    changes: list[tuple[Any, str, Any]] = [
        (this, "plus", lambda x: x + 11),
        (this, "activation", torch.sigmoid),
        (Settings, "scale", 5.0),
        (settings, "scale", 7.0),
    ]
    torch.testing.assert_close(jitted(X), computed(X))
    for owner, name, value in changes:
        monkeypatch.setattr(owner, name, value)
        torch.testing.assert_close(jitted(X), computed(X))
        assert in_core(jitted, X)


class Held(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.ones(3)
        self._mask = torch.ones(3)
        self._parts = [2.0, torch.ones(3)]
        self._settings = types.SimpleNamespace(scale=2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight + self._mask * self._parts[0] * self._settings.scale


def test_attributes_of_a_module_whatever_their_names() -> None:
    module = Held()
    jitted = mlcc.jit(module)

    def narrow() -> None:
        module.weight.data = torch.full((1,), 4.0)

    def replace() -> None:
        module._mask = torch.zeros(3)

    def fill() -> None:
        module._mask.fill_(3)

    def change_part() -> None:
        module._parts[0] = 4.0

    def change_setting() -> None:
        module._settings.scale = 7.0

    def replace_settings() -> None:
        module._settings = types.SimpleNamespace(scale=1.0)

    check(jitted, module(X), X)
    for change in (narrow, replace, fill, change_part, change_setting, replace_settings):
        change()
        check(jitted, module(X), X)


class Unregistered(torch.nn.Module):
    def __init__(self, parts: Any) -> None:
        super().__init__()
        self.parts = parts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        part = self.parts[0]
        return part(x) if isinstance(part, torch.nn.Module) else x * part


@pytest.mark.parametrize(
    ("parts", "change"),
    [
        ({0: torch.ones(())}, lambda parts: parts[0].add_(1)),
        ([torch.nn.Linear(3, 3)], lambda parts: parts[0].weight.data.mul_(2)),
    ],
    ids=["number", "module"],
)
def test_what_containers_of_a_module_hold(parts: Any, change: Callable[[Any], Any]) -> None:
    module = Unregistered(parts)
    jitted = mlcc.jit(module)
    for _ in range(2):
        found, eager = jitted(X), module(X)
        torch.testing.assert_close(found, eager)
        assert found.requires_grad == eager.requires_grad
        change(parts)


class Setting:
    def __init__(self, scale: float) -> None:
        self.scale = scale


def replace_first(parts: list[Any]) -> None:
    parts[0] = Setting(5.0)


@pytest.mark.parametrize(
    "change",
    [replace_first, lambda parts: parts.append(1.0), lambda parts: parts[1].append(2.0)],
    ids=["an object", "one more", "of a list in it"],
)
def test_containers_of_objects_are_guards_in_the_core(change: Callable[[list[Any]], Any]) -> None:
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts: list[Any] = [Setting(2.0), [1.0]]
            self.table: dict[str, Any] = {"first": Setting(3.0), "second": 4.0}
            self.names = {torch.float32, "weight"}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            numbers = self.parts[1]
            scale = self.parts[0].scale * self.table["first"].scale * self.table["second"]
            return x * scale * len(self.parts) + sum(numbers)

    module = Scaled().eval()
    jitted = mlcc.jit(module)
    check(jitted, module(X), X)
    assert in_core(jitted, X)
    change(module.parts)
    assert not in_core(jitted, X)
    check(jitted, module(X), X)
    module.table["second"] = 5.0
    assert not in_core(jitted, X)
    check(jitted, module(X), X)
    module.names.add("bias")
    assert not in_core(jitted, X)
    check(jitted, module(X), X)


class Backwards(dict[str, Any]):
    turned = False

    def keys(self) -> Any:
        return [*super().keys()][:: -1 if self.turned else 1]

    def values(self) -> Any:
        return [*super().values()][:: -1 if self.turned else 1]

    def turn(self) -> None:
        self.turned = not self.turned


@pytest.mark.parametrize(
    ("table", "turn"),
    [
        (collections.OrderedDict[str, Any](), lambda table: table.move_to_end("first")),
        (Backwards(), Backwards.turn),
    ],
    ids=["ordered", "own"],
)
def test_dicts_with_an_order_of_their_own(table: Any, turn: Callable[[Any], None]) -> None:
    class Chain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            table.update(first=Setting(2.0), second=Setting(3.0))
            self.table = table

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for one in self.table.values():
                x = x * one.scale + 1
            return x

    module = Chain()
    jitted = mlcc.jit(module)
    for _ in range(3):
        check(jitted, module(X), X)
        assert in_core(jitted, X)
        turn(table)


def test_parameters_that_are_frozen_and_thawed() -> None:
    module = torch.nn.Linear(3, 2)
    jitted = mlcc.jit(module)
    for follows in (False, True, False, True):
        module.requires_grad_(follows)
        assert jitted(X).requires_grad == follows


def test_a_default_argument_that_is_a_tensor() -> None:
    def scaled(x: torch.Tensor, weight: torch.Tensor = torch.ones(1)) -> torch.Tensor:
        return x * weight

    jitted = mlcc.jit(scaled)
    assert scaled.__defaults__
    check(jitted, X, X)
    scaled.__defaults__[0].add_(3)
    check(jitted, X * 4, X)


def test_hooks_for_gradients() -> None:
    module = torch.nn.Linear(3, 2)
    jitted = mlcc.jit(module)
    seen: list[str] = []
    x = torch.randn(4, 3, requires_grad=True)
    jitted(x).sum().backward()
    module.register_full_backward_hook(lambda *_: seen.append("first"))
    jitted(x).sum().backward()
    module.register_full_backward_hook(lambda *_: seen.append("second"))
    jitted(x).sum().backward()
    assert seen == ["first", "first", "second"]


@pytest.mark.parametrize("shape", [(2, 3, 1, 1), (1, 3, 1, 4)])
def test_memory_formats_that_only_strides_of_size_1_tell(shape: tuple[int, ...]) -> None:
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.interpolate(x, scale_factor=2.0)

    jitted = mlcc.jit(doubled)
    x = torch.randn(shape)
    for format in (torch.contiguous_format, torch.channels_last, torch.contiguous_format):
        y = x.contiguous(memory_format=format).as_strided(
            shape, torch.empty(shape, memory_format=format).stride()
        )
        found, eager = jitted(y), doubled(y)
        torch.testing.assert_close(found, eager)
        assert found.stride() == eager.stride()


def test_state_that_changes_after_many_calls() -> None:
    """Dicts whose version was seen are not looked through again, but for lists and dicts that change by themselves."""

    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(4, 4)
            self.factor, self.steps, self.table = 2, [1, 2], {"shift": {"by": 3}}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.inner(x) * self.factor + self.table["shift"]["by"]
            for step in self.steps:
                y = y + step
            return y

    module, x = Scaled().eval(), torch.randn(3, 4)
    compiled = mlcc.jit(module)

    def check_calls() -> None:
        with torch.no_grad():
            for _ in range(3):
                torch.testing.assert_close(compiled(x), module(x))

    changes: list[Callable[[], Any]] = [
        lambda: setattr(module, "factor", 5),
        lambda: module.steps.append(7),
        lambda: module.table["shift"].update(by=11),
        lambda: module.table.update(shift={"by": 12}),
        lambda: setattr(module, "inner", torch.nn.Linear(4, 4)),
        lambda: setattr(module.inner, "weight", torch.nn.Parameter(torch.ones(4, 4))),
        lambda: module.__dict__.update(factor=1),
        lambda: object.__setattr__(module, "steps", [3]),
        lambda: module.inner.register_forward_hook(lambda m, args, y: y * 2),
        lambda: module.inner._forward_hooks.clear(),
    ]
    check_calls()
    for change in changes:
        change()
        check_calls()


class Base(torch.nn.Module):
    scale = 2.0


class Child(Base):
    table: ClassVar[list[float]] = [1.0, 2.0]

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.options = torch.nn.Linear(3, 3), Options()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * self.scale + self.table[0] + self.options.shift


class Options:
    shift = 1.0


def test_attributes_of_classes_that_objects_find() -> None:
    """Read by self, of the class or of one that it inherits from, and of the class of an object that it holds."""
    module = Child()
    jitted = mlcc.jit(module)

    def check_calls() -> None:
        with torch.no_grad():
            for _ in range(3):
                torch.testing.assert_close(jitted(X), module(X))

    before = Base.scale, [*Child.table], Options.shift
    changes: list[Callable[[], Any]] = [
        lambda: setattr(Base, "scale", 3.0),
        lambda: setattr(Child, "scale", 4.0),
        lambda: delattr(Child, "scale"),
        lambda: Child.table.insert(0, 5.0),
        lambda: setattr(Options, "shift", 7.0),
    ]
    try:
        check_calls()
        for change in changes:
            change()
            check_calls()
    finally:
        Base.scale, Child.table, Options.shift = before


def test_members_that_are_replaced() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    jitted = mlcc.jit(module)
    with torch.no_grad():
        jitted(X), jitted(X)
        module._modules = {"0": torch.nn.Linear(3, 3), "1": module[1]}
        torch.testing.assert_close(jitted(X), module(X))
        jitted(X)
        last = module[1]
        bias = torch.nn.Parameter(torch.ones(3))
        last.__dict__["_parameters"] = dict(last._parameters, bias=bias)
        torch.testing.assert_close(jitted(X), module(X))


WRITES_OF_ITSELF: dict[str, Any] = {
    "add_": lambda h: h.add_(h),
    "mul_": lambda h: h.mul_(2),
    "item": lambda h: h.__setitem__(0, 3.0),
    "operator": lambda h: operator.iadd(h, 1),
    "out": lambda h: torch.add(h, h, out=h),
    "inplace": lambda h: torch.nn.functional.relu(h, inplace=True),
}


@pytest.mark.parametrize("name", WRITES_OF_ITSELF)
def test_a_tensor_in_an_attribute_is_written_once_a_call(name: str) -> None:
    """An op of tensors that are none of the trace's is run by the trace, which comes more than once."""
    write = WRITES_OF_ITSELF[name]

    class Keeps(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.h = torch.ones(3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            write(self.h)
            return x + self.h

    expected, found = Keeps(), Keeps()
    run = mlcc.jit(found)
    for _ in range(3):
        torch.testing.assert_close(run(torch.zeros(3)), expected(torch.zeros(3)))
        torch.testing.assert_close(found.h, expected.h)


def test_a_view_of_memory_that_an_argument_had() -> None:
    def function(h: torch.Tensor) -> torch.Tensor:
        before = h[-1]
        h.set_(h.clone())
        return before

    for run in (function, mlcc.jit(function), torch.compile(function, backend="mlcc")):
        h = torch.ones(3, 3)
        run(h).zero_()
        assert bool((h == 1).all())
