"""Stores past the caches (`stream_mb`): right wherever outputs begin, however long their rows are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

import mlcc

PROGRAMS: dict[str, Callable[[Tensor], object]] = {
    "one output": lambda x: x * 2 + 1,
    "two dtypes": lambda x: (x * 2, x > 0),
    "narrow": lambda x: (x.relu().bfloat16(), (x * 4).to(torch.int8)),
    "wide": lambda x: x.double() + 1,
    "rows": lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
    "rows that are read back": lambda x: torch.softmax(x, -1) + x,
    "transposed": lambda x: x.t() + 1,
    "parts": lambda x: torch.cat([x, x * 2], 1),
    "padded": lambda x: torch.nn.functional.pad(x, (3, 5)),
    "running sums": lambda x: x.cumsum(1),
}
SHAPES = [(512, 1024), (513, 1001), (1, 600_003), (300_001, 2)]


@pytest.fixture(autouse=True)
def everything_streams() -> Iterator[None]:
    with mlcc.config.patch(stream_mb=1):
        yield


@pytest.mark.parametrize("dynamic", [None, False])
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_those_of_eager(name: str, dynamic: bool | None) -> None:
    function = PROGRAMS[name]
    compiled = mlcc.jit(function, dynamic=dynamic)
    for shape in SHAPES:
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), function(x))


def test_sizes_below_the_limit_with_code_of_sizes_above_it() -> None:
    compiled = mlcc.jit(lambda x: x * 2 + 1)
    for length in (400_000, 100, 1, 0, 300_000):
        x = torch.randn(length)
        assert torch.equal(compiled(x), x * 2 + 1)


def test_outputs_that_begin_anywhere() -> None:
    memory = torch.zeros(600_000)
    x = torch.randn(500_000)

    @mlcc.jit(dynamic=False)
    def write(out: Tensor, x: Tensor) -> None:
        out.copy_(x * 2)

    for begin in (0, 1, 7, 16, 33):
        memory.fill_(-1)
        write(memory[begin : begin + 500_000], x)
        assert torch.equal(memory[begin : begin + 500_000], x * 2)
        assert (memory[:begin] == -1).all() and (memory[begin + 500_000 :] == -1).all()


def kernels_of(
    folder: Path,
    x: Tensor,
    dynamic: bool | None = False,
    function: Callable[[Tensor], Tensor] = lambda x: x * 2 + 1,
) -> str:
    with mlcc.config.patch(dump="loop", dump_dir=str(folder)):
        compiled = mlcc.jit(function, dynamic=dynamic)
        torch.testing.assert_close(compiled(x), function(x))
    return "".join(file.read_text() for file in folder.rglob("*.loop"))


def test_which_kernels_do(tmp_path: Path) -> None:
    assert " stream" in kernels_of(tmp_path / "large", torch.randn(300_001))
    assert " stream" not in kernels_of(tmp_path / "small", torch.randn(1001))
    assert " stream if 8 * %" in kernels_of(
        tmp_path / "unknown", torch.randn(300_001), dynamic=None
    )
    with mlcc.config.patch(stream_mb=0):
        assert " stream" not in kernels_of(tmp_path / "never", torch.randn(300_002))


def test_short_rows_of_unknown_length_do(tmp_path: Path) -> None:
    """They are kept on the stack, not in the output."""
    text = kernels_of(tmp_path, torch.randn(700, 501), None, lambda x: x.softmax(-1))
    short, long = text.split("} else {")
    assert " stream if " in short and " stream" not in long


def test_two_threads() -> None:
    x = torch.randn(3_000_000)
    compiled = mlcc.jit(lambda x: (x.exp(), x + 1))
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for _ in range(5):
            torch.testing.assert_close(compiled(x), (x.exp(), x + 1))
    finally:
        torch.set_num_threads(threads)
