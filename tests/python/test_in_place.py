"""Inputs that a program changes: their kernels write into them where nothing else reads what is replaced."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import mlcc
from mlcc import config

X = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
INDEX = torch.tensor([1, 1, 5])


def optimizer_step(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor) -> None:
    m.mul_(0.9).add_(g)
    p.add_(m, alpha=-0.1)


def sum_then_write(x: torch.Tensor) -> torch.Tensor:
    total = x.sum()
    x.add_(1)
    return total


def write_then_matmul_of_old(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    old = x.clone()
    x.add_(1)
    return old @ w


def read_by_a_later_kernel(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x @ w
    old = x * 1
    x.copy_(y + 1)
    return (old + y.sum()).cumsum(0)


def one_element_and_many(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x * y


def batch_norm(x: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    return F.batch_norm(x, mean, variance, training=True)


WRITTEN = {
    "add": (lambda x: x.add_(1), (X,)),
    "optimizer": (optimizer_step, (X, X + 1, torch.zeros(8, 8))),
    "sum then write": (sum_then_write, (X,)),
    "one element": (one_element_and_many, (torch.ones(1), X)),
    "cache": (lambda c, i, x: c.index_copy_(0, i, x).sum(), (X, INDEX[1:], X[:2] + 0)),
    "index_add": (lambda x, i, v: x.index_add_(0, i, v), (X, INDEX, X[:3] * 2)),
    "scatter": (lambda x, i, v: x.scatter_(1, i, v), (X, INDEX.view(1, 3), X[:1, 3:6] + 0)),
    "cumsum": (lambda x: x.copy_(x.cumsum(0)), (X,)),
    "channels last": (
        lambda x: x.mul_(2),
        (torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last),),
    ),
    "old value copied": (write_then_matmul_of_old, (X, X + 0)),
    "transposed twice": (lambda x: x.copy_((x + 1).t().contiguous().t()), (X,)),
    "batch norm": (batch_norm, (torch.randn(4, 8, 5, 5), torch.zeros(8), torch.ones(8))),
}

# Parts of an input: the kernel writes at their places alone.
PARTS: dict[str, Any] = {
    "rows": (lambda x, y: x[3:5].copy_(y[:2] + 1), (X, X + 0)),
    "columns": (lambda x, y: x[:, -3:].copy_(y[0, 0]), (X, X + 0)),
    "every second row": (lambda x, y: x[1::2].copy_(y[: x.shape[0] // 2] * 2), (X, X + 0)),
    "every second column": (
        lambda x, y: x[:, ::2].copy_(y[:, : (x.shape[1] + 1) // 2].sum(0)),
        (X, X + 0),
    ),
    "integers": (
        lambda x, y: x[::3].copy_(y[: (x.shape[0] + 2) // 3]),
        (INDEX.repeat(3), INDEX + 0),
    ),
    "diagonal": (lambda x, y: x.diagonal().copy_(y[0]), (X, X + 0)),
    "part of a diagonal": (lambda x, y: x.diagonal(-5).copy_(y[0, : x.shape[0] - 5]), (X, X + 0)),
    "diagonals of a batch": (
        lambda x, y: x.diagonal(1, 0, 1).copy_(y[:, : x.diagonal(1, 0, 1).shape[-1]]),
        (torch.randn(3, 4, 5), torch.randn(5, 6)),
    ),
}

COPIED = {
    "flip": (lambda x: x.copy_(x.flip(0)), (X,)),
    "transposed": (lambda x: x.copy_(x.t() + x), (X,)),
    "softmax": (lambda x: x.copy_(x.softmax(-1)), (X,)),
    "old value in a later kernel": (read_by_a_later_kernel, (X, X + 0)),
    "update from itself": (lambda x, i: x.index_add_(0, i, x[:3] * 2), (X, INDEX)),
    "can fail": (lambda x, i: x.add_(x[i]), (X, torch.randint(0, 8, (8,)))),
}


def run_both(
    function: Any, args: tuple[torch.Tensor, ...], dynamic: bool = False
) -> list[torch.Tensor]:
    """Checks results, inputs and their versions; the inputs afterwards."""
    torch._dynamo.reset()
    by_eager, ours = copy.deepcopy(args), copy.deepcopy(args)
    run = torch.compile(function, backend="mlcc", dynamic=dynamic)
    with torch.no_grad():
        eager, result = function(*by_eager), run(*ours)
    torch.testing.assert_close(result, eager)
    torch.testing.assert_close(ours, by_eager)
    for a, b in zip(ours, by_eager, strict=True):
        assert (a._version > 0) == (b._version > 0)
    return list(ours)


@pytest.mark.parametrize("name", WRITTEN)
def test_written_by_its_kernel(name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mlcc")
    run_both(*WRITTEN[name])
    assert "aten.copy_.default" not in caplog.text


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("gpu", ["", "emulate"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_parts_of_an_input(name: str, gpu: str, dynamic: bool, mlcc_log: Any) -> None:
    function, args = PARTS[name]
    with config.patch(gpu=gpu), mlcc_log("fallback") as lines:
        run_both(function, args, dynamic)
    assert lines == []


def test_a_part_that_is_made_of_the_input() -> None:
    """Each element is read before it is written, whatever stands before it."""
    for function in (
        lambda x: x[1:].copy_(x[:-1] * 2),
        lambda x: x[::2].add_(1),
        lambda x: x.diagonal().copy_(x[0]),
    ):
        run_both(function, (X,))


@pytest.mark.parametrize("name", COPIED)
def test_copied_where_the_old_value_is_needed(name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mlcc")
    run_both(*COPIED[name])
    assert "aten.copy_.default: ATen call" in caplog.text


def keep(view: Any) -> Any:
    """A new state, and a result that lies in memory of its own."""

    def function(x: torch.Tensor) -> Any:
        new = (x * 2).tanh()
        x.copy_(new)
        return view(new)

    return function


# Of a state that is written over, as a view of what it was written from, or as a clone.
KEPT = {
    "transposed": keep(lambda new: new.t()),
    "last row": keep(lambda new: new[-1]),
    "one more dimension": keep(lambda new: new.unsqueeze(0)),
    "several views": keep(lambda new: (new.view(-1)[3:], new.t(), new)),
    "itself": keep(lambda new: new),
    "clone": lambda x: x.add_(1).clone(),
    "transposed clone": lambda x: x.add_(1).clone().t(),
    "clone of before": lambda x: (x.clone().t(), x.add_(1))[0],
    "clones": lambda x: (x.t().clone(), x.tanh_().clone(), x.clone()),
}


@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize("compiled", [mlcc.jit, torch.compile(backend="mlcc")])
def test_results_share_no_memory_with_a_state(name: str, compiled: Any) -> None:
    torch._dynamo.reset()
    run = compiled(KEPT[name])
    expected, found = X.clone(), X.clone()
    kept: list[list[torch.Tensor]] = [[], []]
    with torch.no_grad():
        for function, state, results in ((KEPT[name], expected, kept[0]), (run, found, kept[1])):
            for _ in range(3):
                result = function(state)
                results += result if isinstance(result, tuple) else [result]
    torch.testing.assert_close(kept[1], kept[0])
    for result in kept[1]:
        result.zero_()
    torch.testing.assert_close(found, expected)


# Results that are views of one value share its memory, as in eager.
SHARED_RESULTS = {
    "transposed": lambda x: (lambda v: (v, v.t()))(x.exp()),
    "diagonal of a column": lambda x: (lambda v: (v, v.narrow(-1, 0, 1).diagonal()))(x.cumsum(1)),
    "diagonal": lambda x: (lambda v: (v[1:], v.diagonal()))(x.exp()),
    "windows": lambda x: (lambda v: (v, v.unfold(0, 3, 2)))(x.exp()),
    "strided": lambda x: (lambda v: (v.t(), v.as_strided((3, 3), (1, 2), 5)))(x.exp()),
    "bits": lambda x: (lambda v: (v, v.view(torch.int32)))(x * 2),
    "pieces": lambda x: (lambda v: (v, *v.split(3), v.unbind(1)[2]))(x.exp()),
    "reshaped": lambda x: (lambda v: (v.reshape(2, -1), v.view(v.shape[0], 2, -1).transpose(0, 1)))(
        x.exp()
    ),
    "of a constant": lambda x: (lambda v: (v, v[-1:], v.t()))(x.zero_() - 2),
    "of a product": lambda x: (lambda v: (v[0], v.t()[1:], v.flatten()))(x @ x),
    "of a sum": lambda x: (lambda v: (v, v.expand(3, 8), v[2:]))(x.sum(0)),
    "none": lambda x: (lambda v: (v, v.t().clone(), v.t().contiguous(), v.diagonal().clone()))(
        x.exp()
    ),
    "equal ones": lambda x: (x + 1, x + 1, (x + 1).t()),
}


@pytest.mark.parametrize("name", SHARED_RESULTS)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("entry", ["jit", "compile"])
def test_results_share_the_memory_that_eager_shares(name: str, dynamic: bool, entry: str) -> None:
    torch._dynamo.reset()
    function = SHARED_RESULTS[name]
    if entry == "jit":
        run: Any = mlcc.jit(function, dynamic=dynamic)
    else:
        run = torch.compile(function, backend="mlcc", dynamic=dynamic)
    with torch.no_grad():
        expected, found = function(X.clone()), run(X.clone())
        torch.testing.assert_close(found, expected)
        for number, results in enumerate(zip(expected, found, strict=True)):
            for result in results:
                if not any(s == 0 for s in result.stride()):
                    result.fill_(number)
            torch.testing.assert_close(found, expected)


def test_a_recurrent_cell_that_keeps_its_state() -> None:
    class Cell(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("h", torch.zeros(2, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            new = torch.tanh(x + self.h)
            self.h.copy_(new)
            return new.unsqueeze(0)

    torch._dynamo.reset()
    cell = Cell()
    run = torch.compile(copy.deepcopy(cell), backend="mlcc")
    inputs = [torch.full((2, 3), float(step)) for step in range(4)]
    with torch.no_grad():
        torch.testing.assert_close([run(x) for x in inputs], [cell(x) for x in inputs])


def test_copies_are_told_of_once(mlcc_log: Any) -> None:
    def exchange(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        before = x.clone()
        x.copy_(y.flip(0) + before.flip(1))
        y.copy_(before.flip(0) + y.flip(1))
        return y.sum()

    with mlcc_log("fallback") as lines:
        run_both(exchange, (X, X + 1))
    assert len(lines) == 1
    assert lines[0].startswith("aten.copy_.default: ATen call")


def test_a_failed_check_leaves_the_input() -> None:
    x, index = X.clone(), torch.full((8,), 9)
    with pytest.raises(IndexError), torch.no_grad():
        torch.compile(lambda x, i: x.add_(x[i]), backend="mlcc")(x, index)
    assert torch.equal(x, X)


def bad_index(x: torch.Tensor, z: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    y = (x * z.softmax(0).cumsum(0)[3])[index]
    x.add_(1)
    return y


def bad_matrix(x: torch.Tensor, z: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    y = torch.linalg.cholesky(-z.softmax(0).expand(8, 8))
    x.add_(1)
    return y[index[:1] - index[:1]]


@pytest.mark.parametrize("function", [bad_index, bad_matrix])
@pytest.mark.parametrize("compiled", [mlcc.jit, torch.compile(backend="mlcc")])
def test_no_write_overtakes_what_fails(function: Any, compiled: Any) -> None:
    """Small kernels are drawn forward to run beside others, but not those that write."""
    torch._dynamo.reset()
    z, index = torch.ones(8), torch.tensor([70, 60, 99, 1])
    expected, found = torch.zeros(8), torch.zeros(8)
    with pytest.raises(Exception) as eager:
        function(expected, z, index)
    with pytest.raises(eager.type):
        compiled(function)(found, z, index)
    assert torch.equal(found, expected)


def test_a_negated_input_is_written_back() -> None:
    def function(x: torch.Tensor) -> None:
        x.add_(1)

    base = torch.complex(torch.randn(4), torch.randn(4))
    ours, eager = base.clone().conj().imag, base.clone().conj().imag
    assert ours.is_neg()
    with torch.no_grad():
        torch.compile(function, backend="mlcc")(ours)
        function(eager)
    torch.testing.assert_close(ours, eager)
    assert ours.is_neg()


def test_autograd_notices_the_write() -> None:
    x = torch.randn(4)
    w = torch.randn(4, requires_grad=True)
    y = (w * x).sum()
    with torch.no_grad():
        torch.compile(lambda x: x.add_(1), backend="mlcc")(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_dynamic_sizes() -> None:
    run = torch.compile(lambda x: x.mul_(2), backend="mlcc", dynamic=True)
    for size in (5, 9, 16):
        x = torch.ones(size, 3)
        with torch.no_grad():
            run(x)
        assert torch.equal(x, torch.full((size, 3), 2.0))
