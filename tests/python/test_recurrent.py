"""nn.LSTM, GRU and RNN in inference: generated, or eager's call where they are not, with eager's results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import mlcc

KINDS: dict[str, Callable[..., nn.RNNBase]] = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "tanh": nn.RNN,
    "relu": lambda *args, **kwargs: nn.RNN(*args, nonlinearity="relu", **kwargs),
}


@pytest.fixture(autouse=True)
def _inference() -> Any:
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def compiled(module: nn.Module, dynamic: bool | None = False) -> Callable[..., Any]:
    """Without graph breaks: Dynamo looks into the module."""
    return torch.compile(module, backend="mlcc", fullgraph=True, dynamic=dynamic)


def check(function: Callable[..., Any], module: Callable[..., Any], *args: Any) -> None:
    found, expected = (torch.utils._pytree.tree_leaves(f(*args)) for f in (function, module))
    torch.testing.assert_close(found, expected)
    assert [one.stride() for one in found] == [one.stride() for one in expected]


# Layers, both directions, biases, batches first.
FORMS = [(1, False, True, False), (1, True, False, True), (2, True, True, True)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FORMS)
def test_forms(kind: str, form: tuple[int, bool, bool, bool]) -> None:
    layers, bidirectional, bias, batch_first = form
    module = KINDS[kind](
        3, 5, layers, bias=bias, batch_first=batch_first, bidirectional=bidirectional
    )
    function = compiled(module, dynamic=layers == 1)
    for shape in ((4, 6, 3), (9, 2, 3))[: 3 - layers]:
        check(function, module, torch.randn(shape))


@pytest.mark.parametrize("kind", KINDS)
def test_one_step_one_row_and_no_batch(kind: str) -> None:
    module = KINDS[kind](3, 40)
    for shape in ((1, 1, 3), (1, 70, 3), (5, 3), (5, 0, 3)):
        torch._dynamo.reset()
        check(compiled(module), module, torch.randn(shape))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_given_states(dtype: torch.dtype) -> None:
    x, *states = (torch.randn(shape, dtype=dtype) for shape in ((4, 6, 3), (2, 6, 5), (2, 6, 5)))
    gru, lstm = nn.GRU(3, 5, 2).to(dtype), nn.LSTM(3, 5, 2).to(dtype)
    check(compiled(gru), gru, x, states[0])
    check(compiled(lstm), lstm, x, tuple(states))
    narrow = nn.GRU(3, 1, 2).to(dtype)
    check(compiled(narrow), narrow, x, torch.randn(2, 1, 6, dtype=dtype).transpose(1, 2))


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16(kind: str) -> None:
    """As near to float64 as eager's kernels, whose LSTM of bfloat16 not every CPU has."""
    module = KINDS[kind](16, 32).bfloat16()
    x = torch.randn(7, 3, 16).bfloat16()
    exact = KINDS[kind](16, 32).double()
    exact.load_state_dict(module.state_dict())
    torch.testing.assert_close(
        compiled(module)(x)[0], exact(x.double())[0].bfloat16(), atol=0.02, rtol=0.02
    )


def test_special_values() -> None:
    x = torch.randn(6, 3, 3)
    x[1, 0, 0], x[2, 1, 1], x[3, 2, 2] = torch.nan, torch.inf, -torch.inf
    for make in KINDS.values():
        torch._dynamo.reset()
        module = make(3, 5)
        found, expected = compiled(module)(x)[0], module(x)[0]
        torch.testing.assert_close(found, expected, equal_nan=True)


def test_lengths_share_a_graph(mlcc_log: Any) -> None:
    module = nn.GRU(3, 5)
    function = compiled(module, dynamic=True)
    with mlcc_log("graph") as lines:
        for length in (300, 7, 64):
            check(function, module, torch.randn(length, 2, 3))
    assert sum("graph inference" in line for line in lines) == 1


def test_weights_are_packed_once_and_followed() -> None:
    module, x = nn.LSTM(40, 40), torch.randn(4, 2, 40)
    function = compiled(module)
    check(function, module, x)
    computed = mlcc.cache_info()["pack_misses"]
    check(function, module, x)
    assert mlcc.cache_info()["pack_misses"] == computed
    module.weight_hh_l0.mul_(2)
    check(function, module, x)


def test_inside_of_a_module_and_by_jit(mlcc_log: Any) -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.GRU(3, 5, batch_first=True, bidirectional=True)
            self.head = nn.Linear(10, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.head(torch.relu(self.layer(x)[0]))
            return result

    module, x = Tagger(), torch.randn(2, 6, 3)
    check(compiled(module), module, x)
    with mlcc_log("fallback") as lines:
        check(mlcc.jit(module), module, x)
    assert not lines


class _Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(3, 5)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths)
        result: torch.Tensor = nn.utils.rnn.pad_packed_sequence(self.layer(packed)[0])[0]
        return result


def test_packed_sequences_run() -> None:
    module = _Packed()
    function = torch.compile(module, backend="mlcc")
    check(function, module, torch.randn(4, 3, 3), torch.tensor([4, 2, 1]))


def test_calls() -> None:
    """What is not generated: projections, autocast, float16, gradients."""
    x = torch.randn(4, 2, 3)
    projected, gru = nn.LSTM(3, 5, proj_size=2), nn.GRU(3, 5)
    check(torch.compile(projected, backend="mlcc"), projected, x)
    with torch.autocast("cpu"):
        check(torch.compile(gru, backend="mlcc"), gru, x)
    half = nn.GRU(3, 5).half()
    check(torch.compile(half, backend="mlcc"), half, x.half())
    with torch.enable_grad():
        for make in KINDS.values():
            module = make(3, 5)
            gradients = []
            for function in (module, torch.compile(module, backend="mlcc")):
                module.zero_grad()
                function(x)[0].square().sum().backward()
                gradients.append([one.grad.clone() for one in module.parameters()])
            torch.testing.assert_close(gradients[0], gradients[1])


def test_errors_are_eagers() -> None:
    module = nn.GRU(3, 5)
    function = torch.compile(module, backend="mlcc")
    for shape in ((0, 2, 3), (4, 2, 2)):
        with pytest.raises(RuntimeError) as expected:
            module(torch.randn(shape))
        with pytest.raises(RuntimeError) as found:
            function(torch.randn(shape))
        assert str(expected.value) in str(found.value)


def test_other_backends_do_not_look_into_them() -> None:
    function = torch.compile(nn.GRU(3, 5), backend="eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported):
        function(torch.randn(4, 2, 3))
