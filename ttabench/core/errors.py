"""Errors a user can mend. Each is one line: what, where, how to mend it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

CUTOFF, SHORTEST = 0.65, 3
"""Of difflib's likeness, and letters of the beginning of a name, from which on it is suggested."""

LONGEST_NAME = 100
"""Letters that are compared."""

FAMILY = ":..."
"""Ends a name that stands for all that begin so, as `kvpress:...`."""

MOST_NAMED = 40
"""Of what there is, in one message."""


class UserError(Exception):
    """Bad input: what is wrong, with the value and where it came from, and how to mend it, ideally by a command.

    The command line prints it as one line and leaves with exit code 2, without a traceback.
    """

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(f"{what} {hint}".strip())
        self.what = what
        self.hint = hint


class UnknownName(UserError):
    """A name that is in no registry; names the closest one that is, or all, or a hint, where none is close."""

    def __init__(self, kind: str, name: str, known: list[str], *, fault: str = "", hint: str = "") -> None:
        close = closest(name, known)
        if close:
            hint = f"Did you mean {close!r}?"
        more = f" and {len(known) - MOST_NAMED} more" if len(known) > MOST_NAMED else ""
        super().__init__(
            fault or f"Unknown {kind} {name!r}.", hint or f"Known: {', '.join(sorted(known)[:MOST_NAMED])}{more}."
        )


def closest(name: str, known: Iterable[str]) -> str | None:
    """The name that was meant: one that looks like what was typed, or that begins with it; None where no name does.

    Case and the difference of `-` and `_` do not count.
    """
    names = {_plain(other.removesuffix(FAMILY)): other for other in known}
    typed = _plain(name)
    families = [plain for plain, other in names.items() if other.endswith(FAMILY)]
    head = typed.partition(":")[0]  # what stands behind the colon of a family is its own
    if near := get_close_matches(typed, names, 1, CUTOFF) or get_close_matches(head, families, 1, CUTOFF):
        return names[near[0]]
    longer = [plain for plain in names if len(typed) >= SHORTEST and plain.startswith(typed)]
    return names[min(longer, key=len)] if longer else None


def _plain(name: str) -> str:
    return name[:LONGEST_NAME].lower().replace("-", "_")


_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""C0 without tab and line feed, DEL, C1, what turns the direction of writing around, and bytes that were no text."""


def printable(text: str) -> str:
    """A text of others (file names, records, data) for a terminal: every control character, tab and line feed aside,
    written as an escape."""
    return _CONTROL.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
