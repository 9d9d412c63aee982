"""The differences of a block as a table, what could not be paired in it, and how all tables are read."""

from __future__ import annotations

from ttabench.core.emphasis import Bold
from ttabench.core.render import Table
from ttabench.report.cautions import lone
from ttabench.report.compare import Block, Comparison, family_of
from ttabench.report.differences import Difference
from ttabench.report.figures import plain, probability
from ttabench.report.shares import share

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
        "#finds": [plain(each.metric, each.detectable) for each in found],
        "#flips": ["-" if each.better is None else f"+{each.better} −{each.worse}" for each in found],
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
        spare=("#finds", "#flips", "#p"),
    )  # fmt: skip


def _counts(each: Difference, word: str) -> str:
    queries = f"{each.n:,} common {'query' if each.n == 1 else 'queries'}"
    return queries if each.units == each.n or word == "query" else f"{queries} of {each.units:,} {word}s"


def _interval(each: Difference) -> str:
    value = plain(each.metric, each.value)
    if each.ci_low is None or each.ci_high is None:
        return value
    return f"{value} [{plain(each.metric, each.ci_low)}, {plain(each.metric, each.ci_high)}]"


def not_paired(block: Block) -> str:
    """The pairs without a difference, by reason."""
    reasons: dict[str, list[str]] = {}
    for each in block.unpaired:
        reasons.setdefault(each.reason, []).append(f"{each.left} − {each.right}")
    pairs = len(block.entries) * (len(block.entries) - 1) // 2
    told = []
    for reason, names in reasons.items():
        some = f"{len(names)} of {pairs} pairs" if len(names) > MOST_NAMED else "; ".join(names)
        told.append(f"No difference ({reason}): {'any pair' if len(names) == pairs > 1 else some}.")
    return "\n".join(told)


def legend(found: Comparison) -> str:
    """How the tables are read: only what stands in them."""
    told = []
    blocks = found.blocks
    if any(len(block.entries) > 1 for block in blocks):
        told.append("Front: no other entry is better in value, state and ask ms at once.")
    if any(share(block, entry) is not None for block in blocks for entry in block.entries):
        told.append("Of gap: the way from none to icl.")
    if any(each.p is not None for each in found.differences):
        pairs = f"all {family:,} pairs, shown or not" if (family := family_of(blocks)) > 1 else "the one pair"
        told.append(
            f"Holm: p adjusted for {pairs}; bold below 0.05.\n"
            "Finds: the smallest true difference that is found 4 times in 5.\n"
            "Flips: queries that left answers better, and worse."
        )
    if any("McNemar" in each.test for each in found.differences):
        told.append("McNemar: p is exact, intervals are Bonett and Price's; near 0.05 they may disagree.")
    if any(entry.state_of == "other" for entry in found.entries):
        told.append("Own state − another's is memory of the context; another's − none is what any such context gives.")
    return "\n".join(told)
