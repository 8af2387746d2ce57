"""Every private interface of torch that mlcc uses, each with a feature test and a plain path where it is missing.

Nothing else in mlcc may touch torch's underscored modules (`_torch_sizes.py` and `_autoload.py` aside).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import linecache
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch._functorch.aot_autograd import aot_module_simplified
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.utils.checkpoint import CheckpointPolicy

from mlcc import _torch_sizes

try:
    from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler
    from torch._inductor.output_code import OutputCode

    HAS_AOT_CACHE = hasattr(torch._functorch.config, "bundled_autograd_cache") and hasattr(
        torch.compiler.config, "cache_key_tag"
    )
except ImportError:  # an older or newer torch: no cache of AOTAutograd for us

    class OutputCode:  # type: ignore[no-redef]
        """Stands in for torch's base class of cacheable code."""

    SerializableAOTDispatchCompiler = None
    HAS_AOT_CACHE = False

Compiler = Callable[[torch.fx.GraphModule, Sequence[Any]], Any]
Boxed = Callable[[list[Any]], Any]


def cache_bypass(reason: str) -> Exception:
    """What `prepare_for_serialization` raises to keep a result out of torch's cache."""
    try:
        from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache
    except ImportError:
        return RuntimeError(reason)
    return BypassAOTAutogradCache(reason)


# -- AOTAutograd


_keep_numbers: ContextVar[bool] = ContextVar("mlcc.keep_numbers", default=False)


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


@functools.cache
def _install_saved_floats() -> None:
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


def min_cut(views: Iterable[str], others: Iterable[str]) -> Callable[..., Any]:
    """torch's partition by minimal cut, where the named aten ops may be computed again too; `views` cost nothing."""

    def packets(names: Iterable[str]) -> frozenset[Any]:
        found = (getattr(torch.ops.aten, name, None) for name in names)
        return frozenset(packet for packet in found if packet is not None)

    more = packets(views), packets(others)

    def partition(joint: Any, *args: Any, **kwargs: Any) -> Any:
        _save_overwritten(joint.graph)
        _install_recomputable()
        _install_saved_floats()
        token = _recomputable.set(more)
        try:
            return min_cut_rematerialization_partition(joint, *args, **kwargs)
        finally:
            _recomputable.reset(token)

    return partition


def recompute(node: torch.fx.Node) -> None:
    """Lets the backward pass compute the node again, whatever that takes."""
    node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE


def save(node: torch.fx.Node) -> None:
    """Lets the forward pass save the node for the backward pass, if that needs it."""
    node.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def gradients_in(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """What depends on gradients of results, in the graph of both passes, and these themselves."""
    found: set[torch.fx.Node] = set()
    for node in graph.nodes:
        is_given = node.op == "placeholder" and "tangents" in str(node.target)
        if node.op != "output" and (is_given or not found.isdisjoint(node.all_input_nodes)):
            found.add(node)
    return found


def _save_overwritten(graph: torch.fx.Graph) -> None:
    """Let the backward pass read a copy of what the forward pass overwrites.

    torch's partition (2.13) takes an input that is written for one that is not: the backward pass would read what was
    written, or compute again from it.
    """
    copy = torch.ops.aten.copy_.default
    writes = [node for node in graph.nodes if node.target is copy]
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    backward = gradients_in(graph)
    needed = set(backward)
    for node in reversed(graph.nodes):
        if node in needed:
            needed.update(node.all_input_nodes)
    written = {node.args[0] for node in writes} & needed - backward
    for overwritten in filter(written.__contains__, inputs):
        with graph.inserting_after(inputs[-1]):
            saved = graph.call_function(torch.ops.aten.clone.default, (overwritten,))
        saved.meta = dict(overwritten.meta)
        save(saved)
        for user in list(overwritten.users):
            if user in needed and user is not saved and user.target is not copy:
                user.replace_input_with(overwritten, saved)


def compile_with_aot(
    module: Any,
    example_inputs: Sequence[Any],
    *,
    forward: Compiler,
    backward: Compiler,
    inference: Compiler,
    partition: Callable[..., Any],
    decompositions: dict[Any, Callable[..., Any]],
    cache_key: str | None,
) -> Callable[..., Any]:
    """Trace `module` to functional ATen graphs and hand each to its compiler.

    `module` is a GraphModule from Dynamo, or an nn.Module that takes and returns flat lists of tensors and numbers (its
    parameters and buffers become the first inputs); then the inputs are fake tensors, and there is no `cache_key`.
    The compilers return boxed callables: one list of inputs, which they may empty, in; a list of outputs out. With a
    `cache_key` they return `OutputCode`, and torch's cache of AOTAutograd stores and finds it under the graph plus
    that key; without one, or where this torch lacks the cache, nothing is stored.
    """
    if any(isinstance(value, list | tuple | dict) for value in example_inputs):
        raise TypeError("nested example inputs are not supported")
    context = contextlib.ExitStack()
    is_told_by_key = not _reads_floats(module) and not _holds_tensors(module)
    cached = cache_key is not None and HAS_AOT_CACHE and is_told_by_key
    backward = _without_dynamo(backward, cached)
    if cached:
        forward = SerializableAOTDispatchCompiler(OutputCode, forward)
        inference = SerializableAOTDispatchCompiler(OutputCode, inference)
        backward = SerializableAOTDispatchCompiler(OutputCode, backward)
        context.enter_context(_bundled_cache())
        context.enter_context(torch.compiler.config.patch(cache_key_tag=cache_key))
    if not isinstance(module, torch.fx.GraphModule):
        _install_keep_numbers()
        token = _keep_numbers.set(True)
        context.callback(_keep_numbers.reset, token)
    if _has_while_loop(module):
        context.enter_context(_item_allowed(example_inputs))
    if any(may_overlap(result) for result in _results(module)):
        context.enter_context(_gradients_of_any_strides())
    counters["aot_autograd"]["total"] += 1
    with context:
        compiled = aot_module_simplified(
            module,
            example_inputs,
            fw_compiler=forward,
            bw_compiler=backward,
            inference_compiler=inference,
            partition_fn=partition,
            decompositions=decompositions,
            keep_inference_input_mutations=True,
        )
    counters["aot_autograd"]["ok"] += 1
    return without_dynamo(compiled, "do not trace compiled code")


# -- recurrent layers


def scan(
    step: Callable[..., Any],
    carried: Sequence[torch.Tensor],
    rows: Sequence[torch.Tensor],
    others: Sequence[torch.Tensor],
) -> Any:
    """torch's scan over dimension 0 of `rows` as it stands in graphs: flat lists, and no look at `step` by Dynamo."""
    from torch._higher_order_ops.scan import scan_op

    return scan_op(step, list(carried), list(rows), tuple(others))


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
        return is_compiling() or _dynamo_backend() is backend

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


def _dynamo_backend() -> Any:
    """What Dynamo traces for just now."""
    from torch._dynamo.symbolic_convert import InstructionTranslator

    try:
        compiler = InstructionTranslator.current_tx().output.compiler_fn
    except AttributeError:
        return None
    compiler = inspect.unwrap(compiler)
    return getattr(compiler, "compiler_fn", compiler)


def _gradients_of_any_strides() -> contextlib.AbstractContextManager[None]:
    return torch._functorch.config.patch(guess_tangent_strides_as_outputs=False)


def _results(module: Any) -> list[Any]:
    """What a graph of Dynamo returns, as far as the trace tells."""
    if not isinstance(module, torch.fx.GraphModule):
        return []
    (output,) = module.graph.find_nodes(op="output")
    return [node.meta.get("example_value") for node in output.all_input_nodes]


def may_overlap(result: Any) -> bool:
    """Whether elements of a tensor may lie at one place, as windows do: strides that its gradient must not be given.

    torch 2.13 copies the gradients of compiled results to their strides, but for those of expanded tensors. Sizes that
    are symbols keep it from doing so.
    """
    if not isinstance(result, torch.Tensor) or result.layout != torch.strided:
        return False
    if _torch_sizes.has_symbols(result):
        return False
    axes = sorted(
        (stride, size)
        for stride, size in zip(result.stride(), result.shape, strict=True)
        if size > 1
    )
    reached = 0
    for stride, size in axes:
        if axes[0][0] > 0 and stride <= reached:
            return True
        reached += stride * (size - 1)
    return False


def _has_while_loop(module: Any) -> bool:
    return isinstance(module, torch.fx.GraphModule) and any(
        isinstance(node.target, torch._ops.HigherOrderOperator)
        and node.target.name() == "while_loop"
        for graph_module in module.modules()
        if isinstance(graph_module, torch.fx.GraphModule)
        for node in graph_module.graph.nodes
    )


@contextlib.contextmanager
def _item_allowed(example_inputs: Sequence[Any]) -> Iterator[None]:
    """item() may be traced: the gradient of a while_loop counts its rounds by it, whatever the user's settings."""
    mode = torch._guards.detect_fake_mode(list(example_inputs))
    if mode is None or mode.allow_scalar_outputs:
        yield
        return
    mode.allow_scalar_outputs = True
    try:
        yield
    finally:
        mode.allow_scalar_outputs = False


def _reads_floats(module: Any) -> bool:
    """Whether the graph depends on symbolic floats.

    AOTAutograd turns some of them into numbers under a guard, and torch's cache checks no guards on floats when it
    finds the graph again (torch 2.13): it would answer with another call's numbers.
    """
    if not isinstance(module, torch.fx.GraphModule):
        return False
    return any(
        isinstance(node.meta.get("example_value"), torch.SymFloat) for node in module.graph.nodes
    )


def computes_sizes(module: torch.fx.GraphModule) -> bool:
    """Whether a graph of Dynamo's computes integers that are no symbols by themselves."""
    values = (node.meta.get("example_value") for node in module.graph.nodes)
    return any(
        isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)
        and not _torch_sizes.is_atom(value)
        for value in values
    )


def _holds_tensors(module: Any) -> bool:
    """Whether graphs hold tensors beside parameters and buffers: torch's key tells their form only (torch 2.13)."""
    graphs = module.modules() if isinstance(module, torch.fx.GraphModule) else ()
    return any(
        type(value) is torch.Tensor
        for graph in graphs
        for name, value in vars(graph).items()
        if name not in ("_parameters", "_buffers", "_modules")
    )


def outside_fake_mode() -> contextlib.AbstractContextManager[Any]:
    """Real tensors may be touched inside, although torch is tracing with fake ones."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    return unset_fake_temporarily()


def run_on_fakes(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """What a function gives for the fake tensors among its arguments."""
    from torch._guards import detect_fake_mode

    mode = detect_fake_mode(torch.utils._pytree.tree_leaves((args, kwargs)))
    with mode or contextlib.nullcontext():
        return function(*args, **kwargs)


def add_call(
    graph: torch.fx.Graph, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> torch.fx.Node:
    """A new node, with what it gives for fake tensors in its metadata."""
    node = graph.call_function(target, args, kwargs)
    values = torch.fx.map_arg(args, lambda one: one.meta["val"])
    node.meta["val"] = run_on_fakes(target, values, kwargs)
    return node


def trace_on_fakes(
    function: Callable[..., Any],
    args: Sequence[Any],
    decompositions: dict[Any, Callable[..., Any]],
) -> torch.fx.GraphModule:
    """The ATen graph of a function of fake tensors and numbers."""
    from torch._dispatch.python import enable_python_dispatcher
    from torch._guards import detect_fake_mode
    from torch.fx.experimental.proxy_tensor import make_fx

    mode = detect_fake_mode(list(args))
    with enable_python_dispatcher(), mode or contextlib.nullcontext():
        return make_fx(function, decompositions, tracing_mode="real")(*args)


def functional_form(op: Any) -> Callable[..., Any] | None:
    """What a higher-order op that stands for a mutating op does to its arguments, in plain ops."""
    from torch._higher_order_ops import auto_functionalize

    forms = {
        "auto_functionalized": auto_functionalize.auto_functionalized_dense,
        "auto_functionalized_v2": auto_functionalize.auto_functionalized_v2_dense,
    }
    return forms.get(str(op)) if is_higher_order(op) else None


def process_groups() -> tuple[Any, ...]:
    """The place of this process among others, and its groups by name; () where it is alone.

    torch's key of the cache (2.13) has neither. Graphs made of DTensors depend on both: processes that share a cache
    would take each other's parts, and the next one may have other groups under the names that stand in the graph.
    """
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return ()
    world = distributed.distributed_c10d._world
    groups = sorted(
        (name, list(world.pg_group_ranks[group])) for group, name in world.pg_names.items()
    )
    return distributed.get_rank(), distributed.get_world_size(), groups


def _bundled_cache() -> contextlib.AbstractContextManager[Any]:
    return torch._functorch.config.patch(bundled_autograd_cache=True)


def without_dynamo(function: Callable[..., Any], reason: str) -> Callable[..., Any]:
    """`function`, never traced by Dynamo."""
    disable = torch._dynamo.disable
    if "reason" in inspect.signature(disable).parameters:
        return disable(function, reason=reason)
    return disable(function)


def _without_dynamo(compiler: Compiler, cached: bool) -> Compiler:
    """A backward compiler that Dynamo does not trace, whose result it does not trace either."""
    outer = without_dynamo(compiler, "do not trace the backward compiler")

    def compile_backward(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        code = without_dynamo(outer(gm, example_inputs), "do not trace the compiled backward pass")
        if cached and not torch._functorch.config.bundled_autograd_cache:
            return _LazyBackward(code)
        return code

    return compile_backward


class _LazyBackward:
    """A backward pass compiled when it first runs, that is outside the `with` of compile_with_aot.

    torch makes the cache entry between this compilation and the first call, so the setting that the entry needs holds
    from here to that call, in this thread.
    """

    def __init__(self, code: Boxed) -> None:
        functools.update_wrapper(self, code)
        self._code = code
        self._setting: contextlib.AbstractContextManager[Any] | None = _bundled_cache()
        self._setting.__enter__()

    def __call__(self, inputs: list[Any]) -> Any:
        if self._setting is not None:
            setting, self._setting = self._setting, None
            setting.__exit__(None, None, None)
        return self._code(inputs)


def decompositions_of(names: Sequence[str]) -> dict[Any, Callable[..., Any]]:
    """torch's decompositions of the named aten ops, functional overloads only; unknown names are left out.

    A name is an op ("native_layer_norm": all overloads) or one overload ("all.dim").
    """
    from torch._decomp import get_decompositions

    ops = []
    for name in names:
        packet_name, _, overload_name = name.partition(".")
        packet = getattr(torch.ops.aten, packet_name, None)
        if packet is None:
            continue
        op = getattr(packet, overload_name, None) if overload_name else packet
        if op is not None:
            ops.append(op)
    found: dict[Any, Callable[..., Any]] = get_decompositions(ops)
    return {op: function for op, function in found.items() if not _is_out_overload(op)}


def _is_out_overload(op: Any) -> bool:
    return is_op(op) and any(a.is_out for a in op._schema.arguments)


def reference(name: str) -> Callable[..., Any]:
    """torch's implementation of one of its functions by other ops."""
    from torch import _refs

    function: Callable[..., Any] = getattr(_refs, name)
    return function


def eager_memory_format(tensor: torch.Tensor) -> torch.memory_format:
    """The memory format in which eager's kernels give a result for a tensor, where they do not keep its strides."""
    from torch._prims_common import suggest_memory_format

    return suggest_memory_format(tensor)


def is_channels_last(tensor: torch.Tensor) -> bool:
    """Whether eager's kernels take a tensor of four dimensions for one in the memory format channels_last."""
    return tensor.dim() == 4 and eager_memory_format(tensor) == torch.channels_last


# -- type promotion

_PROMOTION_KINDS = {
    "default": "DEFAULT",
    "int_to_float": "INT_TO_FLOAT",
    "same": "NO_OPMATH",
    "compare": "ALWAYS_BOOL",
    "logical": "ALWAYS_BOOL",
    "test": "ALWAYS_BOOL",
    "select": "NO_OPMATH",
    "bool_to_long": "BOOL_TO_LONG",
}


def promote(rule: str, arguments: Sequence[Any]) -> tuple[torch.dtype, torch.dtype]:
    """torch's (dtype to compute in, dtype of the result) for tensors and numbers under one of the op table's rules.

    Arguments are (fake) tensors, Python numbers and SymInts; nothing is read but dtype, rank and kind.
    """
    from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

    kind = getattr(ELEMENTWISE_TYPE_PROMOTION_KIND, _PROMOTION_KINDS[rule])
    computed, result = elementwise_dtypes(*arguments, type_promotion_kind=kind)
    return computed, result


# -- what Dynamo is doing


@dataclass(frozen=True)
class Recompile:
    """Why Dynamo compiles a function again."""

    count: int  # 1 for the first recompile
    function: str
    filename: str
    line: int
    reason: str  # torch's words, one line


def current_frame() -> tuple[int, int] | None:
    """(frame id, how many times it was compiled before) of the compilation that is under way."""
    try:
        from torch._guards import CompileContext

        compile_id = CompileContext.current_compile_id()
    except (ImportError, AttributeError):
        return None
    if compile_id is None or compile_id.frame_id is None or compile_id.frame_compile_id is None:
        return None
    return int(compile_id.frame_id), int(compile_id.frame_compile_id)


def current_recompile() -> Recompile | None:
    """Why the compilation under way is not the first of its function; None if it is, or if torch does not say."""
    frame = current_frame()
    if frame is None or frame[1] == 0:
        return None
    try:
        from torch._dynamo.utils import guard_failures
    except ImportError:
        return None
    prefix = f"{frame[0]}/{frame[1] - 1}:"
    for code, reasons in guard_failures.items():
        for reason in reversed(reasons):
            if isinstance(reason, str) and reason.startswith(prefix):
                text = _first_line(reason.removeprefix(prefix))
                return Recompile(
                    frame[1], code.co_name, code.co_filename, code.co_firstlineno, text
                )
    return None


def _first_line(reason: str) -> str:
    text = reason.strip().split("\n", 1)[0]
    return re.sub(r"\s+", " ", text.split("  # ", 1)[0]).strip()


# -- dispatcher ops


def is_op(target: Any) -> bool:
    """Whether a graph node's target is an overload of a dispatcher op."""
    return isinstance(target, torch._ops.OpOverload)


def is_view(op: Any) -> bool:
    """Whether it is a dispatcher op whose one result is a view of its first argument."""
    if not is_op(op) or len(op._schema.returns) != 1 or not op._schema.arguments:
        return False
    info = op._schema.returns[0].alias_info
    first = op._schema.arguments[0].alias_info
    return info is not None and not info.is_write and first is not None and not first.is_write


def gives_views(op: Any) -> bool:
    """Whether it is a dispatcher op whose result is a list of views of its first argument, as split's."""
    if not is_op(op) or len(op._schema.returns) != 1 or not op._schema.arguments:
        return False
    is_list = str(op._schema.returns[0].type) == "List[Tensor]"
    return is_list and op._schema.arguments[0].alias_info is not None


@functools.cache
def number_arguments(op: Any) -> tuple[tuple[int, str], ...]:
    """Place and name of an op's arguments that are numbers of any dtype (Scalars), which may be optional."""
    schema = getattr(op, "_schema", None)
    number = torch._C.OptionalType(torch._C.NumberType.get())
    return tuple(
        (place, argument.name)
        for place, argument in enumerate(schema.arguments if schema is not None else ())
        if argument.type.isSubtypeOf(number)
    )


def is_random(op: Any) -> bool:
    """Whether a dispatcher op draws random numbers."""
    return torch.Tag.nondeterministic_seeded in op.tags


def is_foretold_wrongly(node: torch.fx.Node) -> bool:
    """Whether the fake result has another rank than the real one: `unique_consecutive` with dim < 0 (torch 2.13)."""
    if node.target is not torch.ops.aten.unique_consecutive.default:
        return False
    dim = node.kwargs.get("dim", node.args[3] if len(node.args) > 3 else None)
    return dim is not None and node.meta["val"][0].dim() != node.args[0].meta["val"].dim()


def is_object(value: Any) -> bool:
    """Whether a value in a graph is an object that torch passes on and does not look into, or the fake one of such."""
    if isinstance(value, torch.ScriptObject):
        return True
    try:
        from torch._library.fake_class_registry import FakeScriptObject
        from torch._library.opaque_object import is_opaque_value
    except ImportError:  # an older torch has no others
        return False
    return isinstance(value, FakeScriptObject) or is_opaque_value(value)


def is_higher_order(op: Any) -> bool:
    """Whether a graph node's target takes graphs or Python callables."""
    return isinstance(op, torch._ops.HigherOrderOperator)


def is_builtin_op(op: Any) -> bool:
    """Whether torch itself defines this dispatcher op, so that its schema can be trusted to tell all its effects."""
    return op.namespace in {"aten", "prims", "prim"}


# Functional collectives: they read their operands until someone waits for their results.
_BEGIN = {
    "all_gather_into_tensor",
    "all_gather_into_tensor_coalesced",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all_single",
    "broadcast",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced",
}


def group_work(op: Any) -> dict[str, bool]:
    """Whether an op begins work that processes do together, or waits for it, as facts of the graph IR."""
    if not is_op(op):
        return {}
    namespace, name = op._schema.name.split("::")
    if namespace == "_dtensor" and name == "shard_dim_alltoall":
        return {"begins": True, "waits": True}
    if namespace != "_c10d_functional" or op._overloadname != "default":
        return {}
    return {"waits": True} if name == "wait_tensor" else {"begins": True} if name in _BEGIN else {}


# How ops are dispatched where no other op is under way: when this module is imported.
_PLAIN_DISPATCH = (
    torch._C._dispatch_tls_local_include_set(),
    torch._C._dispatch_tls_local_exclude_set(),
)


@contextlib.contextmanager
def as_outside_of_ops() -> Iterator[None]:
    """Inside of an op of ours: ops are dispatched as in plain Python without gradients, on which functorch relies."""
    with torch.no_grad(), torch._C._ForceDispatchKeyGuard(*_PLAIN_DISPATCH):
        yield


# -- tracing without Dynamo


def flatten(value: Any, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[Any], Any]:
    """Leaves of nested tuples, lists and dicts, and their structure, which is hashable."""
    from torch.utils._pytree import tree_flatten

    return tree_flatten(value, is_leaf)


def unflatten(leaves: Sequence[Any], structure: Any) -> Any:
    """The inverse of `flatten`."""
    from torch.utils._pytree import tree_unflatten

    return tree_unflatten(list(leaves), structure)


def leaf_paths(value: Any) -> list[list[str]]:
    """Where each leaf of `flatten` stands: ["[0]", "[1]", "['key']"]."""
    from torch.utils._pytree import tree_flatten_with_path

    return [[str(key) for key in path] for path, _ in tree_flatten_with_path(value)[0]]


def matmul_precision() -> str:
    """What torch.set_float32_matmul_precision says of products on the CPU: medium (bf16 inside) or highest."""
    return "medium" if torch.backends.mkldnn.matmul.fp32_precision == "bf16" else "highest"


def global_state() -> tuple[Any, ...]:
    """What a trace depends on beside its arguments: grad, inference and autocast modes, determinism, default dtype,
    precision of products."""
    autocast = tuple(
        torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        for device in ("cpu", "cuda")
    )
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        autocast,
        torch.are_deterministic_algorithms_enabled(),
        torch.get_default_dtype(),
        matmul_precision(),
    )


def is_of_trace(value: Any) -> bool:
    """Whether it is a tensor as AOTAutograd's traces have them."""
    from torch._subclasses.fake_tensor import FakeTensor
    from torch._subclasses.functional_tensor import FunctionalTensor

    return type(value) in (FakeTensor, FunctionalTensor)


def has_other_storage(value: Any) -> bool:
    """Whether a tensor of a trace was given another memory (`set_`), which its wrapper does not show."""
    from torch._subclasses.functional_tensor import FunctionalTensor

    changed = getattr(torch, "_functionalize_was_storage_changed", None)
    return isinstance(value, FunctionalTensor) and changed is not None and changed(value.elem)


def is_real_parameter(value: Any) -> bool:
    """Whether, in a trace, it is no tensor of it, but a parameter or another one that requires gradients."""
    return is_real_tensor(value) and (value.requires_grad or type(value) is torch.nn.Parameter)


def is_real_tensor(value: Any) -> bool:
    """Whether, in a trace, it is a plain tensor that is none of it."""
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        return False
    is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    return not is_wrapped(value) and not torch._is_functional_tensor(value)


def global_module_hooks() -> list[dict[int, Any]]:
    """The hooks that run around the forward function of every module."""
    hooks = torch.nn.modules.module
    return [hooks._global_forward_hooks, hooks._global_forward_pre_hooks]


def is_traced() -> bool:
    """Whether this thread's call is what is compiled, as `torch.compiler.is_compiling` says of some thread's."""
    return (
        torch.compiler.is_dynamo_compiling()  # a constant for Dynamo, which drops the rest
        or torch._guards.TracingContext.try_get() is not None
        or torch._C._len_torch_dispatch_stack() > 0
    )


def under_modes() -> bool:
    """Whether someone watches or transforms the ops: a dispatch or function mode, a functorch level, or forward-mode
    derivatives."""
    return (
        torch._C._len_torch_dispatch_stack() > 0
        or torch._C._len_torch_function_stack() > 0
        or torch._C._functorch.maybe_current_level() is not None
        or torch.autograd.forward_ad._current_level >= 0
    )


def has_tangents(arguments: Sequence[Any]) -> bool:
    """Whether a tensor among them is a dual one, of forward-mode derivatives."""
    level = torch.autograd.forward_ad._current_level
    return level >= 0 and any(
        isinstance(one, torch.Tensor)
        and torch.autograd.forward_ad.unpack_dual(one, level=level).tangent is not None
        for one in arguments
    )


def no_other_trace() -> contextlib.AbstractContextManager[Any]:
    """No other thread traces inside: torch's tracing patches modules for all threads."""
    from torch._dynamo import convert_frame

    return getattr(convert_frame, "compile_lock", None) or contextlib.nullcontext()


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """A trace of this thread alone.

    Compiled functions that others call meanwhile ask whether something is compiling, and else refuse to run.
    """
    compiling = getattr(torch.compiler, "_compile_session_context", contextlib.nullcontext)
    with no_other_trace(), compiling():
        num_sources = len(_kept_sources())
        try:
            yield
        finally:
            _forget_symbols()
            _forget_sources(num_sources)


def _forget_symbols() -> None:
    """Empties torch's unbounded caches of what is known about symbols, which keep all past traces alive."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    for method in vars(ShapeEnv).values():
        clear = getattr(method, "cache_clear", None)
        if clear is not None:
            clear()


def _kept_sources() -> dict[str, str]:
    """The Python code of all graph modules so far, by name, which torch keeps for tracebacks and never lets go."""
    from torch.fx import graph_module

    return getattr(getattr(graph_module, "_loader", None), "eval_cache", {})


def _forget_sources(kept: int) -> None:
    """Drops all but the first ones: what a trace leaves is some 1.5 KB."""
    sources = _kept_sources()
    for name in list(sources)[kept:]:
        sources.pop(name, None)
        linecache.cache.pop(name, None)


class Fakes:
    """Fake stand-ins for the leaves of a call, with a symbol for each size and number that may change.

    `symbols` tells where the symbols come from: "s0" -> (leaf, dimension), dimension None for a number.
    """

    def __init__(self) -> None:
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        self.shape_env = ShapeEnv(duck_shape=False)
        self.mode = FakeTensorMode(shape_env=self.shape_env, allow_non_fake_inputs=True)
        self.symbols: dict[str, tuple[int, int | None]] = {}

    def tensor(
        self, leaf: int, value: torch.Tensor, dynamic: bool, fixed: Collection[int] = ()
    ) -> torch.Tensor:
        """A fake tensor of the same form, which shares memory with no other; `fixed` are dimensions without symbols."""
        from torch._dynamo.source import ConstantSource
        from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

        with torch.inference_mode(value.is_inference()):
            form = torch.empty_strided(
                value.shape, value.stride(), dtype=value.dtype, device=value.device
            )
        kinds = (DimDynamic.DYNAMIC, DimDynamic.STATIC)
        sizes = [kinds[dim in fixed] for dim in range(value.dim())]
        context = StatelessSymbolicContext(dynamic_sizes=sizes)
        fake = self.mode.from_tensor(
            form,
            static_shapes=not dynamic,
            source=ConstantSource(f"leaf{leaf}"),
            symbolic_context=context if dynamic else None,
        )
        for dim, size in enumerate(fake.shape):
            if isinstance(size, torch.SymInt):
                self.symbols[str(_torch_sizes.sym_expr(size))] = (leaf, dim)
        return fake.requires_grad_(value.requires_grad)

    def number(self, leaf: int, value: float) -> Any:
        """A SymInt or SymFloat."""
        from torch._dynamo.source import ConstantSource
        from torch.fx.experimental.symbolic_shapes import DimDynamic

        source = ConstantSource(f"leaf{leaf}")
        symbol = self.shape_env.create_unspecified_symbol(value, source, DimDynamic.DYNAMIC)
        self.symbols[str(symbol)] = (leaf, None)
        if isinstance(value, int):
            return self.shape_env.create_symintnode(symbol, hint=value, source=source)
        return self.shape_env.create_symfloatnode(symbol, hint=value, source=source)

    def guards(self) -> list[Any]:
        """Relations of sympy over the symbols that hold wherever the trace does."""
        import sympy

        relations: list[Any] = []
        for symbol, value_range in self.shape_env.var_to_range.items():
            if str(symbol) in self.symbols:
                low = _torch_sizes.bound(value_range.lower)
                high = _torch_sizes.bound(value_range.upper)
                if low is not None:
                    relations.append(sympy.Ge(symbol, low, evaluate=False))
                if high is not None:
                    relations.append(sympy.Le(symbol, high, evaluate=False))
        return relations + [guard.expr for guard in self.shape_env.guards]

    def tracing(self) -> contextlib.AbstractContextManager[Any]:
        """The context that AOTAutograd finds these fakes by."""
        from torch._guards import TracingContext, tracing

        self.context = TracingContext(self.mode)
        stack = contextlib.ExitStack()
        stack.enter_context(_alone())
        stack.enter_context(tracing(self.context))
        # So that nodes know the op that they were decomposed from.
        stack.enter_context(torch.fx.traceback.preserve_node_meta())
        stack.callback(self._forget_tensors)
        return stack

    def _forget_tensors(self) -> None:
        """Lets go of weak references to parameters: `torch.utils.swap_tensors` refuses tensors that have any."""
        converter = self.mode.fake_tensor_converter.meta_converter
        converter.describer = type(converter.describer)(copy_data=converter.copy_data)

    def metadata(self) -> Any:
        """What AOTAutograd found out about inputs and outputs, after it ran."""
        return getattr(self.context, "fw_metadata", None)


def python_texts(expressions: Sequence[Any]) -> list[str]:
    """Expressions of sympy as Python's."""
    from torch.utils._sympy.printers import PythonPrinter

    printer = PythonPrinter()
    return [printer.doprint(expression) for expression in expressions]


def _metadata() -> Any:
    """What AOTAutograd found out about inputs and outputs of the graph being compiled; None where it does not say."""
    return getattr(torch._guards.TracingContext.try_get(), "fw_metadata", None)


def written_inputs() -> tuple[int, tuple[int, ...]]:
    """How many inputs the graph being compiled has, its parameters first, and which of them the function writes into.

    (0, ()) where torch does not say.
    """
    info = getattr(_metadata(), "input_info", None) or []
    return len(info), tuple(place for place, one in enumerate(info) if one.mutates_data)


def num_tokens() -> int:
    """How many of the first inputs and outputs of the graph being compiled, no backward pass, are tokens of effects.

    torch passes None for them, but not to a graph that comes from its cache (torch 2.13).
    """
    return len(getattr(_metadata(), "tokens", None) or ())


def allow_repeated_backward() -> None:
    """Tell torch that the backward pass of the graph being compiled leaves saved tensors as they are.

    Else torch refuses a second run (`retain_graph=True`) of a pass that was compiled for one, or comes from its cache.
    """
    donated = getattr(_metadata(), "bw_donated_idxs", None)
    if donated:
        donated.clear()  # the list is also that of the metadata of tensor subclasses


def static_inputs(count: int) -> list[int]:
    """Places of parameters and buffers that Dynamo lifted, and of what `mark_static_address` marked.

    Nothing where the graph being compiled has not `count` inputs.
    """
    metadata = _metadata()
    info = getattr(metadata, "input_info", None) or []
    lifted = getattr(metadata, "static_input_indices", None) or []
    return list(lifted) if len(info) == count else []


def changed_inputs(metadata: Any, count: int) -> list[int]:
    """Which of `count` inputs the traced function changes, their elements or their form; all if torch does not say."""
    info = getattr(metadata, "input_info", None)
    if info is None:
        return list(range(count))
    return [i for i, one in enumerate(info) if one.mutates_data or one.mutates_metadata]


def reshapes_what_it_writes(metadata: Any) -> bool:
    """Whether an input's elements and its form both change.

    AOTAutograd's epilogue then gives the input the strides of the functional result, which lie densely, not its own.
    """
    info = getattr(metadata, "input_info", None)
    return info is not None and any(one.mutates_data and one.mutates_metadata for one in info)


def returns_views(metadata: Any) -> bool:
    """Whether a result of the traced function is a view of an input; True if torch does not say."""
    info = getattr(metadata, "output_info", None)
    return info is None or any(one.output_type.name == "alias_of_input" for one in info)


def _first_result() -> int:
    """The place of the first result among the outputs: tokens and inputs that torch writes itself come before."""
    return num_tokens() + int(getattr(_metadata(), "num_mutated_inp_runtime_indices", 0))


def num_results() -> int:
    """How many outputs of the graph being compiled, no backward pass, are for the caller: saved tensors follow them."""
    metadata = _metadata()
    info = getattr(metadata, "output_info", None)
    if metadata is None or info is None:
        return 0
    return _first_result() + len(info) + int(metadata.num_intermediate_bases)


def outputs_made_again() -> list[int]:
    """Places of the results of the graph being compiled that torch makes again as views of inputs."""
    return [
        place
        for place, one in enumerate(
            getattr(_metadata(), "output_info", None) or (), _first_result()
        )
        if one.output_type.name in ("alias_of_input", "is_input")
    ]


def needs_no_wrapper(metadata: Any) -> bool:
    """Whether the compiled graph alone does what the function does: plain outputs, inputs written by the graph only."""
    try:
        plain = {"non_alias", "unsafe_view_alias"}
        by_graph = {"NOT_MUTATED", "MUTATED_IN_GRAPH"}
        return (
            all(
                one.mutation_type.name in by_graph
                and not one.mutates_metadata
                and not one.mutates_storage_metadata
                for one in metadata.input_info
            )
            and all(one.output_type.name in plain for one in metadata.output_info)
            and metadata.num_intermediate_bases == 0
            and not metadata.is_rng_op_functionalized
            and not metadata.tokens
        )
    except AttributeError:
        return False


def is_data_dependent(error: BaseException) -> bool:
    """Whether a trace failed because Python code asked for the value of a tensor."""
    from torch._subclasses.fake_tensor import DataDependentOutputException
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    return isinstance(error, DataDependentOutputException | GuardOnDataDependentSymNode)


def is_unsupported(error: BaseException) -> bool:
    """Whether a trace failed at what torch's tracing does not take: an op without a rule for fake tensors, say, or a
    function that Dynamo compiles."""
    from torch._dynamo.exc import TorchDynamoException
    from torch._subclasses import fake_tensor

    names = ("UnsupportedFakeTensor", "UnsupportedOperator", "DynamicOutputShape")
    kinds = (getattr(fake_tensor, f"{name}Exception") for name in names)
    sets_storage = "Attempted to set the storage of a tensor on device" in str(error)
    return sets_storage or isinstance(error, (*kinds, TorchDynamoException, NotImplementedError))


@functools.cache
def guard_is_shared(is_stolen: Callable[[torch.UntypedStorage], bool]) -> None:
    """Let stolen storages say that they are not shared: torch's own function would end the process."""
    original = torch.UntypedStorage.is_shared

    def is_shared(self: torch.UntypedStorage) -> bool:
        return not is_stolen(self) and original(self)

    torch.UntypedStorage.is_shared = is_shared
