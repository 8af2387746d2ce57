"""MLCC_VERIFY: a miscompiled kernel is told and its result replaced; right ones cause no warning."""

from __future__ import annotations

import ctypes
import ctypes.util
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import mlcc
from mlcc._load import load_core

core = load_core()


def compiled(function: Callable[..., Any], folder: Path, **options: Any) -> Callable[..., Any]:
    """By a process that has compiled nothing: memory is empty, and the store that in `folder`."""
    core.clear_cache({"cache_dir": str(folder.parent / "another")})
    torch._dynamo.reset()
    values = {"cache_dir": str(folder), "torch_caches": False, "strict": False, **options}
    return torch.compile(function, backend="mlcc", options=values)


def checksum(data: bytes) -> bytes:
    """XXH3, 128 bits, as the store writes it."""
    name = ctypes.util.find_library("xxhash")
    if name is None:
        pytest.skip("libxxhash as a shared library is not here")

    class Pair(ctypes.Structure):
        _fields_ = (("low", ctypes.c_uint64), ("high", ctypes.c_uint64))

    function = ctypes.CDLL(name).XXH3_128bits
    function.argtypes, function.restype = (ctypes.c_char_p, ctypes.c_size_t), Pair
    pair = function(data, len(data))
    return struct.pack("<QQ", pair.low, pair.high)


def plant(right: Path, wrong: Path) -> None:
    """Give the kernel in store `right` the code of the one in store `wrong`."""
    (target,), (source,) = (list((folder / "store").iterdir()) for folder in (right, wrong))
    data = source.read_bytes()
    key, end = slice(24, 40), 56  # behind magic, format and lengths; the checksum follows
    head = data[: key.start] + target.read_bytes()[key]
    fields = b"".join(struct.pack("<q", len(part)) + part for part in (head, data[end:]))
    target.write_bytes(head + checksum(fields) + data[end:])


def test_a_planted_miscompilation_is_told_and_its_result_replaced(
    tmp_path: Path, mlcc_log: Any
) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x * 2 + 1).relu() / 7

    def another(x: torch.Tensor) -> torch.Tensor:
        return (x * 2 + 1.5).relu() / 7

    x = torch.randn(50)
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    for one, folder in ((function, right), (another, wrong)):
        assert torch.allclose(compiled(one, folder)(x), one(x))
    plant(right, wrong)
    assert torch.equal(compiled(function, right)(x), another(x))  # the plant works

    with mlcc_log("kernels") as lines:
        verified = compiled(function, right, verify="first", dump_dir=str(tmp_path / "dump"))
        for _ in range(2):
            assert torch.allclose(verified(x), function(x))
    (warning,) = (line for line in lines if "differs from its reference" in line)
    assert "the program gets the reference's result" in warning
    folder = Path(warning.split("its IR stands in ")[1].split(";")[0])
    assert {path.suffix for path in folder.iterdir()} == {".loop", ".graph"}
    strict = compiled(function, right, verify="first", dump_dir=str(tmp_path), strict=True)
    with pytest.raises(mlcc.InternalError, match="differs from its reference"):
        strict(x)


def test_a_planted_miscompilation_of_a_kernel_that_writes_its_input(
    tmp_path: Path, mlcc_log: Any
) -> None:
    def function(x: torch.Tensor) -> None:
        x.mul_(2).add_(1)

    def another(x: torch.Tensor) -> None:
        x.mul_(2).add_(1.5)

    right, wrong = tmp_path / "right", tmp_path / "wrong"
    for one, folder in ((function, right), (another, wrong)):
        compiled(one, folder)(torch.ones(50))
    plant(right, wrong)
    x = torch.ones(50)
    with mlcc_log("kernels") as lines:
        verified = compiled(function, right, verify="first", dump_dir=str(tmp_path / "dump"))
        for _ in range(2):
            verified(x)
    assert any("differs from its reference" in line for line in lines)
    assert torch.equal(x, torch.full((50,), 7.0))


def in_place(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.mul_(2).add_(y)
    y[1:] += x[:-1]
    return (x * y).sum(0)


def mixed(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    low = (x.bfloat16() * y.bfloat16()).softmax(-1)
    index = torch.arange(6) % 4
    return [
        low,
        (x - x.mean()) / x.std(),
        torch.zeros(4, 5).index_add_(0, index, x),
        x.cumsum(0) + x.exp().floor(),
        torch.where(x > y, x, y).to(torch.int32),
        x[:0].sum(),
    ]


@pytest.mark.parametrize("function", [in_place, mixed])
@pytest.mark.parametrize("mode", ["first", "always", "sample"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_right_kernels_pass(
    function: Callable[..., Any], mode: str, dynamic: bool, tmp_path: Path
) -> None:
    torch._dynamo.reset()
    ours = torch.compile(
        function, backend="mlcc", dynamic=dynamic, options={"verify": mode, "strict": True}
    )
    for _ in range(2):
        tensors = [torch.randn(6, 5) for _ in range(2)]
        copies = [tensor.clone() for tensor in tensors]
        torch.testing.assert_close(ours(*tensors), function(*copies))
        torch.testing.assert_close(tensors, copies)


def test_training(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.LayerNorm(16), torch.nn.GELU(), torch.nn.Softmax(-1))
    x = torch.randn(8, 16, requires_grad=True)
    (model(x) * torch.arange(16.0)).sum().backward()
    expected = [x.grad, model[0].weight.grad]
    x.grad = None
    model.zero_grad()
    torch._dynamo.reset()
    ours = torch.compile(model, backend="mlcc", options={"verify": "always", "strict": True})
    (ours(x) * torch.arange(16.0)).sum().backward()
    torch.testing.assert_close([x.grad, model[0].weight.grad], expected)


def test_threads(tmp_path: Path) -> None:
    """Those that come during the first run wait for its verdict, without holding the GIL."""
    torch._dynamo.reset()
    options = {"verify": "first", "strict": True}
    function = torch.compile(lambda x: (x.sin() * 2).sum(-1), backend="mlcc", options=options)
    x = torch.randn(64, 64)
    results: list[torch.Tensor] = []
    threads = [threading.Thread(target=lambda: results.append(function(x))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    for result in results:
        torch.testing.assert_close(result, (x.sin() * 2).sum(-1))


def test_an_unknown_mode_is_an_error() -> None:
    torch._dynamo.reset()
    function = torch.compile(lambda x: x + 1, backend="mlcc", options={"verify": "sometimes"})
    with pytest.raises(Exception, match="expected one of off, first, sample, always, nan"):
        function(torch.ones(3))


def test_any_byte_but_zero_is_true(tmp_path: Path) -> None:
    """Memory that nobody wrote holds such bools."""
    x = torch.tensor([65, 0, 1], dtype=torch.uint8).view(torch.bool)
    ours = compiled(torch.logical_not, tmp_path, verify="first", strict=True)
    assert ours(x).tolist() == [False, True, False]


def softmin_gradient(
    tangents: torch.Tensor, values: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    weights = tangents * values
    return torch.where(mask, -(weights - values * weights.sum(1, keepdim=True)), 0.0)


def test_roundings_that_two_evaluations_do_not_show() -> None:
    """Few elements that cancel under a mask: the first two other roundings change none of them."""
    torch.manual_seed(49)
    mask = torch.rand(5, 5) < 0.5
    scores = torch.where(mask, -3 * torch.randn(5, 5), float("-inf"))
    values = torch.softmax(scores, 1).nan_to_num()
    tangents = torch.randn(5, 5)
    with mlcc.config.patch(verify="always", strict=True):
        found = mlcc.jit(softmin_gradient)(tangents, values, mask)
    torch.testing.assert_close(found, softmin_gradient(tangents, values, mask))
