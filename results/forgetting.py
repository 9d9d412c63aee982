"""Suite `forgetting`: effect of reading documents on unrelated text.

    read(place, ..)     each method reads 64 documents of synthetic StreamingQA (`ttabench adapt`), into place/METHOD
    table(runs)         | method | F1 of the documents' queries | nats/token of dialogues | minus `none` | ...

A state answers the queries of its documents, and scores dialogues and books that it has not read
(`ttabench eval --state place/METHOD --ask-only`). `none` has read nothing and is the reference.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from grids import table as markdown

from ttabench.cli import app as cli
from ttabench.core.amounts import format_number
from ttabench.readers import load
from ttabench.report.compare import compare_runs
from ttabench.report.method_rows import format_value
from ttabench.report.stored import QueryValues, StoredRun, load_values
from ttabench.stats.estimate import difference, estimate
from ttabench.stats.figures import RATIO_FIGURES

DOCUMENTS = 64
NATS = RATIO_FIGURES["answer_nll"]
"""Negative log-likelihood per token: sum over all tokens, divided by their number."""
LEGEND = f"""{DOCUMENTS} documents were read. F1: queries about them, per cent ± standard error over
queries. Nats/token: dialogues (the next turn without earlier turns) and books (each stride
separately). *Minus none*: difference from `none`, which has read nothing, with its 95 % interval,
paired by dialogue and by book. Positive is worse."""


def read(place: Path, methods: Mapping[str, Sequence[str]]) -> None:
    """Write the state of each method after it has read the documents. Existing states are kept.

    Args:
        place: folder of the states and the documents.
        methods: arguments of `--method` by name of the state.

    Raises:
        SystemExit: a command failed.
    """
    place.mkdir(parents=True, exist_ok=True)
    (episode,) = load(
        "streamingqa", source="mini", seed=0, options={"documents": DOCUMENTS}
    ).episodes()
    texts = place / "documents.txt"
    texts.write_text("\n\n".join(chunk.text for chunk in episode.chunks()) + "\n", encoding="utf-8")
    for name, words in methods.items():
        arguments = ["adapt", "--context", str(texts), "--pieces", "paragraphs", "--method", *words]
        print("ttabench", *arguments, flush=True)
        quietly(*arguments, "--out", str(place / name))


def quietly(*words: str) -> None:
    """Run a command line without output.

    Raises:
        SystemExit: it failed.
    """
    with contextlib.redirect_stdout(io.StringIO()):
        code = cli.run([*words, "--quiet"])
    if code:
        raise SystemExit(f"ttabench {' '.join(words)} failed with exit code {code}")


def table(runs: Sequence[StoredRun]) -> str:
    """Return one table row per method, in the order of the runs: queries of its documents, then
    each unrelated text.
    """
    by_task: dict[str, dict[str, StoredRun]] = {}
    for folder, run in runs:
        by_task.setdefault(str(run.config["task"]), {})[str(run.config["method"])] = folder, run
    of_documents = by_task.pop("streamingqa", {})
    columns = ["method", "F1 of the documents' queries (%)"]
    nats: dict[str, dict[str, QueryValues]] = {}
    for task, own in by_task.items():
        columns += [f"{task} (nats/token)", "minus `none` [95 %]"]
        nats[task] = {method: load_values([run], "ppl") for method, run in own.items()}
    methods = list(
        dict.fromkeys(method for own in (of_documents, *by_task.values()) for method in own)
    )
    lines = []
    for method in methods:
        cells = [_f1(of_documents[method]) if method in of_documents else ""]
        for own in nats.values():
            cells += _nats(own[method], own["none"]) if method in own else ["", ""]
        lines.append((method, *cells))
    return f"{markdown(columns, lines, 1)}\n{LEGEND}\n"


def _f1(run: StoredRun) -> str:
    (method_row,) = compare_runs([run]).method_rows
    return format_value(method_row.metric, method_row.value, method_row.stderr)


def _nats(after: QueryValues, before: QueryValues) -> list[str]:
    """Format the nats per token, and their difference from `none` with its interval."""
    shared = [query for query in before if query in after]
    assert len(shared) == len(before), "every state scores the same text"
    sides = [[values[query] for query in shared] for values in (after, before)]
    estimate_of_nats = estimate(sides[0], NATS)
    assert estimate_of_nats is not None, "log-likelihoods are finite"
    paired = difference(*sides, NATS)
    assert paired is not None, "log-likelihoods are finite"
    if not paired.value:
        return [format_number(estimate_of_nats.mean, 3), ""]
    interval = ", ".join(format_number(end, 3) for end in (paired.ci_low, paired.ci_high))
    return [format_number(estimate_of_nats.mean, 3), f"{paired.value:+.3f} [{interval}]"]
