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

from ttabench.core.errors import UserError
from ttabench.core.typed import as_typed
from ttabench.core.types import Json
from ttabench.methods.checkpoint_header import trained_tasks, training_seed
from ttabench.papers.declared import COUNTED, OWN, Cost, Place, Scale, Table, paper, scale_of_model
from ttabench.profiling.record import RECORD_FILE as PROFILE_FILE
from ttabench.profiling.record import ProfileRecord, load_profile
from ttabench.profiling.rows import Figure, exactly, figure
from ttabench.records.schema import RunRecord
from ttabench.report.blocks import CEILING, FLOOR, blocks_of
from ttabench.report.compare import read_answers
from ttabench.report.configuration import with_defaults
from ttabench.report.differences import Difference, difference
from ttabench.report.entries import LENGTHS, Entry, entry_of, limit_of, within_limit
from ttabench.report.finding import loaded, runs_in
from ttabench.report.pairing import Answers, Run, Values, joined
from ttabench.sweep.grid import matches

EPISODES = ("split", "source", "options", "documents", "rounds", "questions", "batch_documents")
STEPS = ("steps", "lr", "warmup", "schedule", "optimizer", "beta2", "clip", "decay")
"""What makes up the recipe of a training, see `recipe`."""
TRIALS = ("scratch", "quick")
"""Folders of folders of runs that are not looked into: what lies there was tried."""

UNSCORED, LESS = "kept no scores of its queries", "was asked less"
"""Faults; the first is none where costs are compared."""


@dataclass(frozen=True, kw_only=True)
class Stored:
    """Runs, each once, and the folders that hold it."""

    runs: tuple[Run, ...]
    suites: Mapping[str, tuple[str, ...]]
    """Names of folders, by the id of a run."""
    damaged: tuple[str, ...] = ()
    profiles: tuple[tuple[str, ProfileRecord], ...] = ()
    """Those of `ttabench profile` with the names of the folders that hold them, each once."""

    @cached_property
    def words(self) -> dict[str, dict[str, Json]]:
        """Every run as a suite would say it, by its id, see `words`."""
        return {record.id: words(record) for _, record in self.runs}


def stored(folders: Sequence[Path]) -> Stored:
    """The runs and profiles in these folders, and two levels below them."""
    inside = list(dict.fromkeys(place for folder in folders for place in _places(folder)))
    runs: dict[str, Run] = {}
    suites: dict[str, dict[str, None]] = {}
    profiles: dict[str, tuple[str, ProfileRecord]] = {}
    loaded_runs = loaded([run for place in inside for run in runs_in(place)])
    damaged = list(loaded_runs.damaged)
    for folder, record in loaded_runs.runs:
        runs.setdefault(record.id, (folder, record))
        suites.setdefault(record.id, {})[folder.parent.name] = None
    for file in (file for place in inside for file in sorted(place.glob(f"*/{PROFILE_FILE}"))):
        try:
            profile = load_profile(file.parent)
        except UserError as error:
            damaged.append(str(error))
        else:
            profiles.setdefault(profile.id, (file.parent.parent.name, profile))
    return Stored(runs=tuple(runs.values()), suites={run: tuple(names) for run, names in suites.items()},
                  damaged=tuple(damaged), profiles=tuple(profiles.values()))  # fmt: skip


def _places(folder: Path) -> list[Path]:
    """This folder where it holds runs or profiles, else those two levels down that may."""
    if not folder.is_dir() or runs_in(folder) or any(folder.glob(f"*/{PROFILE_FILE}")):
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


def recipe(record: RunRecord) -> Json:
    """What an adapter was trained by, without the seed of its training: of two trainings by one recipe it is the same.

    None for a method that was not trained.
    """
    training = record.method.get("training")
    if not training:
        return None
    config = training["config"]
    data = {name: config["data"].get(name) for name in EPISODES}
    steps = {name: value for name, value in config.items() if name in STEPS}
    settings = {name: value for name, value in with_defaults(record.config)["settings"].items() if name != "seed"}
    return {"tasks": trained_tasks(training), "data": data, "steps": steps, "settings": settings}


@dataclass(frozen=True, kw_only=True)
class Held:
    """A line of a table at a place, in a block, under one training of its adapter."""

    entry: Entry
    answers: Answers
    step: int | None = None
    suites: tuple[str, ...] = ()
    """Folders that hold its runs."""
    fault: str = ""
    """Why nothing can be said of it, as it follows its name; empty where something can."""
    other: Held | None = None
    """The same under another text's state; None where that was not run."""

    @cached_property
    def values(self) -> Values:
        """What its queries add at the place."""
        return self.at(self.step)

    @cached_property
    def control(self) -> Difference | None:
        """Under its own state less under another text's."""
        if self.other is None:
            return None
        return difference(replace(self.entry, values=self.values), replace(self.entry, values=self.other.values))

    def at(self, step: int | None) -> Values:
        """What its queries of one step add, or all; of lengths all up to that one. What names the step is no key."""
        if step is None:
            return self.answers.values
        lengths, values = self.entry.step == LENGTHS, {}
        for query, value in self.answers.values.items():
            own = self.answers.steps.get(query[:3])
            if own == step or (lengths and own is not None and own < step):
                seed, episode, key, question = query
                values[query if lengths else (seed, episode, key.removesuffix(f"@{step}"), question)] = value
        return values  # type: ignore[return-value]  # of one kind, as they were

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
    places, patterns = [place for place in table.places if place.runs is not None], paper(name).lines_of(table)
    ends = (FLOOR, CEILING) if any(not claim.cost for claim in table.claims) else ()
    lines = {end: {"method": end} for end in ends} | {line: patterns[line] for line in named(table)}
    read = {"own": set(lines), "other": {claim.left for claim in table.claims if not claim.cost}}

    def are(pattern: Mapping[str, Json], record: RunRecord) -> bool:
        return fits(pattern, told[record.id])

    kept = [
        (folder, record) for folder, record in stored_runs.runs
        if any(are(place.pattern, record) for place in places)
        and any(are(lines[line], record) for line in read.get(record.state_of, ()))
    ]  # fmt: skip
    answers, _ = read_answers(kept)
    there = []
    for of_block, groups in blocks_of([run for run in kept if run[1].id in answers]):
        of_groups = []
        for group in groups:
            own = joined([answers[run] for run in group.ids])
            entry = entry_of(of_block, group.method, group, own)
            suites = dict.fromkeys(name for run in group.ids for name in stored_runs.suites[run])
            fault = entry.reason if entry.aside else "" if own.values else UNSCORED
            of_groups.append(Held(entry=entry, answers=own, suites=tuple(suites), fault=fault))
        scale = scale_of_model(str(groups[0].record.config.get("model")))
        for place in (place for place in places if scale in place.scales):
            held = _at(place, [one for one in of_groups if are(place.pattern, one.entry.record)])
            trainings = {line: _trainings(fitting) for line, pattern in lines.items()
                         if (fitting := [one for one in held if are(pattern, one.entry.record)])}  # fmt: skip
            if trainings.keys() & {*named(table)}:
                there.append(Spot(place=place, scale=scale, block=of_block.name, task=of_block.task, lines=trainings))
    return sorted(there, key=lambda spot: places.index(spot.place))


def named(table: Table) -> list[str]:
    """The lines that the claims of a table name, each once."""
    names = (name for claim in table.claims for name in (claim.left, claim.right, claim.floor) if name)
    return list(dict.fromkeys(names))


def _at(place: Place, held: Sequence[Held]) -> list[Held]:
    """All that answered under their own state at the step of a place, each beside the same under another text's."""
    own = [one.entry for one in held if one.entry.state_of == "own"]
    alike, lines, others = within_limit(own) if own else [], list[Held](), dict[str, Held]()
    for one in (replace(one, step=place.step) for one in held):
        if one.values or not one.answers.values:
            if one.entry.state_of == "other":
                others[one.entry.configured] = one
            elif one.entry.state_of == "own":
                less = "" if one.entry in alike else f"{LESS} ({limit_of(one.entry)})"
                lines.append(replace(one, fault=less or one.fault))
    return [replace(one, other=others.get(one.entry.configured)) for one in lines]


def _trainings(held: Sequence[Held]) -> dict[int | None, Held]:
    """Those of one recipe by the seed of the training; of several configurations the first, with that as its fault."""
    whole = [one for one in held if not one.fault.startswith(LESS)] or held
    recipes = {repr(recipe(one.entry.record) or one.entry.configured) for one in whole}
    if len(recipes) > 1:
        fault = f"was run in {len(recipes)} configurations, and which is meant is not declared"
        return {None: replace(whole[0], fault=fault)}
    seeds = {training_seed(one.entry.record.method.get("training", {})): one for one in reversed(whole)}
    return dict(sorted(seeds.items(), key=lambda item: item[0] or 0))
