"""Guards of Dynamo that outlive a process.

Stored is what each guard looks at and a digest of what it found there. A later process looks at the same places of the
frame that it is about to run. Where it finds the same everywhere, the guards are built from what it found, as Dynamo
builds them after tracing: none is dropped, also not those that compare identities.
"""

from __future__ import annotations

import builtins
import dataclasses
import functools
import io
import pickle
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._dynamo.source import GlobalSource

from mlcc.torch_private import fingerprints

# Guards without a value: states that are stored whole, and relations that are checked when the guards are built.
_STATES = frozenset(
    (
        *("GRAD_MODE", "DETERMINISTIC_ALGORITHMS", "GLOBAL_STATE", "TORCH_FUNCTION_STATE"),
        *("DEFAULT_DEVICE", "SHAPE_ENV", "DUAL_LEVEL", "FUNCTORCH_STACK_MATCH", "DUPLICATE_INPUT"),
        *("AUTOGRAD_SAVED_TENSORS_HOOKS", "FSDP_TRAINING_STATE"),
    )
)

# Guards that compare what they look at by identity, and nothing in it.
_IDENTITIES = frozenset(
    ("ID_MATCH", "FUNCTION_MATCH", "CLASS_MATCH", "CLOSURE_MATCH", "BUILTIN_MATCH")
)

# Guards whose digest would not say all that they compare.
_REFUSED = frozenset(
    (
        *("DICT_VERSION", "WEAKREF_ALIVE", "NN_MODULE", "OPAQUE_OBJ_GUARD_FN_MATCH"),
        *("TENSOR_SUBCLASS_METADATA_MATCH", "DTENSOR_SPEC_MATCH", "FAKE_SCRIPT_TYPE_MATCH"),
    )
)

_MARKS = (
    *("_dynamo_dynamic_indices", "_dynamo_weak_dynamic_indices", "_dynamo_unbacked_indices"),
    *("_dynamo_strict_unbacked_indices", "_dynamo_static_indices"),
)


class NotStorableError(Exception):
    """What a trace assumed cannot be told to another process."""


@dataclasses.dataclass(frozen=True)
class StoredGuards:
    """Guards as they are stored."""

    state: Any  # torch's OutputGraphGuardsState, without the values of names
    shape_code: Any  # of guards on sizes
    digests: tuple[str, ...]  # one for each guard
    orders: dict[Any, str]  # of the keys of dicts whose order matters, by source


def store(
    manager: Any,
    builder: Any,
    guards: list[Any],
    output_graph: Any,
    rename: Callable[[str], str],
) -> bytes:
    """The guards of a trace, for `match` of another process. NotStorableError where one cannot be told to it.

    `rename` gives the name under which that process finds a global.
    """
    state = output_graph.dump_guards_state()
    if state.torch_function_mode_stack or state.functorch_layers:
        raise NotStorableError("traced under a mode or a transform")
    kept = [_stored(guard) for guard in guards]
    sizes = {
        source: _concrete(found) for source, found in state.input_source_to_sizes_strides.items()
    }
    state = dataclasses.replace(
        state,
        local_scope={},
        global_scope={},
        input_source_to_sizes_strides=sizes,
        skip_guards_check=True,
        _guards=torch._guards.GuardsSet(_ordered(kept)),
    )
    look = _Look(builder.get, sizes)
    stored = StoredGuards(
        state,
        manager.shape_code_parts,
        tuple(look.digest(guard) for guard in kept),
        {source: look.keys(source) for source in state.guard_on_key_order},
    )
    return _pickled((stored, kept), rename)


def match(
    data: bytes,
    code: types.CodeType,
    local_scope: Mapping[str, Any],
    global_scope: Mapping[str, Any],
    fail: Callable[..., Any] | None,
) -> Any:
    """torch's guard manager where the frame is as the trace assumed; None where it is not."""
    from torch._dynamo.guards import CheckFunctionManager, _get_closure_vars
    from torch._dynamo.output_graph import OutputGraphCommon

    stored, guards = pickle.loads(data)
    state = dataclasses.replace(
        stored.state, local_scope=dict(local_scope), global_scope=global_scope
    )
    scope = {"L": state.local_scope, "G": global_scope, "__builtins__": vars(builtins)}
    seen: dict[Any, Any] = {}
    closure = _get_closure_vars()
    look = _Look(
        lambda one: _source(one).get_value(scope, closure, seen),
        state.input_source_to_sizes_strides,
    )
    if not look.agrees(guards, stored):
        return None
    built = CheckFunctionManager(
        code,
        OutputGraphCommon(state),
        guard_fail_fn=fail,
        shape_code_parts=stored.shape_code,
        runtime_global_scope=global_scope,
    ).guard_manager
    return built if built.check(state.local_scope) else None


def _source(guard_or_source: Any) -> Any:
    return getattr(guard_or_source, "originating_source", guard_or_source)


def _ordered(guards: list[Any]) -> Any:
    from torch.utils._ordered_set import OrderedSet

    return OrderedSet(guards)


def _stored(guard: Any) -> Any:
    """The guard without what belongs to this process."""
    create = guard.create_fn
    if isinstance(create, functools.partial):
        keywords = {name: value for name, value in create.keywords.items() if name != "value"}
        create = functools.partial(create.func, *create.args, **keywords)
        if not keywords and not create.args:
            create = create.func
    return dataclasses.replace(
        guard,
        create_fn=create,
        obj_weakref=None,
        guarded_class_weakref=None,
        guard_types=None,
        code_list=None,
        stack=None,
        user_stack=None,
        _hash=None,
    )


def _concrete(found: Any) -> Any:
    """Sizes and strides of an input: numbers, and None where a symbol stands."""
    from torch._dynamo.guards import convert_to_concrete_values

    return {name: convert_to_concrete_values(values) for name, values in found.items()}


def _pickled(value: Any, rename: Callable[[str], str]) -> bytes:
    stream = io.BytesIO()
    try:
        _Pickler(stream, rename).dump(value)
    except Exception as error:
        raise NotStorableError(f"guards: {error}") from error
    return stream.getvalue()


class _Pickler(pickle.Pickler):
    """Guards and sources, which must hold nothing of the program's data."""

    def __init__(self, stream: io.BytesIO, rename: Callable[[str], str]) -> None:
        super().__init__(stream, protocol=pickle.HIGHEST_PROTOCOL)
        self._rename = rename

    def reducer_override(self, value: Any) -> Any:
        if type(value) is GlobalSource:
            return GlobalSource, (self._rename(value.global_name),)
        if isinstance(value, torch.Tensor | torch.nn.Module):
            raise NotStorableError(f"a guard holds a {type(value).__name__}")
        return NotImplemented


class _Look:
    """What guards find in one frame."""

    def __init__(self, get: Callable[[Any], Any], sizes: Mapping[Any, Any]) -> None:
        fingerprints.forget_classes()
        self._get = get
        self._sizes = sizes

    def agrees(self, guards: list[Any], stored: StoredGuards) -> bool:
        """Whether all is as it was. What is no longer there raises in the lookup, and is not as it was."""
        try:
            return all(
                self.digest(guard) == digest
                for guard, digest in zip(guards, stored.digests, strict=True)
            ) and all(self.keys(source) == digest for source, digest in stored.orders.items())
        except Exception:  # a source runs code of the user's classes
            return False

    def keys(self, source: Any) -> str:
        """A digest of the keys of a dict, in their order."""
        found = self._get(source)
        if not fingerprints.is_order_stable(found):
            raise NotStorableError(f"the order of a set: {source.name}")
        return _told(lambda: fingerprints.of_value(list(found)))

    def digest(self, guard: Any) -> str:
        """What the guard found, in a word. NotStorableError where that says too little."""
        name = guard.create_fn_name()
        if name in _STATES:
            return self._of_state(name, guard)
        spec = _spec(guard)
        if name in _REFUSED or spec is None:
            raise NotStorableError(f"a guard {name} on {guard.name}")
        value = self._get(guard)
        if name == "TENSOR_MATCH":
            return _told(lambda: self._of_tensor(guard, value))
        if reason := _of_this_process(name, value):
            raise NotStorableError(f"{reason}: {guard.name}")
        metadata = spec.get_metadata_fn(guard, value)
        if not spec.eval_fn(value, metadata):
            return "fails"
        if name in ("TYPE_MATCH", "MODULE_MATCH"):
            kind = value if name == "MODULE_MATCH" else type(value)
            return _told(lambda: fingerprints.of_value((kind, _keys(value))))
        is_code = name == "CONSTANT_MATCH" and isinstance(value, types.CodeType)
        if is_code or name in _IDENTITIES:
            return _told(lambda: fingerprints.of_identity(value))
        return _told(lambda: fingerprints.of_value(metadata))

    def _of_state(self, name: str, guard: Any) -> str:
        if name == "DUPLICATE_INPUT":
            return str(self._get(guard) is self._get(guard.create_fn.keywords["source_b"]))
        if name == "AUTOGRAD_SAVED_TENSORS_HOOKS":
            hooks = torch._functorch._aot_autograd.utils.top_saved_tensors_hooks()
            if hooks is not None:
                raise NotStorableError("traced under hooks of saved tensors")
        return name

    def _of_tensor(self, guard: Any, value: Any) -> str:
        if not isinstance(value, torch.Tensor):
            return "no tensor"
        found = self._sizes.get(guard.originating_source)
        if found is None or _is_one_tensor(guard):
            raise NotStorableError(f"one tensor: {guard.name}")
        shape = [
            now if then is not None else None
            for now, then in zip(value.shape, found["size"], strict=False)
        ]
        strides = [
            now if then is not None else None
            for now, then in zip(value.stride(), found["stride"], strict=False)
        ]
        marks = [sorted(getattr(value, mark, None) or ()) for mark in _MARKS]
        keys = torch._C._dispatch_keys(value).raw_repr()
        parts = (value.dtype, str(value.device), value.requires_grad, value.dim(), keys, marks)
        return fingerprints.of_value((type(value), *map(str, parts), str(shape), str(strides)))


def _of_this_process(name: str, value: Any) -> str:
    """Why what a trace took from a value changes with the process, unguarded; empty where it does not."""
    if name == "BUILTIN_MATCH" and value is hash:
        return "numbers of this process"
    if name == "SEQUENCE_LENGTH" and not fingerprints.is_order_stable(value):
        return "the order of a set"  # as list() has it
    if fingerprints.is_assumed_constant(value):
        return "a result that is assumed constant"
    return ""


def _keys(value: Any) -> list[str]:
    """What a dict, an object or a module has: Dynamo guards on what a frame finds there, not on all that it misses."""
    if isinstance(value, types.ModuleType):
        if value.__name__.partition(".")[0] == "torch":
            return []  # its parts are imported when they are needed
        held = vars(value).items()
        names = {name for name, one in held if not isinstance(one, types.ModuleType)}
        return sorted(name for name in names if not name.startswith("__"))
    if isinstance(value, dict):
        return [] if value is sys.modules else sorted(map(_key, dict.keys(value)))
    return sorted(map(str, getattr(value, "__dict__", ())))


def _key(key: Any) -> str:
    try:
        return fingerprints.of_value(key)
    except fingerprints.NoFingerprintError:
        return type(key).__qualname__


def _spec(guard: Any) -> Any:
    """How torch takes from a value what the guard compares, where it tells."""
    from torch._dynamo.guards import GuardCheckSpec

    spec = getattr(guard.inner_create_fn(), "guard_check_spec", None)
    return spec if isinstance(spec, GuardCheckSpec) else None


def _is_one_tensor(guard: Any) -> bool:
    """Whether the trace was for this very tensor."""
    from torch._dynamo.guards import match_on_id_for_tensor

    return bool(match_on_id_for_tensor(guard))


def _told(digest: Callable[[], str]) -> str:
    try:
        return digest()
    except fingerprints.NoFingerprintError as error:
        raise NotStorableError(str(error)) from error
