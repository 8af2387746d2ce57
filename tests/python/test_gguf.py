"""GGUF files in models of transformers: dequantized as the package gguf does it, and refused where damaged."""

from __future__ import annotations

import copy
import io
import pickle
import random
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mlcc
import mlcc.gguf
from tests.python.accuracy import check_all

gguf = pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("nothing_kept")

TYPES = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]
LAYERS, WIDTH, HEADS, KEY_HEADS, VOCABULARY = 2, 256, 8, 2, 160


def config_of(kind: str) -> Any:
    """Of a small model."""
    names = {"llama": "LlamaConfig", "qwen2": "Qwen2Config", "qwen3": "Qwen3Config"}
    return getattr(transformers, names[kind])(
        hidden_size=WIDTH,
        intermediate_size=512,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        vocab_size=VOCABULARY,
        head_dim=WIDTH // HEADS,
        tie_word_embeddings=False,
    )


def model_of(kind: str) -> Any:
    """With random weights."""
    torch.manual_seed(0)
    return (
        transformers.AutoModelForCausalLM.from_config(config_of(kind)).eval().requires_grad_(False)
    )


def blocks(kind: str, rows: int, columns: int) -> np.ndarray[Any, Any]:
    """Random bytes, with scales that are small numbers."""
    rng = np.random.default_rng(rows * columns)
    type_of = gguf.GGMLQuantizationType[kind]
    elements, size = gguf.GGML_QUANT_SIZES[type_of]
    raw = rng.integers(0, 256, (rows * columns // elements, size), dtype=np.uint8)
    places = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q2_K": (80, 82), "Q4_K": (0, 2), "Q5_K": (0, 2)}
    for place in places.get(kind, (0,) if not kind.endswith("_K") else (size - 2,)):
        numbers = (rng.random((len(raw), 1)) * 2e-3 + 1e-3).astype(np.float16)
        raw[:, place : place + 2] = numbers.view(np.uint8)
    return raw.reshape(rows, -1)


def write(
    path: Path, kind: str, model: Any, arch: str = "llama", *, leave_out: str = ""
) -> dict[str, torch.Tensor]:
    """A file with all weights of this type; returns what the package makes of it, by parameter."""
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(LAYERS)
    names = gguf.get_tensor_name_map(
        {name: one for one, name in gguf.MODEL_ARCH_NAMES.items()}[arch], LAYERS
    )
    found = {}
    for name, parameter in model.named_parameters():
        stem, _, end = name.rpartition(".")
        target = f"{names.get_name(stem)}.{end}"
        heads = {".q_proj.": HEADS, ".k_proj.": KEY_HEADS}.get(f".{stem.rpartition('.')[2]}.", 0)
        if parameter.dim() == 2 and kind != "F32":
            raw = blocks(kind, *parameter.shape)
            values = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])
        else:
            values = raw = parameter.detach().float().numpy()
        value = torch.from_numpy(np.array(values))
        if arch == "llama" and heads:
            value = value.view(heads, -1, 2, *value.shape[1:]).transpose(1, 2).reshape(value.shape)
        found[name] = value
        if target == leave_out:
            continue
        if parameter.dim() == 2 and kind != "F32":
            writer.add_tensor(target, raw, raw_dtype=gguf.GGMLQuantizationType[kind])
        else:
            writer.add_tensor(target, raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return found


def with_values(model: Any, values: dict[str, torch.Tensor]) -> Any:
    """A copy with these parameters."""
    other = copy.deepcopy(model)
    other.load_state_dict(values)
    return other


@pytest.mark.parametrize("kind", TYPES)
def test_types(kind: str, tmp_path: Path) -> None:
    """Bit-equal to the package's numbers, and a model that computes with them."""
    model = model_of("llama")
    values = write(tmp_path / "model.gguf", kind, model)
    plain = with_values(model, values)
    assert mlcc.gguf.load(model, tmp_path / "model.gguf") is model
    for name, value in values.items():
        found = model.get_submodule(name.rpartition(".")[0]).weight
        assert torch.equal(found.float(), value), name
    ids = torch.randint(0, VOCABULARY, (1, 7))
    with torch.no_grad():
        eager, exact = plain(ids).logits, copy.deepcopy(plain).double()(ids).logits
        torch.testing.assert_close(model(ids).logits, eager, rtol=1e-3, atol=1e-3)
        torch._dynamo.reset()
        compiled = torch.compile(model, backend="mlcc")
        for _ in range(2):
            check_all(compiled(ids).logits, eager, exact)


@pytest.mark.parametrize("kind", TYPES)
def test_layers_with_rows_of_bytes(kind: str, tmp_path: Path) -> None:
    """Products are of integers, whatever the type's groups, zero points and minima."""
    model = model_of("llama")
    write(tmp_path / "model.gguf", kind, model)
    mlcc.gguf.load(model, tmp_path / "model.gguf")
    layer = model.model.layers[0].mlp.up_proj
    x = torch.randn(5, layer.weight.shape[1])
    options = {"activations": "int8", "dump": "graph", "dump_dir": str(tmp_path / "dump")}
    torch._dynamo.reset()
    with torch.no_grad():
        found = torch.compile(layer, backend="mlcc", options=options)(x)
        expected = layer(x)
    assert 1e-4 < (found - expected).norm() / expected.norm() < 0.02
    texts = [path.read_text(encoding="utf-8") for path in tmp_path.rglob("*_fused.graph")]
    assert any("contract_groups" in text for text in texts)


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
def test_architectures(kind: str, tmp_path: Path) -> None:
    model = model_of(kind)
    values = write(tmp_path / "model.gguf", "Q4_0", model, kind)
    plain = with_values(model, values)
    mlcc.gguf.load(model, tmp_path / "model.gguf")
    ids = torch.randint(0, VOCABULARY, (1, 5))
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, plain(ids).logits, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("activations", ["", "int8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packs_have_the_size_of_the_file(
    dtype: torch.dtype, activations: str, tmp_path: Path
) -> None:
    model = model_of("llama").to(dtype)
    write(tmp_path / "model.gguf", "Q4_0", model_of("llama"))
    mlcc.gguf.load(model, tmp_path / "model.gguf")
    weights = [module for module in model.modules() if isinstance(module, mlcc.gguf.Linear)]
    size = sum(one.quantized.raw.numel() for one in weights)
    before = mlcc.cache_info()["pack_bytes"]
    compiled = torch.compile(model, backend="mlcc", options={"activations": activations})
    with torch.no_grad():
        for length in (6, 1, 7):  # graphs that share them
            compiled(torch.randint(0, VOCABULARY, (1, length)))
    assert mlcc.cache_info()["pack_bytes"] - before <= size * 1.1


def test_generation(tmp_path: Path) -> None:
    model = model_of("llama")
    plain = with_values(model, write(tmp_path / "model.gguf", "Q4_K", model))
    mlcc.gguf.load(model, tmp_path / "model.gguf")
    ids = torch.randint(3, VOCABULARY, (1, 6))
    settings = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    expected = plain.generate(ids, **settings)
    model.forward = torch.compile(model.forward, backend="mlcc")
    assert torch.equal(model.generate(ids, **settings), expected)


def resident(tensor: torch.Tensor) -> int:
    """How many whole pages of its bytes lie in memory."""
    size = resource.getpagesize()
    first, behind = -(-tensor.data_ptr() // size), (tensor.data_ptr() + tensor.nbytes) // size
    with open("/proc/self/pagemap", "rb") as pages:
        pages.seek(first * 8)
        words = np.frombuffer(pages.read((behind - first) * 8), np.uint64)
    return int((words >> 63).sum())


@pytest.mark.skipif(not Path("/proc/self/pagemap").exists(), reason="needs Linux")
def test_of_the_file_nothing_stays_in_memory(tmp_path: Path) -> None:
    """Behind the packs; what a program wrote into it does."""
    model, path = model_of("llama"), tmp_path / "model.gguf"
    write(path, "Q8_0", model)
    mlcc.gguf.load(model, path)
    layer = model.model.layers[0].mlp.up_proj
    x = torch.randn(2, WIDTH)
    torch._dynamo.reset()
    compiled = torch.compile(layer, backend="mlcc")
    with torch.no_grad():
        expected = layer(x)
        assert resident(layer.quantized.raw) > 20
        torch.testing.assert_close(compiled(x), expected, rtol=1e-4, atol=1e-4)
        assert resident(layer.quantized.raw) == 0
        layer.quantized.raw[3:] = layer.quantized.raw[:-3].clone()
        changed = layer(x)
        assert not torch.equal(changed, expected)
        for _ in range(2):
            torch.testing.assert_close(compiled(x), changed, rtol=1e-4, atol=1e-4)
        assert torch.equal(layer(x), changed)


def on_meta(kind: str = "llama", **changes: Any) -> Any:
    """Without memory."""
    config = config_of(kind)
    for name, value in changes.items():
        setattr(config, name, value)
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config).eval()


def test_a_model_on_the_meta_device(tmp_path: Path) -> None:
    """Its buffers are those that transformers begins with."""
    plain = with_values(model_of("llama"), write(tmp_path / "m.gguf", "Q4_0", model_of("llama")))
    model = mlcc.gguf.load(on_meta(), tmp_path / "m.gguf")
    ids = torch.randint(0, VOCABULARY, (1, 7))
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, plain(ids).logits, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_what_was_on_the_meta_device_is_no_view_of_the_file(kind: str, tmp_path: Path) -> None:
    """Of qwen2 layers have biases."""
    write(tmp_path / "m.gguf", "Q4_0", model_of(kind), kind)
    model = mlcc.gguf.load(on_meta(kind), tmp_path / "m.gguf")
    plain = mlcc.gguf.load(model_of(kind), tmp_path / "m.gguf")
    stored = io.BytesIO()
    torch.save(model.state_dict(), stored)
    stored.seek(0)
    for name, value in torch.load(stored).items():
        assert torch.equal(value, plain.state_dict()[name]), name


def test_a_shared_weight_on_the_meta_device(tmp_path: Path) -> None:
    plain = model_of("llama")
    write(tmp_path / "m.gguf", "F32", plain, leave_out="output.weight")
    model = mlcc.gguf.load(on_meta(tie_word_embeddings=True), tmp_path / "m.gguf")
    shared = model.model.embed_tokens.weight
    assert model.lm_head.weight is shared
    head = torch.compile(model.lm_head, backend="mlcc")
    x = torch.randn(2, WIDTH)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(head(x), model.lm_head(x))
            shared.mul_(2)
            torch.testing.assert_close(head(x), model.lm_head(x))
            shared.data.mul_(2)


@pytest.mark.parametrize("is_inference", [True, False])
def test_modes_around_loading(is_inference: bool, tmp_path: Path) -> None:
    """A model that was made in inference mode can be loaded outside of it, and the other way round."""
    write(tmp_path / "m.gguf", "Q4_0", model_of("llama"))
    with torch.inference_mode(is_inference):
        made = model_of("llama")
    with torch.inference_mode(not is_inference), torch.device("meta"):
        mlcc.gguf.load(made, tmp_path / "m.gguf")
        model = mlcc.gguf.load(on_meta(), tmp_path / "m.gguf")
    x = torch.randn(1, 3, WIDTH, requires_grad=True)
    model(inputs_embeds=x).logits.sum().backward()
    assert x.grad is not None
    ids = torch.arange(4).view(1, -1)
    with torch.no_grad():
        torch.testing.assert_close(made(ids).logits, model(ids).logits)


def test_embeddings(tmp_path: Path) -> None:
    """As torch's: no rows, rows that there are not, another dtype."""
    write(tmp_path / "m.gguf", "Q5_K", model_of("llama"))
    model = mlcc.gguf.load(model_of("llama"), tmp_path / "m.gguf")
    embed = model.model.embed_tokens
    compiled = torch.compile(embed, backend="mlcc", dynamic=True)
    for shape in ((0,), (2, 0), (), (2, 3)):
        ids = torch.ones(shape, dtype=torch.long)
        assert torch.equal(embed(ids), embed.weight[ids])
        assert torch.equal(compiled(ids), embed.weight[ids])
    for number in (-1, VOCABULARY):
        with pytest.raises(IndexError):
            embed(torch.tensor([number]))
        with pytest.raises(IndexError):
            compiled(torch.tensor([number, 1]))
    assert (
        model.to(torch.bfloat16)(torch.ones(1, 2, dtype=torch.long)).logits.dtype == torch.bfloat16
    )


def test_what_is_saved_of_a_layer_is_its_own(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", "Q4_0", model_of("llama"))
    model = mlcc.gguf.load(model_of("llama"), tmp_path / "m.gguf")
    layer, stored = model.model.layers[0].mlp.up_proj, io.BytesIO()
    torch.save(layer.state_dict(), stored)
    assert stored.tell() < layer.quantized.raw.numel() + 8192
    again = pickle.loads(pickle.dumps(model))
    ids = torch.arange(4).view(1, -1)
    with torch.no_grad():
        assert torch.equal(again(ids).logits, model(ids).logits)
    with pytest.raises(mlcc.Error, match="load into a new one"):
        mlcc.gguf.load(model, tmp_path / "m.gguf")


def test_a_buffer_that_nothing_fills(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", "Q4_0", model_of("llama"))
    model = on_meta()
    model.model.register_buffer("scale", torch.ones(3, device="meta"))
    with pytest.raises(mlcc.Error, match="buffers of LlamaModel are on the meta device"):
        mlcc.gguf.load(model, tmp_path / "m.gguf")
    assert all(one.is_meta for one in model.parameters())


def test_a_last_layer_that_is_the_embedding(tmp_path: Path) -> None:
    model = model_of("llama")
    write(tmp_path / "model.gguf", "Q8_0", model, leave_out="output.weight")
    mlcc.gguf.load(model, tmp_path / "model.gguf")
    assert model.lm_head.quantized is model.model.embed_tokens.quantized


def unchanged(model: Any, before: dict[str, torch.Tensor]) -> bool:
    """Whether it has the same parameters."""
    now = dict(model.named_parameters())
    return now.keys() == before.keys() and all(torch.equal(now[name], before[name]) for name in now)


def state(model: Any) -> dict[str, torch.Tensor]:
    """Copies of its parameters."""
    return {name: one.clone() for name, one in model.named_parameters()}


def test_what_is_refused(tmp_path: Path) -> None:
    model, path = model_of("llama"), tmp_path / "model.gguf"
    before = state(model)

    def refuse(words: str, target: Any = model) -> None:
        with pytest.raises(mlcc.Error, match=words):
            mlcc.gguf.load(target, path)
        assert unchanged(model, before)

    refuse("there is no such file")
    path.write_bytes(b"")
    refuse("no GGUF file")
    write(path, "Q4_0", model, leave_out="blk.1.ffn_down.weight")
    refuse("there is no tensor blk.1.ffn_down.weight")
    write(path, "TQ2_0", model)
    refuse("tensor .* is TQ2_0, which is not known")
    writer = gguf.GGUFWriter(path, "starcoder")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    refuse("architecture starcoder is not known")
    write(path, "Q4_0", model)
    config = config_of("llama")
    config.intermediate_size = 768
    other = transformers.LlamaForCausalLM(config)
    with pytest.raises(mlcc.Error, match=r"tensor .* is .*, expected"):
        mlcc.gguf.load(other, path)


def test_damaged_files(tmp_path: Path) -> None:
    """An error each, and the model as it was; or numbers that were damaged."""
    model, path = model_of("llama"), tmp_path / "model.gguf"
    write(path, "Q4_0", model)
    whole = path.read_bytes()
    before = state(model)
    rng = random.Random(0)
    refused = 0
    for turn in range(200):
        damaged = bytearray(whole)
        if turn % 2:
            del damaged[rng.randrange(len(damaged)) :]
        else:
            # The header and the names and places of tensors are the first few kilobytes.
            for _ in range(rng.randrange(1, 8)):
                damaged[rng.randrange(min(len(damaged), 4096))] = rng.randrange(256)
        path.write_bytes(damaged)
        target = copy.deepcopy(model)
        try:
            mlcc.gguf.load(target, path)
        except mlcc.Error:
            refused += 1
            assert unchanged(target, before)
    assert refused > 100
