"""Numbers as sentences have them: a difference with its interval and p, what was not settled, bytes, counts.

    21.9 points [-0.6, 41.8] below icl (87.5), p 0.09: not settled with 32 questions; about 65 would

An interval in brackets is that of 95 %. "Settled" is what Holm's p, over all tests of its family, says at 5 %; how many
units would settle it is computed from the paired standard error, for a difference of this size and four times in five.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from ttabench.core.amounts import size
from ttabench.report import figures
from ttabench.report.differences import Difference
from ttabench.report.entries import Entry, higher_is_better
from ttabench.stats.varying import Varying

FRACTIONS = {2: "half", 3: "a third of", 4: "a quarter of", 5: "a fifth of", 10: "a tenth of"}
MANY = 3
"""So many names are listed; more are counted."""
PLURALS: dict[Varying, str] = {
    "query": "questions", "document": "documents", "draw": "draws", "book": "books", "conversation": "conversations",
    "dialogue": "dialogues", "user": "users",
}  # fmt: skip
ACROSS: dict[Varying, str] = {
    "query": "draws", "document": "draws", "draw": "questions", "book": "draws", "conversation": "draws",
    "dialogue": "draws", "user": "draws",
}  # fmt: skip
"""The second unit that varies, where published rows are asked under several seeds."""


class Varied(NamedTuple):
    """Units that a difference is over."""

    unit: Varying
    """The unit that varies."""
    seeds: int
    lone: bool
    """Whether it is there once."""


def apart(difference: Difference, right: str, over: Varied) -> str:
    """What left is of right: `21.9 points [-0.6, 41.8] below icl (87.5), p 0.09: not settled with ...`.

    Args:
        difference: left less right.
        right: how right is called, with its figure.
        over: what varies.
    """
    if difference.value == 0 and not (difference.better or difference.worse):
        return f"equal to {right} on all {difference.n:,} questions"
    return f"{_magnitude(difference)} {_side(difference.metric, difference.value)} {right}{_settled(difference, over)}"


def _magnitude(difference: Difference) -> str:
    """How far apart, without a sign, with the interval turned alike."""
    sign = 1 if difference.value > 0 else -1
    ends = (
        []
        if difference.ci_low is None or difference.ci_high is None
        else sorted((sign * difference.ci_low, sign * difference.ci_high))
    )
    amount, *ends_shown = figures.together(difference.metric, abs(difference.value), *ends)
    points = " points" if figures.scale(difference.metric) == 100 else ""
    return f"{amount}{points} [{', '.join(ends_shown)}]" if ends_shown else f"{amount}{points}"


def untested(metric: str, value: float, right: str) -> str:
    """The same where no query is shared, or answers are not kept."""
    points = " points" if figures.scale(metric) == 100 else ""
    return f"{figures.plain(metric, abs(value))}{points} {_side(metric, value)} {right}, untested"


def _side(metric: str, value: float) -> str:
    if math.isclose(value, 0.0, abs_tol=1e-12):
        return "from"
    if higher_is_better(metric):
        return "above" if value > 0 else "below"
    return "better than" if value < 0 else "worse than"


def _settled(difference: Difference, over: Varied) -> str:
    if difference.p_holm is None:
        return ": no test can be made"
    p_value = f", {'p' if difference.tests == 1 else 'Holm p'} {probability(difference.p_holm)}"
    if difference.beyond_chance:
        return p_value
    if over.lone:
        return f"{p_value}: not settled with the questions of one {over.unit}"
    units = [
        (difference.units, PLURALS["query" if difference.units == difference.n else over.unit]),
        (difference.across, ACROSS[over.unit]),
    ]
    names = " and ".join(_counted(count, word, over.seeds) for count, word in units if count)
    now, word = units[difference.more_across]
    if difference.needed is None:
        return f"{p_value}: not settled with {names}, and no number of {word} in reach would"
    more = about(max(difference.needed, now + 1))
    enough = _counted(more, word, math.ceil(over.seeds * more / now))
    if not difference.across:
        enough = enough.replace(f" {word}", "")
    return f"{p_value}: not settled with {names}; about {enough} would"


def _counted(count: int, word: str, seeds: int) -> str:
    """`18 draws (3 seeds)`: a seed is one draw of every sub-task."""
    return f"{count:,} {word}" + (f" ({seeds:,} seed{'s' * (seeds > 1)})" if word == "draws" and seeds < count else "")


def probability(p: float) -> str:
    """Two digits: 0.09, 0.0023, <0.001."""
    return "<0.001" if p < 0.001 else "1" if p > 0.995 else f"{p:.2g}"


def about(count: int) -> int:
    """A number of units rounded up to what can be said of it: 7, 65, 480."""
    if count < 20:
        return count
    step = 5 if count < 100 else 10 ** (len(str(count)) - 2)
    return math.ceil(count / step) * step


def listed(names: Sequence[str], noun: str = "others") -> str:
    """`a, b and c`; more than `MANY` are counted."""
    if len(names) > MANY:
        return f"{len(names)} {noun}"
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def percent(share: float) -> str:
    """`75 %`, without a minus before zero."""
    return f"{round(100 * share) + 0:d} %"


def kept_bytes(pairs: Sequence[tuple[Entry, Entry]], other: str) -> str:
    """Bytes of state of the first against the second: `a quarter of the bytes of icl`; empty where equal or not known.

    Args:
        pairs: the two, block by block: the geometric mean counts.
        other: how the second is called.
    """
    kept = [(one.costs.get("state_bytes"), other.costs.get("state_bytes")) for one, other in pairs]
    known = [(a, b) for a, b in kept if a is not None and b is not None]
    if all(a == b for a, b in known):
        return ""
    if any(a == 0 or b == 0 for a, b in known):
        ours, theirs = (fmean(side) for side in zip(*known, strict=True))
        return f"{size(ours)} of state, {other} {size(theirs)}"
    ratio = math.exp(fmean(math.log(a / b) for a, b in known))
    return f"about as many bytes as {other}" if 0.95 < ratio < 1.05 else f"{_times(ratio)} bytes of {other}"


def _times(ratio: float) -> str:
    inverse = 1 / ratio
    if 2 / 3 < ratio < 1.5:
        return f"{100 * ratio:.0f} % of the"
    if ratio > 1:
        return f"{ratio:.{0 if ratio >= 10 else 1}f} times the"
    words = FRACTIONS.get(round(inverse))
    return f"about {words} the" if words else f"1/{inverse:.0f} of the"
