"""Tables of suites `keep` and `keep-gemma`: every method at one budget, one row each, from the
records only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from english import HERE
from english_cells import KEPT, SHARES, TOGETHER
from english_tables import figure, gained, runs_of
from grids import table

from ttabench.core.amounts import format_number
from ttabench.report.compare import compare_runs
from ttabench.report.stored import StoredRun

AT = "20 %"
PERCENT = [f"{100 * share:.0f} %" for share in sorted(SHARES, reverse=True)]
PLAIN = ("none", "icl", "templora", "qttt", "in_place_ttt", "cartridge")
"""Methods without a budget in shares."""
ORDER = ("attention_matching", "kvzip", "h2o", "window", "snapkv", "rag", "random_slots")
HEAD = (
    "method",
    "F1, full context",
    *(f"F1 at {share}" for share in PERCENT),
    f"F1 lost vs. icl at {AT} [95 %]",
    "NLL (nats/token)",
    "kept (%)",
    "CPU s",
)
README_ROWS = ("icl", "kvzip", "attention_matching", "rag", "snapkv", "random_slots")
README_COLUMNS = ("method", "F1 (%)", "F1 lost vs. icl [95 %]", "NLL (nats/token)", "CPU s")
TOGETHER_HEAD = (
    "combination",
    "F1",
    "NLL (nats/token)",
    "part alone",
    "F1",
    "NLL (nats/token)",
    "F1 gained [95 %]",
)
COLUMNS = ("4 documents", "8 documents", "16 documents")
SETS = """{documents} paragraphs in {sets} disjoint sets of {each}. {questions} queries."""
LEGEND = f"""F1 in per cent ± standard error over sets, at each budget (a share of the keys and values of `icl`). The
other columns are for the budget of {AT}. *F1 lost*: F1 of `icl` minus F1 of the method, paired by question. *NLL*:
negative log-likelihood of the right answer. *Kept*: size of the state as a share of that of `icl`; for `rag`, the share
of the tokens that a query reads. *CPU s*: processor time to read all contexts. Run
`ttabench sweep results/english/keep.yaml` to reproduce it."""


def shown(suite: str, column: str, folder: Path = HERE) -> str:
    """Return the table of one suite and number of documents, with the clustering of its errors."""
    runs = {line: found for (line, own), found in runs_of(folder / suite).items() if own == column}
    assert set(ORDER) == set(KEPT), "every method that the suite has"
    ((_, record), *_) = runs["icl"]
    each, documents = record.config["task_options"]["group_documents"], record.task["documents"]
    sets = SETS.format(
        sets=-(-documents // each), each=each, documents=documents, questions=record.n
    )
    return f"{sets}\n\n{table(HEAD, lines(runs), 1)}"


def lines(runs: Mapping[str, Sequence[StoredRun]]) -> Iterator[tuple[str, ...]]:
    """Yield one table row per method."""
    for name in PLAIN:
        if name in runs:
            yield (name, figure(runs[name]), *("" for _ in PERCENT), *measured(runs, name))
    for name in ORDER:
        if shares := [
            figure(runs[line]) if (line := f"{name} {share}") in runs else "" for share in PERCENT
        ]:
            yield (name, "", *shares, *measured(runs, f"{name} {AT}"))


def measured(runs: Mapping[str, Sequence[StoredRun]], line: str) -> tuple[str, str, str, str]:
    """Return the cells of a method row: F1 lost vs. icl, answer NLL, kept share and CPU seconds."""
    if line not in runs:
        return "", "", "", ""
    (method_row,), ((_, record), *_) = compare_runs(runs[line]).method_rows, runs[line]
    lost, ends = gained(runs["icl"], runs[line])
    interval = f" [{format_number(100 * ends[0])}, {format_number(100 * ends[1])}]" if ends else ""
    share = {"icl": 1.0, "none": 0.0}.get(line, method_row.costs["kept_share"])
    return (
        "" if line == "icl" else f"{format_number(100 * lost)}{interval}",
        figure(runs[line], "answer_nll"),
        "" if share is None else f"{100 * share:.1f}",
        format_number(record.cost["adapt_cpu_seconds"], 0),
    )


def together() -> str:
    """Compare each combination of two methods with its parts at the same budget."""
    runs = {
        line: found for (line, own), found in runs_of(HERE / "keep").items() if own == COLUMNS[0]
    }
    rows = []
    for pair in (pair for pair in TOGETHER if pair in runs):
        for part in (part.replace("10 %", AT) for part in pair.split(" + ")):
            more, ends = gained(runs[pair], runs[part])
            interval = (
                f" [{format_number(100 * ends[0])}, {format_number(100 * ends[1])}]" if ends else ""
            )
            figures = [
                figure(runs[line], metric) for metric in ("", "answer_nll") for line in (pair, part)
            ]
            rows.append(
                (
                    pair,
                    figures[0],
                    figures[2],
                    part,
                    figures[1],
                    figures[3],
                    f"{format_number(100 * more)}{interval}",
                )
            )
    return table(TOGETHER_HEAD, rows, 1)


def shown_in_results() -> str:
    """Return the full table of sets of four."""
    return f"{shown('keep', COLUMNS[0])}\n{LEGEND}\n"


def shown_in_readme() -> str:
    """Return the table of the most compared methods, at one budget."""
    runs = {
        line: found for (line, own), found in runs_of(HERE / "keep").items() if own == COLUMNS[0]
    }
    rows = []
    for name in README_ROWS:
        line = name if name in runs else f"{name} {AT}"
        lost, nats, _, seconds = measured(runs, line)
        rows.append((f"`{name}`", figure(runs[line]), lost, nats.partition(" ")[0], seconds))
    return table(README_COLUMNS, rows, 1)


def shown_in_reading() -> str:
    """Return the tables of both models and of larger sets."""
    parts = [("keep", column) for column in COLUMNS] + [("keep-gemma", COLUMNS[0])]
    found = [
        f"**Suite `{suite}`, {column} per context.** {shown(suite, column)}"
        for suite, column in parts
        if all((f"{name} {AT}", column) in runs_of(HERE / suite) for name in ORDER)
    ]
    pairs = "**Two methods combined, 4 documents per context.**\n"
    return "\n".join(
        ["### All methods at the same budget\n", *found, f"{LEGEND}\n", pairs, together()]
    )
