"""The contexts of lm-eval's prompts, each read once, and the tokens of what is asked behind them.

for reading in Reader(method, start, Prompts()).readings(requests, stripped=True):
    reading.pairs(contexts, continuations)       tokens of queries and continuations behind a context that was read
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ttabench.core.errors import UserError
from ttabench.core.types import Ask, Observe, Score
from ttabench.harness.prompts import Cut, Prompts, Templated, parts, read_as
from ttabench.lm.model import LM
from ttabench.lm.patch import State
from ttabench.methods.base import BaseMethod
from ttabench.methods.session import Session

ADVICE = " Where they hold demonstrations: give the task `fewshot_config: {sampler: first_n}`."

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reading:
    """A context that was read, and how the tokens of what is asked behind it are found."""

    lm: LM
    state: State
    indices: list[int]
    """Requests behind this context."""
    questions: list[str]
    """Their words, without a template."""
    lead: str = ""
    """Text in front of the queries, where it begins the window whatever was read."""
    anchor: int = 0
    """From where on the prompt is tokenised behind it."""
    skip: int = 0
    """How many of those tokens the state has read."""
    nothing: list[int] = field(default_factory=list)
    """Stands for an empty query."""
    templated: bool = False
    """Whether a chat template wrote the prompts, so that special tokens in them are meant."""

    def encoded(self, texts: Sequence[str], *, follows: bool = False) -> list[list[int]]:
        """Tokens of texts; the BOS that a template wrote itself is left out: it is put where the window starts."""
        rows, start = self.lm.encode_many(texts, follows=follows, specials=self.templated), list(self.lm.bos_ids)
        own = self.templated and start and not follows
        return [row[len(start) :] if own and row[: len(start)] == start else row for row in rows]

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

    def ask(self, place: int, ids: Sequence[int]) -> Ask:
        """The query of a request, by its place in `indices`, for methods that look at it: the tokens that are asked."""
        question = self.questions[place]
        return Ask(
            prompt=question, question=question, key=str(place), want=Score(continuation="", prompt_ids=tuple(ids))
        )


class Reader:
    """Reads the contexts of prompts with a method, from a state of one row that every reading starts from.

    With `swap_state` the state that answers is that of the task's next context, of the last one the first's.
    """

    def __init__(self, method: BaseMethod[Any], start: State, prompts: Prompts, *, swap_state: bool = False) -> None:
        self.method, self.lm, self.start, self.prompts = method, method.lm, start, prompts
        self.swap_state = swap_state
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
            cuts = dict(zip(indices, self.prompts.cuts(task, chosen), strict=True))
            groups: dict[tuple[bool, str], list[int]] = {}
            for index in indices:
                prompt = requests[index].args[0]
                groups.setdefault((isinstance(prompt, Templated), prompt[: cuts[index].read]), []).append(index)
            shared = [members for (_, prefix), members in groups.items() if prefix]
            self._count(task, [request.args[0] for request in chosen], cuts.values(), len(shared))
            if self.swap_state and len(shared) < 2:
                fault = f"{task}: its prompts have {len(shared)} contexts, and so no other one."
                raise UserError(fault, "Ask more documents, or give split=field:NAME.")
            for members in groups.values():
                reading = self._of(members, requests, cuts, stripped=stripped)
                if self.swap_state and members in shared:
                    following = shared[(shared.index(members) + 1) % len(shared)]
                    reading = replace(reading, state=self._of(following, requests, cuts, stripped=stripped).state)
                yield reading

    def _of(self, members: list[int], requests: Sequence[Any], cuts: Mapping[int, Cut], *, stripped: bool) -> Reading:
        """The reading of the context that these requests share."""
        contexts = list(dict.fromkeys(requests[index].args[0] for index in members))
        questions, cut = [cuts[index].question(requests[index].args[0]) for index in members], cuts[members[0]]
        templated = isinstance(contexts[0], Templated)
        reading = Reading(self.lm, self.start, members, questions, nothing=self.nothing(), templated=templated)
        return self._read(cut, reading, [text.rstrip() for text in contexts] if stripped else contexts)

    def nothing(self) -> list[int]:
        """Token in front of an empty prompt: the BOS that scoring adds, else the tokenizer's BOS, else its EOS."""
        bos = self.lm.tokenizer.bos_token_id
        return [] if self.lm.bos_ids else [self.lm.eos_id if bos is None else int(bos)]

    def _count(self, task: str, prompts: Sequence[str], cuts: Iterable[Cut], contexts: int) -> None:
        """Note what is read of a task's prompts, and say where that is not what somebody would expect."""
        whole = sum(not cut.read for prompt, cut in zip(prompts, cuts, strict=True) if prompt)
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

    def _read(self, cut: Cut, reading: Reading, contexts: list[str]) -> Reading:
        """The context read; where it stays in the window, queries go on where it ends, else they begin a text."""
        if not cut.read:
            return reading
        self.read += 1
        prompt = contexts[0]
        if self._in_window:
            prefix = prompt[: cut.read]
            piece = read_as(prefix, reading.encoded([prefix])[0], reading.encoded(contexts))
            return replace(reading, state=self._adapted([piece]), skip=len(piece.ids), nothing=[])
        texts = parts(prompt[cut.opening : cut.read])
        ids = reading.encoded([text for text, _ in texts], follows=True) if reading.templated else [[] for _ in texts]
        state = self._adapted(
            Observe(text=text, joiner=joiner, ids=tuple(own), key=f"piece {i}")
            for i, ((text, joiner), own) in enumerate(zip(texts, ids, strict=True))
        )
        return replace(reading, state=state, lead=prompt[: cut.opening], anchor=cut.query)

    def _adapted(self, context: Iterable[Observe]) -> State:
        session = Session(self.lm, self.method, self.start)
        session.read(list(context))
        return session.state

    @torch.no_grad()
    def _keeps_text_in_the_window(self) -> bool:
        """Whether a query goes on where the context ended (full context), or begins a text of its own (MAC)."""
        session = Session(self.lm, self.method, self.start)
        session.read([Observe(text="A text.", key="probe")])
        prefix = session.patch([Ask(prompt="A query", key="probe")]).prefix
        return prefix is not None and prefix.holds_bos
