"""Quality by how much was read, a line a method and setting: within a block by step, and over blocks by an option.

by_step(block)          asked after 1, 2 and 4 documents, or up to so many tokens of a text
over_blocks(blocks)     blocks of 4, 16 and 64 documents, of 0, 5 and 10 shots
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from ttabench.core.sizes import short
from ttabench.report.blocks import short_source
from ttabench.report.blocks import told as typed
from ttabench.report.compare import Block
from ttabench.report.page.drawing import Chart, Look, base, better, finished, marks, quality, row, told
from ttabench.report.plots import curves


@dataclass(frozen=True, kw_only=True)
class Words:
    """What is said of a chart."""

    axis: str
    about: str
    """What its lines have in common."""
    title: str
    metric: str
    tokens: bool = False
    """Whether its steps are numbers of tokens."""


def by_step(block: Block, look: Look) -> Chart | None:
    """Quality by what had been read before the query; None where nothing was asked at two steps."""
    entries = [line.entry for line in curves(block.entries)]
    rows = [
        each for entry in entries for step, (value, stderr, _) in entry.steps.items()
        if (each := row(entry, value, stderr, step=step)) is not None
    ]  # fmt: skip
    if not rows:
        return None
    step = entries[0].step
    title = f"{block.place.metric} by what was read before the query"
    words = Words(axis=step.axis, about=block.place.name, title=title, metric=block.place.metric, tokens=step.tokens)
    return _drawn(rows, [entry.method for entry in entries], look, words)


def over_blocks(blocks: Sequence[Block], look: Look) -> list[Chart]:
    """A chart for every option by whose number alone two blocks or more differ, with a line in two of them."""
    families: dict[tuple[str, Words], list[tuple[float, Block]]] = {}
    for block in blocks:
        place = block.place
        for key, value in place.options.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                rest = "".join(f", {name}={typed(other)}" for name, other in place.options.items() if name != key)
                about = f"{place.task} ({short_source(place.source)}), base {place.model}{rest}"
                words = Words(axis=key, about=about, title=f"{about}: {place.metric} by {key}", metric=place.metric)
                families.setdefault((place.source, words), []).append((value, block))
    found = [_over(own, words, look) for (_, words), own in families.items()]
    return [chart for chart in found if chart is not None]


def _over(own: Sequence[tuple[float, Block]], words: Words, look: Look) -> Chart | None:
    entries = [(value, entry) for value, block in own for entry in block.entries]
    labels = [entry.label for _, entry in entries]
    kept = [(value, entry) for value, entry in entries if labels.count(entry.label) > 1]
    rows = [each for value, entry in kept if (each := row(entry, entry.value, entry.stderr, step=value)) is not None]
    if len({each["step"] for each in rows}) < 2:
        return None
    return _drawn(rows, [entry.method for _, entry in kept], look, words)


def _drawn(rows: Sequence[Mapping[str, Any]], methods: Sequence[str], look: Look, words: Words) -> Chart:
    """Lines through these rows, see `drawing.row`, each with its step; broken where the state is not the line's own."""
    steps = sorted({each["step"] for each in rows})
    wide = steps[0] > 0 and steps[-1] >= 8 * steps[0]
    names = json.dumps({_number(step): short(int(step)) if words.tokens else _number(step) for step in steps})
    x = alt.X("step:Q", title=words.axis,
              scale=alt.Scale(type="log", base=2, nice=False) if wide else alt.Scale(zero=False, nice=False),
              axis=alt.Axis(values=steps, labelExpr=f"{names}[datum.value]", labelOverlap=True))  # fmt: skip
    broken = alt.StrokeDash("own:N", scale=alt.Scale(domain=[True, False], range=[[1, 0], [4, 3]]), legend=None)
    drawn, y = base(rows, methods, look).encode(x=x, detail="label:N"), alt.Y("value:Q")
    tooltip = [told("label"), told("step", words.axis), told("told", words.metric)]
    layers = alt.layer(
        drawn.mark_rule().encode(y=quality(words.metric), y2="high:Q"),
        drawn.mark_line(strokeWidth=1.5).encode(y=y, strokeDash=broken),
        drawn.mark_point(filled=True, size=60, opacity=1).encode(
            y=y, shape=marks(methods, look), tooltip=tooltip
        ),
    )  # fmt: skip
    caption = f"{better(words.metric)} is better. A line a method and setting."
    if not all(each["own"] for each in rows):
        caption += " Broken: another text's state or none, or set aside."
    return finished(layers, words.about, words.title, caption)


def _number(step: float) -> str:
    """As a browser writes it."""
    return str(int(step)) if step == int(step) else str(step)
