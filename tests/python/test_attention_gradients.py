"""Gradients of attention as one kernel: sizes, masks, layouts, dtypes, special values, memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import mlcc
from benchmarks import suite
from tests.python.accuracy import check_all, check_form, to_double


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    """With code where a trial would decide."""
    torch.manual_seed(0)
    with mlcc.config.patch(prefer="code"):
        yield
    torch._dynamo.reset()


def heads(
    queries: int, keys: int, width: int, dtype: torch.dtype = torch.float32
) -> list[torch.Tensor]:
    lengths = (queries, keys, keys, queries)
    return [torch.randn(2, 3, length, width, dtype=dtype) for length in lengths]


def check(
    attend: Callable[..., torch.Tensor], tensors: list[torch.Tensor], dynamic: bool = False
) -> tuple[torch.Tensor, ...]:
    """The gradients are as good as eager's, judged against float64, and lie in memory as these do."""

    def gradients(attend: Callable[..., torch.Tensor], all: list[torch.Tensor]) -> Any:
        *inputs, grad = (x.detach().requires_grad_() for x in all)
        return torch.autograd.grad(attend(*inputs), inputs, grad)

    eager = gradients(attend, tensors)
    exact = gradients(attend, to_double(tensors))
    found = gradients(torch.compile(attend, backend="mlcc", dynamic=dynamic), tensors)
    if tensors[0].dtype == torch.float64:
        torch.testing.assert_close(found, eager, rtol=1e-11, atol=1e-11)
    else:
        check_all(found, eager, exact)
    for one, other in zip(found, eager, strict=True):
        check_form(one, other)
    torch._dynamo.reset()
    return found


SIZES = [(64, 64, 64), (97, 103, 80), (130, 20, 9), (200, 259, 128), (70, 300, 256), (100, 1, 16)]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("queries", "keys", "width"), SIZES)
def test_sizes(queries: int, keys: int, width: int, dynamic: bool, mlcc_log: Any) -> None:
    tensors = heads(queries, keys, width)
    attend = F.scaled_dot_product_attention
    with mlcc_log("fallback") as calls:
        check(attend, tensors, dynamic)
        check(lambda q, k, v: attend(q, k, v, is_causal=True, scale=0.3), tensors, dynamic)
    assert not calls


@pytest.mark.parametrize("width", [144, 160, 256])
def test_long_rows_of_f64_fit_a_stack(width: int, mlcc_log: Any) -> None:
    with mlcc_log("fallback") as calls:
        check(F.scaled_dot_product_attention, heads(70, 320, width, torch.float64))
    assert not calls


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [64, 128])
def test_dtypes(dtype: torch.dtype, width: int) -> None:
    check(F.scaled_dot_product_attention, heads(70, 90, width, dtype))
    check(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        heads(90, 90, width, dtype),
    )


@pytest.mark.parametrize("dynamic", [False, True])
def test_masks(dynamic: bool) -> None:
    tensors = heads(100, 120, 32)
    added = torch.randn(100, 120)
    seen = torch.rand(2, 1, 100, 120) > 0.3
    seen[1, 0, 7] = False  # a row without keys
    places = torch.arange(100)[:, None] - torch.arange(120)
    for mask in (added, added[:, :1], seen, places >= 0, (places >= 0) & (places < 20)):
        check(
            lambda q, k, v, mask=mask: F.scaled_dot_product_attention(q, k, v, attn_mask=mask),
            tensors,
            dynamic,
        )


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shared", [1, 2])
def test_grouped_heads(shared: int, dynamic: bool, mlcc_log: Any) -> None:
    q = torch.randn(2, 4, 90, 32)
    k, v = (torch.randn(2, shared, 110, 32) for _ in range(2))
    mask = torch.randn(90, 110)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        causal = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return causal + F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)

    with mlcc_log("fallback") as calls:
        check(attend, [q, k, v, torch.randn(2, 4, 90, 32)], dynamic)
    assert not calls


def test_masks_that_are_computed() -> None:
    """Blocks that a mask of places hides are left out, as those of causal attention are."""

    def windowed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        behind = torch.arange(q.shape[2])[:, None] - torch.arange(k.shape[2])
        return F.scaled_dot_product_attention(q, k, v, attn_mask=(behind >= 0) & (behind < 50))

    check(windowed, heads(300, 300, 32))


def test_layouts() -> None:
    """Heads that lie beside each other in the rows of a projection, and what expands or is cut out."""

    def attend(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        q, k, v = (x @ w).view(2, 80, 3, 4, 32).permute(2, 0, 3, 1, 4)
        means = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return means.transpose(1, 2).reshape(2, 80, 128)

    check(attend, [torch.randn(2, 80, 128), torch.randn(128, 384) / 12, torch.randn(2, 80, 128)])
    q, k, v, grad = heads(80, 160, 32)

    def of_parts(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        k, v = k[:, :, ::2].mT.contiguous().mT, v[:, :1, ::2].expand(-1, 3, -1, -1)
        return F.scaled_dot_product_attention(q, k, v)

    check(of_parts, [q, k, v, grad])


def test_values_of_another_width() -> None:
    """A node of its own: torch's call has one width."""
    q, k, v, _ = heads(70, 90, 48)
    check(
        F.scaled_dot_product_attention, [q, k, v[..., :40].contiguous(), torch.randn(2, 3, 70, 40)]
    )


@pytest.mark.parametrize("special", [float("inf"), float("nan")])
@pytest.mark.parametrize("which", range(4))
def test_special_values(special: float, which: int) -> None:
    tensors = heads(70, 100, 32)
    tensors[which][1, 2, 5, 7] = special

    def gradients(attend: Callable[..., torch.Tensor], all: list[torch.Tensor]) -> Any:
        *inputs, grad = (x.detach().requires_grad_() for x in all)
        return torch.autograd.grad(attend(*inputs), inputs, grad)

    # Of float64: in float32 fewer elements are NaN where a score is infinite, as vectors happen to meet.
    exact = gradients(F.scaled_dot_product_attention, to_double(tensors))
    found = gradients(torch.compile(F.scaled_dot_product_attention, backend="mlcc"), tensors)
    for a, b in zip(found, exact, strict=True):
        assert torch.equal(a.isfinite(), b.isfinite())
        torch.testing.assert_close(a[b.isfinite()], b[b.isfinite()].float())


@pytest.mark.parametrize("contractions", [True, False])
def test_scores_are_nowhere_in_memory(contractions: bool) -> None:
    """4,096 queries and keys: their scores would take 64 MiB, as those of parts do that are no code."""
    q, k, v = (torch.randn(1, 1, 4096, 16, requires_grad=True) for _ in range(3))
    grad = torch.randn(1, 1, 4096, 16)
    eager = F.scaled_dot_product_attention
    function = eager if contractions else lambda q, k, v: (q @ k.mT / 4).softmax(-1) @ v
    options = {"contractions": contractions, "idle_memory_mb": 0}
    compiled = torch.compile(function, backend="mlcc", dynamic=False, options=options)

    def step() -> Any:
        return torch.autograd.grad(compiled(q, k, v), (q, k, v), grad)

    # Else blocks that a step has freed count as in use before the next one.
    with mlcc.config.patch(idle_memory_mb=0):
        torch.testing.assert_close(step(), torch.autograd.grad(eager(q, k, v), (q, k, v), grad))
        peak = suite.peak_bytes(step)
    if peak is None:
        pytest.skip("this system does not tell")
    assert peak < 16 * 2**20 if contractions else peak > 32 * 2**20


@pytest.mark.parametrize(("queries", "is_call"), [(255, True), (256, False)])
def test_few_queries_may_be_a_call(queries: int, is_call: bool, mlcc_log: Any) -> None:
    """Where a library is found to be faster, it computes them."""
    with mlcc.config.patch(prefer="call"), mlcc_log("fallback") as calls:
        check(F.scaled_dot_product_attention, heads(queries, 40, 16))
    assert any("attention_for_cpu_backward" in call for call in calls) == is_call
