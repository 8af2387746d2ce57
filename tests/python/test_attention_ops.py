"""Ops of our own in graphs of training steps: kernels of torch and nodes of the graph IR are the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import mlcc  # defines them


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    assert mlcc.__version__
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def test_masks_are_those_of_eager_kernels() -> None:
    """One of two graphs may run eagerly: random bits follow from the seed and the place alone."""

    def mask(seed: torch.Tensor) -> torch.Tensor:
        return torch.ops.mlcc.dropout_mask(seed, [3, 1000, 7], 0.7)

    for number in (0, 1, (1 << 63) - 1, 0x123456789ABCDEF):
        seed = torch.tensor(number)
        found = torch.compile(mask, backend="mlcc")(seed)
        assert torch.equal(found, mask(seed))
        assert abs(found.double().mean() - 0.7) < 0.02


@pytest.mark.parametrize("outer", [(), (3,), (2, 3)])
def test_gradients_as_an_op(outer: tuple[int, ...]) -> None:
    """What eager's kernel and the node of the graph IR give is the same, in the same layout."""
    shapes = [(70, 50), (70, 50), (70, 24), (70, 16), (50, 16)]
    operands = [torch.randn(*outer, *shape) for shape in shapes]
    function = torch.ops.mlcc.attend_gradients
    found = torch.compile(function, backend="mlcc")(*operands)
    for one, other in zip(found, function(*operands), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
        assert one.stride() == other.stride()
