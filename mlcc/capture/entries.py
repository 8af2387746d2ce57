"""What `mlcc.jit` keeps of a trace: when it holds, and how it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from mlcc._load import load_core
from mlcc.capture import changes
from mlcc.capture.calls import Call, Description
from mlcc.capture.guards import (
    ModuleState,
    SizeGuards,
    always,
    is_plain,
)
from mlcc.capture.traced import TracedModule
from mlcc.torch_private import stance


class Entry:
    """One trace: when it holds, and how it runs (None: the original function)."""

    __slots__ = (
        *("description", "difference", "facts", "guard", "held", "returns_views"),
        *("run", "steals", "written"),
    )

    def __init__(self, call: Call) -> None:
        self.description = Description(call)
        # Why the guard fails for a call, in words: of its leaves, described, by their names.
        self.difference: Callable[[Call, list[str]], str] | None = None
        self.facts: dict[str, Any] | None = None  # for the core's CallDispatch
        self.guard: Callable[[list[Any]], bool] = always
        self.run: Callable[[list[Any]], Any] | None = None
        # Which leaves the function writes; None if it writes nothing, neither leaves nor a module's tensors.
        self.written: list[int] | None = None
        # What it reads beside the leaves: a module's tensors, constants of the trace.
        self.held: list[torch.Tensor] = []
        # Views of arguments with symbolic sizes: AOTAutograd makes them anew as if those began where their memory does.
        self.returns_views = False
        self.steals = False  # option `weights`

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


def difference_from(
    then: Description,
    sizes: SizeGuards,
    module: ModuleState,
    traced: TracedModule,
) -> Callable[[Call, list[str]], str]:
    """What says why a call of the same structure is none of a trace's."""
    outside, failing = traced.outside, sizes.failing()

    def difference(call: Call, names: list[str]) -> str:
        failed = then.failure(Description(call), names, failing(call.leaves))
        return failed or outside.change() or changes.of_module(module)

    return difference


def direct_caller(
    graph: Any, parameters: list[torch.Tensor], varying: list[int], traced: TracedModule
) -> Callable[[list[Any]], Any]:
    """The compiled graph itself, without AOTAutograd's wrapper."""
    single = traced.is_single

    def run(leaves: list[Any]) -> Any:
        results = graph([*parameters, *(leaves[place] for place in varying)])
        return results[0] if single else traced.restore(results)

    return run


def wrapped_caller(
    compiled: Callable[..., Any], varying: list[int], traced: TracedModule
) -> Callable[[list[Any]], Any]:
    def run(leaves: list[Any]) -> Any:
        return traced.restore(compiled(*(leaves[place] for place in varying)))

    return run


def no_dispatch(*args: Any, **kwargs: Any) -> Any:
    del args, kwargs
    return NotImplemented


def facts_for_dispatch(
    graph: Any,
    sizes: SizeGuards,
    module: ModuleState,
    varying: list[int],
    writes: bool,
    traced: TracedModule,
    gradient: dict[str, Any] | None,
) -> dict[str, Any] | None:
    """What the core's CallDispatch has to know of an entry; None if a guard has no counterpart there."""
    guards = sizes.as_expressions()
    defaults = traced.outside.defaults
    if guards is None or not all(is_plain(held) for _, held in defaults):
        return None
    results = graph.imported.outputs[: traced.num_results]
    if any(o.kind == "float" or isinstance(o.constant, float) for o in results):
        return None
    outputs = [(o.index, None) if o.kind == "value" else (-1, o.constant) for o in results]
    outputs += [(-1, constant) for constant in traced.constants]
    return {
        "symbols": guards.symbols,
        "fixed_sizes": sizes.fixed,
        "fixed_numbers": sizes.numbers,
        "guards": guards.texts,
        "objects": module.objects,
        "plain": module.plain,
        "identical": module.identical,
        "containers": [
            (container, [(one, is_plain(one)) for one in held])
            for container, held in module.containers
        ],
        "globals": [stance.as_global(), *traced.outside.globals],
        "cells": traced.outside.cells,
        "defaults": [(function, *held) for function, held in defaults],
        "parameters": module.parameters,
        "constants": graph.imported.constants,
        "inputs": varying,
        "writes": writes,
        "outputs": outputs,
        "nesting": traced.nesting,
        "restore": traced.restore,
        "executable": graph.executable,
        "gradient": gradient,
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
