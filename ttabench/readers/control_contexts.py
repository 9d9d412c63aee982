"""Other contexts: an episode with its own queries and the observations of another, whose state answers in its place.

    with_pieces(Episode("e", [a1, a2, ask]), [b1, b2, b3])    Episode("e", [b1, b2, ask])

Which context is another is for each reader to say: documents, demonstrations or a book that come next in the same
order. A miniature twin draws them from another seed, and of another rule where a rule is what is read.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from ttabench.core.types import Episode, Observe
from ttabench.readers.breaks import blanks_in_front

DRAWS = 50
"""Most seeds that are tried for a rule of other categories."""


def with_pieces(episode: Episode, pieces: Sequence[Observe]) -> Episode:
    """The episode with these observations in place of its own, one for one; where they end, its own are left out."""
    fresh = (step for step in blanks_in_front(pieces) if isinstance(step, Observe))
    steps = [next(fresh, None) if isinstance(step, Observe) else step for step in episode.steps]
    return Episode(key=episode.key, steps=tuple(step for step in steps if step is not None))


def other_seeds(seed: int) -> Iterator[int]:
    """Seeds that no run has, for draws from the miniature world."""
    return (random.Random(f"another context {seed} {number}").getrandbits(48) for number in range(DRAWS))
