"""Token classifier of LLMLingua-2: the probability that a word is kept.

Pan et al., arXiv 2403.12968: XLM-RoBERTa or BERT with two labels, 0 (drop) and 1 (keep).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import AutoModelForTokenClassification

from ttabench.core.errors import UserError
from ttabench.core.files import reading_file
from ttabench.lm.forward.tokens import pad
from ttabench.lm.texts import copy_backend
from ttabench.methods.parts.stored import (
    load_pretrained_config,
    load_pretrained_model,
    load_pretrained_tokenizer,
    resolve_pretrained,
)
from ttabench.methods.text_compression import SELF_INFORMATION

HINT = "Use a folder of save_pretrained or a hub id, such as one of LLMLingua-2."
MAX_WINDOWS_PER_BATCH = 32
RESERVED_POSITIONS = 2
"""First positions that RoBERTa does not use."""


class WordClassifier:
    """Frozen token classifier with the labels drop and keep."""

    def __init__(self, name: str, device: torch.device) -> None:
        self._place = place = resolve_pretrained("scorer", name, [SELF_INFORMATION])
        config = load_pretrained_config(place)
        if config is None or config.num_labels != 2:
            raise UserError(f"{place} does not contain a classifier of two labels.", HINT)
        self._model = load_pretrained_model(
            AutoModelForTokenClassification, place, "classifier", HINT
        )
        self._model.to(device).eval().requires_grad_(False)
        self._device = device
        tokenizer = load_pretrained_tokenizer(place, "classifier", HINT)
        self._pad_id = int(tokenizer.pad_token_id or 0)
        longest = int(getattr(config, "max_position_embeddings", 512)) - RESERVED_POSITIONS
        with reading_file(place, HINT, max_bytes=None):
            self._texts = copy_backend(tokenizer)
            self._texts.enable_truncation(min(longest, int(tokenizer.model_max_length)))

    @torch.no_grad()
    def keep_probabilities(self, words: Sequence[str]) -> list[float]:
        """Return the probability that each word of a text is kept, the mean of its tokens.

        The text is the words without anything between them, read in windows of the classifier. A
        word without tokens, such as white space, has 0.
        """
        word_of_character = [number for number, word in enumerate(words) for _ in word]
        whole = self._texts.encode("".join(words))
        windows = [whole, *whole.overflowing]
        sums, counts = [0.0] * len(words), [0] * len(words)
        for begin in range(0, len(windows), MAX_WINDOWS_PER_BATCH):
            batch = windows[begin : begin + MAX_WINDOWS_PER_BATCH]
            rows = [window.ids for window in batch]
            ids_BT, mask_BT = pad(rows, self._pad_id, "right", self._device)
            with reading_file(self._place, HINT, max_bytes=None):
                logits_BT2 = self._model(input_ids=ids_BT, attention_mask=mask_BT.long()).logits
            keep_BT = logits_BT2.float().softmax(-1)[..., 1].tolist()
            for window, probabilities in zip(batch, keep_BT, strict=True):
                for (start, end), probability in zip(window.offsets, probabilities, strict=False):
                    if start < end:  # special tokens have no characters
                        word = word_of_character[end - 1]
                        sums[word] += probability
                        counts[word] += 1
        return [total / max(1, count) for total, count in zip(sums, counts, strict=True)]
