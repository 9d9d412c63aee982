"""`claims.md`: every claim of the papers as a page of Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from papers import declared
from papers.claims import RULE, all_claims, by_claim, claims_table, counts, settings_table
from papers.judging import Judged, Stored

from ttabench.terminal.render import as_markdown
from ttabench.terminal.table import Table

COSTS = """## Costs

Bytes are counted: fewer reproduces a claim. Times are of small models, on machines that other programs used: the
longest of several draws at most half of the shortest of the other side reproduces a claim, the shortest at
least twice the longest contradicts it; what lies between is undecided, and what was measured once, or on different
machines, cannot tell."""


def claims_page(stored_runs: Stored) -> str:
    """Every claim as a page of Markdown."""
    rows = all_claims(stored_runs)
    costs, quality = (
        [row for row in rows if bool(row.claim.cost) == cost] for cost in (True, False)
    )
    parts = ["# What the papers claim, and what our runs say", headline(quality), RULE]
    for of in declared.PAPERS:
        about, own = declared.paper(of), [row for row in quality if row.paper == of]
        parts += [
            f"## {of}\n\n{about.title} (arXiv {about.arxiv}). {counts(own)}",
            _bare(claims_table(of, own)),
            "Setting by setting:",
            _bare(settings_table(of, own)),
        ]
    parts += [f"{COSTS} {counts(costs)}", _bare(claims_table("costs", costs))]
    return "\n\n".join(parts) + "\n"


def headline(rows: Sequence[Judged]) -> str:
    """How many claims have runs, and how many hold with a memory of the own text."""
    distinct = {(row.paper, row.table, row.claim.text): False for row in rows}
    distinct |= {(row.paper, row.table, row.claim.text): True for row in rows if row.scale}
    verdicts = Counter((line.settings[0][0].memory, line.verdict) for line in by_claim(rows))
    return (
        f"Of {len(distinct)} distinct claims {sum(distinct.values())} have runs. Scale by scale, "
        f"{verdicts[True, 'reproduced']} hold with a memory of the own text wherever it can be told, "
        f"{verdicts[True, 'mixed']} are mixed; of those about no memory {verdicts[False, 'reproduced']} hold. Costs "
        "stand apart, at the end."
    )


def _bare(table: Table) -> str:
    """A table of Markdown alone."""
    lines = as_markdown(Table(title="", columns=table.columns, rows=table.rows)).splitlines()
    return "\n".join(line for line in lines if line.startswith("|"))
