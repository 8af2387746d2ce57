"""Graphs with inputs that are neither tensors nor numbers: objects of registered classes, meshes, process groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._library.opaque_object import register_opaque_type
from torch._opaque_base import OpaqueBase
from torch.distributed import _functional_collectives
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from mlcc.capture import backend
from mlcc.ir import objects
from tests.python.sessions import Sessions


class Factor(OpaqueBase):
    """A number that torch does not look into."""

    def __init__(self, number: float) -> None:
        self.number = number


register_opaque_type(Factor, typ="reference")


@torch.library.custom_op("mlcc_objects::scaled", mutates_args=())
def scaled(x: torch.Tensor, factor: Factor) -> torch.Tensor:
    return x * factor.number


@scaled.register_fake
def _(x: torch.Tensor, factor: Factor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("mlcc_objects::scale_", mutates_args=("x",))
def scale_(x: torch.Tensor, factor: Factor) -> torch.Tensor:
    x.mul_(factor.number)
    return x + 1


@scale_.register_fake
def _(x: torch.Tensor, factor: Factor) -> torch.Tensor:
    return torch.empty_like(x)


_library = torch.library.Library("mlcc_objects", "FRAGMENT")
_NAME = f"{Factor.__module__}.{Factor.__qualname__}"
_library.define(f"doubled({_NAME} factor) -> {_NAME}")
_library.impl("doubled", lambda factor: Factor(factor.number * 2), "CompositeExplicitAutograd")


@torch.library.register_fake("mlcc_objects::doubled")
def _(factor: Factor) -> Factor:
    return Factor(0)


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    """Of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield init_device_mesh("cpu", (1,))
    finally:
        dist.destroy_process_group()


def reads(x: torch.Tensor, factor: Any) -> torch.Tensor:
    return scaled(x + 1, factor).relu() + 1


def computes(x: torch.Tensor, factor: Any) -> torch.Tensor:
    double = torch.ops.mlcc_objects.doubled(factor)
    return scaled(x + 1, double) * scaled(x, factor) - 1


def writes(x: torch.Tensor, factor: Any) -> tuple[torch.Tensor, ...]:
    y = x + 1
    z = y * 3
    u = scale_(y, factor)
    w = y * 2
    v = scale_(x, factor)
    return y + z, u, w, v, x * 2


@pytest.mark.parametrize("function", [reads, computes, writes])
@pytest.mark.parametrize("dynamic", [False, True])
def test_calls_get_the_object_of_their_call(function: Any, dynamic: bool) -> None:
    compiled = Sessions(function, dynamic)
    for number in (3.0, 5.0):
        for size in (7, 9) if dynamic else (7,):
            x = torch.randn(size)
            taken, expected = x.clone(), x.clone()
            torch.testing.assert_close(
                compiled(taken, Factor(number)), function(expected, Factor(number))
            )
            torch.testing.assert_close(taken, expected)
    compiled.check_all_compiled()
    assert compiled.graphs[0].stats["kernels"] > 0
    assert not objects._objects


def test_an_object_that_nobody_reads_in_the_graph() -> None:
    """Its gradient's graph has it for an input all the same, and hands it out."""

    class Times(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, factor: Factor) -> torch.Tensor:
            ctx.factor = factor
            return scaled(x, factor)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
            return scaled(gradient, ctx.factor) * 2, None

    def function(x: torch.Tensor, factor: Any) -> torch.Tensor:
        result: torch.Tensor = Times.apply(x.sin(), factor)
        return result.exp()

    compiled = Sessions(function)
    for number in (0.5, 0.25):
        x, y = (torch.linspace(-1, 1, 7, requires_grad=True) for _ in range(2))
        compiled(x, Factor(number)).sum().backward()
        function(y, Factor(number)).sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
    compiled.check_all_compiled()
    assert len(compiled.graphs) == 2


def test_an_exception_lets_go_of_the_objects() -> None:
    class Wrong(Factor):
        number = property(lambda self: 1 / 0, lambda self, value: None)

    compiled = torch.compile(reads, backend=backend.compile, fullgraph=True)
    x = torch.randn(7)
    torch.testing.assert_close(compiled(x, Factor(2.0)), reads(x, Factor(2.0)))
    with pytest.raises(ZeroDivisionError):
        compiled(x, Wrong(2.0))
    assert not objects._objects


def test_a_process_group_as_an_argument(mesh: DeviceMesh) -> None:
    def function(x: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
        group = torch.ops._dtensor.mesh_get_process_group(mesh, 0)
        started = torch.ops._c10d_functional.all_reduce(x * 2, "sum", group)
        result: torch.Tensor = torch.ops._c10d_functional.wait_tensor(started)
        return result + 1

    def by_name(x: torch.Tensor, group: Any) -> torch.Tensor:
        return _functional_collectives.all_reduce(x * 2, "sum", group) + 1

    x = torch.randn(7)
    for form, group in ((function, mesh), (by_name, mesh), (by_name, dist.group.WORLD)):
        compiled = Sessions(form)
        torch.testing.assert_close(compiled(x, group), x * 2 + 1)
        compiled.check_all_compiled()


def test_tensors_that_are_parts_of_others(mesh: DeviceMesh) -> None:
    """A DTensor is its own part and a mesh, which the graph takes and returns."""
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor

    def function(x: DTensor) -> DTensor:
        return (x.sin() @ x.t()).relu()

    compiled = Sessions(function)
    x, y = (
        distribute_tensor(torch.linspace(-1, 1, 12).view(3, 4), mesh, [Shard(0)]) for _ in range(2)
    )
    x.requires_grad_(), y.requires_grad_()
    result, expected = compiled(x), function(y)
    assert isinstance(result, DTensor) and result.device_mesh is mesh
    assert result.placements == expected.placements
    torch.testing.assert_close(result.to_local(), expected.to_local())
    result.sum().backward(), expected.sum().backward()
    assert x.grad is not None and y.grad is not None
    torch.testing.assert_close(x.grad.to_local(), y.grad.to_local())
    compiled.check_all_compiled()
    assert len(compiled.graphs) == 2
