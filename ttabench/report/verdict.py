"""The first lines of a comparison: who leads and by how much, what is not settled, and what does not count; by rules.

    mac (65.6) is 65.6 points [43.5, 80.0] above none (0.0), p <0.001; 21.9 points [-0.6, 41.8] below icl (87.5) ...
    It recovers 75 % of the way from none to icl, and keeps 1/40 of the bytes of icl.

Whom they are about is chosen by values (`standings`); what is said of differences rests on the tests (`families`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ttabench.report.compare import Comparison
from ttabench.report.entries import ceiling_of, floor_of
from ttabench.report.field import Field
from ttabench.report.phrases import MANY, kept_bytes, listed, percent
from ttabench.report.remainder import aside_sentences, cautions, left_out, theirs_sentences
from ttabench.report.shares import BEYOND, recovered
from ttabench.report.standings import Standing
from ttabench.report.state_sentences import state_sentences
from ttabench.stats.testing import LEVEL

COUNTED = ((1, "better"), (-1, "worse"), (0, "not settled"), (None, "not tested"))
"""Outcomes of a test, as they are counted over blocks."""


def verdict(comparison: Comparison) -> str:
    """All sentences in one line."""
    return " ".join(sentences(comparison))


def sentences(comparison: Comparison) -> list[str]:
    """The first lines: each a sentence or more, with their full stops."""
    if len(comparison.blocks) > 1 and all(len(block.entries) == 1 for block in comparison.blocks):
        return [_apart(comparison), *theirs_sentences(comparison), *aside_sentences(comparison)]
    states = list(state_sentences(comparison))
    standing = comparison.standing
    if standing is None:
        first = states or [_of_ends(Field(comparison, comparison.blocks))]
    else:
        field = Field(comparison, [comparison.blocks[place] for place in standing.blocks])
        first = [*_lead(field, standing), *_against_ends(field, standing)]
        # of one method under several states that is the question
        first = [*states, *first] if len(standing.order) == 1 else [*first, *states]
    return [
        *first,
        *cautions(comparison),
        *theirs_sentences(comparison),
        *aside_sentences(comparison),
        *left_out(comparison),
    ]


def _apart(comparison: Comparison) -> str:
    """Of blocks with one line each."""
    field = Field(comparison, comparison.blocks)
    own = [f"{block.entries[0].label} on {block.place.brief}" for block in comparison.blocks]
    names = f" ({listed(own)})" if len(own) <= MANY else ""
    return f"Nothing to compare: each of {len(own)} {field.noun} has one line{names}."


def _lead(field: Field, standing: Standing) -> list[str]:
    """The leader and the second, and the leader against all others."""
    leader, second = standing.leader, standing.second
    if not second:
        return []
    if standing.averaged:
        unit = " on average" if len(field.blocks) > 1 else f" {field.metric}"
        best = field.shown(leader)
        leads = (
            f"has the best {'mean' if len(field.blocks) > 1 else field.metric}, {best}"
            if math.isclose(field.gap(leader, second), 0.0, abs_tol=1e-12)
            else f"leads with {best}{unit}"
        )
        first = f"{leader} {leads}, {field.apart(leader, second)}"
    else:
        first = f"{leader} has the best mean rank, {second} the second best"
    at = kept_bytes(field.both(leader, second), second)
    sentences = [
        f"{_where(field, standing)}{first}",
        f"{leader} keeps {at}" if at else "",
        _one_by_one(field, leader, second),
        _against(field, leader, [label for label in standing.order if label not in (leader, second)]),
    ]
    return [f"{'. '.join(filter(None, sentences))}."]


def _where(field: Field, standing: Standing) -> str:
    """Which blocks count, where not all of them do or they are several."""
    if len(field.found.blocks) == 1:
        return ""
    if len(field.blocks) == 1:
        return f"On {field.blocks[0].place.brief}, "
    if not standing.second:
        return f"Over {len(field.blocks)} {field.noun}, "
    count, left = len(standing.order), len(standing.left_out)
    lines = f"{count} of {count + left} lines" if left else f"all {count} lines" if count > 2 else "both lines"
    return f"On the {len(field.blocks)} {field.noun} that {lines} share, "


def _one_by_one(field: Field, leader: str, other: str) -> str:
    """In how many of several blocks it is better, worse, not settled, and not tested; empty where nowhere tested."""
    outcomes = field.outcomes(leader, other)
    if len(field.blocks) == 1 or all(how is None for _, how in outcomes):
        return ""
    by_word = {word: [block for block, how in outcomes if how == value] for value, word in COUNTED}
    return f"Against {other}: {field.counted(by_word)}"


def _sorted(field: Field, pairs: Sequence[tuple[str, str]]) -> dict[str, list[tuple[str, str]]]:
    """Pairs by what their test says of left, see `COUNTED`."""
    by_word: dict[str, list[tuple[str, str]]] = {word: [] for _, word in COUNTED}
    for pair in pairs:
        apart = field.pair(*pair)
        by_word[dict(COUNTED)[apart.outcome if apart else None]].append(pair)
    return by_word


def _against(field: Field, leader: str, others: Sequence[str]) -> str:
    """The leader against all but the second."""
    by_word = _sorted(field, [(leader, label) for label in others])
    words = {"better": "better than", "worse": "worse than", "not settled": "not settled against",
             "not tested": "not tested against"}  # fmt: skip
    clauses = [f"{words[word]} {listed([right for _, right in pairs])}" for word, pairs in by_word.items() if pairs]
    return f"It is {'; '.join(clauses)}" if len(by_word["not tested"]) < len(others) else ""


def _others(field: Field, standing: Standing, floor: str) -> str:
    """Outcomes of the other lines against the floor."""
    by_word = _sorted(field, [(label, floor) for label in standing.order[1:] if floor and field.both(label, floor)])
    if not any(by_word[word] for word in by_word if word != "not tested"):
        return ""
    clauses = [
        f"{word} {'than' if word in ('better', 'worse') else 'against'} {floor}: "
        + listed([left for left, _ in pairs], "lines")
        for word, pairs in by_word.items() if pairs
    ]  # fmt: skip
    return f"Of the others, {'; '.join(clauses)}"


def _against_ends(field: Field, standing: Standing) -> list[str]:
    """The leader against floor and ceiling, and how much of the way between them it goes."""
    leader, several = standing.leader, len(field.blocks) > 1
    floor, ceiling = field.end(floor_of), field.end(ceiling_of)
    ends = [end for end in (floor, ceiling) if end and field.both(leader, end)]
    if not ends:
        alone = not standing.second and len(field.blocks[0].entries) == 1
        return [f"{leader}: nothing to compare it with."] if alone else []
    counts = list(filter(None, (_one_by_one(field, leader, end) for end in ends)))
    if not standing.averaged:
        first, *more = counts or [""]
        return [". ".join([first.replace("Against", f"{leader} against", 1), *more]) + "."] if first else []
    where = "" if standing.second else _where(field, standing)
    clauses = "; ".join(field.apart(leader, end) for end in ends)
    head = f"{where}{leader} ({field.shown(leader)}{' on average' if several else ''}) is {clauses}"
    others = _others(field, standing, floor)
    # where others were spoken of last, "it" could be one of them
    return [
        f"{'. '.join(filter(None, [head, *counts, others]))}.",
        *_recovery(field, leader, (floor, ceiling), leader if others else "It"),
    ]


def _recovery(field: Field, leader: str, ends: tuple[str, str], subject: str) -> list[str]:
    """The share of the way from floor to ceiling, over all blocks that have both, lost ones too.

    Args:
        field: the blocks.
        leader: its label.
        ends: floor and ceiling; empty where there is none.
        subject: how the leader is called.
    """
    floor, ceiling = ends
    if not floor or not ceiling or not field.both(ceiling, floor):
        return []
    part, blocks = recovered(field.blocks, leader)
    room, gain = field.pair(ceiling, floor), field.pair(leader, floor)
    at = kept_bytes(field.both(leader, ceiling), ceiling)
    if room is None or room.p is None:
        return []
    if room.p >= LEVEL or room.gain < 0:
        return [f"There is no gap to recover: {ceiling} ({field.shown(ceiling)}) is {field.apart(ceiling, floor)}."]
    if part is not None and part > BEYOND:
        return [f"{ceiling} is no ceiling here: {leader} goes more than twice as far from {floor}."]
    if part is None or gain is None or not gain.beyond_chance:  # no share where they were not asked alike
        return [f"{subject} keeps {at}."] if at else []
    where = "" if blocks == len(field.blocks) else f" on {blocks} of {len(field.blocks)} {field.noun}"
    kept = f", and keeps {at}" if at else ""
    return [f"{subject} recovers {percent(part)} of the way from {floor} to {ceiling}{where}{kept}."]


def _of_ends(field: Field) -> str:
    """Floor and ceiling alone, or runs of one configuration."""
    floor, ceiling = field.end(floor_of), field.end(ceiling_of)
    if not floor or not ceiling or not field.both(ceiling, floor):
        return "Nothing to compare."
    apart, mean = field.pair(ceiling, floor), " on average" if len(field.blocks) > 1 else ""
    head = f"No method between {floor} and {ceiling}: {ceiling} ({field.shown(ceiling)}{mean}) is"
    gap = " There is a gap for a method to recover." if apart and apart.beyond_chance and apart.gain > 0 else ""
    return f"{head} {field.apart(ceiling, floor)}.{gap}"
