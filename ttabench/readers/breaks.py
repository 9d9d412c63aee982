"""Blanks at the end of a piece go to the front of what follows it, as breaks do: the text of a stream stays the same.

    Observe("Answer: yes "), Ask("Question: ...")   ->   Observe("Answer: yes"), Ask(joiner=" \\n\\n", ...)

Byte-level tokenizers join a blank with what stands behind it, so pieces are cut in front of blanks (see `stream`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from ttabench.core.types import Observe, Step


def blanks_in_front(steps: Iterable[Step]) -> Iterator[Step]:
    """The same text, no piece of which ends in blanks; pieces that bring their ids, and pieces of blanks, stay."""
    blanks = ""
    for step in steps:
        moved = replace(step, joiner=blanks + step.joiner) if blanks else step
        if isinstance(moved, Observe):
            body = moved.text if moved.ids or not moved.text.strip() else moved.text.rstrip()
            blanks = moved.text[len(body) :]
            moved = replace(moved, text=body) if blanks else moved
        yield moved
