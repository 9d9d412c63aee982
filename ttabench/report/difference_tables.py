"""The differences of a block as a table, what could not be paired in it, and how all tables are read."""

from __future__ import annotations

from ttabench.report.cautions import lone
from ttabench.report.compare import Block, Comparison
from ttabench.report.differences import Difference
from ttabench.report.figures import plain, probability, together
from ttabench.report.phrases import ACROSS
from ttabench.stats.estimate import SIGN
from ttabench.stats.varying import Varying
from ttabench.terminal.table import Bold, Table

GLOSSARY = {
    "#Holm": "Holm: p adjusted for all tests of its family, shown or not (against none; against icl; icl against none; "
    "states of one method; all others); bold below 0.05.",
    "#detectable": "Detectable: a true difference of this size is found 4 times in 5 (80 % power).",
    "#better / worse": "Better / worse: queries on which left is better, and worse.",
}
"""What headings mean."""
MOST_NAMED = 6
"""Pairs of a block that are named where they have no difference; more are counted."""


def differences_table(block: Block) -> Table:
    """One line a pair; what all pairs share stands in the title."""
    found = block.differences
    columns: dict[str, list[str]] = {
        "pair": [f"{each.left} − {each.right}" for each in found],
        "#difference [95 %]": [(Bold if each.beyond_chance else str)(_interval(each)) for each in found],
        "#p": [probability(each.p) for each in found],
        "#Holm": [probability(each.p_holm) for each in found],
        "#detectable": [plain(each.metric, each.detectable) for each in found],
        "#better / worse": ["-" if each.better is None else f"{each.better:,} / {each.worse:,}" for each in found],
    }
    word = block.groups[0].record.unit
    alike = len({(each.n, each.units) for each in found}) == 1
    if not alike:
        columns["#n"] = [f"{each.n:,}" for each in found]
        columns["#queries" if word == "query" else f"#{word}s"] = [f"{each.units:,}" for each in found]
    tests = sorted({each.test for each in found if each.test})
    over = f" over {_counts(found[0], word)}" if alike else ""
    title = "; ".join([f"{block.place.brief}: differences{over}", *tests])
    caption = (
        f"One {word} only: queries stand for themselves, and errors are too small. Run more seeds."
        if lone(block)
        else ""
    )
    return Table(
        title=title, columns=tuple(columns), rows=tuple(zip(*columns.values(), strict=True)), caption=caption,
        spare=("#detectable", "#better / worse", "#p"), glossary=GLOSSARY,
    )  # fmt: skip


def _counts(each: Difference, unit: Varying) -> str:
    """`300 common queries of 3 draws and 100 questions`."""
    queries = f"{each.n:,} common {'query' if each.n == 1 else 'queries'}"
    of = [] if each.units == each.n or unit == "query" else [f"{each.units:,} {unit}{'s' * (each.units > 1)}"]
    of += [f"{each.across:,} {ACROSS[unit]}"] if each.across else []
    return f"{queries} of {' and '.join(of)}" if of else queries


def _interval(each: Difference) -> str:
    ends = [] if each.ci_low is None or each.ci_high is None else [each.ci_low, each.ci_high]
    value, *shown = together(each.metric, each.value, *ends)
    return f"{value} [{', '.join(shown)}]" if shown else value


def not_paired(block: Block) -> str:
    """The pairs without a difference, by reason."""
    reasons: dict[str, list[str]] = {}
    for each in block.unpaired:
        reasons.setdefault(each.reason, []).append(f"{each.left} − {each.right}")
    pairs = len(block.entries) * (len(block.entries) - 1) // 2
    told = []
    for reason, names in reasons.items():
        some = f"{len(names)} of {pairs} pairs" if len(names) > MOST_NAMED else "; ".join(names)
        told.append(f"Not tested ({reason}): {'every pair' if len(names) == pairs > 1 else some}.")
    return "\n".join(told)


def legend(found: Comparison) -> str:
    """How the tables are read, beside what their headings mean: only what stands in them."""
    told = []
    if any("McNemar" in each.test for each in found.differences):
        told.append("McNemar: p is exact, intervals are Bonett and Price's; near 0.05 they may disagree.")
    if any(each.test == SIGN for each in found.differences):
        told.append("Sign test: all that varies differs alike, so there is no interval.")
    if any(entry.state_of == "other" for entry in found.entries):
        told.append("Own state − another's is memory of the context; another's − none is what any such context gives.")
    return "\n".join(told)
