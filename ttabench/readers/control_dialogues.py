"""The dialogue whose turns are read in place of a dialogue's own: the next one of the source, or of another twin.

other_dialogues(task, [(dialogue, 4), ...], all_of_them)     of `readers.dialogue`
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ttabench.core.errors import UserError
from ttabench.mini.world import names_in
from ttabench.readers.base import Bound
from ttabench.readers.control_contexts import other_seeds
from ttabench.readers.dialogue_files import twin_dialogues
from ttabench.readers.dialogue_text import Dialogue


def other_dialogues(
    task: Bound[Any], wanted: Sequence[tuple[Dialogue, int]], every: Sequence[Dialogue]
) -> list[Dialogue]:
    """For each dialogue, another of which so many turns can be read, or as many as there are.

    Args:
        task: of a miniature source, which has others about other people.
        wanted: dialogues of `every`, and how many turns of each are read.
        every: all dialogues of the source that may be asked about.
    """
    if task.mini:
        return _of_a_twin(task, [dialogue for dialogue, _ in wanted])
    chosen_others: dict[tuple[str, int], Dialogue] = {}
    for count in {count for _, count in wanted}:
        long = [dialogue for dialogue in every if len(dialogue.turns) >= count]
        chosen_others |= {
            (dialogue.id, count): other for dialogue, other in zip(long, _next(long), strict=True) if other
        }
    longest, second = _longest(every)
    others = [chosen_others.get((dialogue.id, count)) for dialogue, count in wanted]
    others = [
        other or (longest if longest.text != own.text else second)
        for other, (own, _) in zip(others, wanted, strict=True)
    ]
    if None in others:
        fault = f"All dialogues of {task.source} that are asked about are one: there is no other context."
        raise UserError(fault, "Give a source with several dialogues.")
    return [other for other in others if other]


def _longest(dialogues: Sequence[Dialogue]) -> tuple[Dialogue, Dialogue | None]:
    """The longest dialogue, and the longest that has another text, if any."""
    ordered = sorted(dialogues, key=lambda dialogue: -len(dialogue.turns))
    return ordered[0], next((candidate for candidate in ordered if candidate.text != ordered[0].text), None)


def _next(dialogues: Sequence[Dialogue]) -> list[Dialogue | None]:
    """The next dialogue of another text behind each, from the last on to the first; None where all are alike."""
    others: list[Dialogue | None] = [None] * len(dialogues)
    after: Dialogue | None = None
    for number in reversed(range(2 * len(dialogues))):
        own, following = dialogues[number % len(dialogues)], dialogues[(number + 1) % len(dialogues)]
        after = following if following.text != own.text else after
        others[number % len(dialogues)] = after
    return others


def _of_a_twin(task: Bound[Any], own: Sequence[Dialogue]) -> list[Dialogue]:
    """From another draw of the miniature world, about nobody that the dialogue itself is about."""
    others: list[Dialogue] = []
    pool: list[tuple[Dialogue, set[str]]] = []
    seeds = other_seeds(task.seed)
    for number, dialogue in enumerate(own):
        names, tried = names_in(dialogue.text), 0
        while True:
            if tried == len(pool):
                seed = next(seeds, None)
                if seed is None:
                    fault = f"No other draw of {task.card.name} is about other people: there is no other context."
                    raise UserError(fault, "Ask for shorter dialogues with --task-set turns=N.")
                pool += [
                    (candidate, names_in(candidate.text))
                    for candidate in twin_dialogues(task.card, task.split, seed, task.arguments).kept
                ]
            other, others_names = pool[(number + tried) % len(pool)]
            tried += 1
            if not names & others_names:
                others.append(other)
                break
    return others
