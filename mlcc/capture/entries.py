"""What `mlcc.jit` keeps of a trace: when it holds, and how it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mlcc._load import load_core
from mlcc.capture import changes
from mlcc.capture.calls import Call, Description
from mlcc.capture.compiled_graph import CompiledGraph
from mlcc.capture.gradients import Gradient
from mlcc.capture.guards import (
    ModuleState,
    SizeGuards,
    all_of,
    always,
    is_plain,
    keep_layouts,
)
from mlcc.capture.held_values import HeldValues
from mlcc.capture.traced_results import Results
from mlcc.torch_private import stance


class Entry:
    """One trace: when it holds, and how it runs (None: the original function)."""

    __slots__ = (
        *("description", "difference", "facts", "guard", "held", "knows_stance", "later"),
        *("returns_views", "run", "steals", "written"),
    )

    def __init__(self, call: Call) -> None:
        self.description = Description(call)
        # Why the guard fails for a call, in words: of its leaves, described, by their names.
        self.difference: Callable[[Call, list[str]], str] | None = None
        self.facts: dict[str, Any] | None = None  # for the core's CallDispatch
        self.knows_stance = False  # the dispatch, which was told before Dynamo was imported if not
        # What gives the facts as soon as the graph is compiled.
        self.later: tuple[CompiledGraph, Callable[[], dict[str, Any] | None]] | None = None
        self.guard: Callable[[list[Any]], bool] = always
        self.run: Callable[[list[Any]], Any] | None = None
        # Which leaves the function writes; None if it writes nothing, neither leaves nor a module's tensors.
        self.written: list[int] | None = None
        # What it reads beside the leaves: a module's tensors, constants of the trace.
        self.held: list[torch.Tensor] = []
        # Views of arguments with symbolic sizes: AOTAutograd makes them anew as if those began where their memory does.
        self.returns_views = False
        self.steals = False  # option `weights`

    def has_other_facts(self) -> bool:
        """Whether the core's CallDispatch could know more than it does: of the graph, or of Dynamo's stance."""
        if self.facts is None:
            return self.later is not None and self.later[0].is_ready
        return not self.knows_stance and stance.as_global() is not None

    def take_facts(self) -> dict[str, Any] | None:
        """The facts, if there are any by now."""
        if self.facts is None and self.later is not None:
            self.facts, self.later = self.later[1](), None
        return self.facts

    def facts_by_default(self) -> dict[str, Any]:
        """The facts, for calls under the default stance."""
        assert self.facts is not None
        of_stance = stance.as_global()
        self.knows_stance = of_stance is not None
        guards = {"absent": [stance.absent()]} if of_stance is None else {"globals": [of_stance]}
        return self.facts | {name: [*rows, *self.facts[name]] for name, rows in guards.items()}

    def reason_to_run_eagerly(self, leaves: Sequence[Any]) -> str:
        """Why these arguments are not for the trace, or ''."""
        if self.written is not None and _share_memory(leaves, self.held):
            return "an argument that may be written overlaps another one or what the function holds"
        if autograd_sees(leaves, self.written):
            return "an argument is written that requires gradients"
        if self.returns_views and any(
            isinstance(leaf, torch.Tensor) and leaf.storage_offset() for leaf in leaves
        ):
            return "a result is a view of an argument that begins inside of its memory"
        return ""


@dataclass(frozen=True)
class Trace:
    """What a trace found out; plain data but for the code."""

    varying: list[int]  # leaves that are inputs of the graph, after the module's tensors
    sizes: SizeGuards
    results: Results
    # Which leaves the function writes; None if it writes nothing, neither leaves nor a module's tensors.
    written: list[int] | None
    returns_views: bool
    # The compiled graph where that is all there is, but for what its gradient needs.
    graph: CompiledGraph | None
    gradient: Gradient | None
    # AOTAutograd's wrapper; None in another process.
    wrapped: Callable[..., Any] | None

    def run(self, parameters: list[torch.Tensor]) -> Callable[[list[Any]], Any] | None:
        """The function of a call's leaves; None where only the core's dispatch has it."""
        results, varying = self.results, self.varying
        if self.graph is None or self.gradient is not None:
            wrapped = self.wrapped
            if wrapped is None:
                return None
            return lambda leaves: results.restore(wrapped(*(leaves[place] for place in varying)))
        graph, single = self.graph, results.is_single

        def run(leaves: list[Any]) -> Any:
            values = graph([*parameters, *(leaves[place] for place in varying)])
            return values[0] if single else results.restore(values)

        return run


def entry_of(
    call: Call,
    trace: Trace,
    module: ModuleState,
    held: HeldValues,
    tensors: list[torch.Tensor],
) -> Entry:
    """The entry of a trace, which reads `tensors` beside its inputs; its facts are for a call like this one."""
    entry = Entry(call)
    sizes = trace.sizes
    entry.difference = _difference_from(entry.description, sizes, module, held)
    entry.guard = all_of(sizes.holds(), module.holds(), held.holds(), keep_layouts(tensors))
    entry.held = [*module.parameters, *tensors]
    entry.returns_views = trace.returns_views
    entry.written = trace.written
    entry.run = trace.run(module.parameters)
    graph = trace.graph
    if graph is not None and not autograd_sees(call.leaves, entry.written):
        entry.later = graph, lambda: _facts_for_dispatch(trace, module, held)
        if entry.has_other_facts():
            entry.take_facts()
    return entry


def run_in_core(entry: Entry, call: Call, dynamic: bool) -> Callable[[list[Any]], Any] | None:
    """An entry of the core's dispatch as a function of a call's leaves; None if the core cannot have it.

    For any stance. The function returns NotImplemented where the core does not take a call.
    """
    dispatch = load_core().CallDispatch()
    leaves = call.leaves
    if entry.facts is None or not dispatch.add(tuple(leaves), {}, leaves, dynamic, entry.facts):
        return None
    return lambda leaves: dispatch(*leaves)


def _difference_from(
    then: Description, sizes: SizeGuards, module: ModuleState, held: HeldValues
) -> Callable[[Call, list[str]], str]:
    """What says why a call of the same structure is none of a trace's."""

    def difference(call: Call, names: list[str]) -> str:
        failed = then.failure(Description(call), names, sizes.failing(call.leaves))
        return failed or held.change() or changes.of_module(module)

    return difference


def no_dispatch(*args: Any, **kwargs: Any) -> Any:
    del args, kwargs
    return NotImplemented


def _facts_for_dispatch(
    trace: Trace, module: ModuleState, held: HeldValues
) -> dict[str, Any] | None:
    """What the core's CallDispatch has to know of an entry; None if a guard has no counterpart there."""
    sizes, results, graph = trace.sizes, trace.results, trace.graph
    guards, defaults = sizes.expressions, held.defaults
    assert graph is not None
    if guards is None or not all(is_plain(values) for _, values in defaults):
        return None
    if graph.runs_eagerly:
        return None
    computed = graph.imported.outputs[: results.num_results]
    if any(o.kind == "float" or isinstance(o.constant, float) for o in computed):
        return None
    outputs = [(o.index, None) if o.kind == "value" else (-1, o.constant) for o in computed]
    outputs += [(-1, constant) for constant in results.constants]
    return {
        "symbols": guards.symbols,
        "fixed_sizes": sizes.fixed,
        "fixed_numbers": sizes.numbers,
        "guards": guards.texts,
        "objects": module.objects,
        "plain": module.plain,
        "identical": module.identical,
        "containers": [
            (container, [(one, is_plain(one)) for one in values])
            for container, values in module.containers
        ],
        "globals": held.globals,
        "absent": [],
        "cells": held.cells,
        "defaults": [(function, *values) for function, values in defaults],
        "parameters": module.parameters,
        "constants": graph.imported.constants,
        "inputs": trace.varying,
        "writes": trace.written is not None,
        "outputs": outputs,
        "nesting": results.nesting,
        "restore": results.restore,
        "executable": graph.executable,
        "gradient": trace.gradient.facts(graph) if trace.gradient is not None else None,
    }


def _share_memory(leaves: Iterable[Any], held: Iterable[torch.Tensor]) -> bool:
    """Whether two tensors overlap; one that is given twice is one."""
    storages = _storages({id(leaf): leaf for leaf in leaves}.values())
    return len(set(storages)) != len(storages) or not set(storages).isdisjoint(_storages(held))


def _storages(values: Iterable[Any]) -> list[int]:
    address_of = load_core().address_of
    return [
        address_of(value)
        for value in values
        if isinstance(value, torch.Tensor) and not value._is_zerotensor()
    ]


def autograd_sees(leaves: Sequence[Any], written: list[int] | None) -> bool:
    """Whether autograd follows a leaf that is written.

    It refuses writes to its leaves, and the trace's inputs are leaves whatever the arguments are: AOTAutograd would
    hide the writes from it.
    """
    return torch.is_grad_enabled() and any(leaves[place].requires_grad for place in written or ())
