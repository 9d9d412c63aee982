"""Errors that a user can fix, and checks that raise them. Each message is one line.

require_at_least(1, rank=0)      ValueError: rank must be at least 1, got 0
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

FAMILY_SUFFIX = ":..."
"""Suffix of a family name: `kvpress:...` matches every name that starts with `kvpress:`."""

MAX_COMPARED_CHARS = 100
"""Characters of a name that are compared."""

MAX_LISTED_NAMES = 40
"""Known names that one message lists."""


class UserError(Exception):
    """Invalid input: the fault with its value and source, and a hint how to fix it.

    The command line prints it as one line and exits with code 2, without a traceback.
    """

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(f"{what} {hint}".strip())
        self.what = what
        self.hint = hint


class UnknownName(UserError):
    """Unknown name. The message suggests the closest known name, or the hint, or lists all."""

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


def require_known(kind: str, name: str, known: Iterable[str]) -> None:
    """Raise `UnknownName` for a name that is not known."""
    names = list(known)
    if name not in names:
        raise UnknownName(kind, name, names)


def closest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that resembles the typed one or starts with it; None without a match.

    Case, `-` versus `_`, and the text after the colon of a family are ignored.
    """
    names = {other.removesuffix(FAMILY_SUFFIX).lower().replace("-", "_"): other for other in known}
    typed = name[:MAX_COMPARED_CHARS].lower().replace("-", "_").partition(":")[0]
    longer = [plain for plain in names if len(typed) > 2 and plain.startswith(typed)]
    close_names = [*get_close_matches(typed, names, 1, 0.65), *sorted(longer, key=len)]
    return names[close_names[0]] if close_names else None


_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""C0 except tab and line feed, DEL, C1, bidirectional overrides, and surrogates."""


def escape_control_characters(text: str) -> str:
    """Escape control characters of untrusted text for a terminal. Tab and line feed stay."""
    return _CONTROL.sub(lambda control: control[0].encode("unicode_escape").decode(), text)


MAX_THREADS = 1024
"""Upper bound of `--threads`; far beyond it, threads fail to start."""
MAX_TEXT_CHARS = 2**24
"""Largest length of one text in characters; a long book has 5 million."""


def refuse_unreadable_texts(texts: Sequence[str]) -> None:
    """Raise a UserError if a text is too long or contains half of a surrogate pair."""
    longest = max(map(len, texts), default=0)
    if longest > MAX_TEXT_CHARS:
        fault = f"A text has {longest:,} characters; the maximum is {MAX_TEXT_CHARS:,}."
        raise UserError(fault, "Split it into chunks (for a file: use --pieces paragraphs).")
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise UserError(
                f"The text {text!r:.60} contains half of a surrogate pair.", "Fix its encoding."
            ) from None


def require_at_most(maximum: float, **values: float) -> None:
    """Raise a ValueError that names the first value above the maximum."""
    for name, value in values.items():
        if value > maximum:
            raise ValueError(f"{name} must be at most {maximum:,}, got {value:.9g}")


def require_at_least(minimum: float, **values: float | None) -> None:
    """Raise a ValueError that names the first value below the minimum. None is skipped."""
    for name, value in values.items():
        if value is not None and not value >= minimum:
            raise ValueError(f"{name} must be at least {minimum}, got {value}")
