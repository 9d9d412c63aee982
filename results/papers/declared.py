"""Declarations of the papers' tables: runs of each row, places, claims, and reported figures
(reported.csv).

    paper("mac").tables["table1"].claims[0]      Claim(left="mac", right="camels")
    suites("mac", "table1")                      {"nano": Path(".../mac/table1.nano.yaml"), ...}

Rows and places are patterns that select runs, as in the `exclude` of a suite. A claim is tested at
every place where both of its rows were run.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, create_model

from ttabench.core.architectures import NANO
from ttabench.core.errors import UnknownName, UserError
from ttabench.core.files import read_text
from ttabench.core.types import Json
from ttabench.sweep.suite import RunPattern, read_suite
from ttabench.terminal.table import Cell, Table as Printed

HERE = Path(__file__).parent
PAPERS = ("streamadapter", "generative_adapter", "ccm", "mac")
FILE = "paper.yaml"
Scale: TypeAlias = Literal["nano", "smollm2-135m", "full"]
SCALES: tuple[Scale, ...] = ("nano", "smollm2-135m", "full")
"""Synthetic world; real English data under SmolLM2-135M; the base models of the papers."""
Cost: TypeAlias = Literal["", "state_bytes", "adapt_seconds"]
"""Cost that a claim is about."""
LESS: dict[Cost, str] = {"state_bytes": "keeps less", "adapt_seconds": "reads in less time"}
"""Wording of a claim that the left row costs less."""
COUNTED: tuple[Cost, ...] = ("state_bytes",)
Line: type[BaseModel] = create_model(
    "Line",
    __base__=RunPattern,
    __doc__="Pattern of the runs of a table row.",
    trained_on=(str | None, Field(default=None)),
)
"""`trained_on` is the task of the checkpoint: "own", or its name. Several tasks read
"superglue+metaicl".
"""


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Place(_Part):
    """A column of a table in which rows are compared: a task and how much was read of it."""

    name: str
    task: str = ""
    """Task in the paper's figures; empty if it reports none."""
    setting: str = ""
    """Setting in the paper's figures; empty for any."""
    runs: Line  # type: ignore[valid-type]
    step: int | None = None
    """Use only queries after this number of chunks, or up to this length. None uses all."""
    mean: bool = False
    """True to use the mean over the tasks of `runs` instead of each task."""
    scales: list[Scale] = list(SCALES)

    @property
    def pattern(self) -> dict[str, Json]:
        """Pattern of its runs. Runs on a stored state (`ask_only`) match only if the place says so."""
        return {"ask_only": False, **pattern(self.runs)}


class Claim(_Part):
    """Claim that the row `left` is better than the row `right`."""

    left: str
    right: str
    cost: Cost = ""
    """Cost to compare instead of the metric; less is better."""
    share: Annotated[float, Field(gt=0)] = 1.0
    """Left reaches at least this share of right. For means only."""
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
        return f"{self.left} {LESS[self.cost] if self.cost else 'better'} than {self.right}"


class Table(_Part):
    """A table or figure of a paper."""

    about: str
    metric: str = ""
    note: str = ""
    """Reason why it has no runs, or how to make them without a suite."""
    lines: dict[str, Line] = {}  # type: ignore[valid-type]
    reported: dict[str, dict[str, str]] = {}
    """Key of a row in the paper's figures, if it differs from the method name."""
    places: list[Place] = []
    claims: list[Claim] = []

    def placed(self, claim: Claim) -> list[Place]:
        """Return the places at which a claim is tested."""
        return [place for place in self.places if not claim.places or place.name in claim.places]

    @property
    def named(self) -> list[str]:
        """Names of the rows in its claims, without duplicates."""
        return list(
            dict.fromkeys(line for claim in self.claims for line in (claim.left, claim.right))
        )


class Paper(_Part):
    """A paper, with the rows that several of its tables share."""

    title: str
    arxiv: str
    lines: dict[str, Line]  # type: ignore[valid-type]
    tables: dict[str, Table]

    def lines_of(self, table: Table) -> dict[str, dict[str, Json]]:
        """Return the patterns of all rows of a table."""
        return {name: pattern(line) for name, line in {**self.lines, **table.lines}.items()}


def pattern(model: BaseModel) -> dict[str, Json]:
    """Return the fields that a row or place sets, without defaults."""
    typed: dict[str, Any] = model.model_dump(mode="json", exclude_unset=True)
    return typed


@cache
def paper(name: str) -> Paper:
    """Load the declaration of a paper. Raises `UnknownName` for another name."""
    if name not in PAPERS:
        raise UnknownName("paper", name, [*PAPERS, "list", "claims"])
    return Paper.model_validate(read_suite(HERE / name / FILE))


def table(name: str) -> tuple[str, str, Table]:
    """Return (paper, table, declaration) for PAPER/TABLE. Raises a `UserError` for another name."""
    of, slash, which = name.partition("/")
    tables = paper(of).tables
    if not slash:
        raise UserError(
            f"The table of {name} is missing.",
            f"Use one of: {', '.join(f'{name}/{each}' for each in tables)}.",
        )
    if which not in tables:
        raise UnknownName(f"table of {of}", which, list(tables))
    return of, which, tables[which]


def names() -> list[str]:
    """Return PAPER/TABLE of every table."""
    return [f"{name}/{which}" for name in PAPERS for which in paper(name).tables]


def scale_of_model(model: str) -> Scale:
    """Return the scale of a base model."""
    return "nano" if model == NANO else "smollm2-135m" if model == "smollm2-135m" else "full"


def suites(name: str, which: str) -> Mapping[Scale, Path]:
    """Return the suite files of a table by scale."""
    files = {scale: HERE / name / f"{which}.{scale}.yaml" for scale in SCALES}
    return {scale: file for scale, file in files.items() if file.is_file()}


@cache
def figures() -> list[dict[str, Any]]:
    """Load all figures as printed, in the order of the papers.

    Keys: paper, table, model, method, task, setting, metric, value.
    """
    rows = csv.DictReader(read_text(HERE / "reported.csv").splitlines())
    return [{**row, "value": float(row["value"])} for row in rows]


def reported(paper: str, table: str) -> list[dict[str, Any]]:
    """Return the figures of one table."""
    return [row for row in figures() if (row["paper"], row["table"]) == (paper, table)]


def reported_at(name: str, which: str, place: Place, line: str) -> list[dict[str, Any]]:
    """Return the figures of a row at a place, in the metric of its table: one per base model."""
    table = paper(name).tables[which]
    key = {"task": place.task, "metric": table.metric, **table.reported.get(line, {"method": line})}
    if place.setting:
        key = {"setting": place.setting, **key}
    return [row for row in reported(name, which) if key.items() <= row.items()]


def list_table() -> Printed:
    """Return the table of `paper.py list`: every table with its number of figures and its available
    suites.
    """
    data = list[dict[str, Cell]]()
    for name in names():
        of, which, declaration = table(name)
        runs = ", ".join(
            "full (with a GPU)" if scale == "full" else scale for scale in suites(of, which)
        )
        data.append(
            {
                "table": name,
                "about": declaration.about,
                "figures": len(reported(of, which)),
                "claims": len(declaration.claims),
                "runs": declaration.note or runs,
            }
        )
    return Printed(
        title="tables of the papers",
        columns=("table", "content", "#figures", "#claims", "suites"),
        rows=tuple(tuple(map(str, row.values())) for row in data),
        names=("table",),
        spare=("#figures", "#claims"),
        data=tuple(data),
        caption="One table: paper.py PAPER/TABLE. All claims: paper.py claims.",
    )
