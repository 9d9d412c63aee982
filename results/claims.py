"""Writer of `claims.md`: every claim of the papers as a Markdown page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from papers import declared
from papers.claims import RULE, all_claims, by_claim, claims_table, counts, settings_table
from papers.judging import ClaimResult, StoredRuns

from ttabench.terminal.render import as_markdown
from ttabench.terminal.table import Table

COSTS = """## Costs

Bytes are exact, so a claim is reproduced if the left side has fewer. Times are of small models on
shared machines. A claim about time is reproduced if the longest draw of the left side takes at most
half of the shortest of the right side. It is contradicted if the opposite holds, and undecided
otherwise. A single measurement, or measurements on different machines, cannot tell."""


def claims_page(stored_runs: StoredRuns) -> str:
    """Return every claim as a Markdown page."""
    rows = all_claims(stored_runs)
    costs, quality = (
        [row for row in rows if bool(row.claim.cost) == cost] for cost in (True, False)
    )
    parts = ["# Claims of the papers, evaluated on our runs", headline(quality), RULE]
    for of in declared.PAPERS:
        about = declared.paper(of)
        of_paper = [row for row in quality if row.paper == of]
        parts += [
            f"## {of}\n\n{about.title} (arXiv {about.arxiv}). {counts(of_paper)}",
            _bare(claims_table(of, of_paper)),
            "By setting:",
            _bare(settings_table(of, of_paper)),
        ]
    parts += [f"{COSTS} {counts(costs)}", _bare(claims_table("costs", costs))]
    return "\n\n".join(parts) + "\n"


def headline(rows: Sequence[ClaimResult]) -> str:
    """Return a summary: number of claims with runs, and number of reproduced and mixed claims."""
    distinct = {(row.paper, row.table, row.claim.text): False for row in rows}
    distinct |= {(row.paper, row.table, row.claim.text): True for row in rows if row.scale}
    verdicts = Counter((line.settings[0][0].memory, line.verdict) for line in by_claim(rows))
    return (
        f"{sum(distinct.values())} of {len(distinct)} distinct claims have runs. Counted by scale, "
        f"{verdicts[True, 'reproduced']} claims about methods with a state are reproduced, including their memory of "
        f"the context, and {verdicts[True, 'mixed']} are mixed. {verdicts[False, 'reproduced']} claims about methods "
        "without a state are reproduced. Claims about costs are at the end."
    )


def _bare(table: Table) -> str:
    """Return the Markdown table without title and caption."""
    lines = as_markdown(Table(title="", columns=table.columns, rows=table.rows)).splitlines()
    return "\n".join(line for line in lines if line.startswith("|"))
