"""Tiny random language models, in addition to those of `ttabench.contract`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import LlamaConfig, LlamaForCausalLM, OPTConfig, OPTForCausalLM

from ttabench.contract.case import MAX_POSITIONS, random_lm, tiny_gpt2, tiny_llama
from ttabench.lm.model import LM
from ttabench.lm.texts import byte_tokenizer

__all__ = [
    "MAX_POSITIONS",
    "MODEL_FACTORIES",
    "MODEL_IDS",
    "TINY_SIZES",
    "byte_tokenizer",
    "random_lm",
    "tiny_gpt2",
    "tiny_llama",
    "tiny_opt",
    "tinyllama_shaped",
]


TINY_SIZES: dict[str, Any] = {
    "vocab_size": 259,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.2,
    "pad_token_id": 258,
}
"""Sizes of a decoder with two layers, for configurations with the names of Llama."""


def tiny_opt(seed: int = 0) -> LM:
    """Create an OPT: 2 layers, hidden 32, 4 heads, 512 positions, with BOS."""
    config = OPTConfig(
        vocab_size=259,
        hidden_size=32,
        ffn_dim=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        word_embed_proj_dim=32,
        max_position_embeddings=MAX_POSITIONS,
        bos_token_id=256,
        eos_token_id=257,
        pad_token_id=258,
        init_std=0.18,
    )
    return random_lm(OPTForCausalLM, config, f"tiny-opt-{seed}", seed)


def tinyllama_shaped(seed: int = 0) -> LM:
    """Create a TinyLlama, an eighth as wide: 3 layers, hidden 256, 8 heads, 1 key/value head."""
    config = LlamaConfig(
        vocab_size=259,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=3,
        num_attention_heads=8,
        num_key_value_heads=1,
        max_position_embeddings=MAX_POSITIONS,
        bos_token_id=256,
        eos_token_id=257,
        pad_token_id=258,
    )
    return random_lm(LlamaForCausalLM, config, f"tinyllama-shaped-{seed}", seed)


MODEL_FACTORIES: list[Callable[[], LM]] = [
    tiny_llama,
    tiny_gpt2,
    tiny_opt,
    lambda: tiny_llama(gqa=False),
]
"""Base models of every kind that the code handles separately."""
MODEL_IDS = ["llama-gqa", "gpt2", "opt", "llama"]
