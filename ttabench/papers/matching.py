"""Which stored runs stand for a line of a table: their records in the words of a suite, held against its patterns.

words(record)       {"method": "mac", "task": "streamingqa", "set": {"hierarchy": 16, ...}, "trained_on": "own"}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ttabench.core.errors import UserError
from ttabench.core.typed import as_typed
from ttabench.core.types import Json
from ttabench.methods.checkpoint_header import trained_tasks
from ttabench.papers.declared import OWN, Scale, scale_of_model
from ttabench.profiling.record import RECORD_FILE as PROFILE_FILE
from ttabench.profiling.record import ProfileRecord, load_profile
from ttabench.records.schema import RunRecord
from ttabench.report.configuration import with_defaults
from ttabench.report.finding import runs_below, runs_in
from ttabench.report.loading import loaded
from ttabench.report.pairing import Run
from ttabench.sweep.grid import matches

EPISODES = ("split", "source", "options", "documents", "rounds", "questions", "batch_documents")
STEPS = ("steps", "lr", "warmup", "schedule", "optimizer", "beta2", "clip", "decay", "accumulate")
"""What makes up the recipe of a training, see `recipe`."""
TRIALS = ("scratch", "quick")
"""Folders of folders of runs that are not looked into: what lies there was tried."""


@dataclass(frozen=True, kw_only=True)
class Stored:
    """Runs, each once, and the folders that hold it."""

    runs: tuple[Run, ...]
    suites: Mapping[str, tuple[str, ...]]
    """Names of folders, by the id of a run."""
    damaged: tuple[str, ...] = ()
    """A line for every run or profile that cannot be read."""
    profiles: tuple[tuple[str, ProfileRecord], ...] = ()
    """Those of `ttabench profile` with the names of the folders that hold them, each once."""


def stored(folders: Sequence[Path]) -> Stored:
    """The runs and profiles in these folders, and two levels below them."""
    runs: dict[str, Run] = {}
    suites: dict[str, dict[str, None]] = {}
    damaged: list[str] = []
    loaded_runs = loaded([run for folder in folders for suite in _suites(folder) for run in runs_in(suite)])
    damaged += loaded_runs.damaged
    profiles = _profiles([place for folder in folders for place in _profiled(folder)], damaged)
    for folder, record in loaded_runs.runs:
        runs.setdefault(record.id, (folder, record))
        suites.setdefault(record.id, {})[folder.parent.name] = None
    return Stored(runs=tuple(runs.values()), suites={run: tuple(names) for run, names in suites.items()},
                  damaged=tuple(damaged), profiles=profiles)  # fmt: skip


def _suites(folder: Path) -> list[Path]:
    """Folders that hold runs: this one, or some below it."""
    if not folder.is_dir():
        return []
    if runs_in(folder):
        return [folder]
    inside = sorted(path for path in folder.iterdir() if path.is_dir() and path.name not in TRIALS)
    return list(dict.fromkeys(run.parent for path in inside for run in runs_below(path, 1)))


def _profiled(folder: Path) -> list[Path]:
    """Folders that hold profiles: this one, or those below it."""
    if not folder.is_dir() or any(folder.glob(f"*/{PROFILE_FILE}")):
        return [folder]
    inside = sorted(path for path in folder.iterdir() if path.is_dir() and path.name not in TRIALS)
    return list(dict.fromkeys(file.parent.parent for path in inside for depth in ("*", "*/*")
                              for file in sorted(path.glob(f"{depth}/{PROFILE_FILE}"))))  # fmt: skip


def _profiles(folders: Sequence[Path], damaged: list[str]) -> tuple[tuple[str, ProfileRecord], ...]:
    """Profiles, each once, with the name of the folder that holds it.

    Args:
        folders: of profiles.
        damaged: takes a line for every one that cannot be read.
    """
    profiles: dict[str, tuple[str, ProfileRecord]] = {}
    for file in (file for folder in folders for file in sorted(folder.glob(f"*/{PROFILE_FILE}"))):
        try:
            record = load_profile(file.parent)
        except UserError as error:
            damaged.append(str(error))
        else:
            profiles.setdefault(record.id, (file.parent.parent.name, record))
    return tuple(profiles.values())


def scale_of(record: RunRecord) -> Scale:
    """At which scale a run was made."""
    return scale_of_model(str(record.config.get("model")))


def words(record: RunRecord) -> dict[str, Json]:
    """A record as a suite would say it; values that are lists are told as they are typed."""
    config = with_defaults(record.config)
    plain_options = {key: value for key, value in config.items() if not isinstance(value, Mapping)}
    for name, key in (("set", "settings"), ("task_set", "task_options")):
        plain_options[name] = {key_of_option: _text(value) for key_of_option, value in config[key].items()}
    trained = "+".join(trained_tasks(record.method.get("training", {})))
    return {**plain_options, "trained_on": OWN if trained == config["task"] else trained}


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


def _text(value: Json) -> Json:
    return as_typed(value) if isinstance(value, list | tuple) else value
