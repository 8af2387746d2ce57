"""Clients that ask a decoder for text at the same time: transformers' continuous batching, eager and compiled.

usage: python examples/serve.py [--clients 16] [--tokens 32] [--small]      needs transformers

The batching is transformers' own (`init_continuous_batching`): requests share blocks of one paged cache and one call
of the model for each step. Printed are tokens in a second of all clients together, and how long a client waits for
its first token and for each of the others.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from transformers.generation.configuration_utils import ContinuousBatchingConfig

import mlcc

VOCABULARY = 1000


@dataclass
class Waits:
    """Seconds."""

    first: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)


def model_of(small: bool) -> Any:
    """With random weights."""
    layers, width = (2, 64) if small else (6, 512)
    config = transformers.LlamaConfig(
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 32,
        num_key_value_heads=width // 64,
        vocab_size=VOCABULARY,
        attn_implementation="sdpa",
    )
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config).eval().requires_grad_(False)


def compile_parts(model: Any) -> None:
    """What lies between accesses of the cache, which transformers keeps out of compiled code."""
    for layer in model.model.layers:
        attention = layer.self_attn
        products = [attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj]
        for part in (layer.mlp, layer.input_layernorm, layer.post_attention_layernorm, *products):
            part.compile(backend="mlcc", dynamic=True)
    model.lm_head.compile(backend="mlcc", dynamic=True)


def load(model: Any, clients: int, tokens: int) -> tuple[float, Waits]:
    """Tokens in a second, and how long clients waited."""
    settings = transformers.GenerationConfig(
        max_new_tokens=tokens, do_sample=False, pad_token_id=0, eos_token_id=-1
    )
    room = ContinuousBatchingConfig(page_size=32, num_blocks=8 * clients, max_batch_tokens=512)
    manager = model.init_continuous_batching(
        generation_config=settings, continuous_batching_config=room
    )
    manager.start()
    next(manager.request_id_iter(manager.add_request([1, 2, 3], max_new_tokens=1)))
    waits, lock = Waits(), threading.Lock()

    def ask(number: int) -> None:
        prompt = [(number * 7 + place) % VOCABULARY for place in range(8 + number % 9)]
        last = time.perf_counter()
        request = manager.add_request(prompt, max_new_tokens=tokens, streaming=True)
        seen = 0
        for answer in manager.request_id_iter(request):
            now = time.perf_counter()
            new = len(answer.generated_tokens) - seen
            with lock:
                if seen == 0 and new > 0:
                    waits.first.append(now - last)
                elif new > 0:
                    waits.others.append((now - last) / new)
            seen, last = seen + new, now
            if answer.is_finished():
                return

    begin = time.perf_counter()
    threads = [threading.Thread(target=ask, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - begin
    manager.stop(block=True)
    return clients * tokens / seconds, waits


def percentiles(values: list[float]) -> str:
    """p50 and p99, in milliseconds."""
    cuts = statistics.quantiles(values, n=100) if len(values) > 1 else values * 99
    return f"{cuts[49] * 1e3:7.1f} {cuts[98] * 1e3:7.1f}"


def main() -> None:
    """Eager and compiled in turns, each once to warm up."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    models = {"eager": model_of(args.small), "mlcc": model_of(args.small)}
    compile_parts(models["mlcc"])
    batching = logging.getLogger("ContinuousBatchingLogger")
    level = batching.level
    batching.setLevel(logging.CRITICAL)  # it misses the package psutil
    print(f"{'':8} {'tokens/s':>9}   first token p50, p99 (ms)   others p50, p99 (ms)")
    for turn in ("warm up", "measured"):
        for name, model in models.items():
            speed, waits = load(model, args.clients, args.tokens)
            if turn == "measured":
                print(
                    f"{name:8} {speed:9.1f} {percentiles(waits.first):>27} {percentiles(waits.others):>22}"
                )
    batching.setLevel(level)
    print(f"{mlcc.cache_info()['entries']} kernels")


if __name__ == "__main__":
    main()
