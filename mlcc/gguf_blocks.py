"""What the blocks of a GGUF file's quantized matrices hold, and the operators of torch that read it.

`mlcc::gguf_dequantize` is one node of a trace. What it is made of, integers, scales and minima, are operators too: in
the graph IR (`importer/ops/gguf_weights.py`) they run once, where a pack is made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

_Scales = tuple[torch.Tensor, torch.Tensor | None]


@dataclass(frozen=True)
class _Format:
    """Blocks of a quantized type: (integer - zero) * scale + least, of groups of so many elements."""

    elements: int
    bytes: int
    group: int
    # Bytes [blocks, bytes] -> integers [blocks, elements] of `dtype`.
    integers: Callable[[torch.Tensor], torch.Tensor]
    # The same -> scales and minima [blocks, groups] of f32.
    of_groups: Callable[[torch.Tensor], _Scales]
    zero: int = 0
    dtype: torch.dtype = torch.uint8
    has_halves: bool = False  # integers of four bits
    has_minima: bool = False

    @property
    def has_short_scales(self) -> bool:
        """Whether scales are the file's own numbers, of f16."""
        return self.elements == self.group and not self.has_minima


def _float(raw: torch.Tensor) -> torch.Tensor:
    """[blocks, 2] bytes of an f16 -> [blocks, 1] of f32."""
    words = raw.to(torch.int16)
    return (words[:, :1] | (words[:, 1:] << 8)).view(torch.float16).float()


def _pieces(raw: torch.Tensor, runs: int, bits: int) -> torch.Tensor:
    """Integers of `bits` bits, of which a byte holds several: those of lowest bits of a run of bytes come first."""
    count, mask = raw.shape[1], (1 << bits) - 1
    lowest = raw.reshape(len(raw), runs, 1, count // runs)
    pieces = [(lowest >> shift) & mask for shift in range(0, 8, bits)]
    return torch.cat(pieces, 2).reshape(len(raw), count * len(pieces))


def _with_bits_above(raw: torch.Tensor, runs: int, bits: int, above: torch.Tensor) -> torch.Tensor:
    """Such integers under the bits of `above`."""
    return _pieces(raw, runs, bits) | (above << bits)


def _scale(raw: torch.Tensor) -> _Scales:
    return _float(raw[:, :2]), None


def _scale_and_least(raw: torch.Tensor) -> _Scales:
    return _float(raw[:, :2]), _float(raw[:, 2:4])


def _five_bits(raw: torch.Tensor) -> torch.Tensor:
    """The fifth bits of 32 integers in four bytes, then the others."""
    return _with_bits_above(raw[:, 4:], 1, 4, _pieces(raw[:, :4], 4, 1))


def _scales_of_q2_k(raw: torch.Tensor) -> _Scales:
    of_groups = raw[:, :16]
    return _float(raw[:, 80:82]) * (of_groups & 15), -(_float(raw[:, 82:84]) * (of_groups >> 4))


def _scales_of_q3_k(raw: torch.Tensor) -> _Scales:
    low, high = _pieces(raw[:, 96:104], 1, 4), _pieces(raw[:, 104:108], 1, 2)
    return _float(raw[:, 108:110]) * ((low | (high << 4)).to(torch.int8) - 32), None


def _six_bits(raw: torch.Tensor) -> _Scales:
    """Eight scales and eight minima of six bits, in twelve bytes."""
    first, second, rest = raw[:, 4:8], raw[:, 8:12], raw[:, 12:16]
    scales = torch.cat([first & 63, (rest & 15) | ((first >> 2) & 48)], dim=1)
    minima = torch.cat([second & 63, (rest >> 4) | ((second >> 2) & 48)], dim=1)
    return _float(raw[:, :2]) * scales, -(_float(raw[:, 2:4]) * minima)


def _scales_of_q6_k(raw: torch.Tensor) -> _Scales:
    return _float(raw[:, 208:210]) * raw[:, 192:208].contiguous().view(torch.int8), None


FORMATS = {
    "Q4_0": _Format(
        32, 18, 32, lambda raw: _pieces(raw[:, 2:], 1, 4), _scale, zero=8, has_halves=True
    ),
    "Q4_1": _Format(
        32,
        20,
        32,
        lambda raw: _pieces(raw[:, 4:], 1, 4),
        _scale_and_least,
        has_halves=True,
        has_minima=True,
    ),
    "Q5_0": _Format(32, 22, 32, lambda raw: _five_bits(raw[:, 2:]), _scale, zero=16),
    "Q5_1": _Format(
        32, 24, 32, lambda raw: _five_bits(raw[:, 4:]), _scale_and_least, has_minima=True
    ),
    "Q8_0": _Format(
        32, 34, 32, lambda raw: raw[:, 2:].contiguous().view(torch.int8), _scale, dtype=torch.int8
    ),
    "Q2_K": _Format(
        256,
        84,
        16,
        lambda raw: _pieces(raw[:, 16:80], 2, 2),
        _scales_of_q2_k,
        has_halves=True,
        has_minima=True,
    ),
    "Q3_K": _Format(
        256,
        110,
        16,
        lambda raw: _with_bits_above(raw[:, 32:96], 2, 2, _pieces(raw[:, :32], 1, 1)),
        _scales_of_q3_k,
        zero=4,
        has_halves=True,
    ),
    "Q4_K": _Format(
        256,
        144,
        32,
        lambda raw: _pieces(raw[:, 16:], 4, 4),
        _six_bits,
        has_halves=True,
        has_minima=True,
    ),
    "Q5_K": _Format(
        256,
        176,
        32,
        lambda raw: _with_bits_above(raw[:, 48:], 4, 4, _pieces(raw[:, 16:48], 1, 1)),
        _six_bits,
        has_minima=True,
    ),
    "Q6_K": _Format(
        256,
        210,
        16,
        lambda raw: _with_bits_above(raw[:, :128], 2, 4, _pieces(raw[:, 128:192], 2, 2)),
        _scales_of_q6_k,
        zero=32,
    ),
}


def in_order(raw: torch.Tensor, heads: int) -> torch.Tensor:
    """[rows, bytes of a row] in the order of transformers; `heads` of 0: they lie so.

    Files have both halves of what is rotated in turns, transformers one behind the other, in each of so many heads.
    """
    if heads == 0:
        return raw
    return raw.view(heads, -1, 2, raw.shape[-1]).transpose(1, 2).reshape(raw.shape)


def _blocks(raw: torch.Tensor, kind: str, heads: int) -> torch.Tensor:
    """[rows, bytes of a row] -> [blocks, bytes of a block]."""
    return in_order(raw, heads).reshape(-1, FORMATS[kind].bytes)


def _columns(raw: torch.Tensor, kind: str) -> int:
    return raw.shape[1] // FORMATS[kind].bytes * FORMATS[kind].elements


def _integers(raw: torch.Tensor, kind: str, heads: int) -> torch.Tensor:
    """[rows, columns] of u8 or i8; with halves [rows, columns / 2], a row's first half in the lower bits."""
    form = FORMATS[kind]
    integers = form.integers(_blocks(raw, kind, heads)).reshape(len(raw), _columns(raw, kind))
    if not form.has_halves:
        return integers
    low, high = integers.chunk(2, dim=-1)
    return low | (high << 4)


def _scales(raw: torch.Tensor, kind: str, heads: int) -> torch.Tensor:
    """[rows, groups], of f16 where the file has them so."""
    form = FORMATS[kind]
    scales = form.of_groups(_blocks(raw, kind, heads))[0]
    return (scales.half() if form.has_short_scales else scales).reshape(
        len(raw), _columns(raw, kind) // form.group
    )


def _minima(raw: torch.Tensor, kind: str, heads: int) -> torch.Tensor:
    """[rows, groups] of f32, of types that have them."""
    minima = FORMATS[kind].of_groups(_blocks(raw, kind, heads))[1]
    assert minima is not None
    return minima.reshape(len(raw), _columns(raw, kind) // FORMATS[kind].group)


def results(raw: torch.Tensor, kind: str) -> tuple[torch.Tensor, ...]:
    """Integers, scales, minima and the matrix, without values."""
    form = FORMATS[kind]
    rows, columns = raw.shape[0], _columns(raw, kind)
    integers = (rows, columns // 2 if form.has_halves else columns)
    groups = (rows, columns // form.group)
    return (
        raw.new_empty(integers, dtype=form.dtype),
        raw.new_empty(groups, dtype=torch.float16 if form.has_short_scales else torch.float32),
        raw.new_empty(groups, dtype=torch.float32),
        raw.new_empty((rows, columns), dtype=torch.float32),
    )


def dequantize(raw: torch.Tensor, kind: str, heads: int) -> torch.Tensor:
    """[rows, bytes of a row] of u8 -> [rows, columns] of f32; `heads` as in `in_order`."""
    form, blocks = FORMATS[kind], _blocks(raw, kind, heads)
    scales, minima = form.of_groups(blocks)
    value = form.integers(blocks).unflatten(-1, (form.elements // form.group, form.group)).float()
    if form.zero:
        value = value - form.zero
    value = value * scales.unsqueeze(-1)
    if minima is not None:
        value = value + minima.unsqueeze(-1)
    return value.reshape(len(raw), _columns(raw, kind))


_library = torch.library.Library("mlcc", "FRAGMENT")


def _define_operators() -> None:
    parts = (_integers, _scales, _minima)
    for place, function in enumerate((*parts, dequantize)):
        name = f"gguf_{function.__name__.lstrip('_')}"
        _library.define(f"{name}(Tensor raw, str kind, int heads) -> Tensor")
        _library.impl(name, function, "CPU")

        def fake(raw: torch.Tensor, kind: str, heads: int, place: int = place) -> torch.Tensor:
            del heads
            return results(raw, kind)[place]

        torch.library.register_fake(f"mlcc::{name}", fake, lib=_library)


_define_operators()
