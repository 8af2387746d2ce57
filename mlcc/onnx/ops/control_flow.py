"""If, Loop and Scan; sequences and optionals, which are lists and None."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mlcc._errors import Error, SideEffectError
from mlcc.onnx.ops.shapes import normalized
from mlcc.onnx.program import STORE, Graph, Node, Scope, as_tensor, device_of
from mlcc.onnx.registry import op
from mlcc.onnx.sizes import Sizes
from mlcc.torch_private import control_flow, trace_state


def _is_tracing(*values: Any) -> bool:
    return bool(torch.compiler.is_compiling()) or any(
        isinstance(value, Tensor) and trace_state.is_of_trace(value) for value in values
    )


def _known(node: Node, index: int, value: Any) -> Any:
    """The number that input `index` is, or None where data has it."""
    if isinstance(value, Sizes):
        return value.number
    if index in node.constants:
        return node.constants[index].number
    return None


@op("If", sizes=True, scope=True)
def if_(node: Node, scope: Scope, condition: Any) -> tuple[Any, ...]:
    chosen = _known(node, 0, condition)
    then, otherwise = node.get("then_branch"), node.get("else_branch")
    if chosen is None and not (_is_tracing(condition) and _may_be_region(then, otherwise)):
        chosen = bool(condition.reshape(()).item())
    if chosen is not None:
        return tuple((then if chosen else otherwise).run(dict(scope)))

    def run_then() -> tuple[Any, ...]:
        return _own_tensors(then.run(dict(scope)))

    def run_otherwise() -> tuple[Any, ...]:
        return _own_tensors(otherwise.run(dict(scope)))

    return tuple(torch.cond(condition.reshape(()), run_then, run_otherwise, ()))


# Nodes of a branch up to which both are traced. In larger ones the branch that is not taken tends not to fit the sizes
# of the arguments, as where a file holds one network for each sample rate; such a graph breaks at the condition.
_MOST_NODES_OF_A_REGION = 32


def _may_be_region(*branches: Graph) -> bool:
    if torch.compiler.is_exporting():
        return True
    nodes = [node for branch in branches for node in branch.nodes]
    is_nested = any(
        isinstance(value, Graph) for node in nodes for value in node.attributes.values()
    )
    return (
        not is_nested and max(len(branch.nodes) for branch in branches) <= _MOST_NODES_OF_A_REGION
    )


def _own_tensors(values: list[Any]) -> tuple[Any, ...]:
    """Regions of torch may not return what they get."""
    return tuple(as_tensor(value).clone() for value in values)


@op("Loop", sizes=True, scope=True)
def loop(node: Node, scope: Scope, trips: Any, condition: Any, *carried: Any) -> tuple[Any, ...]:
    body: Graph = node.get("body")
    most = None if trips is None else _known(node, 0, trips)
    is_tracing = _is_tracing(trips, condition, *carried)
    if most is None and trips is not None and not is_tracing:
        most = int(trips.item())
    on = True if condition is None else _known(node, 1, condition)
    if on is None and not is_tracing:
        on = bool(condition.item())
    has_scans = len(body.outputs) > 1 + len(carried)
    is_known = on is not None and (most is not None or trips is None)
    if is_known and not (is_tracing and _may_stop(body, most)):
        return _unrolled(body, scope, most, on, carried)
    if not has_scans:
        return _while(body, scope, trips, condition, carried)
    if not torch.compiler.is_exporting():
        # Made here, since it loads Dynamo.
        apart = torch.compiler.disable(_apart_from_traces)
        found: tuple[Any, ...] = apart(body, scope, trips, condition, carried)
        return found
    if not (is_known and _stops_by_sizes(body, scope, carried)):
        raise Error(f"onnx: Loop {node.name!r}: how often it runs is data, and it collects values")
    return _unrolled(body, scope, most, on, carried)


def _unrolled(
    body: Graph, scope: Scope, most: Any, on: Any, carried: tuple[Any, ...]
) -> tuple[Any, ...]:
    scans: list[list[Tensor]] = [[] for _ in range(len(body.outputs) - 1 - len(carried))]
    values, count = list(carried), 0
    while on and (most is None or count < most):
        results = _step(body, scope, count, values)
        kept, *values = results[: 1 + len(carried)]
        for collected, value in zip(scans, results[1 + len(carried) :], strict=True):
            collected.append(as_tensor(value))
        on = bool(kept.number if isinstance(kept, Sizes) else kept.item())
        count += 1
    return (*values, *[_stacked(items) for items in scans])


def _apart_from_traces(
    body: Graph, scope: Scope, trips: Any, condition: Any, carried: tuple[Any, ...]
) -> tuple[Any, ...]:
    """A graph of Dynamo's breaks here, and mlcc.jit runs the model eagerly."""
    if _is_tracing(*carried):  # a trace of mlcc.jit, which runs what raises eagerly
        raise SideEffectError("a Loop collects values, and how often it runs is data")
    most = None if trips is None else _number(trips)
    on = True if condition is None else bool(_number(condition))
    return _unrolled(body, scope, most, on, carried)


def _number(value: Any) -> Any:
    return value.number if isinstance(value, Sizes) else value.item()


def _stops_by_sizes(body: Graph, scope: Scope, carried: tuple[Any, ...]) -> bool:
    """Whether a step computes from sizes whether there is another one."""
    return isinstance(_step(body, scope, 0, list(carried))[0], Sizes)


def _may_stop(body: Graph, most: Any) -> bool:
    """Whether the body computes its condition from data."""
    if most is None:
        return True
    name = body.outputs[0]
    while True:
        if name == body.inputs[1] or isinstance(body.constants.get(name), Sizes):
            return False
        maker = next((node for node in body.nodes if name in node.outputs), None)
        if maker is None or maker.op not in ("Identity", "Cast"):
            return True
        name = maker.inputs[0]


def _step(body: Graph, scope: Scope, count: Any, values: list[Any]) -> list[Any]:
    inner = dict(scope)
    number = count if isinstance(count, Tensor) else Sizes([count], 0)
    inner.update(zip(body.inputs, (number, Sizes([True], 0, torch.bool), *values), strict=False))
    return body.run(inner)


def _stacked(items: list[Tensor]) -> Tensor:
    return torch.stack(items) if items else torch.zeros(0)


def _while(
    body: Graph, scope: Scope, trips: Any, condition: Any, carried: tuple[Any, ...]
) -> tuple[Any, ...]:
    device = device_of(carried)
    first = torch.zeros((), dtype=torch.int64, device=device)
    on = (
        torch.ones((), dtype=torch.bool, device=device)
        if condition is None
        else as_tensor(condition).reshape(())
    )
    most = None if trips is None else as_tensor(trips, device).reshape(())

    def goes_on(count: Tensor, kept: Tensor, *values: Any) -> Tensor:
        return kept.clone() if most is None else torch.logical_and(kept, count < most)

    def step(count: Tensor, kept: Tensor, *values: Any) -> tuple[Tensor, ...]:
        results = _own_tensors(_step(body, scope, count, list(values)))
        return count + 1, results[0].reshape(()), *results[1:]

    state = tuple(as_tensor(value, device).clone() for value in carried)
    return tuple(control_flow.while_loop(goes_on, step, (first, on.clone(), *state)))[2:]


@op("Scan", scope=True)
def scan_of_batches(node: Node, scope: Scope, lengths: Any, *values: Tensor) -> tuple[Any, ...]:
    """Version 8: the first axis is the batch, and each of it has a length."""
    count = node.get("num_scan_inputs")
    states, inputs = values[: len(values) - count], values[len(values) - count :]
    found = []
    for batch in range(values[0].shape[0]):
        steps = inputs[0].shape[1] if lengths is None else int(lengths[batch].item())
        rows = [x[batch, :steps] for x in inputs]
        found.append(_scan(node, scope, [state[batch] for state in states], rows, steps))
    return tuple(torch.stack(items) for items in zip(*found, strict=True))


@op("Scan", since=9, scope=True)
def scan(node: Node, scope: Scope, *values: Tensor) -> tuple[Any, ...]:
    count = node.get("num_scan_inputs")
    states, inputs = list(values[: len(values) - count]), values[len(values) - count :]
    axes = node.get("scan_input_axes", [0] * count)
    directions = node.get("scan_input_directions", [0] * count)
    rows = []
    for x, axis, backward in zip(inputs, axes, directions, strict=True):
        x = x.movedim(normalized(axis, x.dim()), 0)
        rows.append(torch.flip(x, [0]) if backward else x)
    return _scan(node, scope, states, rows, rows[0].shape[0])


def _scan(
    node: Node, scope: Scope, states: list[Any], rows: list[Tensor], steps: int
) -> tuple[Any, ...]:
    body: Graph = node.get("body")
    collected: list[list[Tensor]] = [[] for _ in range(len(body.outputs) - len(states))]
    for i in range(steps):
        inner = dict(scope)
        inner.update(zip(body.inputs, (*states, *[x[i] for x in rows]), strict=True))
        results = body.run(inner)
        count = len(states)
        states = results[:count]
        for items, value in zip(collected, results[count:], strict=True):
            items.append(as_tensor(value))
    axes = node.get("scan_output_axes", [0] * len(collected))
    backward = node.get("scan_output_directions", [0] * len(collected))
    outputs = []
    for items, axis, flip in zip(collected, axes, backward, strict=True):
        y = torch.stack(items[::-1] if flip else items)
        outputs.append(y.movedim(0, normalized(axis, y.dim())))
    return (*[as_tensor(state) for state in states], *outputs)


# Sequences.


def _position(node: Node, index: int, value: Any) -> int:
    return int(node.number(index, value))


@op("SequenceConstruct", unsigned=True)
def sequence_construct(node: Node, *values: Tensor) -> list[Tensor]:
    return list(values)


@op("SequenceEmpty")
def sequence_empty(node: Node) -> list[Tensor]:
    return []


@op("SequenceAt", sizes=True, unsigned=True)
def sequence_at(node: Node, items: list[Tensor], position: Any) -> Tensor:
    return items[_position(node, 1, position)]


@op("SequenceInsert", sizes=True, unsigned=True)
def sequence_insert(
    node: Node, items: list[Tensor], value: Any, position: Any = None
) -> list[Tensor]:
    at = len(items) if position is None else _position(node, 2, position)
    at = at + len(items) if at < 0 else at
    return [*items[:at], as_tensor(value), *items[at:]]


@op("SequenceErase", sizes=True, unsigned=True)
def sequence_erase(node: Node, items: list[Tensor], position: Any = None) -> list[Tensor]:
    at = len(items) - 1 if position is None else _position(node, 1, position) % len(items)
    return [*items[:at], *items[at + 1 :]]


@op("SequenceLength")
def sequence_length(node: Node, items: list[Tensor]) -> Sizes:
    return Sizes([len(items)], 0)


@op("ConcatFromSequence", unsigned=True)
def concat_from_sequence(node: Node, items: list[Tensor]) -> Tensor:
    join = torch.stack if node.get("new_axis", 0) else torch.cat
    return join([as_tensor(item) for item in items], node.get("axis"))


@op("SplitToSequence", sizes=True, unsigned=True)
def split_to_sequence(node: Node, x: Any, parts: Any = None) -> list[Tensor]:
    x = as_tensor(x)
    axis = normalized(node.get("axis", 0), x.dim())
    if parts is None:
        pieces = torch.split(x, 1, axis)
        return (
            list(pieces) if node.get("keepdims", 1) else [piece.squeeze(axis) for piece in pieces]
        )
    lengths = node.numbers(1, parts)
    assert lengths is not None
    is_number = parts.rank == 0 if isinstance(parts, Sizes) else parts.dim() == 0
    return list(torch.split(x, lengths[0] if is_number else lengths, axis))


@op("SequenceMap", scope=True, unsigned=True)
def sequence_map(
    node: Node, scope: Scope, items: list[Tensor], *others: Any
) -> tuple[list[Any], ...]:
    body: Graph = node.get("body")
    rows = []
    for i, item in enumerate(items):
        inner: Scope = {STORE: scope[STORE]}
        inner.update(scope)
        rest = [other[i] if isinstance(other, list) else other for other in others]
        inner.update(zip(body.inputs, (item, *rest), strict=True))
        rows.append([as_tensor(value) for value in body.run(inner)])
    return tuple([row[k] for row in rows] for k in range(len(body.outputs)))


@op("Optional", unsigned=True, sizes=True)
def optional(node: Node, value: Any = None) -> Any:
    return value


@op("OptionalHasElement", unsigned=True, sizes=True)
def optional_has_element(node: Node, value: Any = None) -> Sizes:
    return Sizes([value is not None], 0, torch.bool)


@op("OptionalGetElement", unsigned=True, sizes=True)
def optional_get_element(node: Node, value: Any) -> Any:
    return value
