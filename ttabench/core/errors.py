"""Errors a user can mend, and bounds that are refused with one. Each is one line: what, where, how to mend it.

at_least(1, rank=0)      ValueError: rank must be at least 1, got 0
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

FAMILY_SUFFIX = ":..."
"""Ends a name that stands for all that begin so, as `kvpress:...`."""

MAX_COMPARED_CHARS = 100
"""Letters that are compared."""

MAX_LISTED_NAMES = 40
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

    def __init__(
        self, kind: str, name: str, known: list[str], *, fault: str = "", hint: str = ""
    ) -> None:
        close = closest_name(name, known)
        if close:
            hint = f"Did you mean {close!r}?"
        more = f" and {len(known) - MAX_LISTED_NAMES} more" if len(known) > MAX_LISTED_NAMES else ""
        super().__init__(
            fault or f"Unknown {kind} {name!r}.",
            hint or f"Known: {', '.join(sorted(known)[:MAX_LISTED_NAMES])}{more}.",
        )


def closest_name(name: str, known: Iterable[str]) -> str | None:
    """The name that was meant: one that looks like what was typed, or begins with it; None where no name does.

    Case and the difference of `-` and `_` do not count, nor what stands behind the colon of a family.
    """
    names = {other.removesuffix(FAMILY_SUFFIX).lower().replace("-", "_"): other for other in known}
    typed = name[:MAX_COMPARED_CHARS].lower().replace("-", "_").partition(":")[0]
    longer = [plain for plain in names if len(typed) > 2 and plain.startswith(typed)]
    close_names = [*get_close_matches(typed, names, 1, 0.65), *sorted(longer, key=len)]
    return names[close_names[0]] if close_names else None


_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""C0 without tab and line feed, DEL, C1, what turns the direction of writing around, and bytes that were no text."""


def escape_control_characters(text: str) -> str:
    """A text of others (file names, records, data) for a terminal: every control character, tab and line feed aside,
    written as an escape."""
    return _CONTROL.sub(lambda control: control[0].encode("unicode_escape").decode(), text)


MAX_THREADS = 1024
"""More than any machine has use for; far beyond, no thread can be started."""
MAX_TEXT_CHARS = 2**24
"""Characters of one text; a long book has 5 million."""


def refuse_unreadable_texts(texts: Sequence[str]) -> None:
    """See that texts can be tokenised."""
    longest = max(map(len, texts), default=0)
    if longest > MAX_TEXT_CHARS:
        fault = f"A text of {longest:,} characters is longer than the {MAX_TEXT_CHARS:,} that one may have."
        raise UserError(fault, "Cut it into pieces (of a file: --pieces paragraphs).")
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise UserError(
                f"The text {text!r:.60} holds half of a surrogate pair.", "Fix its encoding."
            ) from None


def require_at_most(maximum: float, **values: float) -> None:
    """Refuse values that are larger, with their names."""
    for name, value in values.items():
        if value > maximum:
            raise ValueError(f"{name} must be at most {maximum:,}, got {value:.9g}")


def require_at_least(minimum: float, **values: float | None) -> None:
    """Whether all of these are no smaller; None is no value."""
    for name, value in values.items():
        if value is not None and not value >= minimum:
            raise ValueError(f"{name} must be at least {minimum}, got {value}")
