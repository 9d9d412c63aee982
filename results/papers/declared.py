"""What is declared of a paper's tables: which runs stand for its lines, at which places, what each table claims, and
what the paper reports (reported.csv).

    paper("mac").tables["table1"].claims[0]      Claim(left="mac", right="camels")
    suites("mac", "table1")                      {"nano": Path(".../mac/table1.nano.yaml"), ...}

Lines and places are patterns of runs, in the words of a suite's `exclude`; a claim is tested at every place where both
of its lines were run.
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
from ttabench.terminal.table import Cell
from ttabench.terminal.table import Table as Printed

HERE = Path(__file__).parent
PAPERS = ("streamadapter", "generative_adapter", "ccm", "mac")
FILE = "paper.yaml"
Scale: TypeAlias = Literal["nano", "smollm2-135m", "full"]
SCALES: tuple[Scale, ...] = ("nano", "smollm2-135m", "full")
"""The miniature world; real English data under SmolLM2-135M; the base models of the papers."""
Cost: TypeAlias = Literal["", "state_bytes", "adapt_seconds"]
"""What a claim about a cost is about."""
LESS: dict[Cost, str] = {"state_bytes": "keeps less", "adapt_seconds": "reads in less time"}
"""A claim that the line on the left costs less."""
COUNTED: tuple[Cost, ...] = ("state_bytes",)
Line: type[BaseModel] = create_model(
    "Line",
    __base__=RunPattern,
    __doc__="Runs that stand for a line of a table.",
    trained_on=(str | None, Field(default=None)),
)
"""`trained_on` is the task of the checkpoint: "own", or its name; of several "superglue+metaicl"."""


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Place(_Part):
    """Where the lines of a table stand beside each other: a task and what was read of it."""

    name: str
    task: str = ""
    """As the paper's figures have it; empty where it reports none."""
    setting: str = ""
    """As the paper's figures have it; empty for any."""
    runs: Line  # type: ignore[valid-type]
    step: int | None = None
    """Only what was asked after so many pieces, or up to that length; None for all."""
    mean: bool = False
    """The mean over the tasks of `runs`, and not each by itself."""
    scales: list[Scale] = list(SCALES)

    @property
    def pattern(self) -> dict[str, Json]:
        """Pattern of its runs; of a state that was read before only where it says so."""
        return {"ask_only": False, **pattern(self.runs)}


class Claim(_Part):
    """That the line `left` is better than `right`."""

    left: str
    right: str
    cost: Cost = ""
    """A cost, of which less is better, in place of the metric."""
    share: Annotated[float, Field(gt=0)] = 1.0
    """Of a mean: left is at least this share of right."""
    places: list[str] = []
    says: str = ""
    """Words of the paper, where its figures alone do not suffice."""
    miniature: str = ""
    """Why runs in the miniature world would say nothing of it but of that world."""

    @property
    def text(self) -> str:
        """The claim in words."""
        if self.share != 1:
            return f"{self.left} at least {100 * self.share:g} % of {self.right}"
        return f"{self.left} {LESS[self.cost] if self.cost else 'better'} than {self.right}"


class Table(_Part):
    """A table or figure of a paper."""

    about: str
    metric: str = ""
    note: str = ""
    """Why it has no runs here, or how they are made where no suite makes them."""
    lines: dict[str, Line] = {}  # type: ignore[valid-type]
    reported: dict[str, dict[str, str]] = {}
    """Name of a line in the paper's figures, where that is no method of its name."""
    places: list[Place] = []
    claims: list[Claim] = []

    def placed(self, claim: Claim) -> list[Place]:
        """Where a claim is tested."""
        return [place for place in self.places if not claim.places or place.name in claim.places]

    @property
    def named(self) -> list[str]:
        """The lines that its claims name, each once."""
        return list(
            dict.fromkeys(line for claim in self.claims for line in (claim.left, claim.right))
        )


class Paper(_Part):
    """A paper, with the lines that several of its tables share."""

    title: str
    arxiv: str
    lines: dict[str, Line]  # type: ignore[valid-type]
    tables: dict[str, Table]

    def lines_of(self, table: Table) -> dict[str, dict[str, Json]]:
        """The pattern of every line that a table may name."""
        return {name: pattern(line) for name, line in {**self.lines, **table.lines}.items()}


def pattern(model: BaseModel) -> dict[str, Json]:
    """Fields that a line or place sets, without defaults."""
    typed: dict[str, Any] = model.model_dump(mode="json", exclude_unset=True)
    return typed


@cache
def paper(name: str) -> Paper:
    """The declaration of a paper; another name is refused."""
    if name not in PAPERS:
        raise UnknownName("paper", name, [*PAPERS, "list", "claims"])
    return Paper.model_validate(read_suite(HERE / name / FILE))


def table(name: str) -> tuple[str, str, Table]:
    """(paper, table, what is declared of it) of PAPER/TABLE; another name is refused."""
    of, slash, which = name.partition("/")
    tables = paper(of).tables
    if not slash:
        raise UserError(
            f"Which table of {name}?",
            f"Name one: {', '.join(f'{name}/{each}' for each in tables)}.",
        )
    if which not in tables:
        raise UnknownName(f"table of {of}", which, list(tables))
    return of, which, tables[which]


def names() -> list[str]:
    """PAPER/TABLE of every table."""
    return [f"{name}/{which}" for name in PAPERS for which in paper(name).tables]


def scale_of_model(model: str) -> Scale:
    """At which scale a base model is."""
    return "nano" if model == NANO else "smollm2-135m" if model == "smollm2-135m" else "full"


def suites(name: str, which: str) -> Mapping[Scale, Path]:
    """The files that name the runs of a table, by scale."""
    files = {scale: HERE / name / f"{which}.{scale}.yaml" for scale in SCALES}
    return {scale: file for scale, file in files.items() if file.is_file()}


@cache
def figures() -> list[dict[str, Any]]:
    """All figures as printed, in the order of the papers: paper, table, model, method, task, setting, metric, value."""
    rows = csv.DictReader(read_text(HERE / "reported.csv").splitlines())
    return [{**row, "value": float(row["value"])} for row in rows]


def reported(paper: str, table: str) -> list[dict[str, Any]]:
    """Those of one table."""
    return [row for row in figures() if (row["paper"], row["table"]) == (paper, table)]


def reported_at(name: str, which: str, place: Place, line: str) -> list[dict[str, Any]]:
    """Those of a line at a place, in the metric of its table: one a base model, where they name it at all."""
    table = paper(name).tables[which]
    own = {"task": place.task, "metric": table.metric, **table.reported.get(line, {"method": line})}
    if place.setting:
        own = {"setting": place.setting, **own}
    return [row for row in reported(name, which) if own.items() <= row.items()]


def list_table() -> Printed:
    """`paper.py list`: every table, how many figures it has, and where its runs can be made."""
    data = list[dict[str, Cell]]()
    for name in names():
        of, which, own = table(name)
        runs = ", ".join(
            "full (with a GPU)" if scale == "full" else scale for scale in suites(of, which)
        )
        data.append(
            {
                "table": name,
                "about": own.about,
                "figures": len(reported(of, which)),
                "claims": len(own.claims),
                "runs": own.note or runs,
            }
        )
    return Printed(
        title="tables of the papers",
        columns=("table", "what it shows", "#figures", "#claims", "to be run"),
        rows=tuple(tuple(map(str, row.values())) for row in data),
        names=("table",),
        spare=("#figures", "#claims"),
        data=tuple(data),
        caption="One of them: paper.py PAPER/TABLE. Every claim: paper.py claims.",
    )
