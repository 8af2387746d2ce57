"""A compiled graph: a boxed callable that can be stored.

Loading one from a cache needs this module and not what compiles, nor Dynamo. `aot_graph.py` has it as AOTAutograd does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from mlcc import config
from mlcc._errors import Error
from mlcc._load import load_core
from mlcc._version import __version__
from mlcc.capture import eager_fallback
from mlcc.importer.context import ImportedGraph, Output, log_externs
from mlcc.ir import objects
from mlcc.logging import get_logger
from mlcc.torch_private import aot_key, aot_metadata, dispatch

if TYPE_CHECKING:  # what loads a graph does without
    from mlcc.capture.tiers import Meanwhile

# -- timing


@dataclass
class Timings:
    """Wall time in seconds spent by mlcc in this process, which `timings` copies."""

    callbacks: float = 0.0  # from entry to exit of the functions that torch calls us by
    graphs: int = 0  # how many graphs were compiled or loaded
    first_executions: list[float] = field(default_factory=list)  # of each executable, in order


_timings = Timings()
_timings_lock = threading.Lock()


def timings() -> Timings:
    """What mlcc cost so far: compiling and loading, and the first execution of each executable."""
    with _timings_lock:
        return Timings(_timings.callbacks, _timings.graphs, list(_timings.first_executions))


def add_callback_time(seconds: float, *, is_new: bool = True) -> None:
    with _timings_lock:
        _timings.callbacks += seconds
        _timings.graphs += is_new


def _add_first_execution(seconds: float) -> None:
    with _timings_lock:
        _timings.first_executions.append(seconds)


# -- what torch holds and caches


class UnstorableGraphError(Exception):
    """A graph that no other process can run."""


@dataclass
class Compilation:
    """What a graph is compiled or loaded for: the options, and where it is to be added."""

    options: Mapping[str, Any]
    graphs: list[Any] = field(default_factory=list)  # CompiledGraph, or what runs eagerly


# The one under way: where torch loads a graph from its cache, it does not say for whom.
_under_way: ContextVar[Compilation | None] = ContextVar("mlcc.capture.compiled_graph", default=None)


@contextmanager
def compiling(compilation: Compilation) -> Iterator[None]:
    """Graphs that torch loads inside are loaded for `compilation`."""
    token = _under_way.set(compilation)
    try:
        yield
    finally:
        _under_way.reset(token)


def is_compiling() -> bool:
    """Whether this thread compiles or loads a graph."""
    return _under_way.get() is not None


class CompiledGraph:
    """A boxed callable from a list of inputs to a list of outputs.

    What is stored is the text of the graph, not code: kernels come from mlcc's own store when it is loaded.
    `compile_it` gives the executable, or what runs the graph eagerly in its place: in `prepare`, else at the first call
    that need not wait for it. `meanwhile` serves the others.
    """

    _executable: Any
    _compile_it: Callable[[], Any] | None
    _run: Callable[[list[Any]], Any]
    _meanwhile: Meanwhile | None  # what serves calls until it is compiled

    def __init__(
        self,
        compile_it: Callable[[], Any],
        graph_text: str,
        imported: ImportedGraph,
        options: Mapping[str, Any],
        *,
        is_backward: bool = False,
        num_tokens: int = 0,
        meanwhile: Meanwhile | None = None,
    ) -> None:
        super().__init__()
        self._is_backward = is_backward
        self.num_tokens = num_tokens  # among inputs and outputs, before the others
        self._missing_tokens = 0  # of these, what the caller leaves out
        self.num_inputs, self.written = aot_metadata.written_inputs()  # of the function, by place
        self.returns_views = bool(aot_metadata.outputs_made_again())  # of inputs
        self.graph_text = graph_text
        self.imported = imported
        self._options = {name: value for name, value in options.items() if is_code_option(name)}
        # On the instance, since torch copies only __dict__ to the functions that it wraps around this.
        self._boxed_call = True
        self._time_taken_ns = 0
        self._link(compile_it)
        self._meanwhile = meanwhile

    def __call__(self, inputs: list[Any]) -> Any:
        """Run on tensors and ints; the list is emptied."""
        return self._run(inputs)

    @property
    def stats(self) -> dict[str, Any]:
        """The executable's statistics: kernels, extern calls, bytes of the arena, ..."""
        return dict(self.executable.stats)

    @property
    def executable(self) -> Any:
        """The core's Executable. Its inputs are the graph's and then the constants, its outputs the graph's values."""
        self.prepare()
        return self._executable

    @property
    def runs_eagerly(self) -> bool:
        """Whether it turned out that the core cannot compile it."""
        return getattr(self.executable, "is_eager", False)

    def prepare(self) -> None:
        """Compile it, unless that was done."""
        compile_it = self._compile_it
        if compile_it is None:
            return
        start = time.perf_counter_ns()
        self._executable = compile_it()  # of several threads each compiles it, and one stays
        self._compile_it = None
        self._time_taken_ns += time.perf_counter_ns() - start

    @property
    def is_ready(self) -> bool:
        """Whether what it compiles to is there, or is left to who asks for it."""
        meanwhile = self._meanwhile
        return meanwhile is None or meanwhile.is_over()

    def _link(self, compile_it: Callable[[], Any]) -> None:
        self._executable = None
        self._compile_it = compile_it
        self._run = self._run_first
        self._meanwhile = None

    def _run_first(self, inputs: list[Any]) -> Any:
        meanwhile = self._meanwhile  # which another thread may find to be over
        if meanwhile is not None and not meanwhile.is_over():
            arguments = list(inputs)
            try:
                return meanwhile.run(inputs)
            except RuntimeError:  # op by op takes more memory
                if self.written:
                    raise
            inputs[:] = arguments
        self._meanwhile = None
        executable = self.executable
        if self.runs_eagerly:
            self._run = executable
            return executable(inputs)
        run = caller(executable, self.imported)
        if self._missing_tokens:
            run = _with_tokens(run, self._missing_tokens)
        start = time.perf_counter()
        outputs = run(inputs)
        _add_first_execution(time.perf_counter() - start)
        self._run = run
        return outputs

    def drop_code(self) -> None:
        """Drop what cannot be stored, of a copy; UnstorableGraphError where nothing of it can be."""
        if self.imported.eager_calls:
            raise UnstorableGraphError("the graph calls Python")
        if any(dispatch.is_object(output.constant) for output in self.imported.outputs):
            raise UnstorableGraphError("the graph returns an object that it holds")
        # Another process has nothing to run eagerly, so it has to see at once whether what is being compiled will do.
        self._is_known_to_compile = self.is_ready
        if self._is_known_to_compile and self.runs_eagerly:
            raise UnstorableGraphError("the graph runs eagerly")
        for name in ("_executable", "_compile_it", "_meanwhile", "_run"):
            del self.__dict__[name]

    def load(self) -> None:
        """After it was stored: compile the text again, which finds its kernels in the store."""
        if hasattr(self, "_run"):
            return
        compilation = _under_way.get()
        options = {**(compilation.options if compilation else config.resolve()), **self._options}
        self._missing_tokens = self.num_tokens
        self._link(lambda: self._compile_text(options))
        if not self._is_backward or not self._is_known_to_compile:  # else it need not run ever
            self.prepare()
        if compilation is not None:
            compilation.graphs.append(self)

    def _compile_text(self, options: Mapping[str, Any]) -> Any:
        start = time.perf_counter()
        executable = load_core().compile(self.graph_text, options)
        words = in_words(executable.stats)
        get_logger("cache").info("graph loaded from torch's cache: %s", words)
        log_externs(self.imported.told)
        get_logger("perf").info(
            "graph from torch's cache, compiled in %.1f ms: %s",
            (time.perf_counter() - start) * 1e3,
            words,
            extra={"place": eager_fallback.calling_line()},
        )
        add_callback_time(time.perf_counter() - start)
        return executable


def caller(executable: Any, imported: ImportedGraph) -> Callable[[list[Any]], Any]:
    """A boxed function around an executable: adds the graph's constants, puts ints and None among the outputs."""
    outputs, constants = imported.outputs, imported.constants
    if imported.float_inputs:
        return _caller_with_floats(executable, imported)
    if imported.object_inputs or imported.computes_objects:
        return _caller_with_objects(executable, imported)
    if not constants and all(o.kind == "value" and o.index == i for i, o in enumerate(outputs)):
        return executable

    def run(inputs: list[Any]) -> list[Any]:
        inputs.extend(constants)
        values = executable(inputs)
        return [_result(output, values) for output in outputs]

    return run


def _with_tokens(run: Callable[[list[Any]], Any], count: int) -> Callable[[list[Any]], Any]:
    """`run` for a caller who neither gives nor takes tokens of effects."""

    def call(inputs: list[Any]) -> Any:
        given = [*[None] * count, *inputs]
        inputs.clear()
        return run(given)[count:]

    return call


def _result(output: Output, values: Sequence[Any]) -> Any:
    if output.kind == "constant":
        return output.constant
    value = values[output.index]
    if output.kind == "object":
        return objects.object_of(value)
    return value.item() if output.kind == "float" else value


def _caller_with_floats(executable: Any, imported: ImportedGraph) -> Callable[[list[Any]], Any]:
    inner = caller(executable, replace(imported, float_inputs=[]))
    places = imported.float_inputs

    def run(inputs: list[Any]) -> Any:
        for place in places:
            inputs[place] = torch.tensor(inputs[place], dtype=torch.float64, device="cpu")
        return inner(inputs)

    return run


def _caller_with_objects(executable: Any, imported: ImportedGraph) -> Callable[[list[Any]], Any]:
    inner = caller(executable, replace(imported, object_inputs=[], computes_objects=False))
    places = imported.object_inputs

    def run(inputs: list[Any]) -> Any:
        with objects.kept():
            for place in places:
                inputs[place] = objects.number_of(inputs[place])
            return inner(inputs)

    return run


def in_words(stats: Mapping[str, Any]) -> str:
    """What a graph became, in one line."""
    origins = [
        f"{stats[name]} {words}"
        for name, words in (
            ("compiled", "compiled"),
            ("disk_hits", "from disk"),
            ("memory_hits", "from memory"),
        )
        if stats[name]
    ]
    kernels = f"{stats['kernels']} kernels" + (f" ({', '.join(origins)})" if origins else "")
    return (
        f"{kernels} for {stats['generated_nodes']} of {stats['nodes']} nodes, "
        f"{stats['extern_calls']} ATen calls, {stats['kept']} values kept from call to call, "
        f"arena {stats['arena_bytes'] / 1024:.0f} KiB"
    )


def is_code_option(name: str) -> bool:
    return config.table()[name].option_class == "code"


def code_key(options: Mapping[str, Any]) -> list[Any]:
    """What of mlcc and its options decides the code of a graph. No option of class `run` stands here."""
    core = load_core()
    code = sorted((name, options[name]) for name in options if is_code_option(name))
    try:
        cpu = core.cpu_info(dict(options))
    except Error as error:  # without a code generator for the CPU, graphs of GPUs compile
        cpu = str(error)
    return [__version__, core.build_id(), aot_key.mlcc_code(), code, cpu]
