"""Rows of symbolic length: short ones keep on the stack what long ones compute again, with the same results."""

from collections.abc import Callable

import pytest
import torch

import mlcc


def _softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 2, -1)


def _normalized(x: torch.Tensor) -> torch.Tensor:
    """A norm of what costs much: means and squares read it again."""
    y = torch.nn.functional.gelu(x.float())
    return ((y - y.mean(-1, keepdim=True)) * torch.rsqrt(y.var(-1, keepdim=True) + 1e-5)).to(
        x.dtype
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("function", [_softmax, _normalized], ids=lambda f: f.__name__)
def test_short_and_long_rows_agree(
    function: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype
) -> None:
    compiled = mlcc.jit(function)
    for length in (100, 8191, 8192, 8193, 12000, 2, 17):
        x = torch.randn(5, length).to(dtype)
        expected = function(x)
        with mlcc.config.patch(verify="always"):
            torch.testing.assert_close(compiled(x), expected, rtol=1.6e-2, atol=1e-5)
