"""Traces of `mlcc.jit` as files: a second process takes them up where all that they read is as it was.

They are pickle and stand among the stored frames of Dynamo, under keys of their own.
"""

from __future__ import annotations

import hashlib
import pickle
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from mlcc import config
from mlcc.capture import frame_files, module_digest
from mlcc.capture.calls import Call, place_of
from mlcc.capture.code_that_ran import CodeThatRan, code_that_ran
from mlcc.capture.compiled_graph import (
    Compilation,
    CompiledGraph,
    UnstorableGraphError,
    code_key,
    compiling,
)
from mlcc.capture.entries import Trace
from mlcc.capture.gradients import Gradient
from mlcc.capture.held_values import HeldValues, NowhereError, Place
from mlcc.capture.reads import OutsideValues
from mlcc.logging import get_logger
from mlcc.torch_private import aot_key, aot_metadata, artifacts, fingerprints, settings


@dataclass(frozen=True)
class _Stored:
    trace: Trace  # without its graphs
    graph: bytes
    gradient: tuple[aot_metadata.GradientForm, bytes] | None  # with the backward graph
    module: str  # a digest
    held: list[Place]
    ran: CodeThatRan


@dataclass(frozen=True)
class TakenUp:
    """A trace of another process, with what it read as this process has it."""

    trace: Trace
    held: HeldValues


class TraceStore:
    """The traces of one function or module."""

    def __init__(
        self,
        function: Callable[..., Any],
        plain: Callable[..., Any],
        settings: tuple[Any, ...],
    ) -> None:
        """`plain` is the Python function behind `function`; `settings` are those of `jit`."""
        self._function = function
        self._plain = plain
        self._settings = settings

    def take(self, call: Call, module: torch.nn.Module | None) -> TakenUp | None:
        """A trace for this call, newest first; None where there is none."""
        folder = self._folder(call)
        for path in frame_files.variants(folder) if folder is not None else ():
            body = frame_files.read(path)
            if body is None:
                continue
            try:
                found = self._taken(body, call, module)
            except Exception as error:  # pickle and digests run code of the values' classes
                self.tell(f"not loaded: {type(error).__name__}: {error}")
                continue
            if found is not None:
                artifacts.record(path.parent.name, body)
                self.tell("loaded")
                return found
        return None

    def keep(
        self, call: Call, trace: Trace, module: torch.nn.Module | None, outside: OutsideValues
    ) -> None:
        """Store a trace; the log tells why one cannot be."""
        folder = self._folder(call)
        if folder is None:
            return
        try:
            body = self._body(trace, module, outside)
            frame_files.write(folder, body)
            artifacts.record(folder.name, body)
        except (NowhereError, UnstorableGraphError, fingerprints.NoFingerprintError) as error:
            self.tell(f"not stored: {error}")
        except Exception as error:  # what cannot be pickled, a full disk
            self.tell(f"not stored: {type(error).__name__}: {error}")

    def _folder(self, call: Call) -> Path | None:
        """Where traces for calls like this one stand; None where traces are not to be stored."""
        options = config.resolve()
        if not frame_files.are_kept(options) or call.held:
            return None
        try:
            return frame_files.folder() / self._key(call, options)
        except Exception as error:  # settings of the program, whose own code runs
            self.tell(f"not stored: {type(error).__name__}: {error}")
            return None

    def _key(self, call: Call, options: Mapping[str, Any]) -> str:
        plain = self._plain
        code = getattr(plain, "__code__", None)
        parts = (
            "mlcc.jit",
            *code_key(options),
            settings.of_traces(),
            aot_key.torch_code(),
            *self._settings,
            sys.flags.optimize,
            getattr(plain, "__module__", ""),
            getattr(plain, "__qualname__", ""),
            fingerprints.of_code(code) if code is not None else "",
            type(self._function).__qualname__,
            call.key,
        )
        text = repr(parts)
        if " at 0x" in text:
            raise NowhereError("an argument that is told by its address")
        return hashlib.sha256(text.encode()).hexdigest()

    def _body(self, trace: Trace, module: torch.nn.Module | None, outside: OutsideValues) -> bytes:
        if trace.graph is None:
            raise NowhereError("AOTAutograd's wrapper runs around its graph")
        fingerprints.forget_classes()
        gradient = None
        if trace.gradient is not None:
            backward = trace.gradient.native_backward(trace.graph)
            if backward is None:
                raise NowhereError("the core does not run its backward graph")
            gradient = trace.gradient.form, _bytes_of(backward)
        ran = code_that_ran(outside.ran)
        return pickle.dumps(
            _Stored(
                replace(trace, graph=None, gradient=None, wrapped=None),
                _bytes_of(trace.graph),
                gradient,
                module_digest.of_module(module, ran.words),
                outside.held.places(self._plain),
                ran,
            )
        )

    def _taken(self, body: bytes, call: Call, module: torch.nn.Module | None) -> TakenUp | None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of torch's, about its own classes
            stored: _Stored = pickle.loads(body)
        fingerprints.forget_classes()
        held = HeldValues.found_again(stored.held, self._plain)
        change = self._change(stored, call, module)
        if held is None or change:
            self.tell(f"not taken: {change or 'a value that it reads changed'}")
            return None
        gradient = None
        if stored.gradient is not None:
            form, data = stored.gradient
            backward = _graph_of(data)
            gradient = Gradient(form, lambda: (backward, None))
        graph = _graph_of(stored.graph)
        return TakenUp(replace(stored.trace, graph=graph, gradient=gradient), held)

    def _change(self, stored: _Stored, call: Call, module: torch.nn.Module | None) -> str:
        """What is not as it was for the trace, or ''."""
        if not stored.trace.sizes.holds()(call.leaves):
            return "it is for other sizes or numbers"
        if module_digest.of_module(module, stored.ran.words) != stored.module:
            return "the module changed"
        return stored.ran.change()

    def tell(self, text: str) -> None:
        """A line of the log of the cache."""
        name = getattr(self._plain, "__qualname__", type(self._function).__name__)
        get_logger("cache").info("trace of %s%s %s", name, place_of(self._plain), text)


def _bytes_of(graph: CompiledGraph) -> bytes:
    """The graph without its code; NowhereError where it holds tensors."""
    if graph.imported.constants:
        raise NowhereError("a graph holds tensors")
    stored = object.__new__(CompiledGraph)  # without what AOTAutograd wants of it
    stored.__dict__.update(graph.__dict__)
    stored.drop_code()
    return pickle.dumps(stored)


def _graph_of(data: bytes) -> CompiledGraph:
    graph: CompiledGraph = pickle.loads(data)
    with compiling(Compilation(config.resolve())):
        graph.load()
    return graph
