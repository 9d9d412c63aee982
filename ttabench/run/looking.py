"""How queries look at the piece of context that holds their answers, of methods that tell which pieces they look at.

looked_at(session.piece_shares(asks), asks)        [Looked(gold_share=0.9, gold_rank=1, kept_pieces=16), ...]
"""

from __future__ import annotations

from collections.abc import Sequence

from ttabench.core.types import Ask
from ttabench.methods.piece_shares import PieceShares
from ttabench.records.samples import Looked

MOST_PIECES = 256
"""Of more that were read nothing is kept: telling where each query looks grows with queries times pieces (`mac` on one
thread: 1.4 s of 4.4 over 165 documents, 262 s of 357 over 1,665)."""


def looked_at(shares: PieceShares | None, asks: Sequence[Ask]) -> list[Looked]:
    """For each query; empty ones where it is not told, or not known which piece holds the answer.

    Args:
        shares: of these queries.
        asks: the queries.
    """
    if shares is None:
        return [Looked() for _ in asks]
    members = [name.split(" + ") for name in shares.names]
    scores_QK = shares.shares_QK if shares.scores_QK is None else shares.scores_QK
    found = []
    for question, ask in enumerate(asks):
        if not ask.source_key:
            found.append(Looked())
            continue
        place = next((place for place, keys in enumerate(members) if ask.source_key in keys), None)
        if place is None:
            found.append(Looked(kept_pieces=len(members)))
            continue
        scores = scores_QK[question]
        found.append(Looked(
            gold_share=float(shares.shares_QK[question, place]), gold_rank=1 + int((scores > scores[place]).sum()),
            gold_age=len(members) - 1 - place, kept_pieces=len(members),
        ))  # fmt: skip
    return found
