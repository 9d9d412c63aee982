"""A note of a record that others build on: written and read here, so that both know the same words.

kept_whole(["snapkv evicted nothing: 300 tokens ..."])      1.0: of every context it kept all
kept_whole(["h2o evicted nothing from 3 of 8 contexts: 90 tokens ..."])     0.375
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_WHOLE = re.compile(r"^\S+ evicted nothing(?: from ([\d,]+) of ([\d,]+) contexts)?: ")


def evicted_nothing(method: str, whole: int, contexts: int, longest: int) -> str:
    """The note on a method that evicts and had no need to.

    Args:
        method: its name.
        whole: contexts of which it kept everything, at least one.
        contexts: how many there are.
        longest: tokens of the longest of which it kept everything.
    """
    where = "" if whole == contexts else f" from {whole} of {contexts} contexts"
    what = f"{method} evicted nothing{where}: {longest:,} tokens of context fit what it may keep"
    return f"{what}, so this measures full context (icl), not {method}"


def kept_whole(notes: Iterable[str]) -> float:
    """The share of contexts of which a method that evicts kept everything, by the notes of its run."""
    for note in notes:
        if found := _WHOLE.match(note):
            some, all_of_them = found.groups()
            return int(some.replace(",", "")) / int(all_of_them.replace(",", "")) if some else 1.0
    return 0.0
