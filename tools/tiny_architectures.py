"""Tiny random models of all causal architectures of transformers.

Sizes follow from the names of the fields in their configurations.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

KINDS = tuple(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
VOCABULARY, LAYERS, WINDOW = 272, 4, 16
MAX_PARAMETERS = 3_000_000
_32 = "hidden_size n_embd d_model embedding_size embedding_dim word_embed_proj_dim word_embedding_dim emb_dim dim_model"
_48 = "intermediate_size n_inner ffn_dim d_ff dim_ff ffn_hidden_size ffn_intermediate_size block_ff_dim"
_48 += " decoder_ffn_dim encoder_ffn_dim expert_ffn_hidden_size"
_16 = "moe_intermediate_size shared_expert_intermediate_size moe_shared_expert_intermediate_size q_lora_rank kv_lora_rank"
_16 += " image_size num_position_embeddings mamba_chunk_size chunk_size project_dim"
_8 = "head_dim d_kv dim_head qk_rope_head_dim qk_nope_head_dim v_head_dim state_size ssm_state_size mamba_d_state"
_8 += " mamba_n_heads mamba_d_head mamba_num_heads mamba_head_dim linear_key_head_dim linear_value_head_dim"
_8 += " attention_size hidden_size_per_layer_input patch_size num_classes num_mel_bins global_head_dim"
_4 = "num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers num_attention_heads n_head n_heads"
_4 += " num_heads decoder_attention_heads encoder_attention_heads num_experts num_local_experts n_routed_experts"
_4 += " linear_num_value_heads mamba_d_conv rotary_dim laurel_rank num_image_tokens"
_2 = "num_key_value_heads num_experts_per_tok num_experts_per_token moe_topk moe_top_k linear_num_key_heads depth layers"
_2 += " num_attention_groups num_global_key_value_heads altup_num_inputs num_codebooks mamba_expand"
_1 = "n_group topk_group n_shared_experts first_k_dense_replace n_groups mamba_n_groups spatial_merge_size"
SIZES = {
    name: size
    for names, size in ((_32, 32), (_48, 48), (_16, 16), (_8, 8), (_4, LAYERS), (_2, 2), (_1, 1))
    for name in names.split()
}
SIZES |= dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), VOCABULARY)
SIZES |= dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx"), 2048)
WINDOWS = (
    "sliding_window attention_chunk_size attention_window_size window_size sliding_window_size"
)
SIZES |= dict.fromkeys(WINDOWS.split(), WINDOW)
SIZES |= {"index_block_size": 4, "index_topk_blocks": 2}
SIZES |= dict.fromkeys(
    ("lru_width", "conv_dim", "attention_hidden_size", "width", "out_hidden_size"), 32
)
SIZES |= {"qk_head_dim": 16, "mamba_d_ssm": 64, "num_channels": 3, "max_source_positions": 32}
TWICE = ["sliding_attention", "full_attention"] * 2
RELEASED: dict[str, dict[str, Any]] = {
    "gemma3n_text": {
        "layer_types": TWICE,
        "num_kv_shared_layers": 2,
        "activation_sparsity_pattern": None,
        "intermediate_size": [48] * LAYERS,
    },
    "gemma4_text": {"layer_types": TWICE, "num_kv_shared_layers": 2},
    "lfm2": {"layer_types": ["conv", "conv", "full_attention", "conv"], "full_attn_idxs": None},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"], "num_dense_layers": 2},
    "minimax_m3_vl_text": {"layer_types": ["full_attention", *["minimax_m3_sparse"] * 3]},
}
"""Fields that released models set and default configurations do not: layer types, shared keys and values."""
OPTIONAL = {"sliding_window", "attention_chunk_size", "q_lora_rank"}
"""Fields that stay None if the default is None."""


def tiny_model(kind: str) -> Any:
    """Create a float32 model with random weights, in evaluation mode. The same at every call.

    Raises:
        ValueError: The model is larger than `MAX_PARAMETERS`.
        Exception: Any error of transformers, if sizes do not fit together.
    """
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = CONFIG_MAPPING[kind](**_changes(CONFIG_MAPPING[kind]))
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


def _changes(kind: Any) -> dict[str, Any]:
    """Return fields that make a configuration small, including those of its sub-configurations."""
    default = kind()
    fields = default.to_dict()
    known = {name: size for name, size in SIZES.items() if name in fields}
    changes: dict[str, Any] = {
        name: size
        for name, size in known.items()
        if not isinstance(fields[name], list | tuple)
        and not (fields[name] is None and name in OPTIONAL)
    }
    depth = next(
        (
            fields[name]
            for name in ("num_hidden_layers", "n_layer", "num_layers")
            if fields.get(name)
        ),
        0,
    )
    for (
        name,
        value,
    ) in (
        fields.items()
    ):  # lists with an entry a layer: as many, and every kind of layer if they fit
        if isinstance(value, list) and len(value) == depth > LAYERS:
            kinds = list(dict.fromkeys(value)) if isinstance(value[0], str) else value
            changes[name] = (
                (kinds + value[-LAYERS:])[:LAYERS]
                if len(kinds) < LAYERS
                else value[: LAYERS - 1] + value[-1:]
            )
    if (
        "expand" in fields and "state_size" in fields and "num_heads" in fields
    ):  # Mamba 2 wants heads of its own width
        changes["head_dim"] = 16
    if (
        "qk_rope_head_dim" in fields and "num_key_value_heads" in fields
    ):  # latent attention has as many as queries
        changes["num_key_value_heads"] = LAYERS
    if "kv_n_heads" in fields:  # of DBRX, whose default lacks what it needs
        changes |= {"kv_n_heads": 2, "rope_theta": 10_000.0, "clip_qkv": 8.0}
    if "is_decoder" in fields and not fields.get("is_encoder_decoder"):
        changes["is_decoder"] = True
    for name in getattr(kind, "sub_configs", {}):
        with suppress(Exception):
            changes[name] = _changes(type(getattr(default, name)))
    changes |= RELEASED.get(kind.model_type, {})
    return {**changes, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
