"""Pictures of a comparison: the charts of the page, beside each other in one file.

    ttabench compare --plot quality.svg     a panel a block, with errors

First come curves over blocks that differ in a number alone, then of each block quality by bytes of state, and by step
where runs ask at several. One legend serves all panels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from ttabench.core.errors import UserError
from ttabench.report.blocks import short_source
from ttabench.report.compare import Block, Comparison
from ttabench.report.curves import by_step, over_blocks, units_of
from ttabench.report.phrases import enumerated
from ttabench.report.pictures import NEEDED, check_path, refuse_missing, styles, write_chart

if TYPE_CHECKING:
    from ttabench.report.charts import Chart

ACROSS = 3
"""Most panels beside each other."""
WIDE, HIGH = 400, 260
"""Of a panel."""
LETTERS = 60
"""Of a line of a panel's title."""


def plot(comparison: Comparison, path: Path) -> None:
    """Draw the comparison to a .png, .svg or .pdf."""
    check_path(path)
    refuse_missing("A picture", NEEDED)
    panels = panels_of(comparison)
    if not panels:
        raise UserError("There is nothing to plot: no two lines have steps or bytes of state.", "Name more runs.")
    write_chart(spec_of(panels, comparison), path)


def panels_of(comparison: Comparison) -> list[Chart]:
    """All panels of a comparison: curves over blocks, then those of each block."""
    from ttabench.report.charts import by_bytes, lines_of

    look = styles(entry.method for entry in comparison.entries)
    panels = [lines_of(curves, look) for curves in over_blocks(comparison.blocks)]
    for block in comparison.blocks:
        along = [lines_of(curves, look) for curves in by_step(block)]
        panels += [chart for chart in (by_bytes(block, look), *along) if chart is not None]
    return panels


def spec_of(panels: Sequence[Chart], comparison: Comparison) -> dict[str, Any]:
    """The panels with their titles, in one chart of Vega-Lite."""
    import altair as alt

    charts = [
        panel.layers.properties(width=WIDE, height=HIGH, title=wrap(f"{panel.about}: {panel.title}", LETTERS))
        for panel in panels
    ]
    across = min(ACROSS, math.ceil(math.sqrt(len(panels))))
    title = alt.TitleParams(heading(comparison.blocks), subtitle=wrap(explanation(comparison), LETTERS * across))
    picture = alt.concat(*charts, columns=across, title=title).configure_legend(orient="bottom", columns=3 * across)
    typed: dict[str, Any] = picture.to_dict(validate=False)
    return typed


def heading(blocks: Sequence[Block]) -> str:
    """Heading of all panels: the base, and the task where there is one."""
    bases = list(dict.fromkeys(block.place.model for block in blocks))
    tasks = list(dict.fromkeys(f"{block.place.task} ({short_source(block.place.source)})" for block in blocks))
    parts = [*(tasks if len(tasks) == 1 else []), *([f"base {bases[0]}"] if len(bases) == 1 else [])]
    return ", ".join(parts)


def explanation(comparison: Comparison) -> str:
    """Explanation of bars, lines and hollow marks."""
    sentences = [f"Bars: one standard error over {enumerated(units_of(comparison.blocks))}."]
    methods = [(entry.place.name, entry.method) for entry in comparison.entries]
    if len(set(methods)) < len(methods):
        sentences.append("Lines join settings of one method.")
    if any(entry.state_of != "own" or entry.aside for entry in comparison.entries):
        sentences.append("Hollow: another text's state or none, or set aside.")
    return " ".join(sentences)
