"""Training of attention that is written as its parts: no matrix of scores is saved, and gradients are eager's."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import mlcc
from benchmarks import suite
from mlcc.training import saved_scores
from tests.python.accuracy import check_all, to_double

Function = Callable[..., torch.Tensor]


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if small heads were worth it."""
    monkeypatch.setattr(saved_scores, "_LEAST_SCORES", 1)
    monkeypatch.setattr(saved_scores, "_LEAST_SHORT_SCORES", 1)


def heads(
    queries: int, keys: int, width: int, dtype: torch.dtype = torch.float32
) -> list[torch.Tensor]:
    return [torch.randn(2, 3, length, width, dtype=dtype) for length in (queries, keys, keys)]


def step(function: Function, inputs: list[torch.Tensor], grad: torch.Tensor) -> list[torch.Tensor]:
    """The result and the gradients, under one seed."""
    torch.manual_seed(7)
    leaves = [x.detach().requires_grad_() for x in inputs]
    result = function(*leaves)
    return [result.detach(), *torch.autograd.grad(result, leaves, grad)]


def compiled_step(
    function: Function, inputs: list[torch.Tensor], grad: torch.Tensor, dynamic: bool = False
) -> list[torch.Tensor]:
    torch._dynamo.reset()
    return step(torch.compile(function, backend="mlcc", dynamic=dynamic), inputs, grad)


def check(
    function: Function,
    inputs: list[torch.Tensor],
    exact: Function | None = None,
    dynamic: bool = False,
) -> None:
    """Results and gradients are as good as eager's, and lie alike. `exact`: the function without random numbers."""
    with torch.no_grad():
        grad = torch.randn_like(function(*inputs))
    found = compiled_step(function, inputs, grad, dynamic)
    eager = step(exact or function, inputs, grad)
    if grad.dtype == torch.float64:
        torch.testing.assert_close(found, eager, rtol=1e-11, atol=1e-11)
    else:
        check_all(found, eager, step(exact or function, to_double(inputs), grad.double()))
    assert [x.stride() for x in found[1:]] == [x.stride() for x in eager[1:]]


def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1) @ v


def capped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(5 * torch.tanh(q @ k.mT / 5), -1) @ v


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    is_seen = torch.arange(q.shape[-2])[:, None] >= torch.arange(k.shape[-2])
    return torch.softmax((q @ k.mT).masked_fill(~is_seen, -math.inf), -1) @ v


def lower(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    is_seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    return torch.softmax((q @ k.mT).masked_fill(~is_seen, -math.inf), -1) @ v


def one_head(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(0.1 * q[0, 0] @ k[0, 0].t(), -1) @ v[0, 0]


def turned(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax((k @ q.mT).mT * 0.3, -1) @ v


def heads_in_rows(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    return plain(q, k, v).transpose(1, 2).flatten(2)


def shared_keys(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return plain(q, *(x[:, :1].expand(-1, 3, -1, -1) for x in (k, v)))


def undropped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """As models have it whose dropout is switched off by a share of 0."""
    return F.dropout(torch.softmax(q @ k.mT / 8, -1), 0.0) @ v


FUNCTIONS = [plain, capped, causal, lower, one_head, turned, heads_in_rows, shared_keys, undropped]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions(function: Function, dynamic: bool, mlcc_log: Any) -> None:
    with mlcc_log("fallback") as calls:
        for queries, keys, width in ((97, 103, 48), (64, 70, 64), (200, 90, 20)):
            check(function, heads(queries, keys, width), dynamic=dynamic)
    assert not calls


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("function", FUNCTIONS)
def test_kernels(function: Function, mlcc_log: Any) -> None:
    """Tiles of the kernel take rows of all layouts; means and norms come from one kernel."""
    with mlcc_log("fusion") as lines:
        inputs = heads(120, 130, 32)
        compiled_step(function, inputs, torch.ones_like(function(*inputs)))
    kernels = [line for line in lines if "attend" in line and "did not join" not in line]
    assert len(kernels) == 2
    assert all("tile=" in kernel for kernel in kernels)
    assert "attend, score_sum, largest_score over" in kernels[0]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_dtypes(dtype: torch.dtype) -> None:
    for function in (plain, causal, shared_keys):
        check(function, heads(101, 111, 32, dtype))


def dropped_call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, dropout_p=0.25)


def dropped_causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, dropout_p=0.25, is_causal=True)


def dropped_parts(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    weights = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1, dtype=torch.float32)
    return F.dropout(weights.to(q.dtype), 0.25) @ v


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("function", [dropped_call, dropped_causal, dropped_parts])
def test_dropout(function: Function, dtype: torch.dtype, dynamic: bool, mlcc_log: Any) -> None:
    """Weights tell what was kept where values are rows of the identity."""
    q, k, v = heads(100, 80, 40, dtype)
    identity = torch.eye(80, dtype=dtype).expand(2, 3, -1, -1)
    grad = torch.zeros(2, 3, 100, 40, dtype=dtype)
    halves = [identity[..., :40].contiguous(), identity[..., 40:].contiguous()]
    with mlcc_log("fallback") as calls:
        weights = [compiled_step(function, [q, k, half], grad, dynamic)[0] for half in halves]
    # Forward, few queries of 16-bit floats stay calls.
    assert dtype != torch.float32 or not [call for call in calls if "bmm" in call]
    kept = torch.cat(weights, -1) != 0
    places = torch.arange(100)[:, None] >= torch.arange(80)
    is_seen = places if function is dropped_causal else torch.ones_like(places)
    assert abs(kept[..., is_seen].double().mean() - 0.75) < 0.02
    assert not kept[..., ~is_seen].any()

    def exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~is_seen, -math.inf)
        return torch.softmax(scores, -1) * kept / 0.75 @ v

    check(function, [q, k, v], exact, dynamic)


@pytest.mark.usefixtures("small")
def test_dropout_differs_from_call_to_call() -> None:
    compiled = torch.compile(dropped_parts, backend="mlcc", dynamic=False)
    inputs = [x.requires_grad_() for x in heads(90, 90, 16)]
    assert not torch.equal(compiled(*inputs), compiled(*inputs))


@pytest.mark.usefixtures("small")
def test_rows_without_keys() -> None:
    """The call gives zeros, also as gradients; a softmax NaN."""
    inputs = heads(80, 90, 32)
    is_seen = torch.rand(80, 90) > 0.5
    is_seen[3] = False

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=is_seen, dropout_p=0.5)

    def parts(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax((q @ k.mT).masked_fill(~is_seen, -math.inf), -1) @ v

    grad = torch.randn(2, 3, 80, 32)
    result, of_queries, *others = compiled_step(call, inputs, grad)
    assert result[..., 3, :].count_nonzero() == of_queries[..., 3, :].count_nonzero() == 0
    assert all(x.isfinite().all() for x in (of_queries, *others))
    found, eager = compiled_step(parts, inputs, grad), step(parts, inputs, grad)
    torch.testing.assert_close(found, eager, equal_nan=True, rtol=1e-4, atol=1e-4)
    assert found[0][..., 3, :].isnan().all()


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("lowest", [-1e4, -1e9, torch.finfo(torch.float32).min])
def test_rows_that_are_very_low(lowest: float) -> None:
    """Masks that hide by finite numbers: in a row that is hidden as a whole weights are equal, however low it is."""
    mask = torch.zeros(80, 90)
    mask[5] = lowest
    mask[:, 70:] = lowest

    def parts(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.mT / 4 + mask, -1) @ v

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, mask, dropout_p=1e-12)

    inputs, grad = heads(80, 90, 16), torch.randn(2, 3, 80, 16)
    for function in (parts, call):
        found, eager = compiled_step(function, inputs, grad), step(function, inputs, grad)
        torch.testing.assert_close(found, eager, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("small")
def test_large_scores() -> None:
    q, k, v = heads(80, 90, 32)
    check(lambda q, k, v: torch.softmax(q @ k.mT, -1) @ v, [30 * q, 30 * k, v])


def biased(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Scores get what is trained as well: a value of queries and keys has a reader of its own."""
    return torch.softmax(q @ k.mT + q[..., :1] * 0.5 + v[..., 0].unsqueeze(-2), -1) @ v


def returned(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    weights = torch.softmax(q @ k.mT, -1)
    return weights @ v + weights.square().sum(-1, keepdim=True)


def of_itself(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ q.mT / 8, -1) @ q + k[..., :1, :] * v[..., :1, :]


def layers(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        q = q + plain(q, k, v)
    return q


def checkpointed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return checkpoint(plain, q, k, v, use_reentrant=False)


@pytest.mark.usefixtures("small")
def test_scores_of_several_heads_as_one_matrix() -> None:
    def queries_in_rows(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = q.reshape(2, 288, 16) @ k[:, 0].mT
        return torch.softmax(scores.view(2, 3, 96, 104), -1) @ v

    inputs, grad = heads(96, 104, 16), torch.randn(2, 3, 96, 16)
    found, eager = compiled_step(queries_in_rows, inputs, grad), step(queries_in_rows, inputs, grad)
    torch.testing.assert_close(found, eager, rtol=1e-4, atol=1e-4)


class Halved(torch.autograd.Function):
    """Gradients are not those of what is computed."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0] * 0.5


def halved(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return Halved.apply(torch.softmax(q @ k.mT, -1)) @ v


def hooked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    weights = torch.softmax(q @ k.mT, -1)
    if weights.requires_grad:
        weights.register_hook(lambda grad: grad * 2)
    return weights @ v


def scores_returned(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = q @ k.mT - 1e9
    return torch.softmax(scores, -1) @ v + scores.detach().sum(-1, keepdim=True)


def shared_queries(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """One matrix of queries for all: their products are one matrix, of other rows than scores have."""
    return torch.softmax(q[0, 0] @ k.mT, -1) @ v


def keys_of_all(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k[0, 0].mT, -1) @ v


MORE = [
    *(biased, returned, of_itself, layers, checkpointed, halved, hooked),
    *(scores_returned, shared_queries, keys_of_all),
]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("function", MORE)
def test_what_is_more_than_attention(function: Function) -> None:
    check(function, heads(96, 104, 16))


def test_parts_of_gradients_alone() -> None:
    """Keys and values that are not trained."""
    q, k, v = heads(600, 600, 16)
    leaf = q.requires_grad_()
    grad = torch.randn(2, 3, 600, 16)
    compiled = torch.compile(plain, backend="mlcc", dynamic=False)
    found = torch.autograd.grad(compiled(leaf, k, v), leaf, grad)
    torch.testing.assert_close(found, torch.autograd.grad(plain(leaf, k, v), leaf, grad))


_calls = 0


@torch.library.custom_op("mlcc_tests::alternating", mutates_args=())
def alternating(count: int) -> torch.Tensor:
    global _calls
    _calls += 1
    return (torch.arange(count) + _calls) % 2 * 1e4


@alternating.register_fake
def _(count: int) -> torch.Tensor:
    return torch.empty(count)


@pytest.mark.usefixtures("small")
def test_masks_that_differ_from_call_to_call() -> None:
    """An op of the user's is called once a step, although it has no operands."""

    def masked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.mT - alternating(90), -1) @ v

    inputs, grad = heads(80, 90, 16), torch.randn(2, 3, 80, 16)
    before = _calls
    _, _, _, of_values = compiled_step(masked, inputs, grad)
    assert _calls == before + 1
    hidden = (torch.arange(90) + _calls) % 2 == 1
    assert not of_values[..., hidden, :].any()
    assert of_values[..., ~hidden, :].any()


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("function", FUNCTIONS)
def test_jit(function: Function, mlcc_log: Any) -> None:
    """Sizes are symbols that are read from tensors, of scores too."""
    inputs = heads(90, 110, 32)
    grad = torch.randn_like(function(*inputs))
    with mlcc_log("fallback") as calls:
        found = step(mlcc.jit(function), inputs, grad)
    torch.testing.assert_close(found, step(function, inputs, grad), rtol=1e-4, atol=1e-4)
    assert not [call for call in calls if "bmm" in call or "aten.mm" in call]


@pytest.mark.usefixtures("small")
def test_products_of_another_dtype() -> None:
    """Products in f64 are no part of scores in f32."""

    def mixed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax((q.double() @ k.double().mT).float(), -1) @ v

    inputs, grad = heads(80, 90, 16), torch.randn(2, 3, 80, 16)
    torch.testing.assert_close(compiled_step(mixed, inputs, grad), step(mixed, inputs, grad))
    with torch.no_grad():
        found = torch.compile(mixed, backend="mlcc", dynamic=False)(*inputs)
        torch.testing.assert_close(found, mixed(*inputs))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("dynamic", [False, True])
def test_rows_that_see_no_key(dynamic: bool) -> None:
    """Their results are NaN, and so are gradients of all values, although the mask tells of a range."""

    def window(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        behind = torch.arange(q.shape[-2])[:, None] - torch.arange(k.shape[-2])
        return torch.softmax((q @ k.mT).masked_fill(behind >= 16, -math.inf), -1) @ v

    inputs = heads(90, 60, 16)
    grad = torch.randn(2, 3, 90, 16)
    found = compiled_step(window, inputs, grad, dynamic)
    assert found[-1].isnan().all()
    torch.testing.assert_close(found, step(window, inputs, grad), equal_nan=True)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("entry", ["compile", "dynamic", "jit"])
@pytest.mark.parametrize("function", [plain, causal, lower, dropped_causal])
def test_nothing_as_large_as_scores_is_saved(function: Function, entry: str) -> None:
    """Nor a mask that follows from sizes: where the core does not know it, blocks that it hides are computed."""
    inputs = [x.requires_grad_() for x in heads(120, 130, 16)]
    if entry == "jit":
        compiled = mlcc.jit(function)
    else:
        compiled = torch.compile(function, backend="mlcc", dynamic=entry == "dynamic")
    compiled(*inputs)
    saved: list[int] = []

    def pack(x: torch.Tensor) -> torch.Tensor:
        saved.append(x.numel())
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        compiled(*inputs)
    assert len(saved) >= 3
    assert max(saved) < 120 * 130


@pytest.mark.parametrize("function", [plain, undropped, dropped_call, dropped_parts])
def test_scores_are_nowhere_in_memory(function: Function) -> None:
    """4,096 queries and keys: scores would take 64 MiB, as they do where random numbers are eager's."""

    def peak(**options: Any) -> int:
        torch._dynamo.reset()
        inputs = [torch.randn(1, 1, 4096, 16, requires_grad=True) for _ in range(3)]
        grad = torch.randn(1, 1, 4096, 16)
        options["idle_memory_mb"] = 0
        compiled = torch.compile(function, backend="mlcc", dynamic=False, options=options)

        def once() -> Any:
            return torch.autograd.grad(compiled(*inputs), inputs, grad)

        # Else blocks that a step has freed count as in use before the next one.
        with mlcc.config.patch(idle_memory_mb=0):
            once()
            peak = suite.peak_bytes(once)
        if peak is None:
            pytest.skip("this system does not tell")
        return peak

    assert peak() < 24 * 2**20
    assert peak(fallback_random=True) > 48 * 2**20
