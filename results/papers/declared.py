"""Declarations of the papers' tables: runs of each row, places, claims, and reported figures
(reported.csv).

    paper("mac").tables["table1"].claims[0]      Claim(left="mac", right="camels")

Rows and places are patterns that select runs, as in the `exclude` of a suite. A pattern may have
`trained_on`, the task of the checkpoint: "own", its name, or several ("superglue+metaicl"). A claim
is tested at every place where both of its rows were run.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict

from ttabench.core.architectures import NANO
from ttabench.core.files import read_text
from ttabench.core.types import Json
from ttabench.sweep.suite import read_suite

HERE = Path(__file__).parent
PAPERS = ("streamadapter", "generative_adapter", "ccm", "mac")
Scale: TypeAlias = Literal["nano", "smollm2-135m", "full"]
SCALES: tuple[Scale, ...] = ("nano", "smollm2-135m", "full")
"""Synthetic world; real English data under SmolLM2-135M; the base models of the papers."""
Cost: TypeAlias = Literal["", "state_bytes", "adapt_seconds"]
"""Cost that a claim is about."""
LESS: dict[Cost, str] = {"state_bytes": "keeps less", "adapt_seconds": "reads in less time"}
"""Wording of a claim that the left row costs less."""
COUNTED: tuple[Cost, ...] = ("state_bytes",)
Pattern: TypeAlias = dict[str, Json]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Place(_Part):
    """A column of a table in which rows are compared: a task and how much was read of it."""

    name: str
    task: str = ""
    """Task in the paper's figures; empty if it reports none."""
    setting: str = ""
    """Setting in the paper's figures; empty for any."""
    runs: Pattern
    step: int | None = None
    """Use only queries after this number of chunks, or up to this length. None uses all."""
    mean: bool = False
    """True to use the mean over the tasks of `runs` instead of each task."""
    scales: list[Scale] = list(SCALES)

    @property
    def pattern(self) -> Pattern:
        """Pattern of its runs. Runs on a stored state (`ask_only`) match only if the place says so."""
        return {"ask_only": False, **self.runs}


class Claim(_Part):
    """Claim that the row `left` is better than the row `right`."""

    left: str
    right: str
    cost: Cost = ""
    """Cost to compare instead of the metric; less is better."""
    share: float = 1.0
    """Left reaches at least this share of right. For means only."""
    margin: float = 0.0
    """Left and right differ by less than this, in displayed units. 0: left is better."""
    places: list[str] = []
    says: str = ""
    """Quotation from the paper, where its figures do not suffice."""
    miniature: str = ""
    """Reason why runs in the synthetic world cannot test the claim."""

    @property
    def text(self) -> str:
        """Text of the claim."""
        if self.share != 1:
            return f"{self.left} at least {100 * self.share:g} % of {self.right}"
        if self.margin:
            return f"{self.left} within {self.margin:g} of {self.right}"
        return f"{self.left} {LESS[self.cost] if self.cost else 'better'} than {self.right}"


class Table(_Part):
    """A table or figure of a paper."""

    about: str
    metric: str = ""
    note: str = ""
    """Reason why it has no runs, or how to make them without a suite."""
    lines: dict[str, Pattern] = {}
    reported: dict[str, dict[str, str]] = {}
    """Key of a row in the paper's figures, if it differs from the method name."""
    places: list[Place] = []
    claims: list[Claim] = []


class Paper(_Part):
    """A paper, with the rows that several of its tables share."""

    title: str
    arxiv: str
    lines: dict[str, Pattern]
    tables: dict[str, Table]


@cache
def paper(name: str) -> Paper:
    """Load the declaration of a paper."""
    return Paper.model_validate(read_suite(HERE / name / "paper.yaml"))


def scale_of_model(model: str) -> Scale:
    """Return the scale of a base model."""
    return "nano" if model == NANO else "smollm2-135m" if model == "smollm2-135m" else "full"


@cache
def figures() -> list[dict[str, Any]]:
    """Load all figures as printed, in the order of the papers.

    Keys: paper, table, model, method, task, setting, metric, value.
    """
    rows = csv.DictReader(read_text(HERE / "reported.csv").splitlines())
    return [{**row, "value": float(row["value"])} for row in rows]


def reported_at(name: str, which: str, place: Place, line: str) -> Mapping[str, float]:
    """Return the figures of a row at a place by base model, in the metric of its table."""
    table = paper(name).tables[which]
    key = {"paper": name, "table": which, "task": place.task, "metric": table.metric}
    key |= {"setting": place.setting} if place.setting else {}
    key |= table.reported.get(line, {"method": line})
    return {row["model"]: row["value"] for row in figures() if key.items() <= row.items()}
