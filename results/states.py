"""Tables of the suites of states that were made before: `forgetting` and `composed`.

Their folders have a README.md with the commands that make the states.
"""

from __future__ import annotations

from pathlib import Path

from grids import Runs, crossed, quality, table

from ttabench.core.amounts import format_number, format_with_stderr
from ttabench.records.schema import RunRecord
from ttabench.report.stored import QueryValues, load_values
from ttabench.stats.clusters import Observation
from ttabench.stats.estimate import difference, estimate
from ttabench.stats.figures import RATIO_FIGURES

SECOND = 100
"""Offset of the seed of a draw's second text."""
READ = {
    "first": "the first",
    "second": "the second",
    "sum": "both, states summed",
    "row": "both, read in a row",
}
NATS = RATIO_FIGURES["answer_nll"]
"""Negative log-likelihood per token: sum over all tokens, divided by their number."""
FORGETTING = """64 documents were read. F1: queries about them, per cent ± standard error over
queries. Nats/token: dialogues (the next turn without earlier turns) and books (each stride
separately). *Minus none*: difference from `none`, which has read nothing, with its 95 % interval,
paired by dialogue and by book. Positive is worse."""
COMPOSED = """F1 (%) and answer NLL (nats/token) ± standard error over 5 draws of two texts and
their queries: 4 documents per text, 4 queries per document. "States summed":
each text was read separately, and the two states were added."""


def forgetting(runs: Runs) -> str:
    """Return one row per method: queries of its documents, then each unrelated text."""
    runs, values = sorted(runs, key=lambda one: one[1].created), dict[str, dict[str, QueryValues]]()
    for one in runs:
        task, method = str(one[1].config["task"]), str(one[1].config["method"])
        if task != "streamingqa":
            values.setdefault(task, {})[method] = load_values([one], "ppl")
    f1 = {
        str(one[1].config["method"]): quality([one])
        for one in runs
        if one[1].config["task"] == "streamingqa"
    }
    columns = ["method", "F1 of the documents' queries (%)"]
    for task in values:
        columns += [f"{task} (nats/token)", "minus `none` [95 %]"]
    lines = [
        (
            method,
            shown,
            *(cell for own in values.values() for cell in _nats(own[method], own["none"])),
        )
        for method, shown in f1.items()
    ]
    return f"{table(columns, lines, 1)}\n{FORGETTING}\n"


def _nats(after: QueryValues, before: QueryValues) -> tuple[str, str]:
    """Format the nats per token, and their difference from `none` with its interval."""
    sides = [[values[query] for query in before] for values in (after, before)]
    nats, paired = estimate(sides[0], NATS), difference(sides[0], sides[1], NATS)
    assert nats is not None, "log-likelihoods are finite"
    assert paired is not None, "log-likelihoods are finite"
    shown = format_number(nats.mean, 3)
    if not paired.value:
        return shown, ""
    interval = ", ".join(format_number(end, 3) for end in (paired.ci_low, paired.ci_high))
    return shown, f"{paired.value:+.3f} [{interval}]"


def composed(runs: Runs) -> str:
    """Return one row per method and context of the state, with the scores of each text's queries."""
    cells = []
    for _, run in runs:
        text = "second" if int(run.config["seed"]) >= SECOND else "first"
        line = (str(run.config["method"]), Path(str(run.config["state"])).name)
        cells += [
            (line, f"{text} text, {unit}", (run, metric, scale))
            for metric, unit, scale in (
                ("f1", "F1 (%)", 100),
                ("answer_nll", "NLL (nats/token)", 1),
            )
        ]

    def cell(own: list[tuple[RunRecord, str, int]]) -> str:
        observations = [
            Observation(draw, (row.value, 1.0), draw)
            for run, metric, _ in own
            for draw in [str(run.config["seed"])]
            if (row := run.value(metric)) is not None
        ]
        mean, scale = estimate(observations), own[0][2]
        assert mean is not None, "a mean of figures is a number"
        return format_with_stderr(mean.mean, mean.stderr, scale, 1 if scale == 100 else 2)

    grid = crossed(cells, cell)
    rows = [
        (method, words, *grid.loc[[(method, name)]].iloc[0])
        for method in ("generative_adapter", "mac")
        for name, words in READ.items()
    ]
    return f"{table(('method', 'context', *grid.columns), rows, 2)}\n{COMPOSED}\n"
