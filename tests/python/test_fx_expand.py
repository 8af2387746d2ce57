"""Custom ops that write into their arguments, ops with effects, and Python floats as results and exponents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.python.sessions import Sessions


@pytest.fixture(scope="module")
def library() -> Iterator[Any]:
    lib = torch.library.Library("mlcc_wrapped", "FRAGMENT")
    lib.define("scale_(Tensor(a!) x, float by) -> ()")
    lib.define("add_into(Tensor x, Tensor(a!) y, Tensor(b!) z) -> Tensor")

    def scale(x: torch.Tensor, by: float) -> None:
        x.mul_(by)

    def add_into(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        y.add_(x)
        z.sub_(x)
        return x * 3

    lib.impl("scale_", scale, "CompositeExplicitAutograd")
    lib.impl("add_into", add_into, "CompositeExplicitAutograd")
    torch.library.register_fake("mlcc_wrapped::scale_", lambda x, by: None, lib=lib)
    torch.library.register_fake(
        "mlcc_wrapped::add_into", lambda x, y, z: torch.empty_like(x), lib=lib
    )
    yield torch.ops.mlcc_wrapped
    lib._destroy()


def check(f: Any, *args: torch.Tensor, dynamic: bool = False) -> None:
    """Results and arguments are as after eager, twice."""
    compiled = Sessions(f, dynamic)
    for _ in range(2):
        eager = [arg.clone() for arg in args]
        ours = [arg.clone() for arg in args]
        torch.testing.assert_close(compiled(*ours), f(*eager))
        torch.testing.assert_close(ours, eager)
    compiled.check_all_compiled()


def in_between(library: Any, x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    before = y + 1
    library.scale_(y, 3.0)
    return y.sin() + before


@pytest.mark.parametrize("dynamic", [False, True])
def test_an_op_that_writes_into_a_fresh_tensor(library: Any, dynamic: bool) -> None:
    check(lambda x: in_between(library, x), torch.randn(4, 3), dynamic=dynamic)


def test_an_op_that_writes_into_inputs_and_their_views(library: Any) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = (x * 2)[:2]
        out = library.add_into(x[0], y, z[1])
        library.scale_(x[1:], 2.0)
        return out + y + z.sum() + x[1]

    check(f, torch.randn(3, 4), torch.randn(4))


def test_effects_in_order() -> None:
    lib = torch.library.Library("mlcc_effects", "FRAGMENT")
    lib.define("note(Tensor x, str name) -> Tensor")
    notes: list[str] = []

    def note(x: torch.Tensor, name: str) -> torch.Tensor:
        notes.append(name)
        return x + 1

    lib.impl("note", note, "CompositeExplicitAutograd")
    torch.library.register_fake("mlcc_effects::note", lambda x, name: torch.empty_like(x), lib=lib)
    from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

    _register_effectful_op(torch.ops.mlcc_effects.note.default, _EffectType.ORDERED)

    def f(x: torch.Tensor) -> torch.Tensor:
        a = torch.ops.mlcc_effects.note(x, "a")
        b = torch.ops.mlcc_effects.note(x, "b")
        torch.ops.mlcc_effects.note(a * 2, "c")
        return b * 2

    compiled = Sessions(f)
    x = torch.randn(3)
    for _ in range(2):
        notes.clear()
        torch.testing.assert_close(compiled(x), (x + 1) * 2)
        assert notes == ["a", "b", "c"]
    compiled.check_all_compiled()
    lib._destroy()


def test_floats_that_are_exponents() -> None:
    def f(x: torch.Tensor, p: float) -> tuple[torch.Tensor, torch.Tensor]:
        return (x.abs() * 2).pow(p) + 1, torch.pow(p, x)

    compiled = Sessions(f, dynamic=True)
    for p in (0.5, 1.5, 2.0, 2.75):
        x = torch.randn(5)
        torch.testing.assert_close(compiled(x, p), f(x, p))
    compiled.check_all_compiled()


def test_floats_that_are_results() -> None:
    def f(x: torch.Tensor, p: float) -> tuple[torch.Tensor, float]:
        q = p * 2 + 0.5
        return x * q, q

    compiled = Sessions(f, dynamic=True)
    for p in (0.5, 1.5, 2.75):
        x = torch.randn(5)
        torch.testing.assert_close(compiled(x, p), f(x, p))
    compiled.check_all_compiled()


def test_a_float_argument_of_an_aten_call() -> None:
    def f(x: torch.Tensor, p: float) -> torch.Tensor:
        return torch.cdist(x, x * 2, p=p) + torch.logit(x.sigmoid(), eps=p * 1e-3)[:, :1]

    compiled = Sessions(f, dynamic=True)
    for p in (1.5, 1.75, 2.75):
        x = torch.randn(5, 3)
        torch.testing.assert_close(compiled(x, p), f(x, p))
