"""T5 models by name, and the tokenisation of their texts.

Raffel et al., arXiv 1910.10683, table 14 and the configs of google-t5/t5-{small,base,large}.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast, T5Config, T5Model

from ttabench.core.errors import UnknownName, UserError, refuse_unreadable_texts
from ttabench.lm.forward.tokens import pad
from ttabench.lm.model import LM
from ttabench.lm.texts import copy_backend
from ttabench.methods.mac import (
    PUBLISHED_T5_SHAPES,
    SCRATCH_PREFIX,
    T5_VOCAB_SIZE,
    parse_scratch_shape,
)
from ttabench.methods.parts.stored import load_pretrained_config

T5_HINT = "Use a folder with config.json and model.safetensors, a hub id, or a scratch: shape."


def is_scratch(name: str) -> bool:
    """Return True if the name is a `scratch:` shape, without published weights."""
    return name.startswith(SCRATCH_PREFIX)


def t5_config(name: str, vocabulary: int) -> T5Config:
    """Return the configuration of a T5.

    `vocabulary`: minimum number of embeddings; the exact number for `scratch:` shapes.
    """
    if is_scratch(name):
        width, layers, heads, inner = parse_scratch_shape(name)
        head_dim, dropout = width // heads, 0.0
    elif name in PUBLISHED_T5_SHAPES:
        width, layers, heads, inner = PUBLISHED_T5_SHAPES[name]
        vocabulary, head_dim, dropout = max(vocabulary, T5_VOCAB_SIZE), 64, 0.1
    else:
        if not Path(name).is_dir() and name.count("/") != 1:
            raise UnknownName(
                "T5", name, [*PUBLISHED_T5_SHAPES, f"{SCRATCH_PREFIX}WIDTH,LAYERS,HEADS,FF"]
            )
        config = load_pretrained_config(name)
        if not isinstance(config, T5Config):
            raise UserError(f"{name!r} is not a T5.", T5_HINT)
        return config
    return T5Config(
        vocab_size=vocabulary,
        d_model=width,
        num_layers=layers,
        num_decoder_layers=layers,
        d_ff=inner,
        num_heads=heads,
        d_kv=head_dim,
        dropout_rate=dropout,
    )


def hub_id(name: str) -> str:
    """Return the hub id of a published T5; folders and other ids are unchanged."""
    return f"google-t5/{name}" if name in PUBLISHED_T5_SHAPES else name


def copy_embeddings(model: T5Model, lm: LM) -> None:
    """Copy the base model's word embeddings to a T5, scaled to a T5's standard deviation of 1."""
    source, target = lm.model.get_input_embeddings().weight, model.get_input_embeddings().weight
    if source.shape != target.shape:
        raise UserError(
            f"Embeddings of {lm.name}: {tuple(source.shape)}, of the T5: {tuple(target.shape)}.",
            "Set embeddings_from_base=false, or use the base model's width in the scratch shape.",
        )
    with torch.no_grad():
        centred = source.float() - source.float().mean(0)
        target.copy_(centred / centred.square().mean().sqrt())


class TextTokenizer:
    """Tokenizer for the amortiser: truncates, appends the end token and pads on the right."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, eos_id: int, pad_id: int) -> None:
        self.tokenizer = tokenizer
        self._backend = copy_backend(tokenizer)
        self.eos_id, self.pad_id = eos_id, pad_id

    def encode(
        self, texts: Sequence[str], max_tokens: int, keep: Literal["start", "end"]
    ) -> tuple[list[list[int]], list[int]]:
        """Return ids with the end token, at most `max_tokens`, and lengths before truncation.

        `keep`: side that is kept: the start of documents, the end of queries.
        """
        refuse_unreadable_texts(texts)
        rows = [
            list(row.ids)
            for row in self._backend.encode_batch(list(texts), add_special_tokens=False)
        ]
        max_text_tokens = max_tokens - 1
        kept = [
            row[:max_text_tokens] if keep == "start" else row[max(0, len(row) - max_text_tokens) :]
            for row in rows
        ]
        return [[*row, self.eos_id] for row in kept], [len(row) + 1 for row in rows]

    def pad(self, rows: Sequence[list[int]], device: torch.device) -> tuple[Tensor, Tensor]:
        """Return right-padded ids and mask, both int64 [B, N]."""
        ids_BN, mask_BN = pad(rows, self.pad_id, "right", device)
        return ids_BN, mask_BN.long()
