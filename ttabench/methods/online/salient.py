"""Salient spans: online finetuning where tokens of named entities weigh 1, and all others 0.

    The transport of Ada Voss is the taxi.        "Ada Voss" is learned, behind what stands before it

The baseline of CaMeLS (Hu et al., arXiv 2305.15076, section 4) after Guu et al. (REALM, arXiv 2002.08909).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ttabench.core.types import Observe
from ttabench.lm.model import LM
from ttabench.methods.online import SALIENT_SPANS
from ttabench.methods.online.entities import Finder, entities_by_rule, inside, spacy_entities
from ttabench.methods.online.method import Online
from ttabench.methods.online.settings import SalientSettings


class SalientSpans(Online[SalientSettings]):
    """Tokens of named entities weigh 1.

    Raises:
        UserError: `spans=spacy`, and spaCy or its model is not installed.
    """

    spec = SALIENT_SPANS

    def __init__(self, lm: LM, settings: SalientSettings) -> None:
        super().__init__(lm, settings)
        self._find: Finder = entities_by_rule if settings.spans == "rule" else spacy_entities(settings.spacy_model)

    def token_weights(self, piece: Observe, ids: Sequence[int]) -> Tensor:
        """1 at tokens with a character of a named entity, else 0.

        A document that was tokenised as a part of something else (turns of a chat, a book) is looked at as its tokens
        are written, without special ones.
        """
        text = piece.text
        token_ids, starts = self.lm.encode_with_starts(text)
        if token_ids[: len(ids)] != list(ids):
            text, starts = self.lm.decode(ids), [len(self.lm.decode(ids[:place])) for place in range(len(ids))]
        marked = inside(text, starts, self._find(text))
        return torch.tensor(marked[: len(ids)], dtype=torch.float32, device=self.lm.device)
