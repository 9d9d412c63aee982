"""What the papers report: a figure a row, as printed (reported.csv).

reported("mac", "table1")[0].value                                      3.76
by_model("mac", "table1", {"method": "mac", "task": "streamingqa", "metric": "f1"})      {"distilgpt2": 10.18, ...}
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ttabench.core.checked_file import read_text

FILE = Path(__file__).parent / "reported.csv"


class Figure(NamedTuple):
    """A figure of a table."""

    paper: str
    table: str
    model: str
    method: str
    task: str
    setting: str
    metric: str
    value: float


@cache
def figures() -> tuple[Figure, ...]:
    """All of them, in the order of the papers."""
    _, *rows = csv.reader(read_text(FILE).splitlines())
    return tuple(Figure._make([*words, float(value)]) for *words, value in rows)


def reported(paper: str, table: str) -> list[Figure]:
    """Those of one table."""
    return [figure for figure in figures() if (figure.paper, figure.table) == (paper, table)]


def by_model(paper: str, table: str, named: Mapping[str, str]) -> dict[str, float]:
    """The figure of every base model that these words name; nothing where they name several of one model."""
    values_of_models: dict[str, list[float]] = {}
    for figure in reported(paper, table):
        if all(getattr(figure, name) == word for name, word in named.items()):
            values_of_models.setdefault(figure.model, []).append(figure.value)
    return {model: values[0] for model, values in values_of_models.items() if len(values) == 1}
