"""A second process takes up what Dynamo and AOTAutograd made in the first: nothing is traced again.

Stored are frames: the bytecode that Dynamo made, its guards, and the graphs that AOTAutograd compiled. They are pickle,
under torch's rules, and stand in torch's cache folder.
"""

from __future__ import annotations

import functools
import hashlib
import pickle
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mlcc import config
from mlcc._errors import Error
from mlcc.capture import call_checks, compiled_graph, frame_files, inductor_options
from mlcc.logging import get_logger
from mlcc.torch_private import (
    aot,
    aot_key,
    artifacts,
    fingerprints,
    frames,
    settings,
    trace_state,
)
from mlcc.torch_private.graph_source import GraphSource, source_of


@dataclass(frozen=True)
class GraphFacts:
    """What a compiled graph needs beside torch's part of it: when it must run eagerly, and how."""

    written: list[int]  # arguments that it writes
    integers: list[int]  # arguments that are numbers
    limit: int  # these stay below
    eager: GraphSource


@dataclass
class _Place:
    """Where variants of a frame stand, and the options that their graphs are loaded with."""

    folder: Path
    options: Mapping[str, Any]
    graphs: dict[str, bytes]  # of the variant that was read last
    body: bytes = b""  # that variant as it is stored


class WarmStart(frames.Store):
    """The store of frames, as files."""

    def __init__(self) -> None:
        self._facts: dict[str, GraphFacts] = {}
        self._lock = threading.Lock()

    def note(
        self,
        gm: torch.fx.GraphModule,
        written: list[int],
        integers: list[int],
        limit: int,
    ) -> None:
        """A graph was compiled: what else a process needs that loads it."""
        name = getattr(gm, "_backend_id", None)
        if name is None:
            return
        try:
            facts = GraphFacts(written, integers, limit, source_of(gm))
        except Exception as error:  # torch's printers meet what they do not know
            get_logger("cache").debug("graph not kept for a warm start: %s", error)
            return
        with self._lock:
            self._facts[name] = facts

    def open(self, frame: frames.Frame) -> _Place | None:
        """The folder of this frame's variants; None where frames are not to be stored."""
        given = frame.settings()
        own = inductor_options.without_foreign(given.get("options"))
        mode, options = given.get("mode"), config.resolve(own)
        if not frame_files.are_kept(options) or options["disable"]:
            return None
        if trace_state.is_tracing_logged():
            return None
        parts = (
            *compiled_graph.code_key(options),
            mode,
            sorted(own.items()),
            settings.of_frames(),
            trace_state.global_state(),
            aot_key.torch_code(),
            frame.is_whole,
            frame.global_scope.get("__name__"),
            fingerprints.of_code(frame.code),
            [(name, _form(value)) for name, value in sorted(frame.local_scope.items())],
        )
        key = hashlib.sha256(repr(parts).encode()).hexdigest()
        return _Place(frame_files.folder() / key, options, {})

    def candidates(self, place: _Place) -> Iterator[frames.StoredFrame]:
        """Variants that can be read, newest first."""
        for path in frame_files.variants(place.folder):
            data = frame_files.read(path)
            if data is None:
                continue
            try:
                frame, place.graphs = pickle.loads(data)
            except Exception as error:  # pickle runs code of the classes that it names
                get_logger("cache").info("frame %s not read: %s", path.name, error)
                continue
            place.body = data
            yield frame

    def graph(self, frame: frames.StoredFrame, name: str, place: _Place) -> Callable[..., Any]:
        """The compiled graph, with the checks before each call that a fresh one has."""
        artifacts.record(place.folder.name, place.body)
        return _loaded(place.graphs[name], place.options)

    def storable(self, gm: torch.fx.GraphModule, run: Callable[..., Any]) -> StorableGraph:
        """`run`, the compiled `gm`, as `torch.compile(...).aot_compile` wants it."""
        name = str(getattr(gm, "_backend_id", ""))
        with self._lock:
            facts = self._facts.pop(name, None)
        is_whole = facts is not None and aot.has_graphs([name])
        return StorableGraph(run, pickle.dumps((facts, aot.take_graph(name))) if is_whole else b"")

    def keep(self, place: _Place, frame: frames.StoredFrame) -> None:
        """Store a frame."""
        with self._lock:
            facts = {name: self._facts.pop(name, None) for name in frame.graphs}
        if None in facts.values() or not aot.has_graphs(frame.graphs):
            get_logger("cache").info("frame not stored: a graph runs eagerly")
            aot.drop_graphs(frame.graphs)
            return
        try:
            graphs = {
                name: pickle.dumps((one, aot.take_graph(name))) for name, one in facts.items()
            }
            body = pickle.dumps((frame, graphs))
            frame_files.write(place.folder, body)
            artifacts.record(place.folder.name, body)
        except Exception as error:  # what cannot be pickled, a full disk
            get_logger("cache").info("frame not stored: %s", error)

    def drop(self, graphs: Sequence[str]) -> None:
        """Forget what was noted of them."""
        with self._lock:
            for name in graphs:
                self._facts.pop(name, None)
        aot.drop_graphs(graphs)

    def tell(self, frame: frames.Frame, text: str) -> None:
        """A line of the log of the cache."""
        code = frame.code
        get_logger("cache").info(
            "frame %s %s",
            code.co_name,
            text,
            extra={"place": (code.co_filename, code.co_firstlineno)},
        )


class StorableGraph(aot.SerializableCallable):
    """A compiled graph that `save_compiled_function` writes to a file of the user's."""

    def __init__(self, run: Callable[..., Any], data: bytes) -> None:
        self._run = run
        self._data = data

    def __call__(self, *arguments: Any) -> Any:
        """Run on tensors and numbers."""
        return self._run(*arguments)

    @classmethod
    def serialize_compile_artifacts(cls, fn: StorableGraph) -> bytes:
        """The graph as bytes; mlcc.Error where it runs eagerly or holds tensors."""
        if not fn._data:
            raise Error("aot_compile: the graph cannot be stored: it runs eagerly or holds tensors")
        return fn._data

    @classmethod
    def deserialize_compile_artifacts(cls, data: bytes) -> Callable[..., Any]:
        """The graph again, with the options of this process."""
        return cls(_loaded(data, config.resolve()), data)


def _loaded(data: bytes, options: Mapping[str, Any]) -> Callable[..., Any]:
    """A compiled graph with the checks before each call that a fresh one has."""
    facts, stored = pickle.loads(data)
    with compiled_graph.compiling(compiled_graph.Compilation(options)):
        compiled = aot.load_graph(stored)

    @functools.cache
    def eager() -> Callable[..., Any]:
        function: Callable[..., Any] = facts.eager.function()
        return function

    def run_eagerly(*arguments: Any) -> Any:
        return eager()(*arguments)

    return call_checks.or_eager(compiled, run_eagerly, facts.written, facts.integers, facts.limit)


def _form(value: Any) -> Any:
    """What tells variants of a frame apart at a glance; guards tell the rest."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), value.dim(), value.device.type, value.requires_grad
    if isinstance(value, torch.nn.Module):
        return type(value).__qualname__, sum(1 for _ in value.modules()), value.training
    return type(value).__qualname__
