"""Models that PT2E quantized to 8 bits: mlcc beside its own float model, eager's and, if asked for, peers.

usage: python benchmarks/quantized_models.py [--models linear,bert,resnet,resnet50,mobilenet] [--seconds S]
           [--threads N] [--inductor] [--openvino]

A row is a model; its columns are the time of a call in ms, how many times sooner it is than each of the others, and the
ratio of signal to noise of its results against the float model's in dB. What is compared runs in turns. `jit` is the
same through `mlcc.jit`, without Dynamo's guards of each parameter. TorchInductor has the same model of PT2E; of
OpenVINO there are its float model and the one that nncf (a package that `make peers` leaves out) quantizes to 8 bits.
"""

from __future__ import annotations

import argparse
import copy
import logging
import math
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import mlcc  # noqa: E402 (behind the path)
from benchmarks import models  # noqa: E402
from benchmarks.contraction_nets import NETS  # noqa: E402
from benchmarks.harness import compare  # noqa: E402

logging.disable(logging.WARNING)  # torchao tells of libraries for GPUs
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86
logging.disable(logging.NOTSET)


def _linear() -> tuple[nn.Module, torch.Tensor]:
    layers = [nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)]
    return nn.Sequential(*layers).eval(), torch.randn(64, 1024)


class _Encoder(nn.Module):
    """Layers of BERT-base's size, from parts that torch exports."""

    def __init__(self, layers: int = 4, width: int = 768, heads: int = 12) -> None:
        super().__init__()
        self.heads = heads
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "query": nn.Linear(width, width),
                    "key": nn.Linear(width, width),
                    "value": nn.Linear(width, width),
                    "out": nn.Linear(width, width),
                    "up": nn.Linear(width, 4 * width),
                    "down": nn.Linear(4 * width, width),
                    "first": nn.LayerNorm(width),
                    "second": nn.LayerNorm(width),
                }
            )
            for _ in range(layers)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of [batch, length, width]."""
        batch, length, width = x.shape
        for block in self.blocks:
            parts = (
                block[name](x).view(batch, length, self.heads, -1).transpose(1, 2)
                for name in ("query", "key", "value")
            )
            seen = nn.functional.scaled_dot_product_attention(*parts)
            x = block["first"](x + block["out"](seen.transpose(1, 2).reshape(batch, length, width)))
            x = block["second"](x + block["down"](nn.functional.gelu(block["up"](x))))
        return x


def _bert() -> tuple[nn.Module, torch.Tensor]:
    return _Encoder().eval(), torch.randn(1, 128, 768)


class _Logits(nn.Module):
    """Of a classifier of transformers."""

    def __init__(self, classifier: nn.Module) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of images [N, 3, H, W]."""
        logits: torch.Tensor = self.classifier(x).logits
        return logits


def _resnet() -> tuple[nn.Module, torch.Tensor]:
    workload = models.build("resnet")
    return _Logits(workload.module).eval(), workload.input(workload.sizes[0])


def _net(name: str) -> Callable[[], tuple[nn.Module, torch.Tensor]]:
    def build() -> tuple[nn.Module, torch.Tensor]:
        kind = NETS[name]
        net = kind.build(1, 224, kind.width)
        return net.module, net.inputs[0]

    return build


MODELS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "linear": _linear,
    "bert": _bert,
    "resnet": _resnet,
    "resnet50": _net("resnet50"),
    "mobilenet": _net("mobilenet"),
}


def quantized(module: nn.Module, x: torch.Tensor) -> Any:
    """What PT2E makes of the module, calibrated by `x`."""
    exported = torch.export.export(copy.deepcopy(module), (x,)).module()
    config = x86.get_default_x86_inductor_quantization_config()
    prepared = prepare_pt2e(exported, x86.X86InductorQuantizer().set_global(config))
    prepared(x)
    return convert_pt2e(prepared)


def openvino_calls(
    module: nn.Module, x: torch.Tensor, threads: int
) -> dict[str, Callable[[], Any]]:
    """OpenVINO's float model, and that of bytes."""
    import nncf
    import openvino

    given = openvino.Tensor(x.numpy(), shared_memory=True)

    def compiled(model: Any) -> Callable[[], Any]:
        settings = {
            "INFERENCE_NUM_THREADS": threads,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",
        }
        request = openvino.compile_model(model, "CPU", settings).create_infer_request()
        request.set_input_tensor(given)
        return request.infer

    converted = openvino.convert_model(copy.deepcopy(module), example_input=x)
    converted.reshape(list(x.shape))
    of_bytes = nncf.quantize(converted, nncf.Dataset([x.numpy()]), subset_size=1)
    return {"openvino": compiled(converted), "openvino int8": compiled(of_bytes)}


def decibels(signal: torch.Tensor, other: torch.Tensor) -> float:
    """Of the signal over what the other differs by."""
    return 10 * math.log10(float(signal.square().sum() / (signal - other).square().sum()))


def measure(name: str, options: argparse.Namespace) -> str:
    """A row of the table."""
    torch.manual_seed(0)
    module, x = MODELS[name]()
    of_bytes = quantized(module, x)

    def through(function: Any, backend: str) -> Callable[[], Any]:
        torch._dynamo.reset()
        call = torch.compile(function, backend=backend, dynamic=False)
        call(x)
        return lambda: call(x)

    jitted = mlcc.jit(of_bytes)
    calls = {
        "mlcc": through(of_bytes, "mlcc"),
        "jit": lambda: jitted(x),
        "float": through(module, "mlcc"),
        "eager": lambda: module(x),
    }
    if options.inductor:
        calls["inductor"] = through(module, "inductor")
        torch._inductor.config.freezing = True
        calls["inductor int8"] = through(of_bytes, "inductor")
        torch._inductor.config.freezing = False
    if options.openvino:
        calls.update(openvino_calls(module, x, options.threads))
    noise = decibels(module(x), calls["mlcc"]())
    found = compare(calls, seconds=options.seconds)
    seconds = {name: min(found.seconds[name]) for name in calls}
    ratios = [f"{seconds[peer] / seconds['mlcc']:14.2f}" for peer in calls if peer != "mlcc"]
    return f"{name:8s} {seconds['mlcc'] * 1e3:8.2f} {' '.join(ratios)} {noise:7.1f}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--inductor", action="store_true")
    parser.add_argument("--openvino", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    peers = ["jit", "float", "eager"]
    for peer in ("inductor", "openvino"):
        peers += [peer, f"{peer} int8"] if getattr(options, peer) else []
    print(f"{'model':8s} {'ms':>8s} {' '.join(f'/{peer:>13s}' for peer in peers)} {'dB':>7s}")
    with torch.no_grad():
        for name in options.models.split(","):
            print(measure(name, options), flush=True)


if __name__ == "__main__":
    main()
