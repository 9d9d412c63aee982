"""Charts of how questions look at the piece of context that holds their answer, see `report.gold_pieces`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from ttabench.core.printable import printable
from ttabench.report.compare import Block
from ttabench.report.curves import numbered
from ttabench.report.gold_pieces import Look, found_within, graded, looks_of, places, share_by_age
from ttabench.report.page.drawing import Chart, base, finished, marks, told
from ttabench.report.page.drawing import Look as Colours


def found_and_attended(block: Block, colours: Colours) -> list[Chart | None]:
    """How often the right piece is among the first k, and how much attention it has by age; none of runs that do not
    tell which pieces their questions look at, or kept one piece."""
    looks = looks_of(block)
    if not looks or max(seen.kept_pieces for look in looks for seen in look.seen) < 2:
        return []
    return [_found(block, looks, colours), _attended(block, looks, colours)]


def _found(block: Block, looks: Sequence[Look], colours: Colours) -> Chart:
    first = places(looks)
    rows = [
        {**_line(look), "at": at, "value": 100 * share, "n": f"{len(look.seen):,}"}
        for look in looks for at, share in zip(first, found_within(look, first), strict=True)
    ]  # fmt: skip
    caption = (
        "Higher is better: how often the piece of context that holds the answer is among the k pieces that match the "
        f"question best (of mac: that it attends to most). {_drawn_from(block, looks)}"
    )
    return _chart(
        block, rows, first, colours, "k", "per cent of questions", "how often the right piece is found", caption
    )


def _attended(block: Block, looks: Sequence[Look], colours: Colours) -> Chart | None:
    by_age = [(look, each) for look in looks if graded(look) for each in share_by_age(look)]
    rows = [{**_line(look), "at": each.age, "value": 100 * each.share, "n": f"{each.n:,}"} for look, each in by_age]
    ages = sorted({each.age for _, each in by_age})
    if len(ages) < 2:
        return None
    caption = (
        "The mean share of attention that a question gives to the piece that holds its answer, by how many pieces were "
        "read after it (2 stands for 2 and 3, 4 for 4 to 7, and so on). Equal attention to all would be one share "
        f"in as many as are kept. {_drawn_from(block, [look for look in looks if graded(look)])}"
    )
    title = "attention on the right piece"
    return _chart(block, rows, ages, colours, "pieces read after it", "share of attention, per cent", title, caption)


def _line(look: Look) -> dict[str, str]:
    return {"label": printable(look.entry.marked), "method": printable(look.entry.method)}


def _drawn_from(block: Block, looks: Sequence[Look]) -> str:
    counts = numbered(sorted({len(look.seen) for look in looks}))
    return f"Base {block.place.model}, n = {counts} questions, all draws together; no bars."


def _chart(
    block: Block, rows: Sequence[Mapping[str, Any]], at: Sequence[int], colours: Colours, across: str, up: str,
    title: str, caption: str,
) -> Chart:  # fmt: skip
    methods = list(dict.fromkeys(row["method"] for row in rows))
    names = json.dumps({str(place): f"{place:,}" for place in at})
    wide = alt.Scale(type="symlog", constant=1, nice=False) if at[0] == 0 else alt.Scale(type="log", base=2, nice=False)
    axis = alt.Axis(values=list(at), labelExpr=f"{names}[datum.value]", labelOverlap=True)
    drawn = base(rows, methods, colours).encode(
        x=alt.X("at:Q", title=across, scale=wide, axis=axis), detail="label:N",
        y=alt.Y("value:Q", title=up, scale=alt.Scale(domain=[0, 100])),
    )  # fmt: skip
    tooltip = [told("label"), told("at", across), alt.Tooltip("value:Q", title=up, format=".1f"), told("n")]
    points = drawn.mark_point(filled=True, size=60, opacity=1).encode(shape=marks(methods, colours), tooltip=tooltip)
    return finished(alt.layer(drawn.mark_line(strokeWidth=1.5), points), methods, block.place.name, title, caption)
