"""What a program asks of all compilers: `torch.compiler.set_stance` and `torch.compiler.disable`.

Dynamo has the stance. A process that has not imported it is in the default one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

_MODULE = "torch._dynamo.eval_frame"


def _now() -> Any:
    """Dynamo's record; None where there is none yet."""
    return getattr(sys.modules.get(_MODULE), "_stance", None)


def current() -> str:
    """The stance of torch.compiler: "default", "force_eager" and so on."""
    now = _now()
    stance: str = "default" if now is None else now.stance
    return stance


def as_global() -> tuple[dict[str, Any], tuple[str, ...], tuple[Any, ...]] | None:
    """(a dict, a name in it, an object equal to what stands there under the default stance), which guards can hold.

    None before Dynamo is imported: then `absent` is what they can hold.
    """
    now = _now()
    if now is None:
        return None
    default = type(now)()
    # The object itself is compared faster.
    return vars(sys.modules[_MODULE]), ("_stance",), (now if now == default else default,)


def absent() -> tuple[dict[str, Any], tuple[str, ...]]:
    """(a dict, a name that is not in it before somebody can ask for another stance)."""
    return sys.modules, (_MODULE,)


def is_disabled(function: Callable[..., Any]) -> bool:
    """Whether `torch.compiler.disable` made the function."""
    return bool(getattr(function, "_torchdynamo_disable", False))


def wrapper_properties(original: Callable[[Any], Any]) -> dict[str, Callable[[Any], Any]]:
    """Properties by which `torch.compiler.disable` and `torch.compile` of a wrapper find what `original` gives."""
    return {"_torchdynamo_orig_callable": original, "_torchdynamo_wrapper_id": id}
