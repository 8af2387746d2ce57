"""Products with a vector as sums of products: code for what torch leaves to a library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Along the last dimension, in the dtype in which it is added up."""
    wide = _WIDER.get(a.dtype, a.dtype)
    return (a.to(wide) * b.to(wide)).sum(-1, dtype=wide)


def mv(matrix: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    """aten.mv."""
    return _product(matrix, vector).to(matrix.dtype)


def vdot(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """aten.vdot."""
    return mv(a.conj() if a.dtype.is_complex else a, b)


def addmv(
    added: torch.Tensor,
    matrix: torch.Tensor,
    vector: torch.Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> torch.Tensor:
    """aten.addmv; what is added is not read where `beta` is 0."""
    product = _product(matrix, vector)
    result = product if alpha == 1 else product * alpha
    if beta != 0:
        wide = added.to(product.dtype)
        result = result + (wide if beta == 1 else wide * beta)
    return result.to(matrix.dtype)


def table() -> dict[Any, Callable[..., Any]]:
    """By overload."""
    aten = torch.ops.aten
    return {
        aten.mv.default: mv,
        aten.dot.default: mv,
        aten.vdot.default: vdot,
        aten.addmv.default: addmv,
    }
