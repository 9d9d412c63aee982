"""Transformers that read texts, by name: T5 encoder-decoders and encoders; and the text they read.

Raffel et al., arXiv 1910.10683, table 14 and the configs of google-t5/t5-{small,base,large}.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import (
    AutoModel,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5EncoderModel,
    T5Model,
)

from ttabench.core.bounds import refuse_long
from ttabench.core.errors import UnknownName, UserError
from ttabench.lm.forward.tokens import pad
from ttabench.lm.model import LM
from ttabench.lm.text.texts import backend
from ttabench.methods.mac import PUBLISHED, T5_VOCABULARY
from ttabench.methods.parts.stored import DENSE, place_of, stored_config, stored_model, stored_tokenizer

SCRATCH = "scratch:"
HINT = "Give a folder with config.json and model.safetensors, a hub id, or a scratch: shape."


def is_scratch(name: str) -> bool:
    """Whether the name describes a shape with weights of its own rather than published weights."""
    return name.startswith(SCRATCH)


def transformer_of(name: str, design: str, *, vocabulary: int, positions: int) -> PreTrainedModel:
    """A transformer of that shape with new weights, for a `design` of `MacSettings`.

    Args:
        name: as the setting `amortiser`.
        design: "encoder-decoder" (a T5) or "encoder".
        vocabulary: ids that it must know; `scratch:` shapes know exactly so many.
        positions: tokens of the longest text and the learnable tokens together.
    """
    config = _config_of(name, design, vocabulary)
    if isinstance(config, T5Config):
        return T5Model(config) if design == "encoder-decoder" else T5EncoderModel(config)
    if config.vocab_size < vocabulary:
        fault = f"{name} knows {config.vocab_size:,} tokens, and its texts have ids up to {vocabulary - 1:,}"
        raise UserError(f"{fault}.", "Set tokenizer=own, or give a scratch: shape.")
    if positions > (most := int(getattr(config, "max_position_embeddings", positions))):
        fault = f"{name} has {most} positions, and a text and its latent tokens take {positions}"
        raise UserError(f"{fault}.", "Set document_tokens, question_tokens or num_virtual_tokens lower.")
    return _without_pooler(AutoModel.from_config(config))


def _config_of(name: str, design: str, vocabulary: int) -> PretrainedConfig:
    if is_scratch(name) or name in PUBLISHED:
        return t5_config(name, vocabulary)
    if design == "encoder-decoder" and not Path(name).is_dir() and name.count("/") != 1:
        raise UnknownName("T5", name, [*PUBLISHED, f"{SCRATCH}WIDTH,LAYERS,HEADS,FF"])
    config = stored_config(folder_of(name))
    causal = any(kind.endswith(("ForCausalLM", "LMHeadModel")) for kind in getattr(config, "architectures", None) or ())
    fits = isinstance(config, T5Config) if design == "encoder-decoder" else not causal
    if config is None or not fits:
        raise UserError(f"No {design} {name!r} can be loaded.", f"{HINT} The other design: --set design=NAME.")
    return config


def t5_config(name: str, vocabulary: int) -> T5Config:
    """The configuration of a published T5 or a `scratch:` shape. `vocabulary`: the least number of embeddings."""
    if is_scratch(name):
        width, layers, heads, inner = scratch_shape(name)
        head_dim, dropout = width // heads, 0.0
    else:
        width, layers, heads, inner = PUBLISHED[name]
        vocabulary, head_dim, dropout = max(vocabulary, T5_VOCABULARY), 64, 0.1
    layered: dict[str, Any] = {"num_layers": layers, "num_decoder_layers": layers, "d_ff": inner}
    heading: dict[str, Any] = {"num_heads": heads, "d_kv": head_dim, "dropout_rate": dropout}
    return T5Config(vocab_size=vocabulary, d_model=width, **layered, **heading)


def scratch_shape(name: str) -> tuple[int, int, int, int]:
    """Width, layers, heads and feed-forward width of a `scratch:` shape."""
    numbers = name.removeprefix(SCRATCH).split(",")
    if len(numbers) != 4 or not all(number.isdecimal() and int(number) for number in numbers):
        raise UserError(f"{name!r} is no shape.", "Write scratch:WIDTH,LAYERS,HEADS,FF, four whole numbers from 1 on.")
    width, layers, heads, inner = map(int, numbers)
    if width % heads:
        raise UserError(f"{name!r} is no shape.", "HEADS must divide WIDTH.")
    return width, layers, heads, inner


def folder_of(name: str) -> str:
    """The folder of `dense`, the hub id of a published T5; other names as they are."""
    return place_of(name) if name == DENSE else f"google-t5/{name}" if name in PUBLISHED else name


def start(model: PreTrainedModel, name: str) -> None:
    """Give a transformer the published weights of that name."""
    cls = type(model) if isinstance(model.config, T5Config) else AutoModel
    given = _without_pooler(stored_model(cls, folder_of(name), "amortiser", HINT, unused=("pooler.",)))
    model.load_state_dict(given.state_dict())


def _without_pooler(model: PreTrainedModel) -> PreTrainedModel:
    """What makes one vector of a text is left out: it has no gradient here."""
    if getattr(model, "pooler", None) is not None:
        model.pooler = None
    return model


def start_embeddings(model: PreTrainedModel, lm: LM) -> None:
    """Give a transformer the word embeddings of the base model, scaled to the size at which its own start (a T5: 1)."""
    words, own = lm.model.get_input_embeddings().weight, model.get_input_embeddings().weight
    if words.shape != own.shape:
        raise UserError(
            f"Embeddings of {lm.name} are {tuple(words.shape)}, those of the amortiser {tuple(own.shape)}.",
            "Set embeddings_from_base=false, or give the scratch shape the base model's width.",
        )
    with torch.no_grad():
        centred = words.float() - words.float().mean(0)
        own.copy_(word_size(model) * centred / centred.square().mean().sqrt())


def word_size(model: PreTrainedModel) -> float:
    """At which standard deviation word embeddings of this kind start: 1 of a T5, mostly 0.02 of others."""
    return 1.0 if isinstance(model.config, T5Config) else float(getattr(model.config, "initializer_range", 1.0))


class T5Text:
    """Texts as the ids an amortiser reads: truncated, closed by the end token, right-padded."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, eos_id: int, pad_id: int) -> None:
        self.tokenizer = tokenizer
        self._texts = backend(tokenizer)
        self.eos_id, self.pad_id = eos_id, pad_id

    @classmethod
    def named(cls, name: str) -> T5Text:
        """The tokenizer published with a T5 or another transformer."""
        hint = "Give a folder that holds one, use --set tokenizer=base, or --random-weights for a profile."
        tokenizer = stored_tokenizer(folder_of(name), "T5" if name in PUBLISHED else "amortiser", hint)
        ends = [tokenizer.eos_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id]
        end = next((int(token) for token in ends if token is not None), 0)
        return cls(tokenizer, end, end if tokenizer.pad_token_id is None else int(tokenizer.pad_token_id))

    def encode(
        self, texts: Sequence[str], max_tokens: int, keep: Literal["start", "end"]
    ) -> tuple[list[list[int]], list[int]]:
        """Ids of each text with the end token, at most `max_tokens`, and the length each text had before the cut.

        `keep`: which side survives a cut: documents keep their start, questions their end.
        """
        refuse_long(texts)
        rows = [list(row.ids) for row in self._texts.encode_batch(list(texts), add_special_tokens=False)]
        room = max_tokens - 1
        kept = [row[:room] if keep == "start" else row[max(0, len(row) - room) :] for row in rows]
        return [[*row, self.eos_id] for row in kept], [len(row) + 1 for row in rows]

    def pad(self, rows: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
        """Right-padded ids and mask, both int64 [B, N]."""
        ids_BN, mask_BN = pad(rows, self.pad_id, "right")
        return ids_BN, mask_BN.long()
