"""`generate` of transformers through compiled decoders: eager's tokens, and how often Dynamo compiles for them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("nothing_kept")

TOKENS, VOCABULARY = 10, 200
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GPT2 = {"vocab_size": VOCABULARY, "n_positions": 128, "n_embd": 64, "n_layer": 2, "n_head": 4}
T5 = {
    "vocab_size": VOCABULARY,
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 96,
    "num_layers": 2,
    "num_heads": 4,
}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
# Class of the model, class of its configuration, its sizes.
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", SIZES),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {**SIZES, "head_dim": 16}),
    "mistral": ("MistralForCausalLM", "MistralConfig", {**SIZES, "sliding_window": None}),
    "gemma": ("GemmaForCausalLM", "GemmaConfig", {**SIZES, "head_dim": 16}),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", SIZES),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", GPT2),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", {**SIZES, **EXPERTS}),
    "t5": ("T5ForConditionalGeneration", "T5Config", {**T5, "decoder_start_token_id": 0}),
}
PROMPTS = [torch.arange(3, 3 + length).view(1, -1) for length in (7, 12, 9)]


def model_of(name: str, **changes: Any) -> Any:
    """With random weights, large enough that tokens differ."""
    torch.manual_seed(0)
    kind, config, sizes = MODELS[name]
    model = getattr(transformers, kind)(getattr(transformers, config)(**{**sizes, **changes}))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.1)
    return model.eval().requires_grad_(False)


def tokens_of(model: Any, prompt: torch.Tensor, **settings: Any) -> torch.Tensor:
    """Greedy ones."""
    tokens: torch.Tensor = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=TOKENS,
        min_new_tokens=TOKENS,
        do_sample=False,
        pad_token_id=0,
        **settings,
    )
    return tokens


@pytest.fixture
def compile_forward() -> Iterator[Callable[..., None]]:
    """Compiles a model's forward, and counts what Dynamo compiles from then on."""
    torch._dynamo.reset()
    counters.clear()

    def compile_it(model: Any, **settings: Any) -> None:
        model.forward = torch.compile(model.forward, backend="mlcc", **settings)

    yield compile_it
    torch._dynamo.reset()


def check(
    model: Any, compile_forward: Callable[..., None], generate: Callable[..., Any], **settings: Any
) -> int:
    """The same tokens behind each prompt; how many graphs there are then. None is added later."""
    expected = [generate(model, prompt) for prompt in PROMPTS]
    compile_forward(model, **settings)
    graphs = []
    for _ in range(2):
        for prompt, tokens in zip(PROMPTS, expected, strict=True):
            assert torch.equal(generate(model, prompt), tokens)
        graphs.append(int(counters["stats"]["unique_graphs"]))
    assert not counters["graph_break"]
    assert graphs[0] == graphs[1]
    return graphs[0]


@pytest.mark.parametrize("name", MODELS)
def test_a_prompt_and_what_follows_are_two_graphs(
    name: str, compile_forward: Callable[..., None]
) -> None:
    generate = functools.partial(tokens_of, cache_implementation="static")
    assert check(model_of(name), compile_forward, generate, dynamic=True) <= 2


def test_windows_add_graphs(compile_forward: Callable[..., None]) -> None:
    """transformers asks in Python whether a window is full."""
    model = model_of("mistral", sliding_window=10)
    generate = functools.partial(tokens_of, cache_implementation="static")
    assert check(model, compile_forward, generate, dynamic=True) <= 4


def test_sources_that_vary(compile_forward: Callable[..., None]) -> None:
    """Sizes of the ids alone are symbols: as few graphs, and each is traced faster."""
    generate = functools.partial(tokens_of, cache_implementation="static")
    names = r"L\['kwargs'\]\['(input_ids|position_ids|attention_mask)'\]"
    with torch.compiler.config.patch(dynamic_sources=names):
        assert check(model_of("llama"), compile_forward, generate) <= 2


@pytest.mark.parametrize(
    "settings", [{}, {"num_beams": 3}, {"num_beams": 2, "cache_implementation": "static"}], ids=str
)
def test_caches_that_grow_and_beams(
    settings: dict[str, Any], compile_forward: Callable[..., None]
) -> None:
    generate = functools.partial(tokens_of, **settings)
    assert check(model_of("llama"), compile_forward, generate, dynamic=True) <= 2


def test_assisted(compile_forward: Callable[..., None]) -> None:
    """A smaller model proposes tokens."""
    assistant = model_of("llama", num_hidden_layers=1)
    generate = functools.partial(tokens_of, assistant_model=assistant)
    check(model_of("llama"), compile_forward, generate, dynamic=True)
