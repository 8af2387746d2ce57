"""Dynamo's result for a frame, stored and taken up again: bytecode that replaces it, guards, and what both name.

torch has such a cache of its own (2.13, `caching_precompile`). It finds entries by the name and the line of a function,
drops guards that compare identities, and lends its entries to every backend; so only its hook, the record that Dynamo
fills while it compiles a frame, is used here.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import importlib
import types
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mlcc.torch_private import dynamo, fingerprints, frame_guards, patches, traced_code


@dataclass
class StoredFrame:
    """All that a frame needs in another process, but for the compiled graphs that it calls."""

    guards: bytes
    code: Any  # torch's SerializedCode
    imports: dict[str, str]  # modules by the names under which the code knows them
    resumes: dict[str, Any]  # code of the functions that go on after graph breaks, by name
    things: dict[str, tuple[str, str]]  # (module, qualified name) of what else the code names
    guarded: dict[str, tuple[str, str]]  # the same of what guards name
    graphs: list[str]  # names of compiled graphs
    traced: list[traced_code.TracedCode]
    sizes_seen: dict[str, Any]  # what makes Dynamo take a size for dynamic, by its name


@dataclass(frozen=True)
class Frame:
    """The frame that is to be compiled, and for what."""

    code: types.CodeType
    global_scope: dict[str, Any]
    local_scope: dict[str, Any]
    backend: Any  # torch's wrapper: its mode and options
    is_whole: bool  # no graph breaks are allowed
    fail: Callable[..., Any] | None
    closure: Any

    def settings(self) -> dict[str, Any]:
        """mode and options that the user gave to torch.compile."""
        return dict(getattr(self.backend, "kwargs", {}))


class Store:
    """Where frames are kept; `install` takes one."""

    def open(self, frame: Frame) -> Any:
        """What stands for the frame's place in the store; None where it is not to be used."""
        raise NotImplementedError

    def candidates(self, place: Any) -> Iterator[StoredFrame]:
        """Frames that were stored there, newest first."""
        raise NotImplementedError

    def graph(self, frame: StoredFrame, name: str, place: Any) -> Callable[..., Any]:
        """The compiled graph of that name."""
        raise NotImplementedError

    def keep(self, place: Any, frame: StoredFrame) -> None:
        """Store a frame that was compiled."""
        raise NotImplementedError

    def drop(self, graphs: Sequence[str]) -> None:
        """Forget the graphs of a frame that cannot be stored."""
        raise NotImplementedError

    def tell(self, frame: Frame, text: str) -> None:
        """Say what became of a frame."""
        raise NotImplementedError


class Recorder:
    """What Dynamo tells of a frame while it compiles it; the methods are those of torch's CompilePackage."""

    def __init__(self) -> None:
        self.guards = b""
        self.code: types.CodeType | None = None
        self.imports: dict[str, str] = {}
        self.guarded: dict[str, tuple[str, str]] = {}
        self.resumes: dict[str, types.CodeType] = {}
        self.graphs: list[str] = []
        self.traced: list[types.CodeType] = []
        self.installed: dict[str, Any] = {}  # what Dynamo added to the globals
        self.refused = ""  # why the frame cannot be stored

    def __bool__(self) -> bool:
        """False: so torch (2.13) leaves out a graph that holds parameters without a warning and its own guards.

        Such a graph is not noted for the store, and with it the frame.
        """
        return False

    @contextlib.contextmanager
    def code_context(self, code: types.CodeType) -> Iterator[None]:
        yield

    def add_guarded_code(self, guards_state: bytes, dynamo_code: types.CodeType) -> None:
        self.guards, self.code = guards_state, dynamo_code

    def add_inlined_source(self, sources: Sequence[types.CodeType]) -> None:
        self.traced = list(sources)

    def add_resume_function(
        self, python_code: types.CodeType, python_module: str, function_name: str
    ) -> None:
        self.resumes[function_name] = python_code

    def add_import_source(self, alias: str, module_name: str) -> None:
        self.imports[alias] = module_name

    def add_backend_id(self, backend_id: str, backend: Any = None) -> None:
        self.graphs.append(backend_id)

    def update_device_type(self, graph: Any) -> None:
        """Of no interest: what runs where stands in the graphs."""

    def bypass_current_entry(self) -> None:
        self.refused = self.refused or "Dynamo refuses it"

    def take_guards(
        self, manager: Any, builder: Any, guards: list[Any], output_graph: Any
    ) -> bytes:
        """In the place of torch's serialization."""
        found = output_graph.global_scope
        self.installed = {name: found.get(name) for name in output_graph.installed_globals}

        def rename(name: str) -> str:
            if name not in self.installed or name in self.imports:
                return name
            own = f"__mlcc_{uuid.uuid4().hex}_{name}"
            self.guarded[own] = _place(name, self.installed[name])
            return own

        try:
            return frame_guards.store(
                manager, builder, guards, output_graph, functools.cache(rename)
            )
        except frame_guards.NotStorableError as error:
            self.refused = str(error)
        except Exception as error:  # a value's own code, run to compare it
            self.refused = f"{type(error).__name__}: {error}"
        return b""

    def _traced(self, own: types.CodeType) -> list[traced_code.TracedCode]:
        if fingerprints.takes_order_of_hashes(own):
            raise frame_guards.NotStorableError("the order of a set")
        try:
            return traced_code.traced([code for code in self.traced if code is not own])
        except traced_code.NowhereError as error:
            raise frame_guards.NotStorableError(str(error)) from error

    def stored(self, own: types.CodeType, sizes_seen: dict[str, Any]) -> StoredFrame:
        """The frame of that code, for the store. NotStorableError where something in it belongs to this process."""
        from torch._dynamo.package import SerializedCode

        if self.refused or self.code is None or not self.guards:
            raise frame_guards.NotStorableError(self.refused or "Dynamo made no code")
        known = {*self.imports, *self.graphs, *self.resumes}
        named = set[str]().union(*map(_names, (self.code, *self.resumes.values())))
        things = {
            name: _place(name, self.installed[name]) for name in named & {*self.installed} - known
        }
        return StoredFrame(
            self.guards,
            SerializedCode.from_code_object(self.code),
            self.imports,
            {name: SerializedCode.from_code_object(code) for name, code in self.resumes.items()},
            things,
            self.guarded,
            self.graphs,
            self._traced(own),
            sizes_seen,
        )


def _place(name: str, value: Any) -> tuple[str, str]:
    """Where another process finds a module, a function or class of one, or the builtins."""
    if value is vars(builtins):
        place = "builtins", "__dict__"
    elif isinstance(value, types.ModuleType):
        place = value.__name__, ""
    else:
        place = getattr(value, "__module__", ""), getattr(value, "__qualname__", "")
    if not all(isinstance(part, str) for part in place) or _at(place) is not value:
        raise frame_guards.NotStorableError(f"a value of this process: {name}")
    return place


def _at(place: tuple[str, str]) -> Any:
    """The module, function or class of that name; None where there is none."""
    module, qualname = place
    try:
        found: Any = importlib.import_module(module)
        for part in filter(None, qualname.split(".")):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError):
        return None
    return found


def _names(code: types.CodeType) -> set[str]:
    inner = [_names(one) for one in code.co_consts if isinstance(one, types.CodeType)]
    return set(code.co_names).union(*inner)


# -- hooks


def install(store: Store, is_ours: Callable[[Any], bool]) -> None:
    """Frames that Dynamo compiles for a backend of which `is_ours` is true go through `store`.

    Nothing changes where torch lacks the hooks, for other backends, and while torch's own cache of frames is on.
    """
    parameters = patches.frame_parameters()
    hooks = {"package", "compiler_fn", "hooks", "compile_id", "export", "one_graph", "closure"}
    if parameters is None or not hooks <= set(parameters.parameters):
        return

    def compile_or_load(compile_frame: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        call = parameters.bind(*args, **kwargs)
        call.apply_defaults()
        given = call.arguments
        frame = _frame(given, is_ours)
        place = _open(store, frame) if frame is not None else None
        if frame is None or place is None:
            return compile_frame(*args, **kwargs)
        loaded = _load(store, place, frame, given)
        if loaded is not None:
            return loaded
        recorder = given["package"] = Recorder()
        result = compile_frame(*call.args, **call.kwargs)
        if getattr(result, "guarded_code", None) is not None:
            _keep(store, place, frame, recorder)
        return result

    def take_guards(
        manager: Any, builder: Any, sorted_guards: list[Any], output_graph: Any
    ) -> bytes | None:
        recorder = getattr(output_graph, "package", None)
        if not isinstance(recorder, Recorder):
            return None
        return recorder.take_guards(manager, builder, sorted_guards, output_graph)

    patches.compile_frames_by(compile_or_load, take_guards)


def _frame(given: dict[str, Any], is_ours: Callable[[Any], bool]) -> Frame | None:
    """The frame of a call of Dynamo's compiler, where it may come from a store."""
    from torch._dynamo.eval_frame import innermost_backend

    hooks = given["hooks"]
    backend = innermost_backend(given["compiler_fn"])
    if (
        given["package"] is not None
        or given["code"].co_filename.startswith("<eval_with_key>")  # a graph's, of this process
        or given["export"]
        or "__name__" not in given["globals"]  # which torch reads for its record
        or torch._dynamo.config.caching_precompile
        or hooks.guard_export_fn is not None
        or hooks.guard_filter_fn is not None
        or not is_ours(getattr(backend, "compiler_fn", backend))
        or torch._C._len_torch_function_stack() > 0
        or torch._C._functorch.maybe_current_level() is not None
    ):
        return None
    return Frame(
        given["code"],
        given["globals"],
        given["locals"],
        backend,
        given["one_graph"],
        hooks.guard_fail_fn,
        given["closure"],
    )


def _open(store: Store, frame: Frame) -> Any:
    try:
        return store.open(frame)
    except Exception as error:  # values and settings of the program, whose own code runs
        store.tell(frame, f"not stored: {type(error).__name__}: {error}")
        return None


def _keep(store: Store, place: Any, frame: Frame, recorder: Recorder) -> None:
    try:
        store.keep(place, recorder.stored(frame.code, _sizes_seen(frame)))
        return
    except frame_guards.NotStorableError as error:
        store.tell(frame, f"not stored: {error}")
    except Exception as error:  # modules and values of the program, whose own code runs
        store.tell(frame, f"not stored: {type(error).__name__}: {error}")
    store.drop(recorder.graphs)


def _load(store: Store, place: Any, frame: Frame, given: dict[str, Any]) -> Any:
    """What Dynamo's compiler would return, from the store; None where it has nothing for this frame."""
    from torch._dynamo.types import GuardedCode, wrap_guarded_code

    for stored in store.candidates(place):
        try:
            if not all(map(traced_code.is_current, stored.traced)):
                continue
            if not _name(stored, frame.global_scope):
                continue
            manager = frame_guards.match(
                stored.guards, frame.code, frame.local_scope, frame.global_scope, frame.fail
            )
            if manager is None:
                continue
            graphs = {name: store.graph(stored, name, place) for name in stored.graphs}
        except Exception as error:  # an entry of whatever kind: it is compiled anew
            store.tell(frame, f"not loaded: {type(error).__name__}: {error}")
            continue
        code = _install(stored, graphs, frame)
        _remember_sizes(stored.sizes_seen, frame)
        store.tell(frame, "loaded")
        words = f"Torch-Compiled Region: {given['compile_id']}"
        return wrap_guarded_code(GuardedCode(code, manager, given["compile_id"], words))
    return None


def _name(stored: StoredFrame, global_scope: dict[str, Any]) -> bool:
    """Give what guards and code look for the names that they know; False where some of it is not there."""
    if None in map(_at, stored.things.values()):
        return False
    for alias, module in stored.imports.items():
        global_scope[alias] = importlib.import_module(module)
    for name, place in stored.guarded.items():
        found = _at(place)
        if found is None:
            return False
        global_scope[name] = found
    return True


def _install(
    stored: StoredFrame, graphs: dict[str, Callable[..., Any]], frame: Frame
) -> types.CodeType:
    """The code of the frame, with all that it calls among the globals under names that nothing else has."""
    from torch._dynamo.bytecode_transformation import unique_id
    from torch._dynamo.convert_frame import output_codes
    from torch._dynamo.package import SerializedCode
    from torch._dynamo.utils import orig_code_map

    installed = (*stored.resumes, *stored.things, *graphs)
    names = {name: unique_id(name, with_uuid=True) for name in installed}
    for name, place in stored.things.items():
        frame.global_scope[names[name]] = _at(place)
    for name, graph in graphs.items():
        frame.global_scope[names[name]] = dynamo.without_dynamo(graph, "a compiled graph")
    for name, serialized in stored.resumes.items():
        resume = _renamed(SerializedCode.to_code_object(serialized), names)
        frame.global_scope[names[name]] = _function(resume, frame.global_scope, names[name])
    code = _renamed(SerializedCode.to_code_object(stored.code), names)
    orig_code_map[code] = frame.code
    output_codes.add(code)
    return code


def _renamed(code: types.CodeType, names: dict[str, str]) -> types.CodeType:
    constants = tuple(
        _renamed(one, names) if isinstance(one, types.CodeType) else one for one in code.co_consts
    )
    found = tuple(names.get(name, name) for name in code.co_names)
    return code.replace(co_names=found, co_consts=constants)


def _function(code: types.CodeType, global_scope: dict[str, Any], name: str) -> Any:
    """A function that goes on after a graph break; one that reads variables of outer functions is given them first."""
    if not code.co_freevars:
        return types.FunctionType(code, global_scope, name)

    def with_closure(closure: tuple[types.CellType, ...]) -> types.FunctionType:
        return types.FunctionType(code, global_scope, name, None, closure)

    return dynamo.without_dynamo(with_closure, "makes a function")


# -- sizes that Dynamo has seen change


def _sizes_of(frame: Frame) -> Any:
    from torch._dynamo.pgo import CodeId, get_code_state

    return get_code_state()[CodeId.make(frame.code, frame.closure)].automatic_dynamic


def _sizes_seen(frame: Frame) -> dict[str, Any]:
    return dict(_sizes_of(frame))


def _remember_sizes(seen: dict[str, Any], frame: Frame) -> None:
    """As if the frame had been traced here: the next size that differs makes it dynamic."""
    known = _sizes_of(frame)
    for name, entry in seen.items():
        known[name] |= entry
