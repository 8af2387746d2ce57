"""In-place writes, views and shared memory: whatever eager shows, torch.compile and mlcc.jit show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.python.behaviour import check_as_eager, compiled, jitted

Make = Callable[[], Any]


def numbers(*shape: int) -> torch.Tensor:
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape)


def base(f: Callable[[torch.Tensor], Any], *shape: int) -> Make:
    """Arguments that are views of one tensor, which comes last so that all of it is compared."""

    def make() -> list[Any]:
        whole = numbers(*shape)
        views = f(whole)
        return [*(views if isinstance(views, tuple) else (views,)), whole]

    return make


def x34() -> list[torch.Tensor]:
    return [numbers(3, 4)]


def write_and_return(x: torch.Tensor, *_: torch.Tensor) -> Any:
    return x.add_(1)


def chain(x: torch.Tensor, *_: torch.Tensor) -> Any:
    x.mul_(2).add_(1)
    y = x.t()
    y[0] = -1
    return y, x.sum()


def write_both(x: torch.Tensor, y: torch.Tensor, whole: torch.Tensor) -> Any:
    x.mul_(3)
    y.add_(x)
    return x * y


def write_in_turn(x: torch.Tensor, y: torch.Tensor, whole: torch.Tensor) -> Any:
    x.mul_(3)
    y.add_(1)
    x.sub_(whole[0])
    return x * 2, y * 2


def write_one(x: torch.Tensor, y: torch.Tensor, whole: torch.Tensor) -> Any:
    x.add_(1)
    return y * 2, whole.sum()


def read_beside(x: torch.Tensor, y: torch.Tensor, whole: torch.Tensor) -> Any:
    x.copy_(y.clone() * 2)
    return y + 1


def many(*views: torch.Tensor) -> Any:
    for place, view in enumerate(views):
        view.add_(place)
    return [view * 2 for view in views]


def read_then_write(x: torch.Tensor, y: torch.Tensor, whole: torch.Tensor) -> Any:
    before = y.exp()
    x.copy_(x.flip(0))
    return before, y + 1


def set_columns(x: torch.Tensor) -> None:
    x[:, 1] = x[:, 2]
    x[0, ::2] = 7
    x[x > 8] = 0


def resized(x: torch.Tensor) -> Any:
    y = x * 2
    y.resize_(2, 3)
    return y + 1


def resized_input(x: torch.Tensor) -> Any:
    x.resize_(2, 3)
    return x + 1


def set_data(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.set_(y.t())
    return x + 1


def set_fresh(x: torch.Tensor) -> Any:
    y = torch.empty(0)
    y.set_(x.untyped_storage(), 1, (2, 2), (4, 1))
    return y * 2


def strided_write(x: torch.Tensor) -> Any:
    y = x.as_strided((2, 3), (5, 2), 1)
    y.mul_(10)
    return y, x + 1


def scatter_through_view(x: torch.Tensor) -> Any:
    x.view(-1).scatter_(0, torch.tensor([0, 5, 11]), -9.0)
    x.diagonal().fill_(1)
    return x.unfold(1, 2, 2)


def twice_the_same(x: torch.Tensor) -> Any:
    y = x + 1
    return y, y, x, x


def views_of_a_result(x: torch.Tensor) -> Any:
    y = x.exp()
    return y[0], y.t(), y[:, 1:3], y


def view_of_view(x: torch.Tensor) -> Any:
    return x.t()[1:].t(), x.view(2, 6)[1], x[1:, 1:], x.unsqueeze(0).expand(2, 3, 4)


def write_result_of_view(x: torch.Tensor) -> Any:
    y = x[1]
    y.neg_()
    return y, x


def dtype_view(x: torch.Tensor) -> Any:
    return x.view(torch.int32) + 1, x.view(torch.int32)


def swap(x: torch.Tensor) -> None:
    kept = x[0].clone()
    x[0] = x[1]
    x[1] = kept


def real_and_imaginary(x: torch.Tensor) -> Any:
    x.imag.mul_(2)
    return x.real + 1, x.imag


def out_argument(x: torch.Tensor) -> Any:
    y = torch.empty(3, 4)
    z = torch.add(x, 1, out=y)
    torch.mul(x, 2, out=x)
    return y, z, x


def fill(x: torch.Tensor) -> Any:
    x.zero_()
    x.fill_diagonal_(3)
    return x.sum(0)


def squeezed(x: torch.Tensor) -> Any:
    y = x.clone()
    y.unsqueeze_(0).transpose_(0, 2)
    return y, y.squeeze()


def input_transposed(x: torch.Tensor) -> Any:
    x.t_()
    return x + 1


def channels(x: torch.Tensor) -> Any:
    y = x * 2
    return y, y.relu(), torch.cat([x, y], 1), y.sum(1, keepdim=True), y.clone(), x.mul_(3)


def channels_last() -> list[torch.Tensor]:
    return [numbers(2, 3, 2, 2).contiguous(memory_format=torch.channels_last)]


def channels_last_3d() -> list[torch.Tensor]:
    return [numbers(1, 3, 2, 2, 2).contiguous(memory_format=torch.channels_last_3d)]


CASES: dict[str, tuple[Callable[..., Any], Make]] = {
    "a written argument is the result": (write_and_return, x34),
    "a chain of writes": (chain, x34),
    "writes to a transposed argument": (chain, lambda: [numbers(4, 3).t()]),
    "writes to every second column": (chain, base(lambda w: w[:, ::2], 3, 8)),
    "writes to an argument with an offset": (write_and_return, base(lambda w: w[1:, 1:], 4, 4)),
    "two halves": (write_both, base(lambda w: (w[:3], w[3:]), 6)),
    "two halves in turn": (write_in_turn, base(lambda w: (w[1:3], w[3:]), 6)),
    "two views at an offset, both written": (write_in_turn, base(lambda w: (w[1:5], w[2:7]), 8)),
    "two views at an offset, one read": (read_beside, base(lambda w: (w[1:5], w[2:6]), 8)),
    "many views of one tensor": (many, base(lambda w: (w[:4], w[2:6], w[4:], w[::2]), 8)),
    "two views at an offset, one written": (write_one, base(lambda w: (w[:5], w[2:7]), 8)),
    "a matrix and its transpose": (write_one, base(lambda w: (w, w.t()), 4, 4)),
    "even and odd columns": (write_both, base(lambda w: (w[:, ::2], w[:, 1::2]), 4, 6)),
    "a row in a matrix": (write_one, base(lambda w: (w[1], w), 3, 4)),
    "a broadcast row of a written matrix": (
        write_one,
        base(lambda w: (w, w[0].expand(3, 4)), 3, 4),
    ),
    "read, then written, overlapping": (read_then_write, base(lambda w: (w[:6], w[1:7]), 9)),
    "columns are set": (set_columns, x34),
    "resize_ of a result": (resized, x34),
    "resize_ of an argument": (resized_input, x34),
    "set_ of an argument": (set_data, lambda: [numbers(3, 4), numbers(2, 3)]),
    "set_ to a storage": (set_fresh, x34),
    "as_strided and a write": (strided_write, x34),
    "scatter through a view": (scatter_through_view, x34),
    "results given twice": (twice_the_same, x34),
    "views of a result": (views_of_a_result, x34),
    "views of views of an argument": (view_of_view, x34),
    "a written view is a result": (write_result_of_view, x34),
    "a view as another dtype": (dtype_view, x34),
    "rows are swapped": (swap, x34),
    "parts of a complex argument": (
        real_and_imaginary,
        lambda: [torch.complex(numbers(3), numbers(3))],
    ),
    "out=": (out_argument, x34),
    "fill": (fill, lambda: [numbers(4, 4)]),
    "squeeze_ and transpose_": (squeezed, x34),
    "an argument is transposed in place": (input_transposed, x34),
    "channels last": (channels, channels_last),
    "channels last in three dimensions": (channels, channels_last_3d),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("way", [compiled, jitted])
def test_as_eager(name: str, way: Callable[..., Any]) -> None:
    function, make = CASES[name]
    check_as_eager(function, way(function), make)


WITH_ERRORS: dict[str, tuple[Callable[..., Any], Make]] = {
    "a write to what is read": (write_both, base(lambda w: (w[:5], w[2:7]), 8)),
    "a write to memory that overlaps itself": (
        write_and_return,
        lambda: [numbers(4)[:1].expand(3, 1)],
    ),
    "a write to a broadcast argument": (lambda x: x.mul_(2), lambda: [numbers(1, 3).expand(2, 3)]),
    "a copy between overlapping arguments": (
        lambda x, y, _: x.copy_(y).add_(y),
        base(lambda w: (w[:5], w[2:7]), 8),
    ),
}


@pytest.mark.parametrize("name", WITH_ERRORS)
def test_writes_that_eager_refuses(name: str) -> None:
    """mlcc.jit raises what eager raises; nothing is written."""
    function, make = WITH_ERRORS[name]
    arguments, others = make(), make()
    with pytest.raises(RuntimeError) as eagers:
        function(*arguments)
    with pytest.raises(RuntimeError) as ours:
        jitted(function)(*others)
    assert str(ours.value) == str(eagers.value)
    torch.testing.assert_close(list(others), list(arguments))
