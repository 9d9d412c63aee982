"""Bounds of settings and of texts, refused with one sentence.

at_least(1, rank=0)      ValueError: rank must be at least 1, got 0
"""

from __future__ import annotations

from collections.abc import Sequence

from ttabench.core.errors import UserError

MOST_THREADS = 1024
"""More than any machine has use for; far beyond, no thread can be started."""


LONGEST_TEXT = 2**24
"""Characters of one text; a long book has 5 million."""


def refuse_long(texts: Sequence[str]) -> None:
    """See that texts can be tokenised."""
    longest = max(map(len, texts), default=0)
    if longest > LONGEST_TEXT:
        fault = f"A text of {longest:,} characters is longer than the {LONGEST_TEXT:,} that one may have."
        raise UserError(fault, "Cut it into pieces (of a file: --pieces paragraphs).")


def at_least(least: float, **values: float | None) -> None:
    """Whether all of these are no smaller; None is no value."""
    for name, value in values.items():
        if value is not None and not value >= least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
