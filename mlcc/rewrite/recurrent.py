"""nn.LSTM, GRU and RNN for inference: a product for the inputs of all steps, and a scan whose body is a step.

torch takes them apart step by step, so that a length is fixed and a trace of 500 steps has thousands of nodes, or into
calls of a library that lay the weights out in each call; and Dynamo does not look into these modules at all. Here the
products of all inputs with their weights are one, and the body of the scan multiplies the state and computes the gates.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from mlcc.torch_private import dispatch

Tensors = Sequence[torch.Tensor]


class Layer(NamedTuple):
    """The weights of a direction of a layer: of inputs and of the state, [gates * hidden, ...], and their biases."""

    inputs: torch.Tensor
    state: torch.Tensor
    input_bias: torch.Tensor | None = None
    state_bias: torch.Tensor | None = None


class Cell(NamedTuple):
    """A kind of recurrent layer.

    `step` gives the state after a step from the state before, what inputs add to the gates, the product of the state
    and its weights, and the bias of the latter that cannot be added to the inputs before the steps.
    """

    num_states: int
    num_late: int  # gates, at the end, whose bias of the state is added in the step
    step: Callable[[Tensors, torch.Tensor, torch.Tensor, torch.Tensor | None], list[torch.Tensor]]


def _lstm_step(
    state: Tensors, inputs: torch.Tensor, product: torch.Tensor, late: torch.Tensor | None
) -> list[torch.Tensor]:
    del late
    i, f, g, o = (inputs + product).chunk(4, -1)
    cell = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return [o.sigmoid() * cell.tanh(), cell]


def _gru_step(
    state: Tensors, inputs: torch.Tensor, product: torch.Tensor, late: torch.Tensor | None
) -> list[torch.Tensor]:
    reset, update, new = inputs.chunk(3, -1)
    state_reset, state_update, state_new = product.chunk(3, -1)
    if late is not None:
        state_new = state_new + late
    new = (new + (reset + state_reset).sigmoid() * state_new).tanh()
    return [(state[0] - new) * (update + state_update).sigmoid() + new]


def _simple_step(activation: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    def step(
        state: Tensors, inputs: torch.Tensor, product: torch.Tensor, late: torch.Tensor | None
    ) -> list[torch.Tensor]:
        del state, late
        return [activation(inputs + product)]

    return step


CELLS = {
    "lstm": Cell(2, 0, _lstm_step),
    "gru": Cell(1, 1, _gru_step),
    "rnn_tanh": Cell(1, 0, _simple_step(torch.tanh)),
    "rnn_relu": Cell(1, 0, _simple_step(torch.relu)),
}


def is_taken(module: torch.nn.Module) -> bool:
    """Whether a module's call is one of the ops below as `decompositions` take it, whatever its input."""
    if type(module) not in (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN):
        return False
    weights = list(module.parameters())
    is_exact = not (module.training and module.dropout) and not module.proj_size
    return is_exact and not torch.is_grad_enabled() and _fits(weights)


def decompositions() -> dict[str, Callable[..., Any]]:
    """What computes each op, by its name; NotImplemented where it does not."""
    return {name: functools.partial(_decompose, cell) for name, cell in CELLS.items()}


def _decompose(
    cell: Cell,
    x: torch.Tensor,
    initial: torch.Tensor | Tensors,
    weights: Tensors,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    states = [initial] if isinstance(initial, torch.Tensor) else list(initial)
    tensors = [x, *states, *weights]
    if (train and dropout) or not _fits(tensors) or x.shape[-1] == 0:
        return NotImplemented
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return NotImplemented
    if x.shape[1 if batch_first else 0] == 0:
        raise RuntimeError("Expected sequence length to be larger than 0 in RNN")
    each = 4 if has_biases else 2
    if len(weights) != each * num_layers * (2 if bidirectional else 1):  # with projections
        return NotImplemented
    layers = [Layer(*weights[i : i + each]) for i in range(0, len(weights), each)]
    return run(cell, x, states, layers, bidirectional, batch_first)


def _fits(tensors: Tensors) -> bool:
    """Whether all that is computed has one dtype, of those whose products are generated."""
    dtype = tensors[0].dtype
    is_one = all(one.dtype == dtype and one.device.type == "cpu" for one in tensors)
    return (
        is_one
        and dtype in (torch.float32, torch.float64, torch.bfloat16)
        and not torch.is_autocast_enabled("cpu")
    )


def run(
    cell: Cell,
    x: torch.Tensor,
    initial: Tensors,
    layers: Sequence[Layer],
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, ...]:
    """The outputs of all steps, and each state after the last step of each layer and direction.

    `x` is [length, batch, width], `initial` each [layers * directions, batch, hidden].
    """
    directions = 2 if bidirectional else 1
    x = x.transpose(0, 1) if batch_first else x
    last: list[list[torch.Tensor]] = []
    for number in range(0, len(layers), directions):
        outputs = []
        for place in range(number, number + directions):
            # In strides of its own, as what a step gives: contiguous() leaves those of one number.
            begin = [
                states[place].clone(memory_format=torch.contiguous_format) for states in initial
            ]
            after, steps = _one_direction(cell, x, begin, layers[place], place > number)
            last.append(after)
            outputs.append(steps)
        x = torch.cat(outputs, -1) if bidirectional else outputs[0]
    stacked = (torch.stack(states) for states in zip(*last, strict=True))
    return x.transpose(0, 1) if batch_first else x, *stacked


def _one_direction(
    cell: Cell, x: torch.Tensor, initial: list[torch.Tensor], layer: Layer, backward: bool
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """The states after the last step, and the first of them after each step."""
    early, late = _biases(cell, layer)
    inputs = functional.linear(x.flip(0) if backward else x, layer.inputs, early)

    def step(*operands: torch.Tensor) -> list[torch.Tensor]:
        states, (row, weights, *rest) = operands[: cell.num_states], operands[cell.num_states :]
        product = functional.linear(states[0], weights)
        after = cell.step(states, row, product, rest[0] if rest else None)
        return [*after, after[0].clone()]

    others = [layer.state] if late is None else [layer.state, late]
    *after, steps = dispatch.scan(step, initial, [inputs], others)
    return after, steps.flip(0) if backward else steps


def _biases(cell: Cell, layer: Layer) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """What is added to the inputs of all steps, and what in each step."""
    if layer.input_bias is None or layer.state_bias is None:
        return None, None
    hidden = layer.state.shape[1]
    num_early = layer.state.shape[0] - cell.num_late * hidden
    if not cell.num_late:
        return layer.input_bias + layer.state_bias, None
    early = functional.pad(layer.state_bias[:num_early], (0, cell.num_late * hidden))
    return layer.input_bias + early, layer.state_bias[num_early:]
