"""Tables of runs for `eval`, `list runs` and `show`, and the command that repeats a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING, Any, TypeAlias

from ttabench.core.amounts import (
    format_bytes,
    format_count,
    format_figure,
    format_number,
    parse_tokens,
)
from ttabench.core.architectures import NANO
from ttabench.core.declared import format_setting, option_fields
from ttabench.core.digests import non_default_values
from ttabench.core.errors import UserError
from ttabench.core.types import Json
from ttabench.readers.cards import Card, load_card
from ttabench.readers.sources import default_source
from ttabench.records.run_fields import RunConfig, RunFields
from ttabench.records.schema import Row, RunRecord
from ttabench.report.groups import STATE_SUFFIXES
from ttabench.report.method_rows import format_value, machine_name, value_over_runs
from ttabench.report.stored import (
    LISTED_FIELDS,
    describe_options,
    flatten_config,
    full_config,
    load_values,
    non_default_options,
)
from ttabench.run.budget import budget_of_config, format_kept_share
from ttabench.run.plan import BUILTIN_ORIGIN
from ttabench.run.request import MODEL_ALIASES, NO_CHECKPOINT, RunRequest
from ttabench.run.resolve import resolve_method, resolve_prompt
from ttabench.terminal.table import Cell, Table

if TYPE_CHECKING:
    from ttabench.run.plan import Plan

COST_COLUMNS = ("#adapt s", "#ask ms", "#state", "#peak memory", "#kept")
"""Cost columns of `eval`; the last only for methods with a budget."""
SHOWN_COSTS = (
    "adapt_seconds",
    "ask_ms",
    "state_bytes",
    "peak_memory_bytes",
    "tokens_read",
    "wall_seconds",
)
"""Costs that `show` prints without --all."""


def run_table(runs: Sequence[tuple[RunRecord, Path]]) -> Table:
    """Return main metric and cost of each run; the caption has the other metrics and the paths."""
    first, several = runs[0][0], len(runs) > 1
    rows, data = [], []
    columns = (
        COST_COLUMNS
        if any("kept_share" in record.cost for record, _ in runs)
        else COST_COLUMNS[:-1]
    )
    for record, _ in runs:
        cost = record.cost
        kept = format_kept_share(cost.get("kept_share"), budget_of_config(record.config))
        sizes = (format_bytes(cost.get(name)) for name in ("state_bytes", "peak_memory_bytes"))
        costs = (
            format_number(cost.get("adapt_seconds"), 2),
            format_number(cost.get("ask_ms"), 1),
            *sizes,
            kept,
        )[: len(columns)]
        data += [{**row.model_dump(), **cost} for row in main_rows(record)]
        for row in (row for row in main_rows(record) if row.metric == record.main_metric):
            rows.append(
                (
                    str(row.seed),
                    row_name(row),
                    format_value(row.metric, row.value, row.stderr),
                    str(row.n),
                    *costs,
                )
            )
            costs = ("",) * len(costs)  # only in the first row of a run
    others = [row.metric for row in main_rows(first) if row.metric != first.main_metric]
    if several:
        rows.append(
            (
                "all",
                first.main_metric,
                *_pooled_figure(runs, first.main_metric),
                *("",) * len(columns),
            )
        )
    other_values = ", ".join(f"{metric} {_pooled_figure(runs, metric)[0]}" for metric in others)
    paths = [str(path) for _, path in runs]
    remarks = [f"Main metric: {first.main_metric}."]
    if other_values:
        remarks[0] += f" Others: {other_values}."
    remarks.append(f"Stored in {', '.join(paths)}")
    if several:
        remarks.append(f"Compare: ttabench compare {' '.join(paths)}")
    return Table(
        title=f"{method_with_state(first)} on {first.config['task']} ({first.source}), base {first.base}",
        columns=("#seed", "metric", "#value ± stderr", "#n", *columns),
        rows=tuple(rows),
        data=tuple(data),
        caption="\n".join(remarks),
        names=("metric",),
        spare=("#peak memory", "#ask ms"),
    )


def _pooled_figure(runs: Sequence[tuple[RunRecord, Path]], metric: str) -> tuple[str, str]:
    """Return (formatted value, n) of a metric over runs that differ only in their seed."""
    rows_of_metric = [row for record, _ in runs if (row := record.value(metric)) is not None]
    if len(runs) == 1:
        return format_value(metric, rows_of_metric[0].value, rows_of_metric[0].stderr), str(
            rows_of_metric[0].n
        )
    kept = load_values([(path, record) for record, path in runs], metric)
    value, stderr, n = value_over_runs(rows_of_metric, list(kept.values()))
    return format_value(metric, value, stderr), str(n)


def method_with_state(record: RunRecord) -> str:
    """Return the method, with the state that answered if it is swapped or empty."""
    return f"{record.config.get('method', '')}{STATE_SUFFIXES[record.state_of]}"


def row_name(row: Row) -> str:
    """Return the metric of a row, with its step and sub-task."""
    step = f" @{row.step}" if row.step is not None else ""
    return row.metric + step + (f", {row.subtask}" if row.subtask else "")


def main_rows(record: RunRecord) -> list[Row]:
    """Return the rows over all queries, main metric first, then that metric by step and sub-task."""
    whole = [row for row in record.rows if row.step is None and row.subtask is None]
    main = [row for row in record.rows if row.metric == record.main_metric]
    steps = [row for row in main if row.step is not None and row.subtask is None]
    whole.sort(key=lambda row: row.metric != record.main_metric)
    return whole + steps + [row for row in main if row.step is None and row.subtask is not None]


RunLine: TypeAlias = tuple[Sequence[str], dict[str, Cell]]
"""Table cells and JSON data of a run in `list runs`."""


def run_line(record: RunRecord) -> RunLine:
    """Return the cells and data of a run for `list runs`."""
    config, row = record.config, record.value(record.main_metric)
    settings = describe_options(record)
    value = (
        "-" if row is None else f"{row.metric} {format_value(row.metric, row.value, row.stderr)}"
    )
    task, seed = str(config.get("task", "")), config.get("seed", "")
    created = record.created[:16].replace("T", " ")
    cells = (
        record.id,
        method_with_state(record),
        settings,
        task,
        record.source,
        record.base,
        str(seed),
        str(record.n),
        value,
        created,
    )
    data: dict[str, Cell] = {
        "run": record.id,
        "method": config.get("method"),
        "state_of": record.state_of,
        "settings": settings,
        "task": task,
        "source": record.source,
        "model": record.base,
        "seed": seed,
        "n": record.n,
        "metric": row.metric if row else None,
        "value": row.value if row else None,
        "created": record.created,
    }
    return cells, data


def runs_table(lines: Sequence[RunLine]) -> Table:
    """Return the table of `list runs`."""
    rows, data = tuple(tuple(cells) for cells, _ in lines), [own for _, own in lines]
    columns = (
        "run",
        "method",
        "settings",
        "task",
        "source",
        "model",
        "#seed",
        "#n",
        "#result",
        "created",
    )
    caption = "Details of one run: ttabench show RUN"
    table = Table(
        title="runs",
        columns=columns,
        rows=rows,
        data=tuple(data),
        caption=caption,
        names=("run", "method", "task", "source", "model", "created"),
        spare=("created", "#n", "source", "model"),
    )
    return table if any(row[2] for row in rows) else table.without("settings")


def config_table(plans: Sequence[Plan]) -> Table:
    """Return the resolved configuration of a dry run; a row has the values of all seeds."""
    configs = [plan.config.to_json() for plan in plans]
    flatten_config = [
        {
            f"{key}.{inner}" if inner else key: item
            for key, value in config.items()
            for inner, item in (value.items() if isinstance(value, dict) else [("", value)])
        }
        for config in configs
    ]
    rows = [("run", ", ".join(plan.config.identity() for plan in plans))]
    rows += [
        (key, ", ".join(dict.fromkeys(str(own.get(key)) for own in flatten_config)))
        for key in flatten_config[0]
    ]
    return Table(
        title="resolved configuration",
        columns=("setting", "value"),
        rows=tuple(rows),
        names=("setting",),
    )


def detail_tables(record: RunRecord, *, everything: bool) -> list[Table]:
    """Return facts and scores of a run; with `everything` also its configuration and all costs."""
    tables = [_about(record), _figures(record, everything=everything)]
    if everything:
        rows = tuple(
            (name.replace("_", " "), format_figure(name, value))
            for name, value in record.cost.items()
        )
        costs = Table(
            title="costs of the run", columns=("cost", "#value"), rows=rows, names=("cost",)
        )
        tables[1:1] = [_configuration(record), costs]
    return tables


def _about(record: RunRecord) -> Table:
    (command, caveat), hardware = command_of(record), record.hardware
    memory = format_bytes(hardware["memory_bytes"]) if hardware.get("memory_bytes") else ""
    cores = f"{hardware['cores']} cores" if hardware.get("cores") else ""
    about = {
        "what": f"{method_with_state(record)} on {record.config.get('task')} ({record.source}), base {record.base}",
        "command": command,
        "settings": describe_options(record) or "defaults",
        "model": _model(record),
        "costs": _costs(record),
        "created": _creation(record),
        "machine": ", ".join(
            filter(None, [machine_name(hardware, None), cores, memory, hardware.get("system")])
        ),
        "left out": ", ".join(f"{rows} rows: {reason}" for reason, rows in record.dropped.items()),
        "notes": "\n".join((*record.notes, *caveat)),
    }
    kept = {key: value for key, value in about.items() if value}
    return Table(
        title="", columns=("run", *kept), rows=((record.id, *kept.values()),), shown_as_blocks=True
    )


def _model(record: RunRecord) -> str:
    model = record.model
    parts = [
        f"{format_count(model.get('parameters'))} parameters",
        f"{model.get('dtype')} on {model.get('device')}",
    ]
    if added := record.method.get("parameters"):
        parts.append(f"{format_count(added)} added by {record.config.get('method')}")
    if checkpoint := record.config.get("checkpoint"):
        parts.append(f"checkpoint {checkpoint}")
    return ", ".join(parts)


def _costs(record: RunRecord) -> str:
    kept = format_kept_share(record.cost.get("kept_share"), budget_of_config(record.config))
    costs = [
        f"{name.replace('_', ' ')} {format_figure(name, value)}"
        for name in SHOWN_COSTS
        if (value := record.cost.get(name)) is not None
    ]
    return ", ".join([*costs, *([f"kept {kept} of the full-context KV cache"] if kept else [])])


def _creation(record: RunRecord) -> str:
    code, versions = record.code, dict(record.versions)
    changed_since = ", changed" if code.get("changed") else ""
    commit = f" (commit {str(code['commit'])[:7]}{changed_since})" if code.get("commit") else ""
    ours, made = versions.pop("ttabench", "?"), record.created[:16].replace("T", " ")
    return f"{made} UTC by ttabench {ours}{commit}, {', '.join(' '.join(pair) for pair in versions.items())}"


def _configuration(record: RunRecord) -> Table:
    """Return the full configuration; non-default values come first, and defaults are marked."""
    config = flatten_config(full_config(record.config).to_json())
    non_defaults = non_default_options(record.config)
    rows = tuple(
        (
            key,
            format_setting(config[key]) or "-",
            "" if key in non_defaults or key in LISTED_FIELDS else "default",
        )
        for key in sorted(config, key=lambda key: key not in non_defaults)
    )
    return Table(
        title="configuration", columns=("setting", "value", ""), rows=rows, names=("setting",)
    )


def _figures(record: RunRecord, *, everything: bool) -> Table:
    main, chance = record.main_metric, record.task.get("chance")
    figures = record.rows if everything else main_rows(record)
    intervals = [
        [
            format_value(row.metric, bound, None)
            for bound in (row.ci_low, row.ci_high)
            if bound is not None
        ]
        for row in figures
    ]
    rows = tuple(
        (
            ("* " if row.metric == main else "  ") + row_name(row),
            format_value(row.metric, row.value, row.stderr),
            f"[{', '.join(interval)}]" if len(interval) == 2 else "-",
            f"{row.n:,}",
        )
        for row, interval in zip(figures, intervals, strict=True)
    )
    return Table(
        title="scores",
        columns=("metric", "#value ± stderr", "#95 % interval", "#n"),
        rows=rows,
        data=tuple(row.model_dump() for row in figures),
        names=("metric",),
        caption=f"Main metric: {main}{f', chance level {format_value(main, chance, None)}' if chance else ''}.",
    )


def command_of(record: RunRecord) -> tuple[str, tuple[str, ...]]:
    """Return (command, notes) to repeat a run.

    A method, checkpoint or card that is not installed is written as in the record, with a note.
    """
    config, notes = full_config(record.config), list[str]()
    words = ["ttabench", "eval", "--method", config.method, "--task", config.task]
    base_name = next(
        (n for n, base in MODEL_ALIASES.items() if base == (config.model, config.base_checkpoint)),
        "",
    )
    typed = replace(config, model=base_name, base_checkpoint="") if base_name else config
    for name, field in option_fields(RunFields).items():
        words += field.cli_arguments(getattr(typed, name))
    card: Card | None = None
    with suppress(UserError):  # the task is not installed
        card = load_card(config.task)
    if config.source != default_source(card, nano=config.model == NANO):
        words += ["--source", config.source]
    words += [*_method_arguments(config, notes), *_task_arguments(config, notes)]
    if origin := config.inputs.get(f"metric {record.main_metric}"):
        words += ["--metric", record.main_metric]
        if origin != BUILTIN_ORIGIN:
            file = f"--metric ./FILE.py:{record.main_metric}"
            notes.append(
                f"the metric is defined by {origin}: use {file} if it is not an installed package"
            )
    words += ["--state", config.state] if config.state else []
    words += ["--seed", str(config.seed)] if config.seed else []
    if config.state_of != "own":
        words.append("--swap-state")
        notes.append(f"--swap-state makes three runs: this one has the state: {config.state_of}")
    return join(words), tuple(notes)


def _request(config: RunConfig) -> RunRequest:
    """Return the typed options as a request, without the settings that follow from them."""
    return RunRequest(
        method=config.method,
        task=config.task,
        model=config.model,
        source=config.source,
        base_checkpoint=config.base_checkpoint,
        random_weights=config.random_weights,
        keep=config.keep,
        keep_tokens=config.keep_tokens,
        chat_template=config.chat_template,
    )


def _method_arguments(config: RunConfig, notes: list[str]) -> list[str]:
    """Return checkpoint or preset, and the settings that do not follow from them."""
    words, request = list[str](), _request(config)
    if origin := config.inputs.get("method"):
        notes.append(
            f"the method is defined by {origin}: use --method ./FILE.py if it is not an installed package"
        )
    try:
        plain = resolve_method(request)
        checkpoint = config.checkpoint or (NO_CHECKPOINT if plain.spec.trainable else "")
        if checkpoint and plain.checkpoint_name() != config.checkpoint:
            words += ["--checkpoint", checkpoint]
        if config.preset and plain.preset != config.preset and not config.checkpoint:
            words += ["--preset", config.preset]
        preset = "" if config.checkpoint else config.preset
        settings = resolve_method(replace(request, checkpoint=checkpoint, preset=preset)).settings
    except UserError:
        settings = config.defaults.get("settings", {})
        if config.checkpoint:
            words = ["--checkpoint", config.checkpoint]
            notes.append(f"checkpoint {config.checkpoint} is missing")
    return words + _setting_arguments("--set", non_default_values(config.settings, settings))


def _task_arguments(config: RunConfig, notes: list[str]) -> list[str]:
    """Return the task options that differ from its card, and the option of the chat template."""
    given: Mapping[str, Any] = config.task_options
    try:
        card, prompt = load_card(config.task), resolve_prompt(_request(config))
        usual = resolve_prompt(replace(_request(config), chat_template=None)).chat
    except UserError:
        notes.append(f"the card of {config.task} is missing")
        return _setting_arguments("--task-set", given)
    words = (
        ["--chat-template" if prompt.chat else "--no-chat-template"] if prompt.chat != usual else []
    )
    synthetic = card.twin if config.source == "mini" else None
    plain = {**config.defaults.get("task_options", {}), **card.protocol}
    plain |= {**synthetic.arguments, **synthetic.protocol} if synthetic else {}
    plain |= prompt.options
    typed = {
        key: value
        for key, value in given.items()
        if key not in plain or _option_parts(value) != _option_parts(plain[key])
    }
    return words + _setting_arguments("--task-set", typed)


def _option_parts(value: Json) -> list[str | int]:
    """Parse an option as typed: `16k` in a card equals 16,384 in a record."""
    return [parse_tokens(part) or part for part in format_setting(value).split(",")]


def _setting_arguments(flag: str, values: Mapping[str, Json]) -> list[str]:
    return [
        word for key, value in values.items() for word in (flag, f"{key}={format_setting(value)}")
    ]
