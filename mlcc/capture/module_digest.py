"""A digest of what a trace of `mlcc.jit` may have read from a module, which is the same in each process."""

from __future__ import annotations

import types
from collections.abc import Collection
from typing import Any

import torch

from mlcc.capture.guards import MEMBERS, OWN, contents_of, facts_of_layout, is_plain
from mlcc.torch_private import fingerprints, trace_state


def of_module(module: torch.nn.Module | None, named: Collection[str]) -> str:
    """The digest; fingerprints.NoFingerprintError where something is told by its identity alone.

    `named` are the names that the code of the trace has. Attributes of other names need no digest: they have one where
    they can.
    """
    return fingerprints.of_value(_Reading(module, named).parts() if module is not None else ())


# Of hooks: which of them are called in another way, by their numbers.
_FLAGS = (
    ("_forward_hooks", "_forward_hooks_with_kwargs"),
    ("_forward_hooks", "_forward_hooks_always_called"),
    ("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs"),
)


class _Reading:
    """Tensors and submodules by the order in which they are met, so that what is shared counts."""

    def __init__(self, module: torch.nn.Module, named: Collection[str]) -> None:
        self._module = module
        self._named = named
        self._numbers: dict[int, int] = {}

    def parts(self) -> list[Any]:
        if any(trace_state.global_module_hooks()):
            raise fingerprints.NoFingerprintError("hooks of all modules")
        named = list(self._module.named_modules())
        self._numbers = {id(one): number for number, (_, one) in enumerate(named)}
        classes = {type(one): None for _, one in named}
        return [
            [(path, self._of_one(one)) for path, one in named],
            [(cls, self._class_attributes(cls)) for cls in classes],
        ]

    def _class_attributes(self, cls: type) -> list[Any]:
        """What objects find through their class that is no code, of other classes than torch's."""
        return [
            [
                (name, self._digest(name, value))
                for name, value in vars(base).items()
                if name[:2] != "__" and not callable(value) and not hasattr(value, "__get__")
            ]
            for base in cls.__mro__
            if base.__module__.partition(".")[0] not in ("torch", "builtins")
        ]

    def _of_one(self, module: torch.nn.Module) -> list[Any]:
        attributes = module.__dict__
        members = [self._members(kind, attributes[kind]) for kind in MEMBERS]
        others = [
            (name, self._digest(name, value))
            for name, value in attributes.items()
            if name not in OWN
        ]
        flags = [
            [number in attributes[flag] for number in attributes[hooks]] for hooks, flag in _FLAGS
        ]
        own = module.training, attributes["_is_full_backward_hook"], flags
        return [type(module), own, members, others]

    def _digest(self, name: str, value: Any) -> str:
        """Of an attribute."""
        try:
            return fingerprints.of_value(self._attribute(name, value))
        except fingerprints.NoFingerprintError:
            if name in self._named:
                raise
            return ""

    def _members(self, kind: str, members: dict[Any, Any]) -> list[Any]:
        # Hooks stand under numbers that a process counts.
        names = range(len(members)) if kind.endswith("hooks") else members
        return [
            (name, self._member(value)) for name, value in zip(names, members.values(), strict=True)
        ]

    def _member(self, value: Any) -> Any:
        """A parameter, buffer, submodule or hook."""
        if isinstance(value, torch.Tensor):
            number = self._numbers.setdefault(id(value), len(self._numbers))
            dtype, device, shape, stride, requires_grad = facts_of_layout(value)
            layout = dtype, str(device), tuple(shape), tuple(stride), requires_grad
            return type(value), number, layout, value.storage_offset()
        return self._attribute("a hook", value)

    def _attribute(self, name: str, value: Any) -> Any:
        if isinstance(value, torch.nn.Module):
            if id(value) not in self._numbers:
                raise fingerprints.NoFingerprintError(f"{name} holds a module that is no submodule")
            return self._numbers[id(value)]
        if isinstance(value, list | dict | set | tuple) and not is_plain(value):
            if not fingerprints.is_order_stable(value):
                raise fingerprints.NoFingerprintError(f"the order of a set: {name}")
            return type(value), [self._attribute(name, one) for one in contents_of(value)]
        if isinstance(value, types.FunctionType) and value.__closure__:
            raise fingerprints.NoFingerprintError(f"{name} is a function with a closure")
        return value
