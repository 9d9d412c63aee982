"""The protocol of `lamp`: its settings, and which entries of a profile are read and fit beside the query.

Entries of more than `max_entry_tokens` are left out, and users who keep less than `least_kept` of theirs; of the others
as many as the last step wants are drawn, with replacement where there are fewer (arXiv 2312.03414, appendix D).
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Annotated

from pydantic import Field

from ttabench.readers.lamp_files import Entry, User
from ttabench.readers.protocol_options import ProtocolSettings, StepCounts, TokenCount, TokenLimit
from ttabench.readers.tokens import Count


class Settings(ProtocolSettings):
    """The protocol part of a card of the reader `lamp`, and what `--task-set` may change."""

    task: str = "news"
    """The sub-task; one at a time, for they have metrics of their own."""
    steps: StepCounts = (1, 2, 4, 8, 16)
    """Entries after which the query is asked."""
    max_entry_tokens: TokenLimit = 99
    """Longer entries are left out; 0 for no limit."""
    least_kept: Annotated[float, Field(ge=0, le=1)] = 0.9
    """Users of whose entries a smaller share is kept are left out."""
    max_tokens: TokenLimit = 1024
    """Most tokens of the entries with the query and its longest answer; 0 for no limit."""
    max_new_tokens: TokenCount = 32
    """Of an answer that is written."""


@dataclass(frozen=True, kw_only=True)
class Words:
    """Tokens that are counted of a query beside its text."""

    joiner: str
    delimiter: str
    template: str


@dataclass(frozen=True, kw_only=True)
class Read:
    """A user as one is run."""

    user: User
    shown: tuple[Entry, ...]
    """In reading order."""
    places: Mapping[int, int]
    """After how many entries the query is asked, by step."""


def prompt_of(user: User, template: str, text: str = "") -> str:
    """The query about a text; about the user's own by default."""
    return user.instruction + template.replace("{question}", text or user.input)


def fitted(
    users: Sequence[User], settings: Settings, words: Words, count: Count, seed: int
) -> tuple[list[Read], dict[str, int]]:
    """(users under the limits of the settings, how much these leave out by reason)."""
    dropped: Counter[str] = Counter()
    fits = []
    for user in users:
        kept = short(user, settings, count)
        dropped["entry too long"] += len(user.entries) - len(kept)
        if not kept or len(kept) < settings.least_kept * len(user.entries):
            dropped["user with too many long entries"] += 1
            continue
        read = _read(user, _drawn(kept, max(settings.steps), f"{user.id} {seed}"), settings, words, count)
        dropped["query asked after fewer entries"] += sum(step != place for step, place in read.places.items())
        fits.append(read)
    return fits, {reason: number for reason, number in dropped.items() if number}


def short(user: User, settings: Settings, count: Count) -> list[Entry]:
    """The entries that are not longer than one may be."""
    most = settings.max_entry_tokens
    return [entry for entry in user.entries if not most or count(entry.text) <= most]


def _drawn(entries: Sequence[Entry], wanted: int, name: str) -> list[Entry]:
    """So many of them, fewer the first of more; repeats have ids of their own."""
    source = random.Random(f"profile {name}")
    if wanted <= len(entries):
        return source.sample(entries, len(entries))[:wanted]
    seen: Counter[str] = Counter()
    drawn = []
    for entry in source.choices(entries, k=wanted):
        seen[entry.id] += 1
        drawn.append(entry if seen[entry.id] == 1 else replace(entry, id=f"{entry.id}#{seen[entry.id]}"))
    return drawn


def _read(user: User, drawn: Sequence[Entry], settings: Settings, words: Words, count: Count) -> Read:
    fit = len(drawn)
    if settings.max_tokens:
        answer = max((count(words.delimiter + option) for option in user.options), default=settings.max_new_tokens)
        room = settings.max_tokens - answer - count(prompt_of(user, words.template))
        fit = bisect_right(list(accumulate(count(entry.text + words.joiner) for entry in drawn)), room)
    places = {step: min(step, fit) for step in settings.steps}
    return Read(user=user, shown=tuple(drawn[: max(places.values())]), places=places)
