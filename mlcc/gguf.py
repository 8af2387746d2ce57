"""Weights of GGUF files in models of transformers, kept at their few bits: `mlcc.gguf.load(model, path)`.

A linear layer or an embedding whose weight is quantized in the file becomes one that holds integers, scales and minima
of groups, and dequantizes them where it is called. Under mlcc the product's kernel does that (decision 0043). The
package `gguf` reads the file.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from mlcc._errors import Error

# Architectures whose tensors lie as transformers has them, but for rows of queries and keys that llama.cpp reorders.
_REORDERS_ROWS = {"llama": True, "qwen2": False, "qwen3": False}

_Parts = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]


@dataclass(frozen=True)
class _Format:
    """Blocks of a quantized type: (integer - zero) * scale + least, of groups of so many elements."""

    elements: int
    group: int
    zero: int
    has_halves: bool  # integers of four bits
    # Bytes [blocks, bytes] -> integers [blocks, elements] of u8 or i8, scales and minima [blocks, groups] of f32.
    read: Callable[[torch.Tensor], _Parts]


def _float(raw: torch.Tensor) -> torch.Tensor:
    """[blocks, 2] bytes of an f16 -> [blocks, 1] of f32."""
    return raw.contiguous().view(torch.float16).float()


def _pieces(raw: torch.Tensor, runs: int, bits: int, mask: int) -> torch.Tensor:
    """Integers of `bits` bits, of which a byte holds several: those of lowest bits of a run of bytes come first."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8).view(1, 1, -1, 1)
    return ((raw.reshape(len(raw), runs, 1, -1) >> shifts) & mask).reshape(len(raw), -1)


def _q4(raw: torch.Tensor, has_least: bool) -> _Parts:
    least = _float(raw[:, 2:4]) if has_least else None
    return _pieces(raw[:, 4 if has_least else 2 :], 1, 4, 15), _float(raw[:, :2]), least


def _q5(raw: torch.Tensor, has_least: bool) -> _Parts:
    start = 4 if has_least else 2
    high = raw[:, start : start + 4]
    shifts = torch.arange(8, dtype=torch.uint8)
    fifth = ((high.unsqueeze(-1) >> shifts) & 1).reshape(len(raw), 32)
    least = _float(raw[:, 2:4]) if has_least else None
    return _pieces(raw[:, start + 4 :], 1, 4, 15) | (fifth << 4), _float(raw[:, :2]), least


def _q8(raw: torch.Tensor) -> _Parts:
    return raw[:, 2:].contiguous().view(torch.int8), _float(raw[:, :2]), None


def _q2_k(raw: torch.Tensor) -> _Parts:
    of_groups, d, least = raw[:, :16], _float(raw[:, 80:82]), _float(raw[:, 82:84])
    return _pieces(raw[:, 16:80], 2, 2, 3), d * (of_groups & 15), -(least * (of_groups >> 4))


def _q3_k(raw: torch.Tensor) -> _Parts:
    third = _pieces(raw[:, :32], 1, 1, 1)
    low, high = _pieces(raw[:, 96:104], 1, 4, 15), _pieces(raw[:, 104:108], 1, 2, 3)
    scales = (low | (high << 4)).to(torch.int8) - 32
    return _pieces(raw[:, 32:96], 2, 2, 3) | (third << 2), _float(raw[:, 108:110]) * scales, None


def _scales_and_minima(raw: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Eight of each, of six bits, in twelve bytes."""
    first, second, rest = raw[:, :4], raw[:, 4:8], raw[:, 8:12]
    scales = torch.cat([first & 63, (rest & 15) | ((first >> 2) & 48)], dim=1)
    return scales, torch.cat([second & 63, (rest >> 4) | ((second >> 2) & 48)], dim=1)


def _q4_k(raw: torch.Tensor) -> _Parts:
    scales, minima = _scales_and_minima(raw[:, 4:16])
    return (
        _pieces(raw[:, 16:144], 4, 4, 15),
        _float(raw[:, :2]) * scales,
        -(_float(raw[:, 2:4]) * minima),
    )


def _q5_k(raw: torch.Tensor) -> _Parts:
    scales, minima = _scales_and_minima(raw[:, 4:16])
    fifth = _pieces(raw[:, 16:48], 1, 1, 1)
    integers = _pieces(raw[:, 48:176], 4, 4, 15) | (fifth << 4)
    return integers, _float(raw[:, :2]) * scales, -(_float(raw[:, 2:4]) * minima)


def _q6_k(raw: torch.Tensor) -> _Parts:
    integers = _pieces(raw[:, :128], 2, 4, 15) | (_pieces(raw[:, 128:192], 2, 2, 3) << 4)
    scales = raw[:, 192:208].contiguous().view(torch.int8)
    return integers, _float(raw[:, 208:210]) * scales, None


_FORMATS = {
    "Q4_0": _Format(32, 32, 8, True, lambda raw: _q4(raw, False)),
    "Q4_1": _Format(32, 32, 0, True, lambda raw: _q4(raw, True)),
    "Q5_0": _Format(32, 32, 16, False, lambda raw: _q5(raw, False)),
    "Q5_1": _Format(32, 32, 0, False, lambda raw: _q5(raw, True)),
    "Q8_0": _Format(32, 32, 0, False, _q8),
    "Q2_K": _Format(256, 16, 0, True, _q2_k),
    "Q3_K": _Format(256, 16, 4, True, _q3_k),
    "Q4_K": _Format(256, 32, 0, True, _q4_k),
    "Q5_K": _Format(256, 32, 0, False, _q5_k),
    "Q6_K": _Format(256, 16, 32, False, _q6_k),
}
_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class QuantizedWeight(nn.Module):
    """A matrix [rows, columns] as integers with scales, and perhaps minima, [rows, groups] of columns."""

    def __init__(
        self,
        integers: torch.Tensor,
        scales: torch.Tensor,
        minima: torch.Tensor | None,
        *,
        zero: int,
        has_halves: bool,
    ) -> None:
        """`integers` [rows, columns]; with halves of bytes [rows, columns / 2], a row's first half in the low ones."""
        super().__init__()
        self.integers = nn.Parameter(integers, requires_grad=False)
        self.scales = nn.Parameter(scales, requires_grad=False)
        self.minima = None if minima is None else nn.Parameter(minima, requires_grad=False)
        self.zero, self.has_halves = zero, has_halves

    def dequantized(self, rows: torch.Tensor | None = None) -> torch.Tensor:
        """Of f32: all of it, or [.., columns] for `rows` [..] of i64."""
        integers, scales, minima = (
            one if one is None or rows is None else one[rows]
            for one in (self.integers, self.scales, self.minima)
        )
        assert integers is not None
        assert scales is not None
        if self.has_halves:
            integers = torch.cat([integers & 15, integers >> 4], dim=-1)
        value = integers.unflatten(-1, (scales.shape[-1], -1)).float()
        if self.zero:
            value = value - self.zero
        value = value * scales.float().unsqueeze(-1)
        if minima is not None:
            value = value + minima.float().unsqueeze(-1)
        return value.flatten(-2)


class Linear(nn.Module):
    """A linear layer with a quantized weight; the product is one of f32, as its sums are."""

    def __init__(self, quantized: QuantizedWeight, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.quantized = quantized
        self.bias = bias

    @property
    def weight(self) -> torch.Tensor:
        """Dequantized, of f32."""
        return self.quantized.dequantized()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[.., columns] -> [.., rows], in the dtype of `x`."""
        bias = None if self.bias is None else self.bias.float()
        return nn.functional.linear(x.float(), self.quantized.dequantized(), bias).to(x.dtype)


class Embedding(nn.Module):
    """Rows of a quantized weight."""

    def __init__(self, quantized: QuantizedWeight, dtype: torch.dtype) -> None:
        super().__init__()
        self.quantized, self.dtype = quantized, dtype

    @property
    def weight(self) -> torch.Tensor:
        """Dequantized, of f32."""
        return self.quantized.dequantized()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """[..] of i64 -> [.., columns]."""
        return self.quantized.dequantized(ids).to(self.dtype)


def load(model: nn.Module, path: str | os.PathLike[str]) -> nn.Module:
    """Put the tensors of a GGUF file into a model of transformers, and return it.

    `model` is of class LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM or Qwen3ForCausalLM, of the sizes in the
    file, on the CPU. Its linear layers and embeddings that are quantized in the file (Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 and
    Q2_K to Q6_K) are replaced; other tensors are copied into its parameters. Error, with the model as it was, where
    the file cannot be read, lacks a tensor, or has one of another shape or of a type that is not known.
    """
    file = _File(os.fspath(path))
    names = file.names(int(getattr(model.config, "num_hidden_layers", 0)))
    changes: list[Callable[[], None]] = []
    kept: dict[str, QuantizedWeight] = {}  # by name: an embedding may be the last layer too
    for name, parameter in model.named_parameters(remove_duplicate=False):
        tensor = file.tensor(names(name))
        path_of_module, _, kind = name.rpartition(".")
        module = model.get_submodule(path_of_module)
        if tuple(parameter.shape) != tensor.shape:
            raise Error(
                f"{file.path}: tensor {tensor.name} is {list(tensor.shape)}, "
                f"expected {list(parameter.shape)} for {name}"
            )
        heads = file.heads_of(name, model.config)
        if tensor.type in _FLOATS:
            changes.append(_copy(parameter, tensor.floats(heads)))
        elif isinstance(module, nn.Linear | nn.Embedding) and kind == "weight":
            if tensor.name not in kept:
                kept[tensor.name] = tensor.quantized(heads)
            changes.append(_replace(model, path_of_module, module, kept[tensor.name]))
        else:
            raise Error(
                f"{file.path}: tensor {tensor.name} is {tensor.type}, and {name} is no weight of a linear layer"
            )
    for change in changes:
        change()
    return model


def _copy(parameter: torch.Tensor, value: torch.Tensor) -> Callable[[], None]:
    def run() -> None:
        with torch.no_grad():
            parameter.copy_(value)

    return run


def _replace(
    model: nn.Module, path: str, module: nn.Linear | nn.Embedding, quantized: QuantizedWeight
) -> Callable[[], None]:
    def run() -> None:
        made: nn.Module = (
            Linear(quantized, module.bias)
            if isinstance(module, nn.Linear)
            else Embedding(quantized, module.weight.dtype)
        )
        model.set_submodule(path, made.train(module.training))

    return run


@dataclass(frozen=True)
class _Tensor:
    """One of a file: `data` are the bytes of its rows, [rows, bytes], or of all of it."""

    file: str
    name: str
    type: str
    shape: tuple[int, ...]
    data: Any  # an array of numpy

    def _rows(self, heads: int) -> torch.Tensor:
        """Bytes of rows in the order of transformers: of each head, both halves of a rotation lie apart."""
        raw = torch.from_numpy(self.data.reshape(self.shape[0], -1).view("uint8").copy())
        if heads == 0:
            return raw
        if self.shape[0] % (2 * heads):
            raise Error(
                f"{self.file}: tensor {self.name} has {self.shape[0]} rows of {heads} heads"
            )
        return raw.view(heads, -1, 2, raw.shape[-1]).transpose(1, 2).reshape(raw.shape)

    def floats(self, heads: int) -> torch.Tensor:
        """Of a type without blocks."""
        return self._rows(heads).view(_FLOATS[self.type]).view(self.shape)

    def quantized(self, heads: int) -> QuantizedWeight:
        """Of a type with blocks."""
        form = _FORMATS[self.type]
        rows, columns = self.shape
        raw = self._rows(heads)
        integers, scales, minima = form.read(raw.view(rows * columns // form.elements, -1))
        integers = integers.reshape(rows, columns)
        if form.has_halves:
            low, high = integers.chunk(2, dim=-1)
            integers = low | (high << 4)
        of_groups = (rows, columns // form.group)
        is_short = minima is None and form.elements == form.group  # the file's own numbers
        scales = (scales.half() if is_short else scales).reshape(of_groups)
        return QuantizedWeight(
            integers.contiguous(),
            scales.contiguous(),
            None if minima is None else minima.reshape(of_groups).contiguous(),
            zero=form.zero,
            has_halves=form.has_halves,
        )


class _File:
    """A GGUF file: its tensors by name, and how they are called."""

    def __init__(self, path: str) -> None:
        try:
            import gguf
        except ImportError:
            raise Error("mlcc.gguf needs the package gguf: pip install gguf") from None
        self.path = path
        if not os.path.isfile(path):
            raise Error(f"{path}: there is no such file")
        self._gguf = gguf
        try:
            reader = gguf.GGUFReader(path)
            self._architecture = str(reader.fields["general.architecture"].contents())
            self._tensors = {str(one.name): one for one in reader.tensors}
        except Exception as error:  # of any kind, where a file is cut off or damaged
            raise Error(
                f"{path}: no GGUF file that can be read ({type(error).__name__}: {error})"
            ) from None
        if self._architecture not in _REORDERS_ROWS:
            known = ", ".join(_REORDERS_ROWS)
            raise Error(f"{path}: architecture {self._architecture} is not known; {known} are")

    def names(self, layers: int) -> Callable[[str], str]:
        """From names of parameters to those of tensors."""
        architectures: Mapping[str, Any] = {
            name: one for one, name in self._gguf.MODEL_ARCH_NAMES.items()
        }
        table = self._gguf.get_tensor_name_map(architectures[self._architecture], layers)

        def name_of(parameter: str) -> str:
            stem, _, kind = parameter.rpartition(".")
            found = table.get_name(stem)
            if found is None:
                raise Error(
                    f"{self.path}: {parameter} has no name in files of {self._architecture}"
                )
            return f"{found}.{kind}"

        return name_of

    def tensor(self, name: str) -> _Tensor:
        """The one of this name; for the last layer the embedding, where a file has none of its own.

        Error where there is none, its type is not known, or its bytes are not those of its shape.
        """
        found = self._tensors.get(name)
        if found is None and name == "output.weight":
            found = self._tensors.get("token_embd.weight")
        if found is None:
            raise Error(f"{self.path}: there is no tensor {name}")
        kind = found.tensor_type.name
        if kind not in _FLOATS and kind not in _FORMATS:
            raise Error(f"{self.path}: tensor {name} is {kind}, which is not known")
        shape = tuple(int(size) for size in reversed(found.shape))
        elements, size = self._gguf.GGML_QUANT_SIZES[found.tensor_type]
        count = math.prod(shape)
        if (
            count % elements
            or (shape and shape[-1] % elements)
            or found.data.nbytes != count // elements * size
        ):
            raise Error(f"{self.path}: tensor {name} has no whole blocks of {kind}, or is cut off")
        return _Tensor(self.path, str(found.name), kind, shape, found.data)

    def heads_of(self, parameter: str, config: Any) -> int:
        """Of how many heads the rows are reordered; 0: as they are."""
        if not _REORDERS_ROWS[self._architecture]:
            return 0
        if ".q_proj." in parameter:
            return int(config.num_attention_heads)
        return int(config.num_key_value_heads) if ".k_proj." in parameter else 0
