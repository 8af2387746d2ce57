"""What a program asks of all compilers: `torch.compiler.set_stance` and `torch.compiler.disable`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._dynamo import eval_frame


def current() -> str:
    """The stance of torch.compiler: "default", "force_eager" and so on."""
    stance: str = eval_frame._stance.stance
    return stance


def as_global() -> tuple[dict[str, Any], tuple[str, ...], tuple[Any, ...]]:
    """(a dict, a name in it, an object equal to what stands there under the default stance), which guards can hold."""
    default, now = eval_frame.DynamoStance(), eval_frame._stance
    # The object itself is compared faster.
    return vars(eval_frame), ("_stance",), (now if now == default else default,)


def is_disabled(function: Callable[..., Any]) -> bool:
    """Whether `torch.compiler.disable` made the function."""
    return bool(getattr(function, "_torchdynamo_disable", False))


def wrapper_properties(original: Callable[[Any], Any]) -> dict[str, Callable[[Any], Any]]:
    """Properties by which `torch.compiler.disable` and `torch.compile` of a wrapper find what `original` gives."""
    return {"_torchdynamo_orig_callable": original, "_torchdynamo_wrapper_id": id}
