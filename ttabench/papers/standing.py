"""The lines of a table as they were run here: at every place, block by block, each with what its queries add.

    spots("mac", "table1", stored)      [Spot(place="streamingqa", block="streamingqa (mini), base nano, ...", ...)]

Blocks, pooling of seeds and the rules that set runs aside are those of `ttabench compare`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ttabench.core.types import Json
from ttabench.methods.checkpoint_header import training_seed
from ttabench.papers.declared import Place, Scale, Table, paper
from ttabench.papers.matching import Stored, fits, recipe, scale_of, words
from ttabench.report.answers import Answers, answers_of, joined
from ttabench.report.blocks import Group, blocks_of
from ttabench.report.blocks import Place as BlockPlace
from ttabench.report.entries import LENGTHS, Entry
from ttabench.report.entry_of import entry_of
from ttabench.report.pairing import Query, Values, steps_of
from ttabench.report.setting_aside import limit_of, within_limit

UNSCORED = "no scores of queries are kept of"
"""Beginning of a fault that is none where costs are compared."""


@dataclass(frozen=True, kw_only=True)
class Held:
    """A line of a table in a block."""

    entry: Entry
    group: Group
    answers: Answers
    fault: str = ""
    """Why nothing can be said of it; empty where something can."""

    def at(self, step: int | None) -> Values:
        """What its queries of one step add, or all; of lengths all up to that one. What names the step is no key."""
        if step is None:
            return self.answers.values
        lengths, costs = self.entry.step == LENGTHS, {}
        for query, value in self.answers.values.items():
            own = self.answers.steps.get(query[:3])
            if own == step or (lengths and own is not None and own < step):
                costs[query if lengths else _without(query, step)] = value
        return costs  # type: ignore[return-value]  # of one kind, as they were

    def figure(self, step: int | None) -> tuple[float, float | None, int] | None:
        """(value, standard error, n) at a step, or of all; None where nothing was asked then."""
        whole = self.entry.value, self.entry.stderr, self.entry.n
        return whole if step is None or not self.entry.steps else self.entry.steps.get(step)


def _without(query: Query, step: int) -> Query:
    seed, episode, key, question = query
    return seed, episode, key.removesuffix(f"@{step}"), question


@dataclass(frozen=True, kw_only=True)
class Spot:
    """A place of a table in one block of runs."""

    place: Place
    scale: Scale
    block: str
    task: str
    lines: Mapping[str, Held]
    suites: Mapping[str, tuple[str, ...]]
    """Folders that hold the runs of each line."""


def spots(name: str, which: str, stored_runs: Stored) -> list[Spot]:
    """Every place of a table, in every block in which one of its lines was run."""
    table = paper(name).tables[which]
    places = [place for place in table.places if place.runs is not None]
    lines = {line: declared_line for line, declared_line in paper(name).lines_of(table).items() if line in named(table)}
    words_of_runs = {record.id: words(record) for _, record in stored_runs.runs}
    kept = [
        run for run in stored_runs.runs
        if run[1].state_of == "own" and any(fits(place.pattern, words_of_runs[run[1].id]) for place in places)
        and any(fits(line, words_of_runs[run[1].id]) for line in lines.values())
    ]  # fmt: skip
    answers, _ = answers_of(kept, "")
    kept = [run for run in kept if run[1].id in answers]
    blocks = blocks_of(kept)
    placed = (
        _spot(place, of_block, own, lines, words_of_runs, answers, stored_runs)
        for place in places
        for of_block, groups in blocks
        if (own := _of_place(place, groups, words_of_runs))
    )
    return [spot for spot in placed if spot.lines]


def named(table: Table) -> list[str]:
    """The lines that the claims of a table name, each once."""
    return list(dict.fromkeys(
        name for claim in table.claims for name in (claim.left, claim.right, claim.floor) if name
    ))  # fmt: skip


def _of_place(place: Place, groups: Sequence[Group], words_of_runs: Mapping[str, Mapping[str, Json]]) -> list[Group]:
    return [
        group for group in groups
        if fits(place.pattern, words_of_runs[group.record.id]) and scale_of(group.record) in place.scales
    ]  # fmt: skip


def _spot(
    place: Place, of_block: BlockPlace, groups: Sequence[Group], lines: Mapping[str, Mapping[str, Json]],
    words_of_runs: Mapping[str, Mapping[str, Json]], answers: Mapping[str, Answers | None], stored_runs: Stored,
) -> Spot:  # fmt: skip
    held: dict[str, Held] = {}
    folders: dict[str, tuple[str, ...]] = {}
    within = within_limit(groups)
    for line, declared_line in lines.items():
        own = [group for group in groups if fits(declared_line, words_of_runs[group.record.id])]
        if not own:
            continue
        inside = _first_trainings([group for group in own if group in within] or own)
        group = inside[0]
        mine = joined([answers[record.id] for _, record in group.runs])
        if place.step is not None and mine.values and not mine.steps:  # of runs that asked at one step alone
            mine = mine._replace(steps=steps_of(group.runs))
        entry = entry_of(of_block, line, group, mine)
        one = Held(entry=entry, group=group, answers=mine, fault=_fault(entry, inside, group in within, mine))
        if mine.values and not one.at(place.step):
            continue  # which asked at other steps
        held[line] = one
        folders[line] = tuple(dict.fromkeys(name for _, record in group.runs for name in stored_runs.suites[record.id]))
    return Spot(place=place, scale=scale_of(groups[0].record), block=of_block.name, task=of_block.task, lines=held,
                suites=folders)  # fmt: skip


def _first_trainings(groups: Sequence[Group]) -> list[Group]:
    """Of adapters that differ in the seed of their training alone the one of the lowest seed; all others stay."""
    first: list[tuple[Json, Group]] = []
    for group in sorted(groups, key=lambda group: training_seed(group.record.method.get("training", {})) or 0):
        trained_by = recipe(group.record)
        if trained_by is None or all(trained_by != earlier for earlier, _ in first):
            first.append((trained_by, group))
    return [group for _, group in first]


def _fault(entry: Entry, groups: Sequence[Group], within: bool, answers: Answers) -> str:
    if len(groups) > 1:
        return f"{entry.label} was run in {len(groups)} configurations, and which is meant is not declared"
    if not within:
        return f"{entry.label} was asked less ({limit_of(groups[0])})"
    if entry.aside:
        return f"{entry.label} {entry.reason}"
    return "" if answers.values else f"{UNSCORED} {entry.label}"
