"""What `ttabench paper claims` shows: a verdict for every distinct claim, one comparison of one table of a paper.

Rows of `judging` are joined twice: trainings of one setting (a place in one block of runs), settings of one claim.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any

from ttabench.papers import declared
from ttabench.papers.declared import SCALES, Scale
from ttabench.papers.judging import Judged, judged
from ttabench.papers.matching import Stored
from ttabench.papers.verdicts import COUNTED, over
from ttabench.papers.wording import claimed, counted, interval, ours, size, span, theirs
from ttabench.report.blocks import CEILING
from ttabench.report.figures import digits, scale
from ttabench.terminal.render import as_markdown
from ttabench.terminal.table import Table

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
is the verdict, else it is **mixed**. Over twice, under half: our effect beside every one that the paper has. Claims,
their thresholds and the factors were chosen by hand, most of them when these runs were there."""
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
                      theirs(line.rows[:1]).partition(":")[0], _each(list(map(size, line.rows))), verdict))  # fmt: skip
    columns = ("table", "claim", "setting", "runs", "suite", "ours, left − right [95 %]", "own − another's [95 %]",
               "#n", "the paper's", "beside it", "verdict")  # fmt: skip
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
    """`reproduced: 14.0 to 44.4, over twice`: our differences over settings and trainings; costs of every setting."""
    if not at:
        return ""
    effects = [(row.found, size(row)) for own in at for row in own if row.found is not None]
    words = [f"{own[0].place.name} {ours(own[0])}" if own[0].costs else own[0].reason for own in at]
    if effects:
        metric, sizes = effects[0][0].metric, dict.fromkeys(word for _, word in effects)
        values = span([found.value * scale(metric) for found, _ in effects], digits(metric))
        words = [", ".join(filter(None, [values, *(sizes if len(sizes) == 1 else ())]))]
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
        "paper_says": theirs([row]), "beside": size(row), "verdict": row.verdict, "reason": row.reason,
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
