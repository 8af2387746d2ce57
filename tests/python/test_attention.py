"""Attention as kernels: from calls and from parts, masks, grouped heads, sizes, special values, gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import mlcc
from benchmarks import suite
from tests.python.accuracy import check_all, to_double


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def check(function: Callable[..., Any], *args: torch.Tensor, dynamic: bool = False) -> None:
    """As good as eager, judged against float64, and lies in memory as eager's result does."""
    torch._dynamo.reset()
    with torch.no_grad():
        eager = function(*args)
        exact = function(*to_double(list(args)))
        found = torch.compile(function, backend="mlcc", dynamic=dynamic)(*args)
    if eager.dtype == torch.float64:
        torch.testing.assert_close(found, eager, rtol=1e-12, atol=1e-12)
    else:
        check_all(found, eager, exact)
    assert found.stride() == eager.stride()


def heads(
    queries: int, keys: int, width: int, dtype: torch.dtype = torch.float32
) -> list[torch.Tensor]:
    shape = (2, 4, keys, width)
    return [
        torch.randn(2, 4, queries, width, dtype=dtype),
        torch.randn(shape, dtype=dtype),
        torch.randn(shape, dtype=dtype),
    ]


def softmax_parts(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), -1) @ v


SIZES = [
    (12, 32, 255),
    (1, 77, 64),
    (5, 33, 80),
    (13, 13, 16),
    (40, 48, 64),
    (130, 259, 128),
    (64, 300, 256),
]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("queries", "keys", "width"), SIZES)
def test_sizes(queries: int, keys: int, width: int, dynamic: bool) -> None:
    q, k, v = heads(queries, keys, width)
    attend = F.scaled_dot_product_attention
    check(attend, q, k, v, dynamic=dynamic)
    check(lambda q, k, v: attend(q, k, v, is_causal=True), q, k, v, dynamic=dynamic)
    check(
        lambda q, k, v: attend(q, k, v, scale=0.3), q, k, v[..., :7].contiguous(), dynamic=dynamic
    )
    check(softmax_parts, q, k, v, dynamic=dynamic)
    check(softmax_parts, q[0, 0], k[0, 0], v[0, 0], dynamic=dynamic)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("queries", "width"), [(3, 64), (20, 64), (70, 63), (300, 64)])
def test_dtypes(dtype: torch.dtype, queries: int, width: int) -> None:
    q, k, v = heads(queries, 45, width, dtype)
    check(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), q, k, v)
    check(softmax_parts, q, k, v)


@pytest.mark.parametrize("dynamic", [False, True])
def test_masks(dynamic: bool) -> None:
    q, k, v = heads(50, 90, 32)
    masks = [
        torch.rand(50, 90) > 0.3,
        torch.rand(2, 1, 1, 90) > 0.3,
        torch.randn(4, 50, 90),
        torch.randn(2, 4, 50, 1),
        torch.randn(50, 90).t().contiguous().t(),
    ]
    for mask in masks:
        check(
            lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m),
            *(q, k, v, mask),
            dynamic=dynamic,
        )


def test_score_modifications() -> None:
    q, k, v = heads(50, 60, 32)
    slopes = torch.rand(4)

    def weigh(scores: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(scores, -1) @ v

    def alibi(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        distance = torch.arange(60)[None, :] - torch.arange(50)[:, None]
        return weigh(q @ k.mT + s[:, None, None] * distance, v)

    def capped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return weigh(20 * torch.tanh(q @ k.mT / 20), v)

    def windowed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        distance = torch.arange(50)[:, None] - torch.arange(60)[None, :]
        return weigh((q @ k.mT).masked_fill((distance < 0) | (distance > 9), -math.inf), v)

    check(alibi, q, k, v, slopes)
    check(capped, q, k, v)
    check(windowed, q, k, v)


def test_jit_knows_the_width_of_heads(mlcc_log: Any) -> None:
    """Other lengths are the same compilation, another width is another one."""
    with torch.no_grad(), mlcc_log("fallback") as calls, mlcc_log("recompiles") as recompiles:
        jitted = mlcc.jit(F.scaled_dot_product_attention)
        for queries, keys, width, number in ((30, 50, 32, 0), (64, 64, 32, 0), (30, 50, 48, 1)):
            tensors = heads(queries, keys, width)
            eager = F.scaled_dot_product_attention(*tensors)
            torch.testing.assert_close(jitted(*tensors), eager)
            assert len(recompiles) == number
    assert not calls


def test_jit_of_gradients() -> None:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    jitted = mlcc.jit(attend)
    tensors = [x.requires_grad_() for x in heads(30, 30, 32)]
    found = torch.autograd.grad(jitted(*tensors).square().sum(), tensors)
    eager = attend(*tensors)
    for a, b in zip(found, torch.autograd.grad(eager.square().sum(), tensors), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def distance(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """How many places a key is before a query; the first ones of both are at the same place."""
    return torch.arange(q.shape[2])[:, None] - torch.arange(k.shape[2])


def tril_call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def window_call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    mask = (distance(q, k) >= 0) & (distance(q, k) < 20)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def sum_with_triu(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    mask = torch.full((q.shape[2], k.shape[2]), -math.inf).triu(1)
    return torch.softmax(q @ k.mT + mask, -1) @ v


def filled_where_zero(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    mask = torch.tril(torch.ones(q.shape[2], k.shape[2]))
    return torch.softmax((q @ k.mT).masked_fill(mask == 0, -math.inf), -1) @ v


def behind(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The first rows have no keys, and so have the last ones where there are fewer keys than queries."""
    is_seen = (distance(q, k) > 3) & ~(distance(q, k) > 40)
    return torch.softmax(torch.where(is_seen, q @ k.mT, -math.inf), -1) @ v


def ahead(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Keys from each query's place on, but not every second one."""
    is_seen = (distance(q, k) <= 0) & (torch.arange(k.shape[2]) % 2 == 0)
    return torch.softmax(torch.where(is_seen, q @ k.mT, -math.inf), -1) @ v


def mirrored(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Later queries see fewer keys."""
    is_seen = torch.arange(q.shape[2])[:, None] + torch.arange(k.shape[2]) < k.shape[2]
    return torch.softmax(torch.where(is_seen, q @ k.mT, -math.inf), -1) @ v


OF_PLACES = [tril_call, window_call, sum_with_triu, filled_where_zero, behind, ahead, mirrored]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", OF_PLACES)
def test_masks_that_compare_places(function: Callable[..., torch.Tensor], dynamic: bool) -> None:
    for queries, keys in ((130, 300), (300, 130), (3, 50)):
        check(function, *heads(queries, keys, 32), dynamic=dynamic)


@pytest.mark.parametrize("queries", [1, 3, 70])
@pytest.mark.parametrize("shared", [1, 2])
def test_grouped_heads(queries: int, shared: int) -> None:
    q, k, v = heads(queries, 90, 64)
    attend = F.scaled_dot_product_attention
    mask = torch.randn(4, queries, 90)

    def grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        causal = attend(q, k, v, enable_gqa=True, is_causal=True)
        return attend(q, k, v, attn_mask=m, enable_gqa=True) + causal

    check(grouped, q, k[:, :shared], v[:, :shared], mask)


@pytest.mark.parametrize("queries", [1, 3, 70])
@pytest.mark.parametrize("shared", [1, 2])
def test_repeated_heads(queries: int, shared: int) -> None:
    """Keys and values of which programs make copies, in the order that a call wants or in another one."""
    q, k, v = heads(queries, 90, 64)
    mask = torch.randn(1, 1, queries, 90)

    def repeated(x: torch.Tensor) -> torch.Tensor:
        batch, _, length, width = x.shape
        return x[:, :, None].expand(-1, -1, 4 // shared, -1, -1).reshape(batch, 4, length, width)

    def others(x: torch.Tensor) -> torch.Tensor:
        return x.repeat(1, 4 // shared, 1, 1)

    def attend(*args: torch.Tensor) -> torch.Tensor:
        q, k, v, mask = args
        shape = (q.shape[0], q.shape[2], -1)

        def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            result = F.scaled_dot_product_attention(q, k, v, mask)
            return result.transpose(1, 2).reshape(shape)

        again = k.repeat_interleave(4 // shared, 1), v.repeat_interleave(4 // shared, 1)
        return (
            attended(q, repeated(k), repeated(v))
            + attended(q, *again) * 2
            + attended(q, repeated(k), others(v)) * 3
        )

    check(attend, q, k[:, :shared], v[:, :shared], mask)


def test_grouped_heads_whose_numbers_were_symbols(mlcc_log: Any) -> None:
    """Numbers of heads that differ get guards, so that attention is a kernel; others are traced anew."""

    def grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        is_causal = q.shape[2] > 1
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True, is_causal=is_causal)

    attend = mlcc.jit(grouped)
    with torch.no_grad(), mlcc_log("perf") as graphs:
        for heads_of_keys, length in ((2, 90), (2, 70), (1, 90), (4, 90)):
            q, k, v = heads(30, length, 64)
            k, v = (x[:, :heads_of_keys].contiguous() for x in (k, v))
            torch.testing.assert_close(attend(q, k, v), grouped(q, k, v))
    assert len(graphs) == 3
    assert all(" 0 ATen calls," in graph for graph in graphs)


def test_layouts() -> None:
    """Heads that are cut out of rows, transposed keys, and values that lie across."""
    x = torch.randn(2, 50, 3 * 4 * 32)

    def merged(x: torch.Tensor) -> torch.Tensor:
        q, k, v = (p.unflatten(-1, (4, 32)).transpose(1, 2) for p in x.chunk(3, -1))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)

    check(merged, x)
    q, k, v = heads(50, 60, 32)
    across = v.mT.contiguous().mT
    check(F.scaled_dot_product_attention, q, k.mT.contiguous().mT, across)
    check(softmax_parts, q, k.mT.contiguous().mT, across)


def same(function: Callable[..., torch.Tensor], *args: torch.Tensor) -> None:
    with torch.no_grad():
        eager = function(*args)
        found = torch.compile(function, backend="mlcc", dynamic=False)(*args)
    torch.testing.assert_close(found, eager, equal_nan=True)
    torch._dynamo.reset()


def test_rows_without_keys() -> None:
    """The call gives zeros, a softmax NaN; what is infinite or NaN goes where eager has it."""
    q, k, v = heads(20, 30, 32)
    mask = torch.rand(20, 30) > 0.5
    mask[3] = False
    same(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m), q, k, v, mask)
    same(
        lambda q, k, v, m: torch.softmax((q @ k.mT).masked_fill(~m, -math.inf), -1) @ v,
        *(q, k, v, mask),
    )


@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_special_values(special: float, which: int) -> None:
    tensors = heads(20, 30, 32)
    tensors[which][1, 2, 5, 7] = special
    same(softmax_parts, *tensors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients(dtype: torch.dtype) -> None:
    q, k, v = (x.requires_grad_() for x in heads(40, 50, 32, dtype))
    grad = torch.randn(2, 4, 40, 32, dtype=dtype)
    attend = F.scaled_dot_product_attention
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {}
    for function in (
        attend,
        softmax_parts,
        lambda q, k, v: attend(q, k, v, is_causal=True),
        lambda q, k, v: attend(q, k[:, :2], v[:, :2], enable_gqa=True),
    ):
        eager = torch.autograd.grad(function(q, k, v), (q, k, v), grad)
        compiled = torch.compile(function, backend="mlcc", dynamic=False)
        found = torch.autograd.grad(compiled(q, k, v), (q, k, v), grad)
        torch.testing.assert_close(found, eager, **tolerance)
        torch._dynamo.reset()


def dropped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, dropout_p=0.2, is_causal=q.shape[2] > 1)


def dropped_parts(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    weights = torch.softmax(q @ k.mT, -1, dtype=torch.float32).to(q.dtype)
    return F.dropout(weights, 0.2) @ v


def halved_heads(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    factors = torch.linspace(0, 1, q.shape[1]).to(q.dtype)
    return torch.softmax(q @ k.mT, -1) * factors[:, None, None] @ v


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("function", [dropped, dropped_parts, halved_heads])
def test_factors_of_weights(
    function: Callable[..., torch.Tensor], dtype: torch.dtype, mlcc_log: Any
) -> None:
    """As where weights lie in memory, with the same random numbers: these follow from seeds and places."""
    for queries, keys in ((300, 300), (260, 290), (1, 90), (3, 50)):
        tensors = heads(queries, keys, 64, dtype)
        found = []
        for contractions in (True, False):
            compiled = torch.compile(
                function, backend="mlcc", dynamic=False, options={"contractions": contractions}
            )
            torch.manual_seed(1)
            with torch.no_grad(), mlcc_log("fallback") as calls:
                found.append(compiled(*tensors))
            assert not contractions or queries < 256 or not calls
            torch._dynamo.reset()
        tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(*found, rtol=tolerance, atol=tolerance)


def whole_numbers(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Weights that are cut to whole numbers are no weights of a softmax."""
    return (torch.softmax(q @ k.mT, -1) * 127).to(torch.int8).to(v.dtype) * 0.1 @ v


def first_keys(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.mT, -1)[..., :30] @ v[..., :30, :]


@pytest.mark.parametrize("function", [whole_numbers, first_keys])
def test_what_is_no_mean_of_all_values(function: Callable[..., torch.Tensor]) -> None:
    q, k, v = heads(70, 60, 32)
    with torch.no_grad():
        found = torch.compile(function, backend="mlcc", dynamic=False)(q, k, v)
        torch.testing.assert_close(found, function(q, k, v), rtol=1e-4, atol=1e-4)


def test_values_are_what_scores_are_made_of() -> None:
    x, y = torch.randn(40, 64), torch.randn(40, 64)

    def twice(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        product = x @ y.t()
        return (product * 0.1).softmax(-1) @ product

    check(twice, x, y)


def test_gradients_of_rows_without_keys() -> None:
    q, k, v = (x.requires_grad_() for x in heads(20, 30, 32))
    mask = torch.rand(20, 30) > 0.5
    mask[3] = False

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    eager = torch.autograd.grad(attend(q, k, v).square().sum(), (q, k, v))
    compiled = torch.compile(attend, backend="mlcc", dynamic=False)
    found = torch.autograd.grad(compiled(q, k, v).square().sum(), (q, k, v))
    assert all(x.isfinite().all() for x in eager)
    torch.testing.assert_close(found, eager)


@pytest.mark.parametrize("function", [F.scaled_dot_product_attention, softmax_parts, dropped])
def test_scores_are_nowhere_in_memory(function: Callable[..., torch.Tensor]) -> None:
    """8,192 queries and keys: their scores would take 256 MiB, as they do where attention is no code."""
    q, k, v = (torch.randn(1, 1, 8192, 16) for _ in range(3))

    def peak(**options: Any) -> int:
        # Else blocks that a call has freed count as in use before the next one.
        options["idle_memory_mb"] = 0
        compiled = torch.compile(function, backend="mlcc", dynamic=False, options=options)
        with mlcc.config.patch(idle_memory_mb=0), torch.no_grad():
            found = compiled(q, k, v)
            if function is not dropped:
                torch.testing.assert_close(found, F.scaled_dot_product_attention(q, k, v))
            del found
            peak = suite.peak_bytes(lambda: compiled(q, k, v))
        if peak is None:
            pytest.skip("this system does not tell")
        return peak

    assert peak() < 32 * 2**20
    if function is not F.scaled_dot_product_attention:
        assert peak(contractions=False) > 128 * 2**20
