"""What mlcc changes in torch for the whole process, because torch has no hook for it; each where it is first needed."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import torch

from mlcc.torch_private import dynamo

_keep_numbers: ContextVar[bool] = ContextVar("mlcc.keep_numbers", default=False)


@contextlib.contextmanager
def keeping_numbers() -> Iterator[None]:
    """Python floats stay numbers in what AOTAutograd compiles inside."""
    _install_keep_numbers()
    token = _keep_numbers.set(True)
    try:
        yield
    finally:
        _keep_numbers.reset(token)


@functools.cache
def _install_keep_numbers() -> None:
    """Lets a compilation skip AOTAutograd's pass that makes tensors of Python floats.

    The pass expects each size symbol as an input of its own, as Dynamo adds them, and asks Dynamo to start again for
    floats that it cannot use; a trace without Dynamo has neither.
    """
    from torch._functorch._aot_autograd import graph_compile

    tensorify = getattr(graph_compile, "_apply_tensorify_python_scalars", None)
    if tensorify is None:
        return

    @functools.wraps(tensorify)
    def apply(module: torch.fx.GraphModule) -> None:
        if not _keep_numbers.get():
            tensorify(module)

    graph_compile._apply_tensorify_python_scalars = apply


# (views, others): packets of ops that may be computed again, beside those that torch knows
_recomputable: ContextVar[tuple[frozenset[Any], frozenset[Any]] | None] = ContextVar(
    "mlcc.recomputable", default=None
)


@contextlib.contextmanager
def recomputing(views: frozenset[Any], others: frozenset[Any]) -> Iterator[None]:
    """torch's partition may compute these ops again inside, too; `views` cost nothing."""
    _install_recomputable()
    token = _recomputable.set((views, others))
    try:
        yield
    finally:
        _recomputable.reset(token)


@functools.cache
def _install_recomputable() -> None:
    """Lets a call of the partitioner see more ops that may be computed again; it takes no list of them."""
    from torch._functorch import partitioners

    op_types = getattr(partitioners, "get_default_op_list", None)
    if op_types is None or not hasattr(partitioners, "OpTypes"):
        return

    @functools.wraps(op_types)
    def with_more() -> Any:
        types, more = op_types(), _recomputable.get()
        if more is None:
            return types
        views, others = more
        return replace(
            types,
            view_ops=types.view_ops | views,
            recomputable_ops=types.recomputable_ops | views | others,
            fusible_ops=types.fusible_ops | views | others,
        )

    partitioners.get_default_op_list = with_more


_backward_compilers: ContextVar[list[Any] | None] = ContextVar(
    "mlcc.backward_compilers", default=None
)


@contextlib.contextmanager
def keeping_backward_compilers() -> Iterator[list[Any]]:
    """The list gets what compiles the backward graphs of functions that AOTAutograd compiles inside."""
    _install_backward_compilers()
    kept: list[Any] = []
    token = _backward_compilers.set(kept)
    try:
        yield kept
    finally:
        _backward_compilers.reset(token)


@functools.cache
def _install_backward_compilers() -> None:
    """Lets us have a backward graph compiled before torch's own autograd function, which alone asks for it, runs."""
    from torch._functorch._aot_autograd import runtime_wrappers

    compiler_of: Any = getattr(runtime_wrappers, "_AutogradBackwardCompiler", None)
    if not hasattr(compiler_of, "get_or_compile"):
        return

    @functools.wraps(compiler_of, updated=())
    def make(*args: Any, **kwargs: Any) -> Any:
        compiler = compiler_of(*args, **kwargs)
        kept = _backward_compilers.get()
        if kept is not None:
            kept.append(compiler)
        return compiler

    runtime_wrappers._AutogradBackwardCompiler = make


@functools.cache
def save_floats() -> None:
    """Lets the backward pass read the floats that are inputs.

    torch's partition (2.13) takes a SymFloat for something that can be computed again, also where it is an input. What
    is saved and not read it drops.
    """
    from torch._functorch import partitioners

    choose = getattr(partitioners, "choose_saved_values_set", None)
    if choose is None:
        return

    @functools.wraps(choose)
    def with_floats(joint_graph: torch.fx.Graph, *args: Any, **kwargs: Any) -> Any:
        saved = choose(joint_graph, *args, **kwargs)
        inputs = joint_graph.find_nodes(op="placeholder")
        floats = [one for one in inputs if isinstance(one.meta.get("val"), torch.SymFloat)]
        return [*saved, *(one for one in floats if one not in saved)]

    partitioners.choose_saved_values_set = with_floats


def install_recurrent(
    backend: Callable[..., Any],
    decompositions: Mapping[str, Callable[..., Any]],
    is_taken: Callable[[torch.nn.Module], bool],
    is_compiling: Callable[[], bool],
) -> None:
    """Lets Dynamo look into the recurrent modules that `is_taken` names, and take ops apart by `decompositions`.

    Both only where it traces for `backend`, and the second also where `is_compiling`. The ops are overloads `input` in
    aten; a decomposition that returns NotImplemented leaves its op to torch's.
    """
    from torch._dynamo.variables.builder import VariableBuilder

    def is_ours() -> bool:
        return is_compiling() or dynamo.backend_under_way() is backend

    def instead_of(kernel: Callable[..., Any], decomposition: Callable[..., Any]) -> Any:
        @functools.wraps(kernel)
        def run(*args: Any) -> Any:
            result = decomposition(*args) if is_ours() else NotImplemented
            return kernel(*args) if result is NotImplemented else result

        return run

    for name, decomposition in decompositions.items():
        op = getattr(torch.ops.aten, name).input
        for key in (torch.DispatchKey.Autograd, torch.DispatchKey.CompositeImplicitAutograd):
            op.py_kernels[key] = instead_of(op.py_kernels[key], decomposition)
        op._dispatch_cache.clear()

    wrap_module = VariableBuilder.wrap_module

    @functools.wraps(wrap_module)
    def wrap(self: Any, value: Any) -> Any:
        if not isinstance(value, torch.nn.RNNBase) or not is_ours() or not is_taken(value):
            return wrap_module(self, value)
        with torch._dynamo.config.patch(allow_rnn=True):
            return wrap_module(self, value)

    VariableBuilder.wrap_module = wrap


@functools.cache
def guard_is_shared(is_stolen: Callable[[torch.UntypedStorage], bool]) -> None:
    """Let stolen storages say that they are not shared: torch's own function would end the process."""
    original = torch.UntypedStorage.is_shared

    def is_shared(self: torch.UntypedStorage) -> bool:
        return not is_stolen(self) and original(self)

    torch.UntypedStorage.is_shared = is_shared


@functools.cache
def key_by(own_key: Callable[..., Any]) -> None:
    """Lets a compilation bring its own key of AOTAutograd's cache, which takes none; None from `own_key`: torch's."""
    from torch._functorch._aot_autograd import autograd_cache

    torch_key = autograd_cache.autograd_cache_key

    @functools.wraps(torch_key)
    def key(mod: Any, example_inputs: Any, config: Any, *args: Any, **kwargs: Any) -> Any:
        own = own_key(mod, example_inputs, config)
        return own if own is not None else torch_key(mod, example_inputs, config, *args, **kwargs)

    autograd_cache.autograd_cache_key = key


@functools.cache
def check_graphs_by(check: Callable[[str], None]) -> None:
    """Lets us look at the files of a folder of AOTAutograd's cache before torch unpickles them: torch checks none."""
    from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCache

    iterate = AOTAutogradCache.iterate_over_candidates

    @functools.wraps(iterate)
    def iterate_over_checked(cls: Any, local: bool, remote: Any, key: str) -> Iterator[Any]:
        if local:
            check(cls._get_tmp_dir_for_key(key))
        yield from iterate(local, remote, key)

    AOTAutogradCache.iterate_over_candidates = classmethod(iterate_over_checked)


@functools.cache
def record_by(keep: Callable[[Any], bool]) -> None:
    """Lets us keep graphs as they will be stored: torch copies what it records, and not all can be copied."""
    from torch._dynamo.precompile_context import PrecompileContext

    record = PrecompileContext.record_artifact

    @functools.wraps(record)
    def record_or_keep(artifact: Any) -> None:
        if not keep(artifact):
            record(artifact)

    PrecompileContext.record_artifact = record_or_keep


def frame_parameters() -> inspect.Signature | None:
    """Of the function by which Dynamo compiles a frame; None where this torch has no such function, or no guards."""
    try:
        from torch._dynamo import convert_frame, guards

        guards.CheckFunctionManager.serialize_guards  # noqa: B018 (whether it is there)
        return inspect.signature(convert_frame._compile)
    except (ImportError, AttributeError):
        return None


def compile_frames_by(
    compile_or_load: Callable[..., Any], take_guards: Callable[..., bytes | None]
) -> None:
    """Lets a frame come from our store, and its guards go there; torch's own cache of frames drops some of them.

    `compile_or_load` is called with torch's function first; where `take_guards` is None, torch takes them.
    """
    from torch._dynamo import convert_frame, guards

    compile_frame = convert_frame._compile
    serialize = guards.CheckFunctionManager.serialize_guards

    @functools.wraps(compile_frame)
    def compile_frame_or_load(*args: Any, **kwargs: Any) -> Any:
        return compile_or_load(compile_frame, *args, **kwargs)

    @functools.wraps(serialize)
    def serialize_guards(*args: Any) -> Any:
        taken = take_guards(*args)
        return taken if taken is not None else serialize(*args)

    convert_frame._compile = compile_frame_or_load
    guards.CheckFunctionManager.serialize_guards = serialize_guards
