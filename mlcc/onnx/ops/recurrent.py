"""RNN, GRU and LSTM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from mlcc._errors import Error
from mlcc.onnx.program import Node
from mlcc.onnx.registry import op

Activation = Callable[[Tensor], Tensor]

# Name in lower case -> function of x, alpha and beta, and the two's defaults.
_ACTIVATIONS: dict[str, tuple[Callable[[Tensor, float, float], Tensor], float, float]] = {
    "relu": (lambda x, a, b: torch.relu(x), 0, 0),
    "tanh": (lambda x, a, b: torch.tanh(x), 0, 0),
    "sigmoid": (lambda x, a, b: torch.sigmoid(x), 0, 0),
    "affine": (lambda x, a, b: a * x + b, 1.0, 0.0),
    "leakyrelu": (lambda x, a, b: F.leaky_relu(x, a), 0.01, 0),
    "thresholdedrelu": (lambda x, a, b: torch.where(x > a, x, 0.0), 1.0, 0),
    "scaledtanh": (lambda x, a, b: a * torch.tanh(b * x), 1.0, 1.0),
    "hardsigmoid": (lambda x, a, b: torch.clamp(a * x + b, 0, 1), 0.2, 0.5),
    "elu": (lambda x, a, b: F.elu(x, a), 1.0, 0),
    "softsign": (lambda x, a, b: F.softsign(x), 0, 0),
    "softplus": (lambda x, a, b: F.softplus(x), 0, 0),
}


def _clipped(x: Tensor, node: Node) -> Tensor:
    limit = node.get("clip")
    return x if limit is None else torch.clamp(x, -limit, limit)


def _activation(node: Node, index: int, default: str) -> Activation:
    names = node.get("activations") or []
    name = (names[index] if index < len(names) else default).lower()
    if name not in _ACTIVATIONS:
        raise Error(f"onnx: {node.op} {node.name!r}: activation {name!r} is not known")
    function, alpha, beta = _ACTIVATIONS[name]
    alphas, betas = node.get("activation_alpha") or [], node.get("activation_beta") or []
    a = alphas[index] if index < len(alphas) else alpha
    b = betas[index] if index < len(betas) else beta
    return lambda x: function(_clipped(x, node), a, b)


def _order(gates: Tensor, order: tuple[int, ...]) -> Tensor:
    """Rows of gates as torch has them."""
    parts = gates.chunk(len(order), 0)
    return torch.cat([parts[i] for i in order])


class _Direction:
    """Weights of one direction."""

    def __init__(
        self, w: Tensor, r: Tensor, b: Tensor | None, gates: int, k: int, backward: bool
    ) -> None:
        self.w, self.r, self.k, self.backward = w[k], r[k], k, backward
        self.hidden = r.shape[2]
        zero = w.new_zeros(gates * self.hidden)
        self.w_bias, self.r_bias = (zero, zero) if b is None else b[k].chunk(2)


Step = Callable[[Tensor, list[Tensor]], list[Tensor]]


def _run(
    x: Tensor, states: list[Tensor], lengths: Tensor | None, backward: bool, step: Step
) -> tuple[Tensor, Any]:
    """`step` over the first axis of `x`; past an item's length its states stay and its results are zero."""
    count, results = x.shape[0], []
    places = range(count - 1, -1, -1) if backward else range(count)
    for t in places:
        new = step(x[t], states)
        result = new[0]
        if lengths is not None:
            active = (lengths > t).unsqueeze(1)
            result = torch.where(active, result, 0)
            new = [
                torch.where(active, after, before)
                for after, before in zip(new, states, strict=True)
            ]
        states = new
        results.append(result)
    if backward:
        results.reverse()
    return torch.stack(results), states


def _recur(
    node: Node,
    x: Tensor,
    weights: tuple[Tensor, Tensor, Tensor | None],
    lengths: Tensor | None,
    initial: list[Tensor | None],
    gates: int,
    make_step: Callable[[_Direction], Step],
) -> tuple[Tensor, ...]:
    w, r, b = weights
    batch_first = bool(node.get("layout", 0))
    if batch_first:
        x = x.transpose(0, 1)
        initial = [None if state is None else state.transpose(0, 1) for state in initial]
    kind = node.get("direction", "forward")
    found, finals = [], []
    for k in range(w.shape[0]):
        direction = _Direction(w, r, b, gates, k, kind == "reverse" or k == 1)
        states = [x.new_zeros(x.shape[1], direction.hidden) if s is None else s[k] for s in initial]
        y, last = _run_direction(node, x, states, lengths, direction, make_step)
        found.append(y)
        finals.append(last)
    y = torch.stack(found, 1)  # [time, directions, batch, hidden]
    ends = [torch.stack(items) for items in zip(*finals, strict=True)]
    if batch_first:
        y, ends = y.permute(2, 0, 1, 3), [end.transpose(0, 1) for end in ends]
    return (y, *ends)


def _run_direction(
    node: Node,
    x: Tensor,
    states: list[Tensor],
    lengths: Tensor | None,
    direction: _Direction,
    make_step: Callable[[_Direction], Step],
) -> tuple[Tensor, list[Tensor]]:
    plain = lengths is None and node.get("clip") is None and not node.get("activations")
    if plain and x.dtype in (torch.float32, torch.float64):
        run = _LIBRARY.get(node.op)
        if run is not None and run[0](node):
            rows = torch.flip(x, [0]) if direction.backward else x
            y, last = run[1](rows, states, direction)
            return (torch.flip(y, [0]) if direction.backward else y), last
    return _run(x, states, lengths, direction.backward, make_step(direction))


def _library_rnn(x: Tensor, states: list[Tensor], d: _Direction) -> tuple[Tensor, list[Tensor]]:
    parts = [d.w, d.r, d.w_bias, d.r_bias]
    y, h = torch.rnn_tanh(x, states[0].unsqueeze(0), parts, True, 1, 0.0, False, False, False)
    return y, [h[0]]


def _library_gru(x: Tensor, states: list[Tensor], d: _Direction) -> tuple[Tensor, list[Tensor]]:
    parts = [_order(part, (1, 0, 2)) for part in (d.w, d.r, d.w_bias, d.r_bias)]
    y, h = torch.gru(x, states[0].unsqueeze(0), parts, True, 1, 0.0, False, False, False)
    return y, [h[0]]


def _library_lstm(x: Tensor, states: list[Tensor], d: _Direction) -> tuple[Tensor, list[Tensor]]:
    parts = [_order(part, (0, 2, 3, 1)) for part in (d.w, d.r, d.w_bias, d.r_bias)]
    begin = [state.unsqueeze(0).contiguous() for state in states]
    y, h, c = torch.lstm(x, begin, parts, True, 1, 0.0, False, False, False)
    return y, [h[0], c[0]]


_LIBRARY: dict[str, tuple[Callable[[Node], bool], Callable[..., tuple[Tensor, list[Tensor]]]]] = {
    "RNN": (lambda node: True, _library_rnn),
    "GRU": (lambda node: bool(node.get("linear_before_reset", 0)), _library_gru),
    "LSTM": (
        lambda node: not node.get("input_forget", 0) and not (node.inputs[7:] and node.inputs[7]),
        _library_lstm,
    ),
}


@op("RNN")
def rnn(
    node: Node, x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, lengths: Tensor | None = None,
    h: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    def make_step(d: _Direction) -> Step:
        f = _activation(node, d.k, "Tanh")

        def step(row: Tensor, states: list[Tensor]) -> list[Tensor]:
            return [f(F.linear(row, d.w, d.w_bias) + F.linear(states[0], d.r, d.r_bias))]

        return step

    return _recur(node, x, (w, r, b), lengths, [h], 1, make_step)


@op("GRU")
def gru(
    node: Node, x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, lengths: Tensor | None = None,
    h: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    late = bool(node.get("linear_before_reset", 0))

    def make_step(d: _Direction) -> Step:
        f, g = _activation(node, 2 * d.k, "Sigmoid"), _activation(node, 2 * d.k + 1, "Tanh")
        r_zr, r_h = d.r[: 2 * d.hidden], d.r[2 * d.hidden :]
        bias_zr, bias_h = d.r_bias[: 2 * d.hidden], d.r_bias[2 * d.hidden :]

        def step(row: Tensor, states: list[Tensor]) -> list[Tensor]:
            before = states[0]
            given = F.linear(row, d.w, d.w_bias)
            gates = f(given[:, : 2 * d.hidden] + F.linear(before, r_zr, bias_zr))
            z, reset = gates.chunk(2, 1)
            inner = (
                reset * F.linear(before, r_h, bias_h)
                if late
                else F.linear(reset * before, r_h, bias_h)
            )
            new = g(given[:, 2 * d.hidden :] + inner)
            return [(1 - z) * new + z * before]

        return step

    return _recur(node, x, (w, r, b), lengths, [h], 3, make_step)


@op("LSTM")
def lstm(
    node: Node, x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, lengths: Tensor | None = None,
    h: Tensor | None = None, c: Tensor | None = None, p: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    def make_step(d: _Direction) -> Step:
        f, g, out = (
            _activation(node, 3 * d.k + i, n) for i, n in enumerate(("Sigmoid", "Tanh", "Tanh"))
        )
        peep_i, peep_o, peep_f = (0.0, 0.0, 0.0) if p is None else p[d.k].chunk(3)

        def step(row: Tensor, states: list[Tensor]) -> list[Tensor]:
            before, cell = states
            gates = F.linear(row, d.w, d.w_bias) + F.linear(before, d.r, d.r_bias)
            i, o, forget, new = gates.chunk(4, 1)
            i = f(i + peep_i * cell)
            forget = 1 - i if node.get("input_forget", 0) else f(forget + peep_f * cell)
            after = forget * cell + i * g(new)
            return [f(o + peep_o * after) * out(after), after]

        return step

    return _recur(node, x, (w, r, b), lengths, [h, c], 4, make_step)
