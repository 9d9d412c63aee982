"""Errors a user can mend. Each is one line: what, where, how to mend it."""

CLOSE = 0.5
"""Least share of letters that a name has in common with one that is suggested, in order (`difflib`)."""

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
    """

    def __init__(self, kind: str, name: str, known: list[str]) -> None:
        from difflib import get_close_matches

        close = get_close_matches(name, known, n=1, cutoff=CLOSE)
        hint = f"Did you mean {close[0]!r}?" if close else f"Known: {_listed(sorted(known))}."
        super().__init__(f"Unknown {kind} {name!r}.", hint)


def _listed(names: list[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
