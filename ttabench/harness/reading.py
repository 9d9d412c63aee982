"""Prompts of lm-eval cut into context and query; each context is read once, and queries are asked behind it.

    Prompts(split="auto").cuts("copa", requests)      where each prompt's context ends, and its query begins
    for reading in Reader(method, Prompts()).readings(requests, stripped=True):
        reading.pairs(contexts, continuations)        tokens of queries and continuations behind a context that was read

A prompt is cut in front of the document's own text, or behind a long text that is a field of the document; one that a
chat template wrote likewise.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import torch
from lm_eval.api.utils import maybe_delimit
from lm_eval.models.huggingface import HFLM

from ttabench.core.errors import UnknownName, UserError
from ttabench.core.files import reading as reading_file
from ttabench.core.types import Ask, Observe, Score
from ttabench.lm.model import LM
from ttabench.lm.patch import State
from ttabench.methods.base import BaseMethod
from ttabench.methods.session import Session
from ttabench.readers.lm_eval import NAMED, context_end

DELIMITER = "\n\n"
"""Stands between demonstrations (lm-eval's `fewshot_delimiter`)."""
SPLITS = ("auto", "none", "field:NAME", "marker:TEXT")
ADVICE = " Where they hold demonstrations: give the task `fewshot_config: {sampler: first_n}`."

log = logging.getLogger(__name__)


class Templated(str):
    """A prompt that a chat template wrote: special tokens in it are meant."""

    opening: int = 0
    """Letters in front of the user's first words: they open a dialogue, as BOS opens a text."""


def templated(lm: LM, turns: Sequence[Mapping[str, str]], add_generation_prompt: bool) -> Templated:
    """The text of these turns as lm-eval's `hf` writes it: without the system's where there is no place for it."""
    name = lm.tokenizer_name
    if not getattr(lm.tokenizer, "chat_template", None):
        raise UserError(f"The tokenizer of {name} has no chat template.", "Leave --apply_chat_template out.")
    holder = SimpleNamespace(tokenizer=lm.tokenizer, chat_template_args={})
    with reading_file(f"The chat template of {name}", "Leave --apply_chat_template out.", most=None):
        prompt = Templated(HFLM.apply_chat_template(holder, [dict(turn) for turn in turns], add_generation_prompt))
    first = next(turn["content"] for turn in turns if turn["role"] == "user")
    prompt.opening = max(0, prompt.find(first.strip()))
    return prompt


def common_cut(contexts: Sequence[str]) -> int:
    """Length of what all contexts begin with, up to and with its last delimiter; 0 where there is none."""
    at = contexts[0][: _common(contexts)].rfind(DELIMITER) if contexts else -1
    return 0 if at < 0 else at + len(DELIMITER)


def _common(rows: Sequence[Sequence[object]]) -> int:
    """How many elements all rows begin with."""
    return next((i for i, column in enumerate(zip(*rows, strict=False)) if len(set(column)) > 1), min(map(len, rows)))


def parts(prefix: str) -> list[tuple[str, str]]:
    """The prefix as pieces, each with the delimiter in front of it as joiner; the last delimiter joins the query."""
    texts = re.split(f"((?:{DELIMITER})+)", prefix)
    pieces = [(text, joiner) for text, joiner in zip(texts[::2], ["", *texts[1::2]], strict=True) if text]
    if pieces and pieces[0][1]:  # a delimiter in front of everything belongs to the first piece
        pieces[0] = (pieces[0][1] + pieces[0][0], "")
    return pieces


def read_as(context: str, ids: list[int], prompts: Sequence[list[int]]) -> Observe:
    """The context as a piece whose tokens (`ids`: those of its text alone) are those that every prompt begins with, so
    that a query's follow them as they do in the whole prompt; one token at least is left to the query."""
    least = min(map(len, prompts)) - 1
    return Observe(text=context, joiner="", ids=tuple(ids[: min(least, _common([ids, *prompts]))]), key="context")


@dataclass(frozen=True, kw_only=True)
class Prompts:
    """How prompts are cut into context and query."""

    split: str = "auto"
    """auto: before the document's own text where the task is known, else behind what all prompts of a task begin with;
    none: everything is query and nothing is read; field:NAME: behind the text of this field of the document, where it
    stands last; marker:TEXT: in front of this text, where it stands last (\\n is a line break)."""
    tasks: dict[str, Any] = field(default_factory=dict)
    """lm-eval's task objects by name; `evaluate` fills them in."""

    def __post_init__(self) -> None:
        kind, _, text = self.split.partition(":")
        if self.split not in SPLITS[:2] and not (kind in NAMED and text):
            raise UnknownName("split", self.split, list(SPLITS))

    @property
    def named(self) -> bool:
        """Whether the split names the field or marker that prompts are cut at."""
        return self.split.partition(":")[0] in NAMED

    def cuts(self, task: str, requests: Sequence[Any]) -> list[int]:
        """Where the context of each request's prompt ends, in letters; 0: everything is asked."""
        prompts = [request.args[0] for request in requests]
        if self.split == "none":
            return [0] * len(prompts)
        if self.named:
            places = [context_end(task, request.args[0], request.doc, self.split) for request in requests]
            if not any(places):
                raise UserError(f"{task}: no prompt holds what split={self.split} names.", "Name another.")
            return places
        own = [_own(request.args[0], self._text(task, request)) for request in requests]
        if all(place is not None for place, prompt in zip(own, prompts, strict=True) if prompt):
            # what only opens a dialogue is no context
            return [
                0 if not place or place == getattr(prompt, "opening", 0) else place
                for place, prompt in zip(own, prompts, strict=True)
            ]
        shared = common_cut([prompt for prompt in prompts if prompt])
        return [shared if prompt else 0 for prompt in prompts]

    def _text(self, task: str, request: Any) -> str:
        """The document's own text, or that of the choice that is asked about; empty where the task is not known."""
        if task not in self.tasks or not request.args[0]:
            return ""
        known, document = self.tasks[task], request.doc
        text, delimiter = known.doc_to_text(document), known.get_config("target_delimiter") or ""
        if isinstance(text, int):  # the number of the right choice, each of which is a prompt
            choices = known.doc_to_choice(document)
            text, delimiter = (choices[request.idx], "") if request.idx < len(choices) else ("", "")
        if not isinstance(text, str) or isinstance(request.args[0], Templated):
            return text if isinstance(text, str) else ""
        return str(maybe_delimit(text, known.doc_to_prefix(document), delimiter))


def _own(prompt: str, own: str) -> int | None:
    """Where the document's own text begins, which ends the prompt, or its words if a chat template wrote it, which may
    have taken blanks off; None where it is not there."""
    for form in (own, own.rstrip(), own.strip()):
        if form and isinstance(prompt, Templated) and (place := prompt.rfind(form)) >= 0:
            return place
        if form and prompt.endswith(form):
            return len(prompt) - len(form)
    return None


@dataclass(frozen=True)
class Reading:
    """A context that was read, and how the tokens of what is asked behind it are found."""

    lm: LM
    state: State
    indices: list[int]
    """Requests behind this context."""
    questions: list[str]
    """What is asked of each."""
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
        text, want = self.questions[place], Score(continuation="", prompt_ids=tuple(ids))
        return Ask(prompt=text, question=text, key=str(place), want=want)


class Reader:
    """Reads the contexts of prompts with a method, each from an empty state of one row."""

    def __init__(self, method: BaseMethod[Any], prompts: Prompts) -> None:
        self.method, self.lm, self.start, self.prompts = method, method.lm, method.begin(1), prompts
        self.counts: dict[str, dict[str, int]] = {}
        """By task: requests, contexts read, and requests that were answered without one."""
        self.read = 0
        """Contexts read so far."""
        bos = self.lm.tokenizer.bos_token_id
        self.nothing = [] if self.lm.bos_ids else [self.lm.eos_id if bos is None else int(bos)]
        """In front of an empty prompt: the BOS that scoring adds, else the tokenizer's BOS, else its EOS."""
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
                groups.setdefault((isinstance(prompt, Templated), prompt[: cuts[index]]), []).append(index)
            contexts = sum(bool(prefix) for _, prefix in groups)
            self._count(task, [request.args[0] for request in chosen], cuts.values(), contexts)
            for (templated, prefix), members in groups.items():
                prompts = [requests[index].args[0] for index in members]
                questions, unique = [prompt[len(prefix) :] for prompt in prompts], list(dict.fromkeys(prompts))
                reading = Reading(self.lm, self.start, members, questions, nothing=self.nothing, templated=templated)
                opening = getattr(unique[0], "opening", 0)
                contexts_read = [text.rstrip() for text in unique] if stripped else unique
                yield self._read(len(prefix), opening, reading, contexts_read)

    def _count(self, task: str, prompts: Sequence[str], cuts: Iterable[int], contexts: int) -> None:
        """Note what is read of a task's prompts, and say where that is not what somebody would expect."""
        whole = sum(not cut for prompt, cut in zip(prompts, cuts, strict=True) if prompt)
        self.counts[task] = {"requests": len(prompts), "contexts": contexts, "answered_without_context": whole}
        known = self.prompts.tasks.get(task)
        without = known is not None and not known.get_config("num_fewshot")
        if whole and (self.prompts.named or not without):
            fault = "no context was told from the question, so nothing is read there and the whole prompt is asked."
            advice = ADVICE if self.prompts.split == "auto" else ""
            log.warning("%s: in %d of %d prompts %s%s", task, whole, len(prompts), fault, advice)

    def _read(self, cut: int, opening: int, reading: Reading, contexts: list[str]) -> Reading:
        """The context read; where it stays in the window, queries go on where it ends, else they begin a text."""
        if not cut:
            return reading
        self.read += 1
        prompt = contexts[0]
        if self._in_window:
            prefix = prompt[:cut]
            piece = read_as(prefix, reading.encoded([prefix])[0], reading.encoded(contexts))
            return replace(reading, state=self._adapted([piece]), skip=len(piece.ids), nothing=[])
        texts = parts(prompt[opening:cut])
        ids = reading.encoded([text for text, _ in texts], follows=True) if reading.templated else [[] for _ in texts]
        pieces = [
            Observe(text=text, joiner=joiner, ids=tuple(own), key=f"piece {i}")
            for i, ((text, joiner), own) in enumerate(zip(texts, ids, strict=True))
        ]
        return replace(reading, state=self._adapted(pieces), lead=prompt[:opening], anchor=cut)

    def _adapted(self, context: list[Observe]) -> State:
        session = Session(self.lm, self.method, self.start)
        session.read(context)
        return session.state

    @torch.no_grad()
    def _keeps_text_in_the_window(self) -> bool:
        """Whether a query goes on where the context ended (full context), or begins a text of its own (MAC)."""
        session = Session(self.lm, self.method, self._adapted([Observe(text="A text.", key="probe")]))
        prefix = session.patch([Ask(prompt="A query", key="probe")]).prefix
        return prefix is not None and prefix.holds_bos
