"""Nodes that run in Python, as calls between kernels."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch._higher_order_ops.out_dtype import out_dtype

from mlcc.importer.eager_calls import EagerCall
from tests.python.sessions import Sessions


def wide_product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y: torch.Tensor = out_dtype(torch.ops.aten.mm.default, torch.int32, x + 1, w)
    return y.relu() + 1


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_higher_order_op_that_is_no_control_flow(dynamic: bool) -> None:
    compiled = Sessions(wide_product, dynamic)
    w = torch.randint(-9, 9, (16, 24), dtype=torch.int8)
    for length in (128, 256) if dynamic else (128,):
        x = torch.randint(-9, 9, (length, 16), dtype=torch.int8)
        torch.testing.assert_close(compiled(x, w), wide_product(x, w))
    compiled.check_all_compiled()
    graph = compiled.graphs[0]
    assert graph.imported.externs["higher_order.out_dtype"] == 1
    assert graph.stats["kernels"] > 1


def _call(function: object, inputs: int) -> EagerCall:
    graph = torch.fx.Graph()
    nodes = [graph.placeholder(f"x{i}") for i in range(inputs)]
    graph.output(graph.call_function(function, tuple(nodes)))
    module = torch.fx.GraphModule({}, graph)
    return EagerCall(module, ["tensor"] * inputs)


def test_results_share_no_memory() -> None:
    """Neither with operands nor with one another; what is no tensor is left out or becomes one."""
    x = torch.arange(4.0)

    def function(x: torch.Tensor) -> tuple[object, ...]:
        y = x + 1
        return x, y, y[1:], None, 3

    call = _call(function, 1)
    results = torch.ops.mlcc.eager_call(call.key, [x], [])
    torch.testing.assert_close(results, [x, x + 1, x[1:] + 1, torch.tensor(3)])
    places = {one.untyped_storage().data_ptr() for one in [x, *results]}
    assert len(places) == 5


def test_calls_live_as_long_as_their_graph() -> None:
    call = _call(torch.neg, 1)
    key, gone = call.key, weakref.ref(call)
    del call
    gc.collect()
    assert gone() is None
    with pytest.raises(KeyError):
        torch.ops.mlcc.eager_call(key, [torch.ones(1)], [])
