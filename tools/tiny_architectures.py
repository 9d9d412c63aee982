"""Tiny random models of all causal architectures of transformers.

A tiny model has the structure of a released configuration: pattern of layers, ratios of heads, type
of RoPE, experts. Its sizes follow from the names of the fields.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

KINDS = tuple(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
VOCABULARY, LAYERS, WINDOW, HEADS, HEAD_DIM = 272, 4, 16, 4, 8
MAX_PARAMETERS = 3_000_000
MAX_GROUP = 8
"""Most query heads for a key and value head."""
_48 = "intermediate_size n_inner ffn_dim d_ff dim_ff ffn_hidden_size ffn_intermediate_size block_ff_dim"
_48 += " decoder_ffn_dim encoder_ffn_dim expert_ffn_hidden_size shared_intermediate_size dense_intermediate_size dff feed_forward_size"
_32 = "max_source_positions pronunciation_embed_dim shape_embed_dim nemo_conv_channels ext_pw_out_channel"
_32 += " depthwise_separable_out_channel"
_24 = "q_lora_rank qk_head_dim"
_16 = "moe_intermediate_size shared_expert_intermediate_size moe_shared_expert_intermediate_size kv_lora_rank"
_16 += " shared_experts_intermediate_size image_size crop_size num_position_embeddings mamba_chunk_size chunk_size"
_16 += " project_dim qk_nope_head_dim v_head_dim o_lora_rank adapter_rank hc_lowrank query_pre_attn_scalar router_hidden_size block_size attention_head_dim"
_16 += " sliding_window attention_chunk_size attention_window_size window_size sliding_window_size"
_16 += " index_n_heads"  # with few heads, ReLU makes scores equal, and their order unknown
_8 = "head_dim d_kv dim_head qk_rope_head_dim state_size ssm_state_size mamba_d_state mamba_d_head linear_head_dim"
_8 += " mamba_num_heads mamba_head_dim linear_key_head_dim linear_value_head_dim attention_size n_mamba_heads"
_8 += " hidden_size_per_layer_input patch_size num_classes num_mel_bins input_size index_head_dim kv_channels d_head mamba_headdim attention_head_size"
_4 = "num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers num_attention_heads n_head n_heads"
_4 += " num_heads decoder_attention_heads encoder_attention_heads num_experts num_local_experts n_routed_experts"
_4 += " mamba_d_conv rotary_dim laurel_rank num_image_tokens index_block_size linear_num_heads"
_4 += " time_step_rank mamba_dt_rank num_blocks index_topk num_encoder_layers num_decoder_layers attention_heads"
_4 += " num_encoder_attention_heads num_decoder_attention_heads num_query_groups"
_2 = "num_key_value_heads num_experts_per_tok num_experts_per_token moe_topk moe_top_k depth layers"
_2 += " num_attention_groups altup_num_inputs num_codebooks mamba_expand index_topk_blocks n_group num_expert_group"
_2 += " zero_expert_num linear_num_key_heads"
_1 = "topk_group n_groups mamba_n_groups spatial_merge_size adapter_merge_size"
SIZES = {
    name: size
    for names, size in (
        (_48, 48),
        (_32, 32),
        (_24, 24),
        (_16, 16),
        (_8, 8),
        (_4, 4),
        (_2, 2),
        (_1, 1),
    )
    for name in names.split()
}
"""Largest value of a field. Smaller values and None stay."""
SIZES |= dict.fromkeys(
    (
        "vocab_size",
        "vocab_size_per_layer_input",
        "pronunciation_vocab_size",
        "shape_vocab_size",
        "decoder_vocab_size",
        "encoder_hash_byte_group_vocab",
    ),
    VOCABULARY,
)
SIZES |= dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx"), 2048)
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
WIDTHS = "hidden_size n_embd d_model embedding_size embedding_dim word_embed_proj_dim word_embedding_dim emb_dim"
WIDTHS += (
    " hidden_size_global adapter_in_dim adapter_out_dim adapter_input_size adapter_output_size"
)
WIDTHS += " dim_model lru_width conv_dim width attention_hidden_size out_hidden_size ple_embed_dim"
LAYER_INDICES = (
    "attn_layer_indices",
    "full_attn_idxs",
    "hybrid_layer_ids",
    "moe_layers",
    "mlp_only_layers",
    "cross_attention_layers",
)
FIRST_LAYERS = ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index")
DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")

LOCAL, FULL = "sliding_attention", "full_attention"
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 32.0, "low_freq_factor": 1.0}
LLAMA3 |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 40.0, "beta_fast": 32.0, "beta_slow": 1.0}
YARN |= {"mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096}
LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.75}
LONGROPE |= {"original_max_position_embeddings": 4096, "short_factor": [1.0] * 3}
LONGROPE |= {"long_factor": [1.0, 5.984965424, 32.1]}  # every 16th of 48


def _sizes(hidden: int, layers: int, heads: int, kv: int, **more: Any) -> dict[str, Any]:
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        **more,
    }


def _rope(theta: float, **more: Any) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": theta, **more}


def _at(indices: Sequence[int], depth: int, kind: str, other: str) -> list[str]:
    return [kind if layer in indices else other for layer in range(depth)]


RELEASED: dict[str, tuple[str, dict[str, Any]]] = {
    "bamba": ("ibm-ai-platform/Bamba-9B-v1", {"attn_layer_indices": [9, 18, 27]}),
    "deepseek_v2": (
        "deepseek-ai/DeepSeek-V2-Lite",
        _sizes(
            2048,
            27,
            16,
            16,
            q_lora_rank=None,
            n_routed_experts=64,
            num_experts_per_tok=6,
            n_group=1,
            topk_group=1,
            first_k_dense_replace=1,
            rope_parameters=YARN | {"mscale": 0.707, "mscale_all_dim": 0.707},
            max_position_embeddings=163_840,
        ),
    ),
    "deepseek_v3": (
        "deepseek-ai/DeepSeek-V3",
        {"rope_parameters": YARN, "max_position_embeddings": 163_840},
    ),
    "dots1": (
        "rednote-hilab/dots.llm1.base",
        {
            "n_routed_experts": 128,
            "n_shared_experts": 2,
            "num_experts_per_tok": 6,
            "first_k_dense_replace": 1,
            "n_group": 1,
            "topk_group": 1,
        },
    ),
    "gemma3_text": ("google/gemma-3-1b-it", _sizes(1152, 26, 4, 1)),
    "gemma3n_text": (
        "google/gemma-3n-E2B",
        {
            "num_hidden_layers": 30,
            "intermediate_size": [8192] * 30,
            "num_kv_shared_layers": 10,
            "activation_sparsity_pattern": [0.95] * 10 + [0.0] * 20,
        },
    ),
    "gemma4_text": (
        "google/gemma-4-E2B",
        _sizes(
            1536,
            35,
            8,
            1,
            layer_types=[LOCAL, LOCAL, LOCAL, LOCAL, FULL] * 7,
            num_kv_shared_layers=20,
            use_double_wide_mlp=True,
            final_logit_softcapping=30.0,
        ),
    ),
    "gpt_oss": ("openai/gpt-oss-20b", {"num_hidden_layers": 24}),
    "granitemoehybrid": (
        "ibm-granite/granite-4.0-h-350m",
        _sizes(
            768,
            32,
            12,
            4,
            layer_types=_at((10, 13, 17, 27), 32, FULL, "linear_attention"),
            num_local_experts=0,
            num_experts_per_tok=0,
            mamba_n_heads=48,
            mamba_d_head=32,
            mamba_d_state=128,
            tie_word_embeddings=True,
            position_embedding_type="nope",
            attention_multiplier=0.015625,
            embedding_multiplier=12.0,
            logits_scaling=3.0,
            residual_multiplier=0.246,
        ),
    ),
    "lfm2": (
        "LiquidAI/LFM2-1.2B",
        _sizes(2048, 16, 32, 8, layer_types=_at((2, 5, 8, 10, 12, 14), 16, FULL, "conv")),
    ),
    "lfm2_moe": (
        "LiquidAI/LFM2-8B-A1B",
        {"num_hidden_layers": 24, "layer_types": _at((2, 6, 10, 14, 18, 21), 24, FULL, "conv")},
    ),
    "llama": (
        "meta-llama/Llama-3.2-1B",
        _sizes(
            2048,
            16,
            32,
            8,
            head_dim=64,
            tie_word_embeddings=True,
            rope_parameters=LLAMA3,
            max_position_embeddings=131_072,
        ),
    ),
    "minimax": (
        "MiniMaxAI/MiniMax-Text-01-hf",
        _sizes(6144, 80, 64, 8, head_dim=128, layer_types=(["linear_attention"] * 7 + [FULL]) * 10),
    ),
    "nemotron_h": (
        "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
        {
            "hidden_size": 2688,
            "num_key_value_heads": 2,
            "n_routed_experts": 128,
            "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
        },
    ),
    "phi3": (
        "microsoft/Phi-4-mini-instruct",
        _sizes(3072, 32, 24, 8, tie_word_embeddings=True, max_position_embeddings=131_072),
    ),
    "qwen3": (
        "Qwen/Qwen3-0.6B",
        _sizes(1024, 28, 16, 8, head_dim=128, tie_word_embeddings=True, rope_parameters=_rope(1e6)),
    ),
    "qwen3_5_text": (
        "Qwen/Qwen3.5-0.8B",
        _sizes(
            1024,
            24,
            8,
            2,
            linear_num_value_heads=16,
            tie_word_embeddings=True,
            rope_parameters=_rope(1e7, partial_rotary_factor=0.25),
        ),
    ),
    "smollm3": (
        "HuggingFaceTB/SmolLM3-3B",
        {"tie_word_embeddings": True, "rope_parameters": _rope(5e6)},
    ),
}
RELEASED |= {
    kind: (RELEASED[text][0], {"text_config": RELEASED[text][1]})
    for kind, text in (("gemma4", "gemma4_text"), ("qwen3_5", "qwen3_5_text"))
}
"""Released model and the fields in which it differs from the default configuration, by architecture."""
FIXED: dict[str, dict[str, Any]] = {
    "cohere_compass_text": {"rope_parameters": {FULL: {"rope_type": "default", "rope_theta": 1e4}}},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0}},
    "dots3_note_text": {"head_dim": 32},
    "mamba2": {"head_dim": 16},
    "minimax_m3_vl_text": {"layer_types": [FULL, *["minimax_m3_sparse"] * 3]},
    "phi3": {"rope_parameters": LONGROPE},
    "qwen4_exp_text": {
        "indexer_n_heads": 4,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 16,
        "indexer_budget": 8,
        "indexer_compress_ratio": 4,
    },
    "reformer": {"axial_pos_embds_dim": [8, 24]},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"attention_hidden_size": 64},
    "zamba2": {"attention_hidden_size": 64},
}
"""Fields of tiny models that no rule gives, by architecture."""


UNMADE = {
    "blt": "it reads bytes in patches, and its configuration has no hidden size",
    "gemma3n": "its vision tower needs the package timm; gemma3n_text is its language model",
    "gemma4_assistant": "it drafts from the hidden states of another model and reads no text alone",
    "gemma4_unified_assistant": "it drafts from the hidden states of another model and reads no text alone",
    "musicgen": "it continues audio codes, not text",
    "musicgen_melody": "it continues audio codes, not text",
}
"""Reasons why an architecture has no tiny model."""


def released_model(kind: str) -> str:
    """Return the id of the model whose configuration a tiny model follows.

    If `RELEASED` lacks the architecture, this is the model that transformers documents for the
    default configuration, or "".
    """
    if kind in RELEASED:
        return RELEASED[kind][0]
    found = re.search(r"\[([\w.-]+/[\w.-]+)\]\(", CONFIG_MAPPING[kind].__doc__ or "")
    return found[1] if found else ""


def tiny_model(kind: str) -> Any:
    """Create a float32 model with random weights, in evaluation mode. The same at every call.

    Raises:
        ValueError: The model is larger than `MAX_PARAMETERS`.
        Exception: Any error of transformers, if sizes do not fit together.
    """
    config = tiny_config(kind)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        with torch.device("meta"):
            parameters = sum(
                p.numel() for p in AutoModelForCausalLM.from_config(config).parameters()
            )
        if parameters > MAX_PARAMETERS:
            raise ValueError(f"{parameters:,} parameters are too many")
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, attn_implementation="eager"
        )
        with torch.no_grad():
            for parameter in model.parameters():
                noise = torch.randn_like(parameter)
                parameter.copy_(0.15 * noise if parameter.dim() > 1 else parameter + 0.05 * noise)
        return model.eval()


def released_config(kind: str) -> Any:
    """Create the configuration that a tiny model follows, at its full size."""
    return CONFIG_MAPPING[kind](**RELEASED.get(kind, ("", {}))[1])


def tiny_config(kind: str) -> Any:
    """Create the configuration of a tiny model."""
    return CONFIG_MAPPING[kind](**tiny_fields(released_config(kind)))


def tiny_fields(config: Any) -> dict[str, Any]:
    """Return the fields of a configuration at tiny sizes, including those of its sub-configurations."""
    fields = config.to_dict()
    depth = _depth(fields)
    layers = _kept_layers(config, fields, depth)
    sizes = SIZES | _attention_sizes(fields)
    if "original_max_position_embeddings" in str(fields):
        del sizes["max_position_embeddings"]  # its ratio to the original length scales the angles

    def scale(name: str, value: Any) -> Any:
        if name in LAYER_INDICES and value is not None:
            return [new for new, old in enumerate(layers) if old in value]
        if name in DEPTHS and value == depth:
            return len(layers)
        if isinstance(value, list | tuple) and name in sizes:
            return [sizes[name]] * len(layers)
        if isinstance(value, list | tuple) and len(value) == depth:
            return [value[layer] for layer in layers]
        if value is None and name in ("head_dim", "num_key_value_heads"):
            return sizes[name]
        return min(value, sizes[name]) if name in sizes and isinstance(value, int) else value

    tiny = {name: scale(name, value) for name, value in fields.items()}
    if "is_decoder" in fields and not fields["is_encoder_decoder"]:
        tiny["is_decoder"] = True
    for name in config.sub_configs:
        if isinstance(fields.get(name), dict):
            tiny[name] = tiny_fields(getattr(config, name))
    return tiny | _tied_sizes(fields, tiny, layers) | TOKENS | FIXED.get(config.model_type, {})


def _tied_sizes(
    fields: dict[str, Any], tiny: dict[str, Any], layers: Sequence[int]
) -> dict[str, Any]:
    """Return fields that follow from other tiny ones."""
    tied: dict[str, Any] = {}
    if shared := fields.get("num_kv_shared_layers"):
        own = fields["num_hidden_layers"] - shared
        tied["num_kv_shared_layers"] = sum(layer >= own for layer in layers)
    if "per_layer_config" in fields:
        special = {int(layer): values for layer, values in fields["per_layer_config"].items()}
        tied["per_layer_config"] = {
            new: {name: tiny[name] * value // fields[name] for name, value in special[old].items()}
            for new, old in enumerate(layers)
            if old in special
        }
    for name in ("num_attention_heads", "num_key_value_heads", "head_dim"):
        if f"swa_{name}" in fields:
            tied[f"swa_{name}"] = tiny[name] * fields[f"swa_{name}"] // fields[name]
    if {"mamba_expand", "mamba_n_heads", "mamba_d_head"} <= fields.keys():
        tied["mamba_n_heads"] = tiny["mamba_expand"] * tiny["hidden_size"] // tiny["mamba_d_head"]
        if fields.get("mamba_d_ssm"):
            tied["mamba_d_ssm"] = tied["mamba_n_heads"] * tiny["mamba_d_head"]
    return tied


def _depth(fields: dict[str, Any]) -> int:
    depths = (fields[name] for name in DEPTHS if fields.get(name))
    return next(depths, len(fields.get("layers_block_type") or ()))


def _kept_layers(config: Any, fields: dict[str, Any], depth: int) -> list[int]:
    """Return the first layers in which every kind of layer occurs, and likewise of those that share keys."""
    columns = [
        value
        for name, value in (*fields.items(), ("", getattr(config, "layers_block_type", None)))
        if name not in LAYER_INDICES
        and isinstance(value, list | tuple)
        and len(value) == depth
        and isinstance(value[0], str | int)
    ]
    for name in LAYER_INDICES:
        columns.append([layer in (fields.get(name) or ()) for layer in range(depth)])
    for name in FIRST_LAYERS:
        columns.append([layer < (fields.get(name) or 0) for layer in range(depth)])
    kinds = list(zip(*columns, strict=True))
    own = depth - (fields.get("num_kv_shared_layers") or 0)
    times = 1 + config.model_type.startswith("zamba")  # its hybrid layers share their weights
    kept: list[int] = []
    for start, part in ((0, kinds[:own]), (own, kinds[own:])):
        places = ([at for at, kind in enumerate(part) if kind == each] for each in set(part))
        last = max((at[:times][-1] for at in places), default=0)
        kept += range(start, start + min(max(last + 1, LAYERS), len(part)))
    return kept


def _attention_sizes(fields: dict[str, Any]) -> dict[str, int]:
    """Return widths that keep the ratio of query to key heads, and whether heads are wider than their share."""
    heads, kv_heads = (fields.get(f"num_{name}_heads") or 0 for name in ("attention", "key_value"))
    group = min(heads // kv_heads, MAX_GROUP) if heads and kv_heads else 1
    tiny_kv = HEADS if group == 1 and heads else min(kv_heads, 2)
    tiny_heads = group * (tiny_kv or HEADS)
    sizes = dict.fromkeys(WIDTHS.split(), HEAD_DIM * tiny_heads)
    sizes |= {"num_attention_heads": tiny_heads, "num_key_value_heads": tiny_kv}
    head_dim = fields.get("head_dim")
    if head_dim and heads and "qk_rope_head_dim" not in fields:
        sizes["head_dim"] = HEAD_DIM * (1 + (head_dim * heads != fields["hidden_size"]))
    if fields.get("linear_num_key_heads"):
        ratio = fields["linear_num_value_heads"] // fields["linear_num_key_heads"]
        sizes["linear_num_value_heads"] = SIZES["linear_num_key_heads"] * ratio
    return sizes
