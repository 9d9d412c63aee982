"""Prompts of lm-eval as context and query: the rules by which they are cut.

    Prompts(split="auto").cuts("copa", requests)     where each prompt's context ends, and its query begins

Demonstrations that are turns of a chat template are the context; else a prompt, or the one turn that it is in a
template, is cut in front of the document's own text, or behind a long text that is a field of the document.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from lm_eval.api.utils import maybe_delimit
from lm_eval.models.huggingface import HFLM

from ttabench.core.checked_file import reading
from ttabench.core.errors import UnknownName, UserError
from ttabench.core.types import Observe
from ttabench.lm.model import LM
from ttabench.readers.lm_eval import NAMED, context_end

DELIMITER = "\n\n"
"""Stands between demonstrations (lm-eval's `fewshot_delimiter`)."""
SPLITS = ("auto", "none", "field:NAME", "marker:TEXT")
USER, SYSTEM = "user", "system"


class Templated(str):
    """A prompt that a chat template wrote, and where the words of its turns stand; places in letters."""

    opening: int = 0
    """Where the first turn's words begin: what stands in front opens a dialogue, as BOS opens a text."""
    shown: int = 0
    """Where the answer of the last demonstration ends that is a turn; 0 without such."""
    words: tuple[int, int] | None = None
    """Where the user's last words begin and end; None where the template changes them."""


@dataclass(frozen=True)
class Cut:
    """Where a prompt is cut, in letters."""

    read: int = 0
    """Where the context ends; 0: everything is asked."""
    query: int = 0
    """Where the query begins for methods that keep no context in the window: behind what opens its turn."""
    opening: int = 0
    """Where the context begins for them."""
    end: int | None = None
    """Where the query's words end; None: with the prompt."""

    def question(self, prompt: str) -> str:
        """The query's words, without a template around them."""
        return prompt[self.query : self.end]


def templated(lm: LM, turns: Sequence[Mapping[str, str]], add_generation_prompt: bool) -> Templated:
    """The text of these turns as lm-eval's `hf` writes it: without the system's where there is no place for it."""
    name = lm.tokenizer_name
    if not getattr(lm.tokenizer, "chat_template", None):
        raise UserError(f"The tokenizer of {name} has no chat template.", "Leave --apply_chat_template out.")
    holder = SimpleNamespace(tokenizer=lm.tokenizer, chat_template_args={})
    with reading(f"The chat template of {name}", "Leave --apply_chat_template out.", most=None):
        prompt = Templated(HFLM.apply_chat_template(holder, [dict(turn) for turn in turns], add_generation_prompt))
    said = [(turn["role"], turn["content"].strip()) for turn in turns if turn["role"] != SYSTEM]
    last = max(place for place, (role, _) in enumerate(said) if role == USER)
    places, end = [], 0
    for _, words in said[: last + 1]:
        if (begin := prompt.find(words, end)) < 0:
            return prompt
        end = begin + len(words)
        places.append((begin, end))
    prompt.words, prompt.opening = places[last], places[0][0]
    prompt.shown = places[last - 1][1] if last else 0
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
    """auto: behind the turns of demonstrations, else before the document's own text where the task is known, else
    behind what all prompts of a task begin with; none: everything is query and nothing is read; field:NAME: behind the
    text of this field of the document, where it stands last; marker:TEXT: in front of this text, where it stands last
    (\\n is a line break)."""
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

    def cuts(self, task: str, requests: Sequence[Any]) -> list[Cut]:
        """Where the prompt of each request is cut."""
        prompts = [request.args[0] for request in requests]
        if self.split == "none":
            return [Cut() for _ in prompts]
        spans = [self._words(task, prompt) for prompt in prompts]
        shown = [getattr(prompt, "shown", 0) for prompt in prompts]
        if self.named and any(shown):
            fault = f"{task}: its demonstrations are turns of a chat template, so split={self.split} has no place."
            raise UserError(fault, "Give --fewshot_as_multiturn false, or --num_fewshot 0.")
        texts = [prompt[begin:end] for prompt, (begin, end) in zip(prompts, spans, strict=True)]
        places = [0] * len(texts) if any(shown) else self._cuts(task, texts, requests)
        made = []
        for prompt, (begin, end), turns, place in zip(prompts, spans, shown, places, strict=True):
            query = begin + place if turns or place else 0
            made.append(Cut(turns or query, query, getattr(prompt, "opening", 0), end))
        return made

    def shots(self, task: str) -> int | None:
        """How many demonstrations the prompts of a task hold, as far as it is known."""
        return int(self.tasks[task].get_config("num_fewshot") or 0) if task in self.tasks else None

    def _words(self, task: str, prompt: str) -> tuple[int, int | None]:
        """Where the user's last words begin and end; all of a prompt without a template."""
        if isinstance(prompt, Templated) and prompt.words is None and self.shots(task) != 0:
            fault = "its chat template changes the words of turns, so that demonstrations cannot be told from questions"
            hint = "With split=none every prompt is asked as a whole, and nothing is read."
            raise UserError(f"{task}: {fault}.", hint)
        return getattr(prompt, "words", None) or (0, None)

    def _cuts(self, task: str, texts: Sequence[str], requests: Sequence[Any]) -> list[int]:
        """Where in each text the query begins."""
        if self.named:
            places = [
                context_end(task, text, request.doc, self.split) for text, request in zip(texts, requests, strict=True)
            ]
            if not any(places):
                raise UserError(f"{task}: no prompt holds what split={self.split} names.", "Name another.")
            return places
        own = [_own(text, self._text(task, request)) for text, request in zip(texts, requests, strict=True)]
        if all(length for length, text in zip(own, texts, strict=True) if text):
            return [len(text) - length for length, text in zip(own, texts, strict=True)]
        shared = common_cut([text for text in texts if text])
        return [shared if text else 0 for text in texts]

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


def _own(text: str, own: str) -> int:
    """Letters at the end of a text that are the document's own, whose blanks a template may have taken off, or 0."""
    return next((len(form) for form in (own, own.rstrip(), own.strip()) if form and text.endswith(form)), 0)
