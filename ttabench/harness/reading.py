"""The contexts of lm-eval's prompts, each read once, and the tokens of what is asked behind them.

for reading in Reader(method, start, Prompts()).readings(requests, stripped=True):
    reading.pairs(contexts, continuations)       tokens of queries and continuations behind a context that was read
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ttabench.core.errors import UserError
from ttabench.core.types import Ask, Observe, Score
from ttabench.harness.prompts import Body, Dialogues, Prompts, Templated, read_as
from ttabench.lm.model import LM
from ttabench.lm.patch import State
from ttabench.lm.text.chat import Chat
from ttabench.methods.base import BaseMethod
from ttabench.methods.session import Session

ADVICE = (
    " Where they hold demonstrations: give the task `fewshot_config: {sampler: first_n}`, or the model split=delimiter."
)

log = logging.getLogger(__name__)


def own(lm: LM, ids: list[int]) -> list[int]:
    """Ids of a templated text without the BOS that the template wrote itself: it is put where the window starts."""
    start = list(lm.bos_ids)
    return ids[len(start) :] if start and ids[: len(start)] == start else ids


@dataclass(frozen=True)
class Reading:
    """A context that was read, and how the tokens of what is asked behind it are found."""

    lm: LM
    state: State
    indices: list[int]
    """Requests behind this context."""
    questions: list[str]
    """Their words, without a template."""
    cut: int = 0
    """Where queries begin in the prompt."""
    lead: str = ""
    """Text in front of the queries, where it begins the window whatever was read and `chat` does not put it there."""
    anchor: int = 0
    """From where on the prompt is tokenised."""
    skip: int = 0
    """How many of those tokens the state has read."""
    follows: bool = False
    """Whether what is tokenised stands behind other text."""
    nothing: list[int] = field(default_factory=list)
    """Stands for an empty query."""
    templated: bool = False
    """Whether a chat template wrote the prompts, so that special tokens in them are meant."""
    chat: Chat | None = None
    """Ids that begin a window while the method reads and answers."""

    @contextmanager
    def speaking(self) -> Iterator[None]:
        """Texts begin, and demonstrations are read, as `eval --chat-template` has them, where there is a template."""
        before, self.lm.chat = self.lm.chat, self.chat
        try:
            yield
        finally:
            self.lm.chat = before

    def encoded(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokens of texts where the query stands."""
        rows = self.lm.encode_many(texts, follows=self.follows, specials=self.templated)
        return [own(self.lm, row) for row in rows] if self.templated and not self.follows else rows

    def _texts(self, contexts: Sequence[str]) -> list[str]:
        return [self.lead + context[self.anchor :] for context in contexts]

    def prompts(self, contexts: Sequence[str]) -> list[list[int]]:
        """The queries' tokens."""
        return [row[self.skip :] or self.nothing for row in self.encoded(self._texts(contexts))]

    def pairs(self, contexts: Sequence[str], continuations: Sequence[str]) -> list[tuple[list[int], list[int]]]:
        """Tokens of query and continuation, cut as lm-eval cuts them: blanks go to the continuation."""
        texts = self._texts(contexts)
        wholes = [text + continuation for text, continuation in zip(texts, continuations, strict=True)]
        stripped = [text.rstrip() for text in texts]
        unique = list(dict.fromkeys(stripped))
        known = dict(zip(unique, self.encoded(unique), strict=True))
        return [
            (known[text][self.skip :] or self.nothing, whole[len(known[text]) :])
            for text, whole in zip(stripped, self.encoded(wholes), strict=True)
        ]

    def ask(self, place: int, context: str, ids: Sequence[int]) -> Ask:
        """The query of a request, by its place in `indices`, for methods that look at it: the tokens that are asked."""
        want = Score(continuation="", prompt_ids=tuple(ids))
        return Ask(prompt=context[self.cut :], question=self.questions[place], key=str(place), want=want)


class Reader:
    """Reads the contexts of prompts with a method, from a state of one row that every reading starts from.

    With `swap_state` the state that answers is that of the task's next context, of the last one the first's.
    """

    def __init__(self, method: BaseMethod[Any], start: State, prompts: Prompts, *, swap_state: bool = False) -> None:
        self.method, self.lm, self.start, self.prompts = method, method.lm, start, prompts
        self.swap_state = swap_state
        self.dialogues = Dialogues(self.lm)
        self.counts: dict[str, dict[str, int]] = {}
        """By task: requests, contexts read, and requests that were answered without one."""
        self.read = 0
        """Contexts read so far."""
        self._in_window = self._keeps_text_in_the_window()

    def readings(self, requests: Sequence[Any], *, stripped: bool) -> Iterator[Reading]:
        """The requests by task and context, each context read just before it is needed; one state lives at a time."""
        by_task: dict[str, list[int]] = {}
        for index, request in enumerate(requests):
            by_task.setdefault(request.task_name or "", []).append(index)
        for task, indices in by_task.items():
            chosen = [requests[index] for index in indices]
            prompts = [request.args[0] for request in chosen]
            splits = dict(zip(indices, self.prompts.splits(task, self.dialogues.bodies(prompts), chosen), strict=True))
            groups: dict[tuple[bool, str], list[int]] = {}
            for index, prompt in zip(indices, prompts, strict=True):
                key = isinstance(prompt, Templated), prompt[: splits[index].query]
                groups.setdefault(key, []).append(index)
            shared = [members for (_, prefix), members in groups.items() if prefix]
            self._count(task, prompts, splits.values(), len(shared))
            if self.swap_state and len(shared) < 2:
                fault = f"{task}: its prompts have {len(shared)} contexts, and so no other one."
                raise UserError(fault, "Ask more documents, or give split=field:NAME.")
            for members in groups.values():
                reading = self._of(members, requests, splits, stripped=stripped)
                if self.swap_state and members in shared:
                    following = shared[(shared.index(members) + 1) % len(shared)]
                    reading = replace(reading, state=self._of(following, requests, splits, stripped=stripped).state)
                yield reading

    def _of(
        self, members: list[int], requests: Sequence[Any], splits: Mapping[int, Body], *, stripped: bool
    ) -> Reading:
        """The reading of the context that these requests share."""
        contexts = list(dict.fromkeys(requests[index].args[0] for index in members))
        questions, split = [splits[index].question for index in members], splits[members[0]]
        templated = isinstance(contexts[0], Templated)
        reading = Reading(self.lm, self.start, members, questions, nothing=self.nothing(), templated=templated)
        texts = [context.rstrip() for context in contexts] if stripped else contexts
        return self._read(split, reading, texts) if split.query else reading

    def nothing(self) -> list[int]:
        """Token in front of an empty prompt: the BOS that scoring adds, else the tokenizer's BOS, else its EOS."""
        bos = self.lm.tokenizer.bos_token_id
        return [] if self.lm.bos_ids else [self.lm.eos_id if bos is None else int(bos)]

    def _count(self, task: str, prompts: Sequence[str], splits: Iterable[Body], contexts: int) -> None:
        """Note what is read of a task's prompts, and say where that is not what somebody would expect."""
        whole = sum(not split.read for prompt, split in zip(prompts, splits, strict=True) if prompt)
        self.counts[task] = {"requests": len(prompts), "contexts": contexts, "answered_without_context": whole}
        if whole and (self.prompts.named or self.prompts.shots(task) != 0):
            log.warning(
                "%s: in %d of %d prompts no context was told from the question, so nothing is read there and the whole "
                "prompt is asked.%s",
                task,
                whole,
                len(prompts),
                ADVICE if self.prompts.split == "auto" else "",
            )

    def _read(self, split: Body, reading: Reading, contexts: list[str]) -> Reading:
        self.read += 1
        prompt, opening = contexts[0], split.opening
        opened = [*self.lm.bos_ids, *own(self.lm, self.lm.encode_template(prompt[:opening]))]
        chat = None if split.chat is None else replace(split.chat, start_ids=tuple(opened))
        if self._in_window:
            apart = not any(self.start.meta["tokens_read"]) and self._follows(
                opened, prompt[:opening], prompt[opening:]
            )
            return self._joined(split, replace(reading, chat=chat if apart else None), contexts)
        state = self._adapted(replace(reading, chat=chat), split.observes(prompt, self.prompts.delimiter))
        read_on = replace(reading, state=state, cut=split.query, anchor=split.query)
        if self._follows(opened, prompt[:opening], prompt[split.query :]):
            return replace(read_on, chat=chat, follows=True)
        return replace(read_on, lead=prompt[:opening])

    def _joined(self, split: Body, reading: Reading, contexts: list[str]) -> Reading:
        """A context that stays in the window, so that queries go on where it ends."""
        begin = split.opening if reading.chat is not None else 0
        reading = replace(reading, anchor=begin, follows=begin > 0)

        def encode(texts: Sequence[str], follows: bool) -> list[list[int]]:
            return replace(reading, follows=follows or begin > 0).encoded(texts)

        prompts = encode([context[begin:] for context in contexts], False)
        parts = split.parts(contexts[0], self.prompts.delimiter, begin)
        pieces = read_as(encode, contexts[0][begin : split.read], parts, prompts)
        read = sum(len(piece.ids) for piece in pieces)
        state = self._adapted(reading, pieces)
        return replace(reading, state=state, cut=split.read, skip=read, nothing=[])

    def _follows(self, opened: list[int], opening: str, rest: str) -> bool:
        """Whether the tokens of both together are those of what opens the dialogue, and others behind them."""
        (ids,) = self.lm.encode_many([rest], follows=True, specials=True)
        whole = [*self.lm.bos_ids, *own(self.lm, self.lm.encode_template(opening + rest))]
        return bool(opening) and opened + ids == whole

    def _adapted(self, reading: Reading, context: Sequence[Observe]) -> State:
        with reading.speaking():
            session = Session(self.lm, self.method, self.start)
            session.read(context)
            return session.state

    @torch.no_grad()
    def _keeps_text_in_the_window(self) -> bool:
        """Whether a query goes on where the context ended (full context), or begins a text of its own (MAC)."""
        session = Session(self.lm, self.method, self.start)
        session.read([Observe(text="A text.", key="probe")])
        prefix = session.patch([Ask(prompt="A query", key="probe")]).prefix
        return prefix is not None and prefix.holds_bos
