"""The frozen base language model: loaded by name, folder or hub id, with the few facts the package asks of it.

    lm = load("nano")
    lm.decode(lm.encode("Ada Voss lives in Port Ansel."))    # any text round-trips through a byte-level tokenizer

Weights never change: gradients are off, the model stays in evaluation mode. All adaptation goes through `patching`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.pytorch_utils import Conv1D

from ttabench.core.architectures import NANO
from ttabench.core.environment import quiet_loading
from ttabench.core.errors import UserError
from ttabench.lm.loading import hub
from ttabench.lm.loading.devices import find_device, find_dtype
from ttabench.lm.texts import TextTokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


DEFAULT_MAX_POSITIONS = 2**20
"""Positions of a model that knows no limit."""
NON_SAMPLING_SETTINGS = re.compile(
    r"_.*|(bos|eos|pad|decoder_start)_token_id|(transformers|use|cache|return|output|max)_.*"
)
"""Values of a `generation_config` that do not choose among tokens."""
NO_EFFECT_VALUES: tuple[Any, ...] = (None, False, 0, 1, "never", [], {})
"""Values of a `generation_config` that change nothing."""


class DecoderOutput(BaseModelOutputWithPast):  # type: ignore[misc]  # transformers is not typed
    """What a decoder gives: last hidden states, and nothing of all else that a model may ask for."""

    def __getattr__(self, name: str) -> None:
        """None, of outputs that only some decoders have."""
        if name.startswith("__"):
            raise AttributeError(name)


class LM(TextTokenizer):
    """A frozen causal language model with its tokenizer, whose texts it reads as `Texts` says.

    Args:
        model: a causal LM of transformers; how it is run is found out by `forward.capabilities`.
        tokenizer: a fast tokenizer whose ids all fit the model's vocabulary.
        name, tokenizer_name: stand in records; the second is the first where it is not given.
        weights: what records say of them, e.g. "Q4_1, dequantised"; empty where there is nothing to say.

    Attributes:
        max_positions: longest window; position ids run from 0 to this less one.
        kv_heads: key/value heads, fewer than `heads` under grouped-query attention.
        text_ids: the first id that stands for no text and no end; embedding tables may go on behind it.
        eos_ids: what may end an answer: the tokenizer's end of sequence, and those of the model's `generation_config`.
        attends_by: the attention of transformers that the model is set to now.
        native_attention: the attention of transformers that the model's own forward is run with.
        linear_head: whether logits are known to be the output embeddings of last hidden states alone (`forward.capabilities`).
        stands_on: the checkpoint whose deltas were added to the weights, see `run.evaluation`; empty where none was.
        inputs: digests of the files that it was loaded from, by the names of `RunConfig.inputs`.
        ways: what records say of how the model is run, where that is not the usual way (`forward.capabilities`).
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        name: str,
        *,
        random_weights: bool = False,
        tokenizer_name: str = "",
        bos: str = "auto",
        weights: str = "",
    ) -> None:
        super().__init__(tokenizer, tokenizer_name or name, bos)
        self.model = model.eval().requires_grad_(False)
        self.native_attention, self.attention_implementation = "eager", ""
        try:
            self.set_attention(self.native_attention)
        except ValueError:  # the model has another one
            self.native_attention = str(model.config._attn_implementation)
        self.has_linear_head = False
        self.name, self.random_weights, self.weights = name, random_weights, weights
        config = self.config = model.config.get_text_config(decoder=True)
        self.vocab_size: int = config.vocab_size
        self.max_positions = _max_positions(config)
        self.hidden_size: int = config.hidden_size
        self.layers: int = config.num_hidden_layers
        self.heads: int = _config_size(config, "num_attention_heads") or 1
        self.kv_heads: int = _config_size(config, "num_key_value_heads") or self.heads
        self.head_dim: int = _config_size(config, "head_dim") or self.hidden_size // self.heads
        self.eos_ids = frozenset({self.eos_id, *_generation_eos_ids(model)})
        largest = max(
            *tokenizer.get_vocab().values(), *self.bos_ids
        )  # ids may have gaps, so their number says nothing
        if largest >= self.vocab_size:
            fault = f"Tokenizer {self.tokenizer_name!r} has the id {largest}, model {name!r} has {self.vocab_size} tokens."
            raise UserError(fault, "Use the tokenizer that belongs to the model.")
        self.text_vocab_size = max(largest, *self.eos_ids) + 1
        self.stands_on: Mapping[str, Any] = {}
        self.inputs: Mapping[str, str] = {}
        self.capabilities: Mapping[str, Any] = {}

    @cached_property
    def generation_settings(self) -> dict[str, Any]:
        """Values of the model's `generation_config` that would change which token is written; answers are greedy."""
        config = getattr(self.model, "generation_config", None)
        values = config.to_diff_dict() if config else {}
        return {
            name: value
            for name, value in values.items()
            if not NON_SAMPLING_SETTINGS.fullmatch(name)
            and (value is True or value not in NO_EFFECT_VALUES)
        }

    @property
    def position_limit(self) -> str:
        """The positions that a text may have, in words; why they are fewer than the configuration has."""
        fewer = self.max_positions < (_config_size(self.config, "max_position_embeddings") or 0)
        why = " (its original_max_position_embeddings: a longer text has other rotary angles from its first token on)"
        return f"{self.max_positions} positions of {self.name}{why if fewer else ''}"

    @property
    def slot_bytes(self) -> int:
        """Bytes of the keys and values of one token, in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * int(self.model.dtype.itemsize)

    @property
    def decoder(self) -> nn.Module:
        """The model without its head: ids to last hidden states."""
        base: nn.Module = self.model.base_model
        if base is not self.model:
            return base
        inside: Iterator[nn.Module] = (
            part for part in self.model.children() if isinstance(part, PreTrainedModel)
        )
        return next(inside, base)

    def set_attention(self, attention: str) -> None:
        """Have the model attend by an attention that transformers knows by this name, if it can choose."""
        with quiet_loading():
            self.model.set_attn_implementation(attention)
        self.attention_implementation = attention

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """Next-token logits [..., V] of last hidden states [..., D], by all that the model does behind its decoder."""
        if self.has_linear_head:
            plain: Tensor = self.model.get_output_embeddings()(hidden_ND)
            return plain.to(hidden_ND.device)
        rows_1ND = hidden_ND.reshape(1, -1, hidden_ND.shape[-1])
        ids_1N = torch.zeros(rows_1ND.shape[:2], dtype=torch.int64, device=rows_1ND.device)
        decoder = self.decoder
        inner = (
            decoder.get_decoder() if isinstance(decoder, PreTrainedModel) else decoder
        )  # OPT's head asks that one
        decoders = {part for part in (decoder, inner) if isinstance(part, PreTrainedModel)} - {
            self.model
        }
        # the model's own forward, with these hidden states in place of what its decoder gives
        with ExitStack() as undo:
            for decoder in decoders:
                vars(decoder)["forward"] = lambda *_, **__: DecoderOutput(
                    last_hidden_state=rows_1ND
                )
                undo.callback(vars(decoder).pop, "forward")
            logits: Tensor = self.model(input_ids=ids_1N, use_cache=False).logits
        return logits.view(*hidden_ND.shape[:-1], -1).to(hidden_ND.device)

    def embed(self, ids_BT: Tensor, extra_embeddings_NC: Tensor | None = None) -> Tensor:
        """Input embeddings [B, T, C] of these ids; those from `vocab_size` on are rows of `extra_embeddings_NC`, differentiable."""
        table = self.model.get_input_embeddings()
        found_BTC: Tensor = table(
            ids_BT if extra_embeddings_NC is None else ids_BT.clamp(max=self.vocab_size - 1)
        )
        if extra_embeddings_NC is None:
            return found_BTC
        rows_BT = (ids_BT - self.vocab_size).clamp(min=0)
        own_BTC = extra_embeddings_NC.to(found_BTC)[rows_BT]
        return torch.where((ids_BT >= self.vocab_size)[..., None], own_BTC, found_BTC)

    @property
    def device(self) -> torch.device:
        """Where the weights are; of a model on several devices, where the first ones are."""
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights."""
        return next(self.model.parameters()).dtype

    @cached_property
    def layer_devices(self) -> list[torch.device]:
        """Where the weights of each decoder layer are."""
        try:
            return [next(block.parameters()).device for block in self.blocks()]
        except UserError:  # no list of layers, so they were not laid apart
            return [self.device] * self.layers

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of architecture, parameter names and shapes, and the first 8 values of every parameter.

        Values are rounded to bfloat16, so one base has one fingerprint in float32 and in bfloat16.
        """
        digest = hashlib.sha256(f"{self.config.model_type} {self.heads} {self.kv_heads}".encode())
        values = []
        for name, parameter in self.model.named_parameters():
            digest.update(f"{name} {tuple(parameter.shape)}".encode())
            values.append(parameter.detach().flatten()[:8].to(torch.bfloat16))
        digest.update(torch.cat(values).view(torch.int16).cpu().numpy().tobytes())
        return digest.hexdigest()

    def linear_names(self) -> list[str]:
        """Names of the linear maps inside the decoder layers (`Linear`, GPT-2's `Conv1D`), in model order; no head."""
        # of these very classes: routers of experts, which are others, give more than a tensor
        maps = {id(m) for m in self.blocks().modules() if type(m) in (nn.Linear, Conv1D)}
        if not maps:
            fault = (
                f"{self.name} ({self.config.model_type}) has no linear maps of torch's own class"
            )
            raise UserError(f"{fault}.", "Use none, icl or rag.")
        return [name for name, m in self.model.named_modules() if id(m) in maps]

    def linear_shape(self, name: str) -> tuple[int, int]:
        """(features in, features out) of the linear map of that name."""
        module = self.model.get_submodule(name)
        rows, columns = module.weight.shape
        return (rows, columns) if isinstance(module, Conv1D) else (columns, rows)

    def blocks(self) -> nn.ModuleList:
        """The decoder layers, in order."""
        inner = self.model.get_decoder()  # of a model of images and texts, what reads texts
        decoder = inner if isinstance(inner, PreTrainedModel) else self.decoder
        lists = [
            m for m in decoder.modules() if isinstance(m, nn.ModuleList) and len(m) == self.layers
        ]
        if lists:
            return lists[-1]  # behind those of an encoder of images
        fault = f"{self.name} ({self.config.model_type}) cannot be used here: it has no list of {self.layers} layers."
        raise UserError(fault, "Use none, icl or rag.")

    def set_base_checkpoint(self, stands_on: Mapping[str, Any]) -> None:
        """Say that the weights are now those of a base that stands on a checkpoint: it has another fingerprint."""
        self.stands_on = stands_on
        self.__dict__.pop("fingerprint", None)

    def describe(self) -> dict[str, Any]:
        """The base model for a run record (JSON values)."""
        return {
            "name": self.name,
            "architecture": str(self.config.model_type),
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "positions": self.max_positions,
            "random_weights": self.random_weights,
            "fingerprint": self.fingerprint,
            "tokenizer": self.tokenizer_name,
            "dtype": str(self.dtype).removeprefix("torch."),
            "device": str(self.device),
            "start": self.tokenizer.decode(list(self.start_ids)),
            **({} if self.chat is None else {"chat_end": self.chat.end}),
            **({"stands_on": dict(self.stands_on)} if self.stands_on else {}),
            **({"weights": self.weights} if self.weights else {}),
            **({"ways": dict(self.capabilities)} if self.capabilities else {}),
        }


def _config_size(config: Any, name: str) -> int | None:
    """A size in a configuration; None where it has none, or one for each layer."""
    with suppress(RuntimeError, ValueError):
        value = getattr(config, name, None)
        return value if isinstance(value, int) else None
    return None


def _max_positions(config: Any) -> int:
    """Tokens of the longest text: of a longer one, longrope and dynamic NTK would rotate what was read already anew."""
    max_positions = (
        max(0, _config_size(config, "max_position_embeddings") or 0) or DEFAULT_MAX_POSITIONS
    )
    rope = getattr(config, "rope_parameters", None) or {}
    for angles in (rope, *rope.values()):  # one for all layers, or one for each type of layer
        if isinstance(angles, dict) and angles.get("rope_type") in ("longrope", "dynamic"):
            max_positions = min(
                max_positions, angles.get("original_max_position_embeddings") or max_positions
            )
    return max_positions


def _generation_eos_ids(model: PreTrainedModel) -> list[int]:
    """The tokens that the model's `generation_config` ends answers with."""
    ends = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    return [end for end in (ends if isinstance(ends, list) else [ends]) if isinstance(end, int)]


def load(
    name: str = NANO,
    *,
    random_weights: bool = False,
    device: str = "auto",
    dtype: str = "auto",
    seed: int = 0,
    bos: str = "auto",
) -> LM:
    """The base LM of that name, frozen.

    Args:
        name: "nano" (ships with the package), a short name of `architectures`, a folder, a .gguf file, or a hub id.
        random_weights, seed: build a known architecture from its published configuration, its weights drawn, offline.
        device: "auto" (a GPU if there is one; several, layer by layer, where one is too small), "cpu", "cuda",
            "cuda:1", "xpu", "mps".
        dtype: "auto" (float32 on a CPU, the checkpoint's own on a GPU), "float32", "bfloat16" or "float16".
        bos: what begins a text, see `Texts`.
    """
    where = find_device(device)
    kind, weights, tokenizer_source = find_dtype(dtype, where), "", name
    if random_weights:
        model, tokenizer, tokenizer_source = hub.random_model(name, kind, where, seed)
    else:
        model, tokenizer, weights = hub.load_pretrained(
            name, kind, where, use_all_devices=device == "auto"
        )
    return LM(
        model,
        tokenizer,
        name,
        random_weights=random_weights,
        tokenizer_name=tokenizer_source,
        bos=bos,
        weights=weights,
    )
