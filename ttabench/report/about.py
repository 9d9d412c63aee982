"""What a record says of its run, as tables for people: command, settings, costs, machine, figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ttabench.core.accelerators import name_of
from ttabench.core.amounts import count, figure, number, size
from ttabench.core.architectures import NANO
from ttabench.core.typed import as_typed
from ttabench.core.types import Json
from ttabench.records.schema import Row, RunRecord
from ttabench.report.command import command_of
from ttabench.report.configuration import NAMED, changes, flat, whole
from ttabench.report.figures import shown
from ttabench.report.tables import answering, main_rows, named, told_already
from ttabench.terminal.table import Cell, Table

MOST_SUBTASKS = 8
"""Whose figures are shown without --all."""
VERSIONS = ("torch", "transformers", "python")
"""Of all that a record names, those that are shown without --all."""


def about_tables(record: RunRecord, *, everything: bool) -> list[Table]:
    """The run as one block, then its figures; with `everything` its whole configuration and all costs, too."""
    tables = [_about(record, everything=everything), _figures(record, everything=everything)]
    if everything:
        tables[1:1] = [_configuration(record), _costs(record)]
    return tables


def as_json(record: RunRecord, folder: Path) -> dict[str, Json]:
    """The record with its command, for other programs."""
    return {**record.model_dump(mode="json"), "command": command_of(record)[0], "folder": str(folder)}


def _about(record: RunRecord, *, everything: bool) -> Table:
    command, caveat = command_of(record)
    about = {
        "what": f"{answering(record)} on {record.config.get('task')} ({record.source}), base {record.base}",
        "command": command,
        "settings": "" if everything else _differing(record) or "the defaults",
        "model": _model(record),
        "costs": _told_costs(record.cost),
        "made": _made(record, everything=everything),
        "machine": _machine(record.hardware),
        "left out": ", ".join(f"{rows} rows: {why}" for why, rows in record.dropped.items()),
        "notes": "\n".join((*record.notes, *caveat, *_changed(record))),
    }
    kept = {key: value for key, value in about.items() if value}
    return Table(title="", columns=("run", *kept), rows=((record.id, *kept.values()),), prose=True)


def _changed(record: RunRecord) -> list[str]:
    """Whether the command would read another model than the run did."""
    from ttabench.lm.loading.hub import digest_of

    before = record.config.get("inputs", {}).get("model")
    if record.config.get("model") == NANO and before and before != digest_of(NANO):
        return ["nano has changed since: the command makes a new run, with another id"]
    return []


def _differing(record: RunRecord) -> str:
    """Options that are no defaults, presets included."""
    preset = record.config.get("preset")
    assignments = [f"{key}={as_typed(value)}" for key, value in changes(record.config).items()]
    return ", ".join([*([f"preset {preset}"] if preset else []), *assignments])


def _model(record: RunRecord) -> str:
    model = record.model
    parts = [f"{count(model.get('parameters'))} parameters", f"{model.get('dtype')} on {model.get('device')}"]
    if added := record.method.get("parameters"):
        parts.append(f"{count(added)} added by {record.config.get('method')}")
    if checkpoint := record.config.get("checkpoint"):
        parts.append(f"checkpoint {checkpoint}")
    return ", ".join(parts)


def _told_costs(cost: Mapping[str, float | int | None]) -> str:
    parts = {
        "adapt_seconds": "{} s to adapt", "ask_ms": "{} ms a query", "state_bytes": "{} of state",
        "peak_memory_bytes": "{} at most", "tokens_read": "{} tokens read", "wall_seconds": "{} s in all",
    }  # fmt: skip
    return ", ".join(text.format(_cost(name, cost[name])) for name, text in parts.items() if cost.get(name) is not None)


def _cost(name: str, value: float | int | None) -> str:
    if name.endswith("_bytes"):
        return size(value)
    return f"{value:,}" if isinstance(value, int) else number(value, 2 if name.endswith("_seconds") else 1)


def _made(record: RunRecord, *, everything: bool) -> str:
    code, versions = record.code, dict(record.versions)
    commit = (
        f" (commit {str(code.get('commit'))[:7]}{', changed' if code.get('changed') else ''})"
        if code.get("commit")
        else ""
    )
    others = list(versions) if everything else [name for name in VERSIONS if name in versions]
    libraries = ", ".join(f"{name} {versions[name]}" for name in others if name != "ttabench")
    made = record.created[:16].replace("T", " ")
    return f"{made} UTC by ttabench {versions.get('ttabench', '?')}{commit}, {libraries}"


def _machine(hardware: Mapping[str, Json]) -> str:
    words = [name for name in (str(hardware.get("cpu", "")), name_of(hardware)) if name]
    words += [
        f"{hardware[name]} {name if hardware[name] != 1 else name[:-1]}"
        for name in ("cores", "threads")
        if hardware.get(name)
    ]
    words += [size(hardware["memory_bytes"])] if hardware.get("memory_bytes") else []
    return ", ".join([*words, *([str(hardware["system"])] if hardware.get("system") else [])])


def _configuration(record: RunRecord) -> Table:
    """Everything that decides what was computed; what is no default is marked, and stands first."""
    config = flat(whole(record.config).to_json())
    differing = changes(record.config)
    keys = [*(key for key in config if key in differing), *(key for key in config if key not in differing)]
    rows = tuple(
        (key, as_typed(config[key]) or "-", "" if key in differing or key in NAMED else "default") for key in keys
    )
    return Table(title="configuration", columns=("setting", "value", ""), rows=rows, names=("setting",))


def _costs(record: RunRecord) -> Table:
    rows = tuple((name.replace("_", " "), figure(name, value)) for name, value in record.cost.items())
    rows += tuple((f"{phase} path", path) for phase, path in record.paths.items())
    return Table(title="costs", columns=("of the whole run", "#"), rows=rows, names=("of the whole run",))


def _figures(record: RunRecord, *, everything: bool) -> Table:
    main_figures, caption = list(record.rows), ""
    if not everything:
        main_figures = main_rows(record)
        parts = [row for row in main_figures if row.subtask]
        if len(parts) > MOST_SUBTASKS:
            main_figures = [row for row in main_figures if not row.subtask]
            caption = f"Figures of {len(parts)} sub-tasks: --all"
    rows, data = _lines(main_figures, record)
    main, chance = record.main_metric, record.task.get("chance")
    sentences = [
        f"Main metric: {main}" + (f", by chance {shown(main, chance, None)}" if chance else ""),
        caption,
    ]
    return Table(
        title="figures", columns=("metric", "#value ± stderr", "#95 % interval", "#n"), rows=rows, data=data,
        names=("metric",), caption=". ".join(filter(None, sentences)) + ".",
    )  # fmt: skip


def _lines(
    figures: Sequence[Row], record: RunRecord
) -> tuple[tuple[tuple[str, ...], ...], tuple[Mapping[str, Cell], ...]]:
    rows = tuple(
        (("* " if row.metric == record.main_metric else "  ") + named(row), shown(row.metric, row.value, row.stderr),
         _interval(row), f"{row.n:,}")
        for row in figures if not told_already(row, record)
    )  # fmt: skip
    return rows, tuple(row.model_dump() for row in figures)


def _interval(row: Row) -> str:
    if row.ci_low is None or row.ci_high is None:
        return "-"
    return f"[{shown(row.metric, row.ci_low, None)}, {shown(row.metric, row.ci_high, None)}]"
