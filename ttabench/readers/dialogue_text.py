"""Dialogues as the models read them: turns without the blanks of tokenised text, each behind who speaks.

    detokenised("Let ’ s see , it costs 15 yuan .")      "Let's see, it costs 15 yuan."
    detokenised("Well ... I ' d go .", "released")       "Well. . . I'd go."
    said("Hello.", 0, "same")                           "\\nA: Hello."

The published turns have a blank in front of every mark, and apostrophes by themselves; CCM's released code (arXiv
2312.03414) undoes both, and puts "\\nA:" in front of every turn, whoever speaks. It also parts the points of "..." and
of "3.5", and takes the blanks on both sides of every quote: `released` does that, too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

Speakers: TypeAlias = Literal["same", "alternate"]
Wording: TypeAlias = Literal["plain", "released"]
"""Which blanks of the published turns are taken away."""

END_OF_TURN = "__eou__"
_PLAIN = str.maketrans("’‘´`“”，。？！：；", "''''\"\",.?!:;")
_RELEASED = str.maketrans("’。", "'.")
_RELEASED_MARK = re.compile(r" (?=[,.?!;'])")
_RELEASED_QUOTE = re.compile("' ")
_MARK = re.compile(r" (?=[,.?!;:])")
_APOSTROPHE = re.compile(r"(?<=\w) ?' ?(?=(?:s|t|m|d|ll|re|ve|clock)\b)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Dialogue:
    """A dialogue."""

    id: str
    turns: tuple[str, ...]
    """In plain words, without who speaks."""

    @cached_property
    def text(self) -> str:
        """All turns; two dialogues of one text are the same."""
        return "\n".join(self.turns)


def detokenised(turn: str, wording: Wording = "plain") -> str:
    """A turn without the blanks that tokenising left, its quotes and stops in ASCII."""
    if wording == "released":
        text = _RELEASED_QUOTE.sub("'", _RELEASED_MARK.sub("", turn.translate(_RELEASED)))
        return ". ".join(part.strip() for part in text.split(".")).strip()
    text = " ".join(turn.translate(_PLAIN).split())
    return _APOSTROPHE.sub("'", _MARK.sub("", text))


def speaker(number: int, speakers: Speakers) -> str:
    """Text in front of the words of a turn, which are numbered from 0."""
    return "\nB:" if speakers == "alternate" and number % 2 else "\nA:"


def said(turn: str, number: int, speakers: Speakers) -> str:
    """A turn as it is read."""
    return f"{speaker(number, speakers)} {turn}"


def turns_of(line: str) -> list[str]:
    """The turns in a line of the published files, each of which ends with `END_OF_TURN`."""
    *turns, rest = line.split(END_OF_TURN)
    return [*turns, rest] if rest.strip() else turns


def repeated(dialogues: Sequence[Dialogue], among: Sequence[Dialogue]) -> int:
    """How many dialogues stand word for word among others."""
    known = {dialogue.text for dialogue in among}
    return sum(dialogue.text in known for dialogue in dialogues)
