"""`mlcc.jit`: functions and modules compiled without Dynamo.

A call is looked up by the structure of its arguments (nesting, dtypes, devices, ranks, layouts, requires-grad, the
modes that torch is in); sizes and numbers are symbols with guards. On a miss the function is traced with fake tensors
through AOTAutograd, by the same compilers as the backend's. Plain values that the trace reads from globals or closure
cells are guards; another object there is an error that names the variable, since nothing would notice that it changed.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import operator
import threading
from collections.abc import Callable, Sequence
from typing import Any, overload

import torch

from mlcc import config
from mlcc._errors import Error, InternalError, SideEffectError, StaticInputWrittenError
from mlcc._load import load_core
from mlcc.capture import (
    code_owners,
    eager_fallback,
    jit_remedies,
    reach,
    reads,
    stances,
    trace_symbols,
)
from mlcc.capture.calls import (
    PLAIN_LEAVES,
    Call,
    Description,
    RunsEagerly,
    contexts_of,
    form_of,
    layout_of,
    leaf_names,
    place_of,
    plain_function,
    repeated_tensors,
    varies,
)
from mlcc.capture.entries import Entry, Trace, entry_of, no_dispatch, run_in_core
from mlcc.capture.gradients import gradient_of
from mlcc.capture.guards import ModuleState, SizeGuards, exact
from mlcc.capture.jitted_module import JittedModule, module_of
from mlcc.capture.stances import ASSIGNED, ENVIRONMENT, IN_ENVIRONMENT, patched
from mlcc.capture.trace_store import TraceStore
from mlcc.logging import get_logger
from mlcc.torch_private import aot_metadata, dynamo, stance, trace_state, tracing

# Traces for one structure of arguments; a program that asks for the value of a number has one for each.
_MOST_TRACES = 64

# Modules and functions among the arguments that one function is traced for: their traces keep them alive.
_MOST_HELD = 8

# Traces of one function with fixed sizes of parameters.
_MOST_FIXED_TRACES = 16


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
    differentiable. Of a module it is a module with the same parameters, attributes and hooks, of a subclass of its
    class. Modules and functions among the arguments are traced by identity, 8 of each function at most. Where the
    function itself has to run, EagerFallbackWarning tells why, once.
    """
    if function is None:
        return functools.partial(jit, dynamic=dynamic, static=static)
    if not callable(function):
        raise Error(f"jit: found a {type(function).__name__}, expected a function or an nn.Module")
    if isinstance(function, JittedModule):
        function = function._mlcc_jit
    if isinstance(function, Jitted):
        function = function._function
    if isinstance(function, functools.partial):  # what it holds are arguments like others
        made = jit(function.func, dynamic=dynamic, static=static)
        return functools.partial(made, *function.args, **function.keywords)
    _refuse_state(function)
    jitted = Jitted(function, dynamic is not False, static)
    return module_of(jitted, function) if isinstance(function, torch.nn.Module) else jitted


class Jitted:
    """What `jit` returns: a callable that traces at the first call of each structure.

    Of a module, what `jit` returns has one.
    """

    def __init__(
        self, function: Callable[..., Any], dynamic: bool, static: Sequence[str | int]
    ) -> None:
        functools.update_wrapper(self, function, updated=())
        self._function = function
        self._module = _module_of(function)
        self._name = getattr(function, "__name__", type(function).__name__)
        self._dynamic = dynamic
        self._static = _static_names(function, static)
        self._signature = inspect.signature(plain_function(function)) if static else None
        self._entries: dict[Any, list[Entry]] = {}
        # Per key, what a trace had to know the values of; they are no symbols then.
        self._constants: dict[Any, set[trace_symbols.Place]] = {}
        # Finds what needs nothing of Python in the core; the entries above are for the rest.
        self._dispatch: Any = no_dispatch
        self._last_call: Description | None = None
        self._traces = 0
        self._told: set[str] = set()  # why calls ran eagerly
        self._is_disabled = stance.is_disabled(plain_function(function))
        # Of functions and modules among the arguments, by identity.
        self._held: set[tuple[int, ...]] = set()
        # Traces to come with fixed sizes of parameters among the arguments, at most.
        self._fixed_traces_left = _MOST_FIXED_TRACES
        self._store = TraceStore(function, plain_function(function), (dynamic, self._static))
        self._lock = threading.RLock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's result."""
        # First: Dynamo does not look at the rest then.
        if torch.compiler.is_compiling() and dynamo.is_traced():
            return self._function(*args, **kwargs)
        # The words of stances.is_option_given: a call of it would take as long as they do.
        if IN_ENVIRONMENT in ENVIRONMENT or "disable" in ASSIGNED or "disable" in patched():
            return self._look_up(args, kwargs)
        # NotImplemented under other stances than the default.
        result = self._dispatch(*args, **kwargs)
        return result if result is not NotImplemented else self._look_up(args, kwargs)

    def _look_up(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call that the core does not know, or under a stance of torch's compiler."""
        asked = stances.current() if stances.is_asked() else "default"
        if asked == "force_eager":
            return self._function(*args, **kwargs)
        if self._is_disabled:
            self._tell("torch.compiler.disable was applied to it", warns=False)
            return self._function(*args, **kwargs)
        if trace_state.under_modes():
            reason = "a mode of torch, a transform or forward-mode derivatives see the ops"
            self._tell(reason, warns=False)
            return self._function(*args, **kwargs)
        try:
            call = self._read_call(args, kwargs)
        except RunsEagerly as reason:
            self._tell(str(reason))
            call = None
        if call is None:
            return self._function(*args, **kwargs)
        entry = self._find(call)
        if entry is None:
            with self._lock:
                with dynamo.no_other_trace():  # which may have replaced parameters meanwhile
                    entry = self._find(call)
                if entry is None and asked == "fail_on_recompile":
                    raise Error(self._detected_recompile(call, args, kwargs))
                if entry is None and (asked == "eager_on_recompile" or self._is_full(call)):
                    return self._function(*args, **kwargs)
                if entry is None:
                    return self._trace_and_run(call, args, kwargs)
        if entry.has_other_facts():
            self._add_later(entry, call, args, kwargs)
        if entry.steals:
            from mlcc.capture.session import watch_weights

            # Parameters that took the place of others: the dispatch knows only those that are watched.
            watch_weights([*call.leaves, *entry.held])
        return self._run(entry, call, args, kwargs)

    def _is_full(self, call: Call) -> bool:
        """Whether there are as many traces as there may be for calls like this one."""
        if len(self._entries.get(call.key, ())) >= _MOST_TRACES:
            self._tell(f"{_MOST_TRACES} traces for other values did not fit")
            return True
        held = tuple(map(id, call.held))
        if held and held not in self._held and len(self._held) >= _MOST_HELD:
            self._tell(f"{_MOST_HELD} other functions or modules were arguments")
            return True
        return False

    def _detected_recompile(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        change = self._change(call, args, kwargs) if self._entries else "nothing is compiled yet"
        return (
            f"jit of {self._name}{self._place()}: detected recompile when torch.compiler's stance is "
            f"'fail_on_recompile': {change}"
        )

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

    def again(self, function: Callable[..., Any]) -> Any:
        """What `jit` would have made of another function."""
        return jit(function, dynamic=self._dynamic, static=self._static)

    def __repr__(self) -> str:
        return f"<mlcc.jit of {self._name}>"

    # -- lookup

    def _read_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """The call as leaves and key; RunsEagerly where the original function must run."""
        fixed: tuple[Any, ...] = ()
        if self._signature is not None:
            args, kwargs, fixed = self._take_static(args, kwargs)
        leaves: list[Any]
        if not kwargs and all(type(value) in PLAIN_LEAVES for value in args):
            leaves, structure = list(args), len(args)
        else:
            leaves, structure = trace_state.flatten((args, kwargs))
        forms = tuple(form_of(leaf, self._dynamic) for leaf in leaves)
        constants = tuple((name, exact(value)) for name, value in fixed)
        repeated = repeated_tensors(leaves)
        contexts = () if isinstance(structure, int) else contexts_of(structure)
        nesting = (structure, contexts) if contexts else structure
        key = (nesting, forms, constants, trace_state.global_state(), repeated)
        return Call(key, leaves, structure, fixed, repeated)

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

    def _find(self, call: Call) -> Entry | None:
        for entry in self._entries.get(call.key, ()):
            if entry.guard(call.leaves):
                return entry
        return None

    # -- tracing

    def _trace_and_run(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._log_recompile(call, args, kwargs)
        failure: Exception
        try:
            entry = self._trace(call)
        except InternalError:
            raise
        except Exception as error:
            if isinstance(error, Error) and not call.held:
                raise
            failure = error
            if tracing.is_data_dependent(error):
                if not self._may_read_data():
                    raise Error(self._data_dependence(error)) from None
                failure = SideEffectError("the model asks for the value of a tensor")
        else:
            self._add(entry, call, args, kwargs)
            return self._run(entry, call, args, kwargs)
        # What eager raises is no consequence of the trace's error.
        result = self._function(*args, **kwargs)
        self._add(self._trace_constants(call, failure), call, args, kwargs)
        return result

    def _add(self, entry: Entry, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if call.held:
            self._held.add(tuple(map(id, call.held)))
        self._entries.setdefault(call.key, []).append(entry)
        if self._signature is not None or _compares_by_itself(call):
            entry.facts = entry.later = None
        if entry.facts is not None:
            self._add_to_dispatch(entry.facts_by_default(), call, args, kwargs)

    def _add_later(self, entry: Entry, call: Call, args: Any, kwargs: Any) -> None:
        """The core's share of an entry, as soon as its graph is compiled, and anew when Dynamo is imported."""
        if not self._lock.acquire(blocking=False):
            return  # what this call runs is right as well; the next one asks again
        try:
            if entry.has_other_facts() and entry.take_facts() is not None:
                self._add_to_dispatch(entry.facts_by_default(), call, args, kwargs)
        finally:
            self._lock.release()

    def _trace_constants(self, call: Call, error: Exception) -> Entry:
        """A trace in place of one that failed although eager did not: with numbers, then sizes too, as constants.

        Functions that take an int or a float and no symbol are behind most of these errors. One that fails always
        makes an entry that runs the original function.
        """
        constants = self._constants[call.key]
        for symbols in (call.numbers, [*call.numbers, *call.sizes]) if self._dynamic else ():
            if isinstance(error, SideEffectError | Error) or constants.issuperset(symbols):
                continue
            constants.update(symbols)
            with contextlib.suppress(Exception):
                return self._trace(call)
        constants.clear()
        if isinstance(error, SideEffectError | Error) or tracing.is_unsupported(error):
            self._tell(str(error).split("\n")[0].removeprefix(f"jit of {self._name}: "))
        else:
            reason = f"its trace failed: {type(error).__name__}: {error}".split("\n")[0]
            if config.resolve()["strict"]:
                raise InternalError(f"jit of {self._name}: {reason}") from error
            self._tell(reason)
        return Entry(call)

    def _run(self, entry: Entry, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if entry.run is None:  # which its trace has told
            return self._function(*args, **kwargs)
        reason = entry.reason_to_run_eagerly(call.leaves)
        if reason:
            self._tell(reason)
            return self._function(*args, **kwargs)
        result = entry.run(call.leaves)
        # Nothing ran where the core, which may look closer, does not take the call.
        return result if result is not NotImplemented else self._function(*args, **kwargs)

    def _tell(self, reason: str, *, warns: bool = True) -> None:
        """Once, that the original function runs: in the log, and as a warning but for what programs do on purpose."""
        if reason in self._told:
            return
        self._told.add(reason)
        what = f"jit of {self._name}{self._place()}"
        eager_fallback.say(what, reason, jit_remedies.remedy, warns=warns)

    def _place(self) -> str:
        return place_of(plain_function(self._function))

    def _trace(self, call: Call) -> Entry:
        # Another trace would replace parameters that are read here.
        with dynamo.no_other_trace():
            stored = self._take_up(call)
        if stored is not None:
            return stored
        # A process that finds all in its caches does without Dynamo.
        from mlcc.capture.backend import prepare_torch

        prepare_torch()
        with dynamo.tracing(), tracing.without_tracebacks():
            while True:
                try:
                    return self._trace_once(call)
                except StaticInputWrittenError:
                    self._fixed_traces_left = 0
                except trace_symbols.NeedsConstants:
                    pass  # the next trace has more of them

    def _log_recompile(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        before, self._last_call = self._last_call, Description(call)
        self._traces += 1
        logger = get_logger("recompiles")
        if before is None or not logger.isEnabledFor(logging.INFO):
            return
        change = self._change(call, args, kwargs, before)
        logger.info("recompile %d of %s%s: %s", self._traces - 1, self._name, self._place(), change)

    def _change(
        self,
        call: Call,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        before: Description | None = None,
    ) -> str:
        """Why the newest trace that might do is not for this call."""
        names = leaf_names(plain_function(self._function), args, kwargs)
        entries = self._entries.get(call.key)
        if entries:
            difference = entries[-1].difference
            return (difference and difference(call, names)) or "a tensor that it holds changed"
        before = before or next(reversed(self._entries.values()))[-1].description
        return before.difference(Description(call), names)

    def _trace_once(self, call: Call) -> Entry:
        # A process that finds all in its caches does without what compiles.
        from mlcc.capture.session import Session, watch_weights
        from mlcc.capture.traced import TracedModule

        options = config.resolve({"torch_caches": False})
        steals = options["weights"] == "steal"
        if steals:
            watch_weights(call.leaves)
        fakes = tracing.Fakes()
        fixed = self._fix_places(call)
        constants = self._constants.setdefault(call.key, set())
        varying = [
            place
            for place, leaf in enumerate(call.leaves)
            if varies(leaf, self._dynamic)
            and (place, None) not in constants
            and place not in call.repeated
        ]
        inputs = {
            place: _fake_leaf(
                fakes, place, call.leaves[place], self._dynamic and place not in fixed, constants
            )
            for place in varying
        }
        own = self._own_module(call)
        floats = {place for place, leaf in enumerate(call.leaves) if type(leaf) is float}
        symbols = trace_symbols.Symbols(fakes.symbols, floats.__contains__)
        traced = TracedModule(self._function, self._name, own, call, varying, symbols)
        session = Session(None, options)
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
            raise trace_symbols.NeedsConstants
        numbers = [place for place, dim in constants if dim is None]
        module = ModuleState(own, reads.fields_of_class)
        metadata = fakes.metadata()
        if aot_metadata.reshapes_what_it_writes(metadata):
            raise SideEffectError("it changes elements and form of an argument")
        num_own = len(module.parameters)
        count = num_own + len(varying)
        written = aot_metadata.changed_inputs(metadata, count)
        gradient = None if steals else gradient_of(session, metadata)
        direct = session.forward_graph() if gradient else session.only_graph()
        is_all = aot_metadata.needs_no_wrapper(metadata)
        if direct is None or not is_all or direct.imported.num_inputs != count:
            direct = gradient = None
        trace = Trace(
            varying,
            SizeGuards.of_trace(fakes if self._dynamic else None, call.leaves, varying, numbers),
            traced.results,
            [varying[i - num_own] for i in written if i >= num_own] if written else None,
            self._dynamic and aot_metadata.returns_views(metadata),
            direct,
            gradient,
            compiled,
        )
        self._store.keep(call, trace, own, traced.outside)
        entry = entry_of(call, trace, module, traced.outside.held, session.constants())
        entry.steals = steals
        return entry

    def _take_up(self, call: Call) -> Entry | None:
        """The entry of a trace that another process stored."""
        own = self._own_module(call)
        found = self._store.take(call, own)
        if found is None:
            return None
        module = ModuleState(own, reads.fields_of_class)
        entry = entry_of(call, found.trace, module, found.held, [])
        entry.run = entry.run or run_in_core(entry, call, self._dynamic)
        if entry.run is None:
            self._store.tell("is traced again: the core cannot run it")
            return None
        return entry

    def _own_module(self, call: Call) -> torch.nn.Module | None:
        """The module whose parameters are the trace's: of more than one, or behind a library's wrapper, a list."""
        given = {id(one): one for one in call.modules}
        if self._module is not None:
            self._refuse_itself(self._module)
            for one in self._module.modules():
                given.pop(id(one), None)
            modules = [self._module, *given.values()]
            return torch.nn.ModuleList(modules) if given else self._module
        reached = reach.Reached(code_owners.is_user_code).add(self._function)
        reach.refuse_objects(reached)
        given = {id(one): one for one in (*reached.modules, *given.values())}
        return torch.nn.ModuleList(given.values()) if given else None

    def _refuse_itself(self, module: torch.nn.Module) -> None:
        """Error for what jit made of a module as its own submodule, in which nn.Module would go round for ever."""
        for name, one in module.named_modules():
            if isinstance(one, JittedModule) and one._mlcc_jit._function is module:
                raise Error(
                    f"jit of {self._name}: {name} is what jit made of this very module, and its submodule; "
                    "keep it elsewhere, or in a list"
                )

    def _fix_places(self, call: Call) -> set[int]:
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
        self, facts: dict[str, Any], call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if self._dispatch is no_dispatch:
            self._dispatch = load_core().CallDispatch()
        self._dispatch.add(args, kwargs, call.leaves, self._dynamic, facts)

    def _may_read_data(self) -> bool:
        """Whether a module says that its calls run eagerly where they ask for values of tensors."""
        module = self._function
        return isinstance(module, torch.nn.Module) and any(
            getattr(one, "mlcc_may_read_data", False) for one in module.modules()
        )

    def _data_dependence(self, error: BaseException) -> str:
        place = reads.user_line(error)
        return (
            f"jit of {self._name}{f' ({place})' if place else ''}: Python code asks for the value of a tensor; "
            "use torch.where for the choice, or leave this part outside of the function"
        )


for _name, _value in stance.wrapper_properties(operator.attrgetter("_function")).items():
    setattr(Jitted, _name, property(_value))


def _compares_by_itself(call: Call) -> bool:
    """Whether the core would ask an argument's class if it is equal to what the trace found."""
    registered = not isinstance(call.structure, int) and trace_state.registered_nodes(
        call.structure
    )
    return bool(registered) or any(
        inspect.getattr_static(type(one), "__eq__") is not object.__eq__ for one in call.modules
    )


def _fake_leaf(
    fakes: tracing.Fakes,
    place: int,
    leaf: Any,
    dynamic: bool,
    constants: set[trace_symbols.Place],
) -> Any:
    if isinstance(leaf, torch.Tensor):
        layout = layout_of(leaf)
        dynamic = dynamic and (layout == "c" or not isinstance(layout[0], tuple))
        fixed = [dim for one, dim in constants if one == place and dim is not None]
        return fakes.tensor(place, leaf, dynamic, fixed)
    if varies(leaf, dynamic) and (place, None) not in constants:
        return fakes.number(place, leaf)
    return leaf


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
        raise Error(reach.refusal(owner))


def _static_names(function: Callable[..., Any], static: Sequence[str | int]) -> tuple[str, ...]:
    if not static:
        return ()
    names = list(inspect.signature(plain_function(function)).parameters)
    chosen = []
    for one in [static] if isinstance(static, str | int) else static:
        name = names[one] if isinstance(one, int) and one < len(names) else one
        if name not in names:
            raise Error(f"jit: static parameter {one}: not one of {', '.join(names)}")
        chosen.append(str(name))
    return tuple(chosen)
