"""flex_attention by mlcc beside eager and TorchInductor, and encoder layers that torch calls as a whole beside eager.

usage: flex_attention.py [--length 2048] [--forms NAME[,NAME...]] [--inductor] [--seconds 2]

One thread, CPU time, in turns (benchmarks/harness.py); each result is compared with eager's before. A form is named by
what changes its scores; `layers` is nn.TransformerEncoderLayer at several sizes. --inductor takes half a minute a form.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import mlcc  # noqa: F401 (the backend)
from benchmarks import harness

HEADS, WIDTH, WINDOW, DOCUMENT, SOFT_CAP = 2, 64, 256, 300, 20.0
# Width, heads, batch, length and dtype of encoder layers; their hidden layer is four times as wide.
LAYERS = [
    (512, 8, 1, 16, torch.float32),
    (512, 8, 1, 128, torch.float32),
    (512, 8, 8, 128, torch.float32),
    (768, 12, 1, 512, torch.float32),
    (512, 8, 4, 128, torch.bfloat16),
]


def _causal(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return q >= k


def _window(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (q >= k) & (q - k < WINDOW)


def _documents(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (q >= k) & (q // DOCUMENT == k // DOCUMENT)


def _soft_cap(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return torch.tanh(score / SOFT_CAP) * SOFT_CAP


def _alibi(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return score - (q - k).abs() * torch.exp2(-(h + 1.0))


# Of scores and of masks.
FORMS: dict[str, tuple[Callable[..., Tensor] | None, Callable[..., Tensor] | None]] = {
    "plain": (None, None),
    "causal": (None, _causal),
    "window": (None, _window),
    "documents": (None, _documents),
    "soft_cap": (_soft_cap, _causal),
    "alibi": (_alibi, _causal),
}


def main() -> None:
    """Print a line for each form."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--forms", default=",".join([*FORMS, "layers"]))
    parser.add_argument("--inductor", action="store_true")
    parser.add_argument("--seconds", type=float, default=2.0)
    arguments = parser.parse_args()
    peers = ["mlcc", *["inductor"] * arguments.inductor]
    with torch.no_grad():
        for form in arguments.forms.split(","):
            if form == "layers":
                _measure_layers(arguments.seconds)
                continue
            score_mod, mask_mod = FORMS[form]
            length = arguments.length
            blocks = mask_mod and create_block_mask(
                mask_mod, None, None, length, length, device="cpu"
            )

            def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                return flex_attention(q, k, v, score_mod=score_mod, block_mask=blocks)  # noqa: B023

            tensors = [torch.randn(1, HEADS, length, WIDTH) for _ in range(3)]
            functions = {"eager": torch.compile(attend, backend="eager", dynamic=False)}
            _measure(form, functions, peers, tensors, arguments.seconds, attend)


def _measure_layers(seconds: float) -> None:
    for width, heads, batch, length, dtype in LAYERS:
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, activation="gelu", batch_first=True, dtype=dtype
        ).eval()
        title = f"layer {batch} x {length} x {width} {str(dtype)[6:]}"
        tensors = [torch.randn(batch, length, width, dtype=dtype)]
        _measure(title, {"eager": layer}, ["mlcc"], tensors, seconds, layer)


def _measure(
    title: str,
    functions: dict[str, Callable[..., Tensor]],
    peers: list[str],
    tensors: list[Tensor],
    seconds: float,
    function: Callable[..., Tensor],
) -> None:
    """`functions` and, by each of the peers, `function`."""
    expected = functions["eager"](*tensors)
    tolerance = 1e-4 if expected.dtype == torch.float32 else 5e-2
    for peer in peers:
        torch._dynamo.reset()
        functions[peer] = torch.compile(function, backend=peer, dynamic=False)
        torch.testing.assert_close(
            functions[peer](*tensors), expected, rtol=tolerance, atol=tolerance
        )
    calls = {name: lambda run=run: run(*tensors) for name, run in functions.items()}
    found = harness.compare(calls, seconds=seconds * len(calls), threads=1, clock=time.process_time)
    cells = [
        f"{name} {found.spread(name).median * 1e3:8.2f} ms {found.ratio(name).median:6.2f}"
        for name in functions
    ]
    print(f"{title:32}", "  ".join(cells), flush=True)


if __name__ == "__main__":
    main()
