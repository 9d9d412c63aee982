"""Prompts that a chat template wrote, and where the words of their turns stand in them.

    prompt = Dialogues(lm).write(turns, True)   "<|im_start|>user\\nfoggy:<|im_end|>\\n<|im_start|>assistant\\n"
    Dialogues(lm).bodies([prompt])              "foggy:", where it begins, and the answered turns in front of it

lm-eval hands turns over to be written and asks with the text alone, so the text keeps them. Where words stand is known
only if the template's own parts (`lm.chat`) with the words between them give the text back, letter by letter.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import jinja2

from ttabench.core.errors import UserError
from ttabench.lm.model import LM
from ttabench.lm.text.chat import Chat, chat_of

USER, ASSISTANT, SYSTEM = "user", "assistant", "system"

log = logging.getLogger(__name__)


class Templated(str):
    """A prompt that a chat template wrote. lm-eval's cache of requests keeps its turns, too."""

    turns: tuple[tuple[str, str], ...] = ()
    """(role, words) of what it was written from."""


@dataclass(frozen=True)
class Body:
    """The words that a prompt ends with, and what stands in front of them."""

    text: str
    """The user's last words; all of a prompt without a template."""
    begin: int = 0
    """Where it begins in the prompt."""
    opening: int = 0
    """Where the first turn's words begin: what stands in front opens a dialogue, as BOS opens a text."""
    shown: tuple[tuple[str, str], ...] = ()
    """Turns in front of it: what the user said, and its answer."""
    ends: tuple[int, ...] = ()
    """Where these answers end in the prompt."""
    chat: Chat | None = None
    """The template, where there is one."""


class Dialogues:
    """Turns of a dialogue as a base model's tokenizer writes them."""

    def __init__(self, lm: LM) -> None:
        self.lm = lm
        self._chats: dict[str, Chat | None] = {}

    def write(self, turns: Sequence[Mapping[str, str]], add_generation_prompt: bool) -> Templated:
        """The text of these turns; without the system's where the template has no place for it, as lm-eval's `hf`.

        Raises:
            UserError: the tokenizer has no chat template, or it fails.
        """
        name = self.lm.tokenizer_name
        if not getattr(self.lm.tokenizer, "chat_template", None):
            raise UserError(f"The tokenizer of {name} has no chat template.", "Leave --apply_chat_template out.")
        try:
            return self._written(turns, add_generation_prompt)
        except (jinja2.exceptions.TemplateError, ValueError) as error:
            fewer = [turn for turn in turns if turn["role"] != SYSTEM]
            if isinstance(error, ValueError) or len(fewer) == len(turns):
                fault = f"The chat template of {name} fails: {' '.join(str(error).split())[:120]}."
                raise UserError(fault, "Leave --apply_chat_template out.") from None
        log.warning("The chat template of %s takes no system message: it is left out.", name)
        return self.write(fewer, add_generation_prompt)

    def _written(self, turns: Sequence[Mapping[str, str]], add_generation_prompt: bool) -> Templated:
        text = self.lm.tokenizer.apply_chat_template(
            [dict(turn) for turn in turns],
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )
        prompt = Templated(text)
        prompt.turns = tuple((turn["role"], turn["content"]) for turn in turns)
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
