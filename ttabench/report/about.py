"""What a record says of its run, as tables for people: command, settings, costs, machine, figures."""

from __future__ import annotations

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
from ttabench.run.budget import asked_of, told_kept
from ttabench.terminal.table import Table

MOST_SUBTASKS = 8
"""Whose figures are shown without --all."""
VERSIONS = ("torch", "transformers", "python")
"""Of all that a record names, those that are shown without --all."""
COSTS = {
    "adapt_seconds": "{} s to adapt", "ask_ms": "{} ms a query", "state_bytes": "{} of state",
    "kept_share": "kept {} of full context's bytes",
    "peak_memory_bytes": "{} at most", "tokens_read": "{} tokens read", "wall_seconds": "{} s in all",
}  # fmt: skip


def about_tables(record: RunRecord, *, everything: bool) -> list[Table]:
    """The run as one block, then its figures; with `everything` its whole configuration and all costs, too."""
    tables = [_about(record, everything=everything), _figures(record, everything=everything)]
    if everything:
        tables[1:1] = [_configuration(record), _all_costs(record)]
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
        "costs": _costs(record),
        "made": _made(record, everything=everything),
        "machine": _machine(record),
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


def _costs(record: RunRecord) -> str:
    def told(name: str, value: float | int) -> str:
        if name == "kept_share":
            return told_kept(value, asked_of(record.config))
        if name.endswith("_bytes"):
            return size(value)
        return f"{value:,}" if isinstance(value, int) else number(value, 2 if name.endswith("_seconds") else 1)

    costs = ((text, name, record.cost.get(name)) for name, text in COSTS.items())
    return ", ".join(text.format(told(name, value)) for text, name, value in costs if value is not None)


def _made(record: RunRecord, *, everything: bool) -> str:
    code, versions = record.code, dict(record.versions)
    changed = ", changed" if code.get("changed") else ""
    commit = f" (commit {str(code.get('commit'))[:7]}{changed})" if code.get("commit") else ""
    others = list(versions) if everything else [name for name in VERSIONS if name in versions]
    libraries = ", ".join(f"{name} {versions[name]}" for name in others if name != "ttabench")
    made = record.created[:16].replace("T", " ")
    return f"{made} UTC by ttabench {versions.get('ttabench', '?')}{commit}, {libraries}"


def _machine(record: RunRecord) -> str:
    hardware = record.hardware
    counts = [(hardware[name], name) for name in ("cores", "threads") if hardware.get(name)]
    memory = size(hardware["memory_bytes"]) if hardware.get("memory_bytes") else ""
    words = [str(hardware.get("cpu", "")), name_of(hardware),
             *(f"{amount} {name if amount != 1 else name[:-1]}" for amount, name in counts),
             memory, str(hardware.get("system") or "")]  # fmt: skip
    return ", ".join(filter(None, words))


def _configuration(record: RunRecord) -> Table:
    """Everything that decides what was computed; what is no default is marked, and stands first."""
    config, differing = flat(whole(record.config).to_json()), changes(record.config)
    rows = tuple(
        (key, as_typed(config[key]) or "-", "" if key in differing or key in NAMED else "default")
        for key in sorted(config, key=lambda key: key not in differing)
    )
    return Table(title="configuration", columns=("setting", "value", ""), rows=rows, names=("setting",))


def _all_costs(record: RunRecord) -> Table:
    rows = tuple((name.replace("_", " "), figure(name, value)) for name, value in record.cost.items())
    return Table(title="costs", columns=("of the whole run", "#"), rows=rows, names=("of the whole run",))


def _figures(record: RunRecord, *, everything: bool) -> Table:
    main, chance = record.main_metric, record.task.get("chance")
    figures = list(record.rows) if everything else main_rows(record)
    by_chance = f", by chance {shown(main, chance, None)}" if chance else ""
    caption = f"Main metric: {main}{by_chance}."
    parts = sum(bool(row.subtask) for row in figures)
    if not everything and parts > MOST_SUBTASKS:
        figures = [row for row in figures if not row.subtask]
        caption += f" Figures of {parts} sub-tasks: --all."
    rows = tuple(
        (("* " if row.metric == main else "  ") + named(row), shown(row.metric, row.value, row.stderr),
         _interval(row), f"{row.n:,}")
        for row in figures if not told_already(row, record)
    )  # fmt: skip
    return Table(
        title="figures", columns=("metric", "#value ± stderr", "#95 % interval", "#n"), rows=rows,
        data=tuple(row.model_dump() for row in figures), names=("metric",), caption=caption,
    )  # fmt: skip


def _interval(row: Row) -> str:
    if row.ci_low is None or row.ci_high is None:
        return "-"
    return f"[{shown(row.metric, row.ci_low, None)}, {shown(row.metric, row.ci_high, None)}]"
