"""Sizes of a trace are computed once from the same operands, and anew once the trace knows more of them."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.sym_node import SymNode

import mlcc
from mlcc.torch_private import symint_memo, tracing

BINARY = (
    *(operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod),
    *(operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge),
    *(torch.sym_max, torch.sym_min),
)


def _sizes(*values: int) -> tuple[tracing.Fakes, list[torch.SymInt]]:
    fakes = tracing.Fakes()
    fake = fakes.tensor(0, torch.empty(values), dynamic=True)
    return fakes, list(fake.shape)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The products that go through torch's arithmetic."""
    tracing.Fakes()  # which changes the class
    assert symint_memo._install()
    seen: list[str] = []
    remembering: Any = SymNode._mul
    compute = remembering.__wrapped__

    def count(left: SymNode, right: SymNode) -> SymNode:
        seen.append(f"{left} * {right}")
        return compute(left, right)

    again = symint_memo._remembering("_mul", count, _proxy_mode())
    monkeypatch.setattr(SymNode, "_mul", again)
    yield seen


def _proxy_mode() -> Callable[[], Any]:
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    return get_proxy_mode


@pytest.mark.parametrize("op", BINARY, ids=lambda op: op.__name__)
def test_results_are_those_of_torch(op: Callable[..., Any]) -> None:
    _, sizes = _sizes(6, 4)
    _, others = _sizes(6, 4)
    del others[0].node.shape_env.__dict__[symint_memo._MEMO]
    for left, right in ((0, 1), (1, 0), (0, 0)):
        for _ in range(2):
            found, expected = op(sizes[left], sizes[right]), op(others[left], others[right])
            assert type(found) is type(expected)
            assert str(found) == str(expected)
            assert found.node.hint == expected.node.hint
        assert str(op(sizes[left], 3)) == str(op(others[left], 3))


def test_a_product_is_computed_once(computed: list[str]) -> None:
    _, (rows, columns) = _sizes(6, 4)
    computed.clear()
    assert str(rows * columns) == str(rows * columns)
    assert computed == [f"{rows} * {columns}"]
    assert (rows * 3).node.hint == 18
    assert (rows * 4).node.hint == 24
    assert len(computed) == 3


def test_what_the_trace_learns_counts() -> None:
    _, (rows, columns) = _sizes(6, 6)
    before = rows - columns
    assert str(before) != "0"
    assert bool(rows == columns)  # a guard: from here on they are one symbol
    assert str(rows - columns) == "0"
    assert bool(rows == 6)
    assert (rows + columns).node.maybe_as_int() == 12


def test_two_traces_share_nothing(computed: list[str]) -> None:
    for _ in range(2):
        fakes, (rows, columns) = _sizes(6, 4)
        computed.clear()
        assert (rows * columns).node.shape_env is fakes.shape_env
        assert len(computed) == 1


def test_shape_envs_of_others_are_left_alone() -> None:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    tracing.Fakes()
    env = ShapeEnv()
    size = env.create_unbacked_symint()
    assert (size + 1).node is not (size + 1).node
    assert symint_memo._MEMO not in vars(env)


@pytest.mark.parametrize("grad", [False, True])
def test_a_graph_has_the_sizes_that_it_needs(grad: bool) -> None:
    """What was computed outside of a graph, and what another graph computed, is computed in this one."""
    with torch.set_grad_enabled(grad):
        fakes = tracing.Fakes()
    x = fakes.tensor(1, torch.empty(6, 4), dynamic=True)
    assert str(x.shape[0] * x.shape[1])

    def flat(x: torch.Tensor) -> torch.Tensor:
        return x.new_zeros(x.shape[0] * x.shape[1]) + x.new_zeros(x.shape[1] * x.shape[0])

    with fakes.mode:
        graphs = [make_fx(flat, tracing_mode="real")(x) for _ in range(2)]
    for graph in graphs:
        assert graph.graph.find_nodes(op="call_function", target=operator.mul)
        assert graph(torch.empty(5, 3)).shape == (15,)


def test_a_forward_pass_does_not_take_its_sizes_from_gradients() -> None:
    """A gradient is as large as its result: that size is no reason to leave statistics to the backward pass."""
    norm, reference = torch.nn.BatchNorm1d(8), torch.nn.BatchNorm1d(8)
    module = torch.nn.Sequential(torch.nn.Linear(6, 8), norm, torch.nn.ReLU())
    expected = torch.nn.Sequential(copy.deepcopy(module[0]), reference, torch.nn.ReLU())
    x = torch.randn(10, 6)
    torch.testing.assert_close(mlcc.jit(module)(x), expected(x))
    torch.testing.assert_close(norm.running_var, reference.running_var)


def test_a_jitted_function_of_computed_sizes() -> None:
    def crossed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        n = x.shape[0] * y.shape[0]
        return (x[:, None] * y).reshape(n).exp() * (n // 2) + torch.ones(n) * (n - x.shape[0])

    jitted = mlcc.jit(crossed)
    for rows, columns in ((4, 6), (5, 7), (3, 3), (6, 4)):
        x, y = torch.randn(rows), torch.randn(columns)
        torch.testing.assert_close(jitted(x, y), crossed(x, y))
