"""How books are cut and scored: the protocol part of a card of the reader `book`, and what makes no sense in it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ttabench.core.errors import UserError
from ttabench.readers.book_pieces import Span, spans
from ttabench.readers.cards import Card
from ttabench.readers.protocol_options import ProtocolSettings, TokenCount, TokenCounts
from ttabench.readers.scored import check_metrics


class Settings(ProtocolSettings):
    """The protocol part of a card of this reader, and what `--task-set` may change."""

    protocol: Literal["strides", "units"] = "strides"
    tokens: TokenCounts = (
        2**14,
        2**15,
        2**16,
        2**17,
        2**18,
    )
    """Longest texts; k stands for 1,024."""
    window: TokenCount = 1024
    """Tokens of a book read before the first query (`strides`)."""
    stride: TokenCount = 512
    unit: TokenCount = 1024
    """Tokens of a unit (`units`)."""
    score_first: bool = False
    """Score the first window, too (`strides`)."""
    books: Annotated[int, Field(gt=0)] | None = None
    """How many books, drawn by the seed; None for all of them."""
    sequence_tokens: TokenCount = 8192
    """Tokens of a training sequence."""

    @property
    def first(self) -> int:
        """Tokens of the first piece."""
        return self.window if self.protocol == "strides" else self.unit

    @property
    def next(self) -> int:
        """Tokens of every further one."""
        return self.stride if self.protocol == "strides" else self.unit

    @property
    def lengths(self) -> list[int]:
        """The maximum lengths, ascending."""
        return sorted(set(self.tokens))

    def spans(self, total: int) -> list[Span]:
        """The pieces of a text of so many tokens."""
        return spans(total, self.first, self.next, score_first=self.score_first or self.protocol == "units")


def check(card: Card, settings: Settings) -> None:
    """Whether settings and card go together.

    Raises:
        UserError: they do not; one line that says what.
    """
    check_metrics(card)
    if settings.protocol == "strides" and settings.window <= settings.stride:
        fault = f"window={settings.window} is not larger than stride={settings.stride}"
        raise UserError(f"{fault}: no context would stay.", "Give --task-set window=N above the stride.")
    *between, _ = settings.lengths
    shortest = settings.lengths[0]
    if shortest <= settings.first:
        fault = f"tokens={shortest} is not longer than the first {settings.first} tokens: nothing would be scored"
        raise UserError(f"{fault}.", "Give --task-set tokens=N with a larger N.")
    for length in between:
        if (length - settings.first) % settings.next:
            fault = f"tokens={length} ends inside a piece (they end at {settings.first} + n x {settings.next})"
            raise UserError(f"{fault}.", "Give lengths that end with a piece, or run that length alone.")
