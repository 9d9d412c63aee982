"""Which pieces of context the questions of `ttabench ask` look at: as JSON beside each answer, and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ttabench.core.errors import UserError
from ttabench.core.types import Json, Observe
from ttabench.methods.registry import methods
from ttabench.readers.own_questions import OwnQuestion
from ttabench.run.resolve import ResolvedMethod

if TYPE_CHECKING:
    from ttabench.methods.piece_shares import PieceShares

LARGEST = 5
"""Pieces told beside an answer, at most."""


def check_tells(resolved: ResolvedMethod) -> None:
    """Whether a method tells which pieces a question looks at; asked before anything is read.

    Raises:
        UserError: it does not, or not with these settings.
    """
    spec = resolved.spec
    if spec.piece_shares(resolved.settings_object):
        return
    able = [name for name, method_spec in methods().items() if method_spec.piece_shares(method_spec.Settings())]
    fault = f"{spec.name} does not tell which pieces of context a question looks at."
    if spec.name in able:
        fault = f"{fault.rstrip('.')} with these settings."
    raise UserError(fault, f"Leave --attention out, or read with {' or '.join(able)} as they come.")


def largest_shares(shares: PieceShares, question: int) -> list[dict[str, Json]]:
    """The pieces that a question looks at most: their shares, 0 to 1, and the scores that pieces were chosen by."""
    scores = shares.scores_QK
    return [
        {
            "name": shares.names[place],
            "share": float(shares.shares_QK[question, place]),
            **({} if scores is None else {"score": float(scores[question, place])}),
        }
        for place in shares.largest(question, LARGEST)
    ]


def draw_shares(
    path: Path, shares: PieceShares | None, questions: Sequence[OwnQuestion], read: Sequence[Observe], title: str
) -> None:
    """Write the picture; pieces are called by their names and, where their files are there, how they begin.

    Raises:
        UserError: nothing was read, or the file cannot be written.
    """
    from ttabench.report.heat_map import HeatMap, draw

    if shares is None:
        raise UserError("Nothing was read, so there is nothing to draw.", "Leave --attention out.")
    texts: dict[str, set[str]] = {}
    for piece in read:
        texts.setdefault(piece.key, set()).add(piece.text)
    named = [f"{name}: {next(iter(texts[name]))}" if len(texts.get(name, ())) == 1 else name for name in shares.names]
    asked = [question.question for question in questions]
    draw(
        HeatMap(title=f"{title}\n{shares.meaning}", questions=asked, pieces=named, shares_QK=shares.shares_QK.numpy()),
        path,
    )
