"""Demonstrations of another context: the next ones of the same draw, another published draw, another rule of a twin.

    next_items(task, drawn)          of `readers.demonstrations`
    next_rows(task, meta, fits)      of `readers.metaicl`

A rule of the miniature world pairs categories of words with labels; that of another context has other categories.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from typing import Any, TypeVar

from ttabench.core.errors import UserError
from ttabench.mini.world import categories_in
from ttabench.readers.base import Bound
from ttabench.readers.choices import Item
from ttabench.readers.control_contexts import other_seeds
from ttabench.readers.metaicl_files import MetaRow, MetaTask, twin_tasks
from ttabench.readers.metaicl_lengths import Fitted, short
from ttabench.readers.subtasks import Drawn, Words, twin_part
from ttabench.readers.tokens import estimate

T = TypeVar("T")
OTHER_ROWS = "the other demonstrations are other rows of the same task: what they tell of the task, the own tell too"


def next_items(task: Bound[Any], one: Drawn) -> tuple[tuple[Item, ...], bool]:
    """(at most as many demonstrations as are shown, whether they follow another rule as far as is known)."""
    shots, part = len(one.shown), one.part
    if task.mini:
        words = Words(delimiter=task.card.prompt.delimiter, single_blank=task.settings.copa_single_blank)
        split, arguments = task.card.splits[task.split].twin, {**task.arguments, "queries": 1}
        taken = {item.shown for item in (*one.shown, *one.asked)}
        made = (twin_part(task.card, part.name, (split, seed), arguments, words) for seed in other_seeds(task.seed))
        pools = (made_task.draw(len(made_task.pool), 0)[0] for made_task in made)
        draws = (tuple(item for item in pool if item.shown not in taken)[:shots] for pool in pools)
        return _of_other_categories(_told((*one.shown, *one.asked)), draws, _told)
    items = part.others(shots, task.seed, one.asked)
    if shots and not items:
        fault = f"All rows of {part.name} in {task.source} are shown or asked: there is no other context."
        raise UserError(fault, "Ask fewer (--limit N), or show fewer (--task-set shots=N).")
    return items, False


def _told(items: Iterable[Item]) -> list[str]:
    """All words of rows, those of wrong options too."""
    return [text for item in items for text in (item.shown, *item.options)]


def next_rows(task: Bound[Any], meta: MetaTask, fits: Fitted) -> tuple[Sequence[MetaRow], bool]:
    """(at most as many rows as are shown, whether they follow another rule as far as is known)."""
    if task.mini:
        split, options = task.card.splits[task.split].twin, len(meta.shown[0].options)
        made = (
            task_of_next_world
            for seed in other_seeds(task.seed)
            for task_of_next_world in twin_tasks(task.card, (split, seed), task.arguments)
        )
        alike = (
            task_of_next_world.shown
            for task_of_next_world in made
            if len(task_of_next_world.shown[0].options) == options
        )
        rows, apart = _of_other_categories(_inputs((*meta.shown, *meta.asked)), alike, _inputs)
        return rows[: len(fits.shown)], apart
    taken = {(row.input, row.output) for row in (*fits.shown, *meta.asked)}
    spare = short(meta.spare, task.settings, task.card.prompt.delimiter, estimate)
    fresh = [row for row in spare if (row.input, row.output) not in taken][: len(fits.shown)]
    if fits.shown and not fresh:
        fault = f"{task.source} has no other draw of {meta.name} whose rows are not asked: there is no other context."
        raise UserError(fault, "Give the folder with all published draws, and ask --split test.")
    return fresh, False


def _inputs(rows: Iterable[MetaRow]) -> list[str]:
    return [row.input for row in rows]


def _of_other_categories(own: Iterable[str], draws: Iterable[T], texts: Callable[[T], Iterable[str]]) -> tuple[T, bool]:
    """(the first draw whose texts have no category of words of one's own, true); or (the first of all, false)."""
    taken, first = categories_in(own), None
    for draw in draws:
        first = draw if first is None else first
        if not taken & categories_in(texts(draw)):
            return draw, True
    assert first is not None, "nothing was drawn"
    return first, False


def notes_of(rows_by_task: Mapping[str, tuple[int, Sized, bool]], *, mini: bool) -> list[str]:
    """What a record must say of them, by sub-task: (how many are wanted, those found, whether of another rule)."""
    few = [
        f"{name} has {len(rows)}, not {shots}" for name, (shots, rows, _) in rows_by_task.items() if len(rows) < shots
    ]
    alike = [name for name, (*_, apart) in rows_by_task.items() if not apart]
    notes = [f"demonstrations of another context: {', '.join(few)}"] if few else []
    if not mini:
        return [*notes, OTHER_ROWS]
    same = "no draw of other categories of words was found: the other demonstrations may follow the same rule"
    return notes + ([f"{same} ({', '.join(alike)})"] if alike else [])
