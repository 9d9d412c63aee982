"""Tables of real text under small English models, from the committed records only.

A suite has the runs of results/english/SUITE.yaml; SUITE/index.json names the runs of each row and
column, and pages.yaml its caption. Baselines `none` and `icl` come first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import exp, log
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import yaml
from grids import crossed, is_equivalent, markdown, spread, table

from ttabench.core.amounts import format_number
from ttabench.records.samples import has_samples
from ttabench.records.schema import load_record
from ttabench.report.compare import compare_runs
from ttabench.report.method_rows import pareto_optimal, pool_rows
from ttabench.report.stored import StoredRun, load_values
from ttabench.stats.estimate import PairedDifference, difference
from ttabench.stats.metrics import metric_or_default

HERE = Path(__file__).resolve().parent / "english"
PAGES: Mapping[str, Any] = yaml.safe_load((HERE / "pages.yaml").read_text(encoding="utf-8"))
ERRORS = """Mean over all queries ± standard error, as in `ttabench compare`. Several draws are
clustered by draw and by the documents or questions that they share, a single run by its documents,
questions or books. Without stored scores per query, the errors of draws and of queries are added
up, which is too wide. Empty cells were not run."""
TITLES = {"f1": "F1", "answer_nll": "Answer NLL (nats/token)", "ppl": "Perplexity"}
FEW_SHOT = ("superglue", "arc_easy", "arc_challenge", "hellaswag", "piqa")
SHOWN_DIGITS = 2
"""Digits of the per cent by which a perplexity is lower. Smaller differences count as none."""

BUDGET, BUDGETS = "20 %", ("50 %", "20 %", "10 %")
SETS = ("4 documents", "8 documents", "16 documents")
"""Columns of suites `keep` and `keep-gemma`."""
PLAIN = ("none", "icl", "templora", "qttt", "in_place_ttt", "cartridge")
"""Methods without a budget in shares."""
ORDER = ("attention_matching", "kvzip", "h2o", "window", "snapkv", "rag", "random_slots")
PAIRS = ("rag 10 % + kvzip 10 %", "kvzip 20 % + templora")
"""Combinations of two methods, within the budget of each part alone."""
EQUIVALENCE_MARGIN = 0.03
"""Difference in F1 that counts as none."""
LOST, NLL = "F1 lost vs. icl [95 %]", "NLL (nats/token)"
LEGEND = f"""F1 in per cent ± standard error over sets, at each budget (a share of the keys and values of `icl`). The
other columns are for the budget of {BUDGET}. *F1 lost*: F1 of `icl` minus F1 of the method, paired by question; ≈: equivalent within
{100 * EQUIVALENCE_MARGIN:g} points (two one-sided tests at 5 %). *NLL*:
negative log-likelihood of the right answer. *Kept*: size of the state as a share of that of `icl`. `templora`, `qttt` and
`in_place_ttt` have no budget; their state has weights, with or without the full cache. For `rag`, the share of the tokens that a query
reads. *CPU s*: processor time to read all contexts. Run
`ttabench sweep results/english/keep.yaml` to reproduce it."""
EQUAL_MEMORY = (
    *("none", "icl", "kvzip", "attention_matching", "rag", "h2o", "snapkv", "random_slots"),
    *("qttt", "templora", "cartridge"),
)
README_ROWS = (
    *("icl", "icl, 4 bits", "kvzip", "kvzip 20 %, 4 bits", "kvzap", "rag", "random_slots"),
)
PARAGRAPHS: Mapping[str, tuple[str, ...]] = {
    "keep": ("bits", "shares", "text"),
    "keep-gemma": ("bits-gemma", "shares-gemma", "text-gemma"),
}
"""Further suites with the questions of a suite on sets of four paragraphs."""
MODELS = {
    "keep": "SmolLM2-135M with a LoRA for questions",
    "keep-gemma": "Gemma 3 270M, three examples",
}
FEWER_BITS = {
    "perplexity lost, dialogues": ("bits-dialogues", ""),
    "perplexity lost, books": ("bits-books", ""),
    "accuracy lost, demonstrations": ("bits-demonstrations", ""),
}
"""Columns of the table of fewer bits on other tasks: suite and column."""
ORACLE = "icl, gold paragraph alone"
UNRANKED = ("none", "random_", ORACLE)
"""Beginnings of rows that are not compared in bytes: no context, controls, and an oracle."""
LARGER = {
    **{f"SmolLM2, {documents}": ("keep", documents) for documents in SETS},
    "SmolLM2, another LoRA": ("keep-single", SETS[0]),
    f"Gemma 3, {SETS[0]}": ("keep-gemma", SETS[0]),
    "Gemma 3, other paragraphs": ("keep-gemma-rest", SETS[0]),
}
MEMORIES = {
    "`icl` on dialogues": ("dailydialog", "icl"),
    "`ccm`, 2 slots per turn, dialogues": ("ccm-dialogues", "ccm concat"),
    "`ccm`, 2 slots in all, dialogues": ("ccm-dialogues", "ccm merge"),
    "`ccm` on books": ("ccm-books", "ccm"),
    "`streamadapter` on books": ("pg19-256", "streamadapter"),
    "`generative_adapter` on books": ("generated-books", "generative_adapter"),
}
"""Suite and row of methods with scores under their own, a swapped and an empty state."""
Runs: TypeAlias = Mapping[str, Sequence[StoredRun]]
"""Runs by row. The runs of a row differ in their seed."""


@cache
def cells(suite: str) -> dict[tuple[str, str], list[StoredRun]]:
    """Load the runs of each row and column of a suite."""
    folder = HERE / suite
    index = json.loads((folder / "index.json").read_text(encoding="utf-8"))
    return {
        (line, column): [(folder / run_id, load_record(folder / run_id)) for run_id in ids]
        for line, columns in index.items()
        for column, ids in columns.items()
    }


def column_of(suite: str, column: str = "") -> Runs:
    """Return the runs of one column by row."""
    return {line: runs for (line, own), runs in cells(suite).items() if own == column}


def paragraph_runs(suite: str) -> Runs:
    """Return the runs on sets of four paragraphs of a suite and of `PARAGRAPHS`, by row."""
    suites = *PARAGRAPHS[suite], suite  # the last one has rows that are in several
    return {row: runs for name in suites for row, runs in column_of(name, SETS[0]).items()}


def readme() -> str:
    """Return the page of all suites, results/english/README.md."""
    head = f"# Real English data under SmolLM2-135M\n\n{ERRORS}\n"
    return "\n".join([head, *map(section, PAGES)])


def section(suite: str) -> str:
    """Return the tables of a suite: a table per metric, differences by book, and improvements."""
    runs, page = cells(suite), PAGES[suite]
    columns = list(dict.fromkeys(column for _, column in runs))
    records = [run for own in runs.values() for _, run in own]
    lengths = sorted({row.step for run in records for row in run.rows if row.step is not None})
    by_step = lengths if columns in ([""], ["1 to 16 shots"]) else []
    steps: list[int | None] = [*by_step] or [None]
    lines = [f"## {suite}\n\n{page['about']}.\n"]
    for metric in page.get("metrics", [""]):
        found = (
            (line, step or column, figure(own, metric, step))
            for (line, column), own in runs.items()
            for step in steps
        )
        grid = crossed(found, "".join)[by_step or columns]
        shown = markdown(grid.rename(columns="{:,}".format) if by_step else grid, "")
        name = min({metric or run.main_metric for run in records})
        lines.append(f"{TITLES.get(name, name)}:\n\n{shown}")
    lines.append(by_book({line: own for (line, _), own in runs.items()}))
    return "\n".join([*lines, improvement(runs, columns)])


def figure(runs: Sequence[StoredRun], metric: str = "", step: int | None = None) -> str:
    """Format the score of some runs with its error, see `ERRORS`. Empty without a score."""
    if not any(run.value(metric or run.main_metric) for _, run in runs):
        return ""
    (row,) = compare_runs(runs, metric).method_rows
    if step is not None and step not in row.steps:
        return ""
    value, error, _ = (row.value, row.stderr, 0) if step is None else row.steps[step]
    digits, scale = (3, 1) if row.metric.startswith(("ppl", "answer")) else (1, 100)
    shown = f"{scale * value:.{digits}f}"
    return shown if error is None else f"{shown} ± {scale * error:.{digits}f}"


def by_book(lines: Runs, base: str = "window") -> str:
    """Return the table of differences from a base method, paired by book. Empty for other tasks."""
    books = {
        line: {
            row.subtask: log(row.value)
            for _, run in runs
            for row in run.rows
            if row.metric == "ppl" and row.step is None and row.subtask not in (None, "mean")
        }
        for line, runs in lines.items()
    }
    rows = []
    for line, values in books.items():
        changes = [
            round(100 * (exp(values[book] - nats) - 1), 4) + 0.0
            for book, nats in books.get(base, {}).items()
            if book in values
        ]
        if line != base and changes:
            below = sum(round(change, SHOWN_DIGITS) < 0 for change in changes)
            rows.append((line, spread(changes, SHOWN_DIGITS), f"{below} of {len(changes)}"))
    if not books.get(base):
        return ""
    head = ("", f"perplexity vs. {base} (%)", f"books below {base}")
    return f"Paired by book, mean ± standard error over books:\n\n{table(head, rows, 1)}"


def improvement(runs: Mapping[tuple[str, str], Sequence[StoredRun]], columns: Sequence[str]) -> str:
    """Return the improvement of full context over no context, and where it is not significant."""
    sentences, tested = [], True
    for column in columns:
        none, icl = (runs.get((line, column), []) for line in ("none", "icl"))
        if len(none) != len(icl) or len(none) < 2 or none[0][1].main_metric == "ppl":
            continue
        low = paired_difference(icl, none).ci_low
        doubt = ", not significant" if low is not None and low <= 0 else ""
        sentences.append(f"{column}: {format_gain(icl, none)}{doubt}")
        tested &= low is not None
    if not sentences:
        return ""
    how = "95 % intervals" if tested else "95 % intervals if scores per query are stored"
    return f"Improvement of icl over none in points, with {how}: {'; '.join(sentences)}.\n"


def paired_difference(left: Sequence[StoredRun], right: Sequence[StoredRun]) -> PairedDifference:
    """Return the difference of the main metric, paired by query.

    Without stored scores per query there is no interval: the overlap of the runs is then unknown.
    """
    metric = left[0][1].main_metric
    if all(has_samples(folder) for folder, _ in (*left, *right)):
        ours, theirs = (load_values(side, metric) for side in (left, right))
        shared = [query for query in ours if query in theirs]
        sides = [[side[query] for query in shared] for side in (ours, theirs)]
        paired = difference(sides[0], sides[1], metric_or_default(metric).figure)
        assert paired is not None, "a difference of means is a number"
        return paired
    one, other = (
        pool_rows([row for _, run in side if (row := run.value(metric))])[0]
        for side in (left, right)
    )
    return PairedDifference(value=one - other, units=0)


def format_gain(left: Sequence[StoredRun], right: Sequence[StoredRun], scale: int = 100) -> str:
    """Format the difference of the main metric with its interval."""
    return format_difference(paired_difference(left, right), scale)


def format_difference(found: PairedDifference, scale: int = 100) -> str:
    """Format a difference with its interval."""
    shown = format_number(scale * found.value)
    if found.ci_low is None or found.ci_high is None:
        return shown
    low, high = (format_number(scale * end) for end in (found.ci_low, found.ci_high))
    return f"{shown} [{low}, {high}]"


def format_loss(full: Sequence[StoredRun], own: Sequence[StoredRun]) -> str:
    """Format the loss of the main metric against full context: percentage points, or perplexity.

    F1 is marked if it is equivalent within `EQUIVALENCE_MARGIN`.
    """
    metric = metric_or_default(full[0][1].main_metric)
    found = paired_difference(*((full, own) if metric.higher_is_better else (own, full)))
    shown = format_difference(found, int(metric.scale))
    is_f1 = full[0][1].main_metric == "f1"
    return f"{shown} ≈" if is_f1 and is_equivalent(found, EQUIVALENCE_MARGIN) else shown


class Cells(NamedTuple):
    """Formatted figures of a method."""

    f1: str = ""
    lost: str = ""
    """F1 lost vs. `icl`, with its interval."""
    nll: str = ""
    """Answer NLL with its error."""
    kept: str = ""
    """Share of the bytes of the cache, in percent."""
    seconds: str = ""
    """CPU seconds of reading."""


def format_figures(runs: Runs, name: str) -> Cells:
    """Format the figures of a method at `BUDGET`; they are empty if it was not run."""
    line = name if name in runs else f"{name} {BUDGET}"
    if line not in runs:
        return Cells()
    ((_, record), *_), share = runs[line], kept_share(runs, line)
    return Cells(
        figure(runs[line]),
        "" if line == "icl" else format_loss(runs["icl"], runs[line]),
        figure(runs[line], "answer_nll"),
        "" if share is None else f"{100 * share:.1f}",
        format_number(record.cost["adapt_cpu_seconds"], 0),
    )


def shown_rows(names: Sequence[str]) -> Iterator[tuple[str, str, str, str, str, str]]:
    """Yield one row per method on sets of four paragraphs, with the NLL without its error."""
    runs = paragraph_runs("keep")
    for name in names:
        f1, lost, nll, kept, seconds = format_figures(runs, name)
        method, comma, bits = name.partition(",")
        label = f"`{method.removesuffix(f' {BUDGET}')}`{comma}{bits}"
        yield label, f1, lost, nll.partition(" ")[0], kept, seconds


def readme_table() -> str:
    """Return the table of the README."""
    rows = [(name, kept, f1, lost, nll) for name, f1, lost, nll, kept, _ in shown_rows(README_ROWS)]
    return table(("method", "kept (%)", "F1 (%)", LOST, NLL), rows, 1)


def equal_memory() -> str:
    """Compare all methods on paragraphs at a fifth of the cache."""
    head = ("method", "F1 (%)", LOST, NLL, "kept (% of bytes)", "CPU s")
    return table(head, shown_rows(EQUAL_MEMORY), 1)


def by_bytes() -> str:
    """Return the tables of docs/results/real-text.md with all rows of a model, by bytes kept."""
    return "\n".join(by_bytes_of(suite) for suite in PARAGRAPHS)


def by_bytes_of(suite: str) -> str:
    """Return the table of one model. Rows that are Pareto-optimal in F1 or NLL are bold."""
    runs = paragraph_runs(suite)
    best = {*pareto_rows(runs), *pareto_rows(runs, "answer_nll")}
    shares = {line: kept_share(runs, line) for line in runs if line != "none"}
    lines = [
        (
            f"**{line}**" if line in best else line,
            "" if share is None else f"{100 * share:.1f}",
            figure(runs[line]),
            "" if line in ("icl", ORACLE) else format_loss(runs["icl"], runs[line]),
            figure(runs[line], "answer_nll"),
        )
        for line, share in sorted(
            shares.items(), key=lambda item: (item[1] is None, -(item[1] or 0))
        )
    ]
    head = ("method", "kept (%)", "F1 (%)", LOST, NLL)
    return f"{MODELS[suite]}:\n\n{table(head, lines, 1)}"


def kept_share(runs: Runs, line: str) -> float | None:
    """Return the bytes kept by a row, as a share of those of full context; None if not comparable."""
    if line in ("icl", "none"):
        return float(line == "icl")
    own = compare_runs(runs[line]).method_rows[0].costs
    if own["kept_share"] is not None or line not in PLAIN:
        return own["kept_share"]
    # cache and weights, all in the number format of `icl`
    full = compare_runs(runs["icl"]).method_rows[0].costs
    return (
        own["state_bytes"] / full["state_bytes"]
        if own["state_bytes"] and full["state_bytes"]
        else None
    )


def pareto_rows(runs: Runs, metric: str = "") -> list[str]:
    """Return the Pareto-optimal rows in score and bytes kept, by bytes kept.

    Rows that keep more than `icl` are excluded.
    """
    rows = []
    for line, own in runs.items():
        share = kept_share(runs, line)
        if share is not None and share <= 1 and not line.startswith(UNRANKED):
            (row,) = compare_runs(own, metric).method_rows
            rows.append(replace(row, label=line, costs={"state_bytes": share}))
    best = sorted(pareto_optimal(rows), key=lambda row: row.costs["state_bytes"] or 0.0)
    return [row.label for row in best]


def larger_contexts() -> str:
    """Compare F1 lost vs. full context for more documents, another LoRA, model and paragraphs."""
    columns = [column_of(*place) for place in LARGER.values()]
    rows = [
        (f"`{name}`", *(format_figures(runs, name).lost for runs in columns))
        for name in ("kvzip", "attention_matching", "rag", "h2o", "snapkv", "window")
    ]
    return table((LOST, *LARGER), rows, 1)


def continued_text() -> str:
    """Compare the perplexity of the next turn or chunk when a fifth or half of the cache is kept."""
    columns = [
        (text, share, column_of(f"keep-{text}"))
        for text in ("dialogues", "books")
        for share in (BUDGET, "50 %")
    ]
    columns.append(("twelve other books", BUDGET, column_of("keep-books-train")))
    rows = []
    for name in ("none", "attention_matching", "kvzip", "snapkv", "window", "random_slots"):
        sides = [
            (runs[name if name == "none" else f"{name} {share}"], runs["icl"])
            for _, share, runs in columns
        ]
        rows.append((f"`{name}`", *(format_gain(*side, 1) for side in sides)))
    heads = [f"{text} at {share}" for text, share, _ in columns]
    return table(("perplexity above icl [95 %]", *heads), rows, 1)


def fewer_bits() -> str:
    """Compare rows with fewer bits and slots on other tasks than paragraphs."""
    columns = {title: column_of(*place) for title, place in FEWER_BITS.items()}
    lines = dict.fromkeys(line for runs in columns.values() for line in runs)
    rows = []
    for line in (line for line in lines if line not in ("none", "icl")):
        cells = [f"`{line}`"]
        for runs in columns.values():
            own = runs.get(line)
            share = kept_share(runs, line) if own else None
            cells.append("" if share is None else f"{100 * share:.1f}")
            cells.append(format_loss(runs["icl"], own) if own else "")
        rows.append(cells)
    heads = [head for title in columns for head in ("kept (%)", title)]
    return table(("method", *heads), rows, 1)


def combinations() -> str:
    """Compare each combination of two methods with `kvzip` alone at the same budget."""
    runs, alone = column_of("keep", SETS[0]), f"kvzip {BUDGET}"
    rows = [
        (f"`{pair}`", figure(runs[pair]), format_gain(runs[pair], runs[alone])) for pair in PAIRS
    ]
    return table(("combination", "F1 (%)", f"F1 gained vs. {alone} [95 %]"), rows, 1)


def parts_of_combinations() -> str:
    """Compare each combination of two methods with its parts at the same budget."""
    runs, rows = column_of("keep", SETS[0]), []
    for pair in PAIRS:
        for part in (part.replace("10 %", BUDGET) for part in pair.split(" + ")):
            (f1, nll), others = (
                [figure(runs[line], metric) for metric in ("", "answer_nll")]
                for line in (pair, part)
            )
            rows.append((pair, f1, nll, part, *others, format_gain(runs[pair], runs[part])))
    figures = ("F1", NLL)
    head = ("combination", *figures, "part alone", *figures, "F1 gained [95 %]")
    return table(head, rows, 1)


def memories() -> str:
    """Compare perplexities under the own, a swapped and an empty state."""
    rows = []
    for name, (suite, line) in MEMORIES.items():
        runs = column_of(suite)
        swapped, own = runs[f"{line} (swapped state)"], runs[line]
        states = (runs.get(f"{line} (empty state)", runs["none"]), swapped, own)
        values = [format_number(float(figure(state).partition(" ")[0])) for state in states]
        rows.append((name, *values, format_gain(swapped, own, 1)))
    head = ("perplexity", "empty state", "swapped state", "own state", "swapped minus own [95 %]")
    return table(head, rows, 1)


def one_budget(suite: str, column: str) -> str:
    """Return the table of one suite and number of documents: every method at every budget."""
    runs = column_of(suite, column)
    ((_, record), *_) = runs["icl"]
    each, documents = record.config["task_options"]["group_documents"], record.task["documents"]
    rows = []
    for name in (name for name in PLAIN if name in runs):
        f1, *others = format_figures(runs, name)
        rows.append((name, f1, *("" for _ in BUDGETS), *others))
    for name in ORDER:
        shares = [runs.get(f"{name} {share}") for share in BUDGETS]
        shown = [figure(own) if own else "" for own in shares]
        if any(shares):
            rows.append((name, "", *shown, *format_figures(runs, name)[1:]))
    budgets = (f"F1 at {share}" for share in BUDGETS)
    lost = f"F1 lost vs. icl at {BUDGET} [95 %]"
    head = ("method", "F1, full context", *budgets, lost, NLL, "kept (%)", "CPU s")
    sets = f"{documents} paragraphs in {-(-documents // each)} disjoint sets of {each}."
    return f"{sets} {record.n} queries.\n\n{table(head, rows, 1)}"


def full_table() -> str:
    """Return the table of docs/results/real-text.md."""
    return f"{one_budget('keep', SETS[0])}\n{LEGEND}\n"


def reading() -> str:
    """Return the tables of results/english/reading.md."""
    budgets = [
        f"**Suite `{suite}`, {column} per context.** {one_budget(suite, column)}"
        for suite, column in LARGER.values()
    ]
    few = (
        (line, suite, figure(runs))
        for suite in FEW_SHOT
        for line, runs in column_of(suite, "10 shots").items()
    )
    return "\n".join(
        [
            "### All methods at the same budget\n",
            *budgets,
            f"{LEGEND}\n",
            "**Two methods combined, 4 documents per context.**\n",
            parts_of_combinations(),
            f"{ERRORS}\n",
            section("pg19").replace("## ", "### ", 1),
            f"### Ten demonstrations\n\nAccuracy (%).\n\n{markdown(crossed(few, ''.join)[[*FEW_SHOT]], '')}",
        ]
    )
