"""Summary: the base model writes a shorter text, which is read instead of the context."""

from __future__ import annotations

from functools import partial
from itertools import chain

from ttabench.core.types import Query
from ttabench.lm.forward.tokens import prompt_ids
from ttabench.lm.inference.answering import BatchSize, generate, run_in_batches
from ttabench.lm.patch import Patch
from ttabench.methods.eviction.spec import split_evenly
from ttabench.methods.text_compression import SUMMARY, SummarySettings
from ttabench.methods.text_compression.method import KeptText, TextCompression, split_words

MAX_PARTS_PER_BATCH = 32


class Summary(TextCompression[SummarySettings]):
    """Summary of the context by the frozen base model, greedy. Later text extends the summary."""

    spec = SUMMARY

    def compress(self, old: KeptText, new: list[int], position: int, limit: int) -> KeptText:  # noqa: ARG002  # base class
        """Summarize a text in equal parts that fit the positions; a text within the budget stays."""
        text = [*old.ids, *new]
        if len(text) <= limit:
            return KeptText(text, [])
        share = limit / len(text)
        words = len(split_words(self.lm, text))
        frame = len(self.lm.start_ids) + len(self._request(words * share))
        longest_part = int((self.lm.max_positions - frame) / (1 + share))
        parts = split_evenly(len(text), max(1, longest_part))
        prompts = [
            [*text[part.start : part.stop], *self._request(words * share / len(parts))]
            for part in parts
        ]
        longest = -(-limit // len(parts))
        limits = [
            limit * (number + 1) // len(parts) - limit * number // len(parts)
            for number in range(len(parts))
        ]
        write = partial(generate, self.lm, Patch(), max_new_tokens=longest)
        batches = run_in_batches(prompts, BatchSize(MAX_PARTS_PER_BATCH), write)
        pairs = zip(chain.from_iterable(batches), limits, strict=True)
        return KeptText([token for ids, most in pairs for token in ids[:most]], [])

    def _request(self, words: float) -> list[int]:
        """Return the ids of the request for at most this many words."""
        prompt = self.settings.prompt.replace("{words}", str(max(1, int(words))))
        return prompt_ids(self.lm, Query(prompt=prompt, key="", joiner=""), is_continuation=True)
