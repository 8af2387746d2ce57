"""What benchmarks/gpu.py times: memory-bound functions over large tensors, and small models of plain torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

Tensors = list[torch.Tensor]


@dataclass(frozen=True)
class Case:
    """A function and its inputs; `moved` is the least number of bytes that a call reads and writes."""

    name: str
    function: Callable[..., Any]
    make: Callable[[torch.device], Tensors]
    kind: str = "memory"  # or "model"
    moved: Callable[[Tensors, Tensors], int] | None = (
        None  # of inputs and outputs; None: all of both
    )
    backward: bool = False  # what is timed is the backward pass, or of a model a training step


def _matrix(rows: int, columns: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Any:
    def make(device: torch.device) -> torch.Tensor:
        generator = torch.Generator(device=device).manual_seed(seed)
        return torch.randn(rows, columns, generator=generator, device=device).to(dtype)

    return make


def _inputs(*makers: Any) -> Callable[[torch.device], Tensors]:
    return lambda device: [make(device) for make in makers]


def _classes(rows: int, classes: int) -> Any:
    def make(device: torch.device) -> torch.Tensor:
        generator = torch.Generator(device=device).manual_seed(5)
        return torch.randint(0, classes, (rows,), generator=generator, device=device)

    return make


def _row(columns: int, dtype: torch.dtype, seed: int) -> Any:
    return lambda device: _matrix(1, columns, dtype, seed)(device)[0]


def _causal_scores(scores: torch.Tensor) -> torch.Tensor:
    length = scores.shape[-1]
    rows = torch.arange(scores.shape[-2], device=scores.device) % length
    columns = torch.arange(length, device=scores.device)
    hidden = columns[None, :] > rows[:, None]
    return (scores.float() * 0.125).masked_fill(hidden, float("-inf")).softmax(-1).to(scores.dtype)


def _rms_norm_residual(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> Any:
    total = (x + residual).float()
    normal = total * torch.rsqrt(total.square().mean(-1, keepdim=True) + 1e-6)
    return (normal * weight.float()).to(x.dtype), total.to(x.dtype)


def memory_cases(small: bool) -> list[Case]:
    """Twelve, each over 64 MiB of input at least."""
    rows, columns = (24, 96) if small else (8192, 4096)
    vocabulary = (96, 40) if small else (2048, 50257)
    bf16, f32 = torch.bfloat16, torch.float32
    x, x16 = _matrix(rows, columns), _matrix(rows, columns, bf16)
    return [
        Case(
            "pointwise chain, f32",
            lambda x, y: torch.tanh(x * 1.5 + y) * torch.sigmoid(x) + y,
            _inputs(x, _matrix(rows, columns, f32, 1)),
        ),
        Case(
            "bias and gelu, bf16", lambda x, b: F.gelu(x + b), _inputs(x16, _row(columns, bf16, 1))
        ),
        Case("cast of f32 to bf16", lambda x: x.to(bf16), _inputs(x)),
        Case("transpose, bf16", lambda x: x.t().contiguous(), _inputs(x16)),
        Case("softmax, bf16", lambda x: x.softmax(-1), _inputs(x16)),
        Case(
            "masked softmax, bf16",
            lambda x, m: x.float().masked_fill(m > 0.5, -1e30).softmax(-1).to(x.dtype),
            _inputs(x16, _matrix(rows, columns, bf16, 1)),
        ),
        Case(
            "layer norm, bf16",
            lambda x, w, b: F.layer_norm(x, (x.shape[-1],), w, b),
            _inputs(x16, _row(columns, bf16, 1), _row(columns, bf16, 2)),
        ),
        Case(
            "layer norm backward, bf16",
            lambda x, w, b: F.layer_norm(x, (x.shape[-1],), w, b),
            _inputs(x16, _row(columns, bf16, 1), _row(columns, bf16, 2)),
            # The gradient and the input are read, the input's gradient is written.
            moved=lambda inputs, _: 3 * inputs[0].numel() * inputs[0].element_size(),
            backward=True,
        ),
        Case(
            "RMS norm and residual, bf16",
            _rms_norm_residual,
            _inputs(x16, _matrix(rows, columns, bf16, 1), _row(columns, bf16, 2)),
        ),
        Case(
            "cross entropy, bf16",
            lambda x, t: F.cross_entropy(x.float(), t),
            _inputs(_matrix(*vocabulary, bf16), _classes(*vocabulary)),
        ),
        Case("column sum, f32", lambda x: x.sum(0), _inputs(x)),
        Case("causal attention scores, bf16", _causal_scores, _inputs(x16)),
    ]


# -- models


class Gpt2Block(nn.Module):
    """Layer norms, attention by torch's op, GELU."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Batch, length, width to the same."""
        batch, length, width = x.shape
        parts = self.attention(self.norm_1(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh"))


class LlamaBlock(nn.Module):
    """RMS norms, rotary positions, fewer heads of keys, SwiGLU."""

    def __init__(self, width: int, heads: int, key_heads: int, hidden: int) -> None:
        super().__init__()
        self.heads, self.key_heads, self.head_width = heads, key_heads, width // heads
        self.norm_1 = nn.Parameter(torch.rand(width) + 0.5)
        self.norm_2 = nn.Parameter(torch.rand(width) + 0.5)
        self.queries = nn.Linear(width, width, bias=False)
        self.keys = nn.Linear(width, key_heads * self.head_width, bias=False)
        self.values = nn.Linear(width, key_heads * self.head_width, bias=False)
        self.projection = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up, self.down = (
            nn.Linear(width, hidden, bias=False),
            nn.Linear(hidden, width, bias=False),
        )

    def forward(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        """Batch, length, width to the same; the tables are of length and head width."""
        batch, length, width = x.shape
        normal = _rms_norm(x, self.norm_1)
        q = self._split(self.queries(normal), self.heads)
        k = self._split(self.keys(normal), self.key_heads)
        v = self._split(self.values(normal), self.key_heads)
        q, k = _rotated(q, cosine, sine), _rotated(k, cosine, sine)
        repeats = self.heads // self.key_heads
        k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(batch, length, width))
        normal = _rms_norm(x, self.norm_2)
        return x + self.down(F.silu(self.gate(normal)) * self.up(normal))

    def _split(self, x: torch.Tensor, heads: int) -> torch.Tensor:
        return x.view(x.shape[0], x.shape[1], heads, self.head_width).transpose(1, 2)


def _rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    normal = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
    return normal.to(x.dtype) * weight


def _rotated(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat([-second, first], -1) * sine


class TinyGpt(nn.Module):
    """Blocks between an embedding and a head; gives the loss of predicting each next token."""

    def __init__(self, vocabulary: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Gpt2Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Of token ids."""
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))[:, :-1]
        return F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())


def _rotary_tables(length: int, width: int, dtype: torch.dtype) -> Any:
    def angles(device: torch.device) -> torch.Tensor:
        rates = 10000.0 ** (-torch.arange(0, width, 2, device=device) / width)
        return torch.outer(torch.arange(length, device=device).float(), rates).repeat(1, 2)

    return [
        lambda device: angles(device).cos().to(dtype),
        lambda device: angles(device).sin().to(dtype),
    ]


def model_cases(small: bool, device: torch.device) -> Sequence[Callable[[], Case]]:
    """Each makes its model when called, on the device, with weights by a fixed seed."""
    dtype = torch.float32 if small else torch.bfloat16
    batch, length, width, heads = (2, 8, 32, 4) if small else (8, 1024, 1024, 16)

    def activations(seed: int) -> Any:
        return lambda d: _matrix(batch * length, width, dtype, seed)(d).view(batch, length, width)

    def gpt2() -> Case:
        torch.manual_seed(0)
        block = Gpt2Block(width, heads).to(device, dtype).eval()
        return Case("GPT-2 block", block, _inputs(activations(0)), "model")

    def llama() -> Case:
        torch.manual_seed(0)
        block = LlamaBlock(width, heads, heads // 2, 3 * width).to(device, dtype).eval()
        tables = _rotary_tables(length, width // heads, dtype)
        return Case("Llama-style block", block, _inputs(activations(0), *tables), "model")

    def training() -> Case:
        torch.manual_seed(0)
        sizes = (40, 32, 4, 1) if small else (8192, 512, 8, 4)
        model = TinyGpt(*sizes).to(device)

        def ids(d: torch.device) -> torch.Tensor:
            generator = torch.Generator().manual_seed(3)
            shape = (2, 8) if small else (16, 512)
            return torch.randint(0, sizes[0], shape, generator=generator).to(d)

        return Case("GPT, training step, f32", model, _inputs(ids), "model", backward=True)

    return [gpt2, llama, training]
