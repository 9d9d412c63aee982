"""Text compression: a text within a budget of tokens is read before each query.

Words are scored, and those with the highest scores are kept in their order:

- `random_text`: random numbers, the control.
- `prompt_compression`: self-information under the base model (Selective Context, Li et al., arXiv
  2310.06201), or the probability of a token classifier (LLMLingua-2, Pan et al., arXiv 2403.12968).
"""

from __future__ import annotations

import unicodedata
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from random import Random
from typing import TypeVar

import torch
from tokenizers.decoders import DecodeStream
from torch import Tensor

from ttabench.core.types import Chunk, Query
from ttabench.lm.forward.tokens import new_chunk_ids
from ttabench.lm.inference.scoring import token_logprobs
from ttabench.lm.model import LM
from ttabench.lm.patch import Patch, State
from ttabench.lm.texts import TextTokenizer
from ttabench.methods.base import Granularity, Method
from ttabench.methods.parts.kept import stored_ids, window_patch
from ttabench.methods.text_compression import (
    PROMPT_COMPRESSION,
    RANDOM_TEXT,
    SELF_INFORMATION,
    PromptCompressionSettings,
    RandomTextSettings,
    TextBudget,
)
from ttabench.methods.text_compression.classifier import WordClassifier

SettingsT = TypeVar("SettingsT", bound=TextBudget)
UNSPACED_SCRIPTS = frozenset("CJK HIRAGANA KATAKANA THAI LAO KHMER MYANMAR TIBETAN".split())
"""Scripts without blanks between words, as the first word of Unicode's names of their letters."""


@dataclass(frozen=True)
class KeptText:
    """Text of one sequence: its token ids, and their scores if words are selected."""

    ids: list[int]
    scores: list[float]


class TextCompression(Method[SettingsT]):
    """Base class: the state is a text, which is read instead of the context.

    State: "tokens" [B, T], with T the budget; "lengths" [B]; "scores" [B, T] if words are selected.
    """

    granularity: Granularity = "segment"
    counts = ("tokens_read", "kept_tokens")

    def __init__(self, lm: LM, settings: SettingsT) -> None:
        super().__init__(lm, settings)
        self.growth = "linear" if isinstance(settings.budget, float) else "constant"

    @torch.no_grad()
    def adapt(self, state: State, chunks: Sequence[Sequence[Chunk]]) -> State:
        """Compress what is left of the earlier text together with the new text."""
        read: list[int] = state.meta["tokens_read"]
        new_rows = [list(chain(*row)) for row in new_chunk_ids(self.lm, state, chunks)]
        old_ids = stored_ids(state.tensors, state.rows)
        stored = (
            state.tensors["scores"].tolist() if "scores" in state.tensors else [[]] * state.rows
        )
        texts, width = [], 0
        for ids, scores, new, before in zip(old_ids, stored, new_rows, read, strict=True):
            limit = self._limit(before + len(new))
            old = KeptText(ids, scores[: len(ids)])
            texts.append(self.compress(old, new, before, limit))
            width = max(width, limit)
        lengths = [len(text.ids) for text in texts]
        tensors = {
            "tokens": self._padded([text.ids for text in texts], width, self.lm.pad_id).to(
                self.lm.id_dtype
            ),
            "lengths": torch.tensor(lengths, device=self.lm.device),
        }
        if any(text.scores for text in texts):
            tensors["scores"] = self._padded([text.scores for text in texts], width, 0.0)
        tokens_read = [before + len(new) for before, new in zip(read, new_rows, strict=True)]
        return State(state.rows, tensors, {"tokens_read": tokens_read, "kept_tokens": lengths})

    def _limit(self, read: int) -> int:
        return self.settings.kept_tokens(read, len(self.lm.start_ids))

    def _padded(self, rows: Sequence[Sequence[float]], width: int, value: float) -> Tensor:
        """Pad rows at the end to the width of the budget, so that bytes do not depend on words."""
        padded_BT = torch.full((len(rows), width), value, device=self.lm.device)
        for row_T, row in zip(padded_BT, rows, strict=True):
            row_T[: len(row)] = torch.tensor(row)
        return padded_BT

    def patch(self, state: State, queries: Sequence[Query]) -> Patch:  # noqa: ARG002  # base class
        """Return the text as tokens in the window."""
        return window_patch(state.tensors)

    def evicts_nothing(self, tokens: int) -> bool:
        """Return True if the budget covers the context, including BOS or the opening of a chat."""
        return self._limit(tokens) == tokens

    @abstractmethod
    def compress(self, old: KeptText, new: list[int], position: int, limit: int) -> KeptText:
        """Compress the text so far and new ids at this position to at most `limit` tokens."""


class WordSelection(TextCompression[SettingsT]):
    """Base class: keeps the words with the highest mean score of their tokens, in their order.

    Kept words compete with those of later text by their first scores.
    """

    def compress(self, old: KeptText, new: list[int], position: int, limit: int) -> KeptText:
        """Keep words from the highest score on. Words that exceed the budget are passed over."""
        ids, scores = [*old.ids, *new], [*old.scores, *self.score(new, position)]
        spans = [span for span, _ in split_words(self.lm, ids)]
        means = [sum(scores[n] for n in span) / len(span) for span in spans]
        kept = set[int]()
        for word in sorted(range(len(spans)), key=lambda word: -means[word]):
            if len(kept) + len(spans[word]) <= limit:
                kept.update(spans[word])
        order = sorted(kept)
        return KeptText([ids[n] for n in order], [scores[n] for n in order])

    @abstractmethod
    def score(self, ids: list[int], position: int) -> list[float]:
        """Score each token of a text that begins at this position of the context."""


def split_words(texts: TextTokenizer, ids: Sequence[int]) -> list[tuple[range, str]]:
    """Split token ids into words: their ranges in `ids`, and their texts.

    A word begins with the white space before it. Scripts without blanks have no such words: a word
    is then a token from a letter on, with all characters up to the next token like that. Tokens
    within one character stay together.
    """
    words = list[tuple[range, str]]()
    stream, begin = DecodeStream(), 0
    for end, token in enumerate(ids, 1):
        text = stream.step(texts.tokenizer.backend_tokenizer, token)
        if not text and end < len(ids):  # the token ends within a character
            continue
        text = text or ""
        if words and not (words[-1][1].strip() and begins_word(text)):
            begin, text = words[-1][0].start, words.pop()[1] + text
        words.append((range(begin, end), text))
        begin = end
    return words


def begins_word(text: str) -> bool:
    """Return True if the first character is white space, or a letter of a script without blanks."""
    first = text[:1]
    if not first.isalpha():
        return first.isspace()
    return unicodedata.name(first, "").partition(" ")[0] in UNSPACED_SCRIPTS


class RandomText(WordSelection[RandomTextSettings]):
    """Random words, drawn by seed and position, so that neither batching nor splits change them."""

    spec = RANDOM_TEXT

    def score(self, ids: list[int], position: int) -> list[float]:
        """Draw a number in [0, 1) for each word."""
        scores = list[float]()
        for span, _ in split_words(self.lm, ids):
            number = Random(f"{self.settings.seed} {position + span.start}").random()
            scores += [number] * len(span)
        return scores


class PromptCompression(WordSelection[PromptCompressionSettings]):
    """Words that the base model, or a token classifier, finds most informative."""

    spec = PROMPT_COMPRESSION

    def __init__(self, lm: LM, settings: PromptCompressionSettings) -> None:
        if settings.scorer == SELF_INFORMATION:
            self.required_capabilities = ("weights",)
        super().__init__(lm, settings)
        self.classifier = None
        if settings.scorer != SELF_INFORMATION:
            self.classifier = WordClassifier(settings.scorer, lm.device)

    def score(self, ids: list[int], position: int) -> list[float]:  # noqa: ARG002  # base class
        """Return the self-information of each token (nats), or the probability of its word."""
        if self.classifier is None:
            return self._self_information(ids)
        words = split_words(self.lm, ids)
        probabilities = self.classifier.keep_probabilities([text for _, text in words])
        pairs = zip(words, probabilities, strict=True)
        return [probability for (span, _), probability in pairs for _ in span]

    def _self_information(self, ids: list[int]) -> list[float]:
        """Score parts one by one: each begins a text, and no choice depends on the batch."""
        lm = self.lm
        prompt = [] if lm.start_ids else [lm.eos_id]  # as GPT-2 was trained
        parts = self.settings.parts(len(ids), lm.max_positions, len(lm.start_ids))
        items = [(prompt, ids[part.start : part.stop]) for part in parts]
        logprobs = token_logprobs(lm, Patch(), items, batch_size=1)
        return [-value for part in logprobs for value in part.tolist()]
