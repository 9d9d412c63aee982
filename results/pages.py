"""What the README and the documentation show of the results: put between markers, from the records alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import english_tables
import grids
from suites import BY_LENGTH, BY_TASK, LENGTHS, TRANSFER, TWO_CONTEXTS, UNDER_STATES

HERE = Path(__file__).resolve().parent
README, DOCS = HERE.parent / "README.md", HERE.parent / "docs" / "results.md"
IN_DOCS = ("streamingqa-16", "squad_seq-16")


def write(made: Mapping[str, str], parts: Mapping[str, str]) -> None:
    """What the documentation shows of the miniature world.

    Args:
        made: what `ttabench compare` says of each suite.
        parts: grids of suites, of every family and of books.
    """
    details = [f"### {suite}\n\n{made[suite]}" for suite in IN_DOCS if suite in made]
    families, books, unread = (
        [parts[suite] for suite in suites if suite in parts]
        for suites in (BY_TASK, BY_LENGTH, (*UNDER_STATES, TWO_CONTEXTS))
    )
    put(DOCS, "results", "\n".join([*families, streams(), demonstrated(), *books, *unread, *details]))


def write_english() -> None:
    """What both show of real data."""
    put(README, "english", english_tables.shown_in_readme())
    put(DOCS, "english", english_tables.shown_in_docs())


def put(page: Path, marker: str, text: str) -> None:
    """Replace what stands between the markers of that name."""
    before, rest = page.read_text(encoding="utf-8").split(f"<!-- {marker} -->\n")
    _, after = rest.split(f"<!-- /{marker} -->")
    page.write_text(f"{before}<!-- {marker} -->\n{text}<!-- /{marker} -->{after}", encoding="utf-8")


def streams() -> str:
    """Question streams by their number of documents, a table a task."""
    parts = []
    for task, lengths in LENGTHS.items():
        suites = {count: runs for count in lengths if (runs := grids.runs_of(HERE / f"{task}-{count}"))}
        parts.append(f"**{task}: F1 by number of documents**\n\n{grids.by_documents(suites)}")
    legend = """Per cent ± standard error, three draws; "another text's state": the same questions under the state of
other documents. (last 70 %): the share of the stream that stands in the window."""
    return "\n".join([*parts, legend, ""])


def demonstrated() -> str:
    """Ten demonstrations: the rules that training has seen, new rules, and tasks it has not seen."""
    runs_of_suites = {suite: runs for suite in TRANSFER if (runs := grids.records(HERE / suite))}
    asked = {
        str(run.config["method"]): run.method["training"]["asks"]
        for runs in runs_of_suites.values()
        for run in runs
        if run.config["method"] in ("lora", "streamadapter")
    }
    legend = """Per cent right, ten demonstrations: mean over sub-tasks and three draws ± standard error over draws.
superglue-fixed: the one rule of each sub-task that `streamadapter` and `lora` were trained on; superglue-fresh: the
same sub-tasks under new rules; unseen: six other tasks. All demonstrations are adapted to; with `ratio=0` they stand in
the window. `lora` learned from {lora:,} answers, `streamadapter` from {streamadapter:,}."""
    return f"{grids.over_tasks(runs_of_suites)}\n{legend.format(**asked)}\n"
