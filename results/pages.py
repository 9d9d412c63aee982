"""Writer of the generated tables of README and documentation, from the stored runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import english_keep
import english_tables
import families
import findings
import grids
import override
from suites import LENGTHS, TRANSFER

HERE = Path(__file__).resolve().parent
README, FINDINGS, APPENDIX = (
    HERE.parent / "README.md",
    HERE.parent / "docs/results.md",
    HERE.parent / "docs/results",
)
READING, READING_ENGLISH = HERE / "reading.md", HERE / "english" / "reading.md"


def write(folders: Sequence[Path]) -> None:
    """Write the tables of synthetic tasks into the documentation.

    Args:
        folders: all committed runs.
    """
    figures, _, trainings = families.tables(HERE)
    put(FINDINGS, "synthetic", families.summary(HERE))
    put(APPENDIX / "synthetic.md", "results", figures)
    put(APPENDIX / "synthetic.md", "sessions", findings.sessions())
    put(APPENDIX / "training.md", "trainings", trainings)
    put(APPENDIX / "real-text.md", "override", override.summary(HERE / "override"))
    put(APPENDIX / "reproduce.md", "trees", f"{trees(folders)}\n")
    put(READING, "tables", f"{streams()}\n{demonstrated()}")


def write_english() -> None:
    """Write the tables of real text into the documentation."""
    put(README, "english", english_keep.shown_in_readme())
    for marker, table in findings.tables().items():
        put(FINDINGS, marker, table)
    put(APPENDIX / "real-text.md", "english", english_keep.shown_in_results())
    put(
        READING_ENGLISH,
        "tables",
        f"{english_keep.shown_in_reading()}\n{english_tables.shown_in_reading()}",
    )


def trees(folders: Sequence[Path]) -> str:
    """Count the committed runs that were made from uncommitted code."""
    runs = {folder.relative_to(HERE).as_posix(): grids.records(folder) for folder in folders}
    changed = {
        suite: sum(bool(run.code.get("changed")) for run in found) for suite, found in runs.items()
    }
    unknown = sum(not run.code for found in runs.values() for run in found)
    named = ", ".join(f"`{suite}` {count}" for suite, count in changed.items() if count)
    total = sum(map(len, runs.values()))
    return f"""The repository stores {total:,} runs. {sum(changed.values()):,} of them were made from uncommitted code
({named}). {unknown:,} runs of real text are older than the record of their commit."""


def put(page: Path, marker: str, text: str) -> None:
    """Replace the text between the markers of that name."""
    before, rest = page.read_text(encoding="utf-8").split(f"<!-- {marker} -->\n")
    _, after = rest.split(f"<!-- /{marker} -->")
    page.write_text(f"{before}<!-- {marker} -->\n{text}<!-- /{marker} -->{after}", encoding="utf-8")


def streams() -> str:
    """Return the tables of question streams by number of documents, one per task."""
    parts = []
    for task, lengths in LENGTHS.items():
        suites = {
            count: runs for count in lengths if (runs := grids.runs_of(HERE / f"{task}-{count}"))
        }
        parts.append(f"**{task}: F1 by number of documents**\n\n{grids.by_documents(suites)}")
    legend = """Per cent ± standard error, three draws. *Swapped state*: the same queries under the state of other
documents. *(last 70 %)*: the share of the stream that fits into the window."""
    return "\n".join([*parts, legend, ""])


def demonstrated() -> str:
    """Return the table of ten demonstrations: rules of the training, new rules, and unseen tasks."""
    runs_of_suites = {suite: runs for suite in TRANSFER if (runs := grids.records(HERE / suite))}
    trained_queries = {
        str(run.config["method"]): run.method["training"]["asks"]
        for runs in runs_of_suites.values()
        for run in runs
        if run.config["method"] in ("lora", "streamadapter")
    }
    legend = """Accuracy (%) after ten demonstrations: mean over sub-tasks and three draws ± standard error over draws.
*superglue-fixed*: the rule of each sub-task that `streamadapter` and `lora` were trained on. *superglue-fresh*: the
same sub-tasks under new rules. *unseen*: six other tasks. The state has all demonstrations; with `ratio=0` they are in
the prompt. `lora` was trained on {lora:,} answers, `streamadapter` on {streamadapter:,}."""
    return f"{grids.over_tasks(runs_of_suites)}\n{legend.format(**trained_queries)}\n"
