"""How dialogues are asked: the protocol part of a card of the reader `dialogue`, and what makes no sense in it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ttabench.core.errors import UserError
from ttabench.readers.cards import Card
from ttabench.readers.dialogue_text import Speakers, Wording
from ttabench.readers.protocol_options import ProtocolSettings, StepCounts, TokenLimit
from ttabench.readers.scored import check_metrics
from ttabench.readers.sources import Request

JOINED = "validation+test"


class Settings(ProtocolSettings):
    """The protocol part of a card of this reader, and what `--task-set` may change."""

    steps: StepCounts = (1, 2, 4, 8, 12)
    """Turns that are read in front of the one that is answered."""
    speakers: Speakers = "same"
    """`same` puts "A:" in front of every turn, as CCM's released code does; `alternate` "A:" and "B:" in turn."""
    wording: Wording = "plain"
    """Of the published turns: `plain` English, or as CCM's `released` code has it, which parts the points of "..."."""
    max_turn_tokens: TokenLimit = 128
    """Dialogues with a longer turn are left out, counted with the speaker; 0 for no limit."""
    max_tokens: TokenLimit = 600
    """Longer dialogues are left out; 0 for no limit."""
    max_train_tokens: TokenLimit = 400
    """The same in the split `train`."""
    eval_split: Literal["test", "validation+test"] = "test"
    """What the split `test` is: the dialogues of this name, or those of both, as in CCM's released code."""
    context_at_12: Annotated[int, Field(ge=12, le=13)] = 12
    """Turns that are read at t = 12: CCM's released code has 13 there."""
    same_dialogues: bool = False
    """Ask only of dialogues that are long enough for every t."""

    @property
    def places(self) -> dict[int, int]:
        """How many turns are read at each t, ascending."""
        return {step: self.context_at_12 if step == 12 else step for step in sorted(set(self.steps))}


def check(card: Card, request: Request, settings: Settings) -> None:
    """Whether card, request and settings go together.

    Raises:
        UserError: they do not; one line that says what.
    """
    check_metrics(card)
    least = len(settings.places)
    if request.limit is not None and request.limit < least:
        fault = f"A limit of {request.limit} questions is less than one turn at each of {least} steps."
        raise UserError(fault, f"Give --limit {least} or more.")
    if settings.eval_split == JOINED and request.split == "validation":
        fault = f"eval_split={JOINED} is what the split test is, and validation is asked."
        raise UserError(fault, "Give --task-set eval_split=test, or --split test.")
    doubled = [step for step in settings.places if list(settings.places.values()).count(settings.places[step]) > 1]
    if doubled:
        fault = f"steps {' and '.join(map(str, doubled))} would both read {settings.places[doubled[0]]} turns"
        raise UserError(f"{fault} (context_at_12={settings.context_at_12}).", "Give other --task-set steps=N,M.")
