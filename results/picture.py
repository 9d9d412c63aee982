"""Screenshot docs/page.png of the README: two charts of the page of `ttabench report
results/english`.

    python results/picture.py

XQuAD's paragraphs in sets of four, under smollm2-135m-qa: score against bytes kept, and against
milliseconds per query.
"""

from __future__ import annotations

from pathlib import Path

import altair as alt
from grids import runs_of
from PIL import Image

from ttabench.report.charts import by_bytes, by_time
from ttabench.report.compare import compare_runs
from ttabench.report.comparison_tables import group_title
from ttabench.report.pictures import styles

HERE = Path(__file__).resolve().parent
RUNS = HERE / "english" / "squad-qa"
PLACE = HERE.parent / "docs" / "page.png"
BLOCK = "documents=4"
"""Suffix of the comparison group's name."""
WIDTH, HEIGHT = 500, 280
"""Size of a chart in pixels."""
COLOURS = 256


def main() -> None:
    """Write the picture."""
    comparison = compare_runs(runs_of(RUNS))
    (group,) = (one for one in comparison.groups if one.group_key.name.endswith(BLOCK))
    look = styles(method_row.method for method_row in group.method_rows)
    charts = [chart for draw in (by_bytes, by_time) if (chart := draw(group, look))]
    sized = [
        chart.layers.properties(width=WIDTH, height=HEIGHT, title=chart.title) for chart in charts
    ]
    alt.hconcat(*sized, title=group_title(group)).save(PLACE)
    with Image.open(PLACE) as picture:
        picture.quantize(COLOURS).save(PLACE, optimize=True)


if __name__ == "__main__":
    main()
