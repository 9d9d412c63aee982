"""The frozen base language model: loaded by name, folder or hub id, with the few facts the package asks of it.

    lm = load("nano")
    lm.decode(lm.encode("Ada Voss lives in Port Ansel."))    # any text round-trips through a byte-level tokenizer

Weights never change: gradients are off, the model stays in evaluation mode. All adaptation goes through `patching`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from ttabench import attention, hub
from ttabench.architectures import NANO
from ttabench.chat import Chat, chat_of
from ttabench.errors import UnknownName, UserError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

ANCHOR = "a"
"""Stands in front of a text that follows other text, while it is tokenised, where that makes a difference."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class LM:
    """A frozen causal language model with its tokenizer.

    Args:
        model: a transformers causal LM whose logits are `output_embeddings(decoder(ids))` (Llama-likes, GPT-2, OPT).
        tokenizer: a fast tokenizer whose ids all fit the model's vocabulary.
        name: how the user named it; stands in records.
        random_weights: whether the weights were never trained.
        tokenizer_name: stands in records; by default `name`.
        bos: "auto" begins texts with what the tokenizer itself adds, "yes" with its BOS token, "no" with nothing.

    Attributes:
        max_positions: longest window; position ids run from 0 to this less one.
        kv_heads: key/value heads, fewer than `heads` under grouped-query attention.
        bos_ids: what begins a text: one token for Llama-likes, () for GPT-2 and for SmolLM2.
        eos_id: the token that ends a text; an answer may end with any of `eos_ids`.
        eos_ids: the tokenizer's end of sequence, and those of the model's `generation_config`.
        stands_on: the checkpoint whose deltas were added to the weights, see `standing`; empty where none was.
        chat: the chat template in use, see `use_chat_template`; None by default.
        pad_id: fills padded slots, which nothing attends to; EOS where the tokenizer has no padding token.
        weights: what records say of them, e.g. "Q4_1, dequantised"; empty where there is nothing to say.

    Raises:
        UserError: the tokenizer has more tokens than the model, none that ends a text, or no BOS where one is wanted.
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
    ) -> None:
        self.model = model.eval().requires_grad_(False)
        model.set_attn_implementation(attention.NAME)
        self.tokenizer = tokenizer
        self.name = name
        self.random_weights = random_weights
        self.weights = ""
        self.tokenizer_name = tokenizer_name or name
        config = self.config = model.config
        self.vocab_size: int = config.vocab_size
        self.max_positions: int = config.max_position_embeddings
        self.hidden_size: int = config.hidden_size
        self.layers: int = config.num_hidden_layers
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = getattr(config, "num_key_value_heads", None) or self.heads
        self.head_dim: int = getattr(config, "head_dim", None) or self.hidden_size // self.heads
        self.eos_id, self.pad_id = _special_ids(tokenizer, self.tokenizer_name)
        self.bos_ids = _first_ids(tokenizer, bos, self.tokenizer_name)
        self.eos_ids = frozenset({self.eos_id, *_ends(model)})
        if len(tokenizer) > self.vocab_size:
            what = f"Tokenizer {self.tokenizer_name!r} has {len(tokenizer)} tokens, model {name!r} {self.vocab_size}."
            raise UserError(what, "Give the tokenizer that belongs to the model.")
        # Own copies: a call of `tokenizer` changes truncation, padding and special tokens of its backend.
        self._texts = backend(tokenizer)
        self._templates = backend(tokenizer, specials_are_text=False)
        self._anchor_ids = _anchor(self._texts)
        self.chat: Chat | None = None
        self.stands_on: Mapping[str, Any] = {}

    @property
    def decoder(self) -> nn.Module:
        """The model without its head: ids to last hidden states."""
        base: nn.Module = self.model.base_model
        return base

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """Next-token logits [..., V] of the last hidden states [..., D]."""
        out: Tensor = self.model.get_output_embeddings()(hidden_ND)
        return out

    @property
    def _parameter(self) -> nn.Parameter:
        first: nn.Parameter = next(self.model.parameters())
        return first

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self._parameter.device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights."""
        return self._parameter.dtype

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
        blocks = {id(m) for m in self.blocks().modules()}
        named = self.model.named_modules()
        return [name for name, m in named if id(m) in blocks and isinstance(m, nn.Linear | Conv1D)]

    def linear_shape(self, name: str) -> tuple[int, int]:
        """(features in, features out) of the linear map of that name."""
        module = self.model.get_submodule(name)
        if isinstance(module, Conv1D):
            return int(module.nx), int(module.nf)
        assert isinstance(module, nn.Linear), f"{name} is no linear map"
        return module.in_features, module.out_features

    def blocks(self) -> nn.ModuleList:
        """The decoder layers, in order."""
        lists = [m for m in self.decoder.modules() if isinstance(m, nn.ModuleList) and len(m) == self.layers]
        assert lists, f"{self.name}: found no list of {self.layers} decoder layers"
        return lists[0]

    def changed(self, stands_on: Mapping[str, Any]) -> None:
        """Say that the weights are now those of a base that stands on a checkpoint: it has another fingerprint."""
        self.stands_on = stands_on
        self.__dict__.pop("fingerprint", None)

    @property
    def start_ids(self) -> tuple[int, ...]:
        """What stands in front of every text: what opens the user's turn of a chat template, else `bos_ids`."""
        return self.bos_ids if self.chat is None else self.chat.start_ids

    def use_chat_template(self) -> None:
        """Read contexts and questions as a user's turn of the tokenizer's chat template, answers as the next turn.

        Raises:
            UserError: the tokenizer has no chat template, or one that leaves out what the user says.
        """
        self.chat = chat_of(self.tokenizer, self.tokenizer_name, self.encode_template)

    def encode(self, text: str, max_tokens: int | None = None, *, follows: bool = False) -> list[int]:
        """Token ids; "<|eos|>" in a document is text, not its end.

        Args:
            text: any text.
            max_tokens: keep the first so many.
            follows: the text goes on behind other text. Tokenizers that put a blank in front of every text
                (SentencePiece) then put none.
        """
        ids: list[int] = self._texts.encode(self._behind(text, follows), add_special_tokens=False).ids
        return self._own(ids, follows)[:max_tokens]

    def _behind(self, text: str, follows: bool) -> str:
        return ANCHOR + text if follows and self._anchor_ids else text

    def _own(self, ids: list[int], follows: bool) -> list[int]:
        """Without the anchor; a token that joins it and the text stays whole."""
        skip = len(self._anchor_ids) if follows else 0
        return ids[skip:] if skip and tuple(ids[:skip]) == self._anchor_ids else ids

    def encode_template(self, text: str) -> list[int]:
        """Token ids of a text whose special tokens are meant, as those of a chat template are; nothing is added."""
        return self.encode_many([text], specials=True)[0]

    def encode_with_starts(self, text: str) -> tuple[list[int], list[int]]:
        """Token ids without special tokens, and where in the text each token begins (in characters)."""
        found = self._texts.encode(text, add_special_tokens=False)
        return found.ids, [start for start, _ in found.offsets]

    def encode_many(
        self, texts: Sequence[str], max_tokens: int | None = None, *, follows: bool = False, specials: bool = False
    ) -> list[list[int]]:
        """`encode` of many texts, in parallel; with `specials` as `encode_template` reads them."""
        own = self._templates if specials else self._texts
        rows = own.encode_batch([self._behind(text, follows) for text in texts], add_special_tokens=False)
        return [self._own(row.ids, follows)[:max_tokens] for row in rows]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, special tokens left out."""
        text = self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text

    def describe(self) -> dict[str, Any]:
        """What a run record says about the base model (JSON values)."""
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
        }


def _special_ids(tokenizer: PreTrainedTokenizerFast, name: str) -> tuple[int, int]:
    eos, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    if eos is None:
        raise UserError(f"Tokenizer {name!r} has no end-of-sequence token.", "Set eos_token in tokenizer_config.json.")
    return int(eos), int(eos if pad is None else pad)


def _first_ids(tokenizer: PreTrainedTokenizerFast, bos: str, name: str) -> tuple[int, ...]:
    """What begins a text. A BOS token that the tokenizer knows but does not add (SmolLM2, GPT-2) begins none."""
    if bos == "no":
        return ()
    if bos == "yes":
        if tokenizer.bos_token_id is None:
            raise UserError(f"Tokenizer {name!r} has no BOS token.", "Leave --bos out.")
        return (int(tokenizer.bos_token_id),)
    bare = tokenizer.backend_tokenizer.encode("a", add_special_tokens=False).ids
    whole = tokenizer.backend_tokenizer.encode("a", add_special_tokens=True).ids
    places = [i for i in range(len(whole)) if whole[i : i + len(bare)] == bare]
    return tuple(whole[: places[0]]) if places else ()


def _ends(model: PreTrainedModel) -> list[int]:
    """The tokens that the model's `generation_config` ends answers with."""
    config = getattr(model, "generation_config", None)
    ends = None if config is None else config.eos_token_id
    return [] if ends is None else [ends] if isinstance(ends, int) else list(ends)


def _anchor(texts: Tokenizer) -> tuple[int, ...]:
    """The ids of `ANCHOR` where a text behind other text has other tokens than alone; else nothing."""

    def ids(text: str) -> list[int]:
        found: list[int] = texts.encode(text, add_special_tokens=False).ids
        return found

    first, continuations = ids(ANCHOR), ("\n\nb", " b", "\nb")
    return () if all(first + ids(each) == ids(ANCHOR + each) for each in continuations) else tuple(first)


def backend(tokenizer: PreTrainedTokenizerFast, *, specials_are_text: bool = True) -> Tokenizer:
    """A copy of the tokenizer's backend that neither cuts nor pads, and that no call of the tokenizer changes.

    Args:
        tokenizer: a fast tokenizer.
        specials_are_text: whether "<|eos|>" in a text is text, as in a document, or a token, as in a template.
    """
    own = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    own.no_truncation()
    own.no_padding()
    own.encode_special_tokens = specials_are_text
    return own


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
        random_weights: build a known architecture from its published configuration with random weights, offline.
        device: "auto" (the first GPU if there is one), "cpu", "cuda", "cuda:1" ...
        dtype: "auto" (float32 on a CPU, the checkpoint's own on a GPU), "float32", "bfloat16" or "float16".
        seed: of the random weights.
        bos: what begins a text, see `LM`.

    Raises:
        UserError: unknown name (closest named), folder without a model, hub not reachable, broken weights (see
            `loading.read`), device or dtype not there.
    """
    where = find_device(device)
    kind = find_dtype(dtype, where)
    if random_weights:
        model, tokenizer, tokenizer_name = hub.random(name, kind, where, seed)
        return LM(model, tokenizer, name, random_weights=True, tokenizer_name=tokenizer_name, bos=bos)
    found = hub.pretrained(name, kind, where)
    lm = LM(found.model, found.tokenizer, name, bos=bos)
    lm.weights = found.weights
    return lm


def find_device(name: str) -> torch.device:
    """The device of that name; "auto" is the first GPU if there is one.

    Raises:
        UserError: it is not there.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"Device {name!r} is not there.", "Use --device cpu, or cuda where there is a GPU.") from error
    return device


def find_dtype(name: str, device: torch.device) -> torch.dtype | None:
    """The number format of that name; None, for "auto" on a GPU, stands for the checkpoint's own.

    Raises:
        UnknownName: no such format.
    """
    if name == "auto":
        return torch.float32 if device.type == "cpu" else None
    if name not in DTYPES:
        raise UnknownName("dtype", name, ["auto", *DTYPES])
    return DTYPES[name]
