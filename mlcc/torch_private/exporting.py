"""Private parts of torch around torch.export."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def composite_decompositions() -> dict[Any, Callable[..., Any]]:
    """How torch.export takes composite ops (`linear`, `layer_norm`, ...) apart, which a trace never shows."""
    return {
        op: decomposition
        for op, decomposition in torch.export.default_decompositions().items()
        if _is_composite(op)
    }


def _is_composite(op: Any) -> bool:
    has_kernel = getattr(op, "has_kernel_for_dispatch_key", None)
    return has_kernel is not None and bool(
        has_kernel(torch._C.DispatchKey.CompositeImplicitAutograd)
    )
