"""The importer alone: what it makes of ATen graphs is run by torch_builder and judged against eager and fp64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import mlcc
from mlcc.importer import fx_graph
from mlcc.ir.sizes import SizePrinter, ratio_that_rounds_alike
from mlcc.ir.types import GraphUnsupported
from mlcc.rewrite import decompositions
from mlcc.torch_private import dispatch
from tests.python.accuracy import check_all, check_form, to_double
from tests.python.functions import (
    BACKWARD,
    CREATIONS,
    GATHERS,
    MOVEMENTS,
    REDUCTIONS,
    THROUGH_AOT,
    A,
)
from tests.python.tracing import (
    DTYPES,
    FORMS,
    GENERATED,
    TABLE,
    Imported,
    call_of,
    is_in_table,
    run_through_aot,
    through_aot,
    trace,
)


def check_function(
    function: Any, *args: Any, externs: set[str] | None = None, dynamic: bool = False
) -> Imported:
    """The imported function is as good as eager; `externs` are the ATen calls it may hold (default: none)."""
    imported = trace(function, *args, dynamic=dynamic)
    inputs = _size_inputs(imported, args) + list(args)
    eager = function(*args)
    eager = list(eager) if isinstance(eager, list | tuple) else [eager]
    reference = function(*to_double(list(args)))
    reference = list(reference) if isinstance(reference, list | tuple) else [reference]
    check_all(
        imported(*inputs), eager, [_like(r, e) for r, e in zip(reference, eager, strict=True)]
    )
    assert imported.externs == (externs or set())
    return imported


def _like(reference: Any, eager: Any) -> Any:
    """Integer results of f64 inputs may have another dtype; only floats are judged by the reference."""
    return reference if isinstance(eager, torch.Tensor) and eager.dtype.is_floating_point else None


def _size_inputs(imported: Imported, args: Any) -> list[int]:
    assert all(value is not None for value, _ in imported.builder.inputs)
    return []


# -- the op table


@pytest.mark.parametrize("form", FORMS)
def test_overload_of_the_table(form: str) -> None:
    """In each dtype that eager takes, no form of the table is an ATen call, and results are as good as eager's."""
    supported = 0
    for dtype in DTYPES:
        tensors, function = call_of(form, dtype)
        try:
            function(*tensors)
        except (RuntimeError, NotImplementedError, TypeError):
            continue
        if dtype == torch.float64:
            exact = trace(function, *tensors)(*tensors)[0]
            torch.testing.assert_close(
                exact, function(*tensors), rtol=1e-12, atol=1e-12, equal_nan=True
            )
            continue
        name = form.split("[")[0]
        imported = trace(function, *tensors)
        if imported.externs == {name} and not is_in_table(form, dtype):
            continue
        check_function(function, *tensors)
        supported += 1
    assert supported > 0


def test_table_is_not_decomposed() -> None:
    taken_apart = {str(op) for op in decompositions.table(GENERATED)}
    assert not taken_apart & GENERATED


def test_each_name_takes_an_op_apart() -> None:
    taken_apart = decompositions.table(GENERATED, has_gradients=True).keys()
    for name in decompositions.names():
        assert dispatch.decompositions_of([name]).keys() & taken_apart, name


def test_core_pointwise_ops(record_property: Any) -> None:
    """Every op tagged core and pointwise is in the table or a handler."""
    from mlcc.importer.handlers import HANDLERS

    found, missing = 0, set()
    for name in dir(torch.ops.aten):
        packet = getattr(torch.ops.aten, name)
        if not isinstance(packet, torch._ops.OpOverloadPacket):
            continue
        for overload in packet.overloads():
            op = getattr(packet, overload)
            if torch.Tag.core in op.tags and torch.Tag.pointwise in op.tags and overload != "out":
                found += 1
                if not TABLE.knows(str(op)) and str(op) not in HANDLERS:
                    missing.add(name)
    record_property("core pointwise overloads", found)
    assert missing == set()


# -- promotion and numbers


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + 0.1,
        lambda x: x - 0.1,
        lambda x: 0.1 - x,
        lambda x: x * 0.1,
        lambda x: x / 0.1,
        lambda x: x.abs() ** 0.1,
        lambda x: 0.1**x,
        lambda x: torch.fmod(x, 0.1),
        lambda x: x % 0.1,
        lambda x: x == 0.1,
        lambda x: x < 0.1,
        lambda x: torch.add(x, x, alpha=0.1),
        lambda x: x + torch.tensor(0.1),
        lambda x: x * torch.tensor(0.1),
        lambda x: F.leaky_relu(x, 0.1),
        lambda x: torch.where(x > 0, x, 0.1),
        lambda x: x.clamp(-0.1, 0.1),
        lambda x: x.masked_fill(x > 0, 0.1),
        lambda x: torch.lerp(x, x * 2, 0.1),
        lambda x: torch.addcmul(x, x, x, value=0.1),
        lambda x: F.hardtanh(x, -0.1, 0.1),
        lambda x: F.threshold(x, 0.1, 0.1),
    ],
)
def test_numbers_beside_short_floats(function: Any, dtype: torch.dtype) -> None:
    """Bit for bit: eager rounds some numbers to the tensor's dtype and takes others in f32."""
    x = torch.cat([torch.randn(500), torch.full((12,), 0.1)]).to(dtype)
    imported = trace(function, x)
    eager = function(x)
    (result,) = imported(x)
    check_form(result, eager)
    same = (result == eager).float().mean().item()
    # eager's vector and scalar paths round a few quotients and powers apart
    assert same > 0.995, same
    assert imported.externs == set()


@pytest.mark.parametrize(
    "function",
    [
        lambda i: i + 2.5,
        lambda i: i * True,
        lambda i: i / 3,
        lambda i: i // 2,
        lambda i: i**2,
        lambda i: i < 2.5,
        lambda i: i + i.to(torch.uint8),
        lambda i: i & 300,
        lambda i: i.to(torch.uint8) + 300,
        lambda i: i.to(torch.uint8) < 300,
        lambda i: torch.exp(i),
        lambda i: torch.where(i > 2, i, 1.5),
        lambda i: torch.clamp(i, 0.5, 3),
        lambda i: i.bool() & True,
        lambda i: i.float() + i,
        lambda i: i.bfloat16() + i.float(),
        lambda i: i.bfloat16() + torch.ones([], dtype=torch.float64),
        lambda i: i.sum(),
        lambda i: i.bool().sum(dtype=torch.int32),
        lambda i: i.float().mean(),
        lambda i: torch.isnan(i),
        lambda i: ~i.bool(),
        lambda i: i.bool() * i.bool(),
        lambda i: i.bool() + i.bool(),
        lambda i: torch.maximum(i.bool(), i.bool()),
        lambda i: torch.sign(i),
        lambda i: -i,
        lambda i: F.relu(i),
        lambda i: torch.logical_xor(i, i > 2),
    ],
)
def test_promotion(function: Any) -> None:
    check_function(function, torch.arange(-5, 12))


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 0.5, -0.5, -1, -2, 2.0, 3.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_power(exponent: float, dtype: torch.dtype) -> None:
    check_function(lambda x: x**exponent, torch.rand(100).to(dtype) + 0.1)


def test_other_powers() -> None:
    check_function(lambda x: x**2.5, torch.rand(9))
    check_function(lambda x, y: x**y, torch.rand(9), torch.randn(9))
    check_function(lambda i: i**64, torch.arange(4), externs={"aten.pow.Tensor_Scalar"})


INTEGERS = torch.arange(-9, 9)

COMPOSED = {
    "powers of integers": lambda x: [
        INTEGERS**5,
        INTEGERS.to(torch.int8) ** 7,
        INTEGERS.int() ** 63,
    ],
    "hardtanh of integers": lambda x: F.hardtanh(INTEGERS, -0.5, 3.7),
    "product of truth values": lambda x: (x > -1).prod(1, dtype=torch.bool),
    "tests of integers": lambda x: [INTEGERS.isposinf(), (x > 0).isneginf()],
    "rounding to decimals": lambda x: [x.round(decimals=d) for d in (-1, 0, 3)],
    "renorm": lambda x: x.renorm(2, 0, 1.5),
    "distance": lambda x: torch.dist(x, x.flip(0)),
    "masked index": lambda x: torch.ops.aten._unsafe_masked_index(
        x, torch.arange(-1, 2).view(3, 1, 1) >= x[:, None] * 0, [torch.arange(-1, 2)[:, None]], 0.5
    ),
}


@pytest.mark.parametrize("name", COMPOSED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_composed_of_other_ops(name: str, dtype: torch.dtype) -> None:
    check_function(COMPOSED[name], torch.randn(3, 5).to(dtype))


# -- structured ops


@pytest.mark.parametrize("name", MOVEMENTS)
def test_movement(name: str) -> None:
    check_function(MOVEMENTS[name], A)


# Their sizes and places are numbers that such integers need not hold; what `pad` writes is one that they cannot.
@pytest.mark.parametrize("name", [name for name in MOVEMENTS if name != "pad"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32], ids=str)
def test_movement_of_narrow_integers(name: str, dtype: torch.dtype) -> None:
    check_function(MOVEMENTS[name], (A.double() * 100).round().abs().clamp(max=255).to(dtype))


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_reduction(name: str, dtype: torch.dtype) -> None:
    check_function(REDUCTIONS[name], A.to(dtype))


@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (3, 0)])
def test_reductions_of_small_shapes(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    check_function(lambda x: [x.sum(), x.mean(), x.prod(), x.sum(-1)], x)
    check_function(lambda x: [x.softmax(-1), x * 2, x.any(), x.var(dim=-1, correction=0)], x)


@pytest.mark.parametrize("name", THROUGH_AOT)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_function_that_writes_in_place_inside(name: str, dtype: torch.dtype) -> None:
    function, x = THROUGH_AOT[name], torch.randn(4, 5).to(dtype)
    graphs, result = run_through_aot(function, x)
    check_all(result, function(x), function(x.double()))
    assert graphs[0].externs == set()


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(5,), (4, 5), (2, 5, 3, 2)])
def test_nll_loss_backward(reduction: str, weighted: bool, shape: tuple[int, ...]) -> None:
    """Our own decomposition."""
    x = torch.randn(shape).log_softmax(min(1, len(shape) - 1))
    target_shape = shape[:1] + shape[2:] if len(shape) > 1 else ()
    target = torch.randint(0, 5, target_shape)
    if target.dim():
        target[0] = -100
    weight = torch.rand(5) if weighted else None

    def gradient(x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        w = None if weight is None else weight.to(x.dtype)
        loss = F.nll_loss(x, target, w, reduction=reduction)
        return torch.autograd.grad((loss * loss).sum(), x)[0]

    check_function(gradient, x)


@pytest.mark.parametrize("name", GATHERS)
def test_gather(name: str) -> None:
    check_function(GATHERS[name], A)


def test_two_indices() -> None:
    index = torch.tensor([0, 1])
    check_function(lambda x: x[index, index], A)
    mask = torch.tensor([True, False, True, False])
    check_function(lambda x: x[mask.to(torch.uint8).long(), index[:1]], A)


@pytest.mark.parametrize("name", CREATIONS)
def test_creation(name: str) -> None:
    check_function(CREATIONS[name], A)


@pytest.mark.parametrize("name", BACKWARD)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_backward(name: str, dtype: torch.dtype) -> None:
    """The gradient, of f32 and bf16, without ATen calls where the forward has none."""
    function = BACKWARD[name]

    def gradient(run: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        y = run(x)
        weights = torch.arange(y.numel(), dtype=y.dtype).reshape(y.shape) / y.numel()
        return torch.autograd.grad(y, x, weights)[0]

    x = A.to(dtype)
    graphs: list[Imported] = []
    result = gradient(through_aot(function, graphs), x)
    check_all(result, gradient(function, x), gradient(function, x.double()))
    assert len(graphs) == 2
    assert graphs[1].externs == set()


# -- sizes


def test_dynamic_shapes() -> None:
    """One graph for many sizes; no size is baked in, no guard is added."""

    def function(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [
            (x + y).softmax(-1),
            x[:, 1:] * 2,
            x[:, -2:],
            x.reshape(-1) + 1,
            torch.cat([x, y], 0),
            x.mean(1),
            x.var(0),
            torch.arange(x.shape[1]) * 2,
            x.sum() / x.shape[0],
            x.new_zeros(x.shape[0] + 3) + 1,
            x.view(x.shape[0], 1, x.shape[1]).expand(-1, 2, -1) + 0,
            torch.slice_scatter(x, y[1:], 0, 1),
        ]

    x, y = torch.randn(6, 8), torch.randn(6, 8)
    imported = trace(function, x, y, dynamic=True)
    assert imported.externs == set()
    assert set(imported.builder.symbols) == {"s0", "s1"}
    for shape in [(6, 8), (5, 8), (11, 3)]:
        x, y = torch.randn(shape), torch.randn(shape)
        eager, exact = function(x, y), function(x.double(), y.double())
        check_all(imported(x, y), eager, [_like(r, e) for r, e in zip(exact, eager, strict=True)])


def test_float_of_a_size() -> None:
    imported = trace(lambda x: x / x.shape[0] ** 0.5, torch.randn(6, 8), dynamic=True)
    x = torch.randn(9, 8)
    check_all(imported(x), [x / 3.0])


def test_unbacked_size() -> None:
    """nonzero defines a size; its users see it."""
    imported = trace(lambda x: x.nonzero() + 1, (torch.randn(7) > 0), dynamic=True)
    x = torch.tensor([True, False, True, False, False, False, True])
    check_all(imported(x), [x.nonzero() + 1])
    assert imported.externs == {"aten.nonzero.default"}
    assert "u0" in imported.builder.symbols


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda a, b: a * 2 + b, "20 + 7"),
        (lambda a, b: a // 3, "10 // 3"),
        (lambda a, b: (a + b) % 4, "17 % 4"),
        (lambda a, b: torch.sym_max(a, b), "10"),
        (lambda a, b: torch.sym_min(a, b), "7"),
        (lambda a, b: a * a * b, "700"),
        (lambda a, b: -(-a // 4), "3"),
        (lambda a, b: a >= b, "1"),
        (lambda a, b: a < b, "0"),
        (lambda a, b: torch.sym_not(a == b), "1"),
        (lambda a, b: torch.sym_int(a * 1.7) + torch.sym_int(b / 2), "20"),
        (lambda a, b: math.floor(a * 0.25), "2"),
    ],
)
def test_size_text(build: Any, expected: str) -> None:
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

    shape_env = ShapeEnv()
    symbols = []
    for value, name in ((10, "a"), (7, "b")):
        source = ConstantSource(name)
        symbol = shape_env.create_symbol(value, source, dynamic_dim=DimDynamic.DYNAMIC)
        symbols.append(shape_env.create_symintnode(symbol, hint=value, source=source))
    names: dict[str, Any] = {}
    printer = SizePrinter(lambda name, facts: names.update({name: facts.hint}))
    text = printer.size(build(*symbols))
    functions = {"floordiv": lambda a, b: a // b, "mod": lambda a, b: a % b, "min": min, "max": max}
    assert eval(str(text), functions, names) == eval(expected)
    assert shape_env.guards == []


@pytest.mark.parametrize("number", [0.1, 0.5, 0.8, 1.1, 1.7, 2.5])
def test_ratio_of_a_scaled_size(number: float) -> None:
    """Just below, at and above each product that is a whole number or near one."""
    ratio = ratio_that_rounds_alike(number)
    assert ratio is not None
    for size in [*range(2000), *(2**k + d for k in range(11, 40) for d in range(-12, 12))]:
        assert size * ratio.numerator // ratio.denominator == int(size * number)


def test_no_ratio_where_products_fall_short() -> None:
    assert int(110 * 0.7) == 77 and int(3048751960 * 0.7) == 3048751960 * 7 // 10 - 1
    assert ratio_that_rounds_alike(0.7) is None
    assert ratio_that_rounds_alike(3.141592653589793) is None


# -- externs, outputs, refusals


def _externs(function: Any, *args: Any) -> dict[str, dict[str, Any]]:
    return dict(trace(function, *args).builder.externs)


def test_extern_facts() -> None:
    x = torch.randn(4, 4)
    assert _externs(lambda x: x @ x, x)["aten.mm.default"] == {
        "random": False,
        "effects": False,
        "mutates": [],
        "aliases": False,
    }
    assert _externs(lambda x: torch.poisson(x.abs()), x)["aten.poisson.default"]["random"]
    assert _externs(lambda x: x.as_strided((2,), (1,)), x)["aten.as_strided.default"]["aliases"]


def test_mutation_is_an_extern_that_writes() -> None:
    graphs, _ = run_through_aot(lambda x: x.add_(1).mul(2), torch.randn(5))
    builder = graphs[0].builder
    assert builder.externs == [
        ("aten.copy_.default", {"random": False, "effects": False, "mutates": [0], "aliases": True})
    ]
    x = torch.zeros(5)
    (result,) = graphs[0](x)
    assert torch.equal(x, torch.ones(5))
    assert torch.equal(result, torch.full((5,), 2.0))


def test_custom_op_has_every_effect() -> None:
    library = torch.library.Library("mlcc_test_import", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CPU")
    library.impl("twice", lambda x: torch.empty_like(x), "Meta")
    facts = _externs(lambda x: torch.ops.mlcc_test_import.twice(x), torch.randn(3))
    assert facts["mlcc_test_import.twice.default"]["effects"]
    assert facts["mlcc_test_import.twice.default"]["aliases"]


def test_outputs() -> None:
    """Each distinct node is one output of the graph; None and ints stand beside them."""

    def function(x: torch.Tensor) -> list[Any]:
        y = x + 1
        return [y, None, y, x]

    imported = trace(function, torch.randn(3))
    assert [o.kind for o in imported.graph.outputs] == ["value", "constant", "value", "value"]
    assert len(imported.builder.outputs) == 2
    x = torch.randn(3)
    result = imported(x)
    assert result[0] is result[2]
    assert result[3] is x


def test_strides_of_outputs() -> None:
    x = torch.randn(4, 5)
    for function in (
        lambda x: x.t() + 1,
        lambda x: x.t().clone(),
        lambda x: x.t().contiguous(),
        lambda x: x.t(),
    ):
        (result,) = trace(function, x)(x)
        assert result.stride() == function(x).stride()


def test_constants_are_inputs() -> None:
    constant = torch.tensor([1.0, 2.0, 4.0])
    imported = trace(lambda x: x * constant, torch.randn(3))
    assert len(imported.graph.constants) == 1
    x = torch.randn(3)
    check_all(imported(x), [x * constant])


def test_sources() -> None:
    graphs, _ = run_through_aot(lambda x: torch.exp(x) + 1, torch.randn(5))
    assert all(source.startswith("test_fx_import.py:") for source in graphs[0].builder.sources)
    assert graphs[0].builder.sources


def test_node_counts() -> None:
    graph = trace(lambda x: (x @ x).view(-1).exp(), torch.randn(4, 4)).graph
    assert graph.nodes == {"aten.mm.default": 1, "aten.exp.default": 1}
    assert graph.externs == {"aten.mm.default": 1}


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x.to_sparse(), "layout"),
        (lambda x: x.to("meta"), "device meta"),
    ],
)
def test_graphs_that_run_eagerly(function: Any, reason: str) -> None:
    with pytest.raises(GraphUnsupported, match=reason):
        trace(function, torch.randn(4, 4))


def test_externs_are_logged_once(mlcc_log: Any) -> None:
    fx_graph.forget_logged()
    with mlcc_log("fallback") as lines:
        trace(lambda x: x.sort()[0].sort()[0], torch.randn(4, 4))
        trace(lambda x: x.sort()[0], torch.randn(4, 4))
    assert lines == ["aten.sort.default: ATen call (no rule for this op)"]


def test_expansion_to_a_size_that_is_the_same_by_a_guard() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        even = torch.full(((x.shape[0] + 1) // 2 * 2, 1), 2.0)
        return x[:, None].expand(even.shape[0], 4) * even

    check_function(f, torch.randn(6), dynamic=True)


@pytest.mark.parametrize("rest", [2, 4])
def test_what_guards_on_divisors_say_of_sizes(rest: int, tmp_path: Any) -> None:
    """torch writes the last size of such a view as s1 // (s1 // 4); a number lets loops along it be unrolled."""
    compiled = mlcc.jit(lambda x: x.view(x.shape[0], -1, rest).sum((0, 2)))
    with mlcc.config.patch(dump="graph", dump_dir=str(tmp_path)):
        compiled(torch.randn(5, 3 * rest))
    (text,) = (path.read_text() for path in tmp_path.rglob("*_input.graph"))
    assert f"floordiv(s1, {rest}), {rest}]" in text
    for columns in (3, 7, 2):
        x = torch.randn(4, columns * rest)
        torch.testing.assert_close(compiled(x), x.view(4, -1, rest).sum((0, 2)))
    with pytest.raises(RuntimeError, match="invalid for input of size"):
        compiled(torch.randn(3, 3 * rest + 1))
