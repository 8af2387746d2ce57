"""Products of bytes whose scales change along the sums: weights in groups of terms, and rows that become bytes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import mlcc

INF, NAN = float("inf"), float("nan")
# This one, and with 512-bit vectors and AVX2, both without VNNI; without vectors rows stay floats.
CPUS = ["", "skylake-avx512", "haswell", "x86-64"]
BIGGEST = torch.finfo(torch.float32).max


def runs_here(cpu: str) -> bool:
    """Whether this machine has the instructions."""
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    needed = {"skylake-avx512": "avx512bw", "haswell": "avx2"}
    return needed.get(cpu, "") in flags


@dataclass(frozen=True)
class Weights:
    """How a matrix is quantized."""

    low: int = -8
    high: int = 7
    dtype: torch.dtype = torch.int8
    zero: int | str = 0  # a number, or "groups": each has one
    has_minima: bool = False
    scale_dtype: torch.dtype = torch.float32


KINDS = {
    "int4": Weights(),
    "uint4": Weights(0, 15, torch.uint8, zero=8, scale_dtype=torch.float16),
    "uint4_zeros": Weights(0, 15, torch.uint8, zero="groups"),
    "uint4_minima": Weights(0, 15, torch.uint8, has_minima=True, scale_dtype=torch.float16),
    "int8": Weights(-128, 127, scale_dtype=torch.bfloat16),
    "uint8": Weights(0, 255, torch.uint8, zero=131),
    "int8_zeros": Weights(-128, 127, zero="groups", has_minima=True),
}


class Linear(nn.Module):
    """A linear layer that dequantizes its weight in plain ops."""

    def __init__(self, columns: int, terms: int, group: int, kind: Weights) -> None:
        super().__init__()
        groups = terms // group

        def parameter(value: Tensor) -> nn.Parameter:
            return nn.Parameter(value, requires_grad=False)

        integers = torch.randint(kind.low, kind.high + 1, (columns, terms)).to(kind.dtype)
        integers[0, :2] = torch.tensor([kind.low, kind.high])
        self.integers = parameter(integers)
        self.scales = parameter((torch.rand(columns, groups) * 0.1).to(kind.scale_dtype))
        self.kind, self.group = kind, group
        if kind.zero == "groups":
            zeros = torch.randint(kind.low, kind.high + 1, (columns, groups, 1))
            self.zeros = parameter(zeros.to(kind.dtype))
        if kind.has_minima:
            self.minima = parameter(torch.randn(columns, groups, 1))

    def weight(self) -> Tensor:
        value = self.integers.unflatten(1, (-1, self.group)).float()
        if self.kind.zero == "groups":
            value = value - self.zeros.float()
        elif self.kind.zero:
            value = value - self.kind.zero
        value = value * self.scales.float().unsqueeze(2)
        if self.kind.has_minima:
            value = value + self.minima
        return value.flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight())


def rows_as_bytes(x: Tensor, group: int) -> Tensor:
    """What rows stand for once each group of terms has become bytes, as activations="int8" has it."""
    groups = x.unflatten(-1, (-1, group))
    most = groups.abs().amax(-1, keepdim=True)
    integers = torch.round(groups * torch.clamp(127 / most, max=BIGGEST))
    return (integers * (most * torch.tensor(1 / 127))).flatten(-2)


def check(found: Tensor, rows: Tensor, weight: Tensor) -> None:
    """Beside the exact product of what both stand for; sums round as those of f32 do."""
    exact = rows.double() @ weight.double().t()
    most = rows.double().abs() @ weight.double().abs().t()
    assert found.shape == exact.shape
    assert ((found - exact).abs() <= 2e-6 * most + 1e-30).all()


def run_int8(model: nn.Module, *args: Tensor, cpu: str = "") -> Tensor:
    torch._dynamo.reset()
    options = {"activations": "int8", "cpu": cpu, "strict": True}
    with torch.no_grad():
        return torch.compile(model, backend="mlcc", options=options)(*args)


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("kind", KINDS)
def test_kinds(kind: str, cpu: str) -> None:
    if not runs_here(cpu):
        pytest.skip(f"no {cpu}")
    torch.manual_seed(0)
    model = Linear(70, 192, 32, KINDS[kind])
    for rows in (1, 13):
        x = torch.randn(rows, 192)
        expected = x if cpu == "x86-64" else rows_as_bytes(x, 32)
        check(run_int8(model, x, cpu=cpu), expected, model.weight())


@pytest.mark.parametrize(
    ("rows", "columns", "terms", "group"),
    [
        ((1,), 32, 64, 32),
        ((5,), 257, 96, 16),
        ((2, 9), 33, 512, 256),
        ((33,), 100, 256, 64),
        ((3, 1, 4), 48, 640, 128),
        ((1,), 64, 1024, 4),
        ((0,), 64, 64, 32),
    ],
)
def test_sizes(rows: tuple[int, ...], columns: int, terms: int, group: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(*rows, terms)
    for kind in ("int4", "int8"):
        model = Linear(columns, terms, group, KINDS[kind])
        check(run_int8(model, x), rows_as_bytes(x, group), model.weight())


def test_number_of_rows_is_a_symbol() -> None:
    torch.manual_seed(0)
    model = Linear(96, 128, 32, KINDS["int4"])
    with torch.no_grad():
        compiled = torch.compile(
            model, backend="mlcc", dynamic=True, options={"activations": "int8"}
        )
        for rows in (7, 2, 40, 129):
            x = torch.randn(rows, 128)
            check(compiled(x), rows_as_bytes(x, 32), model.weight())


def test_weights_without_groups() -> None:
    """Rows have groups then, of as many terms as divide a row."""
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randint(-128, 128, (40, 192), dtype=torch.int8), False)
    scales = nn.Parameter(torch.rand(40), False)

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.scales = weight, scales

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.linear(x, self.weight.float()) * self.scales

    x = torch.randn(6, 192)
    check(run_int8(Scaled(), x), rows_as_bytes(x, 64), weight.float() * scales[:, None])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
def test_short_floats(kind: str, dtype: torch.dtype) -> None:
    """What weights are rounded to on their way to the product is not: results are nearer to the exact ones."""
    torch.manual_seed(0)
    model = Linear(70, 192, 32, KINDS[kind])

    class Short(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = model

        def forward(self, x: Tensor) -> Tensor:
            integers = self.layer.integers.unflatten(1, (-1, 32)).to(dtype)
            if self.layer.kind.zero == "groups":
                integers = integers - self.layer.zeros.to(dtype)
            elif self.layer.kind.zero:
                integers = integers - self.layer.kind.zero
            weight = integers * self.layer.scales.to(dtype).unsqueeze(2)
            if self.layer.kind.has_minima:
                weight = weight + self.layer.minima.to(dtype)
            return nn.functional.linear(x, weight.flatten(1))

    x = torch.randn(5, 192).to(dtype)
    found = run_int8(Short(), x)
    assert found.dtype == dtype
    rows, weight = rows_as_bytes(x.float(), 32), model.weight()
    exact = rows.double() @ weight.double().t()
    most = rows.double().abs() @ weight.double().abs().t()
    # Of the scales and minima, which are rounded once, and of the result.
    assert ((found - exact).abs() <= torch.finfo(dtype).eps * (most + exact.abs())).all()


def test_rows_that_are_more_than_bytes() -> None:
    """Sums of dequantized bytes and floats, and bytes with a scale for each term, become bytes anew."""
    torch.manual_seed(0)
    model = Linear(40, 96, 32, KINDS["int4"])

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = model

        def forward(
            self, q: Tensor, scale: Tensor, other: Tensor, norm: Tensor
        ) -> tuple[Tensor, Tensor]:
            rows = q.float() * scale
            return self.layer(rows + other), self.layer(rows * norm)

    q = torch.randint(-128, 128, (5, 96), dtype=torch.int8)
    scale, other, norm = torch.rand(5, 1), torch.randn(5, 96), torch.rand(96)
    found = run_int8(Sum(), q, scale, other, norm)
    check(found[0], rows_as_bytes(q * scale + other, 32), model.weight())
    check(found[1], rows_as_bytes(q * scale * norm, 32), model.weight())


def test_is_asked_for() -> None:
    """Without the option rows stay floats."""
    torch.manual_seed(0)
    model, x = Linear(64, 128, 32, KINDS["int4"]), torch.randn(4, 128)
    with torch.no_grad():
        found = torch.compile(model, backend="mlcc")(x)
    check(found, x, model.weight())
    assert not torch.allclose(found, run_int8(model, x), rtol=1e-4)
    with pytest.raises(mlcc.Error, match="activations"), mlcc.config.patch(activations="int7"):
        pass


class BytesOfRows(nn.Module):
    """Rows that the caller quantized: (q - zero) * scale, of rows."""

    def __init__(self, layer: Linear) -> None:
        super().__init__()
        self.layer = layer

    def rows(self, q: Tensor, zero: Tensor | int, scale: Tensor) -> Tensor:
        return (q.float() - zero) * scale

    def forward(self, q: Tensor, zero: Tensor | int, scale: Tensor) -> Tensor:
        return nn.functional.linear(self.rows(q, zero, scale), self.layer.weight())


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("kind", ["int4", "uint4_zeros", "uint8", "int8_zeros"])
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_bytes_of_rows(dtype: torch.dtype, kind: str, cpu: str, tmp_path: Path) -> None:
    if not runs_here(cpu):
        pytest.skip(f"no {cpu}")
    torch.manual_seed(0)
    model = BytesOfRows(Linear(50, 96, 32, KINDS[kind]))
    info = torch.iinfo(dtype)
    q = torch.randint(info.min, info.max + 1, (5, 96)).to(dtype)
    scale = torch.rand(5, 1)
    zeros = torch.randint(-100, 100, (5, 1), dtype=torch.int8)
    for zero in (0, 17, zeros):
        torch._dynamo.reset()
        folder = tmp_path / str(id(zero))
        options = {"cpu": cpu, "strict": True, "dump": "graph", "dump_dir": str(folder)}
        with torch.no_grad():
            found = torch.compile(model, backend="mlcc", options=options)(q, zero, scale)
        check(found, model.rows(q, zero, scale), model.layer.weight())
        if cpu != "x86-64":
            texts = [path.read_text(encoding="utf-8") for path in folder.rglob("*_fused.graph")]
            assert any("contract_groups" in text for text in texts)


@pytest.mark.parametrize("shape", [(), (1,), (5, 1), (5, 3, 1)])
def test_scale_of_rows(shape: tuple[int, ...]) -> None:
    """One for all rows, or one each: the scales' rank is no sign of what the product is."""
    torch.manual_seed(0)
    model = BytesOfRows(Linear(40, 96, 32, KINDS["int8"]))
    q = torch.randint(-128, 128, (5, 96) if len(shape) < 3 else (5, 3, 96), dtype=torch.int8)
    scale = torch.rand(shape)
    torch._dynamo.reset()
    with torch.no_grad():
        found = torch.compile(model, backend="mlcc")(q, 0, scale)
    check(found, model.rows(q, 0, scale), model.layer.weight())


def test_rows_without_scale() -> None:
    torch.manual_seed(0)
    layer = Linear(40, 96, 32, KINDS["int4"])
    q = torch.randint(0, 256, (5, 96), dtype=torch.uint8)
    with torch.no_grad():
        found = torch.compile(lambda q: layer(q.float()), backend="mlcc")(q)
    check(found, q.float(), layer.weight())


class Padded(nn.Module):
    """Pads what stands for bytes: of the weight, of the rows, or of both's columns and rows."""

    def __init__(self, weight: Linear, pads: tuple[int, ...], of_rows: bool) -> None:
        super().__init__()
        self.layer, self.pads, self.of_rows = weight, pads, of_rows
        self.scale = nn.Parameter(torch.rand(1), requires_grad=False)

    def operands(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.of_rows:
            return nn.functional.pad(x, self.pads), self.layer.weight()
        return x, nn.functional.pad(self.layer.integers.float() * self.scale, self.pads)

    def forward(self, q: Tensor, scales: Tensor) -> Tensor:
        rows = (
            q.float() * scales
            if self.of_rows
            else (q.unflatten(1, (-1, 32)).float() * scales.reshape(-1, 1, 1)).flatten(1)
        )
        return nn.functional.linear(*self.operands(rows))


@pytest.mark.parametrize("activations", ["", "int8"])
@pytest.mark.parametrize(
    ("pads", "of_rows"),
    [((0, 32), False), ((0, 0, 0, 8), False), ((0, 32), True), ((0, 0, 1, 0), True)],
)
def test_pads(pads: tuple[int, ...], of_rows: bool, activations: str) -> None:
    torch.manual_seed(0)
    widened = pads[1] if len(pads) == 2 else 0
    terms = 128 - widened
    model = Padded(Linear(40, 128 if of_rows else terms, 32, KINDS["int8"]), pads, of_rows)
    q = torch.randint(-128, 128, (5, terms if of_rows else 128), dtype=torch.int8)
    scales = torch.rand(5, 1)
    torch._dynamo.reset()
    with torch.no_grad():
        expected = model(q, scales)
        compiled = torch.compile(model, backend="mlcc", options={"activations": activations})
        error = (compiled(q, scales) - expected).norm() / expected.norm()
    assert error < (0.02 if activations else 1e-5)


def test_signed_bytes_of_four_bits() -> None:
    """None of them negative."""
    torch.manual_seed(0)
    model, x = Linear(40, 96, 32, Weights(0, 15, torch.int8)), torch.randn(5, 96)
    check(run_int8(model, x), rows_as_bytes(x, 32), model.weight())


def test_limits_of_bytes() -> None:
    """All products as large as they get, of either sign: no sum of two or four leaves what holds it."""
    for kind, weight in (("int4", -8), ("uint4", 15), ("uint8", 255), ("int8", -128)):
        for cpu in filter(runs_here, CPUS[:3]):
            model = Linear(32, 128, 32, KINDS[kind])
            model.integers.fill_(weight)
            for x in (torch.ones(3, 128), -torch.ones(3, 128)):
                check(run_int8(model, x, cpu=cpu), rows_as_bytes(x, 32), model.weight())


def test_numbers_without_scale() -> None:
    """Zeros, what is too small to divide by, NaN and infinity."""
    torch.manual_seed(0)
    model = Linear(40, 96, 32, KINDS["int4"])
    x = torch.randn(6, 96)
    x[0] = 0
    x[1, :32] = 0
    x[2, :32] *= 1e-39
    x[3, 5], x[4, 40] = NAN, INF
    found = run_int8(model, x)
    check(found[[0, 1, 5]], rows_as_bytes(x, 32)[[0, 1, 5]], model.weight())
    assert (found[0] == 0).all()
    assert found[2].isfinite().all()
    assert not found[3:5].isfinite().any()


def test_changed_weights() -> None:
    """What is packed follows the weight, and so does whether it needs four bits or eight."""
    torch.manual_seed(0)
    model = Linear(40, 96, 32, KINDS["int4"])
    x = torch.randn(3, 96)
    options = {"activations": "int8"}
    with torch.no_grad():
        compiled = torch.compile(model, backend="mlcc", options=options)
        check(compiled(x), rows_as_bytes(x, 32), model.weight())
        model.integers.copy_(torch.randint(-8, 8, (40, 96), dtype=torch.int8))
        check(compiled(x), rows_as_bytes(x, 32), model.weight())
        model.integers.copy_(torch.randint(-128, 128, (40, 96), dtype=torch.int8))
        check(compiled(x), rows_as_bytes(x, 32), model.weight())


def test_verified() -> None:
    """Kernels run beside the interpreter."""
    torch.manual_seed(0)
    with mlcc.config.patch(verify="always"):
        for kind in ("int4", "int8_zeros"):
            model, x = Linear(70, 128, 32, KINDS[kind]), torch.randn(5, 128)
            check(run_int8(model, x), rows_as_bytes(x, 32), model.weight())


def test_rows_become_bytes_once_for_all_that_read_them(tmp_path: Path) -> None:
    """Queries, keys and values of the same rows."""
    layers = nn.ModuleList(Linear(columns, 64, 32, KINDS["int4"]) for columns in (48, 32, 32))

    def project(x: Tensor) -> list[Tensor]:
        return [layer(x) for layer in layers]

    torch._dynamo.reset()
    options = {"activations": "int8", "dump": "graph", "dump_dir": str(tmp_path)}
    with torch.no_grad():
        torch.compile(project, backend="mlcc", options=options)(torch.randn(3, 64))
    (text,) = (path.read_text() for path in tmp_path.rglob("*inference/*fused.graph"))
    assert text.count(" contract_groups ") == 3
    assert text.count(" round ") == 1
