"""The lines of a table as they were run here: stored runs in the words of a suite, held against its patterns.

    words(record)                   {"method": "mac", "task": "streamingqa", "set": {...}, "trained_on": "own"}
    spots("mac", "table1", stored)  [Spot(place="streamingqa", lines={"mac": {0: Held(...), 1: Held(...)}}, ...)]

Blocks, pooling of draws and the rules that set runs aside are those of `ttabench compare`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from ttabench.core.declared import as_typed
from ttabench.core.types import Json
from ttabench.methods.checkpoint_header import trained_tasks, training_seed
from ttabench.papers.declared import COUNTED, Cost, Place, Scale, paper, scale_of_model
from ttabench.profiling.record import Figure, exactly, figure
from ttabench.records.schema import RunRecord
from ttabench.report.blocks import CEILING, FLOOR, blocks_of
from ttabench.report.compare import read_answers
from ttabench.report.configuration import with_defaults
from ttabench.report.entries import LENGTHS, Entry, entry_of, limit_of, within_limit
from ttabench.report.finding import loaded, runs_in
from ttabench.report.pairing import Answers, Run, Values, joined
from ttabench.sweep.grid import matches

TRIALS = ("scratch", "quick")
"""Folders of folders of runs that are not looked into: what lies there was tried."""
UNSCORED = "kept no scores of its queries"
"""A fault; none where costs are compared."""
OWN = "own"


@dataclass(frozen=True, kw_only=True)
class Stored:
    """Runs, each once."""

    runs: tuple[Run, ...]
    damaged: tuple[str, ...] = ()

    @cached_property
    def words(self) -> dict[str, dict[str, Json]]:
        """Every run as a suite would say it, by its id, see `words`."""
        return {record.id: words(record) for _, record in self.runs}


def stored(folders: Sequence[Path]) -> Stored:
    """The runs in these folders, and two levels below them."""
    inside = dict.fromkeys(place for folder in folders for place in _places(folder))
    found = loaded([run for place in inside for run in runs_in(place)])
    runs = {run[1].id: run for run in reversed(found.runs)}
    return Stored(runs=tuple(runs.values())[::-1], damaged=found.damaged)


def _places(folder: Path) -> list[Path]:
    """This folder where it holds runs, else those two levels down that may."""
    if not folder.is_dir() or runs_in(folder):
        return [folder]
    inside = sorted(path for path in folder.iterdir() if path.is_dir() and path.name not in TRIALS)
    return [place for path in inside for place in (path, *sorted(below for below in path.iterdir() if below.is_dir()))]


def words(record: RunRecord) -> dict[str, Json]:
    """A record as a suite would say it; values that are lists are told as they are typed."""
    config = with_defaults(record.config)
    plain = {key: value for key, value in config.items() if not isinstance(value, Mapping)}
    for name, key in (("set", "settings"), ("task_set", "task_options")):
        plain[name] = {option: as_typed(value) if isinstance(value, list | tuple) else value
                       for option, value in config[key].items()}  # fmt: skip
    trained = "+".join(trained_tasks(record.method.get("training", {})))
    return {**plain, "trained_on": OWN if trained == config["task"] else trained}


def fits(pattern: Mapping[str, Json], words_of_run: Mapping[str, Json]) -> bool:
    """Whether a run is one of those that a pattern names; "own" is also the name of its task."""
    if pattern.get("trained_on") == words_of_run["task"]:
        pattern = {**pattern, "trained_on": OWN}
    return matches(pattern, words_of_run)


@dataclass(frozen=True, kw_only=True)
class Held:
    """A line of a table at a place, in a block, under one training of its adapter."""

    entry: Entry
    answers: Answers
    step: int | None = None
    fault: str = ""
    """Why nothing can be said of it, as it follows its name; empty where something can."""
    other: Held | None = None
    """The same under another text's state; None where that was not run."""

    @cached_property
    def line(self) -> Entry:
        """The entry with what its queries add at the place: those of one step, or all; of lengths all up to that one.
        What names the step is no key."""
        if self.step is None:
            return self.entry
        lengths, values = self.entry.step == LENGTHS, {}
        for query, value in self.answers.values.items():
            own = self.answers.steps.get(query[:3])
            if own == self.step or (lengths and own is not None and own < self.step):
                seed, episode, key, question = query
                name = key if lengths else key.removesuffix(f"@{self.step}")
                values[seed, episode, name, question] = value
        typed: Values = values  # type: ignore[assignment]  # of one kind, as they were
        return replace(self.entry, values=typed)

    def cost(self, cost: Cost) -> Figure | None:
        """What it cost in its runs, a draw each; None where that is not known."""
        spent = self.entry.costs.get(cost)
        if cost in COUNTED or spent is None:
            return None if spent is None else exactly(spent)
        draws = [float(drawn) for record in self.entry.records if (drawn := record.cost.get(cost)) is not None]
        return figure(draws).model_copy(update={"value": spent})

    @property
    def figure(self) -> tuple[float, float | None, int] | None:
        """(value, standard error, n) at the place; None where nothing was asked then."""
        whole = self.entry.value, self.entry.stderr, self.entry.n
        return whole if self.step is None or not self.entry.steps else self.entry.steps.get(self.step)


@dataclass(frozen=True, kw_only=True)
class Spot:
    """A place of a table in one block of runs."""

    place: Place
    scale: Scale
    block: str
    task: str
    lines: Mapping[str, Mapping[int | None, Held]]
    """By the seed of the training, None without one; those of `none` and `icl` are there whether named or not."""


def spots(name: str, which: str, stored_runs: Stored) -> list[Spot]:
    """Every place of a table, in every block in which one of its lines was run."""
    table, told = paper(name).tables[which], stored_runs.words
    places, patterns = table.places, paper(name).lines_of(table)
    lines = {end: {"method": end} for end in (FLOOR, CEILING)} | {line: patterns[line] for line in table.named}

    def are(pattern: Mapping[str, Json], record: RunRecord) -> bool:
        return fits(pattern, told[record.id])

    kept = [run for run in stored_runs.runs if any(are(place.pattern, run[1]) for place in places)
            and any(are(pattern, run[1]) for pattern in lines.values())]  # fmt: skip
    answers, _ = read_answers(kept)
    there = []
    for of_block, groups in blocks_of([run for run in kept if run[1].id in answers]):
        of_groups = []
        for group in groups:
            own = joined([answers[run] for run in group.ids])
            entry = entry_of(of_block, group.method, group, own)
            fault = entry.reason if entry.aside else "" if own.values else UNSCORED
            of_groups.append(Held(entry=entry, answers=own, fault=fault))
        scale = scale_of_model(str(groups[0].record.config.get("model")))
        for place in (place for place in places if scale in place.scales):
            held = _at(place, [one for one in of_groups if are(place.pattern, one.entry.record)])
            trainings = {line: _trainings(fitting) for line, pattern in lines.items()
                         if (fitting := [one for one in held if are(pattern, one.entry.record)])}  # fmt: skip
            if trainings.keys() & {*table.named}:
                there.append(Spot(place=place, scale=scale, block=of_block.name, task=of_block.task, lines=trainings))
    return sorted(there, key=lambda spot: places.index(spot.place))


def _at(place: Place, held: Sequence[Held]) -> list[Held]:
    """All that answered under their own state at the step of a place, each beside the same under another text's; what
    was asked less than the others has that as its fault."""
    own = [one.entry for one in held if one.entry.state_of == "own"]
    alike, lines, others = within_limit(own) if own else [], list[Held](), dict[str, Held]()
    for one in (replace(one, step=place.step) for one in held):
        if one.line.values or not one.answers.values:
            if one.entry.state_of == "other":
                others[one.entry.configured] = one
            elif one.entry.state_of == "own":
                less = "" if one.entry in alike else f"was asked less ({limit_of(one.entry)})"
                lines.append(replace(one, fault=less or one.fault))
    return [replace(one, other=others.get(one.entry.configured)) for one in lines]


def _trainings(held: Sequence[Held]) -> dict[int | None, Held]:
    """By the seed of the training; of several configurations of one seed the first, with that as its fault."""
    whole = [one for one in held if not one.fault.startswith("was asked less")] or held
    seeds = {training_seed(one.entry.record.method.get("training", {})): one for one in reversed(whole)}
    if len(seeds) < len(whole):
        fault = f"was run in {len(whole)} configurations, and which is meant is not declared"
        return {None: replace(whole[0], fault=fault)}
    return dict(sorted(seeds.items(), key=lambda item: item[0] or 0))
