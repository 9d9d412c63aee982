"""Page of the trained adapters that are not bundled: training curves and scores. Nothing here is
typed by hand.

    python results/tried.py add NAME FOLDER RUNS [AFTER]     add a training and the runs of its adapter to tried.json
    python results/tried.py                                  tried.md, from tried.json

AFTER names the checkpoint that a training continued, if it is not the bundled adapter.

An adapter that is not bundled has no runs in the suites, because nobody could repeat them without
it. Its curve and its scores are stored here.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from ttabench.core.amounts import format_count
from ttabench.methods import registry
from ttabench.methods.checkpoints import read_header, trained_tasks
from ttabench.records.schema import load_record
from ttabench.report.compare import compare_runs
from ttabench.report.groups import STATE_SUFFIXES
from ttabench.report.method_rows import format_value
from ttabench.report.selection import list_runs
from ttabench.report.stored import StoredRun

HERE = Path(__file__).resolve().parent
STORED, PAGE = HERE / "tried.json", HERE / "tried.md"
PARTS = 6
"""Number of segments of the curve."""
ASIDE = ("step", "loss", "lr", "gradient", "tokens_per_second")


def trained(folder: Path) -> dict[str, Any]:
    """Read a training folder: its header, and the mean of each part of the loss per segment of
    steps.
    """
    stored = read_header(folder)
    training: dict[str, Any] = dict(stored.training)
    lines = [
        json.loads(line)
        for line in (folder / "curve.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    steps = [line for line in lines if "loss" in line]
    names = [
        name for name in dict.fromkeys(key for line in steps for key in line) if name not in ASIDE
    ]
    curve = []
    for number in range(PARTS):
        part = steps[number * len(steps) // PARTS : (number + 1) * len(steps) // PARTS]
        means = {
            name: round(fmean(values), 3)
            for name in names
            if (values := [x[name] for x in part if name in x])
        }
        curve.append({"to": part[-1]["step"], **means})
    kept = ("steps", "seconds", "tokens", "observes", "asks", "validation", "config")
    return {
        "method": stored.method,
        "settings": stored.settings,
        **{key: training[key] for key in kept},
        "curve": curve,
    }


def figures(runs: Path) -> dict[str, dict[str, str]]:
    """Return the main metric by state and task, pooled over draws as in `ttabench compare`."""
    cells: dict[str, dict[str, list[StoredRun]]] = {}
    for folder in list_runs(runs):
        run = load_record(folder)
        line = f"{run.config['method']}{STATE_SUFFIXES[run.state_of]}"
        column = f"{run.config['task']} ({run.main_metric})"
        cells.setdefault(line, {}).setdefault(column, []).append((folder, run))
    by_line: dict[str, dict[str, str]] = {}
    for line, columns in cells.items():
        method_rows = {
            column: compare_runs(column_entries).method_rows[0]
            for column, column_entries in columns.items()
        }
        by_line[line] = {
            column: format_value(each.metric, each.value, each.stderr)
            for column, each in method_rows.items()
        }
        by_line[line] |= {
            f"{column.partition(' ')[0]} at {step}": value
            for column, column_entries in columns.items()
            for step, value in by_step(column_entries).items()
        }
    return by_line


def by_step(runs: list[StoredRun]) -> dict[int, str]:
    """Return the main metric at each step of a task, mean over draws, per cent."""
    rows = [
        row
        for _, run in runs
        for row in run.rows
        if row.metric == run.main_metric and row.subtask is None
    ]
    steps = sorted({row.step for row in rows if row.step is not None})
    return {
        step: f"{100 * fmean(row.value for row in rows if row.step == step):.1f}" for step in steps
    }


def page(stored: dict[str, Any]) -> str:
    """Return the page of all stored trainings."""
    parts = [
        "# tried\n\nAdapters that are not bundled: training curves and scores, from `python results/tried.py`.\n"
    ]
    for name, training in stored.items():
        parts += [
            f"## {name}\n",
            f"{_how(training)}\n",
            _table("to step", [(str(x["to"]), x) for x in training["curve"]]),
        ]
        parts.append(_table("test split", list(training["figures"].items())))
    return "\n".join(parts)


def _how(training: dict[str, Any]) -> str:
    config, data = training["config"], training["config"]["data"]
    tasks = " + ".join(trained_tasks(training))
    words = [f"`{training['method']}`", *settings_of(training), f"on {tasks}", *data["options"]]
    begun = (
        "" if config["fresh"] else f", continued from {training['after'] or 'the bundled adapter'}"
    )
    return (
        f"{' '.join(words)}{begun}: {training['steps']} of {config['steps']} steps, "
        f"{format_count(training['tokens'])} tokens, {training['asks']:,} queries, rate {config['lr']:g} "
        f"({config['schedule']}, {config['optimizer']}), seed {config['seed']}, "
        f"{training['seconds'] / 60:.0f} minutes on a shared machine."
    )


def settings_of(training: dict[str, Any]) -> list[str]:
    """Return the nearest preset of a training's settings, and the settings that differ from it."""
    differing = {
        name: {
            key: value
            for key, value in training["settings"].items()
            if key in plain and value != json.loads(json.dumps(plain[key]))
        }
        for name, preset in registry.find_method(training["method"]).presets.items()
        for plain in [asdict(preset)]
    }
    name = min(differing, key=lambda each: len(differing[each]))
    return [f"(preset {name})", *(f"{key}={value}" for key, value in differing[name].items())]


def _table(head: str, rows: list[tuple[str, dict[str, Any]]]) -> str:
    columns = list(dict.fromkeys(key for _, cells in rows for key in cells if key != "to"))
    lines = [f"| {head} | {' | '.join(columns)} |", f"| --- |{' ---: |' * len(columns)}"]
    lines += [
        f"| {name} | {' | '.join(str(cells.get(column, '')) for column in columns)} |"
        for name, cells in rows
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the command line."""
    stored: dict[str, Any] = (
        json.loads(STORED.read_text(encoding="utf-8")) if STORED.is_file() else {}
    )
    if sys.argv[1:2] == ["add"]:
        name, folder, runs, *after = sys.argv[2:]
        stored[name] = {
            **trained(Path(folder)),
            "figures": figures(Path(runs)),
            "after": " ".join(after),
        }
        STORED.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(stored), encoding="utf-8")


if __name__ == "__main__":
    main()
