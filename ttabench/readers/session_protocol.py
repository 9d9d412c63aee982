"""How conversations are asked: the protocol part of a card of the reader `sessions`, and what makes no sense in it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from ttabench.core.errors import UserError
from ttabench.readers.cards import Card
from ttabench.readers.protocol_options import ProtocolSettings, TokenCount
from ttabench.stats.metrics import text_metric

SCORED = ("ppl", "ppl_dialogue_mean", "ppl_word")
"""Metrics of turns: over all tokens, the mean over conversations, and a word."""


def _steps(value: object) -> object:
    if value in ("", "all", None):
        return None
    return tuple(value.split(",")) if isinstance(value, str) else (value,) if isinstance(value, int) else value


class Settings(ProtocolSettings):
    """The protocol part of a card of this reader, and what `--task-set` may change."""

    ask: Literal["questions", "next", "last", "turns"] = "questions"
    conversations: Annotated[int, Field(gt=0)] | None = None
    """How many, drawn by the seed; None for all of them."""
    session: Annotated[int, Field(gt=0)] | None = None
    """Of ParlAI's folders: conversations that have come to this session; None for the last one there."""
    steps: Annotated[tuple[Annotated[int, Field(ge=0)], ...] | None, BeforeValidator(_steps)] = None
    """Sessions read before queries: "2,4"; "all" is after every one, of questions after all. Of ask=turns: sessions
    and turns."""
    include_current: bool = False
    """Read the session that goes on, too, before the questions."""
    window_turns: Annotated[int, Field(ge=0)] = 16
    """Turns of its own session in front of a turn that is scored, at most."""
    prompt: str = "bare"
    """Name of a question template of the card."""
    examples: Annotated[int, Field(ge=0)] = 0
    """Worked examples of the card in front of every question, in the words of its template."""
    max_new_tokens: TokenCount = 20


def check(card: Card, settings: Settings) -> Card:
    """The card with the metrics of what is asked.

    Raises:
        UserError: settings and card do not go together.
    """
    if settings.ask != "questions":
        if settings.include_current:
            raise UserError(
                f"include_current is about questions; ask={settings.ask} scores turns.", "Leave include_current out."
            )
        return card.model_copy(update={"metrics": SCORED, "main_metric": "ppl", "chance": None})
    for name in card.metrics:
        text_metric(name)
    card.prompt.check(card.name, settings.prompt, settings.examples)
    return card
