r"""Texts of others (file names, records, data) on a terminal: control characters are shown, not obeyed.

printable("a\x1b[2Jb")       ->  'a\\x1b[2Jb'
"""

from __future__ import annotations

import re

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""C0 without tab and line feed, DEL, C1, what turns the direction of writing around, and bytes that were no text."""


def printable(text: str) -> str:
    """The text with every control character, tab and line feed aside, written as an escape."""
    return _CONTROL.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
