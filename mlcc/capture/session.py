"""One compilation of the backend: AOTAutograd in, executables of the compiled core out.

What the importer cannot express runs eagerly as a whole, and so does, with a warning and a reproducer, a graph at which
the compiler fails (under MLCC_STRICT=1 that raises).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from mlcc import progress
from mlcc._errors import (
    Error,
    InternalError,
    LoadError,
    StaticInputWrittenError,
    UnsupportedError,
)
from mlcc._load import (
    has_cpu_code_generator,
    is_code_generator_at_fault,
    llvm_library,
    load_core,
    missing_bytes,
)
from mlcc.capture import eager_fallback, reproducer, sharing, tiers
from mlcc.capture.aot_graph import AotGraph, EagerGraph
from mlcc.capture.background import Job
from mlcc.capture.compiled_graph import (
    Compilation,
    CompiledGraph,
    add_callback_time,
    code_key,
    compiling,
    in_words,
)
from mlcc.capture.promises import promised_ranges
from mlcc.importer import fx_graph
from mlcc.ir.op_table import OpTable
from mlcc.ir.types import GraphUnsupported
from mlcc.logging import get_logger
from mlcc.rewrite import attention_widths, decompositions, quantization, result_views
from mlcc.torch_private import aot, aot_metadata, dynamo, patches, trace_state
from mlcc.training import recompute


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
        self._inner: list[range] = []  # of each input: the graph's inputs that it becomes
        self._promises: dict[int, tuple[int, int]] = {}  # of these inputs
        self.sharing: sharing.Sharing = ()  # of all inputs, where some of them overlap
        self._backward_compilers: list[Any] = []  # torch's

    def compile(
        self, gm: Any, example_inputs: Sequence[Any], lasting: Iterable[int] = ()
    ) -> Callable[..., Any]:
        """The callable that replaces `gm`: a GraphModule of Dynamo's, or a module that jit traces.

        `lasting` are places of arguments that live for many calls; StaticInputWrittenError if `gm` writes one of them.
        """
        own = [tensor for _, tensor in own_tensors(gm)]
        inputs = [*own, *example_inputs]
        self._num_own = len(own)
        self._num_inputs = len(inputs)
        self._lasting = frozenset(self._num_own + place for place in lasting)
        if self.options["weights"] == "steal":
            watch_weights(inputs)
        self._inner = aot_metadata.inner_places(inputs)
        if self.options["pack_weights"]:
            # What arguments hold changes from call to call: no key may depend on it.
            lifted = [] if not isinstance(gm, GraphModule) else aot_metadata.lifted_places(gm)
            live = {*range(len(own)), *self._lasting, *(len(own) + place for place in lifted)}
            self._promises = promised_ranges(
                (inputs[place], self._inner[place]) for place in sorted(live)
            )
        self.sharing = sharing.sharing_of(inputs)
        key = self._cache_key() if self.options["torch_caches"] else None
        with (
            compiling(Compilation(self.options, self.graphs)),
            progress.compiling(),
            patches.keeping_backward_compilers() as self._backward_compilers,
        ):
            return aot.compile_with_aot(
                gm,
                example_inputs,
                forward=self.compiler("forward"),
                backward=self.compiler("backward"),
                inference=self.compiler("inference"),
                partition=recompute.partition(op_table().overloads(), self.options),
                decompositions=decomposition_table(_may_need_gradients(inputs)),
                cache_key=key,
            )

    def written(self, gm: GraphModule, num_arguments: int) -> list[int]:
        """Which arguments the compiled `gm` writes into, in order.

        Empty where AOTAutograd made other inputs of them (`merged`).
        """
        own = own_tensors(gm)
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
        return self._native_graph("inference") if self.kinds == ["inference"] else None

    def forward_graph(self) -> CompiledGraph | None:
        """The graph of a function that is differentiated, where its executable does all that it says."""
        return self._native_graph("forward") if len(self._backward_compilers) == 1 else None

    def compile_backward(self) -> tuple[CompiledGraph | None, Callable[[list[Any]], Any]]:
        """The backward graph, as an executable unless it calls Python, and as a boxed function."""
        (compiler,) = self._backward_compilers
        with dynamo.no_other_trace():
            function = compiler.get_or_compile(saved_tensors_use_once=False)
        return self._native_graph("backward"), function

    def _native_graph(self, kind: str) -> CompiledGraph | None:
        graph = self.graphs[self.kinds.index(kind)] if kind in self.kinds else None
        if not isinstance(graph, CompiledGraph) or graph.imported.eager_calls:
            return None
        return None if graph.imported.object_inputs else graph

    def constants(self) -> list[torch.Tensor]:
        """Tensors that the compiled graphs read beside their inputs; one that runs eagerly has its own."""
        graphs = [graph for graph in self.graphs if isinstance(graph, CompiledGraph)]
        return [constant for graph in graphs for constant in graph.imported.constants]

    def _static_inputs(self, gm: GraphModule) -> dict[int, tuple[int, int] | None]:
        """Places of parameters and buffers among the inputs of the graph that AOTAutograd made, and their ranges."""
        num_tokens = aot_metadata.num_tokens()
        count = len(gm.graph.find_nodes(op="placeholder")) - num_tokens
        if count != (self._inner[-1].stop if self._inner else 0):
            return {}  # AOTAutograd made other inputs of those that it was given
        places = {
            *self._parts_of([*range(self._num_own), *self._lasting]),
            *aot_metadata.static_inputs(count),
        }
        return {num_tokens + place: self._promises.get(place) for place in sorted(places)}

    def _parts_of(self, inputs: Iterable[int]) -> set[int]:
        """What AOTAutograd's graph takes for these inputs, by place."""
        return {part for place in inputs for part in self._inner[place]}

    def _cache_key(self) -> str:
        """What else decides the code beside what torch's key holds."""
        state = trace_state.global_state(), aot.process_groups(), self.sharing
        parts = [*code_key(self.options), self.mode, state, sorted(self._promises.items())]
        digest = hashlib.sha256(repr(parts).encode()).hexdigest()
        return f"mlcc-{digest}"

    def compiler(self, kind: str) -> aot.Compiler:
        """The compiler of graphs of this kind: forward, backward or inference."""

        def compile_graph(gm: GraphModule, example_inputs: Sequence[Any]) -> Any:
            del example_inputs  # the graph's metadata says it all
            if kind == "forward":
                _check_is_differentiable(gm)
                aot_metadata.allow_repeated_backward()
            if not self._parts_of(self._lasting).isdisjoint(aot_metadata.written_inputs()[1]):
                raise StaticInputWrittenError

            def imported() -> CompiledGraph:
                code = self._import(gm, kind)
                if kind != "backward" and code.is_ready:
                    code.prepare()
                return code

            code = self._or_fall_back(gm, kind, imported)
            self.graphs.append(code)
            self.kinds.append(kind)
            return code

        return compile_graph

    def _or_fall_back(
        self, gm: GraphModule, kind: str, make: Callable[[], Any], *, is_new: bool = True
    ) -> Any:
        """What `make` makes of the graph, or what runs it eagerly; not `is_new`: it was counted."""
        start = time.perf_counter()
        try:
            with progress.compiling():
                return self._made(gm, kind, make)
        finally:
            add_callback_time(time.perf_counter() - start, is_new=is_new)

    def _made(self, gm: GraphModule, kind: str, make: Callable[[], Any]) -> Any:
        try:
            return make()
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

    def _import(self, gm: GraphModule, kind: str) -> CompiledGraph:
        """The graph, which is compiled when it is asked for, or already behind the calls (`tiers.py`)."""
        start = time.perf_counter()
        core = load_core()
        is_backward = kind == "backward"
        if not is_backward:
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
        seconds = time.perf_counter() - start

        text = builder.print()
        sources = [builder]  # which the core takes: another thread has the text
        place = eager_fallback.graph_line(gm.graph) or eager_fallback.calling_line()

        def compile_now() -> Any:
            start = time.perf_counter()
            executable = _compiled(core, sources.pop() if sources else text, self.options)
            progress.graph_done(executable.stats["kernels"])
            get_logger("perf").info(
                "%s graph: %d nodes imported in %.1f ms, compiled in %.1f ms: %s",
                kind,
                len(gm.graph.nodes),
                seconds * 1e3,
                (time.perf_counter() - start) * 1e3,
                in_words(executable.stats),
                extra={"place": place},
            )
            return executable

        compile_it, meanwhile = tiers.compile_behind(
            gm, imported, self.options, compile_now, is_backward=is_backward
        )

        # Torch stores a copy of the graph, which compiles it as well.
        once = Job(lambda: self._or_fall_back(gm, kind, compile_it, is_new=False))
        return AotGraph(
            once.result if is_backward or meanwhile is not None else compile_it,
            text,
            imported,
            self.options,
            is_backward=is_backward,
            num_tokens=0 if is_backward else aot_metadata.num_tokens(),
            meanwhile=meanwhile,
        )


def own_tensors(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
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


def _compiled(core: Any, source: Any, options: Mapping[str, Any]) -> Any:
    """The executable; GraphUnsupported where the core cannot, as where it needs a code generator that is missing.

    One that is broken is an Error under the option `strict`.
    """
    try:
        return core.compile(source, dict(options))
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


def _may_need_gradients(inputs: Sequence[Any]) -> bool:
    """Whether AOTAutograd may trace a backward pass too."""
    return torch.is_grad_enabled() and any(
        isinstance(value, torch.Tensor) and value.requires_grad for value in inputs
    )


_op_table: OpTable | None = None


def op_table() -> OpTable:
    """The pointwise ops that the core generates, by aten overload."""
    global _op_table
    if _op_table is None:
        _op_table = OpTable(load_core().op_table())
    return _op_table


def decomposition_table(has_gradients: bool) -> dict[Any, Callable[..., Any]]:
    """The decompositions that a trace for mlcc uses."""
    own = decompositions.table(frozenset(op_table().overloads()), has_gradients)
    return own | quantization.table()
