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
from ttabench.core.files import reading_file
from ttabench.core.types import Chunk, Query, Score
from ttabench.lm.model import LM
from ttabench.lm.patch import State
from ttabench.methods.base import BaseMethod
from ttabench.methods.session import Session
from ttabench.readers.lm_eval import CUT_KINDS, find_context_end

DELIMITER = "\n\n"
"""Stands between demonstrations (lm-eval's `fewshot_delimiter`)."""
SPLIT_FORMS = ("auto", "none", "field:NAME", "marker:TEXT")
FEWSHOT_HINT = (
    " Where they hold demonstrations: give the task `fewshot_config: {sampler: first_n}`."
)

log = logging.getLogger(__name__)


class TemplatedPrompt(str):
    """A prompt that a chat template wrote: special tokens in it are meant."""

    opening_chars: int = 0
    """Letters in front of the user's first words: they open a dialogue, as BOS opens a text."""


def render_template(
    lm: LM, turns: Sequence[Mapping[str, str]], add_generation_prompt: bool
) -> TemplatedPrompt:
    """The text of these turns as lm-eval's `hf` writes it: without the system's where there is no place for it."""
    name = lm.tokenizer_name
    if not getattr(lm.tokenizer, "chat_template", None):
        raise UserError(
            f"The tokenizer of {name} has no chat template.", "Leave --apply_chat_template out."
        )
    holder = SimpleNamespace(tokenizer=lm.tokenizer, chat_template_args={})
    with reading_file(
        f"The chat template of {name}", "Leave --apply_chat_template out.", max_bytes=None
    ):
        prompt = TemplatedPrompt(
            HFLM.apply_chat_template(holder, [dict(turn) for turn in turns], add_generation_prompt)
        )
    first = next(turn["content"] for turn in turns if turn["role"] == "user")
    prompt.opening_chars = max(0, prompt.find(first.strip()))
    return prompt


def shared_prefix_chars(contexts: Sequence[str]) -> int:
    """Length of what all contexts begin with, up to and with its last delimiter; 0 where there is none."""
    at = contexts[0][: _common_prefix_length(contexts)].rfind(DELIMITER) if contexts else -1
    return 0 if at < 0 else at + len(DELIMITER)


def _common_prefix_length(rows: Sequence[Sequence[object]]) -> int:
    """How many elements all rows begin with."""
    return next(
        (i for i, column in enumerate(zip(*rows, strict=False)) if len(set(column)) > 1),
        min(map(len, rows)),
    )


def split_prefix(prefix: str) -> list[tuple[str, str]]:
    """The prefix as pieces, each with the delimiter in front of it as joiner; the last delimiter joins the query."""
    texts = re.split(f"((?:{DELIMITER})+)", prefix)
    pieces = [
        (text, joiner) for text, joiner in zip(texts[::2], ["", *texts[1::2]], strict=True) if text
    ]
    if pieces and pieces[0][1]:  # a delimiter in front of everything belongs to the first piece
        pieces[0] = (pieces[0][1] + pieces[0][0], "")
    return pieces


def make_context_chunk(context: str, ids: list[int], prompts: Sequence[list[int]]) -> Chunk:
    """The context as a piece whose tokens (`ids`: those of its text alone) are those that every prompt begins with, so
    that a query's follow them as they do in the whole prompt; one token at least is left to the query."""
    least = min(map(len, prompts)) - 1
    return Chunk(
        text=context,
        joiner="",
        ids=tuple(ids[: min(least, _common_prefix_length([ids, *prompts]))]),
        key="context",
    )


@dataclass(frozen=True, kw_only=True)
class PromptSplitter:
    """How prompts are cut into context and query."""

    split: str = "auto"
    """auto: before the document's own text where the task is known, else behind what all prompts of a task begin with;
    none: everything is query and nothing is read; field:NAME: behind the text of this field of the document, where it
    stands last; marker:TEXT: in front of this text, where it stands last (\\n is a line break)."""
    tasks: dict[str, Any] = field(default_factory=dict)
    """lm-eval's task objects by name; `evaluate` fills them in."""

    def __post_init__(self) -> None:
        kind, _, text = self.split.partition(":")
        if self.split not in SPLIT_FORMS[:2] and not (kind in CUT_KINDS and text):
            raise UnknownName("split", self.split, list(SPLIT_FORMS))

    @property
    def is_named(self) -> bool:
        """Whether the split names the field or marker that prompts are cut at."""
        return self.split.partition(":")[0] in CUT_KINDS

    def context_ends(self, task: str, requests: Sequence[Any]) -> list[int]:
        """Where the context of each request's prompt ends, in letters; 0: everything is asked."""
        prompts = [request.args[0] for request in requests]
        if self.split == "none":
            return [0] * len(prompts)
        if self.is_named:
            places = [
                find_context_end(task, request.args[0], request.doc, self.split)
                for request in requests
            ]
            if not any(places):
                raise UserError(
                    f"{task}: no prompt holds what split={self.split} names.", "Name another."
                )
            return places
        own = [
            _find_document_text(request.args[0], self._document_text(task, request))
            for request in requests
        ]
        if all(place is not None for place, prompt in zip(own, prompts, strict=True) if prompt):
            # what only opens a dialogue is no context
            return [
                0 if not place or place == getattr(prompt, "opening_chars", 0) else place
                for place, prompt in zip(own, prompts, strict=True)
            ]
        shared = shared_prefix_chars([prompt for prompt in prompts if prompt])
        return [shared if prompt else 0 for prompt in prompts]

    def _document_text(self, task: str, request: Any) -> str:
        """The document's own text, or that of the choice that is asked about; empty where the task is not known."""
        if task not in self.tasks or not request.args[0]:
            return ""
        known, document = self.tasks[task], request.doc
        text, delimiter = known.doc_to_text(document), known.get_config("target_delimiter") or ""
        if isinstance(text, int):  # the number of the right choice, each of which is a prompt
            choices = known.doc_to_choice(document)
            text, delimiter = (choices[request.idx], "") if request.idx < len(choices) else ("", "")
        if not isinstance(text, str) or isinstance(request.args[0], TemplatedPrompt):
            return text if isinstance(text, str) else ""
        return str(maybe_delimit(text, known.doc_to_prefix(document), delimiter))


def _find_document_text(prompt: str, own: str) -> int | None:
    """Where the document's own text begins, which ends the prompt, or its words if a chat template wrote it, which may
    have taken blanks off; None where it is not there."""
    for form in (own, own.rstrip(), own.strip()):
        if form and isinstance(prompt, TemplatedPrompt) and (place := prompt.rfind(form)) >= 0:
            return place
        if form and prompt.endswith(form):
            return len(prompt) - len(form)
    return None


@dataclass(frozen=True)
class ContextReading:
    """A context that was read, and how the tokens of what is asked behind it are found."""

    lm: LM
    state: State
    indices: list[int]
    """Requests behind this context."""
    questions: list[str]
    """What is asked of each."""
    query_prefix: str = ""
    """Text in front of the queries, where it begins the window whatever was read."""
    query_start: int = 0
    """From where on the prompt is tokenised behind it."""
    skipped_tokens: int = 0
    """How many of those tokens the state has read."""
    empty_query_ids: list[int] = field(default_factory=list)
    """Stands for an empty query."""
    is_templated: bool = False
    """Whether a chat template wrote the prompts, so that special tokens in them are meant."""

    def encode(self, texts: Sequence[str], *, is_continuation: bool = False) -> list[list[int]]:
        """Tokens of texts; the BOS that a template wrote itself is left out: it is put where the window starts."""
        rows, start = (
            self.lm.encode_many(
                texts, is_continuation=is_continuation, parse_special=self.is_templated
            ),
            list(self.lm.bos_ids),
        )
        own = self.is_templated and start and not is_continuation
        return [row[len(start) :] if own and row[: len(start)] == start else row for row in rows]

    def _query_texts(self, contexts: Sequence[str]) -> list[str]:
        return [self.query_prefix + context[self.query_start :] for context in contexts]

    def prompts(self, contexts: Sequence[str]) -> list[list[int]]:
        """The queries' tokens."""
        return [
            row[self.skipped_tokens :] or self.empty_query_ids
            for row in self.encode(self._query_texts(contexts))
        ]

    def pairs(
        self, contexts: Sequence[str], continuations: Sequence[str]
    ) -> list[tuple[list[int], list[int]]]:
        """Tokens of query and continuation, cut as lm-eval cuts them: blanks go to the continuation."""
        texts = self._query_texts(contexts)
        wholes = [
            text + continuation for text, continuation in zip(texts, continuations, strict=True)
        ]
        stripped = [text.rstrip() for text in texts]
        unique = list(dict.fromkeys(stripped))
        known = dict(zip(unique, self.encode(unique), strict=True))
        return [
            (known[text][self.skipped_tokens :] or self.empty_query_ids, whole[len(known[text]) :])
            for text, whole in zip(stripped, self.encode(wholes), strict=True)
        ]

    def make_query(self, place: int, ids: Sequence[int]) -> Query:
        """The query of a request, by its place in `indices`, for methods that look at it: the tokens that are asked."""
        text, want = self.questions[place], Score(continuation="", prompt_ids=tuple(ids))
        return Query(prompt=text, question=text, key=str(place), want=want)


class ContextReader:
    """Reads the contexts of prompts with a method, each from an empty state of one row."""

    def __init__(self, method: BaseMethod[Any], prompts: PromptSplitter) -> None:
        self.method, self.lm, self.start, self.prompts = method, method.lm, method.begin(1), prompts
        self.counts: dict[str, dict[str, int]] = {}
        """By task: requests, contexts read, and requests that were answered without one."""
        self.read = 0
        """Contexts read so far."""
        bos = self.lm.tokenizer.bos_token_id
        self.empty_query_ids = (
            [] if self.lm.bos_ids else [self.lm.eos_id if bos is None else int(bos)]
        )
        """In front of an empty prompt: the BOS that scoring adds, else the tokenizer's BOS, else its EOS."""
        self._is_in_window = self._keeps_context_in_window()

    def read_contexts(self, requests: Sequence[Any], *, stripped: bool) -> Iterator[ContextReading]:
        """The requests by task and context, each context read just before it is needed; one state lives at a time."""
        by_task: dict[str, list[int]] = {}
        for index, request in enumerate(requests):
            by_task.setdefault(request.task_name or "", []).append(index)
        for task, indices in by_task.items():
            task_requests = [requests[index] for index in indices]
            context_ends = dict(
                zip(indices, self.prompts.context_ends(task, task_requests), strict=True)
            )
            groups: dict[tuple[bool, str], list[int]] = {}
            for index in indices:
                prompt = requests[index].args[0]
                groups.setdefault(
                    (isinstance(prompt, TemplatedPrompt), prompt[: context_ends[index]]), []
                ).append(index)
            contexts = sum(bool(prefix) for _, prefix in groups)
            self._count(
                task,
                [request.args[0] for request in task_requests],
                context_ends.values(),
                contexts,
            )
            for (is_templated, prefix), members in groups.items():
                prompts = [requests[index].args[0] for index in members]
                questions, unique = (
                    [prompt[len(prefix) :] for prompt in prompts],
                    list(dict.fromkeys(prompts)),
                )
                reading = ContextReading(
                    self.lm,
                    self.start,
                    members,
                    questions,
                    empty_query_ids=self.empty_query_ids,
                    is_templated=is_templated,
                )
                opening_chars = getattr(unique[0], "opening_chars", 0)
                contexts_read = [text.rstrip() for text in unique] if stripped else unique
                yield self._read_context(len(prefix), opening_chars, reading, contexts_read)

    def _count(
        self, task: str, prompts: Sequence[str], context_ends: Iterable[int], contexts: int
    ) -> None:
        """Note what is read of a task's prompts, and say where that is not what somebody would expect."""
        without_context = sum(
            not context_chars
            for prompt, context_chars in zip(prompts, context_ends, strict=True)
            if prompt
        )
        self.counts[task] = {
            "requests": len(prompts),
            "contexts": contexts,
            "answered_without_context": without_context,
        }
        known = self.prompts.tasks.get(task)
        is_zero_shot = known is not None and not known.get_config("num_fewshot")
        if without_context and (self.prompts.is_named or not is_zero_shot):
            fault = "no context was told from the question, so nothing is read there and the whole prompt is asked."
            advice = FEWSHOT_HINT if self.prompts.split == "auto" else ""
            log.warning(
                "%s: in %d of %d prompts %s%s", task, without_context, len(prompts), fault, advice
            )

    def _read_context(
        self, context_chars: int, opening_chars: int, reading: ContextReading, contexts: list[str]
    ) -> ContextReading:
        """The context read; where it stays in the window, queries go on where it ends, else they begin a text."""
        if not context_chars:
            return reading
        self.read += 1
        prompt = contexts[0]
        if self._is_in_window:
            prefix = prompt[:context_chars]
            chunk = make_context_chunk(
                prefix, reading.encode([prefix])[0], reading.encode(contexts)
            )
            return replace(
                reading,
                state=self._adapt([chunk]),
                skipped_tokens=len(chunk.ids),
                empty_query_ids=[],
            )
        texts = split_prefix(prompt[opening_chars:context_chars])
        ids = (
            reading.encode([text for text, _ in texts], is_continuation=True)
            if reading.is_templated
            else [[] for _ in texts]
        )
        pieces = [
            Chunk(text=text, joiner=joiner, ids=tuple(own), key=f"piece {i}")
            for i, ((text, joiner), own) in enumerate(zip(texts, ids, strict=True))
        ]
        return replace(
            reading,
            state=self._adapt(pieces),
            query_prefix=prompt[:opening_chars],
            query_start=context_chars,
        )

    def _adapt(self, context: list[Chunk]) -> State:
        session = Session(self.lm, self.method, self.start)
        session.read(context)
        return session.state

    @torch.no_grad()
    def _keeps_context_in_window(self) -> bool:
        """Whether a query goes on where the context ended (full context), or begins a text of its own (MAC)."""
        session = Session(self.lm, self.method, self._adapt([Chunk(text="A text.", key="probe")]))
        prefix = session.patch([Query(prompt="A query", key="probe")]).prefix
        return prefix is not None and prefix.holds_bos
