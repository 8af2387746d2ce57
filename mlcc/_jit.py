"""`mlcc.jit`: traces functions and modules by themselves, without Dynamo.

A call looks its signature up: the structure of its arguments, dtypes, devices, sizes and strides of tensors, which of
them share memory, the values of everything else, and torch's modes. A new signature is traced once with fake tensors through
AOTAutograd (so the result is differentiable, and mutated arguments are written back) and compiled like any graph.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Hashable, Mapping
from typing import Any, overload

import torch
from torch.utils import _pytree as pytree

from mlcc import _torch_compat, _trace_reads, backend, config
from mlcc._errors import Error
from mlcc.logging import get_logger

# Each entry holds compiled code for one signature.
_Entry = Callable[..., Any]


class JitFunction:
    """A function that runs compiled. Thread safe; signatures are traced under one lock."""

    def __init__(
        self, function: Callable[..., Any], static: tuple[str, ...], module: torch.nn.Module | None
    ) -> None:
        self._function = function
        self._static = static
        self._module = module
        self._entries: dict[Hashable, _Entry] = {}
        self._lock = threading.RLock()
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run on `args`; raises what the function raises eagerly, or mlcc.Error where it cannot be traced."""
        state = {} if self._module is None else _tensors_of(self._module)
        leaves, spec = pytree.tree_flatten((state, args, kwargs))
        if config.resolve(None)["disable"] or _must_run_eagerly(leaves):
            return self._function(*args, **kwargs)
        key = self._key(leaves, spec)
        entry = self._entries.get(key)
        if entry is not None:
            return entry(state, args, kwargs)
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return self._first_call(key, state, args, kwargs)
        return entry(state, args, kwargs)

    def _key(self, leaves: list[Any], spec: pytree.TreeSpec) -> Hashable:
        first_user: dict[int, int] = {}
        parts: list[Hashable] = [str(spec), *_torch_compat.global_state()]
        if self._module is not None:
            parts.append(tuple(module.training for module in self._module.modules()))
        for place, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor):
                owner = first_user.setdefault(leaf.untyped_storage()._cdata, place)
                parts.append((_signature(leaf), owner))
            else:
                parts.append((type(leaf), repr(leaf) if isinstance(leaf, float) else leaf))
        return tuple(parts)

    def _first_call(self, key: Hashable, state: Mapping[str, Any], args: Any, kwargs: Any) -> Any:
        _trace_reads.check(self._function, self._name())
        if self._entries:
            get_logger("recompiles").info(
                "recompile %d of %s: a new signature of its arguments",
                len(self._entries),
                self._name(),
            )
        tracing = _Tracing()
        entry = _torch_compat.trace_function(
            self._traced,
            *backend.compilers(None, config.resolve(None), tracing.compiled),
            decompositions=backend.decomposition_table(),
        )
        try:
            result = entry(state, args, kwargs)
        except Error:
            raise
        except Exception as error:
            if tracing.done:
                raise  # the run failed, as eager would
            return self._trace_failed(key, error, args, kwargs)
        self._entries[key] = entry
        return result

    def _trace_failed(self, key: Hashable, error: Exception, args: Any, kwargs: Any) -> Any:
        if _torch_compat.is_data_dependent(error):
            raise Error(
                f"{self._name()}: Python control flow on the value of a tensor "
                f"({type(error).__name__}); use torch.where or torch.cond, or compute the value outside "
                "and pass it as an argument"
            ) from error
        result = self._function(*args, **kwargs)  # raises eager's own exception if there is one
        get_logger("fallback").info("%s runs eagerly: tracing failed: %s", self._name(), error)
        self._entries[key] = lambda state, args, kwargs: self._function(*args, **kwargs)
        return result

    def _traced(self, state: dict[str, torch.Tensor], args: Any, kwargs: Any) -> Any:
        if self._module is None:
            return self._function(*args, **kwargs)
        return torch.func.functional_call(self._module, state, args, kwargs)

    def _name(self) -> str:
        if self._module is not None:
            return type(self._module).__name__
        return getattr(self._function, "__name__", repr(self._function))

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Methods: the instance becomes the first argument."""
        return self if instance is None else functools.partial(self, instance)


class _Tracing:
    """Whether tracing got as far as compiled code."""

    def __init__(self) -> None:
        self.done = False

    def compiled(self) -> None:
        self.done = True


def _tensors_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _signature(tensor: torch.Tensor) -> Hashable:
    return (
        type(tensor) is torch.nn.Parameter,
        tensor.dtype,
        tensor.device,
        tuple(tensor.shape),
        tensor.stride(),
        tensor.requires_grad,
        tensor.is_inference(),
    )


def _must_run_eagerly(leaves: list[Any]) -> bool:
    """Under modes that see each op, and with tensors that are more than dense memory, the original function runs."""
    if _torch_compat.has_interposed_modes():
        return True
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            if (
                type(leaf) not in (torch.Tensor, torch.nn.Parameter)
                or leaf.layout is not torch.strided
            ):
                return True
            if leaf.is_conj() or leaf.is_neg() or leaf.is_quantized:
                return True
        else:
            try:
                hash(leaf)
            except TypeError:
                return True
    return False


@overload
def jit(
    function: Callable[..., Any], *, dynamic: bool | None = None, static: tuple[str, ...] = ()
) -> Any: ...
@overload
def jit(
    function: None = None, *, dynamic: bool | None = None, static: tuple[str, ...] = ()
) -> Callable[..., Any]: ...
def jit(
    function: Callable[..., Any] | None = None,
    *,
    dynamic: bool | None = None,
    static: tuple[str, ...] = (),
) -> Any:
    """Compile a function or a module: `@mlcc.jit`, `@mlcc.jit(...)` or `mlcc.jit(module)`.

    function: takes and returns any nesting of tuples, lists and dicts of tensors; other arguments are constants.
    dynamic: sizes are part of the signature today, so None and False mean the same; True raises.
    static: names of arguments that are constants; all arguments that are not tensors are.

    A tensor, a module or a plain value that the function reads from a closure or a global raises mlcc.Error, which
    names the variable: pass it as an argument. So does Python control flow on the value of a tensor.
    """
    if dynamic:
        raise Error("mlcc.jit: dynamic=True is not supported yet, sizes are part of the signature")
    if function is None:
        return lambda real: jit(real, dynamic=dynamic, static=static)
    if isinstance(function, torch.nn.Module):
        return JitFunction(function.__call__, tuple(static), function)
    return JitFunction(function, tuple(static), None)
