"""What a process waits for its first result: cold and on full caches, beside aot_eager and TorchInductor.

usage: python benchmarks/first_call.py [--models REGEX] [--backends mlcc,aot_eager,inductor] [--rounds N] [--small]

Each figure is a fresh process; rounds are interleaved and the best is kept. Building the model and importing torch and
Dynamo are set aside; `first` is torch.compile and the first call, `rest` what is left of it after 1.5 eager calls.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.fresh_process import record_of  # noqa: E402 (behind the path)

_TIMEOUT = 900  # seconds that one process may take


def _pointwise(small: bool) -> tuple[Any, Callable[[Any], Any]]:
    import torch

    x = torch.randn(1000, 1000)
    return lambda a: torch.sin(a) * a + torch.exp(-a), lambda run: run(x)


def _transformer(kind: str, trains: bool = False) -> Any:
    def make(small: bool) -> tuple[Any, Callable[[Any], Any]]:
        import torch
        import transformers

        transformers.utils.logging.set_verbosity_error()
        layers, width = (2, 64) if small else (12, 768)
        sizes = {
            "vocab_size": 4096,
            "hidden_size": width,
            "num_hidden_layers": layers,
            "num_attention_heads": width // 32,
            "intermediate_size": 2 * width,
        }
        config, model = {
            "bert": (transformers.BertConfig, transformers.BertModel),
            "gpt2": (transformers.GPT2Config, transformers.GPT2LMHeadModel),
            "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        }[kind]
        net = model(config(**sizes)).train(trains)
        ids = torch.randint(0, 4096, (1, 64))

        def call(run: Any) -> Any:
            if not trains:
                return run(ids)[0]
            loss = run(ids, labels=ids).loss
            loss.backward()
            return loss

        return net, call

    return make


def _generate(small: bool) -> tuple[Any, Callable[[Any], Any]]:
    net, _ = _transformer("llama")(small)
    import torch

    ids = torch.randint(0, 4096, (1, 16))

    def call(forward: Any) -> Any:
        net.forward = forward
        return net.generate(ids, max_new_tokens=8, do_sample=False, pad_token_id=0)

    return net.forward, call


def _resnet(small: bool) -> tuple[Any, Callable[[Any], Any]]:
    from benchmarks import models

    workload = models.build("resnet", small=small)
    x = workload.input(workload.sizes[0])
    return workload.module.eval(), lambda run: run(x)


_MODELS = {
    "pointwise": _pointwise,
    "bert": _transformer("bert"),
    "gpt2": _transformer("gpt2"),
    "gpt2-training": _transformer("gpt2", trains=True),
    "llama-generate": _generate,
    "resnet": _resnet,
}


def _child(name: str, backend: str, small: bool) -> None:
    import torch

    if backend != "mlcc.jit":  # which does without
        import torch._dynamo
    torch.manual_seed(0)
    net, call = _MODELS[name](small)
    torch.set_grad_enabled(name.endswith("training"))
    call(net)
    start = time.perf_counter()
    call(net)
    eager = time.perf_counter() - start
    start = time.perf_counter()
    if backend == "mlcc.jit":
        import mlcc

        run = mlcc.jit(net)
    else:
        run = torch.compile(net, backend=backend)
    call(run)
    first = time.perf_counter() - start
    print(json.dumps({"eager": eager, "first": first}))


def _measure(name: str, backend: str, folder: str, small: bool) -> dict[str, float]:
    arguments = [name, backend, str(int(small))]
    record: dict[str, float] = record_of(__file__, arguments, folder, _TIMEOUT)
    return record


def _table(names: list[str], backends: list[str], rounds: int, small: bool) -> None:
    print(
        f"{'model':16s} {'backend':10s} {'eager':>7s} {'cold':>7s} {'warm':>7s} {'rest of warm':>12s}"
    )
    found: dict[tuple[str, str], tuple[float, float]] = {}
    for name in names:
        best: dict[str, list[float]] = {}
        for _ in range(rounds):
            for backend in backends:
                with tempfile.TemporaryDirectory(prefix="mlcc-first-call-") as folder:
                    cold, warm = (_measure(name, backend, folder, small) for _ in range(2))
                eager = min(cold["eager"], warm["eager"])
                seen = [eager, cold["first"], warm["first"]]
                best[backend] = list(map(min, best.get(backend, seen), seen))
        for backend, (eager, cold_first, warm_first) in best.items():
            found[name, backend] = cold_first, warm_first
            rest = warm_first - 1.5 * eager
            print(
                f"{name:16s} {backend:10s} {eager:7.3f} {cold_first:7.2f} {warm_first:7.2f} {rest:12.2f}",
                flush=True,
            )
    for peer in backends:
        if peer != "mlcc" and "mlcc" in backends:
            for kind, place in (("cold", 0), ("warm", 1)):
                ratios = [found[name, peer][place] / found[name, "mlcc"][place] for name in names]
                mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
                print(f"mlcc is {mean:.2f} times sooner than {peer}, {kind} (geometric mean)")


def main() -> None:
    """Print the table."""
    if sys.argv[1:2] == ["--child"]:
        name, backend, small = sys.argv[2:]
        _child(name, backend, small == "1")
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=re.compile, default=re.compile(""))
    parser.add_argument("--backends", default="mlcc,mlcc.jit,aot_eager,inductor")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--small", action="store_true", help="models of two layers")
    given = parser.parse_args()
    names = [name for name in _MODELS if given.models.search(name)]
    _table(names, given.backends.split(","), given.rounds, given.small)


if __name__ == "__main__":
    main()
