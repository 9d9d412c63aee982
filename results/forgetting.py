"""What reading documents does to text that has nothing to do with them: the suite `forgetting`.

    read(place, ..)     each method reads 64 documents of streamingqa's twin (`ttabench adapt`), into place/METHOD
    table(runs)         | method | F1 of the documents' questions | nats a token of dialogues | from none | ...

A state is asked the questions of its documents, and with the same words scores dialogues and books of which it has read
nothing (`ttabench eval --state place/METHOD --ask-only`). `none` has read nothing: what it says is what was before.
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
"""Negative log-likelihood a token: summed over all tokens, divided by their number."""
LEGEND = f"""{DOCUMENTS} documents were read, then nothing more. F1: of the questions about them, per cent ± standard
error over questions. Nats a token: of dialogues, the next turn without those before it, and of books, each stride by
itself; and how far they lie from those of `none`, which has read nothing (95 %, paired by dialogue and by book): above
0 is worse."""


def read(place: Path, methods: Mapping[str, Sequence[str]]) -> None:
    """Write the state of each method that has read the documents; what is there already stays.

    Args:
        place: where the states and the documents lie.
        methods: what is typed behind `--method`, by the name of the state.

    Raises:
        SystemExit: a command that failed.
    """
    place.mkdir(parents=True, exist_ok=True)
    (episode,) = load(
        "streamingqa", source="mini", seed=0, options={"documents": DOCUMENTS}
    ).episodes()
    texts = place / "documents.txt"
    texts.write_text("\n\n".join(piece.text for piece in episode.chunks()) + "\n", encoding="utf-8")
    for name, words in methods.items():
        asked = ["adapt", "--context", str(texts), "--pieces", "paragraphs", "--method", *words]
        print("ttabench", *asked, flush=True)
        quietly(*asked, "--out", str(place / name))


def quietly(*words: str) -> None:
    """Run a command line that prints nothing.

    Raises:
        SystemExit: it failed.
    """
    with contextlib.redirect_stdout(io.StringIO()):
        code = cli.run([*words, "--quiet"])
    if code:
        raise SystemExit(f"ttabench {' '.join(words)} left with {code}")


def table(runs: Sequence[StoredRun]) -> str:
    """A line a method, in the order of the runs: its documents' questions, then each text that it has not read."""
    by_task: dict[str, dict[str, StoredRun]] = {}
    for folder, run in runs:
        by_task.setdefault(str(run.config["task"]), {})[str(run.config["method"])] = folder, run
    asked = by_task.pop("streamingqa", {})
    columns = ["method", "F1 of the documents' questions"]
    nats: dict[str, dict[str, QueryValues]] = {}
    for task, own in by_task.items():
        columns += [f"{task}: nats a token", "from `none` [95 %]"]
        nats[task] = {method: load_values([run], "ppl") for method, run in own.items()}
    methods = list(dict.fromkeys(method for own in (asked, *by_task.values()) for method in own))
    lines = []
    for method in methods:
        cells = [_f1(asked[method]) if method in asked else ""]
        for own in nats.values():
            cells += _nats(own[method], own["none"]) if method in own else ["", ""]
        lines.append((method, *cells))
    return f"{markdown(columns, lines, 1)}\n{LEGEND}\n"


def _f1(run: StoredRun) -> str:
    (method_row,) = compare_runs([run]).method_rows
    return format_value(method_row.metric, method_row.value, method_row.stderr)


def _nats(after: QueryValues, before: QueryValues) -> list[str]:
    """Nats a token, and how far they lie from those before, with the ends of its interval."""
    shared = [query for query in before if query in after]
    assert len(shared) == len(before), "every state scores the same text"
    sides = [[values[query] for query in shared] for values in (after, before)]
    estimate_of_nats = estimate(sides[0], NATS)
    assert estimate_of_nats is not None, "log-likelihoods are finite"
    apart = difference(*sides, NATS)
    assert apart is not None, "log-likelihoods are finite"
    if not apart.value:
        return [format_number(estimate_of_nats.mean, 3), ""]
    ends = ", ".join(format_number(end, 3) for end in (apart.ci_low, apart.ci_high))
    return [format_number(estimate_of_nats.mean, 3), f"{apart.value:+.3f} [{ends}]"]
