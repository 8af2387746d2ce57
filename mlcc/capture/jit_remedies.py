"""The words for an original function that runs in place of its trace: the reason, and what to do about it."""

from __future__ import annotations

import re

_REGISTER = "torch.export.register_dataclass or torch.utils._pytree.register_pytree_node"

# What a reason begins with -> what to do. The first that fits.
_REMEDIES = (
    (r".*pass it as an argument|attribute .* register it|torch.compiler.disable", ""),
    (r"it changes .* of an argument|it changes elements", "write the argument outside of it"),
    (r"it changes the module's", "make it a buffer, or write it outside of forward"),
    (r"it changes a list or dict that", "return what is new instead"),
    (r"it changes|it fills", "return the new value and keep it outside of the function"),
    (r"it draws|it calls", "draw outside of the function and pass the number, or draw with torch"),
    (r"it reads", "read it outside of the function and pass it as an argument"),
    (r"it writes", "pass the tensor that is written as an argument"),
    (
        r"it makes an array|a result",
        "return tensors, numbers, strings and containers of them, and make the rest outside",
    ),
    (r"a default argument", "pass the tensor as an argument"),
    (r"an argument is written|an argument that may be written", "return what is new instead"),
    (r"an argument is a conj", "pass x.resolve_conj() or x.resolve_neg()"),
    (r"an argument is a tensor of layout", "pass dense tensors (x.to_dense())"),
    (r"an argument is a torch.Size", "pass its numbers, or tuple(...) of it"),
    (r"an argument has an attribute", "pass the attribute as an argument"),
    (r"an argument is a numpy", "pass torch.from_numpy(...) or a number of Python"),
    (r"an argument, a function", "pass what it holds as arguments"),
    (
        r"an argument (is|holds)",
        f"pass its tensors and numbers, or register its class with {_REGISTER}",
    ),
    (r"\d+ ", "pass what changes as a tensor, or call the function itself for such calls"),
)
_OTHERWISE = "jit a smaller part that leaves this out, or MLCC_STRICT=1 to see the whole error"


def remedy(reason: str) -> str:
    """What a user can do about a reason; '' where the reason says it."""
    return next((cure for start, cure in _REMEDIES if re.match(start, reason)), _OTHERWISE)
