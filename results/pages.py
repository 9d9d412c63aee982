"""What the README and the documentation show of the results: put between markers, from the records alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import english_tables
import grids
from suites import BY_LENGTH, BY_TASK, LENGTHS, TOKENS, TRANSFER

from ttabench.report.compare import Entry, compare
from ttabench.report.finding import runs_in
from ttabench.report.frames import crossed
from ttabench.report.phrases import percent
from ttabench.report.shares import share

HERE = Path(__file__).resolve().parent
README, DOCS = HERE.parent / "README.md", HERE.parent / "docs" / "results.md"
IN_DOCS = ("streamingqa-16", "squad_seq-16")
METHODS = ("none", "icl", "mac", "mac hierarchy=16")


def write(made: Mapping[str, str], shown: Mapping[str, str]) -> None:
    """What the documentation shows of the miniature world.

    Args:
        made: what `ttabench compare` says of each suite.
        shown: grids of suites, of every family and of books.
    """
    details = [f"### {suite}\n\n{made[suite]}" for suite in IN_DOCS if suite in made]
    families, books = ([shown[suite] for suite in suites if suite in shown] for suites in (BY_TASK, BY_LENGTH))
    put(DOCS, "results", "\n".join([*families, overview(), demonstrated(), *books, *details]))


def write_english() -> None:
    """What both show of real data."""
    put(README, "english", english_tables.shown_in_readme())
    put(DOCS, "english", english_tables.shown_in_docs())


def put(page: Path, marker: str, text: str) -> None:
    """Replace what stands between the markers of that name."""
    before, rest = page.read_text(encoding="utf-8").split(f"<!-- {marker} -->\n")
    _, after = rest.split(f"<!-- /{marker} -->")
    page.write_text(f"{before}<!-- {marker} -->\n{text}<!-- /{marker} -->{after}", encoding="utf-8")


def overview() -> str:
    """Closed book, full context and MAC by length of the stream, one line each."""
    found = list(by_length_of_stream())
    grid = crossed(((line, method, entry) for line, method, entry, _ in found), lambda entries: figure(entries[-1]))
    parts = {line: part for line, method, _, part in found if method == "mac"}
    shown = [(*map(str, line), *cells, "(window)" if parts[line] is None else percent(parts[line]))
             for line, *cells in grid[list(METHODS)].itertuples(name=None)]  # fmt: skip
    head = ("task", "documents", *METHODS, "mac's share of the gap none to icl")
    legend = f"F1 in per cent ± standard error, three seeds. (window): icl holds the last {TOKENS:,} tokens."
    return f"{grids.table(head, shown, 1)}\n{legend}\n"


def by_length_of_stream() -> Iterator[tuple[tuple[str, int], str, Entry, float | None]]:
    """Task and documents, method, its line of the comparison, its share of the gap (None where icl is no ceiling)."""
    for task, lengths in LENGTHS.items():
        for count in lengths:
            if runs := runs_in(HERE / f"{task}-{count}"):
                (block,) = compare(runs).blocks
                for entry in block.entries:
                    tree = " hierarchy=16" if "hierarchy=16" in entry.label else ""
                    yield (task, count), f"{entry.method}{tree}", entry, share(block, entry)


def figure(entry: Entry) -> str:
    """Its value and standard error in per cent."""
    return f"{100 * entry.value:.1f}" + ("" if entry.stderr is None else f" ± {100 * entry.stderr:.1f}")


def demonstrated() -> str:
    """Ten demonstrations: the rules that training has seen, new rules, and tasks it has not seen."""
    found = {suite: runs for suite in TRANSFER if (runs := grids.records(HERE / suite))}
    legend = """Per cent right, ten demonstrations: mean over sub-tasks and three draws ± standard error over draws.
superglue-fixed: the one rule of each sub-task that `streamadapter` and `lora` were trained on; superglue-fresh: the
same sub-tasks under new rules; unseen: six other tasks. All demonstrations are adapted to; with `ratio=0` they stand in
the window. `lora` learned from 76,800 answers, `streamadapter` from 292,800."""
    return f"{grids.over_tasks(found)}\n{legend}\n"
