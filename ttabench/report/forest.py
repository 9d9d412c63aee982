"""Forest plot: the tested differences of a comparison with their intervals, one panel per group."""

from __future__ import annotations

from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

from ttabench.core.errors import UserError
from ttabench.report.compare import Comparison
from ttabench.report.groups import short_group_names
from ttabench.report.pictures import PALETTE, write
from ttabench.stats.metrics import metric_or_default

if TYPE_CHECKING:
    from ttabench.report.differences import Difference

MAX_PANELS = 12
"""Maximum number of comparison groups in one picture."""
ROW_INCHES, PANEL_INCHES, WIDTH_INCHES = 0.4, 0.9, 10.0
LABEL_CHARS = 70


def draw_differences(comparison: Comparison, path: Path) -> None:
    """Draw every tested difference that has an interval, and write the picture.

    Filled marks are significant after Holm's correction. Values are in the units of the table.

    Raises:
        UserError: no difference has an interval, or there are more than `MAX_PANELS` groups.
    """
    names = short_group_names([group.group_key for group in comparison.groups])
    panels = [
        (name, drawn)
        for name, group in zip(names, comparison.groups, strict=True)
        if (drawn := [one for one in group.differences if one.ci_low is not None])
    ]
    if not panels:
        raise UserError(
            "No tested difference has an interval, so the plot is empty.",
            "Compare two methods on several documents or seeds.",
        )
    if len(panels) > MAX_PANELS:
        raise UserError(
            f"{len(panels)} comparison groups do not fit one plot.",
            f"Select at most {MAX_PANELS} with --task and --model.",
        )
    from matplotlib.figure import Figure

    heights = [PANEL_INCHES + ROW_INCHES * len(drawn) for _, drawn in panels]
    picture = Figure(figsize=(WIDTH_INCHES, sum(heights)), layout="constrained")
    axes_by_panel = picture.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (name, drawn) in zip(axes_by_panel, panels, strict=True):
        metric = metric_or_default(drawn[0].metric)
        for place, one in enumerate(drawn):
            low, value, high = (metric.scale * bound for bound in _bounds(one))
            axes.errorbar(
                value,
                place,
                xerr=[[value - low], [high - value]],
                marker="o",
                capsize=2,
                color=PALETTE[0],
                markerfacecolor=PALETTE[0] if one.is_significant else "white",
            )
        axes.axvline(0, color="black", linewidth=0.8)
        labels = [
            "\n".join(wrap(f"{one.left} − {one.right}", LABEL_CHARS, max_lines=3)) for one in drawn
        ]
        # parse_math=False: a $ in a name is no formula
        axes.set_yticks(range(len(drawn)), labels, fontsize="small", parse_math=False)
        axes.set_ylim(len(drawn) - 0.5, -0.5)
        better = "higher" if metric.higher_is_better else "lower"
        axes.set_xlabel(f"difference in {metric.name}, 95 % interval ({better} is better)")
        axes.set_title(name, loc="left", fontsize="medium", parse_math=False)
    write(picture, path)


def _bounds(difference: Difference) -> tuple[float, float, float]:
    assert difference.ci_low is not None
    assert difference.ci_high is not None
    return difference.ci_low, difference.value, difference.ci_high
