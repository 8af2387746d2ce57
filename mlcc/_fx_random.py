"""Draws of random numbers as functions of a counter: Philox under seeds that one call of torch's generator gives.

All draws of a graph take their seeds from one tensor, drawn when the first of them is reached; a draw's element i is
philox(i, its seed). So a draw fuses like any pointwise op, and gives the same numbers under the same state of the
generator, whatever kernel computes it. With the option `fallback_random` all of them are ATen calls.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from mlcc._fx_types import DTYPES, OPMATH, Tensor, Unsupported, device_of

if TYPE_CHECKING:
    from mlcc.fx_import import Importer

# Bits of a uniform number: as many as eager's kernels give it.
_DIGITS = {"f16": 11, "bf16": 8, "f32": 24, "f64": 53}
# Ranges from here on take a remainder of 63 bits.
_WIDE_RANGE = 1 << 31


class Seeds:
    """The seeds of a graph's draws on one device: an extern at the first draw, two elements for each."""

    def __init__(self, importer: Importer, device: str, count: int) -> None:
        core = importer.builder
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

    def next(self, importer: Importer) -> Tensor:
        """The next seed, a number."""
        seed = importer.slice(self._all, 0, self._next, 1)
        self._next += 1
        return importer.reshape(seed, [])


def _word(importer: Importer, node: Node, fake: torch.Tensor) -> Tensor:
    """32 random bits for each element of a tensor like `fake`."""
    if node.kwargs.get("generator") is not None:
        raise Unsupported("a generator of its own")
    return words_under(importer, importer.next_seed(device_of(fake)), fake)


def words_under(importer: Importer, seed: Tensor, fake: torch.Tensor) -> Tensor:
    """32 random bits for each element of a tensor like `fake`, under a seed, a 0-d i64 tensor."""
    count = importer.size(fake.numel())
    counter = Tensor(importer.builder.iota(count, "i64", 0, 1, device_of(fake)), "i64")
    counter = importer.reshape(counter, importer.shape(fake))
    return importer.pointwise("philox", counter, seed, dtype="i32")


def _two_words(importer: Importer, node: Node, fake: torch.Tensor) -> Tensor:
    """64 random bits for each element, an i64."""
    device = device_of(fake)
    high = importer.cast(_word(importer, node, fake), "i64")
    low = _unsigned(importer, _word(importer, node, fake), device)
    shift = importer.number(32, "i64", device)
    return importer.pointwise("or", importer.pointwise("shift_left", high, shift), low)


def _unsigned(importer: Importer, word: Tensor, device: str) -> Tensor:
    """A word as an i64 that is not negative."""
    mask = importer.number((1 << 32) - 1, "i64", device)
    return importer.pointwise("and", importer.cast(word, "i64"), mask)


def _upper_bits(importer: Importer, bits: Tensor, digits: int, device: str) -> Tensor:
    """The upper ones of random bits as a number that is not negative."""
    width = 64 if bits.dtype == "i64" else 32
    shift = importer.number(width - digits, bits.dtype, device)
    mask = importer.number((1 << digits) - 1, bits.dtype, device)
    return importer.pointwise("and", importer.pointwise("shift_right", bits, shift), mask)


def _uniform(importer: Importer, node: Node, dtype: str) -> Tensor:
    """Numbers in [0, 1), in the dtype that `dtype` is computed in."""
    fake = node.meta["val"]
    device, wide, digits = device_of(fake), OPMATH.get(dtype, dtype), _DIGITS[dtype]
    bits = (_word if digits <= 32 else _two_words)(importer, node, fake)
    number = _upper_bits(importer, bits, digits, device)
    unit = importer.number(math.ldexp(1.0, -digits), wide, device)
    return importer.pointwise("mul", importer.cast(number, wide), unit)


def bound_of_words(probability: float) -> int:
    """What 32 random bits, as an i32, stay below with the given probability; with that of 1 but once in 2^32 times."""
    return min(int(math.ldexp(probability, 32)), (1 << 32) - 1) - (1 << 31)


def _is_kept(importer: Importer, node: Node, fake: torch.Tensor, probability: float) -> Tensor:
    """True with the given probability."""
    device = device_of(fake)
    if probability >= 1:
        return importer.expand(importer.number(1, "bool", device), importer.shape(fake))
    bound = importer.number(bound_of_words(probability), "i32", device)
    return importer.pointwise("lt", _word(importer, node, fake), bound, dtype="bool")


def _float_result(node: Node) -> str:
    dtype = DTYPES[node.meta["val"].dtype]
    if dtype not in _DIGITS:
        raise Unsupported(f"result is {dtype}")
    return dtype


def native_dropout(importer: Importer, node: Node) -> list[Tensor]:
    """native_dropout(input, p, train): the result and what was kept."""
    bound = importer.bind(node)
    probability, is_training = bound["p"], bound["train"]
    if not isinstance(probability, float | int) or not 0 <= probability <= 1:
        raise Unsupported("the probability is no constant between 0 and 1")
    x, fake = importer.tensor(bound["input"]), importer.fake(bound["input"])
    device = device_of(fake)
    if probability == 0 or is_training is False:
        ones = importer.expand(importer.number(1, "bool", device), importer.shape(fake))
        return [importer.copy(x), importer.copy(ones)]
    kept = 1 - probability
    mask = _is_kept(importer, node, fake, kept)
    wide = OPMATH.get(x.dtype, x.dtype)
    scale = importer.number(1 / kept if kept else 0.0, wide, device)
    masked = importer.pointwise("mul", importer.cast(x, wide), importer.cast(mask, wide))
    return [importer.cast(importer.pointwise("mul", masked, scale), x.dtype), mask]


def bernoulli(importer: Importer, node: Node) -> Tensor:
    """bernoulli.p: ones with the given probability."""
    bound = importer.bind(node)
    probability, fake = bound["p"], node.meta["val"]
    if not isinstance(probability, float | int) or not 0 <= probability <= 1:
        raise Unsupported("the probability is no constant between 0 and 1")
    return importer.cast(_is_kept(importer, node, fake, probability), DTYPES[fake.dtype])


def rand(importer: Importer, node: Node) -> Tensor:
    """rand and rand_like."""
    dtype = _float_result(node)
    return importer.cast(_uniform(importer, node, dtype), dtype)


def uniform(importer: Importer, node: Node) -> Tensor:
    """uniform(self, from, to)."""
    bound = importer.bind(node)
    dtype, device = _float_result(node), device_of(node.meta["val"])
    low, high = bound["from"], bound["to"]
    if not all(isinstance(one, float | int) for one in (low, high)):
        raise Unsupported("bounds are no constants")
    number = _uniform(importer, node, dtype)
    span = importer.number(high - low, number.dtype, device)
    start = importer.number(low, number.dtype, device)
    scaled = importer.pointwise("mul", number, span)
    return importer.cast(importer.pointwise("add", scaled, start), dtype)


def exponential(importer: Importer, node: Node) -> Tensor:
    """exponential(self, lambd): -log(v) / lambd with v in (0, 1), so that no number is 0."""
    bound = importer.bind(node)
    dtype, device = _float_result(node), device_of(node.meta["val"])
    rate = bound["lambd"]
    if dtype == "f64" or not isinstance(rate, float | int) or not rate > 0:
        raise Unsupported(f"{dtype} at a rate of {rate}")
    digits = _DIGITS["f32"] - 1
    word = _word(importer, node, node.meta["val"])
    whole = importer.cast(_upper_bits(importer, word, digits, device), "f32")
    centred = importer.pointwise("add", whole, importer.number(0.5, "f32", device))
    unit = importer.number(math.ldexp(1.0, -digits), "f32", device)
    logarithm = importer.pointwise("log", importer.pointwise("mul", centred, unit))
    scale = importer.number(-1 / rate, "f32", device)
    return importer.cast(importer.pointwise("mul", logarithm, scale), dtype)


def randint(importer: Importer, node: Node) -> Tensor:
    """randint, randint_like and what bounds below: the upper bits times the range, or a remainder of 63 bits."""
    bound = importer.bind(node)
    fake = node.meta["val"]
    device = device_of(fake)
    low, high = importer.fake(bound.get("low", 0)), importer.fake(bound["high"])
    if not all(isinstance(one, int | torch.SymInt) for one in (low, high)):
        raise Unsupported("bounds are no integers")
    span = high - low
    if isinstance(span, int) and span <= 0:
        raise Unsupported("an empty range")
    if isinstance(span, int) and span < _WIDE_RANGE:
        half = _unsigned(importer, _word(importer, node, fake), device)
        product = importer.pointwise("mul", half, importer.number(span, "i64", device))
        number = importer.pointwise("shift_right", product, importer.number(32, "i64", device))
    else:
        magnitude = _upper_bits(importer, _two_words(importer, node, fake), 63, device)
        number = importer.pointwise(
            "remainder_integer", magnitude, importer.number(span, "i64", device)
        )
    number = importer.pointwise("add", number, importer.number(low, "i64", device))
    return importer.cast(number, DTYPES[fake.dtype])


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


def _standard_normal(importer: Importer, node: Node) -> Tensor:
    """The quantile of the normal distribution, in f32: the tail's probability q from 31 bits, the sign from one."""
    fake = node.meta["val"]
    device = device_of(fake)

    def constant(number: float) -> Tensor:
        return importer.number(number, "f32", device)

    word = _word(importer, node, fake)
    zero = importer.number(0, "i32", device)
    is_negative = importer.pointwise("lt", word, zero, dtype="bool")
    mask = importer.number((1 << 31) - 1, "i32", device)
    whole = importer.cast(importer.pointwise("and", word, mask), "f32")
    centred = importer.pointwise("add", whole, constant(0.5))
    tail = importer.pointwise("mul", centred, constant(math.ldexp(1.0, -32)))
    rest = importer.pointwise("sub", constant(1.0), tail)
    square = importer.pointwise(
        "mul", importer.pointwise("mul", tail, rest), constant(4.0)
    )  # 1 - x^2
    w = importer.pointwise("neg", importer.pointwise("log", square))
    w = importer.pointwise("maximum", w, constant(0.0))
    ratio = importer.pointwise(
        "where",
        importer.pointwise("lt", w, constant(_TAIL_BEGINS), dtype="bool"),
        _polynomial(importer, importer.pointwise("sub", w, constant(2.5)), _CENTRAL, device),
        _polynomial(
            importer,
            importer.pointwise("sub", importer.pointwise("sqrt", w), constant(3.0)),
            _TAIL,
            device,
        ),
    )
    x = importer.pointwise("sub", rest, tail)
    magnitude = importer.pointwise("mul", importer.pointwise("mul", ratio, x), constant(2**0.5))
    return importer.pointwise("where", is_negative, importer.pointwise("neg", magnitude), magnitude)


def _polynomial(
    importer: Importer, x: Tensor, coefficients: tuple[float, ...], device: str
) -> Tensor:
    result = importer.number(coefficients[0], "f32", device)
    for coefficient in coefficients[1:]:  # add_alpha(a, b, c) is fma(b, c, a)
        term = importer.number(coefficient, "f32", device)
        result = importer.pointwise("add_alpha", term, result, x)
    return result


def randn(importer: Importer, node: Node) -> Tensor:
    """randn and randn_like."""
    dtype = _float_result(node)
    if dtype == "f64":
        raise Unsupported("normal numbers in f64")
    return importer.cast(_standard_normal(importer, node), dtype)


def normal(importer: Importer, node: Node) -> Tensor:
    """normal_functional(self, mean, std)."""
    bound = importer.bind(node)
    dtype, device = _float_result(node), device_of(node.meta["val"])
    mean, deviation = bound["mean"], bound["std"]
    if dtype == "f64" or not all(isinstance(one, float | int) for one in (mean, deviation)):
        raise Unsupported("f64, or moments that are no constants")
    scaled = importer.pointwise(
        "mul", _standard_normal(importer, node), importer.number(deviation, "f32", device)
    )
    moved = importer.pointwise("add", scaled, importer.number(mean, "f32", device))
    return importer.cast(moved, dtype)


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
