"""Everything that a caller can see of a call, and its comparison with eager's.

Beside the values these are dtype, shape, strides, the lazy bits, requires_grad, which tensors share memory at which
offset, and what the call did to its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

import mlcc
from mlcc.capture import backend
from tests.python.accuracy import leaves


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """The function through the backend, with nothing left of other tests."""
    torch._dynamo.reset()
    return torch.compile(function, backend=backend.compile, **options)


def jitted(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function or module through mlcc.jit, not traced before."""
    if isinstance(function, torch.nn.Module):
        return mlcc.jit(function)
    return mlcc.jit(lambda *arguments: function(*arguments))


def seen(function: Callable[..., Any], make: Callable[[], Sequence[Any]]) -> list[Any]:
    """What one call shows: a description of each tensor among arguments and results, and their values."""
    torch.manual_seed(0)
    arguments = list(make())
    result = function(*arguments)
    tensors = list(leaves([arguments, result]))
    places = [_place(leaf) for leaf in tensors]
    found: list[Any] = []
    for leaf in tensors:
        if not isinstance(leaf, torch.Tensor):
            found.append(leaf)
            continue
        first = places.index(_place(leaf))
        found.append((form_of(leaf), first, leaf.storage_offset(), leaf.detach().clone()))
    return found


def _place(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor) or leaf.layout != torch.strided or leaf.numel() == 0:
        return id(leaf)
    if leaf._is_zerotensor():  # it has no memory
        return id(leaf)
    return leaf.untyped_storage().data_ptr()


def form_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """All but the values and the memory."""
    return (
        type(tensor),
        tensor.dtype,
        tuple(tensor.shape),
        tensor.stride() if tensor.layout == torch.strided else tensor.layout,
        tensor.is_conj(),
        tensor.is_neg(),
        tensor.requires_grad,
        tensor.is_leaf,
        tensor.is_inference(),
    )


def check_as_eager(
    function: Callable[..., Any], run: Callable[..., Any], make: Callable[[], Sequence[Any]]
) -> None:
    """The same is seen of `run` and of `function`: at the first call, the second, and on warm caches after a reset."""
    expected = seen(function, make)
    for call in range(3):
        if call == 2:
            torch._dynamo.reset()
        found = seen(run, make)
        assert len(found) == len(expected)
        for place, (ours, eagers) in enumerate(zip(found, expected, strict=True)):
            if not isinstance(eagers, tuple) or not isinstance(eagers[-1], torch.Tensor):
                assert ours == eagers, place
                continue
            assert ours[:-1] == eagers[:-1], f"leaf {place}: {ours[:-1]}, eager's {eagers[:-1]}"
            torch.testing.assert_close(ours[-1], eagers[-1], equal_nan=True)
