"""Tables of suites `nine` and `held-out`: every method on every task family, of scores and of costs.

A tick marks memory of the context: the own state is significantly better than the swapped and the
empty state (p below 5 %, Holm over all cells). The memory share follows it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from grids import adapters, crossed, markdown, memory_share, oriented, runs_of, table, ttabench
from pandas import DataFrame

from ttabench.core.amounts import format_bytes
from ttabench.report.groups import STATE_SUFFIXES
from ttabench.report.method_rows import format_value
from ttabench.stats.estimate import SIGNIFICANCE_LEVEL, holm

HERE = Path(__file__).resolve().parent
HAS_MEMORY = "✓"
HELD_OUT_WORDS = " held_out"
"""Mark of a task with held-out words and questions."""
REMARKS = {
    "-labels-diet": " (gold documents)",
    "_merge-diet": " (merged)",
    "-diet": "",
    "": " (fewer families)",
}
"""Remark on adapters by the end of their name. Those trained on all families end in -diet."""
SUMMARY_METHODS = (
    *("none", "icl", "kvzip", "compressive", "still", "ccm", "generative_adapter", "mac"),
    *("streamadapter", "lora"),
)
SUMMARY_TASKS = {
    "streamingqa": "facts, F1 (%)",
    "metaicl": "demonstrations, accuracy (%)",
    "msc": "sessions, F1 (%)",
    "pg19": "books, perplexity",
}
"""Task families of docs/results.md, and their column headers."""
Row: TypeAlias = Mapping[str, Any]


class Cell(NamedTuple):
    """A method on a task: its row under the own and a swapped state, and memory of the context."""

    own: Row
    swapped: Row | None
    has_memory: bool
    memory_share: float | None
    """Own minus swapped state, as a share of `icl` minus `none`. Perplexities use logarithms."""

    def figure(self, *, swapped: bool = False) -> str:
        """Format the score, with the score under a swapped state in brackets."""
        text = format_value(self.own["metric"], self.own["value"], self.own["stderr"])
        if swapped and self.swapped is not None:
            text += f" ({format_value(self.swapped['metric'], self.swapped['value'], None)})"
        share = "" if self.memory_share is None else f" {100 * self.memory_share:.0f} %"
        return f"{text} {HAS_MEMORY}{share}" if self.has_memory else text


@cache
def read(suite: str = "nine") -> dict[tuple[str, str], Cell]:
    """Load the comparison of a suite by `ttabench compare`: a cell per method and task."""
    found = json.loads(ttabench("compare", "--out", HERE / suite, "--json"))
    p_values = {
        (pair["block"], pair["left"], pair["right"]): 1.0 if pair["p"] is None else pair["p"]
        for pair in found["differences"]
        if pair["value"] * (-1 if pair["metric"] == "ppl" else 1) > 0
    }
    checkpoints = {run.id: str(run.config["checkpoint"]) for _, run in runs_of(HERE / suite)}
    rows: dict[str, dict[tuple[str, str], Row]] = {state: {} for state in STATE_SUFFIXES}
    for row in found["runs"]:
        name = checkpoints[row["runs"].split()[0]]
        remark = next(words for end, words in REMARKS.items() if name.endswith(end))
        line = row["method"] + (remark if name else "")
        words = HELD_OUT_WORDS if "wording=held_out" in row["block"].split(", ") else ""
        rows[row["state_of"]][line, row["task"] + words] = row
    suffixes = [suffix for suffix in STATE_SUFFIXES.values() if suffix]
    larger_p = {
        key: max(
            p_values.get((own["block"], own["label"], own["label"] + suffix), 1.0)
            for suffix in suffixes
        )
        for key, own in rows["own"].items()
        if key in rows["other"]
    }
    adjusted = dict(zip(larger_p, holm([*larger_p.values()]), strict=True))
    cells = {}
    for key, own in rows["own"].items():
        swapped = rows["other"].get(key)
        ends = (rows["own"][end, key[1]] for end in ("none", "icl"))
        values = (oriented(own["metric"], one["value"]) for one in (own, swapped or own, *ends))
        p = adjusted.get(key)
        has_memory = p is not None and p < SIGNIFICANCE_LEVEL
        cells[key] = Cell(own, swapped, has_memory, memory_share(*values))
    return cells


def grid(cell: Callable[[Cell], str], suite: str = "nine") -> DataFrame:
    """Format every cell: one row per method, one column per task."""
    cells = read(suite)
    shown = crossed(((*key, each) for key, each in cells.items()), lambda own: cell(*own))
    names = {task: f"{task} ({each.own['metric']})" for (_, task), each in cells.items()}
    return shown[list(names)].rename(columns=names)


def scores(suite: str = "nine") -> str:
    """Return the table of scores."""
    head = (
        "main metric ± standard error over queries and draws (with a swapped state); "
        f"{HAS_MEMORY}: memory of the context, with its share of the improvement of icl over none"
    )
    return f"**{head}**\n\n{markdown(grid(lambda cell: cell.figure(swapped=True), suite))}\n"


def held_out() -> str:
    """Return the table of scores of suite `held-out` on held-out sentences."""
    shown = grid(lambda cell: cell.figure(swapped=True), "held-out")
    return f"{markdown(shown[[name for name in shown if HELD_OUT_WORDS not in str(name)]])}\n"


def costs() -> str:
    """Return the table of the state's size, of times and of trained weights."""

    def cell(each: Cell) -> str:
        own = each.own
        size = format_bytes(own["state_bytes"])
        return f"{size}, {own['adapt_seconds']:.2g} s, {own['ask_ms']:.3g} ms"

    weights: dict[str, int] = {}
    for (line, _), each in read().items():
        weights[line] = max(weights.get(line, 0), int(each.own["trained_parameters"] or 0))
    shown = grid(cell).assign(**{"trained weights": [f"{count:,}" for count in weights.values()]})
    return f"**state size, time to read a context, time per query**\n\n{markdown(shown)}\n"


def trainings() -> str:
    """Return the table of the training of the adapters."""
    return f"{adapters(runs_of(HERE / 'nine'))}\n"


def summary() -> str:
    """Return the table of docs/results.md: some methods on some families."""
    cells = read()
    rows: Sequence[tuple[str, ...]] = [
        (f"`{line}`", *(cells[line, task].figure() for task in SUMMARY_TASKS))
        for line in SUMMARY_METHODS
    ]
    return table(("method", *SUMMARY_TASKS.values()), rows, 1)
