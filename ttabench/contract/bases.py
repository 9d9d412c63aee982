"""Two-layer random language models with a byte-level tokenizer, built in memory: what methods are checked on.

BASES["llama"]()      Llama with grouped queries and a BOS
BASES["gpt2"]()       GPT-2, which begins texts with nothing
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from ttabench.lm.forward.ways import ways_of
from ttabench.lm.model import LM

SPECIALS = ("<|bos|>", "<|eos|>", "<|pad|>")
POSITIONS = 512
SPREAD = 0.18
"""Of weights, about 1 / sqrt(width): at the usual 0.02 a model of two layers ignores its context."""


def byte_tokenizer(*, bos: bool = True) -> PreTrainedTokenizerFast:
    """256 bytes + <|bos|> <|eos|> <|pad|>; any text round-trips. Without `bos`, as in GPT-2, nothing begins a text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(SPECIALS))
    if bos:
        backend.post_processor = processors.TemplateProcessing(single="<|bos|> $A", special_tokens=[("<|bos|>", 256)])
    start = {"bos_token": "<|bos|>"} if bos else {}
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|eos|>", pad_token="<|pad|>", **start)


def drawn(cls: type[Any], config: Any, name: str, seed: int, *, bos: bool = True) -> LM:
    """A model of this class whose weights are drawn from the seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        lm = LM(cls(config), byte_tokenizer(bos=bos), name, random_weights=True)
    ways_of(lm)
    return lm


def tiny_llama(seed: int = 0, gqa: bool = True) -> LM:
    """Llama, 2 layers, hidden 32, 4 heads (2 key/value heads with `gqa`), 512 positions, with a BOS."""
    config = LlamaConfig(
        vocab_size=259, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2 if gqa else 4, max_position_embeddings=POSITIONS, bos_token_id=256, eos_token_id=257,
        pad_token_id=258, initializer_range=SPREAD,
    )  # fmt: skip
    return drawn(LlamaForCausalLM, config, f"tiny-llama-{seed}", seed)


def tiny_gpt2(seed: int = 0) -> LM:
    """GPT-2, 2 layers, hidden 32, 4 heads, 512 positions, without a BOS."""
    config = GPT2Config(
        vocab_size=259, n_embd=32, n_layer=2, n_head=4, n_positions=POSITIONS, bos_token_id=257, eos_token_id=257,
        initializer_range=SPREAD,
    )  # fmt: skip
    return drawn(GPT2LMHeadModel, config, f"tiny-gpt2-{seed}", seed, bos=False)


BASES: Mapping[str, Callable[[], LM]] = {"llama": tiny_llama, "gpt2": tiny_gpt2}
