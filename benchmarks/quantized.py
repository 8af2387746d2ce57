"""Linear layers that torchao quantized: mlcc beside eager, its own float layers and, if asked for, TorchInductor.

usage: python benchmarks/quantized.py [--rows 1,4,32,128] [--sizes 2048x2048,1984x5632] [--kinds int8,int4]
           [--dtype float32] [--layers N] [--seconds S] [--threads N] [--inductor]

A row is four layers of one size, so that weights come from memory; its columns are the time of a call in ms, bytes of
quantized weights read in a second beside the best read of the same buffer size, and how many times sooner mlcc is than
eager, than its own float layers, and than Inductor. What is compared runs in turns.
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.harness import compare  # noqa: E402 (behind the path)

logging.disable(logging.WARNING)  # torchao tells of libraries for GPUs
warnings.filterwarnings("ignore")
from torchao import quantization as ao  # noqa: E402

GROUP = 32
KINDS = {
    "int8": lambda: ao.Int8WeightOnlyConfig(),
    "int4": lambda: ao.IntxWeightOnlyConfig(
        weight_dtype=torch.int4, granularity=ao.PerGroup(GROUP)
    ),
    "int8-rows": lambda: ao.Int8DynamicActivationInt8WeightConfig(),
    "int4-rows": lambda: ao.Int8DynamicActivationIntxWeightConfig(
        weight_dtype=torch.int4, weight_granularity=ao.PerGroup(GROUP)
    ),
    "float8": lambda: ao.Float8WeightOnlyConfig(),
}


def layers(columns: int, terms: int, count: int, dtype: torch.dtype, kind: str | None) -> nn.Module:
    """Layers that each take the same rows; quantized, unless `kind` is None."""
    torch.manual_seed(0)
    made = nn.ModuleList([nn.Linear(terms, columns, bias=False) for _ in range(count)])
    model = _Layers(made).to(dtype).eval()
    if kind is not None:
        ao.quantize_(model, KINDS[kind]())
    return model


class _Layers(nn.Module):
    def __init__(self, layers: nn.ModuleList) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        """What each layer makes of the rows."""
        return [layer(x) for layer in self.layers]


def weight_bytes(model: nn.Module) -> int:
    """Of all parts of all parameters."""
    return sum(_bytes(parameter.data) for parameter in model.parameters())


def _bytes(tensor: torch.Tensor) -> int:
    if not hasattr(tensor, "__tensor_flatten__"):
        return tensor.numel() * tensor.element_size()
    names, _ = tensor.__tensor_flatten__()
    return sum(_bytes(getattr(tensor, name)) for name in names)


def measure(
    size: tuple[int, int], rows: int, kind: str, dtype: torch.dtype, options: argparse.Namespace
) -> str:
    """A row of the table."""
    columns, terms = size
    plain = layers(columns, terms, options.layers, dtype, None)
    model = layers(columns, terms, options.layers, dtype, kind)
    x = torch.randn(rows, terms).to(dtype)
    bytes_read = weight_bytes(model)
    buffer = torch.ones(max(1, bytes_read // 4))

    def through(module: nn.Module, backend: str | None) -> Callable[[], object]:
        torch._dynamo.reset()
        call = module if backend is None else torch.compile(module, backend=backend, dynamic=False)
        call(x)
        return lambda: call(x)

    calls = {
        "mlcc": through(model, "mlcc"),
        "float": through(plain, "mlcc"),
        "eager": through(model, None),
        "read": lambda: buffer.sum(),
    }
    if options.inductor:
        calls["inductor"] = through(model, "inductor")
    found = compare(calls, seconds=options.seconds)
    seconds = {name: min(found.seconds[name]) for name in calls}
    share = seconds["read"] / seconds["mlcc"]
    ratios = [
        f"{seconds[peer] / seconds['mlcc']:9.2f}" for peer in calls if peer not in ("mlcc", "read")
    ]
    return (
        f"{kind:10s} {rows:5d} {columns:6d} {terms:6d} {seconds['mlcc'] * 1e3:8.2f} "
        f"{bytes_read / seconds['mlcc'] / 1e9:6.1f} {share:6.2f} {' '.join(ratios)}"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", default="1,4,32,128")
    parser.add_argument("--sizes", default="2048x2048,1984x1984,5632x2048")
    parser.add_argument("--kinds", default="int8,int4")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--inductor", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    dtype = getattr(torch, options.dtype)
    peers = ["float", "eager"] + (["inductor"] if options.inductor else [])
    over = " ".join(f"/{peer:>8s}" for peer in peers)
    print(
        f"{'kind':10s} {'rows':>5s} {'N':>6s} {'K':>6s} {'ms':>8s} {'GB/s':>6s} {'share':>6s} {over}"
    )
    with torch.no_grad():
        for kind in options.kinds.split(","):
            for size in options.sizes.split(","):
                columns, terms = map(int, size.split("x"))
                for rows in map(int, options.rows.split(",")):
                    print(measure((columns, terms), rows, kind, dtype, options), flush=True)


if __name__ == "__main__":
    main()
