"""A decoder with weights of few bits: mlcc beside llama.cpp and eager, tokens in a second.

usage: python benchmarks/llm.py [--type Q4_0] [--layers 22] [--prompt 128] [--tokens 32] [--rounds 5] [--threads N]
           [--torchao] [--eager]

The model is a Llama of 1.1 billion weights (fewer layers, if asked), random ones, in a GGUF file that is written here.
mlcc has it by `mlcc.gguf.load`, once as it is, in products of floats, and once with activations="int8", as llama.cpp
multiplies; llama.cpp by the package xllamacpp, where that is installed, in a process beside this one. A row tells
tokens in a second of the prompt and of what is generated behind it, the medians of rounds in which all take turns, and
each over llama.cpp's.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import multiprocessing
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

logging.disable(logging.WARNING)  # transformers and torchao tell of libraries for GPUs
warnings.filterwarnings("ignore")
import gguf  # noqa: E402 (behind the path)
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache  # noqa: E402

import mlcc  # noqa: E402
import mlcc.gguf  # noqa: E402

HIDDEN, WIDE, VOCABULARY, HEADS, KEY_HEADS = 2048, 5632, 32000, 32, 4
LONGEST = 512

# Tokens in a second: of the prompt, and behind it.
Speed = tuple[float, float]


def config(layers: int) -> LlamaConfig:
    """Of TinyLlama's sizes."""
    return LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=WIDE,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        vocab_size=VOCABULARY,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
    )


def write_file(path: str, layers: int, kind: str) -> None:
    """A GGUF file of random weights, with the words that llama.cpp asks for."""
    random = np.random.default_rng(0)
    file = gguf.GGUFWriter(path, "llama")
    file.add_context_length(2048)
    file.add_embedding_length(HIDDEN)
    file.add_block_count(layers)
    file.add_feed_forward_length(WIDE)
    file.add_head_count(HEADS)
    file.add_head_count_kv(KEY_HEADS)
    file.add_layer_norm_rms_eps(1e-6)
    file.add_rope_dimension_count(HIDDEN // HEADS)
    file.add_rope_freq_base(10000.0)
    file.add_vocab_size(VOCABULARY)
    bytes_as_words = [f"<0x{byte:02X}>".encode() for byte in range(256)]
    others = [f"t{number}".encode() for number in range(VOCABULARY - 259)]
    file.add_tokenizer_model("llama")
    file.add_token_list([b"<unk>", b"<s>", b"</s>", *bytes_as_words, *others])
    file.add_token_scores([0.0] * VOCABULARY)
    file.add_token_types([2, 3, 3] + [6] * 256 + [1] * len(others))
    file.add_bos_token_id(1)
    file.add_eos_token_id(2)
    type_of = gguf.GGMLQuantizationType[kind]

    def add(name: str, rows: int, columns: int) -> None:
        values = (random.random((rows, columns), np.float32) - 0.5) * 0.08
        file.add_tensor(name, gguf.quants.quantize(values, type_of), raw_dtype=type_of)

    def add_ones(name: str) -> None:
        file.add_tensor(name, np.ones(HIDDEN, np.float32))

    add("token_embd.weight", VOCABULARY, HIDDEN)
    add("output.weight", VOCABULARY, HIDDEN)
    add_ones("output_norm.weight")
    for layer in range(layers):
        part = f"blk.{layer}."
        add(part + "attn_q.weight", HIDDEN, HIDDEN)
        add(part + "attn_k.weight", HIDDEN // HEADS * KEY_HEADS, HIDDEN)
        add(part + "attn_v.weight", HIDDEN // HEADS * KEY_HEADS, HIDDEN)
        add(part + "attn_output.weight", HIDDEN, HIDDEN)
        add(part + "ffn_gate.weight", WIDE, HIDDEN)
        add(part + "ffn_up.weight", WIDE, HIDDEN)
        add(part + "ffn_down.weight", HIDDEN, WIDE)
        add_ones(part + "attn_norm.weight")
        add_ones(part + "ffn_norm.weight")
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def generate(forward: Callable[..., Any], layers: int, prompt: torch.Tensor, tokens: int) -> Speed:
    """Greedy tokens behind the prompt [1, length], by the model's forward."""
    cache = StaticCache(config=config(layers), max_cache_len=LONGEST)
    ids, places = prompt, torch.arange(prompt.shape[1])
    seconds = []
    with torch.no_grad():
        for _ in range(tokens + 1):
            begin = time.perf_counter()
            logits = forward(
                input_ids=ids,
                past_key_values=cache,
                cache_position=places,
                use_cache=True,
                logits_to_keep=1,
            ).logits
            ids = logits[:, -1:].argmax(-1)
            seconds.append(time.perf_counter() - begin)
            places = places[-1:] + 1
    return prompt.shape[1] / seconds[0], tokens / sum(seconds[1:])


def llama_cpp(path: str, threads: int) -> Callable[[torch.Tensor, int], Speed]:
    """The same by llama.cpp, whose own clock tells.

    In a process of its own, which sleeps between turns: with its threads beside torch's, OpenMP's runtime no longer
    lets any of them wait actively.
    """
    context = multiprocessing.get_context("spawn")
    ours, its = context.Pipe()
    context.Process(target=_serve, args=(path, threads, its), daemon=True).start()

    def run(prompt: torch.Tensor, tokens: int) -> Speed:
        ours.send((prompt[0].tolist(), tokens))
        speed: Speed = ours.recv()
        return speed

    return run


def _serve(path: str, threads: int, calls: Any) -> None:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx = LONGEST
    params.n_parallel = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.warmup = False
    server = xllamacpp.Server(params)
    while True:
        try:
            prompt, tokens = calls.recv()
        except EOFError:  # who asks has ended
            return
        answer = server.handle_completions(
            {
                "prompt": prompt,
                "n_predict": tokens + 1,
                "temperature": 0.0,
                "ignore_eos": True,
                "cache_prompt": False,
            }
        )
        answer = answer if isinstance(answer, dict) else json.loads(answer)
        timings = answer["timings"]
        calls.send((timings["prompt_per_second"], timings["predicted_per_second"]))


def torchao_model(layers: int) -> LlamaForCausalLM:
    """The same sizes, quantized by torchao: four bits in groups of 32."""
    from torchao import quantization as ao

    torch.manual_seed(0)
    model = LlamaForCausalLM(config(layers)).eval().requires_grad_(False)
    ao.quantize_(
        model,
        ao.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=ao.PerGroup(32)),
    )
    return model


def contenders(
    args: argparse.Namespace, path: str
) -> dict[str, Callable[[torch.Tensor, int], Speed]]:
    """What is timed, by name."""
    with torch.device("meta"):
        empty = LlamaForCausalLM(config(args.layers))
    model = mlcc.gguf.load(empty.eval(), path).requires_grad_(False)
    made: dict[str, Callable[[torch.Tensor, int], Speed]] = {}

    def add(name: str, forward: Callable[..., Any]) -> None:
        made[name] = lambda prompt, tokens: generate(forward, args.layers, prompt, tokens)

    def compiled(module: Any, **options: str) -> Callable[..., Any]:
        return torch.compile(module.forward, backend="mlcc", dynamic=False, options=options)

    if importlib.util.find_spec("xllamacpp") is not None:
        made["llama.cpp"] = llama_cpp(path, args.threads)
    add("mlcc, int8 activations", compiled(model, activations="int8"))
    add("mlcc", compiled(model))
    if args.torchao:
        add("mlcc, torchao int4", compiled(torchao_model(args.layers), activations="int8"))
    if args.eager:
        add("eager", model.forward)
    return made


def main() -> None:
    """Prints a row for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--type", default="Q4_0", help="of the file's matrices, as gguf has them")
    parser.add_argument("--layers", type=int, default=22)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--torchao", action="store_true")
    parser.add_argument("--eager", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    prompt = torch.randint(300, VOCABULARY, (1, args.prompt))
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "random.gguf")
        write_file(path, args.layers, args.type)
        runs = contenders(args, path)
        speeds: dict[str, list[Speed]] = {name: [] for name in runs}
        for name, run in runs.items():
            begin = time.perf_counter()
            run(prompt, 2)
            print(
                f"{name}: first prompt and two tokens in {time.perf_counter() - begin:.1f} s",
                flush=True,
            )
        for _ in range(args.rounds):
            for name, run in runs.items():
                speeds[name].append(run(prompt, args.tokens))
    medians = {
        name: [median(column) for column in zip(*rows, strict=True)]
        for name, rows in speeds.items()
    }
    peer = medians.get("llama.cpp")
    print(f"{'tokens/s':24} {'prompt':>8} {'behind':>8}   of llama.cpp's")
    for name, (first, later) in medians.items():
        parts = f"{first / peer[0]:8.2f} {later / peer[1]:8.2f}" if peer else ""
        print(f"{name:24} {first:8.1f} {later:8.1f} {parts}", flush=True)


if __name__ == "__main__":
    main()
