"""Charts of how questions look at the piece of context that holds their answer, of methods whose samples tell it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import fmean
from typing import Any

import altair as alt

from ttabench.core.printable import printable
from ttabench.records.sample_files import has_samples, read_samples
from ttabench.records.samples import Looked
from ttabench.report.compare import Block
from ttabench.report.curves import numbered
from ttabench.report.entries import Entry
from ttabench.report.page.charts import Chart, base, finished, marks, told
from ttabench.report.page.charts import Look as Colours

COLUMNS = tuple(column.name for column in fields(Looked))
"""Of samples."""
MOST = 64
"""Up to which place pieces are counted as found."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """A line of a block, and its questions."""

    entry: Entry
    seen: tuple[Looked, ...]


def looks_of(block: Block) -> list[Look]:
    """The lines of a block whose samples tell it, under their own state."""
    looks = []
    for entry in block.entries:
        seen: list[Looked] = []
        for folder, record in entry.group.runs if entry.state_of == "own" and not entry.aside else ():
            columns = read_samples(folder, COLUMNS, record) if has_samples(folder) else {}
            if all(name in columns for name in COLUMNS):
                rows = zip(*(columns[name] for name in COLUMNS), strict=True)
                looked = (Looked(**dict(zip(COLUMNS, row, strict=True))) for row in rows)
                seen += [query for query in looked if query.kept_pieces > 0]
        if seen:
            looks.append(Look(entry=entry, seen=tuple(seen)))
    return looks


def found_within(look: Look, first: int) -> float:
    """Share of questions whose piece is among the first so many."""
    return fmean(0 < seen.gold_rank <= first for seen in look.seen)


def share_by_age(look: Look) -> dict[int, tuple[float, int]]:
    """(mean share on the piece, n) by how many were read after it, from 2 on put together up to the next power of two;
    nothing where shares are 0 and one other: retrieval looks alike at all that it reads."""
    if len({round(seen.gold_share, 6) for seen in look.seen} - {0.0}) < 2:
        return {}
    by_age: dict[int, list[float]] = {}
    for seen in (seen for seen in look.seen if seen.gold_rank):
        least = 1 << (seen.gold_age.bit_length() - 1) if seen.gold_age else 0
        by_age.setdefault(least, []).append(seen.gold_share)
    return {age: (fmean(shares), len(shares)) for age, shares in sorted(by_age.items())}


def found_and_attended(block: Block, colours: Colours) -> list[Chart]:
    """Both charts; none of runs that do not tell which pieces their questions look at, or kept one piece."""
    looks = looks_of(block)
    most = max((seen.kept_pieces for look in looks for seen in look.seen), default=0)
    if most < 2:
        return []
    firsts = [2**power for power in range(MOST.bit_length()) if 2**power <= min(MOST, most)]
    rows = [_row(look, first, found_within(look, first), len(look.seen)) for look in looks for first in firsts]
    caption = (
        "Higher is better: how often the piece of context that holds the answer is among the k pieces that match the "
        "question best (of mac: that it attends to most)."
    )
    axes = ("k", "per cent of questions")
    charts = [_chart(block, looks, rows, colours, axes, "how often the right piece is found", caption)]
    graded = [look for look in looks if share_by_age(look)]
    rows = [_row(look, age, *share) for look in graded for age, share in share_by_age(look).items()]
    if len({row["at"] for row in rows}) > 1:
        caption = (
            "The mean share of attention that a question gives to the piece that holds its answer, by how many pieces "
            "were read after it (2 stands for 2 and 3, 4 for 4 to 7, and so on). Equal attention to all would be one "
            "share in as many as are kept."
        )
        axes = ("pieces read after it", "share of attention, per cent")
        charts.append(_chart(block, graded, rows, colours, axes, "attention on the right piece", caption))
    return charts


def _row(look: Look, at: int, share: float, n: int) -> dict[str, Any]:
    names = {"label": printable(look.entry.marked), "method": printable(look.entry.method)}
    return {**names, "at": at, "value": 100 * share, "n": f"{n:,}"}


def _chart(
    block: Block, looks: Sequence[Look], rows: Sequence[Mapping[str, Any]], colours: Colours, axes: tuple[str, str],
    title: str, caption: str,
) -> Chart:  # fmt: skip
    across, up = axes
    methods, at = list(dict.fromkeys(row["method"] for row in rows)), sorted({row["at"] for row in rows})
    names = json.dumps({str(place): f"{place:,}" for place in at})
    wide = alt.Scale(type="symlog", constant=1, nice=False) if at[0] == 0 else alt.Scale(type="log", base=2, nice=False)
    axis = alt.Axis(values=at, labelExpr=f"{names}[datum.value]", labelOverlap=True)
    drawn = base(rows, methods, colours).encode(
        x=alt.X("at:Q", title=across, scale=wide, axis=axis), detail="label:N",
        y=alt.Y("value:Q", title=up, scale=alt.Scale(domain=[0, 100])),
    )  # fmt: skip
    tooltip = [*told(label="", at=across), alt.Tooltip("value:Q", title=up, format=".1f"), *told(n="")]
    points = drawn.mark_point(filled=True, size=60, opacity=1).encode(shape=marks(methods, colours), tooltip=tooltip)
    counts = numbered(sorted({len(look.seen) for look in looks}))
    caption = f"{caption} Base {block.place.model}, n = {counts} questions, all draws together; no bars."
    return finished([drawn.mark_line(strokeWidth=1.5), points], methods, block.place.name, title, caption)
