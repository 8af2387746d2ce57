"""Whose memory a result is: results are written over, and what shares their memory shows it."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def snapshot(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, as the tensor is now."""
    plain = tensor.detach()
    if plain._is_zerotensor():  # it has no memory
        return torch.zeros(plain.shape, dtype=plain.dtype)
    if plain.layout != torch.strided or plain.is_conj() or plain.is_neg():
        return plain.clone()
    copied = plain.untyped_storage().clone()
    return plain.new_empty(0).set_(copied, plain.storage_offset(), plain.shape, plain.stride())


def write_over(results: Sequence[torch.Tensor], first: int = 0) -> None:
    """Other whole numbers into each, in order, from the `first`; what overlaps itself cannot be written to."""
    for place, result in enumerate(results, first + 3):
        numbers = torch.arange(result.numel()).remainder(7).add(place).reshape(result.shape)
        try:
            result.detach().copy_(numbers % 2 if result.dtype == torch.bool else numbers)
        except RuntimeError as error:
            if "single memory location" not in str(error):
                raise
