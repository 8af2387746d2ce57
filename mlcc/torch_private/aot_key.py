"""The key of torch's cache of AOTAutograd for our graphs, made without Inductor, and a check of what it finds.

torch's own key (2.13) holds the configuration of Inductor: for it a process imports Inductor's code generators and
reads all of torch's sources, which takes longer than tracing a small graph.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import functools
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import torch

from mlcc.logging import get_logger
from mlcc.torch_private import patches

_is_ours: ContextVar[bool] = ContextVar("mlcc.torch_private.aot_key", default=False)

# Folders of torch whose code decides what AOTAutograd makes of a graph.
_SOURCES = ("_decomp", "_dynamo", "_functorch", "_prims", "_refs", "_subclasses", "fx")


@contextlib.contextmanager
def own_keys() -> Iterator[None]:
    """What AOTAutograd looks up or stores inside has a key of ours."""
    patches.key_by(_key)
    patches.check_graphs_by(_drop_damaged)
    token = _is_ours.set(True)
    try:
        yield
    finally:
        _is_ours.reset(token)


def _key(mod: Any, example_inputs: Sequence[Any], aot_config: Any) -> tuple[str, list[str]] | None:
    """None where torch's key is to be taken: also ahead of time, when torch takes any, since the user has the file."""
    is_free = torch._functorch.config.bypass_autograd_cache_key
    if not _is_ours.get() or is_free or _calls_triton(mod):
        return None
    return _own_key(mod, example_inputs, aot_config)


def file_name(data: bytes) -> str:
    """The name that torch gives to a file of its cache with these bytes."""
    return base64.b32encode(hashlib.sha256(data).digest())[:51].decode().lower()


def _drop_damaged(folder: str) -> None:
    """Delete the files of our graphs that are not as they were written."""
    names = os.listdir(folder) if _is_ours.get() and os.path.isdir(folder) else []
    for name in names:
        path = os.path.join(folder, name)
        if name.startswith(".") or os.path.isdir(path):  # not finished, or no file
            continue
        try:
            with open(path, "rb") as stream:
                is_whole = file_name(stream.read()) == name
        except FileNotFoundError:  # a link to nothing, or another process has deleted it
            is_whole = False
        except OSError:  # a file may be good that this process cannot open now
            continue
        if not is_whole:
            with contextlib.suppress(OSError):
                os.unlink(path)
            get_logger("cache").info("graph %s is dropped: the file is damaged", name)


def _calls_triton(mod: Any) -> bool:
    """Whether the code of kernels that the user wrote in Triton belongs to the key."""
    graphs = [one for one in mod.modules() if isinstance(one, torch.fx.GraphModule)]
    return any(
        isinstance(node.target, torch._ops.HigherOrderOperator)
        and node.target.name().startswith("triton_kernel_wrapper")
        for graph in graphs
        for node in graph.graph.nodes
    )


def _own_key(mod: Any, example_inputs: Sequence[Any], aot_config: Any) -> tuple[str, list[str]]:
    from torch._functorch._aot_autograd import autograd_cache

    gm = getattr(mod, "gm", mod)
    with autograd_cache.sanitize_gm_for_cache(gm):
        autograd_cache.check_cacheable(gm)
        config = dataclasses.replace(aot_config, precompile_backend_id=None)  # of one process
        details = _details()(gm, example_inputs, config, {})
        digest = autograd_cache.AOTAutogradCachePickler(gm).get_hash(vars(details))
    return autograd_cache.AOTAUTOGRAD_CACHE_PREFIX + digest, []


@functools.cache
def _details() -> Callable[..., Any]:
    """torch's record of all that a key holds, with our part in the place of Inductor's."""
    from torch._functorch._aot_autograd import autograd_cache
    from torch._inductor.codecache import BypassFxGraphCache, FxGraphCache

    class Details(autograd_cache.AOTAutogradCacheDetails):
        def _init_fx_graph_hash_details(
            self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], fx_config: Any
        ) -> None:
            try:
                FxGraphCache._check_can_cache(gm, example_inputs, fx_config)
            except BypassFxGraphCache as error:
                raise autograd_cache.BypassAOTAutogradCache(str(error)) from error
            if any(_is_opaque(value) for value in example_inputs):
                raise autograd_cache.BypassAOTAutogradCache("an argument is opaque to torch")
            if (name := _traced_through(gm)) is not None:
                raise autograd_cache.BypassAOTAutogradCache(f"{name} is traced through")
            self.gm = gm
            self.example_inputs = list(example_inputs)
            self.settings = (
                torch.compiler.config.cache_key_tag,
                torch.is_deterministic_algorithms_warn_only_enabled(),
                torch.utils.deterministic.fill_uninitialized_memory,
                torch.get_default_dtype(),
                str(torch.get_default_device()),
                torch._functorch.config.bundled_autograd_cache,
                torch._dynamo.config.caching_precompile,
                _current_device(),
                sorted((str(name), hint) for name, hint in _hints().items()),
            )
            self.torch_code = torch_code()

    return Details


def _traced_through(gm: torch.fx.GraphModule) -> str | None:
    """An op of the user's whose Python code AOTAutograd traces; a key that has its name says nothing of that code."""
    for graph in gm.modules():
        for node in graph.graph.nodes if isinstance(graph, torch.fx.GraphModule) else ():
            if (name := op_traced_through(node.target)) is not None:
                return name
    return None


def op_traced_through(op: Any) -> str | None:
    """The name of an op of the user's, or one of its overloads, that has Python code which a trace runs."""
    for overload in _overloads(op):
        if overload.namespace not in _OPS_OF_TORCH and _has_python_formula(overload):
            return str(overload)
    return None


_OPS_OF_TORCH = (
    *("aten", "prims", "prim", "higher_order", "inductor", "rngprims"),
    *("c10d", "c10d_functional", "_c10d_functional", "_c10d_functional_autograd", "_dtensor"),
)
_FORMULAS = ("CompositeImplicitAutograd", "CompositeExplicitAutograd", "Autograd")


def _overloads(op: Any) -> list[torch._ops.OpOverload]:
    if isinstance(op, torch._ops.OpOverloadPacket):
        return [getattr(op, name) for name in op.overloads()]
    return [op] if isinstance(op, torch._ops.OpOverload) else []


def _has_python_formula(op: torch._ops.OpOverload) -> bool:
    from torch._library.custom_ops import OPDEFS

    if (definition := OPDEFS.get(op.name().partition(".")[0])) is not None:
        # Without a formula of its own, what is traced of it is torch's.
        return bool(definition._backward_fn or definition._torch_dispatch_fns)
    lines = torch._C._dispatch_dump(op.name()).splitlines()
    return any(line.startswith(_FORMULAS) and ".py:" in line for line in lines)


def _is_opaque(value: Any) -> bool:
    try:
        from torch._library.opaque_object import is_opaque_reference_type
    except ImportError:
        return False
    return bool(is_opaque_reference_type(type(value)))


def _current_device() -> int | None:
    return torch.accelerator.current_device_index() if torch.accelerator.is_available() else None


def _hints() -> dict[Any, int]:
    """Sizes that the user named for symbols, which the graph does not show."""
    context = torch._guards.TracingContext.try_get()
    mode = context.fake_mode if context is not None else None
    shape_env = mode.shape_env if mode is not None else None
    return getattr(shape_env, "var_to_hint_override", {}) if shape_env is not None else {}


@functools.cache
def torch_code() -> str:
    """Tells one torch from another: its version, and the sizes of the files that trace, where someone edits them."""
    root = os.path.dirname(torch.__file__)
    parts: list[Any] = [torch.__version__, torch.version.git_version]
    for path in _sources(*(os.path.join(root, folder) for folder in _SOURCES)):
        parts.append((os.path.basename(path), os.path.getsize(path)))
    return hashlib.sha256(repr(parts).encode()).hexdigest()


@functools.cache
def mlcc_code() -> str:
    """Tells one state of this package's Python from another: what it stores is its own objects."""
    digest = hashlib.sha256()
    for path in _sources(os.path.dirname(os.path.dirname(__file__))):
        with open(path, "rb") as stream:
            digest.update(stream.read())
    return digest.hexdigest()


def _sources(*folders: str) -> Iterator[str]:
    for folder in folders:
        for directory, folders_in_it, names in os.walk(folder):
            folders_in_it.sort()
            yield from (
                os.path.join(directory, one) for one in sorted(names) if one.endswith(".py")
            )
