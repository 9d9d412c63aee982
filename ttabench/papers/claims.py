"""What `ttabench paper` shows: our figures beside a paper's, and a verdict for every distinct claim, one comparison of
one table of a paper.

Rows of `judging` are joined twice: trainings of one setting (a place in one block of runs), settings of one claim.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any

from ttabench.core.amounts import number
from ttabench.papers import declared
from ttabench.papers.declared import COUNTED, SCALES, Claim, Place, Scale, by_model, paper
from ttabench.papers.declared import Table as Declared
from ttabench.papers.judging import Judged, judged, over
from ttabench.papers.matching import Held, Stored, named, spots
from ttabench.papers.profiles import amount, claimed_cost
from ttabench.report.blocks import CEILING
from ttabench.report.differences import Difference
from ttabench.report.figures import shown, with_interval
from ttabench.stats.metrics import known
from ttabench.terminal.render import as_markdown
from ttabench.terminal.table import Table

PERPLEXITY = "perplexity"
"""In the name of what is better where it is less; of it a share of the way is one of logarithms, as ours is."""
UNITS = {"adapt_minutes": " minutes", "samples_per_second": " questions a second", "context_kv_length": " slots"}
RULE = """\
**Reproduced**: our paired difference has the sign of the claim, its 95 % interval excludes zero, and a method that
holds the context in a state is better under its own than under another text's, by an interval that excludes zero, too;
**no memory**: all but the last; **no control**: nothing was run under another text's state. **Contradicted**: the other
sign, and the interval excludes zero; **undecided**: it includes zero. **Cannot tell**: both lines within a tenth of the
way from no context to full context at the same end, full context no better than none, a comparison that is one of the
miniature world alone, or runs with another fault, as is said. Intervals are not corrected for the number of claims;
where all that varies differs alike, the sign test's p below 5 % stands for the interval.

A claim is one comparison of one table. Its settings are places of that table (a task, a length) in one block of runs,
each judged under every training of the adapter, by an interval of its own. Where all that can tell say the same, that
is the verdict, else it is **mixed**. Claims and their thresholds were chosen by
hand, most of them when these runs were there."""
HEADS = {
    "sanity": """## Sanity checks

That full context is better than none, or than a method that holds the context in a state.""",
    "bytes": """## Bytes and memory

They are counted: fewer reproduces a claim.""",
    "times": """## Times

Of small models, on machines that other programs used. The longest of several repeats or draws at most half of the
shortest of the other side reproduces a claim, the shortest at least twice the longest contradicts it; what lies between
is undecided, and what was measured once, or on different machines, cannot tell. A time that does not double from the
shorter to the longer context counts as the same.""",
}


def all_claims(stored_runs: Stored, scales: Sequence[Scale] = SCALES) -> list[Judged]:
    """Every claim of every paper, at every place, in every block and training."""
    return [row for of in declared.PAPERS for which in declared.paper(of).tables
            for row in judged(of, which, stored_runs, scales)]  # fmt: skip


def kind(row: Judged) -> str:
    """The part of the page that it is of."""
    if row.claim.cost:
        return "bytes" if row.claim.cost in COUNTED else "times"
    return "sanity" if row.method == CEILING else "claims"


def settings(rows: Sequence[Judged]) -> list[Any]:
    """A line a claim, place and block: its verdict over trainings, and the rows behind it."""
    keys = ["paper", "table", "claim", "place", "block", "scale"]
    cells = [(row.paper, row.table, claimed(row.claim), row.place.name, row.block, row.scale or "", row, row.verdict)
             for row in rows]  # fmt: skip
    return _joined(cells, [*keys, "rows", "verdicts"], len(keys))


def by_claim(rows: Sequence[Judged]) -> list[Any]:
    """A line a distinct claim: its verdict over settings, and of its settings the scales, rows and verdicts."""
    cells = [(line.paper, line.table, line.claim, line.scale, line.rows, line.verdict) for line in settings(rows)]
    return _joined(cells, ["paper", "table", "claim", "scales", "settings", "verdicts"], 3)


def _joined(cells: Sequence[tuple[Any, ...]], columns: list[str], keys: int) -> list[Any]:
    """Lines of the same first cells as one, with lists of the others and the verdict over all."""
    import pandas

    joined = pandas.DataFrame(cells, columns=columns).groupby(columns[:keys], sort=False).agg(list).reset_index()
    return list(joined.assign(verdict=joined["verdicts"].map(over)).itertuples(index=False))


def claims_table(title: str, rows: Sequence[Judged]) -> Table:
    """Distinct claims with verdicts, a line each."""
    cells = []
    for line in by_claim(rows):
        at = list(zip(line.scales, line.settings, strict=True))
        nano, real = ([own for name, own in at if name and (name == SCALES[0]) == small] for small in (True, False))
        cells.append((f"{line.paper} {line.table}", line.claim, theirs(list(chain(*line.settings))), _effects(nano),
                      _effects(real), told(line.verdict, line.verdicts, "settings")))  # fmt: skip
    columns = ("table", "claim", "the paper's", "ours, nano", "ours, real text", "verdict")
    return Table(title=title, columns=columns, rows=tuple(cells), data=tuple(map(_data, rows)), caption=counts(rows))


def settings_table(title: str, rows: Sequence[Judged]) -> Table:
    """What stands behind the verdicts: every setting that was run, a line each; of several trainings all figures."""
    cells = []
    for line in (line for line in settings(rows) if line.scale):
        controls = [interval(row.control) if row.control else "not run" if row.memory and row.found else ""
                    for row in line.rows]  # fmt: skip
        suites = dict.fromkeys(suite for row in line.rows for suite in row.suites)
        reason = _each([row.reason for row in line.rows])
        verdict = told(line.verdict, line.verdicts, "trainings") + (f": {reason}" if reason else "")
        cells.append((f"{line.paper} {line.table}", line.claim, line.place, line.block or line.scale, ", ".join(suites),
                      _each(list(map(ours, line.rows))), _each(controls), _each(list(map(counted, line.rows))),
                      theirs(line.rows[:1]).partition(":")[0], verdict))  # fmt: skip
    columns = ("table", "claim", "setting", "runs", "suite", "ours, left − right [95 %]", "own − another's [95 %]",
               "#n", "the paper's", "verdict")  # fmt: skip
    return Table(title=title, columns=columns, rows=tuple(cells), data=tuple(map(_data, rows)), caption=counts(rows),
                 spare=("suite", "runs", "#n"))  # fmt: skip


def told(verdict: str, verdicts: Sequence[str], noun: str) -> str:
    """`reproduced (3 settings)`, `mixed (2 reproduced, 1 undecided of 3 settings)`."""
    several = Counter(verdicts)
    each = f"{', '.join(f'{count} {name}' for name, count in several.most_common())} of " if len(several) > 1 else ""
    return f"{verdict} ({each}{len(verdicts)} {noun})" if len(verdicts) > 1 else verdict


def counts(rows: Sequence[Judged]) -> str:
    """`Distinct claims: 3 reproduced, 5 undecided, 4 no runs.`"""
    verdicts = Counter(line.verdict for line in by_claim(rows))
    return f"Distinct claims: {', '.join(f'{count} {name}' for name, count in verdicts.most_common())}."


def _each(cells: Sequence[str]) -> str:
    """What all say, or each."""
    return "; ".join(cells if len(set(cells)) > 1 else cells[:1]).strip("; ")


def _effects(at: Sequence[list[Judged]]) -> str:
    """`reproduced: 14.0 to 44.4`: our differences over settings and trainings; costs of every setting."""
    if not at:
        return ""
    effects = [row.found for own in at for row in own if row.found is not None]
    words = [f"{own[0].place.name} {ours(own[0])}" if own[0].costs else own[0].reason for own in at]
    if effects:
        metric = known(effects[0].metric)
        words = [span([found.value * metric.scale for found in effects], metric.digits)]
    return f"{over([over([row.verdict for row in own]) for own in at])}: {'; '.join(dict.fromkeys(words))}"


def _data(row: Judged) -> dict[str, Any]:
    left, right = row.costs or (None, None)
    figures = {
        f"{prefix}{name}": getattr(found, name, None)
        for prefix, found in (("", row.found), ("own_less_other_", row.control))
        for name in ("value", "ci_low", "ci_high", "p", "n", "units")
    }
    return {
        "paper": row.paper, "table": row.table, "claim": claimed(row.claim), "says": row.claim.says, "kind": kind(row),
        "place": row.place.name, "scale": row.scale, "block": row.block, "suites": " ".join(row.suites),
        "training": row.training, "metric": row.found.metric if row.found else row.claim.cost, **figures,
        "left_cost": left and left.value, "right_cost": right and right.value, "machine": row.machine,
        "paper_says": theirs([row]), "verdict": row.verdict, "reason": row.reason,
    }  # fmt: skip


def claims_page(stored_runs: Stored) -> str:
    """Every claim as a page of Markdown: `results/claims.md`."""
    rows = all_claims(stored_runs)
    of_kind = {name: [row for row in rows if kind(row) == name] for name in ("claims", *HEADS)}
    parts = ["# What the papers claim, and what our runs say", headline(of_kind["claims"]), RULE]
    for of in declared.PAPERS:
        about, own = declared.paper(of), [row for row in of_kind["claims"] if row.paper == of]
        parts += [f"## {of}\n\n{about.title} (arXiv {about.arxiv}). {counts(own)}", _bare(claims_table(of, own)),
                  "Setting by setting:", _bare(settings_table(of, own))]  # fmt: skip
    for name, head in HEADS.items():
        machines = "; ".join(dict.fromkeys(row.machine for row in of_kind[name] if row.machine))
        parts += [f"{head} {f'Machines: {machines}. ' if machines else ''}{counts(of_kind[name])}",
                  _bare(claims_table(name, of_kind[name]))]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def headline(rows: Sequence[Judged]) -> str:
    """How many distinct claims have runs, and how many hold with a memory of the own text."""
    claims = by_claim(rows)
    of_memory = [line.settings[0][0].memory for line in claims]
    verdicts = Counter(zip(of_memory, (line.verdict for line in claims), strict=True))
    some = sum(memory and line.verdict == "mixed" and "reproduced" in line.verdicts
               for memory, line in zip(of_memory, claims, strict=True))  # fmt: skip
    runs = sum(line.verdict != "no runs" for line in claims)
    return (
        f"Of {len(claims)} distinct claims {runs} have runs, {verdicts[True, 'reproduced']} hold with a memory of the "
        f"own text wherever it can be told, {some} more in some settings or trainings; of those about no memory "
        f"{verdicts[False, 'reproduced']} hold. Sanity checks, bytes and times stand apart, at the end."
    )


def _bare(table: Table) -> str:
    """A table of Markdown alone."""
    lines = as_markdown(Table(title="", columns=table.columns, rows=table.rows)).splitlines()
    return "\n".join(line for line in lines if line.startswith("|"))


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


def figures(name: str, which: str, table: Declared, place: Place, line: str, metric: str) -> dict[str, float]:
    """The paper's figure of a line at a place, by base model."""
    own = table.reported.get(line, {"method": line})
    at = {key: word for key, word in (("task", place.task), ("setting", place.setting)) if word}
    return by_model(name, which, {**at, **own, "metric": metric}) if metric and place.task else {}


def _table(row: Judged) -> Declared:
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


def reported_table(name: str) -> Table:
    """The figures of a table as the paper prints them, by base model."""
    import pandas

    of, which, table = declared.table(name)
    own, keys = pandas.DataFrame(declared.reported(of, which)), ["method", "task", "setting", "metric"]
    shown = own.assign(value=own["value"].map("{:g}".format))
    wide = shown.pivot(index=keys, columns="model", values="value").fillna("")
    wide = wide.loc[list(own[keys].drop_duplicates().itertuples(index=False, name=None)), own["model"].unique()]
    columns = ("line", *keys[1:], *(f"#{model}" for model in wide.columns))
    rows = tuple((*line, *cells) for line, cells in zip(wide.index, wide.to_numpy(), strict=True))
    return Table(title=f"{name}: {table.about}, as the paper prints it", columns=columns, rows=rows, names=("line",),
                 data=tuple(declared.reported(of, which)))  # fmt: skip


def beside_table(name: str, stored_runs: Stored, scale: Scale) -> Table:
    """Our figures of a table at one scale, and the paper's by base model."""
    of, which, table = declared.table(name)
    there = [spot for spot in spots(of, which, stored_runs) if spot.scale == scale]
    metric = table.metric or table.cost
    models = list(dict.fromkeys(row["model"] for row in declared.reported(of, which) if row["metric"] == metric))
    rows = []
    for place in (place for place in table.places if scale in place.scales):
        own = [spot for spot in there if spot.place is place]
        known = {line for spot in own for line in spot.lines}
        shown_lines = [(spot, line, held) for spot in own for line in named(table) if line in spot.lines
                       for held in spot.lines[line].values()]  # fmt: skip
        for spot, line, held in [*shown_lines, *((None, line, None) for line in named(table) if line not in known)]:
            task = spot.task if spot is not None and place.mean else place.task
            known_figures = figures(of, which, table, place.model_copy(update={"task": task}), line, metric)
            beside = [number(known_figures[model], 1) if model in known_figures else "" for model in models]
            if spot is not None or known_figures:
                rows.append((place.name, line, spot.block if spot else "", *_figure(table, held), *beside))
    columns = ("at", "line", "runs", f"#ours, {scale}", "#n", *(f"#{model}" for model in models))
    caption = f"Ours: value ± stderr. By base model: {metric} as arXiv {declared.paper(of).arxiv} prints it."
    if scale == SCALES[0]:
        caption += " Ours are of a small model on made-up texts: compare the order of lines, not the figures."
    keys = [name.lstrip("#") for name in columns]
    return Table(
        title=f"{name}: {table.about}", columns=columns, rows=tuple(rows), names=("line",), spare=("runs",),
        data=tuple(dict(zip(keys, row, strict=True)) for row in rows),
        caption=caption,
    )  # fmt: skip


def _figure(table: Declared, held: Held | None) -> tuple[str, str]:
    """(our figure, n) of a line; of a table of costs the first of which it has claims."""
    if held is None:
        return "", ""
    if not table.metric:
        spent = held.cost(table.claims[0].cost)
        return ("", "") if spent is None else (amount(table.claims[0], spent.value), f"{held.entry.n:,}")
    value = held.figure
    return (shown(held.entry.metric, *value[:2]), f"{value[2]:,}") if value else ("", "")
