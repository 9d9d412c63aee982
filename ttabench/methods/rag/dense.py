"""Dense retrieval: vectors of documents in the state, and their dot products with that of the question."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize
from transformers import AutoModel

from ttabench.core.bounds import refuse_long
from ttabench.core.checked_file import json_of
from ttabench.core.errors import UserError
from ttabench.core.types import Json
from ttabench.lm.forward.tokens import pad
from ttabench.lm.loading.model_reader import small_file
from ttabench.lm.text.texts import backend
from ttabench.methods.parts.stored import place_of, stored_config, stored_model, stored_tokenizer

HINT = (
    "Give a folder with config.json, tokenizer.json and model.safetensors (save_pretrained writes them), or a hub id."
)
TOKENS_AT_ONCE = 8192
"""Padded tokens encoded in one batch."""
POOLINGS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
"""Ways of sentence-transformers, by their names in the configuration of its pooling."""
DOCUMENT, QUESTION = ("document", "passage"), ("query", "question")
"""Names of prompts in the configuration of sentence-transformers, by what is encoded."""


@dataclass(frozen=True)
class Manner:
    """How an encoder's token vectors become one vector, by its own files."""

    pooling: str = "mean"
    normalised: bool = False
    max_tokens: int = 512
    prompts: Mapping[str, str] = field(default_factory=dict)
    """Texts in front of a text, by what is encoded."""


class DenseRetriever:
    """A frozen encoder of texts."""

    tensor = "vectors"

    def __init__(self, name: str, device: torch.device) -> None:
        place = place_of(name)
        config = stored_config(place)
        if config is None or getattr(config, "is_encoder_decoder", False):
            raise UserError(f"{place} holds no encoder of texts.", HINT)
        self.manner, self._device, self._width = manner_of(place), device, int(config.hidden_size)
        self._model = stored_model(AutoModel, place, "encoder", HINT, unused=("pooler.",))
        self._model.to(device).eval().requires_grad_(False)
        tokenizer = stored_tokenizer(place, "encoder", HINT)
        self._texts, self._pad_id = backend(tokenizer), int(tokenizer.pad_token_id or 0)
        longest = int(getattr(config, "max_position_embeddings", 512))
        self._texts.enable_truncation(min(self.manner.max_tokens, longest, int(tokenizer.model_max_length)))
        whole = hashlib.sha256(repr(self.manner).encode())
        for key, parameter in sorted(self._model.named_parameters()):
            whole.update(key.encode() + parameter.detach().cpu().contiguous().numpy().tobytes())
        self.identity = whole.hexdigest()[:16]
        """Of its weights and of how it pools."""

    def documents(self, texts: Sequence[str]) -> list[Tensor]:
        """The vector [1, D] of each text."""
        return self._encoded(texts, DOCUMENT)

    def questions(self, texts: Sequence[str]) -> list[Tensor]:
        """The vector [1, D] of each question."""
        return self._encoded(texts, QUESTION)

    def scorer(self, documents: Sequence[Tensor]) -> Callable[[Tensor], NDArray[np.float32]]:
        """Gives the dot product of a question's vector with that of each document, [documents]."""
        vectors_KD = torch.cat([vector.cpu() for vector in documents])
        return lambda vector_1D: (vectors_KD @ vector_1D[0]).numpy()

    @torch.no_grad()
    def _encoded(self, texts: Sequence[str], role: Sequence[str]) -> list[Tensor]:
        """Vectors of any number of texts, each cut to the tokens that the model reads; float32, on the CPU."""
        refuse_long(texts)
        prompt = next((self.manner.prompts[name] for name in role if name in self.manner.prompts), "")
        ids = [encoding.ids for encoding in self._texts.encode_batch([prompt + text for text in texts])]
        vectors = [torch.zeros(0)] * len(ids)
        order = sorted(range(len(ids)), key=lambda place: len(ids[place]))
        while order:
            batch = order[-max(1, TOKENS_AT_ONCE // max(1, len(ids[order[-1]]))) :]
            del order[-len(batch) :]
            ids_BT, mask_BT = (part.to(self._device) for part in pad([ids[n] for n in batch], self._pad_id, "right"))
            hidden_BTD = self._model(input_ids=ids_BT, attention_mask=mask_BT.long()).last_hidden_state
            vectors_BD = hidden_BTD[:, 0]
            if self.manner.pooling == "mean":
                vectors_BD = (hidden_BTD * mask_BT[..., None]).sum(1) / mask_BT.sum(1, keepdim=True)
            vectors_BD = normalize(vectors_BD, dim=-1) if self.manner.normalised else vectors_BD
            for place, vector_1D in zip(batch, vectors_BD.float().cpu().split(1), strict=True):
                vectors[place] = vector_1D
        return vectors


def manner_of(place: str) -> Manner:
    """How a model says that its texts are read, in sentence-transformers' files; the mean over tokens without them."""

    def told(name: str) -> Json:
        file = small_file(place, f"{name}.json")
        return None if file is None else json_of(file, hint="Copy it again.")

    modules = told("modules")
    if modules is None:
        return Manner()
    kinds = {str(module.get("type", "")).rpartition(".")[2]: str(module.get("path", "")) for module in modules}
    folder = kinds.get("Pooling", "")
    if set(kinds) - {"Transformer", "Pooling", "Normalize"} or kinds.get("Transformer"):
        raise UserError(f"{place} has other modules (modules.json) than a transformer, its pooling and norm.", HINT)
    if not folder.replace("_", "").isalnum():
        raise UserError(f"modules.json of {place} names no folder of its own pooling.", HINT)
    pooling = told(f"{folder}/config") or {}
    asked = [key for key, value in pooling.items() if key.startswith("pooling_mode") and value is True]
    if len(asked) != 1 or asked[0] not in POOLINGS:
        raise UserError(f"{place} pools by {', '.join(asked)}; one of {', '.join(POOLINGS)} is known here.", HINT)
    cut, more = told("sentence_bert_config") or {}, told("config_sentence_transformers") or {}
    return Manner(
        pooling=POOLINGS[asked[0]],
        normalised="Normalize" in kinds or more.get("similarity_fn_name", "cosine") in (None, "cosine"),
        max_tokens=int(cut.get("max_seq_length") or 512),
        prompts={str(key): str(value) for key, value in (more.get("prompts") or {}).items()},
    )
