"""`mlcc.jit`: functions and modules compiled without Dynamo.

A call is looked up by the structure of its arguments (nesting, dtypes, devices, ranks, layouts, requires-grad, the
modes that torch is in); sizes and numbers are symbols with guards. On a miss the function is traced with fake tensors
through AOTAutograd, by the same compilers as the backend's. What the trace would have to read from globals or closure
cells is an error that names the variable, since nothing would notice that it changed.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import inspect
import operator
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, overload

import torch

from mlcc import _reads, _torch_compat, backend, config
from mlcc._errors import Error, InternalError
from mlcc.logging import get_logger

# Arguments that are leaves for sure; a call of nothing else has their number as its structure.
_PLAIN_LEAVES = {torch.Tensor, torch.nn.Parameter, int, float, bool, str}
_CONSTANTS = (
    bool,
    str,
    type(None),
    enum.Enum,
    torch.dtype,
    torch.device,
    torch.memory_format,
    torch.layout,
)


@overload
def jit(
    function: Callable[..., Any], *, dynamic: bool | None = ..., static: Sequence[str | int] = ...
) -> Jitted: ...


@overload
def jit(
    *, dynamic: bool | None = ..., static: Sequence[str | int] = ...
) -> Callable[[Callable[..., Any]], Jitted]: ...


def jit(
    function: Any = None, *, dynamic: bool | None = None, static: Sequence[str | int] = ()
) -> Any:
    """Compile a function or an nn.Module, as `mlcc.jit(f)`, `@mlcc.jit` or `@mlcc.jit(static=("n",))`.

    With `dynamic=False` each shape is traced anew. `static` names (or counts) the parameters whose values are
    constants of the trace. The result is called like the function, and is differentiable.
    """
    if function is None:
        return functools.partial(jit, dynamic=dynamic, static=static)
    if not callable(function):
        raise Error(f"jit: found a {type(function).__name__}, expected a function or an nn.Module")
    return Jitted(function, dynamic is not False, static)


class Jitted:
    """What `jit` returns: a callable that traces at the first call of each structure."""

    def __init__(
        self, function: Callable[..., Any], dynamic: bool, static: Sequence[str | int]
    ) -> None:
        functools.update_wrapper(self, function, updated=())
        self._function = function
        self._module = function if isinstance(function, torch.nn.Module) else None
        self._name = getattr(function, "__name__", type(function).__name__)
        self._dynamic = dynamic
        self._static = _static_names(function, static)
        self._signature = inspect.signature(_plain_function(function)) if static else None
        self._entries: dict[Any, list[_Entry]] = {}
        self._last_call: _Description | None = None
        self._traces = 0
        self._lock = threading.RLock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's result."""
        if _torch_compat.under_modes():
            return self._function(*args, **kwargs)
        call = self._read_call(args, kwargs)
        if call is None:
            return self._function(*args, **kwargs)
        entry = self._find(call)
        if entry is None:
            with self._lock:
                entry = self._find(call)
                if entry is None and config.resolve()["disable"]:
                    return self._function(*args, **kwargs)
                if entry is None:
                    return self._trace_and_run(call, args, kwargs)
        if entry.run is None or (entry.writes_inputs and _share_memory(call.leaves)):
            return self._function(*args, **kwargs)
        return entry.run(call.leaves)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """In a class, the instance becomes the first argument."""
        return self if instance is None else functools.partial(self, instance)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or self.__dict__.get("_module") is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._module, name)

    def __repr__(self) -> str:
        return f"<mlcc.jit of {self._name}>"

    # -- lookup

    def _read_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call | None:
        """The call as leaves and key; None where the original function must run."""
        fixed: tuple[Any, ...] = ()
        if self._signature is not None:
            args, kwargs, fixed = self._take_static(args, kwargs)
        leaves: list[Any]
        if not kwargs and all(type(value) in _PLAIN_LEAVES for value in args):
            leaves, structure = list(args), len(args)
        else:
            leaves, structure = _torch_compat.flatten((args, kwargs))
        forms = []
        for leaf in leaves:
            form = _form_of(leaf, self._dynamic)
            if form is None:
                return None
            forms.append(form)
        if len(leaves) > 1:
            tensors = [id(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]
            if len(set(tensors)) != len(tensors):
                return None
        key = (structure, tuple(forms), fixed, _torch_compat.global_state())
        return _Call(key, leaves, structure, fixed)

    def _take_static(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, Any, tuple[Any, ...]]:
        assert self._signature is not None
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        fixed = tuple(
            (name, bound.arguments.pop(name)) for name in self._static if name in bound.arguments
        )
        rest = {name: value for name, value in bound.arguments.items() if name not in self._static}
        for name, value in fixed:
            try:
                hash(value)
            except TypeError:
                raise Error(
                    f"jit of {self._name}: static argument {name} is not hashable"
                ) from None
        return (), rest, fixed

    def _find(self, call: _Call) -> _Entry | None:
        for entry in self._entries.get(call.key, ()):
            if entry.guard(call.leaves):
                return entry
        return None

    # -- tracing

    def _trace_and_run(self, call: _Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        entry = _Entry()
        self._log_recompile(call, args, kwargs)
        try:
            self._trace(entry, call)
        except (Error, InternalError):
            raise
        except Exception as error:
            if _torch_compat.is_data_dependent(error):
                raise Error(self._data_dependence(error)) from None
            result = self._function(*args, **kwargs)  # raises what eager raises
            reason = f"{type(error).__name__}: {error}".split("\n")[0]
            get_logger("fallback").info("%s runs eagerly: its trace failed: %s", self._name, reason)
            entry.run, entry.guard = None, _always
            self._entries.setdefault(call.key, []).append(entry)
            return result
        self._entries.setdefault(call.key, []).append(entry)
        if entry.run is None or (entry.writes_inputs and _share_memory(call.leaves)):
            return self._function(*args, **kwargs)
        return entry.run(call.leaves)

    def _log_recompile(self, call: _Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        before, self._last_call = self._last_call, _Description(call)
        self._traces += 1
        logger = get_logger("recompiles")
        if before is None or not logger.isEnabledFor(20):
            return
        names = _leaf_names(_plain_function(self._function), args, kwargs)
        change = before.difference(self._last_call, names)
        place = _place_of(_plain_function(self._function))
        logger.info("recompile %d of %s%s: %s", self._traces - 1, self._name, place, change)

    def _trace(self, entry: _Entry, call: _Call) -> None:
        fakes = _torch_compat.Fakes()
        inputs = [
            _fake_leaf(fakes, place, leaf, self._dynamic) for place, leaf in enumerate(call.leaves)
        ]
        varying = [place for place, leaf in enumerate(call.leaves) if _varies(leaf)]
        traced = _TracedModule(self, call, varying)
        session = backend.Session(None, config.resolve({"torch_caches": False}))
        with fakes.tracing():
            compiled = session.compile(traced, [inputs[place] for place in varying])
        entry.guard = _all_of(
            _size_guard(fakes, call.leaves, self._dynamic), _module_guard(self._module)
        )
        metadata = fakes.metadata()
        entry.writes_inputs = _torch_compat.writes_inputs(metadata)
        direct = session.only_graph() if _torch_compat.needs_no_wrapper(metadata) else None
        parameters = _parameters(self._module)
        if direct is not None and direct.imported.num_inputs == len(parameters) + len(varying):
            entry.run = _direct_caller(direct, parameters, varying, traced)
        else:
            entry.run = _wrapped_caller(compiled, varying, traced)

    def _data_dependence(self, error: BaseException) -> str:
        place = _reads.user_line(error)
        return (
            f"jit of {self._name}{f' ({place})' if place else ''}: Python code asks for the value of a tensor; "
            "use torch.where for the choice, or leave this part outside of the function"
        )


class _Call:
    """The arguments of one call."""

    __slots__ = ("fixed", "key", "leaves", "structure")

    def __init__(self, key: Any, leaves: list[Any], structure: Any, fixed: tuple[Any, ...]) -> None:
        self.key = key
        self.leaves = leaves
        self.structure = structure
        self.fixed = fixed


class _Description:
    """What a log line says about a traced call."""

    def __init__(self, call: _Call) -> None:
        self._structure, self._forms, self._fixed, self._state = call.key
        self._shapes = [
            tuple(leaf.shape) if isinstance(leaf, torch.Tensor) else leaf if _varies(leaf) else None
            for leaf in call.leaves
        ]

    def difference(self, now: _Description, names: list[str]) -> str:
        """The first thing in which two calls differ, and what follows from it."""
        if self._structure != now._structure:
            return "the nesting or number of the arguments changed"
        for place, name in enumerate(names):
            if self._forms[place] != now._forms[place]:
                return _form_difference(name, self._forms[place], now._forms[place])
        if self._fixed != now._fixed:
            return "a static argument changed; each value is traced once"
        if self._state != now._state:
            return "grad, inference, autocast or deterministic mode or the default dtype changed"
        for name, old, new in zip(names, self._shapes, now._shapes, strict=True):
            if old != new and isinstance(old, tuple) and isinstance(new, tuple):
                dim = next(d for d in range(len(old)) if old[d] != new[d])
                return f"{name}.size({dim}) was {old[dim]}, now {new[dim]}, for which a guard of the trace fails"
            if old != new:
                return f"{name} was {old}, now {new}, for which a guard of the trace fails"
        return "an attribute, a parameter or a hook of the module changed"


def _form_difference(name: str, old: Any, new: Any) -> str:
    words = ("dtype", "device", "dim()", "layout", "requires_grad", "is_inference()")
    if len(old) == len(new) == len(words):
        for word, a, b in zip(words, old, new, strict=True):
            if a != b:
                return f"{name}.{word} was {a}, now {b}; each is traced once"
    return f"{name} was {_form_text(old)}, now {_form_text(new)}; each is traced once"


def _form_text(form: Any) -> str:
    if len(form) == 2:
        return repr(form[1])
    return "a tensor" if len(form) > 2 else f"a {form[0].__name__}"


def _leaf_names(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[str]:
    """How the user calls each leaf: x, or args[0]['key'] inside of containers."""
    try:
        parameters = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        parameters = []
    names = []
    for path in _torch_compat.leaf_paths((args, kwargs)):
        first, second, *rest = path
        positional = first == "[0]"
        number = int(second.strip("[]")) if positional else -1
        root = second.strip("[]'\"") if not positional else f"args{second}"
        if positional and number < len(parameters):
            root = parameters[number]
        names.append(root + "".join(rest))
    return names


def _place_of(function: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return ""
    return f" ({code.co_filename.rsplit('/', 1)[-1]}:{code.co_firstlineno})"


class _Entry:
    """One trace: when it holds, and how it runs (None: the original function)."""

    __slots__ = ("guard", "run", "writes_inputs")

    def __init__(self) -> None:
        self.guard: Callable[[list[Any]], bool] = _always
        self.run: Callable[[list[Any]], Any] | None = None
        self.writes_inputs = False


class _TracedModule(torch.nn.Module):
    """The function as AOTAutograd traces it: flat inputs that vary to a flat list of tensors and symbolic numbers."""

    def __init__(self, jitted: Jitted, call: _Call, varying: list[int]) -> None:
        super().__init__()
        if jitted._module is not None:
            self.traced = jitted._module
        self._call_function = (jitted._function,)  # in a tuple: a module would be registered twice
        self._structure = call.structure
        self._fixed = dict(call.fixed)
        self._constants = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in call.leaves]
        self._varying = varying
        self._name = jitted._name
        self._checked = False
        self.places: list[
            tuple[bool, Any]
        ] = []  # per output leaf: (is a result, its place or the constant)
        self.structure: Any = None

    def forward(self, *values: Any) -> list[Any]:
        """Run the function on fakes."""
        leaves = list(self._constants)
        for place, value in zip(self._varying, values, strict=True):
            leaves[place] = value
        args, kwargs = tuple(leaves), {}
        if not isinstance(self._structure, int):
            args, kwargs = _torch_compat.unflatten(leaves, self._structure)
        kwargs = {**kwargs, **self._fixed}
        with self._watch():
            result = self._call_function[0](*args, **kwargs)
        return self._flatten_result(result)

    def _watch(self) -> contextlib.AbstractContextManager[Any]:
        if self._checked:
            return contextlib.nullcontext()
        self._checked = True
        return _reads.refuse_outside_values(self._name)

    def _flatten_result(self, result: Any) -> list[Any]:
        leaves, self.structure = _torch_compat.flatten(result)
        results: list[Any] = []
        self.places = []
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor | torch.SymInt | torch.SymFloat):
                self.places.append((True, len(results)))
                results.append(leaf)
            else:
                self.places.append((False, leaf))
        return results

    def restore(self, results: Sequence[Any]) -> Any:
        """The function's result from the flat list."""
        leaves = [results[value] if is_result else value for is_result, value in self.places]
        return _torch_compat.unflatten(leaves, self.structure)


def _direct_caller(
    graph: Any, parameters: list[torch.Tensor], varying: list[int], traced: _TracedModule
) -> Callable[[list[Any]], Any]:
    """The compiled graph itself, without AOTAutograd's wrapper."""
    single = traced.places == [(True, 0)] and traced.structure == _LEAF

    def run(leaves: list[Any]) -> Any:
        results = graph([*parameters, *(leaves[place] for place in varying)])
        return results[0] if single else traced.restore(results)

    return run


def _wrapped_caller(
    compiled: Callable[..., Any], varying: list[int], traced: _TracedModule
) -> Callable[[list[Any]], Any]:
    def run(leaves: list[Any]) -> Any:
        return traced.restore(compiled(*(leaves[place] for place in varying)))

    return run


_LEAF = _torch_compat.flatten(0)[1]


def _always(leaves: list[Any]) -> bool:
    del leaves
    return True


# -- arguments


def _form_of(leaf: Any, dynamic: bool) -> Any:
    """What the key says of a leaf; None where jit steps aside. Error for what no trace can take."""
    kind = type(leaf)
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        if leaf.is_conj() or leaf.is_neg() or leaf.layout != torch.strided:
            return None
        layout = _layout_of(leaf) if dynamic else (leaf.shape, leaf.stride())
        return (
            leaf.dtype,
            leaf.device,
            leaf.dim(),
            layout,
            leaf.requires_grad,
            leaf.is_inference(),
        )
    if isinstance(leaf, torch.Tensor):
        return None
    if isinstance(leaf, _CONSTANTS):
        return (kind, leaf)
    if kind is int or kind is float:
        return (kind,) if dynamic else (kind, leaf)
    if isinstance(leaf, torch.nn.Module):
        raise Error(
            "jit: an argument is an nn.Module; jit the module itself, or a function of its tensors"
        )
    raise Error(
        f"jit: an argument is a {kind.__name__}, expected tensors, numbers, strings, and lists and dicts of them"
    )


def _layout_of(tensor: torch.Tensor) -> Any:
    """ "c" for row-major, the order of the dimensions for other dense layouts, else sizes and strides themselves."""
    if tensor.is_contiguous():
        return "c"
    strides, shape = tensor.stride(), tensor.shape
    order = sorted(range(tensor.dim()), key=lambda d: (strides[d], shape[d]))
    expected = 1
    for dim in order:
        if shape[dim] != 1 and strides[dim] != expected:
            return (tuple(shape), strides)
        expected *= shape[dim]
    return tuple(order) if 1 not in shape else (tuple(shape), strides)


def _varies(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) or type(leaf) in (int, float)


def _fake_leaf(fakes: _torch_compat.Fakes, place: int, leaf: Any, dynamic: bool) -> Any:
    if isinstance(leaf, torch.Tensor):
        layout = _layout_of(leaf)
        return fakes.tensor(
            place, leaf, dynamic and (layout == "c" or not isinstance(layout[0], tuple))
        )
    if _varies(leaf) and dynamic:
        return fakes.number(place, leaf)
    return leaf


def _share_memory(leaves: Iterable[Any]) -> bool:
    storages = [
        leaf.untyped_storage().data_ptr() for leaf in leaves if isinstance(leaf, torch.Tensor)
    ]
    return len(set(storages)) != len(storages)


def _plain_function(function: Callable[..., Any]) -> Callable[..., Any]:
    return function.forward if isinstance(function, torch.nn.Module) else function


def _static_names(function: Callable[..., Any], static: Sequence[str | int]) -> tuple[str, ...]:
    if not static:
        return ()
    names = list(inspect.signature(_plain_function(function)).parameters)
    chosen = []
    for one in [static] if isinstance(static, str | int) else static:
        name = names[one] if isinstance(one, int) and one < len(names) else one
        if name not in names:
            raise Error(f"jit: static parameter {one}: not one of {', '.join(names)}")
        chosen.append(str(name))
    return tuple(chosen)


# -- guards


def _all_of(*guards: Callable[[list[Any]], bool] | None) -> Callable[[list[Any]], bool]:
    given = [guard for guard in guards if guard is not None]
    if not given:
        return _always
    if len(given) == 1:
        return given[0]
    return lambda leaves: all(guard(leaves) for guard in given)


def _size_guard(
    fakes: _torch_compat.Fakes, leaves: list[Any], dynamic: bool
) -> Callable[[list[Any]], bool] | None:
    """Whether the sizes and numbers of a call are as the trace assumed."""
    if not dynamic:
        return None
    names, sources = [], []
    for name, (place, dim) in fakes.symbols.items():
        names.append(name)
        sources.append(f"leaves[{place}]" if dim is None else f"leaves[{place}].shape[{dim}]")
    symbolic = {source for source in fakes.symbols.values() if source[1] is not None}
    tests = []
    for place, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            for dim, size in enumerate(leaf.shape):
                if (place, dim) not in symbolic:
                    tests.append(f"leaves[{place}].shape[{dim}] == {size}")
    tests += fakes.guards()
    if not tests:
        return None
    lines = ["def guard(leaves):"]
    lines += [f"    {name} = {source}" for name, source in zip(names, sources, strict=True)]
    lines += ["    return " + " and ".join(f"({test})" for test in tests)]
    return _compile_guard("\n".join(lines))


def _compile_guard(text: str) -> Callable[[list[Any]], bool]:
    import math

    scope: dict[str, Any] = {"math": math, "torch": torch}
    exec(text, scope)
    guard: Callable[[list[Any]], bool] = scope["guard"]
    return guard


def _parameters(module: torch.nn.Module | None) -> list[torch.Tensor]:
    """Parameters and buffers in the order in which AOTAutograd makes them inputs."""
    if module is None:
        return []
    parameters = [tensor for _, tensor in module.named_parameters(remove_duplicate=False)]
    return parameters + [tensor for _, tensor in module.named_buffers(remove_duplicate=False)]


def _module_guard(module: torch.nn.Module | None) -> Callable[[list[Any]], bool] | None:
    """Whether a module still has the parameters, buffers, submodules, hooks and plain attributes of the trace."""
    if module is None:
        return None
    objects: list[tuple[dict[str, Any], list[Any]]] = []
    plain: list[tuple[dict[str, Any], tuple[str, ...], tuple[Any, ...]]] = []
    for one in module.modules():
        for name in ("_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks"):
            members = one.__dict__[name]
            objects.append((members, list(members.values())))
        names = tuple(
            n for n, v in one.__dict__.items() if isinstance(v, bool | int | float | str | None)
        )
        plain.append((one.__dict__, names, tuple(one.__dict__[n] for n in names)))

    def guard(leaves: list[Any]) -> bool:
        del leaves
        for members, values in objects:
            if len(members) != len(values) or not all(map(operator.is_, members.values(), values)):
                return False
        return all(tuple(map(members.get, names)) == values for members, names, values in plain)

    return guard
