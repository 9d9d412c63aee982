"""Dense retrieval: documents are ranked by the dot product of their vectors with the query's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize
from transformers import AutoModel

from ttabench.core.errors import UserError, refuse_unreadable_texts
from ttabench.core.files import read_json, reading_file
from ttabench.core.types import Json
from ttabench.lm.forward.tokens import pad
from ttabench.lm.loading.model_reader import find_small_file
from ttabench.lm.texts import copy_backend
from ttabench.methods.parts.stored import (
    load_pretrained_config,
    load_pretrained_model,
    load_pretrained_tokenizer,
    resolve_encoder,
)

ENCODER_HINT = (
    "Use a folder of save_pretrained (config.json, tokenizer.json, model.safetensors), or a hub id."
)
MAX_TEXTS_PER_BATCH = 32
"""Maximum texts per batch of the encoder."""
KNOWN_MODULES = {"Transformer", "Pooling", "Normalize"}
"""Supported modules of sentence-transformers."""


class DenseRetriever:
    """Frozen text encoder with mean pooling."""

    tensor = "vectors"

    def __init__(self, name: str, device: torch.device) -> None:
        self._place = place = resolve_encoder(name)
        with reading_file(place, ENCODER_HINT, max_bytes=None):
            config = load_pretrained_config(place)
            if config is None or getattr(config, "is_encoder_decoder", False):
                raise UserError(f"{place} does not contain a text encoder.", ENCODER_HINT)
            self.normalised, max_tokens = read_pooling(place)
            self._device = device
            self._model = load_pretrained_model(
                AutoModel, place, "encoder", ENCODER_HINT, unused=("pooler.",)
            )
            self._model.to(device).eval().requires_grad_(False)
            tokenizer = load_pretrained_tokenizer(place, "encoder", ENCODER_HINT)
            self._texts, self._pad_id = copy_backend(tokenizer), int(tokenizer.pad_token_id or 0)
            longest = int(getattr(config, "max_position_embeddings", 512))
            self._texts.enable_truncation(min(max_tokens, longest, int(tokenizer.model_max_length)))

    @torch.no_grad()
    def encode(self, texts: Sequence[str]) -> list[Tensor]:
        """Encode each text, truncated for the encoder, to a vector [1, D], float32, on the CPU."""
        refuse_unreadable_texts(texts)
        ids = [encoding.ids for encoding in self._texts.encode_batch(list(texts))]
        vectors = [torch.zeros(0)] * len(ids)
        order = sorted(range(len(ids)), key=lambda place: len(ids[place]))
        for batch in (
            order[begin : begin + MAX_TEXTS_PER_BATCH]
            for begin in range(0, len(order), MAX_TEXTS_PER_BATCH)
        ):
            ids_BT, mask_BT = pad([ids[n] for n in batch], self._pad_id, "right", self._device)
            with reading_file(self._place, ENCODER_HINT, max_bytes=None):
                hidden_BTD = self._model(
                    input_ids=ids_BT, attention_mask=mask_BT.long()
                ).last_hidden_state
            vectors_BD = (hidden_BTD * mask_BT[..., None]).sum(1) / mask_BT.sum(1, keepdim=True)
            vectors_BD = normalize(vectors_BD, dim=-1) if self.normalised else vectors_BD
            for place, vector_1D in zip(batch, vectors_BD.float().cpu().split(1), strict=True):
                vectors[place] = vector_1D
        return vectors

    def scorer(self, documents: Sequence[Tensor]) -> Callable[[Tensor], NDArray[np.float32]]:
        """Return a function from a query vector to its dot product with each document."""
        vectors_KD = torch.cat([vector.cpu() for vector in documents])
        return lambda vector_1D: (vectors_KD @ vector_1D[0]).numpy()


def read_pooling(place: str) -> tuple[bool, int]:
    """Read normalisation and maximum tokens from files of sentence-transformers.

    Without these files, the result is (False, 512).

    Raises:
        UserError: the files require other pooling, modules or prompts.
    """

    def read_json_file(name: str) -> Json:
        file = find_small_file(place, f"{name}.json")
        return None if file is None else read_json(file, hint="Copy it again.")

    modules = read_json_file("modules")
    if modules is None:
        return False, 512
    kinds = {
        str(module.get("type", "")).rpartition(".")[2]: str(module.get("path", ""))
        for module in modules
    }
    folder = kinds.get("Pooling", "")
    if (
        set(kinds) - KNOWN_MODULES
        or kinds.get("Transformer")
        or not folder.replace("_", "").isalnum()
    ):
        raise UserError(
            f"modules.json of {place} has modules other than transformer, pooling and norm.",
            ENCODER_HINT,
        )
    pooling = read_json_file(f"{folder}/config") or {}
    more = read_json_file("config_sentence_transformers") or {}
    modes = [
        key for key, value in pooling.items() if key.startswith("pooling_mode") and value is True
    ]
    if modes != ["pooling_mode_mean_tokens"] or any((more.get("prompts") or {}).values()):
        raise UserError(
            f"{place} uses prompts or other than mean pooling, which is not supported.",
            ENCODER_HINT,
        )
    similarity = more.get("similarity_fn_name", "cosine")
    bert_config = read_json_file("sentence_bert_config") or {}
    max_tokens = int(bert_config.get("max_seq_length") or 512)
    return "Normalize" in kinds or similarity in (None, "cosine"), max_tokens
