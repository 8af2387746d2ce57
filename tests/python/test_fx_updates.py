"""Updates at computed places and scans against eager, bit for bit on the CPU: duplicates in the index, every dtype."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from mlcc import config
from mlcc.importer import fx_graph

DTYPES = [torch.float32, torch.bfloat16, torch.int32, torch.uint8]
ROWS = torch.tensor([3, 0, 2, 1, 9, 8, 7, 5, 6, 4])

UPDATES: dict[str, Any] = {
    "scatter_add": lambda b, s, i: b.scatter_add(0, i, s),
    "scatter_add along rows": lambda b, s, i: b.scatter_add(1, i % 5, s),
    "mean without self": lambda b, s, i: b.scatter_reduce(0, i, s, "mean", include_self=False),
    "amax": lambda b, s, i: b.scatter_reduce(0, i, s, "amax", include_self=False),
    "prod": lambda b, s, i: b.scatter_reduce(0, i, s, "prod"),
    "index_put": lambda b, s, i: torch.index_put(b, (i[:, 0] - 10,), s, accumulate=True),
    "index_add": lambda b, s, i: b.index_add(0, i[:, 0], s),
    "index_fill": lambda b, s, i: b.index_fill(0, i[:, 0] - 3, 2),
    "put": lambda b, s, i: b.put(i, s, accumulate=True),
    "masked_scatter": lambda b, s, i: b.masked_scatter(b > 0, s.repeat(2, 2)),
    "empty index": lambda b, s, i: b.scatter_add(0, i[:0], s),
    "memory without values": lambda b, s, i: torch.empty_like(b).index_put_((ROWS,), b),
    "cumsum": lambda b, s, i: b.cumsum(0),
    "cumprod along rows": lambda b, s, i: b.cumprod(1),
    "cummax": lambda b, s, i: b.cummax(0),
    "cummin along rows": lambda b, s, i: b.cummin(1),
}


@pytest.mark.parametrize("name", UPDATES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_as_eager(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    index = torch.randint(0, 10, (7, 5))
    base, source = (torch.randint(0, 3, shape).to(dtype) for shape in ((10, 5), (7, 5)))
    if dtype.is_floating_point:
        base, source = base + torch.randn(10, 5).to(dtype), source + torch.randn(7, 5).to(dtype)
        base[3, 3] = float("nan")
    function = UPDATES[name]
    want = function(base, source, index)
    for dynamic in (False, True):
        torch._dynamo.reset()
        got = torch.compile(function, backend="mlcc", dynamic=dynamic)(base, source, index)
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


REGULAR: dict[str, Any] = {
    "every second row": lambda b, s, i: torch.slice_scatter(b, s[:5], 0, 0, 10, 2),
    "every third column": lambda b, s, i: torch.slice_scatter(b, b[:, :2] * 2, 1, 1, 5, 3),
    "a part by steps": lambda b, s, i: torch.slice_scatter(b, s[:3], 0, 2, -3, 2),
    "nothing by steps": lambda b, s, i: torch.slice_scatter(b, s[:0], 0, 8, 8, 2),
    "into a slice": lambda b, s, i: (b * 2).index_add_(0, i[:, 0], s)[::2].neg_(),
    "select_scatter": lambda b, s, i: torch.select_scatter(b, s[2], 0, -3),
    "diagonal of columns": lambda b, s, i: torch.diagonal_scatter(b, s[3]),
    "diagonal of rows": lambda b, s, i: torch.diagonal_scatter(b.mT, s[3]),
    "shifted diagonal": lambda b, s, i: torch.diagonal_scatter(b, s[4], -2),
    "part of a diagonal": lambda b, s, i: torch.diagonal_scatter(b, s[0, :3], 2),
    "part of a diagonal of columns": lambda b, s, i: torch.diagonal_scatter(b.mT, s[0, :3], -2),
    "short diagonal below": lambda b, s, i: torch.diagonal_scatter(b, s[0, :2], -8),
    "no diagonal": lambda b, s, i: torch.diagonal_scatter(b, s[0, :0], 7),
    "gradient of a part of a diagonal": lambda b, s, i: torch.func.grad(
        lambda b: (b.diagonal(1) * s[0, :4]).sum()
    )(b),
    "diagonals of a batch": lambda b, s, i: torch.diagonal_scatter(
        b.view(2, 5, 5), s[:2, :5], 0, 2, 1
    ),
    "bucketize": lambda b, s, i: torch.bucketize(b, s[:, 0].float().sort()[0].to(s.dtype)),
    "mask": lambda b, s, i: torch.index_put(b, (b > 0,), s[0, 0]),
    "mask of rows": lambda b, s, i: put(b, [b[:, 0] > 0], s[:1]),
    "mask of columns": lambda b, s, i: put(b, [None, b[0] > 0], s[1, 1], True),
    "searchsorted": lambda b, s, i: torch.searchsorted(s.sort()[0], b[:7]),
    "searchsorted, from the right": lambda b, s, i: torch.searchsorted(
        i.sort()[0], i, side="right", out_int32=True
    ),
    "searchsorted of a number": lambda b, s, i: torch.searchsorted(s[0].sort()[0], 0.5),
    "searchsorted by a sorter": lambda b, s, i: torch.searchsorted(
        s, b[:7], sorter=s.sort()[1], right=True
    ),
    "searchsorted among none": lambda b, s, i: torch.searchsorted(s[:, :0], b[:7]),
    "searchsorted of NaN": lambda b, s, i: torch.searchsorted(
        torch.where(s > 1, s / 0 * 0, s).sort()[0], torch.where(b[:7] > 1, b[:7] / 0 * 0, b[:7])
    ),
    "histc": lambda b, s, i: torch.histc(b * 4, 7, -3, 4.5),
    "gradient of masked_scatter": lambda b, s, i: torch.func.grad(
        lambda s: (b.masked_scatter(b > 0, s) ** 2).sum()
    )(s.repeat(2, 1)),
    "gather from a number": lambda b, s, i: b[0, 0].gather(0, i[0, :4] * 0),
    "scatter to a number": lambda b, s, i: b[0, 0].scatter_add(0, i[0, 0] * 0, s[0]),
    "index_add to a number": lambda b, s, i: b[0, 0].index_add(0, i[0, 0] * 0, s[0, 0], alpha=2),
    "index_copy to a number": lambda b, s, i: b[0, 0].index_copy(0, i[0, 0] * 0, s[0, 0]),
    "index_fill of a number": lambda b, s, i: b[0, 0].index_fill(0, i[0, :0], 3),
    "index_reduce of a number": lambda b, s, i: b[0, 0].index_reduce(
        0, i[0, 0] * 0, s[0, 0], "amax"
    ),
    "index_select of a number": lambda b, s, i: b[0, 0].index_select(0, i[0, :1] * 0),
    "cummin of a number": lambda b, s, i: b[0, 0].cummin(0)[1] + b[0, 0].cummax(-1)[0],
    "gather of nothing": lambda b, s, i: b.gather(0, torch.zeros(0, dtype=torch.uint8)),
    "scatter of nothing": lambda b, s, i: b.scatter_add(0, torch.zeros(0, dtype=torch.long), s),
}


@pytest.mark.parametrize("name", REGULAR)
@pytest.mark.parametrize("gpu", ["", "emulate"])
def test_regular_places(
    name: str, gpu: str, monkeypatch: pytest.MonkeyPatch, mlcc_log: Any
) -> None:
    """As eager, with no call of the op itself."""
    monkeypatch.setenv("MLCC_STRICT", "1")
    torch.manual_seed(0)
    base, source, index = torch.randn(10, 5), torch.randn(7, 5), torch.randint(0, 10, (7, 5))
    function = REGULAR[name]
    want = function(base, source, index)
    torch._dynamo.reset()
    with config.patch(gpu=gpu), mlcc_log("fallback") as lines:
        got = torch.compile(function, backend="mlcc")(base, source, index)
    torch.testing.assert_close(got, want, rtol=0, atol=0)
    assert got.stride() == want.stride()
    assert [line for line in lines if not line.startswith("aten.sort.")] == []


END = 2**63 - 1


def every_second_row_changed(b: torch.Tensor) -> torch.Tensor:
    """In place, in memory of the program's own."""
    x = b * 2
    x[1::2] += x[::2][: x.shape[0] // 2]
    return x


SYMBOLIC: dict[str, Any] = {
    "every second row": lambda b, s, i: torch.slice_scatter(b, s[: b.shape[0] // 2], 0, 1, END, 2),
    "every second column": lambda b, s, i: torch.slice_scatter(
        b, b[:, : (b.shape[1] + 1) // 2] * 2, 1, 0, END, 2
    ),
    "a part by steps": lambda b, s, i: torch.slice_scatter(b, s[:2], 0, -8, -2, 3),
    "part of a diagonal": lambda b, s, i: torch.diagonal_scatter(b, s[:, 0][: b.shape[1] - 2], 2),
    "gradient of every third row": lambda b, s, i: torch.func.grad(
        lambda b: (b[::3] * s[: (b.shape[0] + 2) // 3]).sum()
    )(b),
    "every second row in place": lambda b, s, i: every_second_row_changed(b),
    "diagonal": lambda b, s, i: b[:, :3].diagonal(-1) + b[:3].diagonal(1)[:2].sum(),
    "mean along the last dimension": lambda b, s, i: b[:7].index_reduce(1, i[0], s, "mean"),
    "searchsorted": lambda b, s, i: torch.searchsorted(s.sort()[0], b[:7]),
    "put": lambda b, s, i: b.put(i, s),
    "mask": lambda b, s, i: torch.index_put(b, (b > 0,), s[0, 0]),
    "prod": lambda b, s, i: (b > -1).prod(0, dtype=torch.bool),
}


@pytest.mark.parametrize(
    ("name", "gpu"),
    # which of several sources `put` leaves at a place is the GPU's choice
    [(name, "") for name in SYMBOLIC] + [(name, "emulate") for name in SYMBOLIC if name != "put"],
)
def test_regular_places_of_symbolic_sizes(
    name: str, gpu: str, monkeypatch: pytest.MonkeyPatch, mlcc_log: Any
) -> None:
    """One graph for two sizes, with no call of the op itself."""
    monkeypatch.setenv("MLCC_STRICT", "1")
    torch.manual_seed(0)
    torch._dynamo.reset()
    function = SYMBOLIC[name]
    compiled = torch.compile(function, backend="mlcc", dynamic=True)
    for columns in (5, 6):
        base, source = torch.randn(10, columns), torch.randn(7, columns)
        index = torch.randint(0, 5, (7, columns))
        with config.patch(gpu=gpu), mlcc_log("fallback") as lines:
            got = compiled(base, source, index)
        torch.testing.assert_close(got, function(base, source, index), rtol=1e-6, atol=1e-6)
        assert [line for line in lines if not line.startswith("aten.sort.")] == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("gpu", ["", "emulate"])
def test_logcumsumexp(dtype: torch.dtype, dim: int, gpu: str) -> None:
    """Beside f64; infinities and NaN as in eager, far apart and after a first of -inf."""
    torch.manual_seed(0)
    x = (torch.randn(40, 33) * 30).to(dtype)
    x[0, :9], x[:9, 0], x[20, 7], x[30, 9] = -math.inf, -math.inf, math.inf, math.nan
    torch._dynamo.reset()
    with config.patch(gpu=gpu):
        got = torch.compile(lambda x: x.logcumsumexp(dim), backend="mlcc")(x)
    want = x.double().logcumsumexp(dim)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(got.double(), want, rtol=2 * eps, atol=4 * eps, equal_nan=True)


def put(x: Any, indices: Any, values: Any, accumulate: bool = False) -> Any:
    """index_put, with None too."""
    return torch.ops.aten.index_put(x, indices, values, accumulate)


X4 = torch.arange(5 * 6 * 7 * 8).reshape(5, 6, 7, 8).float()
I1, J1, K2 = (
    torch.tensor([[-5], [4], [0]]),
    torch.tensor([5, -6, 2, 5]),
    torch.arange(-7, 5).view(3, 4),
)

SEVERAL_INDICES: dict[str, Any] = {
    "together": lambda x, i, j, k: x[i, j],
    "behind a dimension": lambda x, i, j, k: x[:, i, k] * 2,
    "apart": lambda x, i, j, k: x[i, :, k],
    "apart, not first": lambda x, i, j, k: x[:, i, :, k],
    "all dimensions": lambda x, i, j, k: x[i, j, k, k],
    "put": lambda x, i, j, k: torch.index_put(x, (i, j), x[0, 0, 0, 0]),
    "put apart": lambda x, i, j, k: put(x, [i, None, k], x[:3, :4, :1, :1] * 3),
    "put into a transpose": lambda x, i, j, k: put(
        x.permute(3, 2, 1, 0), [None, i, None, i], x[0, 0, 0, 0]
    ),
    "accumulated": lambda x, i, j, k: put(x, [i, j], x[:3, :4, 0, 0][..., None, None], True),
    "accumulated apart": lambda x, i, j, k: put(x, [i, None, k], x[:3, :4, :1, :1], True),
    "gradient": lambda x, i, j, k: torch.func.grad(lambda x: (x[i, :, k] ** 2).sum())(x),
    "first out of range": lambda x, i, j, k: x[i + 1, j],
    "second out of range": lambda x, i, j, k: x[:, i, k * 2],
    "put out of range": lambda x, i, j, k: put(x, [None, j, k - 9], x[:, :1, :1]),
}


@pytest.mark.parametrize("name", SEVERAL_INDICES)
@pytest.mark.parametrize("way", ["static", "dynamic", "gpu"])
def test_several_index_tensors(
    name: str, way: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As eager, strides and errors too, and in a kernel."""
    monkeypatch.setenv("MLCC_STRICT", "1")
    function = SEVERAL_INDICES[name]

    def run() -> Any:
        compiled = torch.compile(function, backend="mlcc", dynamic=way == "dynamic")
        return compiled(X4, I1, J1, K2)

    torch._dynamo.reset()
    fx_graph.forget_logged()
    caplog.set_level("INFO", "mlcc.fallback")
    with config.patch(gpu="emulate" if way == "gpu" else ""):
        if "out of range" in name:
            with pytest.raises(IndexError) as wanted:
                function(X4, I1, J1, K2)
            with pytest.raises(IndexError) as found:
                run()
            assert str(found.value) == str(wanted.value)
        else:
            got, want = run(), function(X4, I1, J1, K2)
            torch.testing.assert_close(got, want, rtol=0, atol=0)
            assert got.stride() == want.stride()
    assert "aten.index" not in caplog.text


@pytest.mark.parametrize("by_frequency", [False, True])
@pytest.mark.parametrize("padding", [None, 3])
def test_gradient_of_embedding(padding: int | None, by_frequency: bool) -> None:
    weight = torch.randn(50, 16, requires_grad=True)
    index = torch.randint(0, 50, (40, 3))

    def gradient(weight: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        rows = torch.nn.functional.embedding(
            index, weight, padding_idx=padding, scale_grad_by_freq=by_frequency
        )
        return torch.autograd.grad((rows * rows).sum(), weight)[0]

    torch._dynamo.reset()
    got = torch.compile(gradient, backend="mlcc")(weight, index)
    bound = 1e-6 if by_frequency else 0  # eager adds a scaled row in one rounding
    torch.testing.assert_close(got, gradient(weight, index), rtol=bound, atol=bound)


def test_16_bit_floats_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """No atomic form: in order."""
    monkeypatch.setenv("MLCC_STRICT", "1")
    base, source = torch.randn(10, 5).bfloat16(), torch.randn(7, 5).bfloat16()
    index = torch.randint(0, 10, (7,))

    def function(b: torch.Tensor, s: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return torch.index_put(b, (i,), s, accumulate=True)

    torch._dynamo.reset()
    with config.patch(gpu="emulate"):
        got = torch.compile(function, backend="mlcc")(base, source, index)
    torch.testing.assert_close(got, function(base, source, index), rtol=0, atol=0)


BAGS: dict[str, Any] = {
    "sums": {"mode": "sum"},
    "weighted sums": {"mode": "sum", "per_sample_weights": torch.rand(40)},
    "means, one row counts as none": {"mode": "mean", "padding_idx": 3},
    "the last offset is the end": {"mode": "mean", "include_last_offset": True},
}


@pytest.mark.parametrize(
    ("name", "dynamic"), [*((name, False) for name in BAGS), ("weighted sums", True)]
)
def test_gradients_of_embedding_bags(name: str, dynamic: bool, mlcc_log: Any) -> None:
    """With an empty bag; eager's kernel runs forward only."""
    index = torch.randint(0, 50, (40,))
    offsets = torch.tensor([0, 3, 3, 10, 22, 40])
    if not BAGS[name].get("include_last_offset"):
        offsets = offsets[:-1]

    def loss(table: torch.Tensor) -> torch.Tensor:
        bags = torch.nn.functional.embedding_bag(index, table, offsets, **BAGS[name])
        return (bags**2).sum()

    table = torch.randn(50, 8, requires_grad=True)
    (want,) = torch.autograd.grad(loss(table), table)
    torch._dynamo.reset()
    with mlcc_log("fallback") as lines:
        value = torch.compile(loss, backend="mlcc", dynamic=dynamic)(table)
        (got,) = torch.autograd.grad(value, table)
    torch.testing.assert_close(got, want)
    assert not any("backward" in line for line in lines)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("function", "right", "wrong"),
    [
        (lambda x, y: torch.slice_scatter(x, y, 0, 1, None, 2), 4, 2),
        (lambda x, y: torch.slice_scatter(x, y, 0, 1, None, 2), 4, 500),
        (lambda x, y: torch.slice_scatter(x, y, 0, 1, None, 1), 7, 5),
        (lambda x, y: torch.slice_scatter(x, y, 0, -5, 7, 3), 2, 3),
        (lambda x, y: torch.diagonal_scatter(x, y[:, 0]), 5, 3),
    ],
)
def test_sources_of_another_length_fail_as_in_eager(
    function: Any, right: int, wrong: int, dynamic: bool
) -> None:
    x = torch.zeros(8, 5)
    torch._dynamo.reset()
    run = torch.compile(function, backend="mlcc", dynamic=dynamic)
    y = torch.randn(right, 5)
    torch.testing.assert_close(run(x, y), function(x, y))
    for call in (function, run):
        with pytest.raises(RuntimeError, match="expected src to have"):
            call(x, torch.randn(wrong, 5))


def test_an_input_that_is_changed_is_the_source_too() -> None:
    functions = (
        lambda x: x.copy_((x * 3).index_add(1, torch.arange(x.shape[1]), x * 1)),
        lambda x: x.copy_((x + 1).scatter(1, torch.arange(x.shape[1]).expand(x.shape), x)),
        lambda x: x.copy_((x * 3).index_copy(0, torch.arange(x.shape[0] - 1), x[:-1] + 0)),
    )
    for function in functions:
        for dynamic in (False, True):
            torch._dynamo.reset()
            got, want = torch.randn(3, 4), torch.empty(3, 4)
            want.copy_(got)
            torch.compile(function, backend="mlcc", dynamic=dynamic)(got)
            function(want)
            torch.testing.assert_close(got, want)
