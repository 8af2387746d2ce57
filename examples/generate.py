"""Text from a decoder with weights of four bits: a GGUF file's, or random ones that torchao quantizes.

usage: python examples/generate.py [MODEL.gguf] [--prompt TEXT] [--tokens 64] [--small]
       needs transformers, and gguf or torchao

Of a file the configuration and the tokenizer are read too. Its weights stay in it: what kernels read is packed once.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
import transformers

import mlcc
import mlcc.gguf


def of_file(path: Path) -> tuple[Any, Any]:
    """Model and tokenizer of a GGUF file."""
    place = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    config = transformers.AutoConfig.from_pretrained(**place)
    with torch.device("meta"):  # no memory for weights that are replaced
        model = transformers.AutoModelForCausalLM.from_config(config)
    mlcc.gguf.load(model, path)
    return model, transformers.AutoTokenizer.from_pretrained(**place)


def of_random_weights(small: bool) -> Any:
    """A decoder that says nothing, quantized by torchao in groups of 32."""
    from torchao.quantization import IntxWeightOnlyConfig, PerGroup, quantize_

    layers, width = (2, 64) if small else (8, 1024)
    config = transformers.LlamaConfig(
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 32,
        num_key_value_heads=width // 32,
        vocab_size=1000,
    )
    model = transformers.LlamaForCausalLM(config)
    quantize_(model, IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)))
    return model


def main() -> None:
    """Generate twice: once with compiling, once without."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", nargs="?", type=Path)
    parser.add_argument("--prompt", default="The sea")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--small", action="store_true", help="of random weights: a few layers")
    args = parser.parse_args()
    if args.path is not None and not args.path.is_file():
        parser.error(f"there is no file {args.path}")
    tokenizer: Any = None
    if args.path is None:
        model = of_random_weights(args.small)
        ids = torch.arange(3, 19).view(1, -1)
    else:
        model, tokenizer = of_file(args.path)
        ids = tokenizer(args.prompt, return_tensors="pt").input_ids
    model = model.eval().requires_grad_(False)
    # One graph for prompts of any length and one for what follows; rows of bytes, as llama.cpp multiplies.
    model.forward = torch.compile(
        model.forward, backend="mlcc", dynamic=True, options={"activations": "int8"}
    )
    for turn in ("with compiling", "without"):
        begin = time.perf_counter()
        found = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=args.tokens,
            min_new_tokens=args.tokens,
            do_sample=False,
            cache_implementation="static",
            pad_token_id=0,
        )
        seconds = time.perf_counter() - begin
        print(
            f"{turn}: {args.tokens} tokens in {seconds:.2f} s, {args.tokens / seconds:.1f} a second"
        )
    print(tokenizer.decode(found[0]) if tokenizer else found[0].tolist())
    print(f"packs: {mlcc.cache_info()['pack_bytes'] / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
