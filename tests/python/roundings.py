"""Eager with other roundings than its own: how far a program's answers depend on them.

with OtherRoundings(seed):
    results = function(*(perturbed(tensor, seed) for tensor in inputs))
"""

from __future__ import annotations

from typing import Any

import torch
from torch._decomp import get_decompositions
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only


def perturbed(tensor: torch.Tensor, seed: int) -> torch.Tensor:
    """Each number that is not whole is off by one epsilon."""
    is_plain = tensor.layout == torch.strided and tensor.device.type == "cpu"
    if not tensor.dtype.is_floating_point or not is_plain or tensor._is_zerotensor():
        return tensor
    generator = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, tensor.shape, generator=generator) * 2 - 1
    plain = tensor.detach()
    moved = plain * (1 + signs.to(tensor.dtype) * torch.finfo(tensor.dtype).eps)
    made = torch.empty_strided(plain.shape, plain.stride(), dtype=plain.dtype)
    made.copy_(torch.where(plain == plain.round(), plain, moved))
    return made.requires_grad_(tensor.requires_grad)


# What these ops subtract on the way (sums, positions) cancels where their results do not show it.
_DECOMPOSED = get_decompositions(
    [
        torch.ops.aten.native_layer_norm,
        torch.ops.aten.native_layer_norm_backward,
        torch.ops.aten.native_group_norm,
        torch.ops.aten.native_group_norm_backward,
        torch.ops.aten._native_batch_norm_legit.no_stats,
        torch.ops.aten.native_batch_norm_backward,
        torch.ops.aten._softmax_backward_data,
        torch.ops.aten._log_softmax_backward_data,
        torch.ops.aten.upsample_linear1d,
        torch.ops.aten.upsample_bilinear2d,
        torch.ops.aten.upsample_bicubic2d,
    ]
)


class OtherRoundings(TorchDispatchMode):
    """Inside, what an op computes anew is off by one epsilon; by an odd seed, ops are taken apart first."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed = seed
        self._decompositions = _DECOMPOSED if seed % 2 else {}

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        decomposition = self._decompositions.get(op)
        if decomposition is not None:
            with self:
                return decomposition(*args, **(kwargs or {}))
        result = op(*args, **(kwargs or {}))
        if any(returned.alias_info for returned in op._schema.returns):
            return result
        self._seed += 1010
        return tree_map_only(torch.Tensor, lambda t: perturbed(t, self._seed), result)
