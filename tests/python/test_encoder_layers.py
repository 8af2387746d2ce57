"""Encoder layers and multi-head attention that torch calls as a whole, taken apart: beside eager, masks and dtypes."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.python.accuracy import check_all
from tests.python.test_backend import compiled

BATCH, LENGTH, WIDTH, HEADS = 3, 21, 32, 4


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Support for mismatched")
        yield
    torch._dynamo.reset()


def layer(dtype: torch.dtype = torch.float32, **kwargs: Any) -> nn.TransformerEncoderLayer:
    kwargs = {"batch_first": True} | kwargs
    return nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, **kwargs).eval().to(dtype)


def source(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(BATCH, LENGTH, WIDTH, dtype=dtype)


def padding() -> Tensor:
    """Of the keys of each batch the first ones are there; of the last batch none is."""
    lengths = torch.tensor([LENGTH, 5, 0])
    return torch.arange(LENGTH) >= lengths[:, None]


def check(module: nn.Module, *args: Any, dynamic: bool = False, **kwargs: Any) -> None:
    """As good as eager, which runs the call."""
    eager = module(*args, **kwargs)
    found = compiled(module, dynamic=dynamic)(*args, **kwargs)

    def double(x: Any) -> Any:
        is_float = isinstance(x, Tensor) and x.is_floating_point()
        return x.double() if is_float else x

    if eager.dtype == torch.float64:
        torch.testing.assert_close(found, eager, rtol=1e-12, atol=1e-12, equal_nan=True)
    else:
        exact = copy.deepcopy(module).double()
        named = {name: double(x) for name, x in kwargs.items()}
        check_all(found, eager, exact(*map(double, args), **named))
    assert found.stride() == eager.stride()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_layers(activation: str, norm_first: bool, dynamic: bool, mlcc_log: Any) -> None:
    one = layer(activation=activation, norm_first=norm_first)
    with mlcc_log("fallback") as lines:
        check(one, source(), dynamic=dynamic)
        check(one, source().transpose(0, 1).contiguous().transpose(0, 1), dynamic=dynamic)
    assert not any("encoder_layer" in line for line in lines)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtypes(dtype: torch.dtype) -> None:
    one = layer(dtype)
    check(one, source(dtype))
    check(one, source(dtype), src_key_padding_mask=padding())


@pytest.mark.parametrize("dynamic", [False, True])
def test_masks(dynamic: bool, mlcc_log: Any) -> None:
    one, x = layer(), source()
    causal = nn.Transformer.generate_square_subsequent_mask(LENGTH)
    drawn = torch.rand(LENGTH, LENGTH) > 0.5
    with mlcc_log("fallback") as lines:
        check(one, x, src_mask=causal, dynamic=dynamic)
        check(one, x, src_mask=drawn, dynamic=dynamic)
        check(one, x, src_key_padding_mask=padding(), dynamic=dynamic)
        check(one, x, src_key_padding_mask=padding().float(), dynamic=dynamic)  # 1 hides a key too
        check(one, x, src_mask=causal, src_key_padding_mask=padding(), dynamic=dynamic)
        check(one, x, src_mask=torch.ones(LENGTH, LENGTH, dtype=torch.bool), dynamic=dynamic)
    assert not any("encoder_layer" in line for line in lines)


def test_stacks_of_layers() -> None:
    encoder = nn.TransformerEncoder(layer(), 2, norm=nn.LayerNorm(WIDTH)).eval()
    x = source()
    causal = nn.Transformer.generate_square_subsequent_mask(LENGTH)
    check(encoder, x)
    check(encoder, x, mask=causal, is_causal=True)
    hidden = padding()[:2]
    found = compiled(encoder)(x[:2], src_key_padding_mask=hidden)
    torch.testing.assert_close(found[~hidden], encoder(x[:2], src_key_padding_mask=hidden)[~hidden])


def test_without_elements() -> None:
    for shape in ((0, LENGTH, WIDTH), (BATCH, 0, WIDTH)):
        x = torch.randn(shape)
        assert compiled(layer())(x).shape == shape


def test_layers_that_are_no_call() -> None:
    for one in (layer(batch_first=False), layer(bias=False), layer(activation=nn.functional.silu)):
        check(one, source())
    nested = torch.nested.nested_tensor([torch.randn(n, WIDTH) for n in (3, 7)])
    one = layer()
    found, eager = compiled(one)(nested), one(nested)
    for a, b in zip(found.unbind(), eager.unbind(), strict=True):
        torch.testing.assert_close(a, b)


class Attention(nn.Module):
    """The call of a whole multi-head attention, which Dynamo's traces of the module do not make."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *options: Any) -> Any:
        own = self.inner
        inputs = (own.in_proj_weight, own.in_proj_bias, own.out_proj.weight, own.out_proj.bias)
        return torch._native_multi_head_attention(
            query, key, value, WIDTH, HEADS, *inputs, *options
        )


MASKS = {
    None: lambda: None,
    0: lambda: torch.rand(LENGTH, LENGTH) > 0.5,
    1: padding,
    2: lambda: torch.rand(BATCH, HEADS, LENGTH, LENGTH) > 0.9,
}


@pytest.mark.parametrize("mask_type", MASKS)
@pytest.mark.parametrize("is_averaged", [False, True])
def test_attention(mask_type: int | None, is_averaged: bool, mlcc_log: Any) -> None:
    module, x = Attention(), source()
    mask = MASKS[mask_type]()
    for args in ((x, x, x), (x, source(), source())):
        with mlcc_log("fallback") as lines:
            found, weights = compiled(module)(*args, mask, True, is_averaged, mask_type)
        assert not any("multi_head" in line for line in lines)
        eager, eager_weights = module(*args, mask, True, is_averaged, mask_type)
        torch.testing.assert_close(found, eager, equal_nan=True, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(weights, eager_weights, equal_nan=True, atol=1e-5, rtol=1e-5)
        assert weights.stride() == eager_weights.stride()
        found = compiled(lambda *args: module(*args)[0])(*args, mask, False, True, mask_type)
        torch.testing.assert_close(found, eager, equal_nan=True, atol=1e-5, rtol=1e-5)


def test_masks_of_another_shape_are_refused() -> None:
    module, x = Attention(), source()
    with pytest.raises(Exception, match="mask"):
        compiled(module)(x, x, x, padding(), True, True, 0)
