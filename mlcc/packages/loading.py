"""`mlcc.load`: a package in a process that has torch."""

from __future__ import annotations

import os
from typing import Any

import torch

from mlcc.ir.types import DTYPES
from mlcc.runtime.model import Model
from mlcc.runtime.tensors import TensorInfo

_DTYPES = {name: dtype for dtype, name in DTYPES.items()}


class _Tensors:
    """Tensors of the CPU, taken as they lie in memory."""

    def given(self, info: TensorInfo, value: Any, what: str = "input") -> torch.Tensor:
        if not isinstance(value, torch.Tensor):
            raise TypeError(
                f"{what} {info.name}: found a {type(value).__name__}, expected a tensor"
            )
        if value.device.type != "cpu" or value.layout != torch.strided:
            kind = "a tensor" if value.layout == torch.strided else f"a {value.layout} tensor"
            raise TypeError(
                f"{what} {info.name}: found {kind} on {value.device}, expected a strided one of the CPU"
            )
        if value.dtype != _DTYPES[info.dtype]:
            raise TypeError(
                f"{what} {info.name}: found dtype {value.dtype}, expected {_DTYPES[info.dtype]}"
            )
        value = value.detach().resolve_neg()
        if info.varies:
            order = info.order(value.shape)
            return value.permute(order).contiguous().permute(sorted(order, key=order.__getitem__))
        is_right = tuple(value.shape) != info.sizes or value.stride() == info.strides
        if is_right or info.overlaps:
            return value  # the library tells what is wrong
        return torch.empty_strided(info.sizes, info.strides, dtype=value.dtype).copy_(value)

    def place(self, info: TensorInfo, value: Any) -> int:
        if (
            type(value) is torch.Tensor
            and value.shape == info.sizes
            and value.dtype is _DTYPES[info.dtype]
            and value.stride() == info.strides
            and value.is_cpu
            and not value.is_neg()
        ):
            return value.data_ptr()
        return 0

    def empty(self, info: TensorInfo) -> torch.Tensor:
        return torch.empty_strided(info.sizes, info.strides, dtype=_DTYPES[info.dtype])

    def address(self, array: torch.Tensor) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        return array.data_ptr(), tuple(array.shape), array.stride()


def load(
    path: str | os.PathLike[str],
    *,
    threads: int = 1,
    copy_weights: bool = False,
    check_weights: bool = False,
) -> Model:
    """Open a package that `export` wrote: a callable that takes and returns tensors as the exported model did.

    Tensors are taken without a copy where their strides are those that the package was exported for. Results have the
    strides that the model's had. No gradients are recorded. The rest is as in `mlcc.runtime.load`, which needs no
    torch.
    """
    return Model(
        path,
        threads=threads,
        copy_weights=copy_weights,
        check_weights=check_weights,
        arrays=_Tensors(),
    )
