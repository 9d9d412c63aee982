"""Split of lm-eval prompts into context and query; each context is read once for its queries.

    PromptSplitter(split="auto").context_ends("copa", requests)    end of the context in each prompt
    for reading in ContextReader(method, PromptSplitter()).read_contexts(requests, stripped=True):
        reading.pairs(contexts, continuations)        tokens of queries and continuations

A prompt is cut before the document's text, or after a long text that is a field of the document.
The same applies to prompts from a chat template.
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
from ttabench.methods.base import Method
from ttabench.methods.session import Session
from ttabench.readers.lm_eval import CUT_KINDS, find_context_end

DELIMITER = "\n\n"
"""Text between demonstrations (lm-eval's `fewshot_delimiter`)."""
SPLIT_FORMS = ("auto", "none", "field:NAME", "marker:TEXT")
FEWSHOT_HINT = " If they have demonstrations, set `fewshot_config: {sampler: first_n}` in the task."

log = logging.getLogger(__name__)


class TemplatedPrompt(str):
    """A prompt from a chat template: special tokens in it are parsed."""

    opening_chars: int = 0
    """Characters before the first user message, which open a dialogue as BOS opens a text."""


def render_template(
    lm: LM, turns: Sequence[Mapping[str, str]], add_generation_prompt: bool
) -> TemplatedPrompt:
    """Format turns as lm-eval's `hf` does, without the system turn if the template has no place for
    it.

    Raises:
        UserError: the tokenizer has no chat template.
    """
    name = lm.tokenizer_name
    if not getattr(lm.tokenizer, "chat_template", None):
        raise UserError(
            f"The tokenizer of {name} has no chat template.", "Remove --apply_chat_template."
        )
    holder = SimpleNamespace(tokenizer=lm.tokenizer, chat_template_args={})
    with reading_file(
        f"The chat template of {name}", "Remove --apply_chat_template.", max_bytes=None
    ):
        prompt = TemplatedPrompt(
            HFLM.apply_chat_template(holder, [dict(turn) for turn in turns], add_generation_prompt)
        )
    first = next(turn["content"] for turn in turns if turn["role"] == "user")
    prompt.opening_chars = max(0, prompt.find(first.strip()))
    return prompt


def shared_prefix_chars(contexts: Sequence[str]) -> int:
    """Return the length of the common prefix of all contexts, up to and including its last
    delimiter.

    0 if there is no delimiter.
    """
    start = contexts[0][: _common_prefix_length(contexts)].rfind(DELIMITER) if contexts else -1
    return 0 if start < 0 else start + len(DELIMITER)


def _common_prefix_length(rows: Sequence[Sequence[object]]) -> int:
    """Length of the common prefix of all rows."""
    return next(
        (i for i, column in enumerate(zip(*rows, strict=False)) if len(set(column)) > 1),
        min(map(len, rows)),
    )


def split_prefix(prefix: str) -> list[tuple[str, str]]:
    """Split the prefix into (text, joiner), where the joiner is the delimiter before the text.

    The last delimiter belongs to the query.
    """
    texts = re.split(f"((?:{DELIMITER})+)", prefix)
    chunks = [
        (text, joiner) for text, joiner in zip(texts[::2], ["", *texts[1::2]], strict=True) if text
    ]
    if chunks and chunks[0][1]:  # a leading delimiter belongs to the first chunk
        chunks[0] = (chunks[0][1] + chunks[0][0], "")
    return chunks


def make_context_chunk(context: str, ids: list[int], prompts: Sequence[list[int]]) -> Chunk:
    """Make a chunk with the context tokens that all prompts begin with.

    Then the tokens of a query follow them as in the whole prompt. `ids` are the tokens of the
    context text alone. At least one token is left to the query.
    """
    shared_tokens = _common_prefix_length([ids, *(prompt[:-1] for prompt in prompts)])
    return Chunk(text=context, joiner="", ids=tuple(ids[:shared_tokens]), key="context")


@dataclass(frozen=True, kw_only=True)
class PromptSplitter:
    """Split of prompts into context and query."""

    split: str = "auto"
    """Position of the cut:

        auto          before the document's text if the task is known, else after the common prefix
                      of all prompts of a task
        none          the whole prompt is the query, and nothing is read
        field:NAME    after the last occurrence of this document field
        marker:TEXT   before the last occurrence of this text (\\n is a line break)
    """
    tasks: dict[str, Any] = field(default_factory=dict)
    """lm-eval's task objects by name; `evaluate` adds them."""

    def __post_init__(self) -> None:
        kind, _, text = self.split.partition(":")
        if self.split not in SPLIT_FORMS[:2] and not (kind in CUT_KINDS and text):
            raise UnknownName("split", self.split, list(SPLIT_FORMS))

    @property
    def is_named(self) -> bool:
        """True if the split names a field or a marker."""
        return self.split.partition(":")[0] in CUT_KINDS

    def context_ends(self, task: str, requests: Sequence[Any]) -> list[int]:
        """Return the end of the context in each request's prompt, in characters; 0 for no context.

        Raises:
            UserError: no prompt contains the field or marker of `split`.
        """
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
                    f"{task}: no prompt contains the text of split={self.split}.",
                    "Use another split.",
                )
            return places
        starts = [
            _find_document_text(request.args[0], self._document_text(task, request))
            for request in requests
        ]
        if all(start is not None for start, prompt in zip(starts, prompts, strict=True) if prompt):
            # the opening of a dialogue is not a context
            return [
                0 if not start or start == getattr(prompt, "opening_chars", 0) else start
                for start, prompt in zip(starts, prompts, strict=True)
            ]
        shared = shared_prefix_chars([prompt for prompt in prompts if prompt])
        return [shared if prompt else 0 for prompt in prompts]

    def _document_text(self, task: str, request: Any) -> str:
        """The document's text, or that of the scored choice; empty if the task is not known."""
        if task not in self.tasks or not request.args[0]:
            return ""
        known, document = self.tasks[task], request.doc
        text, delimiter = known.doc_to_text(document), known.get_config("target_delimiter") or ""
        if isinstance(text, int):  # index of the right choice; every choice is a prompt
            choices = known.doc_to_choice(document)
            text, delimiter = (choices[request.idx], "") if request.idx < len(choices) else ("", "")
        if not isinstance(text, str) or isinstance(request.args[0], TemplatedPrompt):
            return text if isinstance(text, str) else ""
        return str(maybe_delimit(text, known.doc_to_prefix(document), delimiter))


def _find_document_text(prompt: str, document: str) -> int | None:
    """Start of the document's text at the end of the prompt; `None` if it is not found.

    Chat templates may strip blanks and append text, so the last occurrence counts there.
    """
    for form in (document, document.rstrip(), document.strip()):
        if form and isinstance(prompt, TemplatedPrompt) and (place := prompt.rfind(form)) >= 0:
            return place
        if form and prompt.endswith(form):
            return len(prompt) - len(form)
    return None


@dataclass(frozen=True)
class ContextReading:
    """A context that was read, and the tokenisation of its queries."""

    lm: LM
    state: State
    indices: list[int]
    """Indices of the requests with this context."""
    questions: list[str]
    """The query text of each request."""
    query_prefix: str = ""
    """Text before the queries that begins every window, with or without context."""
    query_start: int = 0
    """Position in the prompt from which it is tokenised."""
    skipped_tokens: int = 0
    """Number of these tokens that are in the state."""
    empty_query_ids: list[int] = field(default_factory=list)
    """Tokens that replace an empty query."""
    is_templated: bool = False
    """True if the prompts come from a chat template, so that special tokens in them are parsed."""

    def encode(self, texts: Sequence[str], *, is_continuation: bool = False) -> list[list[int]]:
        """Tokenise texts without the BOS of a chat template, because BOS is added at the
        window's start."""
        rows = self.lm.encode_many(
            texts, is_continuation=is_continuation, parse_special=self.is_templated
        )
        start = list(self.lm.bos_ids)
        strips_bos = self.is_templated and start and not is_continuation
        return [
            row[len(start) :] if strips_bos and row[: len(start)] == start else row for row in rows
        ]

    def _query_texts(self, contexts: Sequence[str]) -> list[str]:
        return [self.query_prefix + context[self.query_start :] for context in contexts]

    def prompts(self, contexts: Sequence[str]) -> list[list[int]]:
        """Tokenise the queries."""
        return [
            row[self.skipped_tokens :] or self.empty_query_ids
            for row in self.encode(self._query_texts(contexts))
        ]

    def pairs(
        self, contexts: Sequence[str], continuations: Sequence[str]
    ) -> list[tuple[list[int], list[int]]]:
        """Tokenise queries and continuations as lm-eval does: trailing blanks belong to the
        continuation."""
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
        """Build the query of a request for query-aware methods, by its position in `indices`.

        `ids` are its tokens.
        """
        text, want = self.questions[place], Score(continuation="", prompt_ids=tuple(ids))
        return Query(prompt=text, question=text, key=str(place), want=want)


class ContextReader:
    """Reads the contexts of prompts with a method, each into an empty state of one sequence."""

    def __init__(self, method: Method[Any], prompts: PromptSplitter) -> None:
        self.method, self.lm, self.start, self.prompts = method, method.lm, method.begin(1), prompts
        self.counts: dict[str, dict[str, int]] = {}
        """By task: requests, contexts read, and requests answered without a context."""
        self.read = 0
        """Contexts read so far."""
        bos = self.lm.tokenizer.bos_token_id
        self.empty_query_ids = (
            [] if self.lm.bos_ids else [self.lm.eos_id if bos is None else int(bos)]
        )
        """Tokens for an empty prompt: the BOS added by scoring, else the tokenizer's BOS, else
        its EOS."""
        self._is_in_window = self._keeps_context_in_window()

    def read_contexts(self, requests: Sequence[Any], *, stripped: bool) -> Iterator[ContextReading]:
        """Yield the requests by task and context, each context read just before it is needed.

        Only one state exists at a time.
        """
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
        """Count what is read of a task's prompts, and warn about prompts without a context."""
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
            fault = "no context was found, so nothing is read and the whole prompt is the query."
            advice = FEWSHOT_HINT if self.prompts.split == "auto" else ""
            log.warning(
                "%s: in %d of %d prompts %s%s", task, without_context, len(prompts), fault, advice
            )

    def _read_context(
        self, context_chars: int, opening_chars: int, reading: ContextReading, contexts: list[str]
    ) -> ContextReading:
        """The context read. Queries continue it if it stays in the window, else they begin a
        text."""
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
        chunks = [
            Chunk(text=text, joiner=joiner, ids=tuple(chunk_ids), key=f"chunk {i}")
            for i, ((text, joiner), chunk_ids) in enumerate(zip(texts, ids, strict=True))
        ]
        return replace(
            reading,
            state=self._adapt(chunks),
            query_prefix=prompt[:opening_chars],
            query_start=context_chars,
        )

    def _adapt(self, context: list[Chunk]) -> State:
        session = Session(self.lm, self.method, self.start)
        session.read(context)
        return session.state

    @torch.no_grad()
    def _keeps_context_in_window(self) -> bool:
        """True if a query continues the context (full context), False if it begins a text (MAC)."""
        session = Session(self.lm, self.method, self._adapt([Chunk(text="A text.", key="probe")]))
        prefix = session.patch([Query(prompt="A query", key="probe")]).prefix
        return prefix is not None and prefix.holds_bos
