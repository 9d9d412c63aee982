"""Claims and what is said of them, as they are read: in words, with our figure and the paper's.

claimed(claim)           "ccm-concat at least 90 % of the way from no-context to full-context"
ours(row)                "-2.2 [-3.4, -1.1]"
theirs(row)              "-0.6 to -0.2: tinyllama-1.1b, llama-3-8b"
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from ttabench.core.amounts import number
from ttabench.papers.costs import amount, claimed_cost
from ttabench.papers.declared import Claim, Place, Table, paper
from ttabench.papers.judging import Judged
from ttabench.papers.reported import by_model
from ttabench.report.figures import together

IN_LOGARITHMS = "perplexity"
"""Figures of which a share of the way is one of logarithms, as ours is."""

UNITS = {"adapt_minutes": " minutes", "samples_per_second": " questions a second", "context_kv_length": " slots"}
"""Of costs, where claims tell them."""


def claimed(claim: Claim) -> str:
    """The claim in words."""
    percent = f"{100 * claim.share:g} %"
    if claim.cost:
        return claimed_cost(claim)
    if claim.floor:
        return f"{claim.left} at least {percent} of the way from {claim.floor} to {claim.right}"
    if claim.right_step is not None:
        return f"{claim.left} at least {percent} of what it had after {claim.right_step}"
    if claim.share != 1:
        return f"{claim.left} at least {percent} of {claim.right}"
    return f"{claim.left} better than {claim.right}"


def ours(row: Judged) -> str:
    """Our difference with its interval; of costs both; else why there is none."""
    if row.costs is not None:
        shown = row.costs[:1] if row.claim.growth and row.claim.left == row.claim.right else row.costs
        amounts = " against ".join(amount(row.claim, cost) for cost in shown)
        return "; ".join(filter(None, [amounts, row.machine, row.reason]))
    if row.found is None:
        return row.reason
    ends = [] if row.found.ci_low is None or row.found.ci_high is None else [row.found.ci_low, row.found.ci_high]
    value, *interval = together(row.found.metric, row.found.value, *ends)
    return f"{value} [{', '.join(interval)}]" if interval else value


def counted(row: Judged) -> str:
    """`192 queries, 48 documents`: of what the interval is."""
    if row.found is None:
        return ""
    return f"{row.found.n:,}" if row.found.n == row.found.units else f"{row.found.n:,} of {row.found.units:,}"


def theirs(row: Judged) -> str:
    """The same difference (or share, or costs) of the paper's figures, over its base models; else what it says."""
    table, claim = paper(row.paper).tables[row.table], row.claim
    if claim.right_step is not None:
        return claim.says
    metric = claim.figure or table.cost if claim.cost else table.metric
    sides = [
        figures(row.paper, row.table, table, row.place, line, metric)
        for line in filter(None, (claim.left, claim.right, claim.floor))
    ]
    models = [model for model in sides[0] if all(model in side for side in sides)]
    sentences = [_told(claim, metric, [side[model] for side in sides]) for model in models]
    if not sentences:
        return claim.says
    low, high, unit = min(sentences)[0], max(sentences)[0], sentences[0][1]
    if claim.cost:
        return "; ".join(f"{_cost(metric, value)} against {unit}: {model}"
                         for (value, unit), model in zip(sentences, models, strict=True))  # fmt: skip
    values = f"{low:.1f}" if f"{low:.1f}" == f"{high:.1f}" else f"{low:.1f} to {high:.1f}"
    return f"{values}{unit}: {', '.join(models)}"


def figures(name: str, which: str, table: Table, place: Place, line: str, metric: str) -> dict[str, float]:
    """The paper's figure of a line at a place, by base model."""
    own = table.reported.get(line, {"method": line})
    at = {key: word for key, word in (("task", place.task), ("setting", place.setting)) if word}
    return by_model(name, which, {**at, **own, "metric": metric}) if metric and place.task else {}


def _told(claim: Claim, metric: str, values: list[float]) -> tuple[float, str]:
    """(what is compared, its unit)."""
    left, right, *floor = values
    if claim.cost:
        return left, _cost(metric, right) + UNITS.get(metric, "")
    if claim.share == 1:
        return left - right, ""
    if metric == IN_LOGARITHMS:
        left, right, floor = math.log(left), math.log(right), [math.log(value) for value in floor]
    start = floor[0] if floor else 0.0
    return 100 * (left - start) / (right - start), " %"


def _cost(metric: str, value: float) -> str:
    """A cost as the paper has it."""
    return number(value, 0 if value == int(value) else 1) if metric in UNITS else number(value, 0)


def folders(names: Iterable[str]) -> str:
    """Names of suites, a few of many."""
    named = list(names)
    return ", ".join(named[:3]) + (f" and {len(named) - 3} more" if len(named) > 3 else "")
