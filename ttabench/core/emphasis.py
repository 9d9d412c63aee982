"""Cells of a table that stand out: bold on a screen and in Markdown, plain elsewhere.

Bold("95.8")      **95.8** in Markdown
"""

from __future__ import annotations


class Bold(str):
    """A text that stands out in its table."""

    __slots__ = ()
