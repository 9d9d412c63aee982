"""Salient spans: online finetuning where tokens of named entities weigh 1, and all others 0.

The baseline of CaMeLS (Hu et al., arXiv 2305.15076, section 4) after Guu et al. (REALM, arXiv 2002.08909).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ttabench.core.errors import UserError
from ttabench.core.types import Observe
from ttabench.lm.model import LM
from ttabench.methods.online import SALIENT_SPANS, SalientSettings
from ttabench.methods.online.method import Online

Span: TypeAlias = tuple[int, int]
Finder: TypeAlias = Callable[[str], list[Span]]

LEFT_OUT = frozenset({"TIME", "PERCENT", "MONEY", "QUANTITY", "ORDINAL", "CARDINAL"})
"""Types of spaCy's entities that do not count; dates do."""
RUN = re.compile(r"\b[A-Z][\w'-]*(?:[ ]+[A-Z][\w'-]*)*")
"""Words in a row that begin with a capital."""
YEAR = re.compile(r"\b(?:1\d|20)\d\d\b")
BEGINS = re.compile(r"(?:^|[.!?:\n][\"')\]]*\s*|[\"(\[])$")
"""What stands in front of a word that begins a sentence."""


def entities_by_rule(text: str) -> list[Span]:
    """Runs of capitalised words and years (1000 to 2099), in order. A single capitalised word that begins a sentence
    does not count: any word would."""
    spans = [match.span() for match in YEAR.finditer(text)]
    for match in RUN.finditer(text):
        begins = BEGINS.search(text[max(0, match.start() - 8) : match.start()]) is not None
        if not begins or " " in match[0]:
            spans.append(match.span())
    return sorted(spans)


def spacy_entities(model: str) -> Finder:
    """What finds entities with a model of spaCy."""
    otherwise = "or --set spans=rule (runs of capitalised words, and years)."
    try:
        spacy: Any = import_module("spacy")
    except ImportError:
        fault = "salient_spans finds named entities with spaCy, which is not installed."
        raise UserError(fault, f"pip install spacy and python -m spacy download {model}, {otherwise}") from None
    try:
        pipeline = spacy.load(model)
    except OSError:
        fault = f"spaCy has no model {model!r}."
        raise UserError(fault, f"python -m spacy download {model}, --set spacy_model=NAME, {otherwise}") from None

    def find(text: str) -> list[Span]:
        return [(entity.start_char, entity.end_char) for entity in pipeline(text).ents if entity.label_ not in LEFT_OUT]

    return find


def inside(text: str, starts: Sequence[int], spans: Sequence[Span]) -> list[bool]:
    """Which tokens have a character of a span in them, blanks aside. `starts`: first character of each token."""
    counts = [False] * len(text)
    for first, behind in spans:
        for place in range(first, behind):
            counts[place] = not text[place].isspace()
    ends = [*starts[1:], len(text)]
    # a character of several tokens begins them all
    return [any(counts[start : max(end, start + 1)]) for start, end in zip(starts, ends, strict=True)]


class SalientSpans(Online[SalientSettings]):
    """Tokens of named entities weigh 1."""

    spec = SALIENT_SPANS

    def __init__(self, lm: LM, settings: SalientSettings) -> None:
        super().__init__(lm, settings)
        self._find: Finder = entities_by_rule if settings.spans == "rule" else spacy_entities(settings.spacy_model)

    def token_weights(self, piece: Observe, ids: Sequence[int]) -> Tensor:
        """1 at tokens with a character of a named entity, else 0. A document that was tokenised as a part of
        something else (turns of a chat, a book) is looked at as its tokens are written, without special ones."""
        text = piece.text
        token_ids, starts = self.lm.encode_with_starts(text)
        if token_ids[: len(ids)] != list(ids):
            text, starts = self.lm.decode(ids), [len(self.lm.decode(ids[:place])) for place in range(len(ids))]
        marked = inside(text, starts, self._find(text))
        return torch.tensor(marked[: len(ids)], dtype=torch.float32, device=self.lm.device)
