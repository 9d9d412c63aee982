"""Draws docs/page.png, the picture of the README: two charts of the page of `ttabench report results/english`.

    python results/picture.py

XQuAD's paragraphs, four of them read, under smollm2-135m-qa: quality against the bytes kept, and against milliseconds
of a query.
"""

from __future__ import annotations

from pathlib import Path

import altair as alt
from grids import runs_of
from PIL import Image

from ttabench.report.charts import by_bytes, by_time
from ttabench.report.compare import compared
from ttabench.report.comparison_tables import title_of
from ttabench.report.pictures import styles

HERE = Path(__file__).resolve().parent
RUNS = HERE / "english" / "squad-qa"
PLACE = HERE.parent / "docs" / "page.png"
BLOCK = "documents=4"
"""How the name of the block ends."""
WIDTH, HEIGHT = 500, 280
"""Of a chart, in pixels."""
COLOURS = 256


def main() -> None:
    """Write the picture."""
    comparison = compared(runs_of(RUNS))
    (block,) = (one for one in comparison.blocks if one.place.name.endswith(BLOCK))
    look = styles(entry.method for entry in block.entries)
    charts = [chart for draw in (by_bytes, by_time) if (chart := draw(block, look))]
    sized = [chart.layers.properties(width=WIDTH, height=HEIGHT, title=chart.title) for chart in charts]
    alt.hconcat(*sized, title=title_of(block)).save(PLACE)
    with Image.open(PLACE) as picture:
        picture.quantize(COLOURS).save(PLACE, optimize=True)


if __name__ == "__main__":
    main()
