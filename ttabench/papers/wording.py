"""Claims and what is said of them, as they are read: in words, with our figures and the paper's."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ttabench.core.amounts import number
from ttabench.papers.declared import Claim, Place, Table, by_model, paper
from ttabench.papers.judging import Judged
from ttabench.papers.verdicts import amount, claimed_cost
from ttabench.report.differences import Difference
from ttabench.report.figures import scale, with_interval

PERPLEXITY = "perplexity"
"""In the name of what is better where it is less; of it a share of the way is one of logarithms, as ours is."""
UNITS = {"adapt_minutes": " minutes", "samples_per_second": " questions a second", "context_kv_length": " slots"}
"""Of costs, where claims tell them."""
FAR = 2.0
"""How many times as large an effect is another one."""


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


def interval(found: Difference) -> str:
    """A difference with its interval."""
    return with_interval(found.metric, found.value, found.ci_low, found.ci_high)


def ours(row: Judged) -> str:
    """Our difference with its interval; of costs both."""
    if row.costs is not None:
        left, right = (amount(row.claim, cost.value) for cost in row.costs)
        return left if row.claim.growth and row.claim.left == row.claim.right else f"{left} against {right}"
    return interval(row.found) if row.found else ""


def counted(row: Judged) -> str:
    """`192 of 48`: queries, and of how many documents, draws or books the interval is."""
    if row.found is None:
        return ""
    return f"{row.found.n:,}" if row.found.n == row.found.units else f"{row.found.n:,} of {row.found.units:,}"


def theirs(rows: Sequence[Judged]) -> str:
    """The same difference (share, costs) of the paper's figures, over places and base models; else what it says."""
    claim, values = rows[0].claim, [value for row in rows for value in reported(row).values()]
    if claim.cost:
        return "; ".join(dict.fromkeys(told for row in rows for told in _costs(row))) or claim.says
    if claim.right_step is not None or not values:
        return claim.says
    models = ", ".join(dict.fromkeys(model for row in rows for model in reported(row)))
    return f"{span(values)}{' %' if claim.share != 1 else ''}: {models}"


def span(values: Sequence[float], digits: int = 1) -> str:
    """`-0.6 to 23.5`: the smallest and the largest."""
    ends = [number(end, digits) for end in (min(values), max(values))]
    return " to ".join(dict.fromkeys(ends))


def size(row: Judged) -> str:
    """Whether our effect is more than twice or less than half of every one that the paper has; empty of others."""
    gains = [-value if PERPLEXITY in _table(row).metric else value for value in reported(row).values()]
    if row.found is None or row.claim.share != 1 or not gains or min(gains) <= 0 or row.found.gain <= 0:
        return ""
    own = row.found.gain * scale(row.found.metric)
    return "over twice" if own > FAR * max(gains) else "under half" if own < min(gains) / FAR else ""


def reported(row: Judged) -> dict[str, float]:
    """The paper's difference at a place by base model: left less right, or the share of the way in per cent."""
    claim, metric = row.claim, _table(row).metric
    if claim.cost or claim.right_step is not None:
        return {}
    sides = _sides(row, metric, claim.left, claim.right, claim.floor)
    if claim.share == 1:
        return {model: left - right for model, (left, right) in sides.items()}
    if PERPLEXITY in metric:
        sides = {model: list(map(math.log, values)) for model, values in sides.items()}
    return {model: 100 * (left - sum(floor)) / (right - sum(floor)) for model, (left, right, *floor) in sides.items()}


def figures(name: str, which: str, table: Table, place: Place, line: str, metric: str) -> dict[str, float]:
    """The paper's figure of a line at a place, by base model."""
    own = table.reported.get(line, {"method": line})
    at = {key: word for key, word in (("task", place.task), ("setting", place.setting)) if word}
    return by_model(name, which, {**at, **own, "metric": metric}) if metric and place.task else {}


def _table(row: Judged) -> Table:
    return paper(row.paper).tables[row.table]


def _sides(row: Judged, metric: str, *lines: str) -> dict[str, list[float]]:
    """The paper's figures of several lines by base model, of those that have all."""
    sides = [figures(row.paper, row.table, _table(row), row.place, line, metric) for line in lines if line]
    return {model: [side[model] for side in sides] for model in sides[0] if all(model in side for side in sides)}


def _costs(row: Judged) -> list[str]:
    """`2.5 against 28.6 minutes: gpt2-xl`, by base model."""
    metric = row.claim.figure or _table(row).cost
    return [
        f"{' against '.join(number(value, int(metric in UNITS and value % 1 != 0)) for value in values)}"
        f"{UNITS.get(metric, '')}: {model}"
        for model, values in _sides(row, metric, row.claim.left, row.claim.right).items()
    ]
