"""How much of what an answer looks at lies in each piece of context that a state keeps.

    found = session.piece_shares(asks)
    found.names, found.shares_QK        ("notes.txt#0", "notes.txt#1"), [[0.9, 0.1]]

Shape letters: Q questions · K kept pieces.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class PieceShares:
    """Shares of the kept pieces in what each question looks at."""

    names: tuple[str, ...]
    """Keys of the pieces, in the order of the state; where an entry was made of several pieces: joined by " + "."""
    shares_QK: Tensor
    """float32 on the CPU, at least 0; every row sums to 1."""
    meaning: str
    """Meaning of a share, in words."""
    scores_QK: Tensor | None = None
    """float32, what pieces were chosen by, where they were: how well each matches a question."""

    def largest(self, question: int, most: int) -> list[int]:
        """Places of at most so many pieces with the largest shares above 0; of equal ones by score, then in order."""
        shares = self.shares_QK[question].tolist()
        scores = shares if self.scores_QK is None else self.scores_QK[question].tolist()
        order = sorted(range(len(shares)), key=lambda place: (-shares[place], -scores[place]))
        return [place for place in order[:most] if shares[place] > 0]
