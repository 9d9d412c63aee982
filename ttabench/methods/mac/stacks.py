"""Encoders and causal LMs by name that amortise in place of a T5 encoder-decoder (MAC, table 7).

encoder   t5-small, t5-base, t5-large (their encoders), dense (all-MiniLM-L6-v2), a folder or hub id of an encoder
decoder   a folder or hub id of a causal LM, openai-community/gpt2 for one
either    scratch:WIDTH,LAYERS,HEADS,FF on the base model's vocabulary: the encoder of such a T5, or such a GPT-2
"""

from __future__ import annotations

from typing import Any

from transformers import AutoModel, GPT2Config, GPT2Model, PretrainedConfig, PreTrainedModel, T5Config, T5EncoderModel

from ttabench.core.errors import UserError
from ttabench.methods.mac.t5 import PUBLISHED, config_of, is_scratch, scratch_shape
from ttabench.methods.parts.sentences import DENSE, place_of
from ttabench.methods.parts.stored import stored_config, stored_model

HINT = "Give a folder with config.json and model.safetensors, a hub id, or a scratch: shape."


def folder_of(name: str) -> str:
    """The folder of `dense`; other names as they are."""
    return place_of(name) if name == DENSE else name


def stack_of(name: str, *, causal: bool, vocabulary: int, positions: int) -> PreTrainedModel:
    """A transformer of that shape with new weights.

    Args:
        name: see the module's text.
        causal: a causal LM rather than an encoder.
        vocabulary: ids that it must know; `scratch:` shapes know exactly so many.
        positions: tokens of the longest text and the learnable tokens together.

    Raises:
        UserError: a name that is none of these, the other kind of model, or too few words or positions.
    """
    config = _config(name, causal=causal, vocabulary=vocabulary, positions=positions)
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


def _config(name: str, *, causal: bool, vocabulary: int, positions: int) -> PretrainedConfig:
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
    """Give it the published weights of that name.

    Raises:
        UserError: they cannot be found, or do not fit.
    """
    place = f"google-t5/{name}" if name in PUBLISHED else folder_of(name)
    cls = T5EncoderModel if isinstance(stack, T5EncoderModel) else AutoModel
    given = _without_pooler(stored_model(cls, place, "amortiser", HINT, unused=("pooler.",)))
    stack.load_state_dict(given.state_dict())


def _without_pooler(model: PreTrainedModel) -> PreTrainedModel:
    """What makes one vector of a text is left out: it has no gradient here."""
    if getattr(model, "pooler", None) is not None:
        model.pooler = None
    return model
