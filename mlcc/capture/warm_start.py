"""A second process takes up what Dynamo and AOTAutograd made in the first: nothing is traced again.

Stored are frames: the bytecode that Dynamo made, its guards, and the graphs that AOTAutograd compiled. They are pickle,
under torch's rules, and stand in torch's cache folder.
"""

from __future__ import annotations

import functools
import hashlib
import os
import pickle
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mlcc import config
from mlcc._errors import Error
from mlcc.capture import call_checks, compiled_graph, inductor_options
from mlcc.logging import get_logger
from mlcc.torch_private import aot, aot_key, fingerprints, frames, trace_state
from mlcc.torch_private.graph_source import GraphSource, source_of

_MAGIC = b"mlcc frame 1\n"
_MOST_VARIANTS = 8  # of one function: as many as Dynamo compiles of it by default
_LARGEST = 1 << 28  # bytes of a file that is read


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


@dataclass(frozen=True)
class _Pending:
    """A frame that waits for the backward pass of one of its graphs."""

    place: _Place
    frame: frames.StoredFrame
    facts: dict[str, GraphFacts]


class WarmStart(frames.Store):
    """The store of frames, as files."""

    def __init__(self) -> None:
        self._facts: dict[str, GraphFacts] = {}
        self._pending: list[_Pending] = []
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
        if not options["warm_start"] or not options["torch_caches"] or options["disable"]:
            return None
        if options["dump"] or options["weights"] == "steal" or frames.unstorable_process():
            return None
        if trace_state.is_tracing_logged():
            return None
        parts = (
            *compiled_graph.code_key(options),
            mode,
            sorted(own.items()),
            frames.settings(),
            trace_state.global_state(),
            aot_key.torch_code(),
            frame.is_whole,
            frame.global_scope.get("__name__"),
            fingerprints.of_code(frame.code),
            [(name, _form(value)) for name, value in sorted(frame.local_scope.items())],
        )
        key = hashlib.sha256(repr(parts).encode()).hexdigest()
        return _Place(_folder() / key, options, {})

    def candidates(self, place: _Place) -> Iterator[frames.StoredFrame]:
        """Variants that can be read, newest first."""
        for path in _variants(place.folder):
            data = _read(path)
            if data is None:
                continue
            try:
                frame, place.graphs = pickle.loads(data)
            except Exception as error:  # pickle runs code of the classes that it names
                get_logger("cache").info("frame %s not read: %s", path.name, error)
                continue
            yield frame

    def graph(self, frame: frames.StoredFrame, name: str, place: _Place) -> Callable[..., Any]:
        """The compiled graph, with the checks before each call that a fresh one has."""
        return _loaded(place.graphs[name], place.options)

    def storable(self, gm: torch.fx.GraphModule, run: Callable[..., Any]) -> StorableGraph:
        """`run`, the compiled `gm`, as `torch.compile(...).aot_compile` wants it."""
        name = str(getattr(gm, "_backend_id", ""))
        with self._lock:
            facts = self._facts.pop(name, None)
        is_whole = facts is not None and aot.has_graphs([name])
        return StorableGraph(run, pickle.dumps((facts, aot.take_graph(name))) if is_whole else b"")

    def keep(self, place: _Place, frame: frames.StoredFrame) -> None:
        """Store a frame, at once or as soon as its graphs are whole."""
        with self._lock:
            facts = {name: self._facts.pop(name, None) for name in frame.graphs}
        known = {name: one for name, one in facts.items() if one is not None}
        if len(known) < len(facts):
            get_logger("cache").info("frame not stored: a graph runs eagerly")
            return
        with self._lock:
            self._pending.append(_Pending(place, frame, known))
        self.flush()

    def flush(self) -> None:
        """Store the frames whose graphs are whole by now."""
        with self._lock:
            ready = [one for one in self._pending if aot.has_graphs(one.frame.graphs)]
            self._pending = [one for one in self._pending if one not in ready]
        for one in ready:
            try:
                graphs = {
                    name: pickle.dumps((facts, aot.take_graph(name)))
                    for name, facts in one.facts.items()
                }
                _write(one.place.folder, pickle.dumps((one.frame, graphs)))
            except Exception as error:  # what cannot be pickled, a full disk
                get_logger("cache").info("frame not stored: %s", error)

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


# -- files


def _folder() -> Path:
    return Path(aot.cache_folder()) / "mlcc" / "frames"


def _variants(folder: Path) -> list[Path]:
    try:
        paths = [(path.stat().st_mtime_ns, path) for path in folder.glob("*.frame")]
    except OSError:
        return []
    return [path for _, path in sorted(paths, reverse=True)]


def _read(path: Path) -> bytes | None:
    """What was written; None, with a line in the log, for a file that is cut, changed or another user's."""
    try:
        with open(path, "rb") as stream:
            status = os.fstat(stream.fileno())
            if status.st_uid != os.geteuid() or status.st_mode & 0o022:
                get_logger("cache").info("frame %s not read: others may write to it", path.name)
                return None
            data = stream.read(_LARGEST)
    except OSError as error:
        get_logger("cache").info("frame %s not read: %s", path.name, error)
        return None
    body = data[len(_MAGIC) + 32 :]
    if not data.startswith(_MAGIC) or data[len(_MAGIC) :][:32] != hashlib.sha256(body).digest():
        get_logger("cache").info("frame %s not read: the file is damaged", path.name)
        return None
    return body


def _write(folder: Path, body: bytes) -> None:
    """A file under a temporary name, then renamed: readers see all of it or nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(body).digest()
    handle, temporary = tempfile.mkstemp(dir=folder, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(_MAGIC + digest + body)
        os.replace(temporary, folder / f"{digest.hex()[:24]}.frame")
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    for old in _variants(folder)[_MOST_VARIANTS:]:
        old.unlink(missing_ok=True)
