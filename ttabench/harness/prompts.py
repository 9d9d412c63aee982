"""Prompts of lm-eval as context and query: the rules by which they are cut, and the tokens of what is asked.

Prompts(split="auto").cuts("copa", requests)     where each request's query begins
Reading(lm, state, indices, ...).pairs(...)      tokens of queries and continuations behind a prefix that was read
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ttabench.core.errors import UnknownName, UserError
from ttabench.harness.splitting import common_cut
from ttabench.lm.model import LM
from ttabench.lm.patch import State

SPLITS = ("auto", "delimiter", "none")

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Prompts:
    """How prompts are cut into context and query."""

    split: str = "auto"
    """auto: before the document's own text where the task is known, else behind what all prompts of a task begin with;
    delimiter: behind the last delimiter of each prompt; none: everything is query and nothing is read."""
    delimiter: str = "\n\n"
    """Stands between demonstrations (lm-eval's `fewshot_delimiter`)."""
    tasks: dict[str, Any] = field(default_factory=dict)
    """lm-eval's task objects by name; `evaluate` fills them in."""

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise UnknownName("split", self.split, list(SPLITS))
        if not self.delimiter:
            raise UserError("delimiter is empty.", "Leave it out for two line breaks.")

    def cuts(self, task: str, requests: Sequence[Any]) -> list[int]:
        """Where each request's query begins in its prompt."""
        contexts = [request.args[0] for request in requests]
        if self.split == "none":
            return [0] * len(contexts)
        if self.split == "delimiter":
            return [common_cut([context], self.delimiter) for context in contexts]
        texts = [self._text(task, request) for request in requests]
        if all(text and context.endswith(text) for text, context in zip(texts, contexts, strict=True) if context):
            return [len(context) - len(text) for text, context in zip(texts, contexts, strict=True)]
        shared = common_cut([context for context in contexts if context], self.delimiter)
        if not shared and any(self.delimiter in context for context in contexts):
            log.warning(
                "%s: its prompts begin differently, so nothing is read as context and each is asked as a whole. "
                "Give the task `fewshot_config: {sampler: first_n}`, or the model split=delimiter.",
                task,
            )
        return [shared if context else 0 for context in contexts]

    def _text(self, task: str, request: Any) -> str:
        """The document's own text, empty where the task is not known or has one text for each choice."""
        if task not in self.tasks or not request.args[0]:
            return ""
        text = self.tasks[task].doc_to_text(request.doc)
        return text if isinstance(text, str) else ""


def own(lm: LM, ids: list[int]) -> list[int]:
    """Ids of a templated text without the BOS that the template wrote itself: it is put where the window starts."""
    start = list(lm.bos_ids)
    return ids[len(start) :] if start and ids[: len(start)] == start else ids


@dataclass(frozen=True)
class Reading:
    """A prefix that was read, and how the tokens of what is asked behind it are found."""

    lm: LM
    state: State
    indices: list[int]
    """Requests behind this prefix."""
    cut: int = 0
    """Where queries begin in the prompt."""
    anchor: int = 0
    """From where on the prompt is tokenised."""
    skip: int = 0
    """How many of those tokens the state has read."""
    nothing: list[int] = field(default_factory=list)
    """Stands for an empty query."""
    templated: bool = False
    """Whether a chat template wrote the prompts, so that special tokens in them are meant."""

    def _encoded(self, texts: Sequence[str]) -> list[list[int]]:
        rows = self.lm.encode_many(texts, follows=self.anchor > 0, specials=self.templated)
        return [own(self.lm, row) for row in rows] if self.templated and not self.anchor else rows

    def prompts(self, contexts: Sequence[str]) -> list[list[int]]:
        """The queries' tokens."""
        rows = self._encoded([context[self.anchor :] for context in contexts])
        return [row[self.skip :] or self.nothing for row in rows]

    def pairs(self, contexts: Sequence[str], continuations: Sequence[str]) -> list[tuple[list[int], list[int]]]:
        """Tokens of query and continuation, cut as lm-eval cuts them: blanks go to the continuation."""
        texts = [context[self.anchor :] for context in contexts]
        wholes = [text + continuation for text, continuation in zip(texts, continuations, strict=True)]
        stripped = [text.rstrip() for text in texts]
        unique = list(dict.fromkeys(stripped))
        known = dict(zip(unique, self._encoded(unique), strict=True))
        return [
            (known[text][self.skip :] or self.nothing, whole[len(known[text]) :])
            for text, whole in zip(stripped, self._encoded(wholes), strict=True)
        ]
