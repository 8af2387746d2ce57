"""Complex numbers as pairs of real tensors: what ops of torch make of them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from mlcc.rewrite import fourier
from mlcc.rewrite.fourier import NoPair, Pair

_aten = torch.ops.aten


def _parts(x: Any) -> tuple[Any, Any]:
    """Real and imaginary part; None for one that is no part of the number."""
    if isinstance(x, Pair):
        return x
    return (x.real, x.imag) if isinstance(x, complex) else (x, None)


def _scaled(x: Any, factor: Any) -> Any:
    return x if factor == 1 else x * factor


def _add(x: Any, y: Any, *, alpha: Any = 1) -> Pair:
    (a, b), (c, d) = _parts(x), _parts(y)
    real = a + _scaled(c, alpha)
    imag = b if d is None else _scaled(d, alpha) if b is None else b + _scaled(d, alpha)
    return _pair(real, imag)


def _sub(x: Any, y: Any, *, alpha: Any = 1) -> Pair:
    return _add(x, y, alpha=-alpha)


def _pair(real: Any, imag: Any) -> Pair:
    """Of one size."""
    if not isinstance(imag, torch.Tensor):
        imag = torch.full_like(real, 0 if imag is None else imag)
    if not isinstance(real, torch.Tensor):
        real = torch.full_like(imag, real)
    real, imag = torch.broadcast_tensors(real, imag)
    return Pair(real, imag.to(real.dtype))


def _mul(x: Any, y: Any) -> Pair:
    (a, b), (c, d) = _parts(x), _parts(y)
    if d is None:
        return _pair(a * c, b * c)
    if b is None:
        return _pair(a * c, a * d)
    return _pair(a * c - b * d, a * d + b * c)


def _div(x: Any, y: Any) -> Pair:
    (a, b), (c, d) = _parts(x), _parts(y)
    if d is None:
        return _pair(a / c, b / c)
    if not isinstance(c, torch.Tensor):
        return _mul(x, 1 / complex(c, d))
    # The divisor is made to be about 1, so that no square overflows.
    scale = torch.maximum(c.abs(), d.abs())
    c, d = c / scale, d / scale
    length = (c * c + d * d) * scale
    if b is None:
        return _pair(a * c / length, -a * d / length)
    return _pair((a * c + b * d) / length, (b * c - a * d) / length)


def _reciprocal(x: Pair) -> Pair:
    return _div(torch.ones_like(x.real), x)


def _abs(x: Pair) -> torch.Tensor:
    return torch.hypot(*x)


def _angle(x: Pair) -> torch.Tensor:
    return torch.atan2(x.imag, x.real)


def _polar(length: torch.Tensor, angle: torch.Tensor) -> Pair:
    return _pair(length * angle.cos(), length * angle.sin())


def _exp(x: Pair) -> Pair:
    return _polar(x.real.exp(), x.imag)


def _log(x: Pair) -> Pair:
    return Pair(_abs(x).log(), _angle(x))


def _sgn(x: Pair) -> Pair:
    length = _abs(x)
    is_zero = length == 0
    divisor = torch.where(is_zero, torch.ones_like(length), length)
    return Pair(x.real / divisor, x.imag / divisor)


def _pow(x: Pair, exponent: Any) -> Pair:
    if exponent == 2:
        return _mul(x, x)
    raise NoPair(f"the exponent {exponent} of a complex number")


def _conj(x: Pair) -> Pair:
    return Pair(x.real, -x.imag)


def _view_as_real(x: Pair) -> torch.Tensor:
    return torch.stack([*x], -1)


def _view_as_complex(x: torch.Tensor) -> Pair:
    return Pair(x.select(-1, 0), x.select(-1, 1))


def _product_of_matrices(x: Any, y: Any) -> Pair:
    (a, b), (c, d) = _parts(x), _parts(y)
    return Pair(a @ c - b @ d, a @ d + b @ c)


def _each(op: Callable[..., Any]) -> Callable[..., Any]:
    """The op on both parts, for ops that move elements or add them."""

    @functools.wraps(op)
    def run(*args: Any, **kwargs: Any) -> Any:
        dtype = kwargs.get("dtype")
        if dtype is not None:
            if not dtype.is_complex:
                raise NoPair(f"complex numbers as {dtype}")
            kwargs = {**kwargs, "dtype": dtype.to_real()}
        real = op(*(_one_part(arg, 0) for arg in args), **kwargs)
        imag = op(*(_one_part(arg, 1) for arg in args), **kwargs)
        if isinstance(real, list | tuple):
            return [Pair(*both) for both in zip(real, imag, strict=True)]
        return Pair(real, imag)

    return run


def _one_part(arg: Any, place: int) -> Any:
    if isinstance(arg, Pair):
        return arg[place]
    if isinstance(arg, list | tuple) and any(isinstance(one, Pair) for one in arg):
        return [_one_part(one, place) for one in arg]
    if isinstance(arg, torch.Tensor) and arg.is_floating_point() and place == 1:
        return torch.zeros_like(arg)  # a real operand among complex ones
    if isinstance(arg, complex):
        return (arg.real, arg.imag)[place]
    return arg


def _view(x: Pair, size: Any) -> Pair:
    """Parts lie elsewhere than the numbers did, so that there may be no view of them."""
    return Pair(x.real.reshape(size), x.imag.reshape(size))


def _to(x: Any, **kwargs: Any) -> Any:
    dtype: Any = kwargs.get("dtype")
    if not isinstance(x, Pair):  # a real tensor that becomes complex
        return _pair(x.to(dtype.to_real()), None)
    if dtype is None:
        return x
    return Pair(*(part.to(dtype.to_real()) for part in x)) if dtype.is_complex else x.real.to(dtype)


def _zeros_like(x: Pair, **kwargs: Any) -> Any:
    del kwargs
    return Pair(torch.zeros_like(x.real), torch.zeros_like(x.imag))


def _full(size: Any, value: Any, *, dtype: torch.dtype, **kwargs: Any) -> Pair:
    del kwargs
    number = complex(value)
    return Pair(
        torch.full(size, number.real, dtype=dtype.to_real()),
        torch.full(size, number.imag, dtype=dtype.to_real()),
    )


def _copy(x: Any, source: Any, non_blocking: bool = False) -> Pair:
    del non_blocking
    parts = zip(_parts(x), _pair(*_parts(source)), strict=True)
    return Pair(*(part.expand_as(of).to(of.dtype).clone() for of, part in parts))


def _isnan(x: Pair) -> torch.Tensor:
    return x.real.isnan() | x.imag.isnan()


def _where(condition: torch.Tensor, x: Any, y: Any) -> Pair:
    (a, b), (c, d) = _parts(x), _parts(y)
    real = torch.where(condition, a, c)
    return Pair(real, torch.where(condition, 0.0 if b is None else b, 0.0 if d is None else d))


# Transforms: `norm` is 0, 1 (divided by the root of the count of terms) or 2 (by the count).


def _scale(count: int, norm: int) -> float:
    return (1.0, 1 / math.sqrt(count), 1 / count)[norm]


def _sized(x: Any, scale: float) -> Any:
    if scale == 1.0:
        return x
    return Pair(x.real * scale, x.imag * scale) if isinstance(x, Pair) else x * scale


def _along(x: Pair, dim: int, sign: int) -> Pair:
    found = fourier.transform(Pair(*(part.movedim(dim, -1) for part in x)), sign)
    return Pair(*(part.movedim(-1, dim) for part in found))


def _count(shape: Any, dims: list[int]) -> int:
    return math.prod(fourier.length(shape[dim]) for dim in dims)


def _fft_c2c(x: Pair, dims: list[int], norm: int, forward: bool) -> Pair:
    scale = _scale(_count(x.real.shape, dims), norm)
    for dim in dims:
        x = _along(x, dim, -1 if forward else 1)
    return _sized(x, scale)


def _fft_r2c(x: torch.Tensor, dims: list[int], norm: int, onesided: bool) -> Pair:
    *others, last = dims
    n = fourier.length(x.shape[last])
    scale = _scale(_count(x.shape, dims), norm)
    rows = x.movedim(last, -1)
    found = fourier.of_real(rows, -1)
    if not onesided:
        end = (n + 1) // 2
        real = torch.cat([found.real, found.real[..., 1:end].flip(-1)], -1)
        found = Pair(real, torch.cat([found.imag, -found.imag[..., 1:end].flip(-1)], -1))
    whole = Pair(*(part.movedim(-1, last) for part in found))
    for dim in others:
        whole = _along(whole, dim, -1)
    return _sized(whole, scale)


def _fft_c2r(x: Pair, dims: list[int], norm: int, last_dim_size: int) -> torch.Tensor:
    *others, last = dims
    n = fourier.length(last_dim_size)
    scale = _scale(_count(x.real.shape, others) * n, norm)
    for dim in others:
        x = _along(x, dim, 1)
    rows = fourier.to_real(Pair(*(part.movedim(last, -1) for part in x)), n, 1)
    return _sized(rows.movedim(-1, last), scale)


_MOVED = """
    alias.default cat.default constant_pad_nd.default cumsum.default detach.default diagonal.default expand.default
    flip.default gather.default index.Tensor index_select.default lift_fresh_copy.default mean.default mean.dim
    neg.default permute.default repeat.default roll.default select.int slice.Tensor slice_scatter.default
    split.Tensor split_with_sizes.default squeeze.default squeeze.dim squeeze.dims stack.default sum.default
    sum.dim_IntList t.default transpose.int unbind.int unfold.default unfold_backward.default unsqueeze.default
"""

_OWN: dict[str, Callable[..., Any]] = {
    "_conj.default": _conj,
    "_conj_physical.default": _conj,
    "_fft_c2c.default": _fft_c2c,
    "_fft_c2r.default": _fft_c2r,
    "_fft_r2c.default": _fft_r2c,
    "_to_copy.default": _to,
    "_unsafe_view.default": _view,
    "abs.default": _abs,
    "add.Scalar": _add,
    "add.Tensor": _add,
    "angle.default": _angle,
    "bmm.default": _product_of_matrices,
    "clone.default": lambda x, **_: x,
    "complex.default": _pair,
    "conj_physical.default": _conj,
    "div.Scalar": _div,
    "div.Tensor": _div,
    "copy.default": _copy,
    "exp.default": _exp,
    "full.default": _full,
    "imag.default": lambda x: x.imag,
    "isnan.default": _isnan,
    "log.default": _log,
    "mm.default": _product_of_matrices,
    "mul.Scalar": _mul,
    "mul.Tensor": _mul,
    "polar.default": _polar,
    "pow.Tensor_Scalar": _pow,
    "real.default": lambda x: x.real,
    "reciprocal.default": _reciprocal,
    "reshape.default": _view,
    "resolve_conj.default": lambda x: x,
    "sgn.default": _sgn,
    "sub.Scalar": _sub,
    "sub.Tensor": _sub,
    "view.default": _view,
    "view_as_complex.default": _view_as_complex,
    "view_as_real.default": _view_as_real,
    "where.self": _where,
    "zeros_like.default": _zeros_like,
}


def table() -> dict[Any, Callable[..., Any]]:
    """By overload: the same on pairs. They may raise NoPair."""

    def overload(name: str) -> Any:
        op, _, which = name.partition(".")
        return getattr(getattr(_aten, op), which)

    known = {overload(name): _each(overload(name)) for name in _MOVED.split()}
    known[torch.ops.prims.convert_element_type.default] = lambda x, dtype: _to(x, dtype=dtype)
    return known | {overload(name): function for name, function in _OWN.items()}
