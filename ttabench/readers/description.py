"""Digests of texts, which tell records apart: 16 hexadecimal digits that change with any text or their order."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from ttabench.core.types import Episode, Json


def fingerprint(*texts: str) -> str:
    """16 hexadecimal digits that identify texts."""
    return hashlib.sha256("\0".join(texts).encode("utf-8")).hexdigest()[:16]


def described(episodes: Iterable[Episode], notes: Sequence[str]) -> dict[str, Json]:
    """Notes, and a digest of the texts of these episodes' observations."""
    texts = [piece.text for episode in episodes for piece in episode.observes()]
    return {"notes": list(notes), "digest": fingerprint(*texts)}
