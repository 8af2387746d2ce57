"""flex_attention in plain ops: functions of scores and of places, masks by blocks, shared heads, results, layouts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

from tests.python.accuracy import check_all, to_double

HEADS, WIDTH = 4, 64


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.no_grad():
        yield
    torch._dynamo.reset()


def heads(
    queries: int, keys: int, shared: int = HEADS, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    shapes = [(2, HEADS, queries, WIDTH), (2, shared, keys, WIDTH), (2, shared, keys, WIDTH)]
    return [torch.randn(shape, dtype=dtype) for shape in shapes]


def check(function: Callable[..., Any], *args: Tensor, dynamic: bool = False) -> None:
    """As good as eager, which computes by parts, judged against float64; lies in memory as eager's."""
    torch._dynamo.reset()
    eager = torch.compile(function, backend="eager", dynamic=dynamic)(*args)
    exact = torch.compile(function, backend="eager", dynamic=dynamic)(*to_double(list(args)))
    found = torch.compile(function, backend="mlcc", dynamic=dynamic)(*args)
    check_all(found, eager, exact)
    if isinstance(eager, Tensor):
        assert found.stride() == eager.stride()


def soft_cap(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return torch.tanh(score / 20) * 20


def alibi(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return score - (q - k).abs() * torch.exp2(-(h + 1.0))


def causal(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return q >= k


def window(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (q >= k) & (q - k < 20)


def prefix(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (k < 7 * (b + 1)) | (q >= k + h)


def behind(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """Leaves the first rows without keys."""
    return k < q - 4


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("score_mod", [None, soft_cap, alibi])
def test_scores(score_mod: Any, dynamic: bool, mlcc_log: Any) -> None:
    with mlcc_log("fallback") as lines:
        for queries, keys in ((70, 70), (1, 90), (33, 130)):
            check(
                lambda q, k, v: flex_attention(q, k, v, score_mod=score_mod),
                *heads(queries, keys),
                dynamic=dynamic,
            )
    assert not any("flex" in line for line in lines)


@pytest.mark.parametrize("mask_mod", [causal, window, prefix, behind])
@pytest.mark.parametrize("score_mod", [None, alibi])
def test_masks(mask_mod: Any, score_mod: Any) -> None:
    for queries, keys in ((130, 130), (60, 200), (1, 90)):
        blocks = create_block_mask(mask_mod, 2, HEADS, queries, keys, device="cpu", BLOCK_SIZE=32)
        check(
            lambda q, k, v: flex_attention(q, k, v, score_mod=score_mod, block_mask=blocks),
            *heads(queries, keys),
        )


def test_tables() -> None:
    length = 70
    bias, document = torch.randn(HEADS, 2 * length), torch.arange(length) // 30
    slopes = torch.rand(HEADS)
    blocks = create_block_mask(
        lambda b, h, q, k: (q >= k) & (document[q] == document[k]),
        None,
        None,
        length,
        length,
        device="cpu",
    )

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        def score_mod(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return score + bias[h][q - k + length] * slopes[h]

        return flex_attention(q, k, v, score_mod=score_mod, block_mask=blocks)

    q, k, v = heads(length, length)
    eager = torch.compile(function, backend="eager")(q, k, v)
    found = torch.compile(function, backend="mlcc")(q, k, v)
    torch.testing.assert_close(found, eager, rtol=1e-5, atol=1e-5)


def test_constants(mlcc_log: Any) -> None:
    def halved(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return torch.where(q >= k, score * torch.tensor(0.5), torch.tensor(-math.inf))

    with mlcc_log("fallback") as lines:
        check(lambda q, k, v: flex_attention(q, k, v, score_mod=halved), *heads(50, 50))
    assert not any("flex" in line for line in lines)


def test_masks_made_with_it(mlcc_log: Any) -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        blocks = create_block_mask(causal, None, None, q.shape[2], k.shape[2], device="cpu")
        return flex_attention(q, k, v, block_mask=blocks)

    with mlcc_log("fallback") as lines:
        check(function, *heads(50, 50))
        check(function, *heads(50, 50), dynamic=True)
    assert not lines


@pytest.mark.parametrize("shared", [1, 2])
@pytest.mark.parametrize("queries", [1, 50])
def test_shared_heads(shared: int, queries: int) -> None:
    check(
        lambda q, k, v: flex_attention(q, k, v, score_mod=alibi, scale=0.3, enable_gqa=True),
        *heads(queries, 50, shared),
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_dtypes(dtype: torch.dtype) -> None:
    for length in (40, 300):
        blocks = create_block_mask(causal, None, None, length, length, device="cpu")
        q, k, v = heads(length, length, dtype=dtype)

        def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return flex_attention(q, k, v, score_mod=soft_cap, block_mask=blocks)

        if dtype != torch.float64:
            check(function, q, k, v)
            continue
        torch._dynamo.reset()
        eager = torch.compile(function, backend="eager")(q, k, v)
        found = torch.compile(function, backend="mlcc")(q, k, v)
        torch.testing.assert_close(found, eager, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mask_mod", [causal, behind])
def test_norms(mask_mod: Any) -> None:
    blocks = create_block_mask(mask_mod, None, None, 90, 90, device="cpu")

    def function(q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
        means, others = flex_attention(q, k, v, block_mask=blocks, return_aux=AuxRequest(lse=True))
        return [means, others.lse]

    q, k, v = heads(90, 90)
    eager = torch.compile(function, backend="eager")(q, k, v)
    found = torch.compile(function, backend="mlcc")(q, k, v)
    torch.testing.assert_close(found, eager, rtol=1e-5, atol=1e-5)
    assert [x.stride() for x in found] == [x.stride() for x in eager]


def test_layouts() -> None:
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in heads(40, 40))
    check(lambda q, k, v: flex_attention(q, k, v), q, k, v)
    check(lambda q, k, v: flex_attention(q, k, v), q.mT.contiguous().mT, k, v)


@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf])
def test_special_values(special: float) -> None:
    q, k, v = heads(40, 40)
    for x in (q, k):
        x[0, 0, 5, 3] = special
    torch._dynamo.reset()
    eager = torch.compile(flex_attention, backend="eager")(q, k, v)
    found = torch.compile(flex_attention, backend="mlcc")(q, k, v)
    torch.testing.assert_close(found, eager, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("queries", [1, 5])
def test_rows_lie_as_in_queries_whose_dimensions_were_exchanged(queries: int) -> None:
    """Dimensions of one element too, as in a step of decoding."""
    _, key, value = heads(queries, 40, shared=2)
    query = torch.randn(2, queries, HEADS, WIDTH).transpose(1, 2)
    check(lambda q, k, v: flex_attention(q, k, v, enable_gqa=True), query, key, value)
