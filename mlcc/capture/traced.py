"""The function of `mlcc.jit` as AOTAutograd traces it, and what it may not do while it is traced."""

from __future__ import annotations

import contextlib
import itertools
import operator
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from mlcc._errors import SideEffectError
from mlcc.capture import code_owners, reach, reads, trace_symbols
from mlcc.capture.calls import CONSTANTS, Call, plain_function
from mlcc.capture.guards import DERIVED, ModuleSnapshot
from mlcc.capture.traced_results import Results
from mlcc.rewrite import recurrent
from mlcc.torch_private import aot, trace_state


def _reinterprets(result: torch.Tensor, given: Sequence[Any]) -> bool:
    """Whether it is a view of a tensor of another dtype, which AOTAutograd of torch 2.13 may give that one's dtype."""
    storage = result.untyped_storage()._cdata
    return any(
        isinstance(one, torch.Tensor)
        and one.dtype != result.dtype
        and one.untyped_storage()._cdata == storage
        for one in given
    )


def _unregistered(module: torch.nn.Module | None) -> str:
    """An attribute that a trace would take for a constant: a tensor to differentiate by, or a number of one element.

    Also where it stands in a list, a tuple or a dict, or is a parameter of a module there.
    """
    for one in module.modules() if module is not None else ():
        registered = {id(value) for value in (*one.parameters(), *one.buffers())}
        for name, value in one.__dict__.items():
            if name in _REGISTERED or (name in DERIVED and recurrent.is_taken(one)):
                continue
            for part in _parts_of(value):
                is_constant = isinstance(part, torch.Tensor) and (
                    part.requires_grad or part.numel() < 2
                )
                if is_constant and id(part) not in registered:
                    return name
    return ""


_REGISTERED = ("_parameters", "_buffers", "_modules")


def _parts_of(value: Any) -> Iterator[Any]:
    """The tensors that a value is or holds: a container, a callable, an object, or a module that is no submodule."""
    if isinstance(value, list | tuple | set):
        for part in value:
            yield from _parts_of(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from _parts_of(part)
    elif isinstance(value, torch.Tensor):
        yield value
    else:
        reached = reach.Reached(code_owners.is_user_code).add(value)
        yield from reached.tensors
        for module in reached.modules:
            yield from (*module.parameters(), *module.buffers())


def _is_same_tree(found: tuple[list[Any], Any], leaves: list[Any], structure: Any) -> bool:
    """Whether the arguments still hold the leaves that they were made of."""
    if isinstance(structure, int):  # leaves only
        return True
    return found[1] == structure and all(map(operator.is_, found[0], leaves))


class _TensorState:
    """What a function may do to a tensor that no graph records: its `data`, `grad`, `requires_grad` and attributes.

    And its shape: where one input gets another shape and another one is written, AOTAutograd of torch 2.13 mistakes the
    one for the other.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self._before = self._now()

    def change(self) -> str:
        """Which part is another one now, or ''."""
        names = ("data", "shape", "grad", "requires_grad", "attributes")
        changed = (a != b for a, b in zip(self._before, self._now(), strict=True))
        return next((name for name, differs in zip(names, changed, strict=True) if differs), "")

    def _now(self) -> tuple[Any, ...]:
        tensor = self._tensor
        grad = id(tensor.grad) if tensor.is_leaf else 0
        storage = tensor.untyped_storage()._cdata, trace_state.has_other_storage(tensor)
        layout = (*tensor.shape, *tensor.stride())
        return storage, layout, grad, tensor.requires_grad, tuple(tensor.__dict__)


class TracedModule(torch.nn.Module):
    """The function as AOTAutograd traces it: flat inputs that vary to a flat list of tensors and symbolic numbers."""

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        own: torch.nn.Module | None,
        call: Call,
        varying: list[int],
        symbols: trace_symbols.Symbols,
    ) -> None:
        super().__init__()
        self._module = (own,)
        if own is not None:
            self.traced = own
        self._name = name
        self._call_function = (function,)  # in a tuple: a module would be registered twice
        self._structure = call.structure
        self._fixed = dict(call.fixed)
        self._constants = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in call.leaves]
        self._varying = varying
        self._repeated = call.repeated
        # Watched once, in the first of AOTAutograd's runs.
        self._types = trace_symbols.TypeQuestions(symbols)
        self.outside = reads.OutsideValues(plain_function(function), name, self._types)
        self._checked = False
        self.results = Results([], None, [])

    def forward(self, *values: Any) -> list[Any]:
        """Run the function on fakes."""
        leaves = list(self._constants)
        for place, value in zip(self._varying, values, strict=True):
            leaves[place] = value
        for place, first in self._repeated.items():
            leaves[place] = leaves[first]
        args, kwargs = tuple(leaves), {}
        if not isinstance(self._structure, int):
            args, kwargs = trace_state.unflatten(leaves, self._structure)
        name = _unregistered(self._module[0])
        if name:
            raise SideEffectError(
                f"attribute {name} is a tensor that changes; register it as a parameter or buffer"
            )
        before = ModuleSnapshot(self._module[0])
        states = [_TensorState(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]
        for function in (leaf for leaf in leaves if isinstance(leaf, types.FunctionType)):
            self.outside.note_argument(function)
        try:
            with self._watch([*leaves, *self.parameters()]):
                result = self._call_function[0](*args, **kwargs, **self._fixed)
        finally:
            changed = before.restore()
        if changed:
            raise SideEffectError(f"it changes the module's {changed}")
        for part in filter(None, (state.change() for state in states)):
            raise SideEffectError(f"it changes {part} of an argument")
        if not _is_same_tree(trace_state.flatten((args, kwargs)), leaves, self._structure):
            raise SideEffectError("it changes a list or dict that it was given")
        return self._flatten_result(result, leaves)

    @contextlib.contextmanager
    def _watch(self, inputs: list[Any]) -> Iterator[None]:
        if self._checked:
            with self._types.watch_again():
                yield
            return
        self._checked = True
        with (
            self.outside.watch(),
            reads.TensorReads(inputs),
            reads.ParameterReads(self._name),
        ):
            yield

    def _flatten_result(self, result: Any, inputs: list[Any]) -> list[Any]:
        # A size is a leaf here: torch's pytree would give a tuple back for it.
        leaves, structure = trace_state.flatten(result, lambda v: isinstance(v, torch.Size))
        ranks = [len(leaf) if isinstance(leaf, torch.Size) else None for leaf in leaves]
        results: list[Any] = []
        places: list[tuple[bool, Any]] = []
        given = [*inputs, *self.parameters()]
        for leaf in itertools.chain.from_iterable(
            leaf if isinstance(leaf, torch.Size) else (leaf,) for leaf in leaves
        ):
            is_leaf = isinstance(leaf, torch.Tensor) and leaf.requires_grad and leaf.is_leaf
            if is_leaf and not any(leaf is one for one in given):
                raise SideEffectError("a result is a new leaf that requires gradients")
            if isinstance(leaf, torch.Tensor) and _reinterprets(leaf, given):
                raise SideEffectError("a result is the memory of an argument as another dtype")
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad and aot.may_overlap(leaf):
                raise SideEffectError("a result with a gradient overlaps itself")
            if isinstance(leaf, torch.Tensor | torch.SymInt | torch.SymFloat):
                places.append((True, len(results)))
                results.append(leaf)
            elif isinstance(leaf, CONSTANTS) or type(leaf) in (int, float, complex):
                places.append((False, leaf))
            else:
                raise SideEffectError(f"a result is a {type(leaf).__name__}")
        self.results = Results(places, structure, ranks)
        return results
