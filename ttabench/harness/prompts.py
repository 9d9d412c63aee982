"""Prompts of lm-eval as context and query: the rules by which they are cut.

    Prompts(split="auto").splits("copa", prompts, requests)     where each prompt's query begins, and its context

Demonstrations that are turns of a chat template are the context; else a prompt, or the one turn that it is in a
template, is cut in front of the document's own text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lm_eval.api.utils import maybe_delimit

from ttabench.core.errors import UnknownName, UserError
from ttabench.core.types import Observe
from ttabench.harness.splitting import common_cut, observes, parts
from ttabench.harness.turns import Body, Templated
from ttabench.lm.text.chat import Chat

SPLITS = ("auto", "delimiter", "none")


@dataclass(frozen=True)
class Split:
    """Where a prompt is cut, in letters. By default it is asked as a whole."""

    question: str
    """The query's words, without a template around them."""
    read: int = 0
    """Where the context ends."""
    query: int = 0
    """Where the query begins for methods that keep no context in the window: behind what opens its turn."""
    opening: int = 0
    """Text that opens a dialogue; it begins every window, as BOS does, whatever was read."""
    shown: tuple[tuple[str, str], ...] = ()
    """Demonstrations that are turns: what the user says, and its answer."""
    ends: tuple[int, ...] = ()
    """Where these answers end."""
    chat: Chat | None = None
    """The template, where there is one."""

    def parts(self, prompt: str, delimiter: str, begin: int) -> list[tuple[str, str]]:
        """The context from `begin` on (0 or `opening`) as (text, joiner in front), with all that a template writes."""
        if self.shown:
            return [(prompt[start:end], "") for start, end in zip((begin, *self.ends), self.ends, strict=False)]
        (text, joiner), *more = parts(prompt[self.opening : self.read], delimiter) or [("", "")]
        return [(prompt[begin : self.opening] + joiner + text, ""), *more]

    def observes(self, prompt: str, delimiter: str) -> list[Observe]:
        """The context in pieces, without a template around them."""
        if not self.shown:
            return observes(prompt[self.opening : self.read], delimiter)
        return [
            Observe(text=maybe_delimit(*turns), turns=turns, key=f"piece {i}") for i, turns in enumerate(self.shown)
        ]


@dataclass(frozen=True, kw_only=True)
class Prompts:
    """How prompts are cut into context and query."""

    split: str = "auto"
    """auto: behind the turns of demonstrations, else before the document's own text where the task is known, else
    behind what all prompts of a task begin with; delimiter: behind those turns, else behind the last delimiter of each
    prompt; none: everything is query and nothing is read."""
    delimiter: str = "\n\n"
    """Stands between demonstrations (lm-eval's `fewshot_delimiter`)."""
    tasks: dict[str, Any] = field(default_factory=dict)
    """lm-eval's task objects by name; `evaluate` fills them in."""

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise UnknownName("split", self.split, list(SPLITS))
        if not self.delimiter:
            raise UserError("delimiter is empty.", "Leave it out for two line breaks.")

    def splits(self, task: str, bodies: Sequence[Body | None], requests: Sequence[Any]) -> list[Split]:
        """Where the prompt of each request is cut.

        Args:
            task: its name.
            bodies: what each prompt ends with, None where its template does not tell.
            requests: lm-eval's.

        Raises:
            UserError: there may be demonstrations, and the chat template changes words, so that none can be told.
        """
        prompts = [request.args[0] for request in requests]
        if self.split == "none":
            return [Split(prompt) for prompt in prompts]
        known = [body or self._untold(task, prompt) for body, prompt in zip(bodies, prompts, strict=True)]
        cuts = self._cuts(task, [body.text for body in known], requests)
        return [_split(body, cut) for body, cut in zip(known, cuts, strict=True)]

    def shots(self, task: str) -> int | None:
        """How many demonstrations the prompts of a task hold, as far as it is known."""
        return int(self.tasks[task].get_config("num_fewshot") or 0) if task in self.tasks else None

    def _untold(self, task: str, prompt: str) -> Body:
        if self.shots(task) != 0:
            fault = "its chat template changes the words of turns, so that demonstrations cannot be told from questions"
            raise UserError(
                f"{task}: {fault}.", "With split=none every prompt is asked as a whole, and nothing is read."
            )
        return Body(prompt)

    def _cuts(self, task: str, texts: Sequence[str], requests: Sequence[Any]) -> list[int]:
        """Where in each text the query begins."""
        if self.split == "delimiter":
            return [common_cut([text], self.delimiter) for text in texts]
        own = [_own(text, self._text(task, request)) for text, request in zip(texts, requests, strict=True)]
        if all(length for length, text in zip(own, texts, strict=True) if text):
            return [len(text) - length for length, text in zip(own, texts, strict=True)]
        shared = common_cut([text for text in texts if text], self.delimiter)
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


def _split(body: Body, cut: int) -> Split:
    if body.shown:
        return Split(body.text, body.ends[-1], body.begin, body.opening, body.shown, body.ends, body.chat)
    if not cut:
        return Split(body.text)
    place = body.begin + cut
    return Split(body.text[cut:], place, place, body.opening, chat=body.chat)
