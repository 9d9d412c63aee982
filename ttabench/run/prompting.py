"""How a task is asked where the user leaves it open: in turns of a chat template or not, in which words.

First counts what was typed, then how tuned weights were trained, then what the card says of models with a template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from ttabench.core.checked_file import json_of
from ttabench.core.errors import UserError
from ttabench.core.typed import assignments
from ttabench.core.types import Ask, Json, Want
from ttabench.lm.text.chat import has_template
from ttabench.readers.cards import Card, Manner, load_card
from ttabench.run.request import RunRequest
from ttabench.run.resolve import named

ASKING = ("qa_stream", "sessions")
"""Readers whose tasks ask questions in words of their own."""
_SCORED = {"book": "the text of a book", "dialogue": "the turns of a dialogue"}
"""Texts of readers that ask for no answer: they score given texts."""
TRAINED_WITH = "asked"
"""Where a checkpoint's record of its training says how it was asked."""


@dataclass(frozen=True, kw_only=True)
class Prompting:
    """How a task is asked."""

    card: Card
    chat: bool
    """Context and question stand in the model's chat template."""
    options: Mapping[str, str]
    """Of the task: those that were typed, and those of the prompt that follow from the model."""

    def query(self, question: str, key: str, want: Want) -> Ask:
        """A question in the words of the task, as the model is asked it."""
        options = {**self.card.protocol, **self.options}
        if self.card.reader not in ASKING or "prompt" not in options:
            raise UserError(f"The task {self.card.name} has no prompt for questions of your own.", "Leave --task out.")
        examples = int(str(options.get("examples", 0)))
        prompt = self.card.prompt.asked(question, str(options["prompt"]), examples)
        return Ask(prompt=prompt, question=question, key=key, joiner=self.card.prompt.joiner, want=want)

    @property
    def length(self) -> int:
        """Most tokens of a written answer, as the card says."""
        return int(str(self.options.get("max_new_tokens", self.card.protocol.get("max_new_tokens", 16))))


def resolve_prompting(request: RunRequest, card: Card | None = None) -> Prompting:
    """How the task of a request is asked of its model; `card`: the task's, where it was read already."""
    card, typed = card or load_card(request.task), assignments(request.task_options, "--task-set")
    scored = _SCORED.get(card.reader, "")
    if card.reader == "sessions" and typed.get("ask", card.protocol.get("ask", "questions")) != "questions":
        scored = "the turns of a conversation"
    if request.chat_template and scored:
        fault = f"{card.name} scores {scored} and asks nothing, so it needs no chat template."
        raise UserError(fault, "Leave --chat-template out.")
    usual = _trained(request, card) or _of_card(request, card)
    chat = bool(usual and usual.turns) if request.chat_template is None else request.chat_template
    words = {} if usual is None or "prompt" in typed else usual.options()
    return Prompting(card=card, chat=chat, options={**words, **typed})


def trained_with(task_options: Mapping[str, Json], chat: bool) -> dict[str, Json]:
    """The prompt that a checkpoint was trained with, see `TRAINED_WITH`; empty where its task has one way only."""
    if "prompt" not in task_options:
        return {}
    return {TRAINED_WITH: {"prompt": task_options["prompt"], "examples": task_options["examples"], "turns": chat}}


def _of_card(request: RunRequest, card: Card) -> Manner | None:
    """How the card has models with a chat template asked; in turns that were asked for, without worked examples."""
    usual = card.prompt.chat
    if usual is None or request.random_weights or not (request.chat_template or has_template(request.model)):
        return None
    if request.chat_template and not usual.turns:
        return Manner(prompt=usual.prompt)
    return usual


def _trained(request: RunRequest, card: Card) -> Manner | None:
    """How the tuned weights were asked in training, if these are words that the card knows."""
    checkpoint = request.base_checkpoint or (request.checkpoint if request.method == "lora" else "")
    if checkpoint in ("", "none"):
        return None
    try:
        header = json_of(named(checkpoint, request.model) / "adapter.json")
        manner = Manner.model_validate(header["training"]["config"]["data"][TRAINED_WITH])
    except (KeyError, TypeError, ValidationError, UserError):
        return None  # no such record, or no checkpoint: whoever loads it says so
    return manner if manner.prompt in card.prompt.templates else None
