"""A layer of a transformer: what it moves to and from memory beside its matrix products, and peaks of models.

usage: python benchmarks/layers.py [--batch 8] [--length 128]

Traffic of a layer is that of a model of three layers less that of one of two: each op's inputs once and its results
once for eager, each kernel's for mlcc; matrix products and attention that is one call are left out on both sides. The
peak is what a call needs beyond what is in use before it, when idle memory was given back.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import nn

import mlcc
from benchmarks.suite import peak_bytes
from benchmarks.traffic import KernelLog, Traffic

CONTRACTIONS = {
    *("mm", "addmm", "bmm", "baddbmm", "_scaled_dot_product_flash_attention_for_cpu"),
}
VOCABULARY = 1000
_IDLE_SECONDS = 1.3  # longer than the pool keeps what is idle


def _bert(layers: int, attention: str) -> nn.Module:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=VOCABULARY, num_hidden_layers=layers, attn_implementation=attention
    )
    return BertModel(config)


def _gpt2(layers: int, attention: str) -> nn.Module:
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_layer=layers,
        use_cache=False,
        attn_implementation=attention,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2Model(config)


def _llama(layers: int, attention: str) -> nn.Module:
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=768,
        num_hidden_layers=layers,
        num_attention_heads=12,
        num_key_value_heads=4,
        intermediate_size=2048,
        use_cache=False,
        attn_implementation=attention,
    )
    return LlamaModel(config)


MODELS: dict[str, Callable[[int, str], nn.Module]] = {
    "bert": _bert,
    "gpt2": _gpt2,
    "llama": _llama,
}


def eager_bytes(model: nn.Module, ids: torch.Tensor) -> int:
    """What eager's ops move."""
    with torch.no_grad(), Traffic(but=CONTRACTIONS) as traffic:
        model(ids)
    return traffic.bytes


def kernel_bytes(model: nn.Module, ids: torch.Tensor) -> int:
    """What mlcc's kernels move."""
    with torch.no_grad(), KernelLog() as kernels:
        mlcc.jit(model, dynamic=False)(ids)
    return kernels.bytes


def peaks(call: Callable[[Any], object], model: nn.Module, compiled: Any) -> list[float]:
    """MB that the first and the second take, the least of three calls each, in turns."""
    found: list[list[int]] = [[], []]
    for _ in range(4):
        for place, one in enumerate((model, compiled)):
            time.sleep(_IDLE_SECONDS)
            found[place].append(peak_bytes(partial(call, one)) or 0)
    return [min(each[1:]) / 1e6 for each in found]


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    ids = torch.randint(0, VOCABULARY, (arguments.batch, arguments.length))
    print(f"{'one layer':8s} {'attention':9s} {'op by op MB':>11s} {'kernels MB':>10s} saved")
    for name, build in MODELS.items():
        for attention in ("sdpa", "eager"):
            models = [build(layers, attention).eval() for layers in (2, 3)]
            eager = [eager_bytes(model, ids) for model in models]
            ours = [kernel_bytes(model, ids) for model in models]
            apart, fused = (each[1] - each[0] for each in (eager, ours))
            saved = 1 - fused / apart
            print(
                f"{name:9s} {attention:9s} {apart / 1e6:11.1f} {fused / 1e6:10.1f} {saved:5.2f}",
                flush=True,
            )
    print(f"\n{'4 layers':9s} {'':9s} {'eager MB':>9s} {'mlcc MB':>9s} ratio")
    for name, build in MODELS.items():
        model = build(4, "sdpa").eval()
        compiled = mlcc.jit(model, dynamic=False)

        def infer(one: Any) -> object:
            with torch.no_grad():
                return one(ids).last_hidden_state

        trained = torch.compile(model, backend="mlcc", dynamic=False)

        def train(one: Any, model: nn.Module = model) -> object:
            return torch.autograd.grad(
                one(ids).last_hidden_state.sum(), list(model.parameters()), allow_unused=True
            )

        for what, call, other in (("inference", infer, compiled), ("training", train, trained)):
            eager_peak, peak = peaks(call, model, other)
            print(
                f"{name:9s} {what:9s} {eager_peak:9.1f} {peak:9.1f} {peak / eager_peak:5.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
