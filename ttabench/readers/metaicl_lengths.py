"""What of a MetaICL task fits: examples that are too long go, other draws fill up, a long context is cut or not asked.

    fitted(task, settings, " ", count)  ->  Fitted(shown=(16 rows), asked=(row, ...), places={...}, ...)

As in CCM's released code every query is measured beside the context apart: a long query is asked after fewer
demonstrations than a short one. In one pass it is asked once as many were read as fit beside it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from ttabench.readers.metaicl_files import MetaRow, MetaTask
from ttabench.readers.metaicl_protocol import LAYOUTS, Settings
from ttabench.readers.tokens import Count


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A task as it is run."""

    shown: tuple[MetaRow, ...]
    """Demonstrations in order, at most as many as were wanted."""
    asked: tuple[MetaRow, ...]
    places: Mapping[tuple[str, int], int]
    """After how many demonstrations a row is asked, by its id and step; those that are not asked are left out."""
    dropped: Mapping[str, int]


def short(rows: Sequence[MetaRow], settings: Settings, delimiter: str, count: Count) -> list[MetaRow]:
    """The rows that are not longer than an example may be."""
    most = settings.max_example_tokens
    return [row for row in rows if not most or count(_text(row, settings, delimiter)) <= most]


def fitted(task: MetaTask, settings: Settings, delimiter: str, count: Count) -> Fitted:
    """Demonstrations and queries of a task under the limits of its settings, and what they leave out by reason."""
    wanted = max(settings.steps)
    own, asked = (short(rows, settings, delimiter, count) for rows in (task.shown[:wanted], task.asked))
    if settings.drop_last:
        asked = asked[:-1]
    taken = {(row.input, row.output) for row in (*own, *task.asked)}
    spare = [row for row in short(task.spare, settings, delimiter, count) if (row.input, row.output) not in taken]
    demonstrations = [*own, *spare[: wanted - len(own)]]
    joiner = LAYOUTS[settings.layout].joiner
    sizes = list(accumulate(count(_text(row, settings, delimiter) + joiner) for row in demonstrations))
    fit = {row.id: _room(row, settings, delimiter, sizes, count) for row in asked}
    wished = {(row.id, step): min(step, len(demonstrations)) for row in asked for step in settings.steps}
    past = {key for key, number in wished.items() if number > fit[key[0]]}
    cut = settings.too_long == "cut"
    places = {key: min(number, fit[key[0]]) for key, number in wished.items() if cut or key not in past}
    read = max(places.values(), default=0)
    counts = {
        "demonstration too long": len(task.shown[:wanted]) - len(own),
        "query too long": len(task.asked) - len(asked) - settings.drop_last,
        "last row": int(settings.drop_last),
        "no other demonstration instead": wanted - len(demonstrations),
        "demonstration past max_tokens": len(demonstrations) - read,
        "query asked after fewer demonstrations" if cut else "query past max_tokens": len(past),
    }
    dropped = {**task.dropped, **{reason: number for reason, number in counts.items() if number}}
    return Fitted(shown=tuple(demonstrations[:read]), asked=tuple(asked), places=places, dropped=dropped)


def _room(row: MetaRow, settings: Settings, delimiter: str, sizes: Sequence[int], count: Count) -> int:
    """How many demonstrations, which take `sizes` tokens after each of them, fit beside a query and its answer."""
    if not settings.max_tokens:
        return len(sizes)
    answers = [count(delimiter + option) for option in row.options or (row.output,)]
    answer = max(answers) if settings.answer == "choose" else settings.max_new_tokens
    room = settings.max_tokens - answer - count(LAYOUTS[settings.layout].asked.replace("{input}", row.input))
    return bisect_right(sizes, room)


def _text(row: MetaRow, settings: Settings, delimiter: str) -> str:
    return LAYOUTS[settings.layout].shown.replace("{input}", row.input) + delimiter + row.output
