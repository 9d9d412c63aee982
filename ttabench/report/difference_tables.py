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
"""Meanings of headings."""
MOST_NAMED = 6
"""Pairs of a block that are named where they have no difference; more are counted."""


def differences_table(block: Block) -> Table:
    """One line a pair; what all pairs share stands in the title."""
    differences = block.differences
    columns: dict[str, list[str]] = {
        "pair": [f"{apart.left} − {apart.right}" for apart in differences],
        "#difference [95 %]": [(Bold if apart.beyond_chance else str)(_interval(apart)) for apart in differences],
        "#p": [probability(apart.p) for apart in differences],
        "#Holm": [probability(apart.p_holm) for apart in differences],
        "#detectable": [plain(apart.metric, apart.detectable) for apart in differences],
        "#better / worse": [
            "-" if apart.better is None else f"{apart.better:,} / {apart.worse:,}" for apart in differences
        ],
    }
    word = block.groups[0].record.unit
    alike = len({(apart.n, apart.units) for apart in differences}) == 1
    if not alike:
        columns["#n"] = [f"{apart.n:,}" for apart in differences]
        columns["#queries" if word == "query" else f"#{word}s"] = [f"{apart.units:,}" for apart in differences]
    tests = sorted({apart.test for apart in differences if apart.test})
    over = f" over {_counts(differences[0], word)}" if alike else ""
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


def _counts(difference: Difference, unit: Varying) -> str:
    """`300 common queries of 3 draws and 100 questions`."""
    queries = f"{difference.n:,} common {'query' if difference.n == 1 else 'queries'}"
    of = (
        []
        if difference.units == difference.n or unit == "query"
        else [f"{difference.units:,} {unit}{'s' * (difference.units > 1)}"]
    )
    of += [f"{difference.across:,} {ACROSS[unit]}"] if difference.across else []
    return f"{queries} of {' and '.join(of)}" if of else queries


def _interval(difference: Difference) -> str:
    ends = [] if difference.ci_low is None or difference.ci_high is None else [difference.ci_low, difference.ci_high]
    value, *ends_shown = together(difference.metric, difference.value, *ends)
    return f"{value} [{', '.join(ends_shown)}]" if ends_shown else value


def not_paired(block: Block) -> str:
    """The pairs without a difference, by reason."""
    reasons: dict[str, list[str]] = {}
    for unpaired in block.unpaired:
        reasons.setdefault(unpaired.reason, []).append(f"{unpaired.left} − {unpaired.right}")
    pairs = len(block.entries) * (len(block.entries) - 1) // 2
    sentences = []
    for reason, names in reasons.items():
        some = f"{len(names)} of {pairs} pairs" if len(names) > MOST_NAMED else "; ".join(names)
        sentences.append(f"Not tested ({reason}): {'every pair' if len(names) == pairs > 1 else some}.")
    return "\n".join(sentences)


def legend(comparison: Comparison) -> str:
    """How the tables are read, beside what their headings mean: only what stands in them."""
    sentences = []
    if any("McNemar" in difference.test for difference in comparison.differences):
        sentences.append("McNemar: p is exact, intervals are Bonett and Price's; near 0.05 they may disagree.")
    if any(difference.test == SIGN for difference in comparison.differences):
        sentences.append("Sign test: all that varies differs alike, so there is no interval.")
    if any(entry.state_of == "other" for entry in comparison.entries):
        sentences.append(
            "Own state − another's is memory of the context; another's − none is what any such context gives."
        )
    return "\n".join(sentences)
