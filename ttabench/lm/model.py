"""Frozen base language model, loaded by name, folder or hub id.

    lm = load("nano")
    lm.decode(lm.encode("Ada Voss lives in Port Ansel."))    # byte-level tokenizers are lossless

Weights never change: gradients are off and the model stays in evaluation mode. All adaptation goes
through `patching`.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from types import SimpleNamespace
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
from ttabench.lm.loading.server import CompletionServer, is_served
from ttabench.lm.positions import config_size, fix_frequencies, position_limits
from ttabench.lm.texts import TextTokenizer, byte_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


NON_SAMPLING_SETTINGS = re.compile(
    r"_.*|(bos|eos|pad|decoder_start)_token_id|(transformers|use|cache|return|output|max)_.*"
)
"""Fields of a `generation_config` that do not affect sampling."""
NO_WEIGHTS_REASON = "it runs on a server, which only reads and writes text"
"""Why methods that need weights or keys refuse a served model."""
TEXT_METHODS_HINT = "Use none, icl, rag, summary, random_text or prompt_compression."
NO_EFFECT_VALUES: tuple[Any, ...] = (None, False, 0, 1, "never", [], {})
"""Values of a `generation_config` that have no effect."""


class DecoderOutput(BaseModelOutputWithPast):  # type: ignore[misc]  # transformers is not typed
    """Decoder output with last hidden states. Any other attribute is None."""

    def __getattr__(self, name: str) -> None:
        """Return None for outputs that only some decoders have."""
        if name.startswith("__"):
            raise AttributeError(name)


class LM(TextTokenizer):
    """Frozen causal language model with its tokenizer (see `TextTokenizer`).

    Args:
        model: causal LM of transformers. `forward.capabilities` determines how it is run.
        tokenizer: fast tokenizer whose ids fit the vocabulary of the model.
        name, tokenizer_name: names for records; the second defaults to the first.
        weights: remark on the weights for records, e.g. "Q4_1, dequantised"; may be empty.
        max_context: `max_positions`. Rotary frequencies that depend on it are fixed in the model.

    Attributes:
        max_positions: longest window; position ids are below it.
        kv_layers: decoder layers with keys and values of their own, all in most models.
        frequencies: name of the rotary frequencies that `max_context` fixed, see `positions`.
        kv_heads: key/value heads, fewer than `heads` under grouped-query attention.
        slot_floats: numbers in keys and values of a token, over all layers.
        text_vocab_size: first id beyond text tokens and end tokens; embedding tables may be larger.
        eos_ids: end tokens of an answer, from the tokenizer and the model's `generation_config`.
        attention_implementation: current attention implementation of the model in transformers.
        native_attention: implementation used by the model's own forward.
        has_linear_head: True if logits depend only on output embeddings and last hidden states.
        stands_on: checkpoint whose deltas were added to the weights (`run.evaluation`); or empty.
        inputs: digests of the loaded files, by the names of `RunConfig.inputs`.
        capabilities: record of deviations from the usual way of running (`forward.capabilities`).
        server: server that runs the model, see `ServedLM`; None for weights in this process.
        id_dtype: number format of token ids in states.
    """

    server: CompletionServer | None = None
    id_dtype = torch.int64

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
        max_context: int | None = None,
    ) -> None:
        super().__init__(tokenizer, tokenizer_name or name, bos)
        self.model = model.eval().requires_grad_(False)
        self.native_attention, self.attention_implementation = "eager", ""
        try:
            self.set_attention(self.native_attention)
        except ValueError:  # the model has no eager attention
            self.native_attention = str(model.config._attn_implementation)
        self.has_linear_head = False
        self.name, self.random_weights, self.weights = name, random_weights, weights
        config = self.config = model.config.get_text_config(decoder=True)
        self.vocab_size: int = config.vocab_size
        self.max_positions, self._longest_context = position_limits(config)
        self.frequencies = ""
        if max_context is not None:
            if max_context > self._longest_context:
                fault = f"--max-context {max_context} exceeds the {self._longest_context} positions"
                raise UserError(f"{fault} of {name}.", f"Use at most {self._longest_context}.")
            self.max_positions = max_context
            self.frequencies = fix_frequencies(model, max_context)
        self.hidden_size: int = config.hidden_size
        # the decoder of a model with an encoder may have another depth (Blenderbot)
        self.layers: int = config_size(config, "decoder_layers") or config.num_hidden_layers
        self.kv_layers: Sequence[int] = range(self.layers)
        self.heads: int = config_size(config, "num_attention_heads") or 1
        self.kv_heads: int = config_size(config, "num_key_value_heads") or self.heads
        self.head_dim: int = config_size(config, "head_dim") or self.hidden_size // self.heads
        self.slot_floats = 2 * self.layers * self.kv_heads * self.head_dim
        self.eos_ids = frozenset({self.eos_id, *_generation_eos_ids(model)})
        # ids may have gaps, so their number is not enough
        largest = max(*tokenizer.get_vocab().values(), *self.bos_ids)
        if largest >= self.vocab_size:
            fault = (
                f"Tokenizer {self.tokenizer_name!r} has the id {largest}, "
                f"but model {name!r} has {self.vocab_size} tokens."
            )
            raise UserError(fault, "Use the tokenizer that belongs to the model.")
        self.text_vocab_size = max(largest, *self.eos_ids) + 1
        self.stands_on: Mapping[str, Any] = {}
        self.inputs: Mapping[str, str] = {}
        self.capabilities: Mapping[str, Any] = {}

    @cached_property
    def generation_settings(self) -> dict[str, Any]:
        """Values of `generation_config` that would change greedy answers. All are ignored."""
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
        """Position limit in words, with the option that raises it."""
        more = f" (up to {self._longest_context} with --max-context)"
        has_more = self.max_positions < self._longest_context
        return f"{self.max_positions} positions of {self.name}{more if has_more else ''}"

    @property
    def returns_logprobs(self) -> bool:
        """True if the model gives log-probabilities of texts, as all models in this process do."""
        return self.server is None or self.server.returns_logprobs

    @property
    def slot_bytes(self) -> int:
        """Bytes of keys and values per token, over all layers; 0 if unknown."""
        return self.slot_floats * int(self.model.dtype.itemsize)

    @property
    def decoder(self) -> nn.Module:
        """Model without its head: ids to last hidden states."""
        base: nn.Module = self.model.base_model
        if base is not self.model:
            return base
        inside: Iterator[nn.Module] = (
            part for part in self.model.children() if isinstance(part, PreTrainedModel)
        )
        return next(inside, base)

    def set_attention(self, attention: str) -> None:
        """Set the attention implementation of transformers by name, if the model supports it."""
        with quiet_loading():
            self.model.set_attn_implementation(attention)
        self.attention_implementation = attention

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """Compute next-token logits [..., V] from last hidden states [..., D]."""
        if self.has_linear_head:
            plain: Tensor = self.model.get_output_embeddings()(hidden_ND)
            return plain.to(hidden_ND.device)
        rows_1ND = hidden_ND.reshape(1, -1, hidden_ND.shape[-1])
        ids_1N = torch.zeros(rows_1ND.shape[:2], dtype=torch.int64, device=rows_1ND.device)
        decoder = self.decoder
        # the head of OPT calls the inner decoder
        inner = decoder.get_decoder() if isinstance(decoder, PreTrainedModel) else decoder
        decoders = {part for part in (decoder, inner) if isinstance(part, PreTrainedModel)} - {
            self.model
        }
        # run the model's own forward with these hidden states as decoder output
        with ExitStack() as undo:
            for decoder in decoders:
                vars(decoder)["forward"] = lambda *_, **__: DecoderOutput(
                    last_hidden_state=rows_1ND
                )
                undo.callback(vars(decoder).pop, "forward")
            logits: Tensor = self.model(input_ids=ids_1N, use_cache=False).logits
        return logits.view(*hidden_ND.shape[:-1], -1).to(hidden_ND.device)

    def embed(self, ids_BT: Tensor, extra_embeddings_NC: Tensor | None = None) -> Tensor:
        """Compute input embeddings [B, T, C].

        Ids from `vocab_size` on are rows of `extra_embeddings_NC`, differentiable.
        """
        table = self.model.get_input_embeddings()
        found_BTC: Tensor = table(
            ids_BT if extra_embeddings_NC is None else ids_BT.clamp(max=self.vocab_size - 1)
        )
        if extra_embeddings_NC is None:
            return found_BTC
        rows_BT = (ids_BT - self.vocab_size).clamp(min=0)
        extra_BTC = extra_embeddings_NC.to(found_BTC)[rows_BT]
        return torch.where((ids_BT >= self.vocab_size)[..., None], extra_BTC, found_BTC)

    @property
    def device(self) -> torch.device:
        """Device of the weights; the first one if there are several."""
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """Number format of the weights."""
        return next(self.model.parameters()).dtype

    @cached_property
    def layer_devices(self) -> list[torch.device]:
        """Device of each decoder layer."""
        try:
            return [next(block.parameters()).device for block in self.blocks()]
        except UserError:  # no list of layers, so all are on one device
            return [self.device] * self.layers

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of architecture, parameter names, shapes and first 8 values of each parameter.

        Values are rounded to bfloat16, so float32 and bfloat16 weights have the same fingerprint.
        """
        digest = hashlib.sha256(f"{self.config.model_type} {self.heads} {self.kv_heads}".encode())
        values = []
        for name, parameter in self.model.named_parameters():
            digest.update(f"{name} {tuple(parameter.shape)}".encode())
            values.append(parameter.detach().flatten()[:8].to(torch.bfloat16))
        digest.update(torch.cat(values).view(torch.int16).cpu().numpy().tobytes())
        return digest.hexdigest()

    def linear_names(self) -> list[str]:
        """Return the names of the linear maps (`Linear`, GPT-2's `Conv1D`) in the decoder layers.

        The order is that of the model; the head is excluded.
        """
        # exact classes only: expert routers, which may derive from them, return more than a tensor
        maps = [m for m in self.blocks().modules() if type(m) in (nn.Linear, Conv1D)]
        # a weight that several modules share (Zamba) cannot be changed for one of them
        owners = Counter(id(m.weight) for m in maps)
        adapted = {id(m) for m in maps if owners[id(m.weight)] == 1}
        if not adapted:
            fault = f"{self.name} ({self.config.model_type}) has no linear layers to adapt."
            raise UserError(fault, "Use none, icl or rag.")
        return [name for name, m in self.model.named_modules() if id(m) in adapted]

    def linear_shape(self, name: str) -> tuple[int, int]:
        """Return (input features, output features) of a linear map."""
        module = self.model.get_submodule(name)
        rows, columns = module.weight.shape
        return (rows, columns) if isinstance(module, Conv1D) else (columns, rows)

    def blocks(self) -> nn.ModuleList:
        """Return the decoder layers, in order."""
        inner = self.model.get_decoder()  # the text decoder of a multimodal model
        decoder = inner if isinstance(inner, PreTrainedModel) else self.decoder
        lists = {
            name: m
            for name, m in decoder.named_modules()
            if isinstance(m, nn.ModuleList) and len(m) == self.layers
        }
        if lists:  # encoders of images are deeper, or come first
            return lists[min(reversed(lists), key=lambda name: name.count("."))]
        fault = (
            f"{self.name} ({self.config.model_type}) has no list of {self.layers} decoder layers."
        )
        raise UserError(fault, "Use none, icl or rag.")

    def set_base_checkpoint(self, stands_on: Mapping[str, Any]) -> None:
        """Record that deltas of a checkpoint were added to the weights. The fingerprint changes."""
        self.stands_on = stands_on
        self.__dict__.pop("fingerprint", None)

    def describe(self) -> dict[str, Any]:
        """Describe the base model for a run record (JSON values)."""
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


class ServedLM(LM):
    """Model on an OpenAI-compatible server. Only texts reach it: there are no weights and no keys.

    A token of budgets and lengths is one byte of UTF-8. Ids become text when they are sent.

    Args:
        name: `openai:URL#NAME`, see `loading.server`.
        device: device of states and retrievers.
        max_context: longest text in bytes. None: the server limits its texts itself.
    """

    def __init__(self, name: str, device: torch.device, max_context: int | None = None) -> None:
        TextTokenizer.__init__(self, byte_tokenizer(bos=False), f"bytes of {name}")
        self.server, self.name = CompletionServer(name), name
        self.random_weights, self.weights, self.frequencies = False, "", ""
        self.config = SimpleNamespace(model_type="served")
        self.vocab_size = self.text_vocab_size = len(self.tokenizer)
        self.pad_id = 0  # fits one byte
        self.id_dtype = torch.uint8
        self.eos_ids = frozenset({self.eos_id})
        self.max_positions = self._longest_context = max_context or sys.maxsize
        self.layers = self.slot_floats = 0
        self.kv_layers, self.has_linear_head, self.native_attention = (), False, ""
        self.stands_on, self.inputs, self.capabilities = {}, {}, {}
        self.generation_settings = {}
        self._device = device

    def __getattr__(self, name: str) -> Any:
        """Refuse to use weights and shapes, which only the server has."""
        if name.startswith("_"):
            raise AttributeError(name)
        raise UserError(f"{self.name} cannot be used here: {NO_WEIGHTS_REASON}.", TEXT_METHODS_HINT)

    @property
    def device(self) -> torch.device:
        """Device of states and retrievers."""
        return self._device

    @property
    def dtype(self) -> torch.dtype:
        """Number format of tensors outside of the model."""
        return torch.float32

    @property
    def slot_bytes(self) -> int:
        """Return 0: the size of keys and values on the server is unknown."""
        return 0

    def set_attention(self, attention: str) -> None:
        """Do nothing: attention is on the server."""

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the address and the name of the model."""
        return hashlib.sha256(self.name.encode()).hexdigest()

    def describe(self) -> dict[str, Any]:
        """Describe the model for a run record, with the name that the server reports."""
        assert self.server is not None
        return {
            "name": self.name,
            "architecture": "served",
            "reported_name": self.server.reported_model,
            "fingerprint": self.fingerprint,
            "tokenizer": "bytes",
            "device": str(self.device),
            "dtype": "",
            "start": "",
            "logprobs": self.server.returns_logprobs,
        }


def _generation_eos_ids(model: PreTrainedModel) -> list[int]:
    """Return the end tokens of the model's `generation_config`."""
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
    max_context: int | None = None,
) -> LM:
    """Load a frozen base LM.

    Args:
        name: "nano" (bundled), a short name of `architectures`, a folder, a .gguf file, a hub id,
            or `openai:URL#NAME` for a model on a server.
        random_weights, seed: build a known architecture with random weights, offline.
        device: "auto", "cpu", "cuda", "cuda:1", "xpu" or "mps". "auto" is a GPU if there is one;
            a model that is too large for it is split by layers over several.
        dtype: "auto", "float32", "bfloat16" or "float16". "auto" is float32 on a CPU and the format
            of the checkpoint on a GPU.
        bos: start of a text, see `TextTokenizer`.
        max_context: longest window in tokens, see `LM`.
    """
    where = find_device(device)
    if is_served(name):
        if random_weights or dtype != "auto" or bos != "auto":
            fault = f"--random-weights, --dtype and --bos do not apply to {name}."
            raise UserError(fault, "Remove them: the server decides.")
        return ServedLM(name, where, max_context)
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
        max_context=max_context,
    )
