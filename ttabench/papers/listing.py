"""`ttabench paper list`: every table of the papers, and where its runs can be made. Nothing heavy is imported."""

from __future__ import annotations

from ttabench.papers import declared
from ttabench.papers.reported import reported
from ttabench.terminal.table import Table


def list_table() -> Table:
    """`paper list`: every table, how many figures it has, and where its runs can be made."""
    rows = []
    for name in declared.names():
        of, which, table = declared.table(name)
        rows.append((name, table.about, str(len(reported(of, which))), str(len(table.claims) or ""), runnable(name)))
    return Table(
        title="tables of the papers", columns=("table", "what it shows", "#figures", "#claims", "to be run"),
        rows=tuple(rows), names=("table",), spare=("#figures", "#claims"),
        data=tuple({"table": row[0], "about": row[1], "figures": int(row[2]), "claims": int(row[3] or 0),
                    "runs": row[4]} for row in rows),
        caption="One of them: ttabench paper PAPER/TABLE. Every claim: ttabench paper claims.",
    )  # fmt: skip


def runnable(name: str) -> str:
    """Where the runs of a table can be made, or why they cannot."""
    of, which, table = declared.table(name)
    if table.needs is not None:
        return declared.why(table) if table.needs.gpu else f"no: {declared.why(table)}"
    if table.stored_only:
        return f"no suite: {table.stored_only}"
    scales = declared.suites(of, which)
    here = [scale for scale in scales if scale != "full"]
    return ", ".join([*here, *(["full (with a GPU)"] if "full" in scales else [])])
