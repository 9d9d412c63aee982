"""A GGUF file of a tiny random Llama, as llama.cpp would write it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

gguf = pytest.importorskip("gguf", reason="needs gguf: pip install gguf")

MERGES = ("h e", "i n")
SPECIALS = ("<|bos|>", "<|eos|>")
WIDTH, HEADS, KV_HEADS, LAYERS = 64, 4, 2, 2
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
TEMPLATE = "{% for m in messages %}<|bos|>{{ m['content'] }}<|eos|>{% endfor %}"


def tokens() -> list[str]:
    from tokenizers import pre_tokenizers

    return [
        *sorted(pre_tokenizers.ByteLevel.alphabet()),
        *(pair.replace(" ", "") for pair in MERGES),
        *SPECIALS,
    ]


def model(seed: int = 0) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=len(tokens()),
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)


def _permuted(weights: Tensor, heads: int) -> Tensor:
    """Rows as llama.cpp has them: the two halves of a rotation beside each other."""
    return (
        weights.view(heads, 2, weights.shape[0] // heads // 2, -1)
        .transpose(1, 2)
        .reshape(weights.shape)
    )


def write(
    file: Path, *, architecture: str = "llama", seed: int = 0, pre: str = "gpt-2", parts: int = 1
) -> LlamaForCausalLM:
    """Write the file, its matrices in Q8_0; returns the model they were of. `parts`: of how many it says it is one."""
    made = model(seed)
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_name("tiny")
    writer.add_uint16("split.count", parts)
    writer.add_block_count(LAYERS)
    writer.add_context_length(256)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(2 * WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(len(tokens()))
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens())
    writer.add_token_types([1] * (len(tokens()) - len(SPECIALS)) + [3] * len(SPECIALS))
    writer.add_token_merges(list(MERGES))
    writer.add_bos_token_id(len(tokens()) - 2)
    writer.add_eos_token_id(len(tokens()) - 1)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    for name, weights in made.state_dict().items():
        if (stored := _stored_name(name)) is None:
            continue
        if "attn_q" in stored or "attn_k" in stored:
            weights = _permuted(weights, HEADS if "attn_q" in stored else KV_HEADS)
        _add(writer, stored, weights.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return made


def _stored_name(name: str) -> str | None:
    if name == "lm_head.weight":
        return None
    if name in ("model.embed_tokens.weight", "model.norm.weight"):
        return "token_embd.weight" if "embed" in name else "output_norm.weight"
    _, _, layer, part = name.removesuffix(".weight").split(".", 3)
    return f"blk.{layer}.{NAMES[part]}.weight"


def _add(writer: object, name: str, weights: np.ndarray) -> None:
    kind = gguf.GGMLQuantizationType.F32 if weights.ndim == 1 else gguf.GGMLQuantizationType.Q8_0
    writer.add_tensor(name, gguf.quants.quantize(weights, kind), raw_dtype=kind)  # type: ignore[attr-defined]
