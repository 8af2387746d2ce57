"""Fake tensors: tracing functions with them, and running ops on them."""

from __future__ import annotations

import contextlib
import linecache
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch

from mlcc.torch_private import dynamo, symint_memo, symints


def outside_fake_mode() -> contextlib.AbstractContextManager[Any]:
    """Real tensors may be touched inside, although torch is tracing with fake ones."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    return unset_fake_temporarily()


def outside_traces() -> contextlib.AbstractContextManager[Any]:
    """Inside tensors are real, and no trace has what is done with them."""
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()


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
    others: Sequence[Any] = (),
) -> torch.fx.GraphModule:
    """The ATen graph of a function of fake tensors and numbers; `others` are tensors of the same trace."""
    from torch._dispatch.python import enable_python_dispatcher
    from torch._guards import detect_fake_mode
    from torch.fx.experimental.proxy_tensor import make_fx

    mode = detect_fake_mode([*args, *others])
    with enable_python_dispatcher(), mode or contextlib.nullcontext():
        return make_fx(function, decompositions, tracing_mode="real")(*args)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """A trace of this thread alone.

    Compiled functions that others call meanwhile ask whether something is compiling, and else refuse to run.
    """
    compiling = getattr(torch.compiler, "_compile_session_context", contextlib.nullcontext)
    with dynamo.no_other_trace(), compiling():
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
        symint_memo.remember(self.shape_env, in_graphs=not torch.is_grad_enabled())
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
                self.symbols[str(symints.sym_expr(size))] = (leaf, dim)
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
                low = symints.bound(value_range.lower)
                high = symints.bound(value_range.upper)
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


@contextlib.contextmanager
def without_tracebacks() -> Iterator[None]:
    """Inside, an op that refuses fake tensors of this thread raises, and does not log its traceback as well."""
    logger, thread = logging.getLogger("torch._subclasses.fake_tensor"), threading.get_ident()

    def keeps(record: logging.LogRecord) -> bool:
        return record.levelno < logging.ERROR or record.thread != thread

    logger.addFilter(keeps)
    try:
        yield
    finally:
        logger.removeFilter(keeps)


def python_texts(expressions: Sequence[Any]) -> list[str]:
    """Expressions of sympy as Python's."""
    from torch.utils._sympy.printers import PythonPrinter

    printer = PythonPrinter()
    return [printer.doprint(expression) for expression in expressions]


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
