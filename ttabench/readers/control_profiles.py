"""Profiles of another user: of files the next who is asked, of a twin one of another seed who reads of other topics.

    next_reads(task, reads, fit)    [(Read of another user, whether they share nothing as far as is known), ...]

A user of the miniature world has categories for four topics; who reads of none of these is told nothing of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from ttabench.core.errors import UserError
from ttabench.mini.world import categories_in
from ttabench.readers.base import Bound
from ttabench.readers.control_contexts import other_seeds
from ttabench.readers.lamp_files import User, twin_users
from ttabench.readers.lamp_protocol import Read

WORLDS = 4
"""Other seeds whose users are tried."""
OTHERS = 64
"""Users of each."""


def next_reads(
    task: Bound[Any], reads: Sequence[Read], fit: Callable[[Sequence[User]], list[Read]]
) -> list[tuple[Read, bool]]:
    """For each user another one, and whether what both are told is apart as far as is known.

    Args:
        task: of users.
        reads: its users.
        fit: puts users under the limits of the task.
    """
    if task.mini:
        split, sizes = task.card.splits[task.split].twin, {**task.arguments, "users": OTHERS}
        part = next(iter(task.card.profiles.values()))
        seeds = islice(other_seeds(task.seed), WORLDS)
        others = fit([user for seed in seeds for user in twin_users(task.card, part, (split, seed), sizes)])
    else:
        others = [*reads[1:], *reads[:1]]  # in a circle, each begins at the one behind it
    if len(others) < 1 or (others[0] is reads[0]):
        fault = f"{task.source} has no other user here: there is no other context."
        raise UserError(fault, "Ask more users (a larger --limit, or none), or give a file with more.")
    marked = [_told(read, mini=task.mini) for read in others]
    next_of = []
    for place, read in enumerate(reads):
        own, circle = _told(read, mini=task.mini), [(place + i) % len(others) for i in range(len(others))]
        apart = next((number for number in circle if not own & marked[number]), None)
        next_of.append((others[circle[0] if apart is None else apart], apart is not None))
    return next_of


def _told(read: Read, *, mini: bool) -> set[str]:
    """Items that two users must not share: topics of a twin, entries of files."""
    texts = {entry.text for entry in read.shown}
    return categories_in([read.user.input, *texts]) if mini else texts
