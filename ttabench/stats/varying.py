"""What varies from one reader to the next, and so what a figure's error is over: the `unit` of a task's card.

query       every query by itself
document    queries about one document resemble each other
draw        all queries of a sub-task are asked after the demonstrations of one draw; a run is one draw
book        strides of one text resemble each other
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

Varying: TypeAlias = Literal["query", "document", "draw", "book"]
OF_READERS: dict[str, Varying] = {
    "qa_stream": "document",
    "demonstrations": "draw",
    "metaicl": "draw",
    "book": "book",
}
"""By reader, of records that do not say it: those of earlier versions."""


def unit_of(task: dict[str, object]) -> Varying:
    """Of a task as records describe it."""
    told = task.get("unit") or OF_READERS.get(str(task.get("reader")), "query")
    assert told in get_args(Varying), told
    return told  # type: ignore[return-value]


def cluster(unit: Varying, seed: int | str, episode: str, key: str, source_key: str = "") -> str:
    """Which of them a query belongs to.

    Args:
        unit: what varies.
        seed: of the run; "" where the rows are the same under every seed, and only their order differs.
        episode: of the query.
        key: of the query.
        source_key: of the document that it is about, "" where that is not known.
    """
    if unit == "draw":
        return str(seed)
    inside = {"query": key, "document": source_key or key, "book": episode}[unit]
    return f"{seed} {episode} {inside}" if seed != "" else inside
