"""What a function does beside computing: effects in order, modes of torch, special tensors, special numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F

import mlcc
from tests.python.behaviour import check_as_eager, compiled, jitted, seen

WAYS = pytest.mark.parametrize("way", [compiled, jitted])


# -- lazy bits


def negative() -> torch.Tensor:
    """A view with the negative bit."""
    x = torch.complex(torch.randn(3, 4), torch.randn(3, 4)).conj().imag
    assert x.is_neg()
    return x


BITS: dict[str, tuple[Callable[..., Any], Callable[[], list[torch.Tensor]]]] = {
    "an argument with the negative bit": (lambda x: x.exp() + x, lambda: [negative()]),
    "a view of one": (lambda x: (x.t(), x[1] * 2), lambda: [negative()]),
    "a write to one": (lambda x: x.mul_(2).add_(1), lambda: [negative()]),
    "zeros that have no memory": (
        lambda x, y: (x + 1, (x.t() * y).sum(0)),
        lambda: [torch._efficientzerotensor(3, 4), torch.randn(4, 1)],
    ),
    "zeros that have no memory beside what is written": (
        lambda x, y: y.add_(x).exp(),
        lambda: [torch._efficientzerotensor(3), torch.randn(3)],
    ),
    "two": (lambda x, y: x @ y.t(), lambda: [negative(), negative()]),
    "one that arises inside": (
        lambda x: x.conj().imag * 2,
        lambda: [torch.complex(torch.randn(3), torch.randn(3))],
    ),
    "a conjugate": (
        lambda x: x * 2,
        lambda: [torch.complex(torch.randn(3), torch.randn(3)).conj()],
    ),
    "a conjugate inside": (
        lambda x: (x.conj() @ x.t()).real + 1,
        lambda: [torch.complex(torch.randn(2, 3), torch.randn(2, 3))],
    ),
    "a conjugate is written": (
        lambda x: x.mul_(2),
        lambda: [torch.complex(torch.randn(3), torch.randn(3)).conj()],
    ),
}


@WAYS
@pytest.mark.parametrize("name", BITS)
def test_lazy_bits(name: str, way: Callable[..., Any]) -> None:
    function, make = BITS[name]
    check_as_eager(function, way(function), make)


# -- special numbers and roundings


def of(*numbers: float, dtype: torch.dtype = torch.float32) -> Callable[[], list[torch.Tensor]]:
    return lambda: [torch.tensor(numbers, dtype=dtype)]


NUMBERS: dict[str, tuple[Callable[..., Any], Callable[[], list[torch.Tensor]]]] = {
    "softshrink": (lambda x: F.softshrink(x), of(torch.nan, torch.inf, -torch.inf, 0.2, -0.5, 0.7)),
    "hardshrink": (lambda x: F.hardshrink(x), of(torch.nan, torch.inf, -torch.inf, 0.2, -0.5, 0.7)),
    "acosh": (
        lambda x: x.acosh(),
        of(1.8e308, 1.7e308, 1e200, 1.0, 0.5, torch.nan, dtype=torch.float64),
    ),
    "asinh": (
        lambda x: x.asinh(),
        of(1.7e308, -1e200, 1e-310, -0.0, torch.inf, dtype=torch.float64),
    ),
    "remainder": (
        lambda x: [
            x.remainder(torch.inf),
            x.remainder(-torch.inf),
            x % 3,
            torch.fmod(x, torch.inf),
        ],
        of(0.0, -0.0, 5.0, -5.0, torch.inf, torch.nan),
    ),
    "floor_divide": (
        lambda x: [x // 1e-38, x // 0.0, x // torch.inf, torch.div(x, 0.1, rounding_mode="trunc")],
        of(torch.inf, -torch.inf, 0.0, 1.0, -1.0, torch.nan),
    ),
    "power": (
        lambda x: [x**0, x**0.5, x**-1, 1**x, x**x, 0**x],
        of(0.0, -0.0, torch.inf, -torch.inf, torch.nan, 2.0),
    ),
    "extremes": (
        lambda x: [
            x.clamp(-1, 1),
            x.clamp(min=torch.nan),
            x.maximum(x.flip(0)),
            torch.fmax(x, x * torch.nan),
        ],
        of(torch.nan, 1.0, -torch.inf, torch.inf, 0.5),
    ),
    "signs of zero": (
        lambda x: [
            x * -1,
            x.abs(),
            x.round(),
            x.copysign(x - 1),
            1 / x,
            x.sign(),
            torch.signbit(x),
        ],
        of(0.0, -0.0, 0.4, -0.4),
    ),
    "an explicit cast to float16 rounds": (
        lambda x: [(x.half().float() - x) * 1e6, (x.half() + 1).float() - 1, x.half().double()],
        of(0.1, 1 / 3, 65519.0, 65520.0, 1e-8, 3e-8, 2049.0),
    ),
    "an explicit cast to bfloat16 rounds": (
        lambda x: [(x.bfloat16().float() - x) * 1e4, (x.bfloat16() * 3).float() / 3],
        of(0.1, 1 / 3, 257.0, 3.4e38, 1e-40, torch.nan),
    ),
    "a cast to float rounds between doubles": (
        lambda x: [x.float().double() - x, (x + 1e-9).float() == x.float()],
        of(0.1, 1 / 3, 1e300, dtype=torch.float64),
    ),
    "denormal numbers": (
        lambda x: [x * 0.5, x + x, x.sqrt(), x > 0],
        of(1e-40, 1.4e-45, -1e-39, 1.2e-38),
    ),
    "integers wrap": (
        lambda x: [x + x, x * x, -x, x.abs(), x << 1],
        of(2**31 - 1, -(2**31), 12345678, dtype=torch.int32),
    ),
    "integer division": (
        lambda x: [
            x // -3,
            x % -3,
            torch.div(x, 4, rounding_mode="trunc"),
            torch.fmod(x, 3),
            x / 2,
        ],
        of(7, -7, 0, 2**62, -(2**63), dtype=torch.int64),
    ),
    "int8": (
        lambda x: [x + 100, x * 2, ~x, x >> 1, x.sum()],
        of(100, -100, 127, -128, dtype=torch.int8),
    ),
    "log and log1p": (
        lambda x: [x.log(), x.log1p(), x.log2(), x.rsqrt()],
        of(0.0, -0.0, -1.0, 1e-45, torch.inf, torch.nan),
    ),
    "softmax of infinities": (
        lambda x: [x.view(2, 3).softmax(1), x.view(2, 3).logsumexp(1)],
        of(-torch.inf, -torch.inf, -torch.inf, torch.inf, 1.0, 2.0),
    ),
    "reductions of NaN": (
        lambda x: [x.amax(), x.amin(), x.argmax(), x.sum(), x.nansum(), x.median(), x.sort()[0]],
        of(1.0, torch.nan, -torch.inf, 3.0),
    ),
}


@WAYS
@pytest.mark.parametrize("name", NUMBERS)
def test_special_numbers(name: str, way: Callable[..., Any]) -> None:
    """NaN, infinities, signed zeros and roundings as eager has them; no bit of an exact result differs."""
    function, make = NUMBERS[name]
    check_as_eager(function, way(function), make)


# -- random numbers


def noisy(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(x + torch.rand_like(x), 0.3) + torch.randn(3)


@WAYS
def test_seeds(way: Callable[..., Any]) -> None:
    """A seed gives the same numbers again; without one they differ; others draw no less than before."""
    run, x = way(noisy), torch.ones(5, 3)
    run(x)
    torch.manual_seed(7)
    first, second = run(x), run(x)
    torch.manual_seed(7)
    assert torch.equal(first, run(x))
    assert not torch.equal(first, second)
    state = torch.get_rng_state()
    third = run(x)
    assert not torch.equal(state, torch.get_rng_state())
    torch.set_rng_state(state)
    assert torch.equal(third, run(x))
    with torch.random.fork_rng():
        run(x)
    assert torch.equal(torch.get_rng_state(), torch.get_rng_state())


def test_a_generator_outside_of_the_default_one() -> None:
    """Drawn by eager at a graph break, and its state moves on."""
    generator = torch.Generator()

    def function(x: torch.Tensor) -> torch.Tensor:
        return x * torch.rand(3, generator=generator)

    run, x = compiled(function), torch.ones(3)
    generator.manual_seed(3)
    expected = [function(x), function(x)]
    generator.manual_seed(3)
    assert torch.equal(run(x), expected[0])
    assert torch.equal(run(x), expected[1])


# -- deterministic algorithms


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@WAYS
@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.bool])
def test_memory_without_values_is_filled(way: Callable[..., Any], dtype: torch.dtype) -> None:
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        return [torch.empty(3, dtype=dtype), torch.empty_like(x).to(torch.float64), x.new_empty(2)]

    x = torch.zeros(2, dtype=dtype)
    torch.testing.assert_close(way(function)(x), function(x), equal_nan=True)


@WAYS
@pytest.mark.usefixtures("deterministic")
def test_what_has_no_deterministic_algorithm(way: Callable[..., Any]) -> None:
    with pytest.raises(RuntimeError, match="put_ does not have a deterministic implementation"):
        way(lambda x, i: x.put(i, x[:2]))(torch.randn(3), torch.tensor([2, 0]))


@WAYS
@pytest.mark.usefixtures("deterministic")
def test_deterministic_algorithms(way: Callable[..., Any]) -> None:
    """The same bits each time and with any number of threads; what eager refuses is refused."""

    def function(x: torch.Tensor, i: torch.Tensor) -> list[torch.Tensor]:
        zeros = torch.zeros(7, dtype=x.dtype)
        return [
            zeros.scatter_add(0, i, x),
            zeros.index_add(0, i, x),
            zeros.index_put((i,), x, accumulate=True),
            x.cumsum(0),
            torch.empty(3).fill_(1),
        ]

    x, i = torch.randn(4001), torch.randint(0, 7, (4001,))
    run = way(function)
    first = run(x, i)
    torch.testing.assert_close(first, function(x, i))
    threads = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            for one, two in zip(first, run(x, i), strict=True):
                assert torch.equal(one, two)
    finally:
        torch.set_num_threads(threads)


# -- effects and graph breaks

TRACE: list[str] = []


@torch.library.custom_op("mlcc_tests::note", mutates_args=())
def note(x: torch.Tensor, text: str) -> torch.Tensor:
    """Writes down that it ran."""
    TRACE.append(f"{text} {x.sum().item():g}")
    return x + 1


@note.register_fake
def _(x: torch.Tensor, text: str) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("mlcc_tests::scale_", mutates_args=("x",))
def scale_(x: torch.Tensor, factor: float) -> None:
    """Writes into its argument."""
    x.mul_(factor)


def test_custom_ops_run_in_order() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = note(x, "first")
        z = note(y * 2, "second")
        scale_(z, 3.0)
        return note(z, "third") + y

    expected, order = function(torch.ones(3)), list(TRACE)
    run = compiled(function)
    for _ in range(2):
        TRACE.clear()
        torch.testing.assert_close(run(torch.ones(3)), expected)
        assert order == TRACE
    TRACE.clear()


@torch.library.custom_op("mlcc_tests::cubed", mutates_args=())
def cubed(x: torch.Tensor) -> torch.Tensor:
    """With a derivative of its own."""
    return x**3


cubed.register_fake(torch.empty_like)
cubed.register_autograd(
    lambda ctx, gradient: gradient * 3 * ctx.saved_tensors[0] ** 2,
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)


def test_a_custom_op_with_a_derivative() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return cubed(x * 2).exp().sum()

    x = torch.randn(4, requires_grad=True)
    (expected,) = torch.autograd.grad(function(x), x)
    (found,) = torch.autograd.grad(compiled(function)(x), x)
    torch.testing.assert_close(found, expected)


def test_graph_breaks() -> None:
    """Python's effects happen once per call, in order, and later graphs see earlier writes."""
    said: list[str] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        said.append("one")
        torch._dynamo.graph_break()
        y = x * 2
        if y.sum() > 0:
            said.append("positive")
            y = y - 1
        else:
            said.append("negative")
        x.zero_()
        torch._dynamo.graph_break()
        return y + x

    run = compiled(function)
    for start in (3.0, -3.0, 5.0):
        a, b = torch.full((4,), start), torch.full((4,), start)
        expected, eagers = function(a), list(said)
        said.clear()
        torch.testing.assert_close(run(b), expected)
        assert said == eagers
        said.clear()
        assert torch.equal(a, b)


def test_python_state_around_a_graph() -> None:
    class Counter:
        count = 0

    counter = Counter()
    kept: dict[str, torch.Tensor] = {}

    def function(x: torch.Tensor, items: list[torch.Tensor]) -> torch.Tensor:
        counter.count += 1
        items.append(x * 2)
        kept["last"] = x.exp()
        return sum(items)

    run = compiled(function)
    x, items = torch.randn(3), [torch.ones(3)]
    result = run(x, items)
    torch.testing.assert_close(result, 1 + x * 2)
    assert counter.count == 1
    assert len(items) == 2
    torch.testing.assert_close(kept["last"], x.exp())


def test_generators_and_exceptions() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        total = x * 0
        for value in (x * k for k in range(3)):
            total = total + value
        try:
            total = total + {"a": x}["b"]
        except KeyError:
            total = total - 1
        return total

    check_as_eager(function, compiled(function), lambda: [torch.randn(3)])


# -- tensors of other kinds in the neighbourhood


def test_sparse_tensors() -> None:
    def function(x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return (s @ x.exp()) * 2

    s = torch.eye(3).to_sparse()
    x = torch.randn(3, 4)
    torch.testing.assert_close(compiled(function)(x, s), function(x, s))
    torch.testing.assert_close(jitted(function)(x, s), function(x, s))


def test_sparse_inside() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x.relu().to_sparse() @ x.t()).exp()

    x = torch.randn(3, 4)
    torch.testing.assert_close(compiled(function)(x), function(x))
    torch.testing.assert_close(jitted(function)(x), function(x))


def test_nested_tensors() -> None:
    def function(n: torch.Tensor) -> torch.Tensor:
        return (n * 2).sin()

    parts = [torch.randn(2, 3), torch.randn(4, 3)]
    n = torch.nested.nested_tensor(parts, layout=torch.jagged)
    for run in (compiled(function), jitted(function)):
        for found, part in zip(run(n).unbind(), parts, strict=True):
            torch.testing.assert_close(found, (part * 2).sin())


@pytest.mark.filterwarnings("ignore")
def test_quantized_tensors() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        q = torch.quantize_per_tensor(x.exp(), 0.1, 0, torch.quint8)
        return q.dequantize() * 2

    x = torch.randn(3, 4)
    torch.testing.assert_close(compiled(function)(x), function(x))
    torch.testing.assert_close(jitted(function)(x), function(x))


def test_fake_quantization() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.fake_quantize_per_tensor_affine(x * 2, 0.1, 0, -128, 127).exp()

    check_as_eager(function, compiled(function), lambda: [torch.randn(3, 4)])


class Tagged(torch.Tensor):
    """A subclass without behaviour of its own."""


class Logged(torch.Tensor):
    """A subclass that sees each function."""

    seen: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(getattr(func, "__name__", ""))
        return super().__torch_function__(func, types, args, kwargs or {})


@WAYS
def test_subclasses(way: Callable[..., Any]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).exp()

    run = way(function)
    for kind in (Tagged, torch.nn.Parameter):
        x = torch.randn(3).as_subclass(kind) if kind is Tagged else kind(torch.randn(3))
        found, expected = run(x), function(x)
        assert type(found) is type(expected)
        torch.testing.assert_close(found, expected)
    x = torch.randn(3).as_subclass(Logged)
    assert type(jitted(function)(x)) is Logged
    assert "exp" in Logged.seen


def test_two_tensors_in_one() -> None:
    """A traceable wrapper subclass: AOTAutograd takes it apart."""
    from torch.testing._internal.two_tensor import TwoTensor

    def function(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).sin() + 1

    x = TwoTensor(torch.randn(3), torch.randn(3))
    found, expected = compiled(function)(x), function(x)
    torch.testing.assert_close(found.a, expected.a)
    torch.testing.assert_close(found.b, expected.b)


@WAYS
def test_tensors_without_elements_and_without_dimensions(way: Callable[..., Any]) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [x * y, x.sum(), torch.cat([x, x]), y.exp(), x + 1, x.reshape(-1)]

    for shape in ((0,), (0, 3), (3, 0), (1,), (1, 1)):
        check_as_eager(function, way(function), lambda: [torch.randn(shape), torch.tensor(2.0)])


# -- modes of torch


@WAYS
def test_default_dtype(way: Callable[..., Any]) -> None:
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        return [torch.ones(3) * 0.1 + x, x / 2, torch.arange(3) / 3, torch.tensor(0.5) + x]

    run = way(function)
    try:
        for dtype in (torch.float32, torch.float64, torch.float32):
            torch.set_default_dtype(dtype)
            x = torch.tensor([1, 2, 3])
            for ours, eagers in zip(run(x), function(x), strict=True):
                torch.testing.assert_close(ours, eagers)
    finally:
        torch.set_default_dtype(torch.float32)


@WAYS
def test_autocast_inside_and_outside(way: Callable[..., Any]) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ w
        with torch.autocast("cpu", enabled=False):
            z = x @ w
        return [y, z, x @ w]

    run = way(function)
    x, w = torch.randn(4, 8), torch.randn(8, 3)
    for enabled in (False, True, False):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            for ours, eagers in zip(run(x, w), function(x, w), strict=True):
                torch.testing.assert_close(ours, eagers)


@WAYS
def test_dispatch_modes_see_the_ops(way: Callable[..., Any]) -> None:
    """A mode around a call is as if nothing were compiled, or sees the compiled call's result."""
    from torch.utils.flop_counter import FlopCounterMode

    def function(x: torch.Tensor) -> torch.Tensor:
        return (x @ x).exp()

    run, x = way(function), torch.randn(4, 4)
    run(x)
    with FlopCounterMode(display=False) as counter:
        found = run(x)
    torch.testing.assert_close(found, function(x))
    assert counter.get_total_flops() == 2 * 4**3


def test_meta_and_fake_tensors() -> None:
    """jit runs the original for tensors without memory."""
    run = mlcc.jit(lambda x: x.exp() * 2)
    run(torch.randn(3, 4))
    assert run(torch.empty(3, 4, device="meta")).device.type == "meta"
    with torch._subclasses.FakeTensorMode() as mode:
        assert run(mode.from_tensor(torch.randn(3, 4))).shape == (3, 4)


def test_what_is_seen_differs() -> None:
    """The comparison that these tests rest on notices strides, sharing and writes."""
    make = lambda: [torch.ones(2, 2)]  # noqa: E731
    with pytest.raises(AssertionError):
        check_as_eager(lambda x: x.t(), lambda x: x.t().clone(), make)
    with pytest.raises(AssertionError):
        check_as_eager(lambda x: x.add_(1), lambda x: x + 1, make)
    assert len(seen(lambda x: [x, 3], make)) == 3
