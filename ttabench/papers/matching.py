"""Which stored runs stand for a line of a table: their records in the words of a suite, held against its patterns.

words(record)       {"method": "mac", "task": "streamingqa", "set": {"hierarchy": 16, ...}, "trained_on": "own"}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ttabench.core.architectures import NANO
from ttabench.core.typed import as_typed
from ttabench.core.types import Json
from ttabench.papers.declared import OWN, Scale
from ttabench.records.schema import RunRecord
from ttabench.report.configuration import with_defaults
from ttabench.report.finding import runs_below, runs_in
from ttabench.report.loading import loaded
from ttabench.report.pairing import Run
from ttabench.sweep.grid import matches

TRIALS = ("scratch", "quick")
"""Folders of folders of runs that are not looked into: what lies there was tried."""


@dataclass(frozen=True, kw_only=True)
class Stored:
    """Runs, each once, and the folders that hold it."""

    runs: tuple[Run, ...]
    suites: Mapping[str, tuple[str, ...]]
    """Names of folders, by the id of a run."""
    damaged: tuple[str, ...] = ()
    """A line for every run that cannot be read."""


def stored(folders: Sequence[Path]) -> Stored:
    """The runs in these folders, and two levels below them."""
    runs: dict[str, Run] = {}
    suites: dict[str, dict[str, None]] = {}
    damaged: list[str] = []
    found = loaded([run for folder in folders for suite in _suites(folder) for run in runs_in(suite)])
    damaged += found.damaged
    for folder, record in found.runs:
        runs.setdefault(record.id, (folder, record))
        suites.setdefault(record.id, {})[folder.parent.name] = None
    return Stored(runs=tuple(runs.values()), suites={run: tuple(names) for run, names in suites.items()},
                  damaged=tuple(damaged))  # fmt: skip


def _suites(folder: Path) -> list[Path]:
    """Folders that hold runs: this one, or some below it."""
    if not folder.is_dir():
        return []
    if runs_in(folder):
        return [folder]
    inside = sorted(each for each in folder.iterdir() if each.is_dir() and each.name not in TRIALS)
    return list(dict.fromkeys(run.parent for each in inside for run in runs_below(each, 1)))


def scale_of(record: RunRecord) -> Scale:
    """At which scale a run was made."""
    model = str(record.config.get("model"))
    return "nano" if model == NANO else "smollm2-135m" if model == "smollm2-135m" else "full"


def words(record: RunRecord) -> dict[str, Json]:
    """A record as a suite would say it; values that are lists are told as they are typed."""
    config = with_defaults(record.config)
    told = {key: value for key, value in config.items() if not isinstance(value, Mapping)}
    for name, key in (("set", "settings"), ("task_set", "task_options")):
        told[name] = {each: _text(value) for each, value in config[key].items()}
    trained = str(record.method.get("training", {}).get("config", {}).get("data", {}).get("task", ""))
    return {**told, "trained_on": OWN if trained == config["task"] else trained}


def fits(pattern: Mapping[str, Json], told: Mapping[str, Json]) -> bool:
    """Whether a run is one of those that a pattern names; "own" is also the name of its task."""
    if pattern.get("trained_on") == told["task"]:
        pattern = {**pattern, "trained_on": OWN}
    return matches(pattern, told)


def _text(value: Json) -> Json:
    return as_typed(value) if isinstance(value, list | tuple) else value
