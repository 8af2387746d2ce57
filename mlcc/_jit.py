"""`mlcc.jit`: functions and modules compiled without Dynamo.

A call is looked up by the structure of its arguments (nesting, dtypes, devices, ranks, layouts, requires-grad, the
modes that torch is in); sizes and numbers are symbols with guards. On a miss the function is traced with fake tensors
through AOTAutograd, by the same compilers as the backend's. Plain values that the trace reads from globals or closure
cells are guards; another object there is an error that names the variable, since nothing would notice that it changed.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import inspect
import itertools
import logging
import math
import operator
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, overload

import torch

from mlcc import _reach, _reads, _recurrent, _symbols, _torch_compat, backend, config
from mlcc._errors import Error, InternalError, SideEffectError
from mlcc._jit_guards import (
    DERIVED,
    ModuleSnapshot,
    ModuleState,
    SizeGuards,
    all_of,
    always,
    exact,
    is_plain,
    keep_layouts,
)
from mlcc._load import load_core
from mlcc.logging import get_logger

# Traces for one structure of arguments; a program that asks for the value of a number has one for each.
_MOST_TRACES = 64
# Traces of one function with fixed sizes of parameters.
_MOST_FIXED_TRACES = 16

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
    constants of the trace. Under `torch.no_grad` arguments that are an nn.Parameter and are not written have fixed
    sizes (of 16 traces at most), so that what depends on them alone, as a packed weight, is kept from call to call;
    see `mlcc.clear_packs` for writes that nothing counts. The result is called like the function, and is
    differentiable.
    """
    if function is None:
        return functools.partial(jit, dynamic=dynamic, static=static)
    if not callable(function):
        raise Error(f"jit: found a {type(function).__name__}, expected a function or an nn.Module")
    if isinstance(function, Jitted):
        function = function._function
    if isinstance(function, functools.partial):  # what it holds are arguments like others
        made = jit(function.func, dynamic=dynamic, static=static)
        return functools.partial(made, *function.args, **function.keywords)
    _refuse_state(function)
    return Jitted(function, dynamic is not False, static)


class Jitted:
    """What `jit` returns: a callable that traces at the first call of each structure."""

    def __init__(
        self, function: Callable[..., Any], dynamic: bool, static: Sequence[str | int]
    ) -> None:
        functools.update_wrapper(self, function, updated=())
        self._function = function
        self._module = _module_of(function)
        self._name = getattr(function, "__name__", type(function).__name__)
        self._dynamic = dynamic
        self._static = _static_names(function, static)
        self._signature = inspect.signature(_plain_function(function)) if static else None
        self._entries: dict[Any, list[_Entry]] = {}
        # Per key, what a trace had to know the values of; they are no symbols then.
        self._constants: dict[Any, set[_symbols.Place]] = {}
        # Finds what needs nothing of Python in the core; the entries above are for the rest.
        self._dispatch: Any = _no_dispatch
        self._last_call: _Description | None = None
        self._traces = 0
        self._told: set[str] = set()  # why calls ran eagerly
        # Traces to come with fixed sizes of parameters among the arguments, at most.
        self._fixed_traces_left = _MOST_FIXED_TRACES
        self._lock = threading.RLock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's result."""
        # First: Dynamo does not look at the rest then.
        if torch.compiler.is_compiling() and _torch_compat.is_traced():
            return self._function(*args, **kwargs)
        result = self._dispatch(args, kwargs)
        if result is not NotImplemented:
            return result
        if _torch_compat.under_modes():
            self._tell("a mode of torch, a transform or forward-mode derivatives see the ops")
            return self._function(*args, **kwargs)
        try:
            call = self._read_call(args, kwargs)
        except _RunsEagerly as reason:
            self._tell(str(reason))
            return self._function(*args, **kwargs)
        entry = self._find(call)
        if entry is None:
            with self._lock:
                with _torch_compat.no_other_trace():  # which may have replaced parameters meanwhile
                    entry = self._find(call)
                if entry is None and config.resolve()["disable"]:
                    return self._function(*args, **kwargs)
                if entry is None and len(self._entries.get(call.key, ())) >= _MOST_TRACES:
                    self._tell(f"{_MOST_TRACES} traces for other values did not fit")
                    return self._function(*args, **kwargs)
                if entry is None:
                    return self._trace_and_run(call, args, kwargs)
        if entry.steals:
            # Parameters that took the place of others: the dispatch knows only those that are watched.
            backend.watch_weights([*call.leaves, *entry.held])
        return self._run(entry, call, args, kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """In a class, the instance becomes the first argument."""
        return self if instance is None else functools.partial(self, instance)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or self.__dict__.get("_module") is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._module, name)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, pickled or not, traces anew."""
        return Jitted, (self._function, self._dynamic, self._static)

    def __repr__(self) -> str:
        return f"<mlcc.jit of {self._name}>"

    # -- lookup

    def _read_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
        """The call as leaves and key; _RunsEagerly where the original function must run."""
        fixed: tuple[Any, ...] = ()
        if self._signature is not None:
            args, kwargs, fixed = self._take_static(args, kwargs)
        leaves: list[Any]
        if not kwargs and all(type(value) in _PLAIN_LEAVES for value in args):
            leaves, structure = list(args), len(args)
        else:
            leaves, structure = _torch_compat.flatten((args, kwargs))
        forms = tuple(_form_of(leaf, self._dynamic) for leaf in leaves)
        constants = tuple((name, exact(value)) for name, value in fixed)
        repeated = _repeated_tensors(leaves)
        key = (structure, forms, constants, _torch_compat.global_state(), repeated)
        return _Call(key, leaves, structure, fixed, repeated)

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
        self._log_recompile(call, args, kwargs)
        try:
            entry = self._trace(call)
        except (Error, InternalError):
            raise
        except Exception as error:
            if _torch_compat.is_data_dependent(error):
                raise Error(self._data_dependence(error)) from None
            result = self._function(*args, **kwargs)  # raises what eager raises
            self._add(self._trace_constants(call, error), call, args, kwargs)
            return result
        self._add(entry, call, args, kwargs)
        return self._run(entry, call, args, kwargs)

    def _add(
        self, entry: _Entry, call: _Call, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._entries.setdefault(call.key, []).append(entry)
        if entry.facts is not None:
            self._add_to_dispatch(entry.facts, call, args, kwargs)

    def _trace_constants(self, call: _Call, error: Exception) -> _Entry:
        """A trace in place of one that failed although eager did not: with numbers, then sizes too, as constants.

        Functions that take an int or a float and no symbol are behind most of these errors. One that fails always
        makes an entry that runs the original function.
        """
        constants = self._constants[call.key]
        for symbols in (call.numbers, [*call.numbers, *call.sizes]) if self._dynamic else ():
            if isinstance(error, SideEffectError) or constants.issuperset(symbols):
                continue
            constants.update(symbols)
            with contextlib.suppress(Exception):
                return self._trace(call)
        constants.clear()
        if isinstance(error, SideEffectError) or _torch_compat.is_unsupported(error):
            self._tell(str(error).split("\n")[0])
        else:
            reason = f"its trace failed: {type(error).__name__}: {error}".split("\n")[0]
            if config.resolve()["strict"]:
                raise InternalError(f"jit of {self._name}: {reason}") from error
            self._tell(reason)
        return _Entry()

    def _run(
        self, entry: _Entry, call: _Call, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if entry.run is None:  # which its trace has told
            return self._function(*args, **kwargs)
        reason = entry.reason_to_run_eagerly(call.leaves)
        if reason:
            self._tell(reason)
            return self._function(*args, **kwargs)
        return entry.run(call.leaves)

    def _tell(self, reason: str) -> None:
        """Once, that the original function runs."""
        if reason not in self._told:
            self._told.add(reason)
            get_logger("fallback").info("%s runs eagerly: %s", self._name, reason)

    def _trace(self, call: _Call) -> _Entry:
        with _torch_compat.no_other_trace():  # it would replace parameters that are read here
            while True:
                try:
                    return self._trace_once(call)
                except backend.StaticInputWrittenError:
                    self._fixed_traces_left = 0
                except _symbols.NeedsConstants:
                    pass  # the next trace has more of them

    def _log_recompile(self, call: _Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        before, self._last_call = self._last_call, _Description(call)
        self._traces += 1
        logger = get_logger("recompiles")
        if before is None or not logger.isEnabledFor(logging.INFO):
            return
        names = _leaf_names(_plain_function(self._function), args, kwargs)
        change = before.difference(self._last_call, names)
        place = _place_of(_plain_function(self._function))
        logger.info("recompile %d of %s%s: %s", self._traces - 1, self._name, place, change)

    def _trace_once(self, call: _Call) -> _Entry:
        entry = _Entry()
        options = config.resolve({"torch_caches": False})
        entry.steals = options["weights"] == "steal"
        if entry.steals:
            backend.watch_weights(call.leaves)
        fakes = _torch_compat.Fakes()
        fixed = self._fix_places(call)
        constants = self._constants.setdefault(call.key, set())
        varying = [
            place
            for place, leaf in enumerate(call.leaves)
            if _varies(leaf, self._dynamic)
            and (place, None) not in constants
            and place not in call.repeated
        ]
        inputs = {
            place: _fake_leaf(
                fakes, place, call.leaves[place], self._dynamic and place not in fixed, constants
            )
            for place in varying
        }
        own = self._own_module()
        floats = {place for place, leaf in enumerate(call.leaves) if type(leaf) is float}
        symbols = _symbols.Symbols(fakes.symbols, floats.__contains__)
        traced = _TracedModule(self, own, call, varying, symbols)
        session = backend.Session(None, options)
        try:
            with fakes.tracing(), symbols.answering():
                compiled = session.compile(
                    traced,
                    [inputs[place] for place in varying],
                    [number for number, place in enumerate(varying) if place in fixed],
                )
        finally:
            constants |= symbols.wanted
        if symbols.wanted:  # the program caught what ended the trace
            raise _symbols.NeedsConstants
        numbers = [place for place, dim in constants if dim is None]
        sizes = SizeGuards(fakes if self._dynamic else None, call.leaves, varying, numbers)
        module = ModuleState(own, _reads.fields_of_class)
        tensors = session.constants()
        entry.guard = all_of(
            sizes.holds(), module.holds(), traced.outside.holds(), keep_layouts(tensors)
        )
        metadata = fakes.metadata()
        if _torch_compat.reshapes_what_it_writes(metadata):
            raise SideEffectError("it changes elements and form of an argument")
        count = len(module.parameters) + len(varying)
        written = _torch_compat.changed_inputs(metadata, count)
        entry.held = [*module.parameters, *tensors]
        entry.returns_views = self._dynamic and _torch_compat.returns_views(metadata)
        if written:
            own = len(module.parameters)
            entry.written = [varying[place - own] for place in written if place >= own]
        direct = session.only_graph() if _torch_compat.needs_no_wrapper(metadata) else None
        if direct is None or direct.imported.num_inputs != count:
            entry.run = _wrapped_caller(compiled, varying, traced)
            return entry
        entry.run = _direct_caller(direct, module.parameters, varying, traced)
        if self._signature is None and not _autograd_sees(call.leaves, entry.written):
            writes = entry.written is not None
            entry.facts = _facts(direct, sizes, module, varying, writes, traced)
        return entry

    def _own_module(self) -> torch.nn.Module | None:
        """The module whose parameters are the trace's: of more than one, or behind a library's wrapper, a list."""
        if self._module is not None:
            return self._module
        reached = _reach.Reached(_reads.is_user_code).add(self._function)
        _reach.refuse_objects(reached)
        return torch.nn.ModuleList(reached.modules) if reached.modules else None

    def _fix_places(self, call: _Call) -> set[int]:
        """Those of parameters among the leaves, for one more trace.

        They live long, and what is computed from them alone is kept if their sizes are known. None where the function
        writes them, or was traced too often with such.
        """
        if torch.is_grad_enabled() or self._fixed_traces_left == 0:
            return set()
        places = {i for i, leaf in enumerate(call.leaves) if type(leaf) is torch.nn.Parameter}
        self._fixed_traces_left -= bool(places)
        return places

    def _add_to_dispatch(
        self, facts: dict[str, Any], call: _Call, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if self._dispatch is _no_dispatch:
            self._dispatch = load_core().CallDispatch()
        self._dispatch.add(args, kwargs, call.leaves, self._dynamic, facts)

    def _data_dependence(self, error: BaseException) -> str:
        place = _reads.user_line(error)
        return (
            f"jit of {self._name}{f' ({place})' if place else ''}: Python code asks for the value of a tensor; "
            "use torch.where for the choice, or leave this part outside of the function"
        )


class _Call:
    """The arguments of one call."""

    __slots__ = ("fixed", "key", "leaves", "repeated", "structure")

    def __init__(
        self,
        key: Any,
        leaves: list[Any],
        structure: Any,
        fixed: tuple[Any, ...],
        repeated: tuple[tuple[int, int], ...],
    ) -> None:
        self.key = key
        self.leaves = leaves
        self.structure = structure
        self.fixed = fixed
        self.repeated = dict(repeated)  # place of a tensor -> where the same one stands first

    @property
    def numbers(self) -> list[_symbols.Place]:
        """The leaves that may be symbols."""
        return [(i, None) for i, leaf in enumerate(self.leaves) if type(leaf) in (int, float)]

    @property
    def sizes(self) -> list[_symbols.Place]:
        """The dimensions that may be symbols."""
        tensors = (
            (i, leaf) for i, leaf in enumerate(self.leaves) if isinstance(leaf, torch.Tensor)
        )
        return [(i, dim) for i, leaf in tensors for dim in range(leaf.dim())]


class _Description:
    """What a log line says about a traced call."""

    def __init__(self, call: _Call) -> None:
        self._structure, self._forms, self._fixed, self._state, self._repeated = call.key
        self._shapes = [
            tuple(leaf.shape)
            if isinstance(leaf, torch.Tensor)
            else (leaf if _varies(leaf, True) else None)
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
            return (
                "grad, inference, autocast or deterministic mode, the default dtype "
                "or the precision of products changed"
            )
        if self._repeated != now._repeated:
            return "other arguments are one tensor; each such pattern is traced once"
        for name, old, new in zip(names, self._shapes, now._shapes, strict=True):
            if old != new and isinstance(old, tuple) and isinstance(new, tuple):
                dim = next(d for d in range(len(old)) if old[d] != new[d])
                return f"{name}.size({dim}) was {old[dim]}, now {new[dim]}, for which a guard of the trace fails"
            if old != new:
                return f"{name} was {old}, now {new}, for which a guard of the trace fails"
        return "an attribute, a parameter or a hook of the module, a global or a closure variable changed"


def _form_difference(name: str, old: Any, new: Any) -> str:
    words = ("__class__", "dtype", "device", "dim()", "layout", "requires_grad", "is_inference()")
    if len(old) == len(new) == len(words):
        for word, a, b in zip(words, old, new, strict=True):
            if a != b:
                return f"{name}.{word} was {a}, now {b}; each is traced once"
    return f"{name} was {_form_text(old)}, now {_form_text(new)}; each is traced once"


def _form_text(form: Any) -> str:
    if len(form) == 2:
        return repr(float.fromhex(form[1]) if form[0] is float else form[1])
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

    __slots__ = ("facts", "guard", "held", "returns_views", "run", "steals", "written")

    def __init__(self) -> None:
        self.facts: dict[str, Any] | None = None  # for the core's CallDispatch
        self.guard: Callable[[list[Any]], bool] = always
        self.run: Callable[[list[Any]], Any] | None = None
        # Which leaves the function writes; None if it writes nothing, neither leaves nor a module's tensors.
        self.written: list[int] | None = None
        # What it reads beside the leaves: a module's tensors, constants of the trace.
        self.held: list[torch.Tensor] = []
        # Views of arguments with symbolic sizes: AOTAutograd makes them anew as if those began where their memory does.
        self.returns_views = False
        self.steals = False  # option `weights`

    def reason_to_run_eagerly(self, leaves: Sequence[Any]) -> str:
        """Why these arguments are not for the trace, or ''."""
        if self.written is not None and _share_memory(leaves, self.held):
            return "an argument that may be written overlaps another one or what the function holds"
        if _autograd_sees(leaves, self.written):
            return "an argument is written that requires gradients"
        if self.returns_views and any(
            isinstance(leaf, torch.Tensor) and leaf.storage_offset() for leaf in leaves
        ):
            return "a result is a view of an argument that begins inside of its memory"
        return ""


def _reinterprets(result: torch.Tensor, given: Sequence[Any]) -> bool:
    """Whether it is a view of a tensor of another dtype, which AOTAutograd of torch 2.13 may give that one's dtype."""
    storage = result.untyped_storage()._cdata
    return any(
        isinstance(one, torch.Tensor)
        and one.dtype != result.dtype
        and one.untyped_storage()._cdata == storage
        for one in given
    )


def _unregistered(module: torch.nn.Module | None) -> str:
    """An attribute that a trace would take for a constant: a tensor to differentiate by, or a number of one element.

    Also where it stands in a list, a tuple or a dict, or is a parameter of a module there.
    """
    for one in module.modules() if module is not None else ():
        registered = {id(value) for value in (*one.parameters(), *one.buffers())}
        for name, value in one.__dict__.items():
            if name in _REGISTERED or (name in DERIVED and _recurrent.is_taken(one)):
                continue
            for part in _parts_of(value):
                is_constant = isinstance(part, torch.Tensor) and (
                    part.requires_grad or part.numel() < 2
                )
                if is_constant and id(part) not in registered:
                    return name
    return ""


_REGISTERED = ("_parameters", "_buffers", "_modules")


def _parts_of(value: Any) -> Iterator[Any]:
    """The tensors that a value is or holds: a container, a callable, an object, or a module that is no submodule."""
    if isinstance(value, list | tuple | set):
        for part in value:
            yield from _parts_of(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from _parts_of(part)
    elif isinstance(value, torch.Tensor):
        yield value
    else:
        reached = _reach.Reached(_reads.is_user_code).add(value)
        yield from reached.tensors
        for module in reached.modules:
            yield from (*module.parameters(), *module.buffers())


def _is_same_tree(found: tuple[list[Any], Any], leaves: list[Any], structure: Any) -> bool:
    """Whether the arguments still hold the leaves that they were made of."""
    if isinstance(structure, int):  # leaves only
        return True
    return found[1] == structure and all(map(operator.is_, found[0], leaves))


class _TensorState:
    """What a function may do to a tensor that no graph records: its `data`, `grad`, `requires_grad` and attributes.

    And its shape: where one input gets another shape and another one is written, AOTAutograd of torch 2.13 mistakes the
    one for the other.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self._before = self._now()

    def change(self) -> str:
        """Which part is another one now, or ''."""
        names = ("data", "shape", "grad", "requires_grad", "attributes")
        changed = (a != b for a, b in zip(self._before, self._now(), strict=True))
        return next((name for name, differs in zip(names, changed, strict=True) if differs), "")

    def _now(self) -> tuple[Any, ...]:
        tensor = self._tensor
        grad = id(tensor.grad) if tensor.is_leaf else 0
        storage = tensor.untyped_storage()._cdata, _torch_compat.has_other_storage(tensor)
        layout = (*tensor.shape, *tensor.stride())
        return storage, layout, grad, tensor.requires_grad, tuple(tensor.__dict__)


class _TracedModule(torch.nn.Module):
    """The function as AOTAutograd traces it: flat inputs that vary to a flat list of tensors and symbolic numbers."""

    def __init__(
        self,
        jitted: Jitted,
        own: torch.nn.Module | None,
        call: _Call,
        varying: list[int],
        symbols: _symbols.Symbols,
    ) -> None:
        super().__init__()
        self._module = (own,)
        if own is not None:
            self.traced = own
        self._name = jitted._name
        self._call_function = (jitted._function,)  # in a tuple: a module would be registered twice
        self._structure = call.structure
        self._fixed = dict(call.fixed)
        self._constants = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in call.leaves]
        self._varying = varying
        self._repeated = call.repeated
        # Watched once, in the first of AOTAutograd's runs.
        self._types = _symbols.TypeQuestions(symbols)
        self.outside = _reads.OutsideValues(
            _plain_function(jitted._function), jitted._name, self._types
        )
        self._checked = False
        # Per output leaf: (is a result, its place or the constant).
        self.places: list[tuple[bool, Any]] = []
        self.structure: Any = None
        self.ranks: list[int | None] = []  # of leaves of `structure` that are sizes, not places

    def forward(self, *values: Any) -> list[Any]:
        """Run the function on fakes."""
        leaves = list(self._constants)
        for place, value in zip(self._varying, values, strict=True):
            leaves[place] = value
        for place, first in self._repeated.items():
            leaves[place] = leaves[first]
        args, kwargs = tuple(leaves), {}
        if not isinstance(self._structure, int):
            args, kwargs = _torch_compat.unflatten(leaves, self._structure)
        name = _unregistered(self._module[0])
        if name:
            raise SideEffectError(
                f"attribute {name} is a tensor that changes; register it as a parameter or buffer"
            )
        before = ModuleSnapshot(self._module[0])
        states = [_TensorState(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]
        try:
            with self._watch([*leaves, *self.parameters()]):
                result = self._call_function[0](*args, **kwargs, **self._fixed)
        finally:
            changed = before.restore()
        if changed:
            raise SideEffectError(f"it changes the module's {changed}")
        for part in filter(None, (state.change() for state in states)):
            raise SideEffectError(f"it changes {part} of an argument")
        if not _is_same_tree(_torch_compat.flatten((args, kwargs)), leaves, self._structure):
            raise SideEffectError("it changes a list or dict that it was given")
        return self._flatten_result(result, leaves)

    @contextlib.contextmanager
    def _watch(self, inputs: list[Any]) -> Iterator[None]:
        if self._checked:
            with self._types.watch_again():
                yield
            return
        self._checked = True
        with (
            self.outside.watch(),
            _reads.TensorReads(inputs),
            _reads.ParameterReads(self._name),
        ):
            yield

    def _flatten_result(self, result: Any, inputs: list[Any]) -> list[Any]:
        # A size is a leaf here: torch's pytree would give a tuple back for it.
        leaves, self.structure = _torch_compat.flatten(result, lambda v: isinstance(v, torch.Size))
        self.ranks = [len(leaf) if isinstance(leaf, torch.Size) else None for leaf in leaves]
        results: list[Any] = []
        self.places = []
        given = [*inputs, *self.parameters()]
        for leaf in itertools.chain.from_iterable(
            leaf if isinstance(leaf, torch.Size) else (leaf,) for leaf in leaves
        ):
            is_leaf = isinstance(leaf, torch.Tensor) and leaf.requires_grad and leaf.is_leaf
            if is_leaf and not any(leaf is one for one in given):
                raise SideEffectError("a result is a new leaf that requires gradients")
            if isinstance(leaf, torch.Tensor) and _reinterprets(leaf, given):
                raise SideEffectError("a result is the memory of an argument as another dtype")
            if (
                isinstance(leaf, torch.Tensor)
                and leaf.requires_grad
                and _torch_compat.may_overlap(leaf)
            ):
                raise SideEffectError("a result with a gradient overlaps itself")
            if isinstance(leaf, torch.Tensor | torch.SymInt | torch.SymFloat):
                self.places.append((True, len(results)))
                results.append(leaf)
            elif isinstance(leaf, _CONSTANTS) or type(leaf) in (int, float, complex):
                self.places.append((False, leaf))
            else:
                raise SideEffectError(f"a result is a {type(leaf).__name__}")
        return results

    @property
    def is_single(self) -> bool:
        """Whether the result is one tensor or number."""
        return self.places == [(True, 0)] and self.structure == _LEAF and self.ranks == [None]

    @property
    def constants(self) -> list[Any]:
        """Leaves of the result that no graph computes, in their order."""
        return [value for is_result, value in self.places if not is_result]

    @property
    def nesting(self) -> Any:
        """The function's result with a number for each leaf: its place among results, then constants.

        None if the result holds other containers than tuples, lists and dicts.
        """
        constants = itertools.count(sum(is_result for is_result, _ in self.places))
        numbers = [value if is_result else next(constants) for is_result, value in self.places]
        nesting = self._nested(numbers)
        return nesting if _is_plain_nesting(nesting) else None

    def restore(self, results: Sequence[Any]) -> Any:
        """The function's result from the flat list."""
        return self._nested(
            [results[value] if is_result else value for is_result, value in self.places]
        )

    def _nested(self, values: Sequence[Any]) -> Any:
        given = iter(values)
        leaves = [
            next(given) if rank is None else torch.Size(itertools.islice(given, rank))
            for rank in self.ranks
        ]
        return _torch_compat.unflatten(leaves, self.structure)


def _is_plain_nesting(value: Any) -> bool:
    kind = type(value)
    if kind in (tuple, list, torch.Size):
        return all(map(_is_plain_nesting, value))
    if kind is dict:
        return all(map(_is_plain_nesting, value.values()))
    return kind is int


def _direct_caller(
    graph: Any, parameters: list[torch.Tensor], varying: list[int], traced: _TracedModule
) -> Callable[[list[Any]], Any]:
    """The compiled graph itself, without AOTAutograd's wrapper."""
    single = traced.is_single

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


def _no_dispatch(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    del args, kwargs
    return NotImplemented


def _facts(
    graph: Any,
    sizes: SizeGuards,
    module: ModuleState,
    varying: list[int],
    writes: bool,
    traced: _TracedModule,
) -> dict[str, Any] | None:
    """What the core's CallDispatch has to know of an entry; None if a guard has no counterpart there."""
    guards = sizes.as_expressions()
    defaults = traced.outside.defaults
    if guards is None or not all(is_plain(held) for _, held in defaults):
        return None
    if any(o.kind == "float" or isinstance(o.constant, float) for o in graph.imported.outputs):
        return None
    outputs = [
        (o.index, None) if o.kind == "value" else (-1, o.constant) for o in graph.imported.outputs
    ]
    outputs += [(-1, constant) for constant in traced.constants]
    return {
        "symbols": guards.symbols,
        "fixed_sizes": sizes.fixed,
        "fixed_numbers": sizes.numbers,
        "guards": guards.texts,
        "objects": module.objects,
        "plain": module.plain,
        "identical": module.identical,
        "containers": [
            (container, [(one, is_plain(one)) for one in held])
            for container, held in module.containers
        ],
        "globals": traced.outside.globals,
        "cells": traced.outside.cells,
        "defaults": [(function, *held) for function, held in defaults],
        "parameters": module.parameters,
        "constants": graph.imported.constants,
        "inputs": varying,
        "writes": writes,
        "outputs": outputs,
        "nesting": traced.nesting,
        "restore": traced.restore,
        "executable": graph.executable,
    }


# -- arguments


class _RunsEagerly(Exception):  # noqa: N818 (an expected answer)
    """Arguments for which the original function runs; the text says why."""


def _repeated_tensors(leaves: list[Any]) -> tuple[tuple[int, int], ...]:
    """(place of a tensor, where the same one stands first)."""
    first: dict[int, int] = {}
    repeated = []
    for place, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor) and first.setdefault(id(leaf), place) != place:
            repeated.append((place, first[id(leaf)]))
    return tuple(repeated)


def _form_of(leaf: Any, dynamic: bool) -> Any:
    """What the key says of a leaf. _RunsEagerly where jit steps aside, Error for what no trace can take."""
    kind = type(leaf)
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        if leaf.layout != torch.strided:
            raise _RunsEagerly(f"an argument is a tensor of layout {leaf.layout}")
        if leaf.is_conj() or leaf.is_neg():
            raise _RunsEagerly("an argument is a conjugate or negated view")
        for name in leaf.__dict__ if leaf.__dict__ else ():
            if name[0] != "_":
                raise _RunsEagerly(f"an argument has an attribute, {name}")
        layout = _layout_of(leaf) if dynamic else (leaf.shape, leaf.stride())
        return (
            kind.__name__,
            leaf.dtype,
            leaf.device,
            leaf.dim(),
            layout,
            leaf.requires_grad,
            leaf.is_inference(),
        )
    if isinstance(leaf, torch.Tensor | torch.Generator):
        raise _RunsEagerly(f"an argument is a {kind.__name__}")
    if isinstance(leaf, _CONSTANTS) or kind is complex:
        return exact(leaf)
    if kind is int or kind is float:
        return (kind,) if _varies(leaf, dynamic) else exact(leaf)
    if isinstance(leaf, torch.nn.Module):
        raise Error(
            "jit: an argument is an nn.Module; jit the module itself, or a function of its tensors"
        )
    raise Error(
        f"jit: an argument is a {kind.__name__}, expected tensors, numbers, strings, and lists and dicts of them"
    )


def _layout_of(tensor: torch.Tensor) -> Any:
    """ "c" for row-major, the order of the dimensions for other dense layouts, else sizes and strides themselves."""
    strides, shape = tensor.stride(), tensor.shape
    if tensor.is_contiguous():
        return (tuple(shape), strides) if _may_be_channels_last(tensor) else "c"
    order = sorted(range(tensor.dim()), key=lambda d: (strides[d], shape[d]))
    expected = 1
    for dim in order:
        if shape[dim] != 1 and strides[dim] != expected:
            return (tuple(shape), strides)
        expected *= shape[dim]
    return tuple(order) if 1 not in shape else (tuple(shape), strides)


def _may_be_channels_last(tensor: torch.Tensor) -> bool:
    """Of a row-major image or volume: whether strides of dimensions of size 1 tell torch's kernels another format."""
    if tensor.dim() not in (4, 5):
        return False
    elements = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if stride != elements:
            return True
        elements *= max(size, 1)
    return False


_INT_LIMIT = 2**31


def _varies(leaf: Any, dynamic: bool) -> bool:
    """Whether the leaf is an input of the trace.

    A NaN is a constant: to a symbol, it would be equal to itself. So is an infinity, a zero among floats, whose sign no
    relation tells, and an int whose products may not fit in 64 bits.
    """
    if isinstance(leaf, torch.Tensor):
        return True
    if not dynamic:
        return False
    return (type(leaf) is float and leaf != 0 and math.isfinite(leaf)) or (
        type(leaf) is int and abs(leaf) < _INT_LIMIT
    )


def _fake_leaf(
    fakes: _torch_compat.Fakes,
    place: int,
    leaf: Any,
    dynamic: bool,
    constants: set[_symbols.Place],
) -> Any:
    if isinstance(leaf, torch.Tensor):
        layout = _layout_of(leaf)
        dynamic = dynamic and (layout == "c" or not isinstance(layout[0], tuple))
        fixed = [dim for one, dim in constants if one == place and dim is not None]
        return fakes.tensor(place, leaf, dynamic, fixed)
    if _varies(leaf, dynamic) and (place, None) not in constants:
        return fakes.number(place, leaf)
    return leaf


def _share_memory(leaves: Iterable[Any], held: Iterable[torch.Tensor]) -> bool:
    """Whether two tensors overlap; one that is given twice is one."""
    storages = _storages({id(leaf): leaf for leaf in leaves}.values())
    return len(set(storages)) != len(storages) or not set(storages).isdisjoint(_storages(held))


def _storages(values: Iterable[Any]) -> list[int]:
    address_of = load_core().address_of
    return [
        address_of(value)
        for value in values
        if isinstance(value, torch.Tensor) and not value._is_zerotensor()
    ]


def _autograd_sees(leaves: Sequence[Any], written: list[int] | None) -> bool:
    """Whether autograd follows a leaf that is written.

    It refuses writes to its leaves, and the trace's inputs are leaves whatever the arguments are: AOTAutograd would
    hide the writes from it.
    """
    return torch.is_grad_enabled() and any(leaves[place].requires_grad for place in written or ())


def _module_of(function: Callable[..., Any]) -> torch.nn.Module | None:
    """The module that a call reads: the function itself, or the one whose bound method it is."""
    owner = getattr(function, "__self__", None) if inspect.ismethod(function) else function
    return owner if isinstance(owner, torch.nn.Module) else None


def _refuse_state(function: Callable[..., Any]) -> None:
    """Error for methods of objects and callable objects: nothing would notice that their attributes changed."""
    owner: Any = None
    if inspect.ismethod(function):
        owner = function.__self__
    elif inspect.isfunction(inspect.getattr_static(type(function), "__call__", None)):
        owner = None if hasattr(function, "__wrapped__") else function
    if owner is None or isinstance(owner, torch.nn.Module | type):
        return
    if not type(owner).__module__.startswith("torch."):
        raise Error(_reach.refusal(owner))


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
