"""Higher-order ops as control flow of the graph IR: eager's results, and no Python inside a loop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops import associative_scan, cond, scan, while_loop
from torch._higher_order_ops import map as map_rows
from torch.utils.checkpoint import checkpoint

from mlcc import config
from tests.python.sessions import Sessions


def check(compiled: Sessions, f: Callable[..., Any], *args: Any) -> None:
    torch.testing.assert_close(compiled(*args), f(*args))
    compiled.check_all_compiled()


def check_gradients(compiled: Sessions, f: Callable[..., Any], *args: torch.Tensor) -> None:
    results = []
    for function in (f, compiled):
        leaves = [arg.detach().clone().requires_grad_(arg.is_floating_point()) for arg in args]
        out = function(*leaves)
        outs = out if isinstance(out, tuple | list) else [out]
        sum(one.float().square().sum() for one in outs).backward()
        results.append((outs, [leaf.grad for leaf in leaves]))
    torch.testing.assert_close(results[1], results[0])
    compiled.check_all_compiled()


def branches(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    def then(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.sin() * y + x.shape[0]

    def otherwise(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.matmul(y.transpose(0, 1)).matmul(y).cos()

    return cond(x.sum() > 0, then, otherwise, (x * 2, y)) + 1


@pytest.mark.parametrize("dynamic", [False, True])
def test_cond(dynamic: bool) -> None:
    compiled = Sessions(branches, dynamic)
    for shape in ((4, 3), (5, 3)) if dynamic else ((4, 3),):
        x = torch.rand(shape)
        for sign in (1, -1):
            check(compiled, branches, x * sign, torch.randn(shape))
            check_gradients(compiled, branches, x * sign, torch.randn(shape))


def test_cond_whose_branch_gives_an_operand_back() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = cond(x.sum() > 0, lambda x: x.clone(), lambda x: x.cos(), (x,))
        return y, y + 1

    compiled = Sessions(f)
    x = torch.rand(4)
    y, _ = compiled(x)
    y.add_(1)
    check(compiled, f, x)


def test_an_error_inside_a_branch_is_eagers() -> None:
    def f(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return cond(i.sum() > 0, lambda x, i: x[i] * 2, lambda x, i: x[i + 1] * 3, (x, i))

    compiled = Sessions(f)
    x = torch.randn(5)
    check(compiled, f, x, torch.tensor([1, 2]))
    with pytest.raises(IndexError, match="index 9 is out of bounds"):
        compiled(x, torch.tensor([1, 9]))
    check(compiled, f, x, torch.tensor([0, -1]))


def test_constants_inside_a_branch() -> None:
    table = torch.randn(3)

    def f(x: torch.Tensor) -> torch.Tensor:
        return cond(x.sum() > 0, lambda x: x * table, lambda x: x + table, (x,))

    check(Sessions(f), f, torch.rand(3))
    check(Sessions(f), f, -torch.rand(3))


def powers(n: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return while_loop(lambda n, x: n > 0, lambda n, x: (n - 1, x.sin() * 2 + x.shape[0]), (n, x))


@pytest.mark.parametrize("dynamic", [False, True])
def test_while_loop(dynamic: bool) -> None:
    compiled = Sessions(powers, dynamic)
    for shape in ((4, 3), (2, 3)) if dynamic else ((4, 3),):
        for rounds in (0, 1, 2, 7):
            check(compiled, powers, torch.tensor(rounds), torch.randn(shape))


def scaled_powers(n: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return while_loop(lambda n, x: n > 0, lambda n, x: (n - 1, (x * w).tanh()), (n, x))[1]


@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients_of_a_while_loop(dynamic: bool) -> None:
    """All rounds are kept; the number of them is a size that only the call tells."""
    compiled = Sessions(scaled_powers, dynamic)
    for size in (5, 7) if dynamic else (5,):
        for rounds in (3, 0, 1, 6):
            args = torch.tensor(rounds), torch.randn(size), torch.randn(size)
            check_gradients(compiled, scaled_powers, *args)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_size_that_a_while_loop_carries(dynamic: bool) -> None:
    def f(x: torch.Tensor) -> Any:
        count, y = while_loop(lambda n, x: n < 5, lambda n, x: (n + 1, x.tanh() + n), (0, x))
        return count, y * count

    compiled = Sessions(f, dynamic)
    for size in (8, 9) if dynamic else (8,):
        check(compiled, f, torch.randn(size))


def test_while_loop_that_passes_values_on() -> None:
    """What is carried moves between places, stays, or stands twice."""

    def f(n: torch.Tensor, *xs: torch.Tensor) -> Any:
        def body(n: torch.Tensor, *xs: torch.Tensor) -> tuple[torch.Tensor, ...]:
            a, b, c, d = xs
            new = a * 0.5 + b
            return n - 1, new, a.clone(), c.clone(), (new + d).clone()

        return while_loop(lambda n, *xs: n > 0, body, (n, *xs))

    compiled = Sessions(f)
    for rounds in (0, 1, 2, 3, 8):
        check(compiled, f, torch.tensor(rounds), *(torch.randn(5) for _ in range(4)))


def lstm(
    x: torch.Tensor, h: torch.Tensor, c: torch.Tensor, w: torch.Tensor, u: torch.Tensor
) -> tuple[Any, torch.Tensor]:
    def step(
        carried: tuple[torch.Tensor, torch.Tensor], x: torch.Tensor
    ) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
        h, c = carried
        i, f, g, o = (x @ w + h @ u).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        return (h, c), h.clone()

    return scan(step, (h, c), x)


@pytest.mark.parametrize("dynamic", [False, True])
def test_lstm_by_scan(dynamic: bool) -> None:
    compiled = Sessions(lstm, dynamic)
    for length in (7, 4) if dynamic else (7,):
        args = [torch.randn(s) for s in ((length, 2, 3), (2, 5), (2, 5), (3, 20), (5, 20))]
        check(compiled, lstm, *args)


def _flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [leaf for item in value for leaf in _flat(item)]


def test_gradients_of_an_lstm_by_scan() -> None:
    def f(*args: torch.Tensor) -> list[torch.Tensor]:
        return _flat(lstm(*args))

    args = [torch.randn(s) for s in ((6, 2, 3), (2, 5), (2, 5), (3, 20), (5, 20))]
    check_gradients(Sessions(f), f, *args)


@pytest.mark.parametrize("reverse", [False, True])
def test_scan_of_several_tensors_over_another_dimension(reverse: bool) -> None:
    def f(h: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> Any:
        def step(h: torch.Tensor, row: Any) -> Any:
            a, b = row
            h = a.exp() * h + b
            return h, (h.sum(-1), (h * 2).clone())

        return scan(step, h, (a, b), dim=1, reverse=reverse)

    compiled = Sessions(f)
    check(compiled, f, torch.randn(2, 4), torch.randn(2, 6, 4), torch.randn(2, 6, 4))


@pytest.mark.parametrize("dynamic", [False, True])
def test_map(dynamic: bool) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return map_rows(lambda row, w: (row.sin() * w).cumsum(0), x, w)

    compiled = Sessions(f, dynamic)
    for rows in (5, 2) if dynamic else (5,):
        check(compiled, f, torch.randn(rows, 3), torch.randn(3))
        check_gradients(compiled, f, torch.randn(rows, 3), torch.randn(3))


def test_associative_scan() -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> Any:
        def combine(left: Any, right: Any) -> Any:
            return left[0] * right[0], left[1] * right[0] + right[1]

        return associative_scan(combine, (a, b), 0, combine_mode="generic")

    check(Sessions(f), f, torch.rand(9, 3), torch.randn(9, 3))


@pytest.mark.parametrize("dynamic", [False, True])
def test_nested_compile_region(dynamic: bool) -> None:
    @torch.compiler.nested_compile_region
    def layer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).relu() + x

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return layer(layer(layer(x, w), w), w) * 2

    compiled = Sessions(f, dynamic)
    for rows in (4, 6) if dynamic else (4,):
        check(compiled, f, torch.randn(rows, 3), torch.randn(3, 3))
        check_gradients(compiled, f, torch.randn(rows, 3), torch.randn(3, 3))


def test_a_region_with_its_own_names_for_sizes() -> None:
    """In the backward graph the region's first symbol is the outer graph's second one."""

    @torch.compiler.nested_compile_region
    def layer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x.t().exp() * w.sin().t() + x.t()

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return layer(layer(x, w), w.t()).sin()

    compiled = Sessions(f, True)
    for rows in (4, 6):
        check_gradients(compiled, f, torch.rand(rows, 3), torch.rand(rows, 3))


def test_a_branch_inside_a_loop() -> None:
    def f(x: torch.Tensor, xs: torch.Tensor) -> Any:
        def step(h: torch.Tensor, x: torch.Tensor) -> Any:
            h = cond(x.sum() > 0, lambda h, x: h + x, lambda h, x: h * x, (h, x))
            return h, h.clone()

        return scan(step, x, xs)

    check(Sessions(f), f, torch.randn(3), torch.randn(8, 3))


def test_dropout_under_checkpointing() -> None:
    """By eager's stream."""

    def f(x: torch.Tensor) -> torch.Tensor:
        def block(x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.dropout(x.sin(), 0.5).cos()

        return checkpoint(block, x, use_reentrant=False).sum()

    compiled = Sessions(f)
    results = []
    with config.patch(fallback_random=True):
        for function in (f, compiled):
            x = torch.linspace(-1, 1, 64).requires_grad_()
            torch.manual_seed(3)
            out = function(x)
            out.backward()
            results.append((out.detach(), x.grad, torch.rand(2)))
    torch.testing.assert_close(results[1], results[0])
    compiled.check_all_compiled()


def test_threads_run_one_loop() -> None:
    compiled = Sessions(powers)
    x = torch.randn(64)
    check(compiled, powers, torch.tensor(5), x)
    expected = [compiled(torch.tensor(rounds), x)[1] for rounds in range(6)]
    wrong: list[int] = []

    def work(rounds: int) -> None:
        for _ in range(20):
            if not torch.equal(compiled(torch.tensor(rounds), x)[1], expected[rounds]):
                wrong.append(rounds)

    threads = [threading.Thread(target=work, args=(rounds,)) for rounds in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
