"""Architectures of `transformers` with their whole structure and small random weights.

Nothing is downloaded: each model is made of its configuration class, with few layers and narrow ones. `LENGTHS` are the
sequence lengths (of images the sides, of sound the thousands of samples) that a model is run at; short ones ("steps")
where the model is a loop over the sequence, which torch unrolls.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

LENGTHS = {"text": (12, 20, 33), "steps": (5, 9, 14), "image": (64, 96, 128), "sound": (4, 6, 9)}
BATCH = 2
VOCABULARY = 128

# What is set in a configuration, and in those inside of it, wherever it has an attribute of that name.
_SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "d_model": 32,
    "n_embd": 32,
    "dim": 32,
    "embedding_size": 32,
    "intermediate_size": 64,
    "d_ff": 64,
    "ffn_dim": 64,
    "hidden_dim": 64,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_layers": 2,
    "n_layer": 2,
    "n_layers": 2,
    "num_decoder_layers": 2,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "num_attention_heads": 4,
    "num_heads": 4,
    "n_head": 4,
    "n_heads": 4,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "d_kv": 8,
    "max_position_embeddings": 64,
    "n_positions": 64,
    "num_local_experts": 4,
    "num_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "use_cache": False,
    # so that eager and compiled draw no numbers
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "hidden_dropout": 0.0,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "dropout_rate": 0.0,
    "classifier_dropout": 0.0,
    "layerdrop": 0.0,
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
    "drop_path_rate": 0.0,
    "drop_connect_rate": 0.0,
    "final_dropout": 0.0,
    "classifier_dropout_prob": 0.0,
    "aspp_dropout_prob": 0.0,
    "seq_classif_dropout": 0.0,
    "router_jitter_noise": 0.0,
}


@dataclass(frozen=True)
class Architecture:
    """A model class of `transformers`, how its configuration differs from `_SMALL` (None: the default; "part.": of a
    configuration inside), and what it is fed."""

    name: str
    module: str  # of transformers.models
    model: str
    inputs: Callable[[Any, int], dict[str, torch.Tensor]]
    kind: str = "text"  # of lengths
    config: dict[str, Any] = field(default_factory=dict)

    def build(self) -> torch.nn.Module:
        """The model with random weights, in eval mode."""
        module = importlib.import_module(f"transformers.models.{self.module}")
        kind = getattr(module, self.model)
        torch.manual_seed(0)
        model = kind(self._config(kind.config_class))
        return model.eval()

    def _config(self, kind: type) -> Any:
        overrides = dict(self.config)
        parts = {key[:-1]: overrides.pop(key) for key in list(overrides) if key.endswith(".")}
        small = {key: value for key, value in _SMALL.items() if key in _attributes(kind)}
        for part, changes in parts.items():
            part_kind = kind.sub_configs[part]  # type: ignore[attr-defined]
            part_small = {k: v for k, v in _SMALL.items() if k in _attributes(part_kind)}
            small[part] = part_small | changes
        chosen = small | overrides
        return kind(**{key: value for key, value in chosen.items() if value is not None})

    def feed(self, model: torch.nn.Module, length: int) -> dict[str, torch.Tensor]:
        """Inputs of the model at a length of `LENGTHS[kind]`."""
        torch.manual_seed(length)
        return self.inputs(model.config, length)


def _attributes(kind: type) -> set[str]:
    """Names that a configuration takes; some are other names of the same thing, which must not be given twice."""
    made = kind()
    aliases = set(getattr(kind, "attribute_map", {}))
    return {name for name in _SMALL if hasattr(made, name) and name not in aliases}


# -- inputs


def _ids(length: int, vocabulary: int = VOCABULARY) -> torch.Tensor:
    return torch.randint(3, vocabulary, (BATCH, length))


def _mask(length: int) -> torch.Tensor:
    """The second row is padded at its end."""
    mask = torch.ones(BATCH, length, dtype=torch.long)
    mask[1, length - 3 :] = 0
    return mask


def text(config: Any, length: int) -> dict[str, torch.Tensor]:
    """Token numbers and a mask of padding."""
    del config
    return {"input_ids": _ids(length), "attention_mask": _mask(length)}


def tokens(config: Any, length: int) -> dict[str, torch.Tensor]:
    """Token numbers alone."""
    del config
    return {"input_ids": _ids(length)}


def pair(config: Any, length: int) -> dict[str, torch.Tensor]:
    """Token numbers for an encoder, and shorter ones for a decoder."""
    return {**text(config, length), "decoder_input_ids": _ids(length // 2 + 1)}


def image(config: Any, length: int) -> dict[str, torch.Tensor]:
    """Colour images, `length` pixels high and wide."""
    del config
    return {"pixel_values": torch.randn(BATCH, 3, length, length)}


def fixed_image(config: Any, length: int) -> dict[str, torch.Tensor]:
    """Colour images of the size that the model is made for; `length` changes the batch."""
    side = config.image_size
    return {"pixel_values": torch.randn(length // 32, 3, side, side)}


def masked_image(config: Any, length: int) -> dict[str, torch.Tensor]:
    """As fixed_image, and the numbers whose order says which patches are hidden: distinct ones in any dtype."""
    images = fixed_image(config, length)
    patches = (config.image_size // config.patch_size) ** 2
    order = [torch.randperm(patches) for _ in images["pixel_values"]]
    return {**images, "noise": torch.stack(order) / patches}


def sound(config: Any, length: int) -> dict[str, torch.Tensor]:
    """Waveforms of `length` thousand samples."""
    del config
    return {"input_values": torch.randn(BATCH, length * 1000)}


def text_and_image(config: Any, length: int) -> dict[str, torch.Tensor]:
    """Captions, and images of the size that the model is made for."""
    side = config.vision_config.image_size
    return {**text(config, length), "pixel_values": torch.randn(BATCH, 3, side, side)}


def _spectrogram(config: Any, length: int) -> dict[str, torch.Tensor]:
    frames = 2 * config.max_source_positions
    features = torch.randn(length // 8 + 1, config.num_mel_bins, frames)
    return {
        "input_features": features,
        "decoder_input_ids": _ids(length)[:1].expand(len(features), -1),
    }


def _boxes(config: Any, length: int) -> dict[str, torch.Tensor]:
    corners = torch.randint(0, 50, (BATCH, length, 2))
    return {**text(config, length), "bbox": torch.cat([corners, corners + 20], dim=-1)}


def _series(config: Any, length: int) -> dict[str, torch.Tensor]:
    batch = length // 4
    return {"past_values": torch.randn(batch, config.context_length, config.num_input_channels)}


def _returns(config: Any, length: int) -> dict[str, torch.Tensor]:
    return {
        "states": torch.randn(BATCH, length, config.state_dim),
        "actions": torch.randn(BATCH, length, config.act_dim),
        "rewards": torch.randn(BATCH, length, 1),
        "returns_to_go": torch.randn(BATCH, length, 1),
        "timesteps": torch.arange(length).expand(BATCH, -1),
        "attention_mask": torch.ones(BATCH, length),
    }


def _fbank(config: Any, length: int) -> dict[str, torch.Tensor]:
    return {"input_values": torch.randn(length // 2, config.max_length, config.num_mel_bins)}


_VIT = {"image_size": 64, "patch_size": 16}
_STAGES: dict[str, Any] = {"depths": [1, 1, 2, 1], "hidden_sizes": [16, 24, 32, 48]}
_CLIP = {"text_config.": {"eos_token_id": 127}, "vision_config.": _VIT, "projection_dim": 16}
_WAVES = {
    "conv_dim": (16, 16, 32),
    "conv_kernel": (10, 3, 3),
    "conv_stride": (5, 4, 4),
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "mask_time_prob": 0.0,
}


def _language(name: str, model: str, module: str = "", **config: Any) -> Architecture:
    return Architecture(name, module or name, model, text, "text", config)


def _vision(name: str, model: str, module: str = "", **config: Any) -> Architecture:
    return Architecture(name, module or name, model, image, "image", config)


ARCHITECTURES = {
    one.name: one
    for one in [
        # encoders
        _language("bert", "BertForMaskedLM"),
        _language("roberta", "RobertaForSequenceClassification"),
        _language("distilbert", "DistilBertForTokenClassification"),
        _language("albert", "AlbertForMaskedLM"),
        _language("electra", "ElectraForPreTraining"),
        _language(
            "deberta_v2",
            "DebertaV2ForSequenceClassification",
            relative_attention=True,
            pos_att_type=["p2c", "c2p"],
            position_buckets=16,
        ),
        _language("mpnet", "MPNetForQuestionAnswering"),
        _language("convbert", "ConvBertForMaskedLM"),
        _language("squeezebert", "SqueezeBertForMaskedLM"),
        _language("funnel", "FunnelModel", block_sizes=[1, 1], num_hidden_layers=None),
        _language(
            "modernbert", "ModernBertForMaskedLM", global_attn_every_n_layers=2, local_attention=8
        ),
        _language("roformer", "RoFormerForMaskedLM"),
        _language(
            "mobilebert", "MobileBertForMaskedLM", intra_bottleneck_size=16, true_hidden_size=16
        ),
        _language("ibert", "IBertForMaskedLM"),
        Architecture("fnet", "fnet", "FNetForMaskedLM", tokens),
        Architecture(
            "canine",
            "canine",
            "CanineModel",
            text,
            "text",
            {"num_hash_buckets": 64, "local_transformer_stride": 16, "upsampling_kernel_size": 4},
        ),
        Architecture(
            "layoutlm",
            "layoutlm",
            "LayoutLMForTokenClassification",
            _boxes,
            "text",
            {"max_2d_position_embeddings": 128},
        ),
        # decoders
        _language("gpt2", "GPT2LMHeadModel"),
        _language(
            "gpt_neo",
            "GPTNeoForCausalLM",
            attention_types=[[["global", "local"], 1]],
            window_size=8,
        ),
        _language("gpt_neox", "GPTNeoXForCausalLM"),
        _language("gptj", "GPTJForCausalLM", rotary_dim=4),
        _language("opt", "OPTForCausalLM", word_embed_proj_dim=32),
        _language("bloom", "BloomForCausalLM"),
        _language("llama", "LlamaForCausalLM"),
        _language("mistral", "MistralForCausalLM", sliding_window=8),
        _language("qwen2", "Qwen2ForCausalLM"),
        _language("qwen3", "Qwen3ForCausalLM"),
        _language("gemma2", "Gemma2ForCausalLM", sliding_window=8, query_pre_attn_scalar=8),
        _language(
            "gemma3", "Gemma3ForCausalLM", "gemma3", sliding_window=8, query_pre_attn_scalar=8
        ),
        _language("phi", "PhiForCausalLM"),
        _language("phi3", "Phi3ForCausalLM"),
        _language("falcon", "FalconForCausalLM", head_dim=None),
        _language("mpt", "MptForCausalLM"),
        _language("stablelm", "StableLmForCausalLM"),
        _language("olmo2", "Olmo2ForCausalLM"),
        _language("cohere", "CohereForCausalLM"),
        _language("xglm", "XGLMForCausalLM", attention_heads=4),
        _language("glm4", "Glm4ForCausalLM"),
        # mixtures of experts
        _language("mixtral", "MixtralForCausalLM"),
        _language("qwen2_moe", "Qwen2MoeForCausalLM"),
        _language("olmoe", "OlmoeForCausalLM"),
        _language("gpt_oss", "GptOssForCausalLM", sliding_window=8),
        _language(
            "deepseek_v3",
            "DeepseekV3ForCausalLM",
            q_lora_rank=16,
            kv_lora_rank=16,
            qk_nope_head_dim=8,
            qk_rope_head_dim=8,
            v_head_dim=8,
            n_group=2,
            topk_group=1,
            first_k_dense_replace=1,
            num_key_value_heads=4,
        ),
        Architecture(
            "switch_transformers",
            "switch_transformers",
            "SwitchTransformersForConditionalGeneration",
            pair,
            "text",
            {"num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1},
        ),
        # state spaces and recurrences
        Architecture("mamba", "mamba", "MambaForCausalLM", tokens, "steps", {"state_size": 4}),
        Architecture(
            "mamba2",
            "mamba2",
            "Mamba2ForCausalLM",
            tokens,
            "text",
            {"state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 8},
        ),
        Architecture(
            "falcon_mamba",
            "falcon_mamba",
            "FalconMambaForCausalLM",
            tokens,
            "steps",
            {"state_size": 4},
        ),
        Architecture(
            "rwkv", "rwkv", "RwkvForCausalLM", tokens, "steps", {"attention_hidden_size": 32}
        ),
        Architecture(
            "recurrent_gemma",
            "recurrent_gemma",
            "RecurrentGemmaForCausalLM",
            text,
            "steps",
            {"lru_width": 32, "attention_window_size": 8, "num_hidden_layers": 3},
        ),
        _language(
            "bamba",
            "BambaForCausalLM",
            attn_layer_indices=[1],
            mamba_n_heads=8,
            mamba_d_head=8,
            mamba_d_state=8,
            mamba_chunk_size=8,
        ),
        # encoders with decoders
        Architecture("t5", "t5", "T5ForConditionalGeneration", pair),
        Architecture("bart", "bart", "BartForConditionalGeneration", pair),
        Architecture("pegasus", "pegasus", "PegasusForConditionalGeneration", pair),
        Architecture("marian", "marian", "MarianMTModel", pair),
        Architecture("m2m_100", "m2m_100", "M2M100ForConditionalGeneration", pair),
        Architecture(
            "prophetnet",
            "prophetnet",
            "ProphetNetForConditionalGeneration",
            pair,
            "text",
            {
                "num_hidden_layers": None,
                "num_encoder_layers": 2,
                "num_encoder_attention_heads": 4,
                "num_decoder_attention_heads": 4,
            },
        ),
        # vision
        Architecture("vit", "vit", "ViTForImageClassification", fixed_image, "image", _VIT),
        Architecture("deit", "deit", "DeiTForImageClassification", fixed_image, "image", _VIT),
        Architecture("beit", "beit", "BeitForImageClassification", fixed_image, "image", _VIT),
        Architecture(
            "dinov2", "dinov2", "Dinov2ForImageClassification", fixed_image, "image", _VIT
        ),
        _vision(
            "swin",
            "SwinForImageClassification",
            image_size=64,
            embed_dim=16,
            depths=[1, 2],
            num_heads=[2, 4],
            window_size=4,
        ),
        _vision("convnext", "ConvNextForImageClassification", **_STAGES),
        _vision("resnet", "ResNetForImageClassification", embedding_size=16, **_STAGES),
        _vision(
            "regnet", "RegNetForImageClassification", embedding_size=16, groups_width=8, **_STAGES
        ),
        _vision("mobilenet_v2", "MobileNetV2ForImageClassification"),
        _vision(
            "mobilevit",
            "MobileViTForImageClassification",
            hidden_sizes=[24, 32, 40],
            neck_hidden_sizes=[8, 12, 16, 20, 24, 28, 64],
            num_attention_heads=4,
        ),
        _vision(
            "segformer",
            "SegformerForSemanticSegmentation",
            depths=[1, 1, 1, 1],
            hidden_sizes=[8, 16, 24, 32],
            decoder_hidden_size=16,
            num_attention_heads=[1, 2, 4, 4],
        ),
        _vision("poolformer", "PoolFormerForImageClassification", **_STAGES),
        _vision(
            "efficientnet",
            "EfficientNetForImageClassification",
            width_coefficient=0.25,
            depth_coefficient=0.25,
            hidden_dim=320,
        ),
        Architecture("vit_mae", "vit_mae", "ViTMAEModel", masked_image, "image", _VIT),
        # sound
        Architecture("wav2vec2", "wav2vec2", "Wav2Vec2ForCTC", sound, "sound", _WAVES),
        Architecture("hubert", "hubert", "HubertForCTC", sound, "sound", _WAVES),
        Architecture(
            "whisper",
            "whisper",
            "WhisperForConditionalGeneration",
            _spectrogram,
            "text",
            {"max_source_positions": 30, "max_target_positions": 64, "num_mel_bins": 16},
        ),
        Architecture(
            "audio_spectrogram_transformer",
            "audio_spectrogram_transformer",
            "ASTForAudioClassification",
            _fbank,
            "text",
            {"max_length": 64, "num_mel_bins": 32},
        ),
        # several kinds of input, and others
        Architecture("clip", "clip", "CLIPModel", text_and_image, "text", _CLIP),
        Architecture(
            "siglip",
            "siglip",
            "SiglipModel",
            text_and_image,
            "text",
            {"text_config.": {}, "vision_config.": _VIT},
        ),
        Architecture("blip", "blip", "BlipModel", text_and_image, "text", _CLIP),
        Architecture(
            "patchtst",
            "patchtst",
            "PatchTSTForPrediction",
            _series,
            "text",
            {"num_input_channels": 3, "context_length": 32, "prediction_length": 8},
        ),
        Architecture(
            "decision_transformer",
            "decision_transformer",
            "DecisionTransformerModel",
            _returns,
            "text",
            {"state_dim": 5, "act_dim": 3, "max_ep_len": 64},
        ),
    ]
}
