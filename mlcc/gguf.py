"""Weights of GGUF files in models of transformers, kept at their few bits: `mlcc.gguf.load(model, path)`.

A linear layer or an embedding whose weight is quantized in the file becomes one that holds the file's bytes, mapped,
and dequantizes them where it is called. Under mlcc the product's kernel does that (decision 0043), from a pack that is
made once; of the file only the rows of embeddings that a call asks for are read again. The package `gguf` tells where
in the file tensors lie.
"""

from __future__ import annotations

import copy
import math
import mmap
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from mlcc import gguf_blocks
from mlcc._errors import Error
from mlcc._load import load_core

# Architectures whose tensors lie as transformers has them, but for rows of queries and keys that llama.cpp reorders.
_REORDERS_ROWS = {"llama": True, "qwen2": False, "qwen3": False}

_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class QuantizedWeight(nn.Module):
    """A matrix [rows, columns] of a quantized type, as the bytes of a file."""

    def __init__(self, raw: torch.Tensor, kind: str, heads: int) -> None:
        """`raw` [rows, bytes of a row] of u8; `heads`: how many the rows lie in, as llama.cpp orders them, or 0."""
        super().__init__()
        self.raw = nn.Parameter(raw, requires_grad=False)
        self.kind, self.heads = kind, heads

    def dequantized(self) -> torch.Tensor:
        """All of it, of f32."""
        value: torch.Tensor = torch.ops.mlcc.gguf_dequantize(self.raw, self.kind, self.heads)
        return value

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Those of `ids` [..] of i64, [.., columns] of f32, of a matrix whose rows are in order."""
        raw = nn.functional.embedding(ids.flatten(), self.raw)
        value = gguf_blocks.dequantize(raw, self.kind, 0)
        return value.view(*ids.shape, value.shape[-1])


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
        self.quantized = quantized
        # For a model's `to` to change the dtype of results.
        self.register_buffer("like", torch.empty(0, dtype=dtype), persistent=False)

    @property
    def weight(self) -> torch.Tensor:
        """Dequantized, of f32."""
        return self.quantized.dequantized()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """[..] of i64 -> [.., columns]."""
        return self.quantized.rows(ids).to(self.like.dtype)


def load(model: nn.Module, path: str | os.PathLike[str]) -> nn.Module:
    """Put the tensors of a GGUF file into a model of transformers, and return it.

    `model` is of class LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM or Qwen3ForCausalLM, of the sizes in the
    file, on the CPU or, to need no memory before, on the meta device. Its linear layers and embeddings that are
    quantized in the file (Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 and Q2_K to Q6_K) are replaced by such over the file's bytes,
    which are mapped: nobody may write into the file as long as the model is used. Other tensors are copied into its
    parameters. Error, with the model as it was, where the file cannot be read, lacks a tensor, or has one of another
    shape or of a type that is not known.
    """
    # Whatever stands around: what is made here has versions, and memory.
    with torch.inference_mode(False), torch.device("cpu"):
        return _load(model, _File(os.fspath(path)))


def _load(model: Any, file: _File) -> nn.Module:
    if any(isinstance(module, QuantizedWeight) for module in model.modules()):
        raise Error("the model has weights of a GGUF file already; load into a new one")
    names = file.names(int(getattr(model.config, "num_hidden_layers", 0)))
    values: list[Callable[[], None]] = []
    modules: list[Callable[[], None]] = []  # behind values: layers take their biases along
    made: dict[
        int, nn.Parameter
    ] = {}  # of a parameter on the meta device, which may have several names
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
        heads = file.heads_of(name, model.config, tensor)
        if tensor.type in _FLOATS:
            values.append(_set(module, kind, parameter, tensor.floats(heads), made))
        elif isinstance(module, nn.Linear | nn.Embedding) and kind == "weight":
            if tensor.name not in kept:
                kept[tensor.name] = QuantizedWeight(tensor.bytes, tensor.type, heads)
            modules.append(_replace(model, path_of_module, module, kept[tensor.name]))
        else:
            raise Error(
                f"{file.path}: tensor {tensor.name} is {tensor.type}, and {name} is no weight of a linear layer"
            )
    for module in model.modules():
        if any(buffer.is_meta for buffer in module.buffers(recurse=False)):
            values.append(_make_buffers(model, module))
    for change in values + modules:
        change()
    return model


def _set(
    module: nn.Module,
    kind: str,
    parameter: nn.Parameter,
    value: torch.Tensor,
    made: dict[int, nn.Parameter],
) -> Callable[[], None]:
    def run() -> None:
        if parameter.is_meta:
            if id(parameter) not in made:
                copied = value.to(parameter.dtype, copy=True)  # no other view of the file
                made[id(parameter)] = nn.Parameter(copied, parameter.requires_grad)
            module.register_parameter(kind, made[id(parameter)])
        else:
            with torch.inference_mode(parameter.is_inference()), torch.no_grad():
                parameter.copy_(value)

    return run


def _make_buffers(model: Any, module: nn.Module) -> Callable[[], None]:
    """Buffers on the meta device get what transformers begins with; files have none of them."""
    name = type(module).__name__
    if any(True for _ in module.parameters(recurse=False)) or not hasattr(model, "_init_weights"):
        raise Error(f"buffers of {name} are on the meta device, and nothing says what is in them")
    made = copy.deepcopy(module).to_empty(device="cpu", recurse=False)
    with torch.no_grad():
        for buffer in made.buffers(recurse=False):
            buffer.fill_(float("nan") if buffer.is_floating_point() else -1)
        model._init_weights(made)
    buffers = dict(made.named_buffers(recurse=False))
    if any(bool(buffer.isnan().any() or (buffer == -1).any()) for buffer in buffers.values()):
        raise Error(f"buffers of {name} are on the meta device, and transformers leaves them so")

    def run() -> None:
        for kind, buffer in buffers.items():
            setattr(module, kind, buffer)

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
    """One of a file."""

    name: str
    type: str
    shape: tuple[int, ...]
    bytes: torch.Tensor  # [rows, bytes of a row] of u8, mapped

    def floats(self, heads: int) -> torch.Tensor:
        """Of a type without blocks; `heads` as in `gguf_blocks.in_order`."""
        raw = gguf_blocks.in_order(self.bytes, heads)
        return raw.view(_FLOATS[self.type]).view(self.shape)


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
        if kind not in _FLOATS and kind not in gguf_blocks.FORMATS:
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
        mapped = self._mapped(int(found.data_offset), int(found.data.nbytes))
        rows = shape[0] if shape and shape[0] else 1
        return _Tensor(str(found.name), kind, shape, mapped.view(rows, -1))

    def _mapped(self, offset: int, count: int) -> torch.Tensor:
        """Bytes of the file, which lie in memory only as long as something reads them; a write goes to a copy.

        Each has a mapping, and so a storage, of its own: what is saved of a layer is not the whole file.
        """
        if count == 0:
            return torch.empty(0, dtype=torch.uint8)
        begin = offset - offset % mmap.ALLOCATIONGRANULARITY
        with open(self.path, "rb") as file:
            mapping = mmap.mmap(
                file.fileno(), offset + count - begin, access=mmap.ACCESS_COPY, offset=begin
            )
        mapped = torch.frombuffer(mapping, dtype=torch.uint8, count=count, offset=offset - begin)
        load_core().mark_as_file(mapped)
        return mapped

    def heads_of(self, parameter: str, config: Any, tensor: _Tensor) -> int:
        """Of how many heads the rows are reordered; 0: as they are."""
        if not _REORDERS_ROWS[self._architecture]:
            return 0
        heads = 0
        for part, name in (
            (".q_proj.", "num_attention_heads"),
            (".k_proj.", "num_key_value_heads"),
        ):
            if part in parameter:
                heads = int(getattr(config, name))
        if heads and tensor.shape[0] % (2 * heads):
            raise Error(
                f"{self.path}: tensor {tensor.name} has {tensor.shape[0]} rows of {heads} heads"
            )
        return heads
