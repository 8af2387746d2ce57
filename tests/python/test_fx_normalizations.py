"""Norms and softmax that traces take whole, as nodes of the graph IR, beside eager."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from mlcc.importer.handlers import HANDLERS
from mlcc.rewrite import decompositions
from tests.python.accuracy import check_all, to_double
from tests.python.test_autograd import saved_bytes
from tests.python.test_backend import compiled
from tests.python.tracing import GENERATED, trace

A = torch.ops.aten
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
LAST = torch.channels_last


def whole_ops() -> set[Any]:
    """Overloads that are taken apart in traces with gradients only."""
    parts = decompositions.table(GENERATED, has_gradients=True)
    return parts.keys() - decompositions.table(GENERATED).keys()


def check(function: Callable[..., Any], *args: torch.Tensor) -> None:
    """As good as eager where sizes are numbers and, of f32, where they are symbols, with no ATen call."""
    eager = _listed(function(*args))
    exact = _listed(function(*to_double(list(args))))
    is_judged = eager[0].dtype != torch.float64
    for dynamic in {False, args[0].dtype == torch.float32}:
        imported = trace(function, *args, dynamic=dynamic)
        got = imported(*args)
        assert imported.externs == set()
        if is_judged:
            check_all(got, eager, exact)
        else:
            torch.testing.assert_close(got, eager, rtol=1e-12, atol=1e-12, equal_nan=True)


def _listed(results: Any) -> list[Any]:
    return list(results) if isinstance(results, list | tuple) else [results]


def images(dtype: torch.dtype) -> list[torch.Tensor]:
    """Batches of 6 channels: rows, images in several layouts, none at all."""
    x = torch.randn(2, 6, 4, 5) * 3 + 1
    rows, columns = x[:, :, 0, 0].clone(), x[..., 0].clone()
    batches = [rows, columns, x, x.to(memory_format=LAST), x.mT, x[:0]]
    return [batch.to(dtype) for batch in batches]


def test_what_is_whole() -> None:
    assert {str(op) for op in whole_ops()} <= HANDLERS.keys()
    assert A.native_layer_norm.default in whole_ops()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("given", ["", "weight", "bias", "weight bias"])
@pytest.mark.parametrize("parameters", ["same", torch.float32])
def test_batch_norm_without_training(given: str, parameters: Any, dtype: torch.dtype) -> None:
    kept = dtype if parameters == "same" else parameters
    mean, var, weight, bias = torch.randn(6), torch.rand(6), torch.randn(6), torch.randn(6)
    tensors = [t.to(kept) for t in (mean, var, weight, bias)]

    def function(x: Any, mean: Any, var: Any, weight: Any, bias: Any) -> Any:
        weight = weight if "weight" in given else None
        bias = bias if "bias" in given else None
        return F.batch_norm(x, mean, var, weight, bias, False, 0.1, 1e-3)

    for x in images(dtype):
        if kept == dtype or dtype.itemsize == 2:
            check(function, x, *tensors)


@pytest.mark.parametrize("op", [A._native_batch_norm_legit_no_training, A._batch_norm_no_update])
def test_what_batch_norms_save(op: Any) -> None:
    """Nothing, on CPUs."""

    def function(x: Any, weight: Any, bias: Any, mean: Any, var: Any) -> Any:
        return op(x, weight, bias, mean, var, 0.1, 1e-3)

    numbers = torch.randn(3, 6), torch.randn(6), torch.randn(6), torch.randn(6), torch.rand(6)
    for dtype in (torch.float32, torch.bfloat16):
        check(function, *(t.to(dtype) for t in numbers))


def test_strides_of_batch_norms(mlcc_log: Any) -> None:
    def function(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
        return F.batch_norm(x, mean, var)

    mean, var = torch.randn(6), torch.rand(6)
    for x in images(torch.float32):
        for dynamic in (False, True):
            with mlcc_log("fallback") as lines:
                got = compiled(function, dynamic=dynamic)(x, mean, var)
            assert not lines
            assert got.stride() == function(x, mean, var).stride()


def rows(dtype: torch.dtype) -> list[torch.Tensor]:
    x = torch.randn(3, 4, 5) * 3 + 1
    tensors = [
        x,
        x[0],
        x[0, 0],
        x.permute(2, 1, 0).contiguous().permute(2, 1, 0),
        x[:0],
        x[:, :1].clone(),
    ]
    return [t.to(dtype) for t in tensors]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("given", ["", "weight", "bias", "weight bias"])
@pytest.mark.parametrize("parameters", ["same", torch.float32])
def test_layer_norm(given: str, parameters: Any, dtype: torch.dtype) -> None:
    kept = dtype if parameters == "same" else parameters
    for x in rows(dtype):
        for count in range(1, min(3, x.dim()) + 1):
            shape = x.shape[x.dim() - count :]
            weight, bias = torch.randn(shape).to(kept), torch.randn(shape).to(kept)

            def function(x: Any, weight: Any, bias: Any, count: int = count) -> Any:
                weight = weight if "weight" in given else None
                bias = bias if "bias" in given else None
                results = A.native_layer_norm(x, x.shape[x.dim() - count :], weight, bias, 1e-3)
                # Of mixed dtypes torch's trace foretells mean and deviation in the wrong one.
                return results if kept == dtype else results[0]

            if weight.numel() and (kept == dtype or dtype.itemsize == 2):
                check(function, x, weight, bias)


def test_layer_norm_of_parameters_in_other_strides() -> None:
    weight, bias = torch.randn(5, 4).mT, torch.randn(5, 4).mT
    check(
        lambda x, w, b: A.native_layer_norm(x, [4, 5], w, b, 1e-3),
        torch.randn(3, 4, 5),
        weight,
        bias,
    )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", [A._softmax, A._log_softmax, A._safe_softmax])
def test_softmax(op: Any, dtype: torch.dtype) -> None:
    choice = () if op is A._safe_softmax else (False,)
    tensors = [*rows(dtype), torch.randn(()).to(dtype), torch.randn(3, 0).to(dtype)]
    tensors.append(torch.tensor([[1.0, -torch.inf], [-torch.inf, -torch.inf], [2.0, torch.nan]]))
    for x in tensors:
        for dim in {0, -1, x.dim() // 2}:
            check(lambda x, dim=dim: op(x, dim, *choice), x)


def test_softmax_in_another_dtype() -> None:
    for dtype in (torch.float16, torch.float32, torch.int64, torch.bool):
        x = (torch.randn(3, 5) * 2).to(dtype)
        for wanted in (torch.float32, torch.float64, torch.bfloat16):
            check(lambda x, wanted=wanted: torch.softmax(x, -1, wanted), x)
            check(lambda x, wanted=wanted: torch.log_softmax(x, 0, wanted), x)
            check(lambda x, wanted=wanted: A._safe_softmax(x, -1, wanted), x)


@pytest.mark.parametrize("op", [A._softmax, A._log_softmax])
def test_softmax_from_half_to_float(op: Any) -> None:
    """Which kernels for GPUs alone have."""
    x = torch.randn(3, 5).half()
    imported = trace(lambda x: op(x, -1, True), x)
    (got,) = imported(x)
    assert imported.externs == set()
    torch.testing.assert_close(got, op(x.float(), -1, False))


def test_of_integers_eager_says_what_is_wrong() -> None:
    x = torch.arange(12).view(3, 4)
    for function in (
        lambda x: A._softmax(x, -1, False),
        lambda x: A.native_layer_norm(x, [4], None, None, 1e-3)[0],
    ):
        with pytest.raises((RuntimeError, NotImplementedError)):
            function(x)
        with pytest.raises((RuntimeError, NotImplementedError)):
            trace(function, x)(x)


def test_one_node_stands_for_the_op() -> None:
    """In traces without gradients."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (5,)).softmax(-1)

    gm = make_fx(function, decompositions.table(GENERATED), tracing_mode="fake")(torch.randn(3, 5))
    calls = [n for n in gm.graph.nodes if n.op == "call_function" and n.users]
    names = [str(n.target) for n in calls if n.target is not operator.getitem]
    assert names.count("aten.native_layer_norm.default") == 1
    assert names.count("aten._softmax.default") == 1
    assert len(set(names) - {"aten.detach.default"}) == 2


def test_training_saves_what_parts_save() -> None:
    """A norm's mean and deviation, from which the backward pass computes its result again."""
    x, w = (torch.randn(s, requires_grad=True) for s in ((64, 32), (32, 32)))

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (32,)) @ w

    assert saved_bytes(compiled(function), x, w) <= 4 * (64 * 32 + 32 * 32 + 2 * 64)
