"""What programs under `mlcc.jit` are told that ask a size or a number what it is: what eager tells them."""

from __future__ import annotations

import copy
import enum
import functools
import importlib
import json
import math
import numbers
import operator
import struct
import threading
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mlcc
from mlcc.capture import trace_symbols
from tests.python.test_jit import found_in_core

Answer = Callable[[torch.Tensor, Any, Any], Any]
CALLS: list[tuple[int, float, int]] = [  # (rows of x, k, n)
    *((4, 3.0, 5), (5, 2.5, 4), (4, 3.5, 5), (6, 3.0, 5), (6, 0.1 + 0.2, 5)),
    *((6, -0.0, 5), (6, 0.0, 5), (4, math.inf, 1), (4, 3.0, 5)),
]


@functools.singledispatch
def _named(value: Any) -> int:
    return 100


@_named.register
def _(value: int) -> int:
    return 1


@_named.register
def _(value: float) -> int:
    return 2


def _matched(k: Any) -> int:
    match k:
        case int():
            return 1
        case float():
            return 2
    return 3


def _typed(*values: Any) -> list[type]:
    return [type(value) for value in values]


def _aliased(k: Any) -> Any:
    kind = type
    return kind(k)


# What has one answer for all values, which takes no value from the trace.
KINDS: dict[str, Answer] = {
    "isinstance": lambda x, k, n: isinstance(k, float) and isinstance(n, int),
    "isinstance of a size": lambda x, k, n: isinstance(x.shape[0], int),
    "isinstance of sizes": lambda x, k, n: all(isinstance(s, int) for s in x.stride()),
    "isinstance of numel": lambda x, k, n: isinstance(x.numel(), int) and isinstance(x.dim(), int),
    "isinstance, not bool": lambda x, k, n: isinstance(n, bool) or isinstance(k, (int, bool)),
    "numbers": lambda x, k, n: isinstance(k, numbers.Real) and isinstance(n, numbers.Integral),
    "match": lambda x, k, n: _matched(k) * 10 + _matched(n) * 100 + _matched(x.shape[0]),
    "singledispatch": lambda x, k, n: _named(k) * 10 + _named(n),
    "type": lambda x, k, n: type(k) is float and type(n) is int and type(x.shape[1]) in (int,),
    "type of what is computed": lambda x, k, n: (
        type(n + 1.0) is float and type(n / 2) is float and type(-n) is int and type(n**2) is int
    ),
    "type in a comprehension": lambda x, k, n: _typed(k, n, x) == [float, int, torch.Tensor],
    "type, name": lambda x, k, n: len(type(k).__name__) * 10 + len(type(x.shape[0]).__name__),
    "type as a class": lambda x, k, n: isinstance(float, type) and not isinstance(k, type),
    "type, three arguments": lambda x, k, n: type("Made", (), {}).__module__ == __name__,
    "__class__": lambda x, k, n: k.__class__ is float and n.__class__.__name__ == "int",
    "is_tensor": lambda x, k, n: torch.is_tensor(k) or torch.is_tensor(x.shape[0]),
    "None and text": lambda x, k, n: k is None or k == "a" or n == "5" or n is None,
    "copy": lambda x, k, n: isinstance(copy.copy(k), float) and copy.deepcopy([n])[0] == n,
    "arguments of torch": lambda x, k, n: x.new_full((2,), n).sum() + torch.full((2,), k).sum(),
}

# What depends on the value: right, and traced again for another one.
VALUES: dict[str, Answer] = {
    "format": lambda x, k, n: f"{k} {n} {x.shape[0]} {k!r} {n:03d} {k:.2f}",
    "str": lambda x, k, n: str(k) + repr(n) + str(x.shape) + str([k, n]) + str({"k": k}),
    "percent": lambda x, k, n: "%s %d %.3e %x" % (k, n, n, n),  # noqa: UP031
    "str.format": lambda x, k, n: "{} {!r:>5}".format(k, n),  # noqa: UP032
    "join": lambda x, k, n: "x".join(map(str, x.shape)),
    "text of what is computed": lambda x, k, n: f"{k * 0.1} {n / 2} {n * 0.1 + 0.2}",
    "json": lambda x, k, n: json.dumps({"k": k, "n": n, "s": list(x.shape)}),
    "dict": lambda x, k, n: {3.0: 1, 2.5: 2}.get(k, 7) * 10 + {5: 3}.get(n, 9),
    "dict of shapes": lambda x, k, n: {(4, 3): 1}.get(tuple(x.shape), 7),
    "set and list": lambda x, k, n: (k in {3.0, 2.5}) + 2 * (n in {4, 6}) + 4 * (n in (1, 4)),
    "hash": lambda x, k, n: hash(k) == hash(3.0) and hash(n) == 5,
    "range, index": lambda x, k, n: sum(range(n)) + operator.index(n) + [1, 2, 3, 4, 5, 6][n],
    "bool": lambda x, k, n: bool(k) + 2 * (not n - 5),
    "comparisons": lambda x, k, n: f"{n > 4} {type(n > 4) is bool} {(n > 4) is True} {(k > 2) + 1}",
    "comparison of what is rounded": lambda x, k, n: k * 0.1 > 0.3,
    "is_integer": lambda x, k, n: k.is_integer(),
    "of ints": lambda x, k, n: (n.bit_length(), n.real, n.denominator, n.to_bytes(2, "big")[1]),
    "of floats": lambda x, k, n: (k.hex(), k.real, k.imag),
    "divmod": lambda x, k, n: (*divmod(n, 3), *divmod(7, n), *divmod(n, -3)),
    "bits": lambda x, k, n: (n << 1, n >> 1, n & 3, n | 8, n ^ 1, ~n, 1 << n, +n),
    "negative": lambda x, k, n: (-n // 2, -n % 3, n // -2, n**-1, 2**n, n**2, n**0.5),
    "round": lambda x, k, n: (round(n / 3), round(k, 1) if k < 9 else 0),
    "rounding": lambda x, k, n: (
        *((math.floor(k), math.ceil(k * 2), math.trunc(k), round(k)) if k < 9 else ()),
        *((k // 2, k % 2, 7.5 % (k + 1), int(n * 0.7), math.ceil(n * 0.3)) if k < 9 else ()),
    ),
    "math": lambda x, k, n: (math.sqrt(n), math.isnan(k), math.copysign(1, k), math.gcd(n, 10)),
    "int and float": lambda x, k, n: (float(n), float(k), int(n / 2), int(min(k, 7.5))),
    "fractions": lambda x, k, n: float(Fraction(n, 3)),
    "decimal": lambda x, k, n: float(Decimal(k)) + float(Decimal(n)),
    "struct": lambda x, k, n: struct.pack("d", k)[6] + struct.pack("i", n)[0],
    "numpy": lambda x, k, n: (
        float(np.float32(k)),
        int(np.int64(n)),
        float(np.array([k, n]).max()),
        int(np.prod(x.shape)),
        np.array(n).dtype.kind,
        np.asarray(x.shape).dtype.kind,
        np.isscalar(k),
    ),
    "complex": lambda x, k, n: ((k + 1j).imag, complex(n, 1).real),
    "type by another name": lambda x, k, n: (
        list(map(type, (k, n))) == [float, int] and _aliased(k) is float
    ),
    "dtypes": lambda x, k, n: (
        torch.tensor([1.0 * n]).dtype == torch.float32
        and (torch.tensor(n).dtype == torch.arange(n).dtype == torch.int64)
    ),
}


def _texts(answer: Any) -> list[str]:
    """By which 1, 1.0, True and -0.0 differ."""
    if isinstance(answer, torch.Tensor):
        return [str(answer.dtype), *map(repr, answer.flatten().tolist())]
    return [repr(one) for one in (answer if isinstance(answer, tuple) else (answer,))]


def _compare(answer: Answer, compiled: Any) -> None:
    for rows, k, n in CALLS:
        x = torch.arange(1.0, 3.0 * rows + 1).reshape(rows, 3)
        product, found = compiled(x, k, n)
        torch.testing.assert_close(product, x * k + n)
        assert _texts(found) == _texts(answer(x, k, n)), (rows, k, n)


@pytest.mark.parametrize("name", KINDS)
def test_kinds_of_numbers(name: str) -> None:
    """One trace answers for all values but zeros and infinities, which are constants, and the core finds it."""
    answer = KINDS[name]
    compiled = mlcc.jit(lambda x, k, n: (x * k + n, answer(x, k, n)))
    _compare(answer, compiled)
    assert compiled._traces == 4
    assert found_in_core(compiled, torch.ones(7, 3), 1.5, 9)


@pytest.mark.parametrize("name", VALUES)
def test_values_of_numbers(name: str) -> None:
    """What depends on the value is what eager says of each."""
    answer = VALUES[name]
    compiled = mlcc.jit(lambda x, k, n: (x * k + n, answer(x, k, n)))
    _compare(answer, compiled)
    before = compiled._traces
    _compare(answer, compiled)
    assert compiled._traces == before


def test_a_comparison_as_an_argument_is_a_guard(mlcc_log: Any) -> None:
    """Functions of torch take bools only, whatever an argument of theirs is called with."""
    before = {name: vars(torch.SymInt).get(name) for name in ("__gt__", "__eq__", "__class__")}

    def f(x: torch.Tensor) -> torch.Tensor:
        return x.sum(1, keepdim=x.shape[0] > 3)

    compiled = mlcc.jit(f)
    with mlcc_log("fallback") as left, mlcc_log("recompiles") as recompiled:
        for size in (2, 3, 4, 9):
            x = torch.randn(size, 5)
            torch.testing.assert_close(compiled(x), f(x))
    assert left == [] and len(recompiled) == 1
    assert before == {name: vars(torch.SymInt).get(name) for name in before}


def _with_data(x: torch.Tensor) -> tuple[torch.Tensor, bool]:
    found = x.nonzero()
    return x.sum(1, keepdim=x.shape[0] > 3), found.shape[0] == 0


def _with_check(x: torch.Tensor) -> torch.Tensor:
    found = x.nonzero()
    torch._check(found.shape[0] >= 2)
    return x[found[:, 0]].sum(1, keepdim=x.shape[0] > 3)


def _of_data(x: torch.Tensor) -> torch.Tensor:
    return x.sum(1, keepdim=x.nonzero().shape[0] > 3)


@pytest.mark.parametrize("function", [_with_data, _with_check, _of_data])
def test_what_data_tell_is_not_decided(
    function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be traced runs eagerly, as without the comparison."""
    monkeypatch.setenv("MLCC_STRICT", "0")
    x = torch.randn(5, 4).abs()
    torch.testing.assert_close(mlcc.jit(function)(x), function(x))


def test_a_type_that_data_tell() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, bool]:
        count = x.nonzero().shape[0]
        return x * 2, type(count) is int and isinstance(count, int)

    assert mlcc.jit(f)(torch.ones(3))[1]


def test_other_threads_are_answered_as_ever() -> None:
    """While one thread's symbols answer as numbers, those of others are what torch makes of them."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    def ask() -> None:
        symbol = ShapeEnv().create_unbacked_symint()
        found.append((type(symbol > 3), isinstance(symbol, int), symbol.__class__))

    found: list[Any] = []
    with trace_symbols.Symbols({}, lambda leaf: False).answering():
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
    assert found == [(torch.SymBool, False, torch.SymInt)]


def test_the_name_type_is_left_alone() -> None:
    """For the load of the name something else stands in the globals of a program; never afterwards."""

    def f(x: torch.Tensor, k: float) -> torch.Tensor:
        if type(k) is not float:
            raise TypeError
        return x.reshape(-1, 4) * k

    compiled = mlcc.jit(f)
    with pytest.raises(RuntimeError, match="shape"):
        compiled(torch.ones(3), 2.0)
    assert "type" not in globals()
    torch.testing.assert_close(compiled(torch.ones(4), 2.0), torch.full((1, 4), 2.0))
    assert "type" not in globals()


def test_a_program_that_catches_everything() -> None:
    """What ends a trace that needs a constant cannot be kept from it."""

    def f(x: torch.Tensor, k: float) -> torch.Tensor:
        try:
            text = f"{k}"
        except BaseException:
            text = "caught"
        return x + len(text)

    compiled = mlcc.jit(f)
    for k in (2.0, 0.125, 0.1 + 0.2):
        torch.testing.assert_close(compiled(torch.zeros(3), k), f(torch.zeros(3), k))


def test_gradients_ask_too() -> None:
    """The backward function of a program runs when no frame of the forward one does."""

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, k: float) -> torch.Tensor:
            ctx.k = k
            return x * k

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            return gradient * (2 if isinstance(ctx.k, float) else 3), None

    x = torch.ones(3, requires_grad=True)
    mlcc.jit(lambda x, k: Scaled.apply(x, k))(x, 2.5).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2.0] * 3


PACKAGE = """
import functools

@functools.lru_cache
def kept(shape):
    return [shape[0], 2, shape[1] // 2]

def split(x):
    try:
        shape = kept(x.shape)
    except TypeError:
        shape = kept.__wrapped__(x.shape)
    if type(shape[0]) is not int or not isinstance(shape[2], int):
        raise ValueError
    return x.reshape(shape)
"""


def test_packages_that_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """einops keeps recipes by sizes, and does without where sizes have no hash: they stay symbols."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "package_that_asks.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(str(folder))
    package = importlib.import_module("package_that_asks")
    compiled = mlcc.jit(lambda x: package.split(x) * 2)
    for rows in (3, 5, 7):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(compiled(x), x.reshape(rows, 2, 4) * 2)
    assert compiled._traces == 1


def test_scalars_of_distributions() -> None:
    def f(x: torch.Tensor, k: float) -> torch.Tensor:
        return torch.distributions.Normal(0.0, k, validate_args=False).log_prob(x)

    compiled = mlcc.jit(f)
    for k in (1.0, 2.5):
        x = torch.randn(5)
        torch.testing.assert_close(compiled(x, k), f(x, k))


def test_what_is_computed_from_floats_is_in_kernels(mlcc_log: Any) -> None:
    """Absolute values and powers of symbols had no counterpart: the graph ran eagerly."""
    programs: list[Callable[[torch.Tensor, float, int], torch.Tensor]] = [
        lambda x, k, n: x * abs(k) + abs(-n),
        lambda x, k, n: x * k**2 + k**3.5,
        lambda x, k, n: x * 2.0**k,
        lambda x, k, n: x * (n / 3) ** 2 + n**-1,
    ]
    with mlcc_log("fallback") as told:
        for program in programs:
            compiled = mlcc.jit(program)
            for k, n in ((2.5, 4), (0.75, 7), (3.0, 5)):
                x = torch.randn(4, 3)
                torch.testing.assert_close(compiled(x, k, n), program(x, k, n))
            assert compiled._traces == 1
    assert told == []


class Mode(enum.IntEnum):
    A = 3


NUMBERS_OF_OTHER_CLASSES: dict[str, Any] = {
    "equal": lambda x, k: x * 2 if k == Mode.A else x,
    "reflected": lambda x, k: x * 2 if k == Mode.A else x,
    "not equal": lambda x, k: x if k != Mode.A else x * 2,
    "in": lambda x, k: x * 2 if k in (Mode.A,) else x,
    "size": lambda x, k: x * 2 if x.shape[0] + 1 == Mode.A else x * k,
    "complex": lambda x, k: x * 2 if k == 3 + 0j else x,
    "fraction": lambda x, k: x * 2 if k == Fraction(3) else x,
    "large": lambda x, k: x * 2 if k < 2**70 else x,
    "largest": lambda x, k: x * min(k, 2**64),
}


@pytest.mark.parametrize("name", NUMBERS_OF_OTHER_CLASSES)
def test_comparisons_with_numbers_of_other_classes(name: str) -> None:
    function = NUMBERS_OF_OTHER_CLASSES[name]
    run = mlcc.jit(function)
    for size, k in ((2, 3), (2, 4), (5, 3)):
        x = torch.ones(size)
        torch.testing.assert_close(run(x, k), function(x, k))


@pytest.mark.parametrize("needs_gradient", [False, True])
def test_absolute_values_of_numbers(needs_gradient: bool) -> None:
    functions: list[Any] = [
        lambda x, k: x * abs(k),
        lambda x, k: x + abs(k - 3),
        lambda x, k: x * abs(x.shape[0] - k),
        lambda x, k: x * abs(k) ** 0.5,
        lambda x, k: (x + 1, abs(k)),
    ]
    for function in functions:
        run = mlcc.jit(function)
        for k in (1.5, -1.25, -4.0):
            x = torch.ones(2, requires_grad=needs_gradient)
            torch.testing.assert_close(run(x, k), function(x, k))


def test_values_that_are_asked_for_without_end(
    monkeypatch: pytest.MonkeyPatch, mlcc_log: Any
) -> None:
    monkeypatch.setattr("mlcc.capture.jit._MOST_TRACES", 3)
    run = mlcc.jit(lambda x, k: x * len(str(k)))
    x = torch.ones(2)
    with mlcc_log("fallback") as lines:
        for k in range(1, 2000, 333):
            torch.testing.assert_close(run(x, k), x * len(str(k)))
    assert len(run._entries) == 1
    assert [len(entries) for entries in run._entries.values()] == [3]
    assert len(lines) == 1
