"""AOTAutograd and its cache: a graph module in, compiled passes out."""

from __future__ import annotations

import contextlib
import pickle
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._dynamo.utils import counters

from mlcc.torch_private import aot_key, dynamo, floats, patches, symints

try:
    from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler
    from torch._inductor.output_code import OutputCode

    HAS_AOT_CACHE = (
        hasattr(torch._functorch.config, "bundled_autograd_cache")
        and hasattr(torch._functorch.config, "force_non_lazy_backward_lowering")
        and hasattr(torch.compiler.config, "cache_key_tag")
    )
except ImportError:  # an older or newer torch: no cache of AOTAutograd for us

    class OutputCode:  # type: ignore[no-redef]
        """Stands in for torch's base class of cacheable code."""

    SerializableAOTDispatchCompiler = None
    HAS_AOT_CACHE = False

try:
    from torch._dynamo.aot_compile_types import SerializableCallable
except ImportError:  # a torch without `aot_compile`

    class SerializableCallable:  # type: ignore[no-redef]
        """Stands in for torch's base class of what `save_compiled_function` stores."""


Compiler = Callable[[torch.fx.GraphModule, Sequence[Any]], Any]

Boxed = Callable[[list[Any]], Any]


def cache_bypass(reason: str) -> Exception:
    """What `prepare_for_serialization` raises to keep a result out of torch's cache."""
    try:
        from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache
    except ImportError:
        return RuntimeError(reason)
    return BypassAOTAutogradCache(reason)


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
    # Takes long to import, and loading what was stored does without.
    from torch._functorch.aot_autograd import aot_module_simplified

    if any(isinstance(value, list | tuple | dict) for value in example_inputs):
        raise TypeError("nested example inputs are not supported")
    reads_floats = floats.reads_floats(module)
    if reads_floats:
        floats.restart_for_numbers(module, example_inputs)
    cached = cache_key is not None and HAS_AOT_CACHE and not _holds_tensors(module)
    if cached and reads_floats:
        cached = getattr(module, "_backend_id", None) in _wanted  # for the frame, whose guards tell
        cache_key = f"{cache_key} {uuid.uuid4()}"
    backward = _without_dynamo(backward)
    with contextlib.ExitStack() as context:
        if cached:
            forward = SerializableAOTDispatchCompiler(OutputCode, forward)
            inference = SerializableAOTDispatchCompiler(OutputCode, inference)
            backward = SerializableAOTDispatchCompiler(OutputCode, backward)
            context.enter_context(_whole_entries())
            context.enter_context(torch.compiler.config.patch(cache_key_tag=cache_key))
            context.enter_context(aot_key.own_keys())
        if not isinstance(module, torch.fx.GraphModule):
            context.enter_context(patches.keeping_numbers())
        if _has_while_loop(module):
            context.enter_context(_item_allowed(example_inputs))
        if any(may_overlap(result) for result in _results(module)):
            context.enter_context(_gradients_of_any_strides())
        counters["aot_autograd"]["total"] += 1
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
    return dynamo.without_dynamo(compiled, "do not trace compiled code")


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
    if symints.has_symbols(result):
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


def computes_sizes(module: torch.fx.GraphModule) -> bool:
    """Whether a graph of Dynamo's computes integers that are no symbols by themselves."""
    values = (node.meta.get("example_value") for node in module.graph.nodes)
    return any(
        isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)
        and not symints.is_atom(value)
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


def _whole_entries() -> contextlib.AbstractContextManager[Any]:
    """What is stored holds the compiled graphs, that of the backward pass too, which need not run in this process."""
    return torch._functorch.config.patch(
        bundled_autograd_cache=True, force_non_lazy_backward_lowering=True
    )


def _without_dynamo(compiler: Compiler) -> Compiler:
    """A backward compiler that Dynamo does not trace, whose result it does not trace either."""
    outer = dynamo.without_dynamo(compiler, "do not trace the backward compiler")

    def compile_backward(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        return dynamo.without_dynamo(
            outer(gm, example_inputs), "do not trace the compiled backward pass"
        )

    return compile_backward


# Graphs that are wanted in a form that can be stored, by torch's names, once they are compiled.
_wanted: dict[str, bytes | None] = {}


def want_graph(name: str) -> None:
    """Keep what torch records of this graph, before it is compiled."""
    patches.record_by(_keep_record)
    _wanted[name] = None


def has_graphs(names: Sequence[str]) -> bool:
    """Whether all of these graphs were kept."""
    return all(_wanted.get(name) is not None for name in names)


def take_graph(name: str) -> bytes:
    """A graph in the form that can be stored, which is then kept no longer."""
    return _wanted.pop(name) or b""


def drop_graphs(names: Sequence[str]) -> None:
    """These are not wanted any more."""
    for name in names:
        _wanted.pop(name, None)


def _keep_record(artifact: Any) -> bool:
    """Whether it is a graph of ours, which is kept: nothing for torch."""
    if artifact.key not in _wanted:
        return False
    with torch.utils._python_dispatch._disable_current_modes():
        _wanted[artifact.key] = pickle.dumps(artifact)
    return True


def load_graph(stored: bytes) -> Callable[..., Any]:
    """The function of a graph that `take_graph` gave to another process."""
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    entry = pickle.loads(stored).content
    entry.guards_expr = None  # on sizes: Dynamo's guards of the frame have them
    context = torch._guards.TracingContext(FakeTensorMode(shape_env=ShapeEnv()))
    with torch._guards.tracing(context):
        compiled = entry.wrap_post_compile([], entry.sanitized_aot_config, {})
    counters["aot_autograd"]["autograd_cache_hit"] += 1

    def run(*arguments: Any) -> Any:
        return compiled(list(arguments))

    return run


def is_ahead_of_time() -> bool:
    """Whether `torch.compile(...).aot_compile` compiles: what a backend returns must be a SerializableCallable."""
    return bool(getattr(torch._functorch.config, "bypass_autograd_cache_key", False))
