"""Decompositions of our own, beside eager."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import mlcc
from tests.python.accuracy import check_all, to_double
from tests.python.test_backend import compiled


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_products_of_columns_and_rows(dtype: torch.dtype, mlcc_log: Any) -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        column, row = a[..., :1], a[..., :1, :]
        return [column @ b[..., :1, :], row @ b[..., :1], column @ b[..., :1, :1]]

    a, b = torch.randn(3, 40, 50) * 4, torch.randn(3, 50, 30) * 4
    for a, b in ((a, b), (a[0], b[0])):
        a, b = a.to(dtype), b.to(dtype)
        for dynamic in (False, True):
            with mlcc_log("fallback") as lines:
                got = compiled(function, dynamic=dynamic)(a, b)
            assert not lines
            exact = function(*to_double([a, b])) if dtype.is_floating_point else [None] * 3
            check_all(got, function(a, b), exact)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("transposed", [False, True])
def test_batches_of_matrices_with_vectors(
    transposed: bool, dtype: torch.dtype, mlcc_log: Any
) -> None:
    def function(a: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [a @ x, y @ a, (a @ x).mT @ a]

    for batch, rows, columns in ((3, 40, 50), (2, 1, 7), (5, 64, 0)):
        a = (
            torch.randn(batch, columns, rows).mT
            if transposed
            else torch.randn(batch, rows, columns)
        )
        tensors = [a, torch.randn(batch, columns, 1), torch.randn(batch, 1, rows)]
        tensors = [(t * 4).to(dtype) for t in tensors]
        with mlcc_log("fallback") as lines:
            got = compiled(function, dynamic=False)(*tensors)
        assert not lines
        exact = function(*to_double(tensors)) if dtype.is_floating_point else [None] * 3
        check_all(got, function(*tensors), exact)
        assert all(t.is_contiguous() for t in got)


def test_products_are_row_major() -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        product = torch.bmm(a, b)
        flat = product.view(-1)
        flat.add_(1)
        return product, flat

    for a, b in (
        (torch.randn(6, 4, 1).transpose(0, 1), torch.randn(4, 1, 5)),
        (torch.randn(4, 6, 1), torch.randn(5, 4, 1).permute(1, 2, 0)),
    ):
        for run in (compiled(function), mlcc.jit(function)):
            product, flat = run(a, b)
            assert product.stride() == (30, 5, 1)
            torch.testing.assert_close(product, torch.bmm(a, b) + 1)
            assert product.data_ptr() == flat.data_ptr()


@pytest.mark.parametrize(("shape", "dim"), [((6, 5, 7), 0), ((6, 5, 7), 2), ((5,), 0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weight_norm(dtype: torch.dtype, shape: tuple[int, ...], dim: int, mlcc_log: Any) -> None:
    v = torch.randn(shape).to(dtype)
    g = torch.randn([n if i == dim else 1 for i, n in enumerate(v.shape)]).to(dtype)
    grad = torch.randn(v.shape).to(dtype)

    def gradients(run: Any, *inputs: torch.Tensor) -> list[torch.Tensor]:
        leaves = [x.clone().requires_grad_() for x in inputs]
        w = run(*leaves, dim)
        return [w.detach(), *torch.autograd.grad(w, leaves, grad.to(w.dtype))]

    with mlcc_log("fallback") as lines:
        got = gradients(compiled(torch._weight_norm), v, g)
    assert not lines
    exact = gradients(torch._weight_norm, v.double(), g.double())
    check_all(got, gradients(torch._weight_norm, v, g), exact)


def test_products_that_do_not_match_fail_as_in_eager() -> None:
    for a, b in (
        (torch.ones(3, 1), torch.ones(4, 5)),
        (torch.ones(3, 1), torch.ones(1, 5).double()),
    ):
        for run in (torch.mm, mlcc.jit(torch.mm)):
            with pytest.raises(RuntimeError, match=r"cannot be multiplied|same dtype"):
                run(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_small_gradients_of_soft_margin_loss(reduction: str, dtype: torch.dtype) -> None:
    x, target = torch.linspace(-90, 90, 41).to(dtype), torch.ones(41, dtype=dtype)

    def gradient(run: Any, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        leaf = x.clone().requires_grad_()
        run(leaf, target).sum().backward()
        return leaf.grad

    def function(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.soft_margin_loss(x, target, reduction=reduction)

    ours = gradient(compiled(function), x, target)
    eager, exact = gradient(function, x, target), gradient(function, x.double(), target.double())
    finite = eager.isfinite()
    assert torch.equal(ours.isfinite(), finite)
    for place in finite.nonzero().flatten().tolist():
        check_all(ours[place : place + 1], eager[place : place + 1], exact[place : place + 1])


def test_soft_margin_loss_of_nothing() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return F.soft_margin_loss(x, torch.ones(0, 3))

    found = []
    for run in (function, compiled(function)):
        x = torch.empty(0, 3, requires_grad=True)
        run(x).backward()
        found.append(x.grad)
    assert found[0] is not None and found[1] is not None
    assert found[1].shape == found[0].shape


@pytest.mark.parametrize(
    ("sequence", "number"),
    [
        (torch.tensor([0.1, 0.2], dtype=torch.float64), 0.1),
        (torch.tensor([2**24, 2**24 + 1, 2**24 + 2]), 2**24 + 1),
        (torch.tensor([1, 2, 3]), 2.5),
        (torch.tensor([0.1, 0.2]), 0.1),
    ],
)
def test_a_number_among_sorted_ones_is_as_exact_as_they_are(
    sequence: torch.Tensor, number: float
) -> None:
    def function(sequence: torch.Tensor) -> list[torch.Tensor]:
        return [
            torch.searchsorted(sequence, number),
            torch.searchsorted(sequence, number, right=True),
            torch.bucketize(number, sequence),
        ]

    assert compiled(function)(sequence) == function(sequence)


def test_soft_margin_loss_overflows_as_eager_does() -> None:
    x, target = torch.tensor([-12.0, -11.0, 3.0]).half(), torch.ones(3).half()
    run = compiled(lambda x, t: F.soft_margin_loss(x, t, reduction="none"))
    eager = F.soft_margin_loss(x, target, reduction="none")
    assert eager.isinf().tolist() == [True, False, False]
    torch.testing.assert_close(run(x, target), eager)


def test_linspace_of_integers_is_eagers() -> None:
    # The ends become integers first, and the steps between them round as eager's kernel rounds them.
    run = compiled(lambda x: torch.linspace(4.3, -3, 50, dtype=torch.int64) + x)
    assert torch.equal(run(torch.zeros(50)), torch.linspace(4.3, -3, 50, dtype=torch.int64).float())


@pytest.mark.parametrize("exponent", [torch.int32, torch.int64, torch.uint8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_ldexp_rounds_once(dtype: torch.dtype, exponent: torch.dtype, mlcc_log: Any) -> None:
    special = torch.tensor([math.inf, -math.inf, math.nan, 0.0, -0.0])
    x = torch.cat([torch.randn(2000), torch.randn(2000) * 1e-38, torch.randn(2000) * 1e38, special])
    n = torch.randn(x.shape) * 150
    n[::100] *= 1e6
    x, n = x.to(dtype), n.to(exponent)
    for x, n in ((x, n), (x, n[1])):
        for run in (compiled(torch.ldexp, dynamic=True), mlcc.jit(torch.ldexp)):
            with mlcc_log("fallback") as lines:
                got = run(x, n)
            assert not lines
            torch.testing.assert_close(got, torch.ldexp(x, n), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_ldexp_of_one_dtype(dtype: torch.dtype, mlcc_log: Any) -> None:
    x, n = (torch.randn(200) * 8).to(dtype), (torch.randn(200) * 6).to(dtype)
    for x, n in ((x, n), (x, n[1]), (x, n * 1000)):
        with mlcc_log("fallback") as lines:
            got = compiled(torch.ldexp)(x, n)
        assert not lines
        torch.testing.assert_close(got, torch.ldexp(x, n), rtol=4 * torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("default", [torch.float32, torch.float64])
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize("exponent", [torch.int64, torch.int32, torch.bool])
def test_ldexp_of_integers(
    default: torch.dtype, dtype: torch.dtype, exponent: torch.dtype, mlcc_log: Any
) -> None:
    x, n = (torch.arange(50) * 3).to(dtype), torch.arange(-25, 25).to(exponent)
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        with mlcc_log("fallback") as lines:
            got = compiled(torch.ldexp)(x, n)
        assert not lines
        torch.testing.assert_close(got, torch.ldexp(x, n), rtol=1e-6, atol=0)
    finally:
        torch.set_default_dtype(before)


def test_gradient_of_ldexp() -> None:
    def gradient(run: Any) -> torch.Tensor:
        leaf = torch.linspace(-2, 2, 50).requires_grad_()
        run(leaf, torch.arange(-25, 25)).sum().backward()
        return leaf.grad

    assert torch.equal(gradient(compiled(torch.ldexp)), gradient(torch.ldexp))


@pytest.mark.parametrize(
    ("dtype", "exponent"),
    [
        (torch.float64, torch.int32),
        (torch.float32, torch.bfloat16),
        (torch.int32, torch.float32),
    ],
)
def test_ldexp_that_stays_a_call(dtype: torch.dtype, exponent: torch.dtype, mlcc_log: Any) -> None:
    x, n = torch.ones(3).to(dtype), torch.tensor([-100, 0, 100]).to(exponent)
    with mlcc_log("fallback") as lines:
        got = compiled(torch.ldexp)(x, n)
    assert "aten.ldexp.Tensor: ATen call" in lines[0]
    assert torch.equal(got, torch.ldexp(x, n)) and got.dtype == torch.ldexp(x, n).dtype


def test_unpooled_channels_last() -> None:
    """torch's trace takes the result for row-major."""
    for shape in ((2, 3, 4, 4), (2, 1, 4, 4), (3, 4, 4)):
        x = torch.randn(shape)
        if x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        x, places = F.max_pool2d(x, 2, return_indices=True)
        run = compiled(lambda x, places: F.max_unpool2d(x, places, 2))
        check_all(run(x, places), F.max_unpool2d(x, places, 2))


@pytest.mark.parametrize("include_last_offset", [False, True])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_embedding_bag(dtype: torch.dtype, mode: str, include_last_offset: bool) -> None:
    """In bf16, and with a last offset, eager gives some results in other shapes than torch's trace says."""

    def function(weight: torch.Tensor, *bags: torch.Tensor) -> torch.Tensor:
        return F.embedding_bag(
            bags[0], weight, bags[1], mode=mode, include_last_offset=include_last_offset
        )

    weight = torch.randn(10, 5).to(dtype)
    bags = (
        torch.tensor([0, 1, 1, 0, 1, 4]),
        torch.tensor([0, 3, 6] if include_last_offset else [0, 3]),
    )
    check_all(
        compiled(function)(weight, *bags), function(weight, *bags), function(weight.double(), *bags)
    )
    gradients = []
    for run in (function, compiled(function)):
        leaf = weight.clone().requires_grad_()
        run(leaf, *bags).sum().backward()
        gradients.append(leaf.grad)
    check_all(gradients[1], gradients[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("affine", [False, True])
def test_batch_norms_without_training(affine: bool, dtype: torch.dtype, mlcc_log: Any) -> None:
    def function(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor, *rest: Any) -> Any:
        weight, bias = rest or (None, None)
        return F.batch_norm(x, mean, var, weight, bias, eps=1e-3)

    statistics = [torch.randn(6), torch.rand(6)] + ([torch.randn(6), torch.randn(6)] * affine)
    last = torch.channels_last
    images = torch.randn(2, 6, 4, 5)
    for x in (torch.randn(3, 6), images, images.to(memory_format=last), images[:0]):
        tensors = [t.to(dtype) for t in (x, *statistics)]
        with mlcc_log("fallback") as lines:
            got = compiled(function, dynamic=False)(*tensors)
        assert not lines
        expected = function(*tensors)
        check_all([got], [expected], [function(*to_double(tensors))])
        assert got.stride() == expected.stride()
