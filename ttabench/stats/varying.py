"""What varies from one reader to the next, and so what a figure's error is over: the `unit` of a task.

query         every query by itself
document      queries about one document resemble each other
group         documents that are read together, and the queries about them, which one state answers, resemble each other
draw          all queries of a sub-task are asked after the demonstrations of one draw; a run is one draw
book          strides of one text resemble each other
conversation  queries about one conversation, and its turns, resemble each other
dialogue      turns of one dialogue resemble each other
user          queries of one user resemble each other, those after more of a profile too
context       queries about one context resemble each other

Published questions and documents stand in several draws: then both vary (`crossing`). Groups of one draw share no
document, so their error is that of documents, too; another draw puts the same documents into other groups, and both
vary. Every seed of the miniature world is a world of its own, with other questions and documents.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias, get_args

Varying: TypeAlias = Literal[
    "query", "document", "group", "draw", "book", "conversation", "dialogue", "user", "context"
]
FRESH = ("mini", "generated")
"""Sources whose every seed has rows of its own."""
EPISODES: tuple[Varying, ...] = ("book", "conversation", "dialogue", "user", "context")
"""An episode is one of these."""
OF_READERS: dict[str, Varying] = {
    "qa_stream": "document",
    "demonstrations": "draw",
    "metaicl": "draw",
    "book": "book",
    "sessions": "conversation",
}
"""By reader, of records that do not say it: those of earlier versions."""


def unit_of(task: Mapping[str, object]) -> Varying:
    """Of a task as records describe it."""
    unit = task.get("unit") or OF_READERS.get(str(task.get("reader")), "query")
    assert unit in get_args(Varying), unit
    return unit  # type: ignore[return-value]


class Draw(NamedTuple):
    """A run as one of several that differ in their seed."""

    unit: Varying
    seed: int
    fresh: bool
    """Whether every seed has rows of its own; published rows are the same, and their order or demonstrations differ."""


class Origin(NamedTuple):
    """Where a query stands among what varies, see `clusters.Observed`."""

    cluster: str
    across: str
    question: str


def origin(draw: Draw, episode: str, key: str, source_key: str = "", question: str = "") -> Origin:
    """Of a query of a run, by its episode, its key and that of the document it is about ("" where that is not known);
    `question` is what is the same wherever the same is asked, with the same right answers, by default the key."""
    seed, world = str(draw.seed), f"{draw.seed} {episode} " if draw.fresh else ""
    asked = world + (question or key)
    if draw.unit == "draw":
        return Origin(seed, asked, asked)
    if draw.unit == "group":
        return Origin(episode, world + (source_key or key), asked)
    inside = episode if draw.unit in EPISODES else (draw.unit == "document" and source_key) or key
    return Origin(world + inside, "" if draw.fresh else seed, asked)
