"""What `mlcc.jit` of an nn.Module is: a module with the very attributes of the original one.

It is of a subclass of the original's class, and both have one `__dict__`: parameters, buffers, submodules, hooks, modes
and all methods are the same ones, whichever of the two is asked. Only a call differs.
"""

from __future__ import annotations

import copy
from typing import Any

import torch

from mlcc._errors import Error
from mlcc.torch_private import stance


class JittedModule:
    """The part of the subclass that stands before the module's class; the trace is looked up by `_mlcc_jit`."""

    __slots__ = ("_mlcc_jit",)

    _mlcc_jit: Any

    def __init_subclass__(cls) -> None:
        """The module's class is not told of a subclass, which it might register."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The module's result."""
        return self._mlcc_jit(*args, **kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "__class__":
            raise Error(
                f"a jitted module of class {type(self).__name__} stays what it is, found {value.__name__}; "
                "change the class (parametrize, shard) of the module before it is jitted"
            )
        super().__setattr__(name, value)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Another jitted module, of a copy of the original one."""
        jitted = self._mlcc_jit
        copied = memo[id(self)] = jitted.again(copy.deepcopy(jitted._function, memo))
        return copied

    def __copy__(self) -> Any:
        jitted = self._mlcc_jit
        return jitted.again(copy.copy(jitted._function))

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """A copy, pickled or not, traces anew."""
        jitted = self._mlcc_jit
        return _again, jitted.__reduce__()


def _again(make: Any, arguments: tuple[Any, ...]) -> Any:
    jitted = make(*arguments)
    return module_of(jitted, jitted._function)


def _original(module: Any) -> Any:
    return module._mlcc_jit._function


def module_of(jitted: Any, module: torch.nn.Module) -> Any:
    """The module whose calls are those of `jitted`, which was made of `module`."""
    cls = type(module)
    names = {
        "__slots__": (),
        "__module__": cls.__module__,
        "__qualname__": f"Jitted{cls.__qualname__}",
        "__doc__": cls.__doc__,
        **{name: property(value) for name, value in stance.wrapper_properties(_original).items()},
    }
    metaclass: Any = type(cls)
    made = metaclass(f"Jitted{cls.__name__}", (JittedModule, cls), names)
    result = object.__new__(made)
    object.__setattr__(result, "__dict__", module.__dict__)
    object.__setattr__(result, "_mlcc_jit", jitted)
    return result
