"""Fourier transforms, and random numbers."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from mlcc.onnx.dtypes import DTYPES
from mlcc.onnx.ops.shapes import normalized
from mlcc.onnx.program import Node, as_tensor
from mlcc.onnx.registry import op


@op("DFT", sizes=True)
def dft_by_attribute(node: Node, x: Tensor, length: Any = None) -> Tensor:
    return _dft(node, x, length, node.get("axis", 1))


@op("DFT", since=20, sizes=True)
def dft(node: Node, x: Tensor, length: Any = None, axis: Any = None) -> Tensor:
    dim = -2 if axis is None else int(node.number(2, axis))
    return _dft(node, x, length, dim)


def _dft(node: Node, x: Tensor, length: Any, axis: int) -> Tensor:
    axis = normalized(axis, x.dim())
    count = None if length is None else int(node.number(1, length))
    is_real = x.shape[-1] == 1
    one_sided, inverse = bool(node.get("onesided", 0)), bool(node.get("inverse", 0))
    values = x[..., 0] if is_real else torch.view_as_complex(x.contiguous())
    if inverse and one_sided:
        extent = 2 * (x.shape[axis] - 1) if count is None else count
        return torch.fft.irfft(values, extent, axis).unsqueeze(-1)
    if inverse:
        return torch.view_as_real(torch.fft.ifft(values, count, axis))
    found = torch.fft.fft(values, count, axis)
    if one_sided:
        extent = x.shape[axis] if count is None else count
        found = found.narrow(axis, 0, extent // 2 + 1)
    return torch.view_as_real(found.resolve_conj())


@op("STFT", sizes=True)
def stft(node: Node, signal: Any, step: Any, window: Any = None, length: Any = None) -> Tensor:
    signal, window = as_tensor(signal), as_tensor(window)
    hop = int(node.number(1, step))
    if length is not None:
        count = int(node.number(3, length))
    else:
        count = signal.shape[1] if window is None else window.shape[0]
    is_real = signal.dim() == 2 or signal.shape[-1] == 1
    values = (
        signal.reshape(signal.shape[:2]) if is_real else torch.view_as_complex(signal.contiguous())
    )
    frames = values.unfold(1, count, hop)
    if window is not None:
        frames = frames * window
    one_sided = bool(node.get("onesided", 1)) and is_real
    return torch.view_as_real(torch.fft.rfft(frames) if one_sided else torch.fft.fft(frames))


@op("MelWeightMatrix", sizes=True)
def mel_weight_matrix(node: Node, bins: Any, length: Any, rate: Any, low: Any, high: Any) -> Tensor:
    count, size, samples, lowest, highest = (
        node.number(i, value) for i, value in enumerate((bins, length, rate, low, high))
    )
    edges = torch.arange(count + 2, dtype=torch.float64)
    first, last = (2595 * math.log10(1 + hertz / 700) for hertz in (lowest, highest))
    edges = first + edges * (last - first) / (count + 2)
    edges = 700 * (10 ** (edges / 2595) - 1)
    places = torch.floor((size + 1) * edges / samples)
    rows = torch.arange(size // 2 + 1, dtype=torch.float64).unsqueeze(1)
    left, center, right = places[:-2], places[1:-1], places[2:]
    up, down = (rows - left) / (center - left), (right - rows) / (right - center)
    rising = torch.where(center == left, (rows == center).double(), up)
    weights = torch.where((rows >= left) & (rows <= center), rising, 0.0)
    weights = torch.where((rows > center) & (rows < right), down, weights)
    return weights.to(DTYPES[node.get("output_datatype", 1)])


def _window(name: str, terms: tuple[float, ...]) -> None:
    def handler(node: Node, size: Any) -> Tensor:
        count = node.number(0, size)
        period = count if node.get("periodic", 1) else count - 1
        steps = torch.arange(count, dtype=torch.float32) * (2 * math.pi / period)
        total = torch.full_like(steps, terms[0])
        for k, factor in enumerate(terms[1:], start=1):
            total = total + factor * torch.cos(k * steps)
        return total.to(DTYPES[node.get("output_datatype", 1)])

    op(name, sizes=True)(handler)


_window("HannWindow", (0.5, -0.5))
_window("HammingWindow", (25 / 46, -21 / 46))
_window("BlackmanWindow", (0.42, -0.5, 0.08))


# Random numbers are torch's: a seed of the model is not that of another runtime.


def _dtype(node: Node, x: Tensor | None = None) -> torch.dtype:
    code = node.get("dtype")
    if code is not None:
        return DTYPES[code]
    return torch.float32 if x is None else x.dtype


def _spread(node: Node, values: Tensor) -> Tensor:
    if node.op.startswith("RandomNormal"):
        return values * node.get("scale", 1.0) + node.get("mean", 0.0)
    low, high = node.get("low", 0.0), node.get("high", 1.0)
    return values * (high - low) + low


@op("RandomNormal", "RandomUniform")
def random(node: Node) -> Tensor:
    make = torch.randn if node.op == "RandomNormal" else torch.rand
    return _spread(node, make(node.get("shape"), dtype=_dtype(node)))


@op("RandomNormalLike", "RandomUniformLike")
def random_like(node: Node, x: Tensor) -> Tensor:
    make = torch.randn if node.op == "RandomNormalLike" else torch.rand
    return _spread(node, make(x.shape, dtype=_dtype(node, x), device=x.device))


@op("Bernoulli")
def bernoulli(node: Node, x: Tensor) -> Tensor:
    return (torch.rand_like(x, dtype=torch.float32) < x).to(_dtype(node, x))


@op("Multinomial")
def multinomial(node: Node, x: Tensor) -> Tensor:
    picked = torch.multinomial(torch.softmax(x, -1), node.get("sample_size", 1), replacement=True)
    return picked.to(DTYPES[node.get("dtype", 6)])
