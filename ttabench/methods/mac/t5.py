"""T5 encoder-decoders by name, and the text they read.

Paper: Raffel et al., arXiv 1910.10683, table 14 and the configs of google-t5/t5-{small,base,large}.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import (
    AutoModel,
    GPT2Config,
    GPT2Model,
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
    """Whether the name describes a T5 of its own rather than published weights."""
    return name.startswith(SCRATCH)


def config_of(name: str, vocabulary: int) -> T5Config:
    """The configuration behind a name. `vocabulary`: the least number of embeddings; `scratch:` shapes get exactly so
    many."""
    if is_scratch(name):
        width, layers, heads, inner = scratch_shape(name)
        head_dim, dropout = width // heads, 0.0
    elif name in PUBLISHED:
        width, layers, heads, inner = PUBLISHED[name]
        vocabulary, head_dim, dropout = max(vocabulary, T5_VOCABULARY), 64, 0.1
    else:
        return _stored_config(name)
    layered: dict[str, Any] = {"num_layers": layers, "num_decoder_layers": layers, "d_ff": inner}
    heading: dict[str, Any] = {"num_heads": heads, "d_kv": head_dim, "dropout_rate": dropout}
    return T5Config(vocab_size=vocabulary, d_model=width, **layered, **heading)


def scratch_shape(name: str) -> tuple[int, int, int, int]:
    """Width, layers, heads and feed-forward width of a `scratch:` shape."""
    try:
        width, layers, heads, inner = (int(part) for part in name.removeprefix(SCRATCH).split(","))
    except ValueError:
        hint = "Write scratch:WIDTH,LAYERS,HEADS,FF, four whole numbers."
        raise UserError(f"{name!r} is no T5 shape.", hint) from None
    if min(width, layers, heads, inner) < 1 or width % heads:
        raise UserError(f"{name!r} is no T5 shape.", "All numbers must be positive and HEADS must divide WIDTH.")
    return width, layers, heads, inner


def _stored_config(name: str) -> T5Config:
    local = Path(name).is_dir()
    if not local and name.count("/") != 1:
        raise UnknownName("T5", name, [*PUBLISHED, f"{SCRATCH}WIDTH,LAYERS,HEADS,FF"])
    config = stored_config(name)
    if not isinstance(config, T5Config):
        fault = f"{name} holds no T5 config.json." if local else f"No T5 {name} can be loaded from the hub."
        raise UserError(fault, f"Give the folder or hub id of a T5, or one of {', '.join(PUBLISHED)}.")
    return config


def pretrained_weights(name: str) -> dict[str, Tensor]:
    """The published weights of a T5, by parameter name of `T5Model`."""
    return dict(stored_model(T5Model, folder_of(name), "T5", HINT).named_parameters())


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


def start_from(t5: T5Model, name: str, must: bool) -> None:
    """Give a T5 the weights of another; one of another shape is left alone, or refused if it `must` fit."""
    given, own = pretrained_weights(name), dict(t5.named_parameters())
    fits = given.keys() == own.keys() and all(given[key].shape == own[key].shape for key in own)
    if not fits and must:
        raise UserError(f"The T5 {name!r} has another shape than the amortiser.", "Set amortiser to that folder too.")
    if fits:
        with torch.no_grad():
            for key, parameter in own.items():
                parameter.copy_(given[key])


class T5Text:
    """Texts as the ids an amortiser reads: truncated, closed by the end token, right-padded."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, eos_id: int, pad_id: int) -> None:
        self.tokenizer = tokenizer
        self._texts = backend(tokenizer)
        self.eos_id = eos_id
        self.pad_id = pad_id

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
        encoded = self._texts.encode_batch(list(texts), add_special_tokens=False)
        rows = [list(row.ids) for row in encoded]
        room = max_tokens - 1
        kept = [row[:room] if keep == "start" else row[max(0, len(row) - room) :] for row in rows]
        return [[*row, self.eos_id] for row in kept], [len(row) + 1 for row in rows]

    def pad(self, rows: Sequence[list[int]], length: int = 0) -> tuple[Tensor, Tensor]:
        """Right-padded ids and mask, both int64 [B, N]; N is the longest row or `length` if that is more."""
        ids_BN, mask_BN = pad(rows, self.pad_id, "right")
        missing = max(0, length - ids_BN.shape[1])
        padded_BN = nn.functional.pad(ids_BN, (0, missing), value=self.pad_id)
        return padded_BN, nn.functional.pad(mask_BN.long(), (0, missing))


def folder_of(name: str) -> str:
    """The folder of `dense`, the hub id of a published T5; other names as they are."""
    return place_of(name) if name == DENSE else f"google-t5/{name}" if name in PUBLISHED else name


def stack_of(name: str, *, causal: bool, vocabulary: int, positions: int) -> PreTrainedModel:
    """A transformer of that shape with new weights. `vocabulary`: ids that it must know; `scratch:` shapes know exactly
    so many; `positions`: tokens of the longest text and the learnable tokens together."""
    config = _stack_config(name, causal=causal, vocabulary=vocabulary, positions=positions)
    if isinstance(config, T5Config):
        return T5EncoderModel(config)
    known = int(config.vocab_size)
    if known < vocabulary:
        fault = f"{name} knows {known:,} tokens, and its texts have ids up to {vocabulary - 1:,}"
        raise UserError(f"{fault}.", "Set tokenizer=own, or give a scratch: shape.")
    most = int(getattr(config, "max_position_embeddings", positions))
    if positions > most:
        fault = f"{name} has {most} positions, and a text and its latent tokens take {positions}"
        raise UserError(f"{fault}.", "Set document_tokens, question_tokens or num_virtual_tokens lower.")
    return GPT2Model(config) if isinstance(config, GPT2Config) else _without_pooler(AutoModel.from_config(config))


def _stack_config(name: str, *, causal: bool, vocabulary: int, positions: int) -> PretrainedConfig:
    if is_scratch(name) and causal:
        width, layers, heads, inner = scratch_shape(name)
        sizes: dict[str, Any] = {"n_embd": width, "n_layer": layers, "n_head": heads, "n_inner": inner}
        none: dict[str, Any] = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        ends: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None}
        return GPT2Config(vocab_size=vocabulary, n_positions=positions, **sizes, **none, **ends)
    if not causal and (is_scratch(name) or name in PUBLISHED):
        return config_of(name, vocabulary)
    kind = "causal LM" if causal else "encoder"
    config = None if name in PUBLISHED else stored_config(folder_of(name))
    if config is None:
        raise UserError(f"No {kind} {name!r} can be loaded.", HINT)
    encodes = isinstance(config, T5Config) or not _is_causal(config)
    if encodes is causal:
        other = "encoder" if causal else "decoder"
        raise UserError(f"{name!r} holds no {kind}.", f"Give {HINT[5:-1]} of one, or set design={other}.")
    return config


def _is_causal(config: PretrainedConfig) -> bool:
    """Whether its own files say that it is a causal LM."""
    kinds = list(config.architectures or ())
    return any(kind.endswith(("ForCausalLM", "LMHeadModel")) for kind in kinds) or isinstance(config, GPT2Config)


def start_stack(stack: PreTrainedModel, name: str) -> None:
    """Give it the published weights of that name."""
    cls = T5EncoderModel if isinstance(stack, T5EncoderModel) else AutoModel
    given = _without_pooler(stored_model(cls, folder_of(name), "amortiser", HINT, unused=("pooler.",)))
    stack.load_state_dict(given.state_dict())


def _without_pooler(model: PreTrainedModel) -> PreTrainedModel:
    """What makes one vector of a text is left out: it has no gradient here."""
    if getattr(model, "pooler", None) is not None:
        model.pooler = None
    return model
