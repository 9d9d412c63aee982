"""Page of the papers' claims: every claim with its verdict, and every setting with its figures.

Results of `judging` are combined twice: first trainings of one setting (a place in one comparison
group), then settings of one claim.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence

from papers import declared
from papers.declared import COUNTED
from papers.judging import (
    ClaimResult,
    StoredRuns,
    Verdict,
    combine_verdicts,
    evaluate_claims,
    reported_differences,
)
from ttabench.core.amounts import format_bytes, format_number
from ttabench.stats.metrics import metric_or_default

RULE = """\
- **Reproduced**: four conditions hold. (1) Our paired difference has the sign of the claim, and its
  95 % interval excludes zero. (2) A method that keeps the context in a state is significantly
  better under its own than under a swapped state. (3) The rival is significantly better than no
  context, unless it is no context. (4) The size is between a fifth of the smallest and five times
  the largest of the paper's differences, where it reports them.
- **Other size**: (1) to (3) hold, (4) fails. **Weak rival**: (1) and (2) hold, (3) fails, or no usable
  run without context is stored.
- **No memory**: the difference is significant, but the own state is not significantly better than a
  swapped one. **No control**: no run used a swapped state.
- **Contradicted**: the difference has the other sign, and its interval excludes zero.
- **Undecided**: the interval includes zero.
- **Cannot tell**: the runs cannot test the claim, for the reason given. Both results are near the
  same baseline (within a tenth of the distance between no context and full context), full context
  is not better than no context, the comparison is an artefact of the synthetic world, or the runs
  have a fault.

*A within 3 of B* claims equivalence: two one-sided tests at 5 % (the 90 % interval lies within
the margin) replace (1), and (4) does not apply. It is contradicted if the 95 % interval lies outside.

*Memory share*: own minus swapped state, as a share of full context minus no context (of log
perplexities). Intervals are not corrected for the number of claims. If all units differ by the same
amount, a sign test with p below 5 % replaces the interval.

A claim is one comparison of one table. Its settings are places of that table (a task, a length) in
one comparison group. Each setting is evaluated under every training of the adapter, with its own
interval. If all decided settings agree, that is the verdict. Otherwise the verdict is **mixed**, also
if they differ in size or rival only.
Claims were chosen by hand, most of them after the runs."""
COSTS = """## Costs

Bytes are exact, so a claim is reproduced if the left side has fewer. Times are of small models on
shared machines. A claim about time is reproduced if the longest draw of the left side takes at most
half of the shortest of the right side. It is contradicted if the opposite holds, and undecided
otherwise. A single measurement, or measurements on different machines, cannot tell."""
Settings = list[list[ClaimResult]]
"""Results of a claim at one scale: per setting, the results of all trainings."""


def claims_page(stored_runs: StoredRuns) -> str:
    """Return every claim as a Markdown page."""
    rows = [
        row
        for of in declared.PAPERS
        for table_name in declared.paper(of).tables
        for row in evaluate_claims(of, table_name, stored_runs)
    ]
    quality = [row for row in rows if not row.claim.cost]
    costs = by_claim(row for row in rows if row.claim.cost)
    reproduced = [
        settings for settings in by_claim(quality) if verdict_of_settings(settings) == "reproduced"
    ]
    title = "# Claims of the papers, evaluated on our runs"
    parts = [title, headline(quality), claims_table(reproduced), RULE]
    for of in declared.PAPERS:
        about, own = declared.paper(of), [row for row in quality if row.paper == of]
        claims, settings = by_claim(own), [rows for rows in by_setting(own) if rows[0].scale]
        parts += [
            f"## {of}\n\n{about.title} (arXiv {about.arxiv}). {counts(claims)}",
            claims_table(claims),
            "By setting:",
            settings_table(settings),
        ]
    return "\n\n".join([*parts, f"{COSTS} {counts(costs)}", claims_table(costs)]) + "\n"


def by_setting(rows: Iterable[ClaimResult]) -> Settings:
    """Group results by claim, place and comparison group, in their order."""
    groups: dict[Hashable, list[ClaimResult]] = {}
    for row in rows:
        key = (row.paper, row.table, row.claim.text, row.place.name, row.group_name, row.scale)
        groups.setdefault(key, []).append(row)
    return list(groups.values())


def by_claim(rows: Iterable[ClaimResult]) -> list[Settings]:
    """Group settings by claim and scale. A place without runs counts only if its claim has no runs
    at all.
    """
    groups: dict[Hashable, dict[str, Settings]] = {}
    for setting in by_setting(rows):
        row = setting[0]
        scales = groups.setdefault((row.paper, row.table, row.claim.text), {})
        scales.setdefault(row.scale or "", []).append(setting)
    return [
        settings
        for scales in groups.values()
        for scale, settings in scales.items()
        if scale or len(scales) == 1
    ]


def verdict_of_trainings(setting: Sequence[ClaimResult]) -> Verdict:
    """Combine the verdicts of all trainings of a setting."""
    return combine_verdicts([row.verdict for row in setting])


def verdict_of_settings(settings: Settings) -> Verdict:
    """Combine the verdicts of all settings of a claim."""
    return combine_verdicts([verdict_of_trainings(setting) for setting in settings])


def headline(rows: Sequence[ClaimResult]) -> str:
    """Return a summary: number of claims with runs, and number of reproduced and mixed claims."""
    has_runs: dict[Hashable, bool] = {}
    for row in rows:
        key = (row.paper, row.table, row.claim.text)
        has_runs[key] = has_runs.get(key, False) or bool(row.scale)
    verdicts = Counter(
        (settings[0][0].memory, verdict_of_settings(settings)) for settings in by_claim(rows)
    )
    return (
        f"{sum(has_runs.values())} of {len(has_runs)} distinct claims have runs. Counted by scale, "
        f"{verdicts[True, 'reproduced']} claims about methods with a state are reproduced with sign, memory, rival and "
        f"size, {verdicts[True, 'other size']} in another size, and {verdicts[True, 'mixed']} are mixed. "
        f"{verdicts[False, 'reproduced']} claims about methods without a state are reproduced. Claims about costs are "
        "at the end. Reproduced:"
    )


def counts(claims: Sequence[Settings]) -> str:
    """Format `Claims, by scale: 3 reproduced, 5 undecided, 4 no runs.`"""
    verdicts = Counter(map(verdict_of_settings, claims))
    return f"Claims, by scale: {', '.join(f'{count} {name}' for name, count in verdicts.most_common())}."


def markdown(columns: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Format a Markdown table. Columns with `#` are right-aligned."""
    rules = ["---:" if column.startswith("#") else "---" for column in columns]
    heads = [column.lstrip("#") for column in columns]
    return "\n".join(f"| {' | '.join(line)} |" for line in (heads, rules, *lines))


def claims_table(claims: Sequence[Settings]) -> str:
    """Return the table of claims: one row per claim and scale."""
    lines = []
    for settings in claims:
        first, verdicts = settings[0][0], [verdict_of_trainings(setting) for setting in settings]
        verdict = format_verdict(combine_verdicts(verdicts), verdicts, "settings")
        rows = [row for setting in settings for row in setting]
        name = f"{first.paper} {first.table}"
        ours, memory = effects(settings), format_shares(rows)
        lines.append(
            (name, first.claim.text, theirs(rows), first.scale or "", ours, memory, verdict)
        )
    return markdown(("table", "claim", "paper", "scale", "ours", "#memory share", "verdict"), lines)


def settings_table(settings: Settings) -> str:
    """Return the table of settings: one row each, with the figures of all trainings."""
    lines = []
    for rows in settings:
        first, verdicts = rows[0], [row.verdict for row in rows]
        verdict = format_verdict(combine_verdicts(verdicts), verdicts, "trainings")
        reason = each([row.reason for row in rows])
        controls = [
            row.control.shown if row.control else "not run" if row.memory and row.found else ""
            for row in rows
        ]
        lines.append(
            (
                f"{first.paper} {first.table}",
                first.claim.text,
                first.place.name,
                first.group_name,
                each([format_ours(row) for row in rows]),
                each(controls),
                format_shares(rows),
                each([f"{row.found.n:,}" if row.found else "" for row in rows]),
                theirs(rows[:1]).partition(":")[0],
                f"{verdict}: {reason}" if reason else verdict,
            )
        )
    heads = ("table", "claim", "setting", "comparison group", "ours, left − right [95 %]")
    return markdown(
        (*heads, "own − swapped state [95 %]", "#memory share", "#n", "paper", "verdict"), lines
    )


def format_verdict(verdict: str, verdicts: Sequence[str], noun: str) -> str:
    """Format `reproduced (3 settings)` or `mixed (2 reproduced, 1 undecided of 3 settings)`."""
    if len(verdicts) < 2:
        return verdict
    counted = Counter(verdicts).most_common()
    parts = f"{', '.join(f'{count} {name}' for name, count in counted)} of "
    return f"{verdict} ({parts if len(counted) > 1 else ''}{len(verdicts)} {noun})"


def each(cells: Sequence[str]) -> str:
    """Join different cells; equal cells are written once."""
    return "; ".join(cells if len(set(cells)) > 1 else cells[:1]).strip("; ")


def effects(settings: Settings) -> str:
    """Format the range of our differences, `14.0 to 44.4`. For costs, list every setting."""
    found = [row.found for rows in settings for row in rows if row.found is not None]
    if found:
        metric = metric_or_default(found[0].metric)
        return span([one.value * metric.scale for one in found], metric.digits)
    shown = [
        f"{row.place.name} {format_ours(row)}" if row.costs else row.reason for row, *_ in settings
    ]
    return "; ".join(dict.fromkeys(shown))


def format_ours(row: ClaimResult) -> str:
    """Format our difference with its interval, or both costs."""
    if row.costs is None:
        return row.found.shown if row.found else ""
    counted = row.claim.cost in COUNTED
    return " against ".join(
        format_bytes(cost.value) if counted else f"{cost.value:,.3g} s" for cost in row.costs
    )


def format_shares(rows: Sequence[ClaimResult]) -> str:
    """Format the range of the memory shares, `5 to 23 %`."""
    shares = [100 * row.memory_share for row in rows if row.memory_share is not None]
    return f"{span(shares, 0)} %" if shares else ""


def theirs(rows: Sequence[ClaimResult]) -> str:
    """Format the paper's differences over places and base models. Without figures, quote the paper."""
    found = [difference for row in rows for difference in reported_differences(row)]
    if not found:
        return rows[0].claim.says
    models = dict.fromkeys(model for model, _ in found)
    return f"{span([value for _, value in found])}: {', '.join(models)}"


def span(values: Sequence[float], digits: int = 1) -> str:
    """Format the smallest and the largest value, `-0.6 to 23.5`."""
    limits = [format_number(limit, digits) for limit in (min(values), max(values))]
    return " to ".join(dict.fromkeys(limits))
