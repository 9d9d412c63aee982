"""Prompts of lm-eval as context and query: the rules by which they are cut.

    Prompts(split="auto").splits("copa", prompts, requests)     where each prompt's query begins, and its context

Demonstrations that are turns of a chat template are the context; else a prompt, or the one turn that it is in a
template, is cut in front of the document's own text, or behind a long text that is a field of the document.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from types import SimpleNamespace
from typing import Any, TypeAlias

from lm_eval.api.utils import maybe_delimit
from lm_eval.models.huggingface import HFLM

from ttabench.core.checked_file import reading
from ttabench.core.errors import UnknownName, UserError
from ttabench.core.types import Observe
from ttabench.lm.model import LM
from ttabench.lm.text.chat import Chat, chat_of
from ttabench.readers.lm_eval import NAMED, context_end

SPLITS = ("auto", "delimiter", "none", "field:NAME", "marker:TEXT")
USER, ASSISTANT, SYSTEM = "user", "assistant", "system"

Encode: TypeAlias = Callable[[Sequence[str], bool], list[list[int]]]
"""Token ids of texts; the flag says whether they go on behind other text."""


class Templated(str):
    """A prompt that a chat template wrote. lm-eval's cache of requests keeps its turns, too."""

    turns: tuple[tuple[str, str], ...] = ()
    """(role, words) of what it was written from."""


@dataclass(frozen=True)
class Body:
    """The words that a prompt ends with, what stands in front of them, and where it is cut; places in letters."""

    text: str
    """The user's last words; all of a prompt without a template."""
    begin: int = 0
    """Where it begins in the prompt."""
    opening: int = 0
    """Where the first turn's words begin: what stands in front opens a dialogue, as BOS opens a text."""
    shown: tuple[tuple[str, str], ...] = ()
    """Demonstrations that are turns in front of it: what the user says, and its answer."""
    ends: tuple[int, ...] = ()
    """Where these answers end in the prompt."""
    chat: Chat | None = None
    """The template, where there is one."""
    cut: int = 0
    """How much of the text is context, where no turns are; 0: everything is asked."""

    @property
    def question(self) -> str:
        """The query's words, without a template around them."""
        return self.text if self.shown else self.text[self.cut :]

    @property
    def query(self) -> int:
        """Where the query begins for methods that keep no context in the window: behind what opens its turn."""
        return self.begin if self.shown else self.begin + self.cut if self.cut else 0

    @property
    def read(self) -> int:
        """Where the context ends."""
        return self.ends[-1] if self.shown else self.query

    def parts(self, prompt: str, delimiter: str, begin: int) -> list[tuple[str, str]]:
        """The context from `begin` on (0 or `opening`) as (text, joiner in front), with all that a template writes."""
        if self.shown:
            return [(prompt[start:end], "") for start, end in zip((begin, *self.ends), self.ends, strict=False)]
        (text, joiner), *more = parts(prompt[self.opening : self.read], delimiter) or [("", "")]
        return [(prompt[begin : self.opening] + joiner + text, ""), *more]

    def observes(self, prompt: str, delimiter: str) -> list[Observe]:
        """The context in pieces, without a template around them."""
        if not self.shown:
            pieces = parts(prompt[self.opening : self.read], delimiter)
            return [Observe(text=text, joiner=joiner, key=f"piece {i}") for i, (text, joiner) in enumerate(pieces)]
        shown = enumerate(self.shown)
        return [Observe(text=maybe_delimit(*turns), turns=turns, key=f"piece {i}") for i, turns in shown]


class Dialogues:
    """Turns of a dialogue as a base model's tokenizer writes them."""

    def __init__(self, lm: LM) -> None:
        self.lm = lm
        self._chats: dict[str, Chat | None] = {}

    def write(self, turns: Sequence[Mapping[str, str]], add_generation_prompt: bool) -> Templated:
        """The text of these turns as lm-eval's `hf` writes it: without the system's where there is no place for it."""
        name = self.lm.tokenizer_name
        if not getattr(self.lm.tokenizer, "chat_template", None):
            raise UserError(f"The tokenizer of {name} has no chat template.", "Leave --apply_chat_template out.")
        holder = SimpleNamespace(tokenizer=self.lm.tokenizer, chat_template_args={})
        with reading(f"The chat template of {name}", "Leave --apply_chat_template out.", most=None):
            text = HFLM.apply_chat_template(holder, [dict(turn) for turn in turns], add_generation_prompt)
        prompt = Templated(text)
        told = (turn for turn in turns if turn["role"] != SYSTEM or turn["content"].strip() in text)
        prompt.turns = tuple((turn["role"], turn["content"]) for turn in told)
        return prompt

    def bodies(self, prompts: Sequence[str]) -> list[Body | None]:
        """The end of each prompt; None where its template changes words, so that they cannot be told from it."""
        known = {prompt: self._body(prompt) for prompt in dict.fromkeys(prompts)}
        return [known[prompt] for prompt in prompts]

    def _body(self, prompt: str) -> Body | None:
        if not isinstance(prompt, Templated):
            return Body(prompt)
        led = prompt.turns[0][0] == SYSTEM
        chat = self._chat(prompt.turns[0][1] if led else "")
        roles, words = zip(*prompt.turns[led:], strict=True)
        if chat is None or roles != tuple((USER, ASSISTANT)[i % 2] for i in range(len(roles))):
            return None
        given = [list(words), [word.strip() for word in words]]  # many templates take blanks off
        return next((body for word in given if (body := _located(chat, word, prompt)) is not None), None)

    def _chat(self, system: str) -> Chat | None:
        if system not in self._chats:
            try:
                made = chat_of(self.lm.tokenizer, self.lm.tokenizer_name, self.lm.encode_template, system)
            except UserError:
                made = None
            self._chats[system] = made
        return self._chats[system]


def _located(chat: Chat, words: Sequence[str], prompt: str) -> Body | None:
    """Where the words of user and assistant, in turn, stand in a prompt; None where the template gives another."""
    between = [chat.start, *((chat.answer, chat.next)[i % 2] for i in range(len(words) - 1))]
    pieces = [*chain.from_iterable(zip(between, words, strict=True)), chat.end if len(words) % 2 else ""]
    if "".join(pieces) != prompt:
        return None
    places = list(accumulate(map(len, pieces)))[::2]
    last = (len(words) - 1) // 2 * 2
    return Body(
        text=words[last],
        begin=places[last],
        opening=places[0],
        shown=tuple(zip(words[:last:2], words[1:last:2], strict=True)),
        ends=tuple(places[i] + len(words[i]) for i in range(1, last, 2)),
        chat=chat,
    )


def common_cut(contexts: Sequence[str], delimiter: str) -> int:
    """Length of what all contexts begin with, up to and with its last delimiter; 0 where there is none."""
    at = contexts[0][: _common(contexts)].rfind(delimiter) if contexts else -1
    return 0 if at < 0 else at + len(delimiter)


def _common(rows: Sequence[Sequence[object]]) -> int:
    """How many elements all rows begin with."""
    return next((i for i, column in enumerate(zip(*rows, strict=False)) if len(set(column)) > 1), min(map(len, rows)))


def parts(prefix: str, delimiter: str) -> list[tuple[str, str]]:
    """The prefix as pieces, each with the delimiter in front of it as joiner; the last delimiter joins the query."""
    texts = re.split(f"((?:{re.escape(delimiter)})+)", prefix)
    pieces = [(text, joiner) for text, joiner in zip(texts[::2], ["", *texts[1::2]], strict=True) if text]
    if pieces and pieces[0][1]:  # a delimiter in front of everything belongs to the first piece
        pieces[0] = (pieces[0][1] + pieces[0][0], "")
    return pieces


def read_as(
    encode: Encode, context: str, pieces: Sequence[tuple[str, str]], prompts: Sequence[list[int]]
) -> list[Observe]:
    """The context as pieces whose tokens are those that every prompt begins with, so that a query's follow them as they
    do in the whole prompt.

    A joiner goes with the piece behind it or, where a tokenizer joins it to what stands in front, with that; where
    neither gives the tokens of the prompts, all is one piece, less what is joined to the query.

    Args:
        pieces: those of the context, each with the joiner in front of it.
        prompts: token ids; one at least is left to the query.
    """
    least = min(map(len, prompts)) - 1
    front = [joiner + text for text, joiner in pieces]
    last = context[sum(map(len, front)) :]
    behind = [text + joiner for (text, _), (_, joiner) in zip(pieces, [*pieces[1:], ("", last)], strict=True)]
    for texts in (front, behind, [context]):
        ids = [*encode(texts[:1], False), *encode(texts[1:], True)]
        joined = list(chain(*ids))
        if len(joined) <= least and all(prompt[: len(joined)] == joined for prompt in prompts):
            break
    else:
        ids = [joined[: min(least, _common([joined, *prompts]))]]
    return [Observe(text=text, joiner="", ids=tuple(own), key=f"piece {i}")
            for i, (text, own) in enumerate(zip(texts, ids, strict=True))]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Prompts:
    """How prompts are cut into context and query."""

    split: str = "auto"
    """auto: behind the turns of demonstrations, else before the document's own text where the task is known, else
    behind what all prompts of a task begin with; delimiter: behind those turns, else behind the last delimiter of each
    prompt; none: everything is query and nothing is read; field:NAME: behind the text of this field of the document,
    where it stands last; marker:TEXT: in front of this text, where it stands last (\\n is a line break)."""
    delimiter: str = "\n\n"
    """Stands between demonstrations (lm-eval's `fewshot_delimiter`)."""
    tasks: dict[str, Any] = field(default_factory=dict)
    """lm-eval's task objects by name; `evaluate` fills them in."""

    def __post_init__(self) -> None:
        kind, _, text = self.split.partition(":")
        if self.split not in SPLITS[:3] and not (kind in NAMED and text):
            raise UnknownName("split", self.split, list(SPLITS))
        if not self.delimiter:
            raise UserError("delimiter is empty.", "Leave it out for two line breaks.")

    @property
    def named(self) -> bool:
        """Whether the split names the field or marker that prompts are cut at."""
        return self.split.partition(":")[0] in NAMED

    def splits(self, task: str, bodies: Sequence[Body | None], requests: Sequence[Any]) -> list[Body]:
        """Where the prompt of each request is cut; a body is None where a chat template does not tell it."""
        prompts = [request.args[0] for request in requests]
        if self.split == "none":
            return [Body(prompt) for prompt in prompts]
        known = [body or self._untold(task, prompt) for body, prompt in zip(bodies, prompts, strict=True)]
        if self.named and any(body.shown for body in known):
            fault = f"{task}: its demonstrations are turns of a chat template, so split={self.split} has no place."
            raise UserError(fault, "Give --fewshot_as_multiturn false, or --num_fewshot 0.")
        cuts = self._cuts(task, [body.text for body in known], requests)
        return [replace(body, cut=cut) for body, cut in zip(known, cuts, strict=True)]

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
        if self.named:
            places = [
                context_end(task, text, request.doc, self.split) for text, request in zip(texts, requests, strict=True)
            ]
            if not any(places):
                raise UserError(f"{task}: no prompt holds what split={self.split} names.", "Name another.")
            return places
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
