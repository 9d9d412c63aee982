"""What the README and the documentation show of the results: put between markers, from the records alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import english_keep
import english_tables
import grids
from suites import LENGTHS, TRANSFER

HERE = Path(__file__).resolve().parent
README, DOCS = HERE.parent / "README.md", HERE.parent / "docs" / "results.md"
READING, READING_ENGLISH = HERE / "reading.md", HERE / "english" / "reading.md"


def write(families: str, folders: Sequence[Path]) -> None:
    """What the documentation shows of the miniature world.

    Args:
        families: the grid of every method on every family.
        folders: all committed runs.
    """
    put(DOCS, "results", families)
    put(DOCS, "trees", f"{trees(folders)}\n")
    put(READING, "tables", f"{streams()}\n{demonstrated()}")


def write_english() -> None:
    """What is shown of real data."""
    put(README, "english", english_keep.shown_in_readme())
    put(DOCS, "english", english_keep.shown_in_results())
    put(
        READING_ENGLISH,
        "tables",
        f"{english_keep.shown_in_reading()}\n{english_tables.shown_in_reading()}",
    )


def trees(folders: Sequence[Path]) -> str:
    """From which states of the code the committed runs were made."""
    runs = {folder.relative_to(HERE).as_posix(): grids.records(folder) for folder in folders}
    changed = {
        suite: sum(bool(run.code.get("changed")) for run in found) for suite, found in runs.items()
    }
    unknown = sum(not run.code for found in runs.values() for run in found)
    named = ", ".join(f"`{suite}` {count}" for suite, count in changed.items() if count)
    total = sum(map(len, runs.values()))
    return f"""Of {total:,} stored runs {sum(changed.values()):,} were made from a tree with changes that were not
committed ({named}), and {unknown:,} of real text before records named their commit."""


def put(page: Path, marker: str, text: str) -> None:
    """Replace what stands between the markers of that name."""
    before, rest = page.read_text(encoding="utf-8").split(f"<!-- {marker} -->\n")
    _, after = rest.split(f"<!-- /{marker} -->")
    page.write_text(f"{before}<!-- {marker} -->\n{text}<!-- /{marker} -->{after}", encoding="utf-8")


def streams() -> str:
    """Question streams by their number of documents, a table a task."""
    parts = []
    for task, lengths in LENGTHS.items():
        suites = {
            count: runs for count in lengths if (runs := grids.runs_of(HERE / f"{task}-{count}"))
        }
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
