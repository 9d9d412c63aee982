"""Dense retrieval: vectors of documents in the state, and their dot products with that of the question."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize
from transformers import AutoModel

from ttabench.core.errors import UserError, refuse_long
from ttabench.core.files import json_of, reading
from ttabench.core.types import Json
from ttabench.lm.forward.tokens import pad
from ttabench.lm.loading.model_reader import small_file
from ttabench.lm.texts import backend
from ttabench.methods.parts.stored import place_of, stored_config, stored_model, stored_tokenizer

HINT = "Give a folder of save_pretrained (config.json, tokenizer.json, model.safetensors), or a hub id."
AT_ONCE = 32
"""Texts encoded in one batch."""
KINDS = {"Transformer", "Pooling", "Normalize"}
"""Modules of sentence-transformers that are known here."""


class DenseRetriever:
    """A frozen encoder of texts, whose token vectors are averaged."""

    tensor = "vectors"

    def __init__(self, name: str, device: torch.device) -> None:
        self._place = place = place_of(name)
        with reading(place, HINT, most=None):
            config = stored_config(place)
            if config is None or getattr(config, "is_encoder_decoder", False):
                raise UserError(f"{place} holds no encoder of texts.", HINT)
            self.normalised, max_tokens = manner_of(place)
            self._device = device
            self._model = stored_model(AutoModel, place, "encoder", HINT, unused=("pooler.",))
            self._model.to(device).eval().requires_grad_(False)
            tokenizer = stored_tokenizer(place, "encoder", HINT)
            self._texts, self._pad_id = backend(tokenizer), int(tokenizer.pad_token_id or 0)
            longest = int(getattr(config, "max_position_embeddings", 512))
            self._texts.enable_truncation(min(max_tokens, longest, int(tokenizer.model_max_length)))

    @torch.no_grad()
    def documents(self, texts: Sequence[str]) -> list[Tensor]:
        """The vector [1, D] of each text, cut to the tokens that the model reads; float32, on the CPU."""
        refuse_long(texts)
        ids = [encoding.ids for encoding in self._texts.encode_batch(list(texts))]
        vectors = [torch.zeros(0)] * len(ids)
        order = sorted(range(len(ids)), key=lambda place: len(ids[place]))
        for batch in (order[begin : begin + AT_ONCE] for begin in range(0, len(order), AT_ONCE)):
            ids_BT, mask_BT = (part.to(self._device) for part in pad([ids[n] for n in batch], self._pad_id, "right"))
            with reading(self._place, HINT, most=None):
                hidden_BTD = self._model(input_ids=ids_BT, attention_mask=mask_BT.long()).last_hidden_state
            vectors_BD = (hidden_BTD * mask_BT[..., None]).sum(1) / mask_BT.sum(1, keepdim=True)
            vectors_BD = normalize(vectors_BD, dim=-1) if self.normalised else vectors_BD
            for place, vector_1D in zip(batch, vectors_BD.float().cpu().split(1), strict=True):
                vectors[place] = vector_1D
        return vectors

    questions = documents

    def scorer(self, documents: Sequence[Tensor]) -> Callable[[Tensor], NDArray[np.float32]]:
        """Gives the dot product of a question's vector with that of each document, [documents]."""
        vectors_KD = torch.cat([vector.cpu() for vector in documents])
        return lambda vector_1D: (vectors_KD @ vector_1D[0]).numpy()


def manner_of(place: str) -> tuple[bool, int]:
    """Whether a model's vectors are normalised and how many tokens it reads, by sentence-transformers' files; those of
    a model without them are not, and it reads 512."""

    def told(name: str) -> Json:
        file = small_file(place, f"{name}.json")
        return None if file is None else json_of(file, hint="Copy it again.")

    modules = told("modules")
    if modules is None:
        return False, 512
    kinds = {str(module.get("type", "")).rpartition(".")[2]: str(module.get("path", "")) for module in modules}
    folder = kinds.get("Pooling", "")
    if set(kinds) - KINDS or kinds.get("Transformer") or not folder.replace("_", "").isalnum():
        raise UserError(f"{place} has other modules (modules.json) than a transformer, its pooling and norm.", HINT)
    pooling, more = told(f"{folder}/config") or {}, told("config_sentence_transformers") or {}
    modes = [key for key, value in pooling.items() if key.startswith("pooling_mode") and value is True]
    if modes != ["pooling_mode_mean_tokens"] or any((more.get("prompts") or {}).values()):
        raise UserError(f"{place} pools otherwise than by the mean, or puts prompts before texts.", HINT)
    normalised = "Normalize" in kinds or more.get("similarity_fn_name", "cosine") in (None, "cosine")
    return normalised, int((told("sentence_bert_config") or {}).get("max_seq_length") or 512)
