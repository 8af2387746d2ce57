"""Draws of random numbers as functions of a counter: Philox under seeds that one call of torch's generator gives.

All draws of a graph take their seeds from one tensor, drawn when the first of them is reached; a draw's element i is
philox(i, its seed). So a draw fuses like any pointwise op, and gives the same numbers under the same state of the
generator, whatever kernel computes it. With the option `fallback_random` all of them are ATen calls.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import Node

from mlcc.importer.context import Context
from mlcc.ir.types import DTYPES, OPMATH, Tensor, Unsupported, device_of

# Bits of a uniform number: as many as eager's kernels give it.
_DIGITS = {"f16": 11, "bf16": 8, "f32": 24, "f64": 53}
# Ranges from here on take a remainder of 63 bits.
_WIDE_RANGE = 1 << 31


class Seeds:
    """The seeds of a graph's draws on one device: an extern at the first draw, two elements for each."""

    def __init__(self, context: Context, device: str, count: int) -> None:
        core = context.builder
        kwargs = [("dtype", core.enum("dtype", "int64")), ("device", core.enum("device", device))]
        low, high = -(1 << 63), (1 << 63) - 1
        (handle,) = core.extern_call(
            "aten.randint.low",
            [low, high, [count]],
            kwargs,
            [],
            [("i64", [count], None, device)],
            random=True,
        )
        self._all = Tensor(handle, "i64")
        self._next = 0

    def next(self, context: Context) -> Tensor:
        """The next seed, a number."""
        seed = context.slice(self._all, 0, self._next, 1)
        self._next += 1
        return context.reshape(seed, [])


def _word(context: Context, node: Node, fake: torch.Tensor) -> Tensor:
    """32 random bits for each element of a tensor like `fake`."""
    if node.kwargs.get("generator") is not None:
        raise Unsupported("a generator of its own")
    return words_under(context, context.next_seed(device_of(fake)), fake)


def words_under(context: Context, seed: Tensor, fake: torch.Tensor) -> Tensor:
    """32 random bits for each element of a tensor like `fake`, under a seed, a 0-d i64 tensor."""
    count = context.size(fake.numel())
    counter = Tensor(context.builder.iota(count, "i64", 0, 1, device_of(fake)), "i64")
    counter = context.reshape(counter, context.shape(fake))
    return context.pointwise("philox", counter, seed, dtype="i32")


def _two_words(context: Context, node: Node, fake: torch.Tensor) -> Tensor:
    """64 random bits for each element, an i64."""
    device = device_of(fake)
    high = context.cast(_word(context, node, fake), "i64")
    low = _unsigned(context, _word(context, node, fake), device)
    shift = context.number(32, "i64", device)
    return context.pointwise("or", context.pointwise("shift_left", high, shift), low)


def _unsigned(context: Context, word: Tensor, device: str) -> Tensor:
    """A word as an i64 that is not negative."""
    mask = context.number((1 << 32) - 1, "i64", device)
    return context.pointwise("and", context.cast(word, "i64"), mask)


def _upper_bits(context: Context, bits: Tensor, digits: int, device: str) -> Tensor:
    """The upper ones of random bits as a number that is not negative."""
    width = 64 if bits.dtype == "i64" else 32
    shift = context.number(width - digits, bits.dtype, device)
    mask = context.number((1 << digits) - 1, bits.dtype, device)
    return context.pointwise("and", context.pointwise("shift_right", bits, shift), mask)


def _uniform(context: Context, node: Node, dtype: str) -> Tensor:
    """Numbers in [0, 1), in the dtype that `dtype` is computed in."""
    fake = node.meta["val"]
    device, wide, digits = device_of(fake), OPMATH.get(dtype, dtype), _DIGITS[dtype]
    bits = (_word if digits <= 32 else _two_words)(context, node, fake)
    number = _upper_bits(context, bits, digits, device)
    unit = context.number(math.ldexp(1.0, -digits), wide, device)
    return context.pointwise("mul", context.cast(number, wide), unit)


def bound_of_words(probability: float) -> int:
    """What 32 random bits, as an i32, stay below with the given probability; with that of 1 but once in 2^32 times."""
    return min(int(math.ldexp(probability, 32)), (1 << 32) - 1) - (1 << 31)


def _is_kept(context: Context, node: Node, fake: torch.Tensor, probability: float) -> Tensor:
    """True with the given probability."""
    device = device_of(fake)
    if probability >= 1:
        return context.expand(context.number(1, "bool", device), context.shape(fake))
    bound = context.number(bound_of_words(probability), "i32", device)
    return context.pointwise("lt", _word(context, node, fake), bound, dtype="bool")


def _float_result(node: Node) -> str:
    dtype = DTYPES[node.meta["val"].dtype]
    if dtype not in _DIGITS:
        raise Unsupported(f"result is {dtype}")
    return dtype


def native_dropout(context: Context, node: Node) -> list[Tensor]:
    """native_dropout(input, p, train): the result and what was kept."""
    bound = context.bind(node)
    probability, is_training = bound["p"], bound["train"]
    if not isinstance(probability, float | int) or not 0 <= probability <= 1:
        raise Unsupported("the probability is no constant between 0 and 1")
    x, fake = context.tensor(bound["input"]), context.fake(bound["input"])
    device = device_of(fake)
    if probability == 0 or is_training is False:
        ones = context.expand(context.number(1, "bool", device), context.shape(fake))
        return [context.copy(x), context.copy(ones)]
    kept = 1 - probability
    mask = _is_kept(context, node, fake, kept)
    wide = OPMATH.get(x.dtype, x.dtype)
    scale = context.number(1 / kept if kept else 0.0, wide, device)
    masked = context.pointwise("mul", context.cast(x, wide), context.cast(mask, wide))
    return [context.cast(context.pointwise("mul", masked, scale), x.dtype), mask]


def bernoulli(context: Context, node: Node) -> Tensor:
    """bernoulli.p: ones with the given probability."""
    bound = context.bind(node)
    probability, fake = bound["p"], node.meta["val"]
    if not isinstance(probability, float | int) or not 0 <= probability <= 1:
        raise Unsupported("the probability is no constant between 0 and 1")
    return context.cast(_is_kept(context, node, fake, probability), DTYPES[fake.dtype])


def rand(context: Context, node: Node) -> Tensor:
    """rand and rand_like."""
    dtype = _float_result(node)
    return context.cast(_uniform(context, node, dtype), dtype)


def uniform(context: Context, node: Node) -> Tensor:
    """uniform(self, from, to)."""
    bound = context.bind(node)
    dtype, device = _float_result(node), device_of(node.meta["val"])
    low, high = bound["from"], bound["to"]
    if not all(isinstance(one, float | int) for one in (low, high)):
        raise Unsupported("bounds are no constants")
    number = _uniform(context, node, dtype)
    span = context.number(high - low, number.dtype, device)
    start = context.number(low, number.dtype, device)
    scaled = context.pointwise("mul", number, span)
    return context.cast(context.pointwise("add", scaled, start), dtype)


def exponential(context: Context, node: Node) -> Tensor:
    """exponential(self, lambd): -log(v) / lambd with v in (0, 1), so that no number is 0."""
    bound = context.bind(node)
    dtype, device = _float_result(node), device_of(node.meta["val"])
    rate = bound["lambd"]
    if dtype == "f64" or not isinstance(rate, float | int) or not rate > 0:
        raise Unsupported(f"{dtype} at a rate of {rate}")
    digits = _DIGITS["f32"] - 1
    word = _word(context, node, node.meta["val"])
    whole = context.cast(_upper_bits(context, word, digits, device), "f32")
    centred = context.pointwise("add", whole, context.number(0.5, "f32", device))
    unit = context.number(math.ldexp(1.0, -digits), "f32", device)
    logarithm = context.pointwise("log", context.pointwise("mul", centred, unit))
    scale = context.number(-1 / rate, "f32", device)
    return context.cast(context.pointwise("mul", logarithm, scale), dtype)


def randint(context: Context, node: Node) -> Tensor:
    """randint, randint_like and what bounds below: the upper bits times the range, or a remainder of 63 bits."""
    bound = context.bind(node)
    fake = node.meta["val"]
    device = device_of(fake)
    low, high = context.fake(bound.get("low", 0)), context.fake(bound["high"])
    if not all(isinstance(one, int | torch.SymInt) for one in (low, high)):
        raise Unsupported("bounds are no integers")
    span = high - low
    if isinstance(span, int) and span <= 0:
        raise Unsupported("an empty range")
    if isinstance(span, int) and span < _WIDE_RANGE:
        half = _unsigned(context, _word(context, node, fake), device)
        product = context.pointwise("mul", half, context.number(span, "i64", device))
        number = context.pointwise("shift_right", product, context.number(32, "i64", device))
    else:
        magnitude = _upper_bits(context, _two_words(context, node, fake), 63, device)
        number = context.pointwise(
            "remainder_integer", magnitude, context.number(span, "i64", device)
        )
    number = context.pointwise("add", number, context.number(low, "i64", device))
    return context.cast(number, DTYPES[fake.dtype])


# Coefficients of erfinv(x) / x in w = -log(1 - x^2), w - 2.5 below 5 and sqrt(w) - 3 above (M. Giles, "Approximating
# the erfinv function", 2010; single precision).
_CENTRAL = (
    2.81022636e-08,
    3.43273939e-07,
    -3.5233877e-06,
    -4.39150654e-06,
    0.00021858087,
    -0.00125372503,
    -0.00417768164,
    0.246640727,
    1.50140941,
)
_TAIL = (
    -0.000200214257,
    0.000100950558,
    0.00134934322,
    -0.00367342844,
    0.00573950773,
    -0.0076224613,
    0.00943887047,
    1.00167406,
    2.83297682,
)
_TAIL_BEGINS = 5.0


def _standard_normal(context: Context, node: Node) -> Tensor:
    """The quantile of the normal distribution, in f32: the tail's probability q from 31 bits, the sign from one."""
    fake = node.meta["val"]
    device = device_of(fake)

    def constant(number: float) -> Tensor:
        return context.number(number, "f32", device)

    word = _word(context, node, fake)
    zero = context.number(0, "i32", device)
    is_negative = context.pointwise("lt", word, zero, dtype="bool")
    mask = context.number((1 << 31) - 1, "i32", device)
    whole = context.cast(context.pointwise("and", word, mask), "f32")
    centred = context.pointwise("add", whole, constant(0.5))
    tail = context.pointwise("mul", centred, constant(math.ldexp(1.0, -32)))
    rest = context.pointwise("sub", constant(1.0), tail)
    square = context.pointwise(
        "mul", context.pointwise("mul", tail, rest), constant(4.0)
    )  # 1 - x^2
    w = context.pointwise("neg", context.pointwise("log", square))
    w = context.pointwise("maximum", w, constant(0.0))
    ratio = context.pointwise(
        "where",
        context.pointwise("lt", w, constant(_TAIL_BEGINS), dtype="bool"),
        _polynomial(context, context.pointwise("sub", w, constant(2.5)), _CENTRAL, device),
        _polynomial(
            context,
            context.pointwise("sub", context.pointwise("sqrt", w), constant(3.0)),
            _TAIL,
            device,
        ),
    )
    x = context.pointwise("sub", rest, tail)
    magnitude = context.pointwise("mul", context.pointwise("mul", ratio, x), constant(2**0.5))
    return context.pointwise("where", is_negative, context.pointwise("neg", magnitude), magnitude)


def _polynomial(
    context: Context, x: Tensor, coefficients: tuple[float, ...], device: str
) -> Tensor:
    result = context.number(coefficients[0], "f32", device)
    for coefficient in coefficients[1:]:  # add_alpha(a, b, c) is fma(b, c, a)
        term = context.number(coefficient, "f32", device)
        result = context.pointwise("add_alpha", term, result, x)
    return result


def randn(context: Context, node: Node) -> Tensor:
    """randn and randn_like."""
    dtype = _float_result(node)
    if dtype == "f64":
        raise Unsupported("normal numbers in f64")
    return context.cast(_standard_normal(context, node), dtype)


def normal(context: Context, node: Node) -> Tensor:
    """normal_functional(self, mean, std)."""
    bound = context.bind(node)
    dtype, device = _float_result(node), device_of(node.meta["val"])
    mean, deviation = bound["mean"], bound["std"]
    if dtype == "f64" or not all(isinstance(one, float | int) for one in (mean, deviation)):
        raise Unsupported("f64, or moments that are no constants")
    scaled = context.pointwise(
        "mul", _standard_normal(context, node), context.number(deviation, "f32", device)
    )
    moved = context.pointwise("add", scaled, context.number(mean, "f32", device))
    return context.cast(moved, dtype)


DRAWS: dict[str, Any] = {
    f"aten.{name}": handler
    for handler, names in {
        native_dropout: "native_dropout.default",
        bernoulli: "bernoulli.p",
        rand: "rand.default rand_like.default",
        randn: "randn.default randn_like.default",
        randint: "randint.default randint.low randint_like.default randint_like.low_dtype",
        uniform: "uniform.default",
        exponential: "exponential.default",
        normal: "normal_functional.default",
    }.items()
    for name in names.split()
}
