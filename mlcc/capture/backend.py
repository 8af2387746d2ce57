"""The `torch.compile` backend.

`torch.compile(f, backend="mlcc")` finds `compile` by its entry point; the function itself may be passed as well.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from mlcc import config
from mlcc.capture import (
    call_checks,
    compiled_graph,
    eager_fallback,
    inductor_options,
    modes,
    recompiles,
    warm_start,
)
from mlcc.capture.compiled_graph import Timings, timings
from mlcc.rewrite import recurrent
from mlcc.torch_private import aot, frames, patches


def compile(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """The backend that `torch.compile(f, backend="mlcc", mode=..., options={...})` calls for each of its graphs.

    `options` are those of mlcc.config, for this compilation. Raises mlcc.Error for an unknown option, value or mode.
    Where MLCC_AUTO made mlcc the default backend, options of Inductor are dropped with a warning.
    """
    # A process that finds all in its caches does without what compiles.
    from mlcc.capture import session as session_module

    mode = modes.check_mode(mode)
    resolved = config.resolve(inductor_options.without_foreign(options))
    if resolved["disable"]:
        return gm
    recompiles.log()
    session = session_module.Session(mode, resolved)
    if name := getattr(gm, "_backend_id", None):
        aot.want_graph(name)
    try:
        compiled = session.compile(gm, example_inputs)
    except AssertionError as error:
        if not session.sharing:
            raise
        # Views of some kinds beside each other, of which AOTAutograd makes no common input.
        reason = f"views of these kinds cannot overlap: {str(error) or 'AOTAutograd refuses them'}"
        eager_fallback.tell("a graph", reason, place=eager_fallback.graph_line(gm.graph))
        return gm
    if session.refuses_views():
        place = eager_fallback.graph_line(gm.graph)
        eager_fallback.tell("a graph", "results are views of what overlaps", place=place)
        return gm
    written = session.written(gm, len(example_inputs))
    integers = [i for i, one in enumerate(example_inputs) if isinstance(one, int | torch.SymInt)]
    limit = call_checks.INT_LIMIT if integers and aot.computes_sizes(gm) else 2**63
    merged = session.merged()
    own = [tensor for _, tensor in session_module.own_tensors(gm)]
    if not merged and not own:
        _warm_start.note(gm, written, integers, limit)
    checked = call_checks.or_eager(compiled, gm, written, integers, limit)
    if merged:
        checked = call_checks.or_elsewhere(checked, own, gm, merged)
    return _warm_start.storable(gm, checked) if aot.is_ahead_of_time() else checked


def reset() -> None:
    """Called by `torch.compiler.reset`: the log tells again what it told before."""
    if (fx_graph := sys.modules.get("mlcc.importer.fx_graph")) is not None:
        fx_graph.forget_logged()
    eager_fallback.forget()
    modes.forget()
    inductor_options.forget()


compile.reset = reset  # type: ignore[attr-defined]

_warm_start = warm_start.WarmStart()


@functools.cache
def prepare_torch() -> None:
    """Let torch know of what it has to do for our graphs before it traces one."""
    frames.install(_warm_start, lambda backend: backend is compile)
    patches.install_recurrent(
        compile, recurrent.decompositions(), recurrent.is_taken, compiled_graph.is_compiling
    )


prepare_torch()

__all__ = ["Timings", "compile", "reset", "timings"]
