"""Errors a user can mend. Each is one line: what, where, how to mend it."""

from __future__ import annotations

from collections.abc import Iterable

LETTERS_AN_EDIT = 3
"""A name is suggested for one that is an edit away from it for every so many letters of the longer of the two."""

FAMILY = ":..."
"""Ends a name that stands for all that begin so, as `kvpress:...`."""

LONGEST_NAME = 100
"""Letters that are compared."""

MOST_NAMED = 40
"""Of what there is, in one message."""


class UserError(Exception):
    """Bad input. The command line prints it as one line and leaves with exit code 2, without a traceback.

    Args:
        what: what is wrong, with the value received and the place it came from.
        hint: how to mend it, ideally a command or a list of valid values.
    """

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(f"{what} {hint}".strip())
        self.what = what
        self.hint = hint


class UnknownName(UserError):
    """A name that is in no registry; names the closest one that is, or all where none is close.

    Args:
        kind: what was looked for: "method", "task", "model", "setting" ...
        name: the name received.
        known: the names that exist.
        fault: the sentence that says what is wrong, in place of "Unknown KIND 'NAME'."
        hint: how to mend it where no name is close, in place of the list of those that exist.
    """

    def __init__(self, kind: str, name: str, known: list[str], *, fault: str = "", hint: str = "") -> None:
        close = closest(name, known)
        if close:
            hint = f"Did you mean {close!r}?"
        super().__init__(fault or f"Unknown {kind} {name!r}.", hint or f"Known: {_listed(sorted(known))}.")


def closest(name: str, known: Iterable[str]) -> str | None:
    """The name that was meant: one that looks like what was typed, or that begins with it; None where no name does.

    A letter that is missing, superfluous, another, or in its neighbour's place is an edit. Case and the difference of
    `-` and `_` do not count.

    Args:
        name: what was typed.
        known: the names that exist.
    """
    candidates = []
    for other in known:
        family = other.endswith(FAMILY)  # what stands behind the colon is its own
        typed = _plain(name.partition(":")[0] if family else name)
        there = _plain(other.removesuffix(FAMILY))
        far = _edits(typed, there)
        if far * LETTERS_AN_EDIT <= max(len(typed), len(there)):
            candidates.append((far, 0, other))
        elif len(typed) >= LETTERS_AN_EDIT and there.startswith(typed):
            candidates.append((len(there), 1, other))
    return min(candidates, default=(0, 0, None))[-1]


def _plain(name: str) -> str:
    return name[:LONGEST_NAME].lower().replace("-", "_")


def _edits(one: str, other: str) -> int:
    """Edits from one text to the other: letters put in, left out, replaced or exchanged with their neighbour."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        older, before, row = before, row, [i]
        for j, its in enumerate(other, 1):
            edits = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != its))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == its:
                edits = min(edits, older[j - 2] + 1)
            row.append(edits)
    return row[-1]


def _listed(names: list[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
