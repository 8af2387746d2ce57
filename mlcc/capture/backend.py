"""The `torch.compile` backend: AOTAutograd in, executables of the compiled core out.

`torch.compile(f, backend="mlcc")` finds `compile` by its entry point; the function itself may be passed as well. What
the importer cannot express runs eagerly as a whole, and so does, with a warning and a reproducer, a graph at which
the compiler fails (under MLCC_STRICT=1 that raises).
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import GraphModule

from mlcc import config, progress
from mlcc._errors import Error, InternalError, LoadError, UnsupportedError
from mlcc._load import (
    has_cpu_code_generator,
    is_code_generator_at_fault,
    llvm_library,
    load_core,
    missing_bytes,
)
from mlcc._version import __version__
from mlcc.capture import (
    call_checks,
    eager_fallback,
    modes,
    recompiles,
    reproducer,
    sharing,
    warm_start,
)
from mlcc.importer import fx_graph
from mlcc.importer.context import ImportedGraph, Output
from mlcc.ir import objects
from mlcc.ir.op_table import OpTable
from mlcc.ir.types import GraphUnsupported
from mlcc.logging import get_logger
from mlcc.rewrite import attention_widths, decompositions, recurrent, result_views
from mlcc.torch_private import aot, aot_metadata, dispatch, frames, patches, trace_state
from mlcc.training import recompute

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


def _add_callback_time(seconds: float) -> None:
    with _timings_lock:
        _timings.callbacks += seconds
        _timings.graphs += 1


def _add_first_execution(seconds: float) -> None:
    with _timings_lock:
        _timings.first_executions.append(seconds)


# -- what torch holds and caches

# The session under way: where torch loads a graph from its cache, it does not say for whom.
_session: ContextVar[Session | None] = ContextVar("mlcc.capture.backend", default=None)


class CompiledGraph(aot.OutputCode):
    """A compiled graph as AOTAutograd calls and stores it: a boxed callable from a list of inputs to a list of outputs.

    What is stored is the text of the graph, not code: kernels come from mlcc's own store when it is loaded.
    """

    def __init__(
        self,
        executable: Any,
        graph_text: str,
        imported: ImportedGraph,
        options: Mapping[str, Any],
        seconds: float,
        num_tokens: int = 0,
    ) -> None:
        super().__init__()
        self.num_tokens = num_tokens  # among inputs and outputs, before the others
        self._missing_tokens = 0  # of these, what the caller leaves out
        self.num_inputs, self.written = aot_metadata.written_inputs()  # of the function, by place
        self.returns_views = bool(aot_metadata.outputs_made_again())  # of inputs
        self.graph_text = graph_text
        self.imported = imported
        self._options = {name: value for name, value in options.items() if _is_code_option(name)}
        # On the instance, since torch copies only __dict__ to the functions that it wraps around this.
        self._boxed_call = True
        self._time_taken_ns = int(seconds * 1e9)
        self._link(executable)

    def __call__(self, inputs: list[Any]) -> Any:
        """Run on tensors and ints; the list is emptied."""
        return self._run(inputs)

    @property
    def stats(self) -> dict[str, Any]:
        """The executable's statistics: kernels, extern calls, bytes of the arena, ..."""
        return dict(self._executable.stats)

    @property
    def executable(self) -> Any:
        """The core's Executable. Its inputs are the graph's and then the constants, its outputs the graph's values."""
        return self._executable

    def _link(self, executable: Any) -> None:
        self._executable: Any = executable
        self._run: Callable[[list[Any]], Any] = self._run_first

    def _run_first(self, inputs: list[Any]) -> Any:
        run = _caller(self._executable, self.imported)
        if self._missing_tokens:
            run = _with_tokens(run, self._missing_tokens)
        start = time.perf_counter()
        outputs = run(inputs)
        _add_first_execution(time.perf_counter() - start)
        self._run = run
        return outputs

    def prepare_for_serialization(self) -> None:
        """Drop what cannot be stored; torch calls this on a copy."""
        if self.imported.eager_calls:
            raise aot.cache_bypass("the graph calls Python")
        if any(dispatch.is_object(output.constant) for output in self.imported.outputs):
            raise aot.cache_bypass("the graph returns an object that it holds")
        self._executable = None
        self.__dict__.pop("_run", None)

    def post_compile(self, example_inputs: Any, constants: Any, graph_kwargs: Any) -> None:
        """After loading: compile the text again, which finds its kernels in the store."""
        del example_inputs, constants, graph_kwargs
        if self._executable is not None:
            return
        start = time.perf_counter()
        session = _session.get()
        options = {**(session.options if session else config.resolve()), **self._options}
        executable = load_core().compile(self.graph_text, options)
        self._missing_tokens = self.num_tokens
        self._link(executable)
        if session is not None:
            session.graphs.append(self)
        get_logger("cache").info("graph loaded from torch's cache: %s", _in_words(executable.stats))
        _add_callback_time(time.perf_counter() - start)

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        """There are no Triton kernels here."""
        del triton_bundle


class EagerGraph(aot.OutputCode):
    """A graph that runs eagerly, and is not stored."""

    def __init__(self, gm: GraphModule) -> None:
        super().__init__()
        self.num_inputs, self.written = aot_metadata.written_inputs()
        self.returns_views = bool(aot_metadata.outputs_made_again())
        self._gm = gm
        self._boxed_call = True
        self._time_taken_ns = 0

    def __call__(self, inputs: list[Any]) -> Any:
        """Run on tensors and ints; the list is emptied."""
        arguments = list(inputs)
        inputs.clear()
        return self._gm(*arguments)

    def prepare_for_serialization(self) -> None:
        """Nothing of it may enter a cache: a later version may compile it."""
        raise aot.cache_bypass("the graph runs eagerly")

    def post_compile(self, example_inputs: Any, constants: Any, graph_kwargs: Any) -> None:
        """Never stored, so never loaded."""

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        """There are no Triton kernels here."""


def _caller(executable: Any, imported: ImportedGraph) -> Callable[[list[Any]], Any]:
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
    inner = _caller(executable, replace(imported, float_inputs=[]))
    places = imported.float_inputs

    def run(inputs: list[Any]) -> Any:
        for place in places:
            inputs[place] = torch.tensor(inputs[place], dtype=torch.float64, device="cpu")
        return inner(inputs)

    return run


def _caller_with_objects(executable: Any, imported: ImportedGraph) -> Callable[[list[Any]], Any]:
    inner = _caller(executable, replace(imported, object_inputs=[], computes_objects=False))
    places = imported.object_inputs

    def run(inputs: list[Any]) -> Any:
        with objects.kept():
            for place in places:
                inputs[place] = objects.number_of(inputs[place])
            return inner(inputs)

    return run


# -- compiling


class StaticInputWrittenError(Exception):
    """An argument that was promised to live for many calls is written by the function."""


class Session:
    """One call of the backend: its options, and the compilers that AOTAutograd is given."""

    def __init__(self, mode: str | None, options: Mapping[str, Any]) -> None:
        self.mode = mode
        self.options = {
            **options,
            "matmul_precision": options["matmul_precision"] or trace_state.matmul_precision(),
        }
        self.graphs: list[CompiledGraph | EagerGraph] = []
        self.kinds: list[str] = []
        self._num_own = 0  # parameters and buffers of the module, which become the first inputs
        self._num_inputs = 0  # they and the arguments
        self._lasting: frozenset[int] = frozenset()  # arguments that live for many calls
        self.sharing: sharing.Sharing = ()  # of all inputs, where some of them overlap

    def compile(
        self, gm: Any, example_inputs: Sequence[Any], lasting: Iterable[int] = ()
    ) -> Callable[..., Any]:
        """The callable that replaces `gm`: a GraphModule of Dynamo's, or a module that jit traces.

        `lasting` are places of arguments that live for many calls; StaticInputWrittenError if `gm` writes one of them.
        """
        own = [tensor for _, tensor in _own_tensors(gm)]
        inputs = [*own, *example_inputs]
        self._num_own = len(own)
        self._num_inputs = len(inputs)
        self._lasting = frozenset(self._num_own + place for place in lasting)
        if self.options["weights"] == "steal":
            watch_weights(inputs)
        self.sharing = sharing.sharing_of(inputs)
        key = self._cache_key() if self.options["torch_caches"] else None
        token = _session.set(self)
        try:
            with progress.compiling():
                return aot.compile_with_aot(
                    gm,
                    example_inputs,
                    forward=self.compiler("forward"),
                    backward=self.compiler("backward"),
                    inference=self.compiler("inference"),
                    partition=recompute.partition(op_table().overloads(), self.options),
                    decompositions=decomposition_table(),
                    cache_key=key,
                )
        finally:
            _session.reset(token)

    def written(self, gm: GraphModule, num_arguments: int) -> list[int]:
        """Which arguments the compiled `gm` writes into, in order.

        Empty where AOTAutograd made other inputs of them (`merged`).
        """
        own = _own_tensors(gm)
        places = [
            graph.written for graph in self.graphs if graph.num_inputs == len(own) + num_arguments
        ]
        return [place - len(own) for place in (places[0] if places else ()) if place >= len(own)]

    def merged(self) -> sharing.Sharing:
        """How the arguments share memory, where AOTAutograd made one input of some that overlap.

        The graph is for calls whose arguments lie in the same way, and guards do not tell all of it (torch 2.13).
        """
        took_all = all(graph.num_inputs == self._num_inputs for graph in self.graphs)
        return () if took_all else self.sharing

    def refuses_views(self) -> bool:
        """Whether torch cannot make results again: as views of inputs that became one input (torch 2.13)."""
        return bool(self.merged()) and any(graph.returns_views for graph in self.graphs)

    def only_graph(self) -> CompiledGraph | None:
        """The compiled graph, where its executable is all there is: no backward graph, calls of Python or objects."""
        graph = self.graphs[0] if self.kinds == ["inference"] else None
        if not isinstance(graph, CompiledGraph) or graph.imported.eager_calls:
            return None
        return None if graph.imported.object_inputs else graph

    def constants(self) -> list[torch.Tensor]:
        """Tensors that the compiled graphs read beside their inputs; one that runs eagerly has its own."""
        graphs = [graph for graph in self.graphs if isinstance(graph, CompiledGraph)]
        return [constant for graph in graphs for constant in graph.imported.constants]

    def _static_inputs(self, gm: GraphModule) -> frozenset[int]:
        """Places of parameters and buffers among the inputs of the graph that AOTAutograd made."""
        num_tokens = aot_metadata.num_tokens()
        if len(gm.graph.find_nodes(op="placeholder")) != num_tokens + self._num_inputs:
            return frozenset()  # AOTAutograd made other inputs of those that it was given
        lifted = aot_metadata.static_inputs(self._num_inputs)
        places = [*range(self._num_own), *self._lasting, *lifted]
        return frozenset(num_tokens + place for place in places)

    def _cache_key(self) -> str:
        """What else decides the code beside what torch's key holds."""
        state = trace_state.global_state(), aot.process_groups(), self.sharing
        parts = [*_code_key(self.options), self.mode, state]
        digest = hashlib.sha256(repr(parts).encode()).hexdigest()
        return f"mlcc-{digest}"

    def compiler(self, kind: str) -> aot.Compiler:
        """The compiler of graphs of this kind: forward, backward or inference."""

        def compile_graph(gm: GraphModule, example_inputs: Sequence[Any]) -> Any:
            del example_inputs  # the graph's metadata says it all
            if kind == "forward":
                _check_is_differentiable(gm)
                aot_metadata.allow_repeated_backward()
            if not self._lasting.isdisjoint(aot_metadata.written_inputs()[1]):
                raise StaticInputWrittenError
            start = time.perf_counter()
            with progress.compiling():
                code = self._compile_or_fall_back(gm, kind)
            self.graphs.append(code)
            self.kinds.append(kind)
            _add_callback_time(time.perf_counter() - start)
            return code

        return compile_graph

    def _compile_or_fall_back(self, gm: GraphModule, kind: str) -> Any:
        try:
            return self._compile_graph(gm, kind)
        except GraphUnsupported as reason:
            place = eager_fallback.graph_line(gm.graph, reason.traces)
            computes = eager_fallback.computes(gm.graph)
            eager_fallback.tell(f"{kind} graph", reason, place=place, is_loss=computes)
            return EagerGraph(gm)
        except LoadError as error:
            if self.options["strict"]:
                raise
            place = eager_fallback.graph_line(gm.graph)
            eager_fallback.tell(f"{kind} graph", error, place=place)
            return EagerGraph(gm)
        except Error as error:
            if not isinstance(error, InternalError):
                raise
            failure: InternalError = error
        except Exception as error:
            failure = InternalError(f"{type(error).__name__}: {error}")
            failure.__cause__ = error
        folder = reproducer.write(gm, kind, failure, self.options)
        see = f"; see {folder}" if folder else ""
        if self.options["strict"]:
            failure.add_note(f"in a graph of kind {kind}{see}")
            raise failure
        what = failure.headline if folder else failure
        eager_fallback.warn_at(
            eager_fallback.graph_line(gm.graph),
            f"mlcc failed, the {kind} graph runs eagerly: {what}{see}\n"
            "  remedy: none in the program, this is a bug; please report it"
            + (" with that folder" if folder else ""),
        )
        return EagerGraph(gm)

    def _compile_graph(self, gm: GraphModule, kind: str) -> CompiledGraph:
        start = time.perf_counter()
        core = load_core()
        if kind != "backward":
            result_views.take_from_inputs(gm, aot_metadata.outputs_made_again())
            result_views.keep_shared(gm, aot_metadata.num_results())
        if kind == "inference" and self.options["contractions"]:
            attention_widths.fix_widths(gm)
        builder = core.GraphBuilder(kind)
        imported = fx_graph.import_graph(
            gm,
            builder,
            op_table(),
            bool(self.options["fallback_random"]),
            # What training updates is not worth keeping.
            self._static_inputs(gm) if kind == "inference" else None,
        )
        if imported.gpu:
            _check_gpu(imported.gpu, self.options)
        middle = time.perf_counter()
        executable = _compiled(core, builder, self.options)
        seconds = time.perf_counter() - start
        stats = executable.stats
        progress.graph_done(stats["kernels"])
        get_logger("perf").info(
            "%s graph: %d nodes imported in %.1f ms, compiled in %.1f ms: %s",
            kind,
            len(gm.graph.nodes),
            (middle - start) * 1e3,
            (start + seconds - middle) * 1e3,
            _in_words(stats),
            extra={"place": eager_fallback.graph_line(gm.graph) or eager_fallback.calling_line()},
        )
        num_tokens = aot_metadata.num_tokens() if kind != "backward" else 0
        text = executable.graph_text
        return CompiledGraph(executable, text, imported, self.options, seconds, num_tokens)


def _in_words(stats: Mapping[str, Any]) -> str:
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


def _own_tensors(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Parameters and buffers, as AOTAutograd makes inputs of them."""
    return [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]


def watch_weights(values: Iterable[Any]) -> None:
    """Lets a graph steal the parameters among these, unless it trains them.

    Called before a guard looks at their dispatch keys, which change.
    """
    trains = torch.is_grad_enabled()
    core = load_core()
    patches.guard_is_shared(core.is_stolen)
    core.watch_weights(
        [
            one
            for one in values
            if type(one) is torch.nn.Parameter and not (trains and one.requires_grad)
        ]
    )


def _compiled(core: Any, builder: Any, options: Mapping[str, Any]) -> Any:
    """The executable; GraphUnsupported where the core cannot, as where it needs a code generator that is missing.

    One that is broken is an Error under the option `strict`.
    """
    try:
        return core.compile(builder, dict(options))
    except (InternalError, LoadError):
        raise
    except UnsupportedError as error:
        raise GraphUnsupported(str(error)) from error
    except Error as error:
        is_broken = is_code_generator_at_fault(str(error)) and not options["strict"]
        if has_cpu_code_generator() and not is_broken:
            raise
        raise GraphUnsupported(_without_code_generator(error)) from error


def _without_code_generator(error: Error) -> str:
    """What the loader said of the library, behind its path."""
    path = str(llvm_library())
    why = str(error).removeprefix("cpu backend: ")
    words = why.removeprefix("the cpu code generator cannot be opened: ").removeprefix(f"{path}: ")
    state = "does not load" if has_cpu_code_generator() else "is missing"
    if missing := missing_bytes(llvm_library()):
        words = f"the file ends {missing} bytes early, as of a copy that was interrupted"
    return f"the code generator for CPUs, {path}, {state}: {words}"


def _check_gpu(device: str, options: Mapping[str, Any]) -> None:
    """GraphUnsupported unless kernels can be made for the device."""
    if options["gpu"] == "emulate":
        raise GraphUnsupported(f"{device} beside an emulated GPU, which is for tensors of the CPU")
    info = load_core().gpu_info(dict(options), int(device.rpartition(":")[2]))
    if "reason" in info:
        raise GraphUnsupported(f"no kernels for {device}: {info['reason']}")


def _check_is_differentiable(gm: GraphModule) -> None:
    """torch's decomposition of LSTM calls an op for inference, also where weights are to be trained (torch 2.13)."""
    for node in gm.graph.nodes:
        if str(node.target) == "aten.mkldnn_rnn_layer.default":
            raise NotImplementedError("an LSTM whose weights are trained")


_op_table: OpTable | None = None


def op_table() -> OpTable:
    """The pointwise ops that the core generates, by aten overload."""
    global _op_table
    if _op_table is None:
        _op_table = OpTable(load_core().op_table())
    return _op_table


def _is_code_option(name: str) -> bool:
    return config.table()[name].option_class == "code"


def compile(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """The backend that `torch.compile(f, backend="mlcc", mode=..., options={...})` calls for each of its graphs.

    `options` are those of mlcc.config, for this compilation. Raises mlcc.Error for an unknown option, value or mode.
    """
    mode = modes.check_mode(mode)
    resolved = config.resolve(options)
    if resolved["disable"]:
        return gm
    recompiles.log()
    session = Session(mode, resolved)
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
    own = [tensor for _, tensor in _own_tensors(gm)]
    if not merged and not own:
        _warm_start.note(gm, written, integers, limit)
    checked = call_checks.or_eager(compiled, gm, written, integers, limit)
    return call_checks.or_elsewhere(checked, own, gm, merged) if merged else checked


@contextmanager
def _loading(mode: str | None, options: Mapping[str, Any]) -> Iterator[None]:
    """Graphs that torch loads inside get these options."""
    token = _session.set(Session(mode, options))
    try:
        yield
    finally:
        _session.reset(token)


def _code_key(options: Mapping[str, Any]) -> list[Any]:
    """What of mlcc and its options decides the code of a graph. No option of class `run` stands here."""
    core = load_core()
    code = sorted((name, options[name]) for name in options if _is_code_option(name))
    try:
        cpu = core.cpu_info(dict(options))
    except Error as error:  # without a code generator for the CPU, graphs of GPUs compile
        cpu = str(error)
    return [__version__, core.build_id(), code, cpu]


def decomposition_table() -> dict[Any, Callable[..., Any]]:
    """The decompositions that a trace for mlcc uses."""
    return decompositions.table(frozenset(op_table().overloads()))


def reset() -> None:
    """Called by `torch.compiler.reset`: the log tells again what it told before."""
    fx_graph.forget_logged()
    eager_fallback.forget()
    modes.forget()


compile.reset = reset  # type: ignore[attr-defined]

_warm_start = warm_start.WarmStart(config.resolve, _code_key, _loading, call_checks.or_eager)
frames.install(_warm_start, lambda backend: backend is compile)
aot.when_whole(_warm_start.flush)

patches.install_recurrent(
    compile, recurrent.decompositions(), recurrent.is_taken, lambda: _session.get() is not None
)

__all__ = ["CompiledGraph", "EagerGraph", "Timings", "compile", "op_table", "reset", "timings"]
