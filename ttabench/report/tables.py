"""Tables of runs for `eval`, `list runs` and `show`, and the command that repeats a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING, Any

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
from ttabench.report.method_rows import format_row, format_value, machine_name, value_over_runs
from ttabench.report.stored import (
    LISTED_FIELDS,
    describe_options,
    flatten_config,
    full_config,
    load_values,
    non_default_options,
)
from ttabench.run.budget import budget_of_config, format_kept_share
from ttabench.run.plan import BUILTIN_ORIGIN, make_plan
from ttabench.run.prompts import resolve_prompt
from ttabench.run.request import MODEL_ALIASES, NO_CHECKPOINT, RunRequest
from ttabench.run.resolve import resolve_method
from ttabench.terminal.table import Columns, DataRow, Table

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

REQUEST_FIELDS = (
    "method",
    "task",
    "model",
    "source",
    "base_checkpoint",
    "random_weights",
    "keep",
    "keep_tokens",
    "chat_template",
)


def run_table(runs: Sequence[tuple[RunRecord, Path]]) -> Table:
    """Return main metric and cost of each run; the caption has the other metrics and the paths."""
    first, rows = runs[0][0], list[tuple[str, ...]]()
    has_budget = any("kept_share" in record.cost for record, _ in runs)
    columns = COST_COLUMNS if has_budget else COST_COLUMNS[:-1]
    blank = ("",) * len(columns)
    for record, _ in runs:
        cost = record.cost
        costs = (
            format_number(cost.get("adapt_seconds"), 2),
            format_number(cost.get("ask_ms"), 1),
            format_bytes(cost.get("state_bytes")),
            format_bytes(cost.get("peak_memory_bytes")),
            format_kept_share(cost.get("kept_share"), budget_of_config(record.config)),
        )[: len(columns)]
        for row in main_rows(record):
            if row.metric == record.main_metric:
                rows.append((str(row.seed), row_name(row), format_row(row), str(row.n), *costs))
                costs = blank  # only in the first row of a run
    paths = [str(path) for _, path in runs]
    remarks = [f"Main metric: {first.main_metric}."]
    if others := [row.metric for row in main_rows(first) if row.metric != first.main_metric]:
        values = ", ".join(f"{metric} {_pooled_figure(runs, metric)[0]}" for metric in others)
        remarks[0] += f" Others: {values}."
    remarks.append(f"Stored in {', '.join(paths)}")
    if len(runs) > 1:
        rows.append(("all", first.main_metric, *_pooled_figure(runs, first.main_metric), *blank))
        remarks.append(f"Compare: ttabench compare {' '.join(paths)}")
    return Table(
        title=_title(first),
        columns=("#seed", "metric", "#value ± stderr", "#n", *columns),
        rows=tuple(rows),
        data=tuple(
            {**row.model_dump(), **record.cost} for record, _ in runs for row in main_rows(record)
        ),
        caption="\n".join(remarks),
        names=("metric",),
        spare=("#peak memory", "#ask ms"),
    )


def _pooled_figure(runs: Sequence[tuple[RunRecord, Path]], metric: str) -> tuple[str, str]:
    """Return (formatted value, n) of a metric over runs that differ only in their seed."""
    rows = [row for record, _ in runs if (row := record.value(metric)) is not None]
    if len(runs) == 1:
        return format_row(rows[0]), str(rows[0].n)
    kept = load_values([(path, record) for record, path in runs], metric)
    value, stderr, n = value_over_runs(rows, list(kept.values()))
    return format_value(metric, value, stderr), str(n)


def method_with_state(record: RunRecord) -> str:
    """Return the method, with the state that answered if it is swapped or empty."""
    return f"{record.config.get('method', '')}{STATE_SUFFIXES[record.state_of]}"


def _title(record: RunRecord) -> str:
    return (
        f"{method_with_state(record)} on {record.config.get('task')} ({record.source}),"
        f" base {record.base}"
    )


def row_name(row: Row) -> str:
    """Return the metric of a row, with its step and sub-task."""
    step = f" @{row.step}" if row.step is not None else ""
    return row.metric + step + (f", {row.subtask}" if row.subtask else "")


def main_rows(record: RunRecord) -> list[Row]:
    """Return the rows over all queries, main metric first, then that metric by step and sub-task."""

    def marks(row: Row) -> tuple[bool, bool, bool]:
        return row.subtask is not None, row.step is not None, row.metric != record.main_metric

    return sorted((row for row in record.rows if sum(marks(row)) < 2), key=marks)


def run_data(record: RunRecord) -> DataRow:
    """Return the values of a run for `list runs`."""
    config, row = record.config, record.value(record.main_metric)
    return {
        "run": record.id,
        "method": config.get("method"),
        "state_of": record.state_of,
        "settings": describe_options(record),
        "task": str(config.get("task", "")),
        "source": record.source,
        "model": record.base,
        "seed": config.get("seed", ""),
        "n": record.n,
        "metric": row.metric if row else None,
        "value": row.value if row else None,
        "created": record.created,
        "_method": method_with_state(record),
        "_result": f"{row.metric} {format_row(row)}" if row else "-",
    }


def runs_table(data: Sequence[DataRow]) -> Table:
    """Return the table of `list runs`."""
    columns: Columns = {
        "run": "run",
        "method": "_method",
        **{key: key for key in ("settings", "task", "source", "model")},
        "#seed": lambda row: str(row["seed"]),
        "#n": lambda row: str(row["n"]),
        "#result": "_result",
        "created": lambda row: format_minute(row["created"]),
    }
    if data and "changed" in data[0]:
        columns = {"run": "run", "changed": "changed", **columns}
    table = Table.of(
        "runs",
        data,
        columns,
        caption="Details of one run: ttabench show RUN",
        names=("run", "method", "task", "source", "model", "created"),
        spare=("created", "#n", "source", "model"),
    )
    return table if any(row["settings"] for row in data) else table.without("settings")


def format_minute(created: str) -> str:
    """Format the creation time of a record without its seconds."""
    return created[:16].replace("T", " ")


def config_table(plans: Sequence[Plan]) -> Table:
    """Return the resolved configuration of a dry run; a row has the values of all seeds."""
    configs = [
        {
            f"{key}.{inner}" if inner else key: item
            for key, value in plan.config.to_json().items()
            for inner, item in (value.items() if isinstance(value, dict) else [("", value)])
        }
        for plan in plans
    ]
    rows = [("run", ", ".join(plan.config.identity() for plan in plans))]
    rows += [
        (key, ", ".join(dict.fromkeys(str(own.get(key)) for own in configs))) for key in configs[0]
    ]
    return _pairs_table("resolved configuration", rows)


def _pairs_table(title: str, rows: Sequence[tuple[str, ...]], *heads: str) -> Table:
    columns = heads or ("setting", "value")
    return Table(title=title, columns=columns, rows=tuple(rows), names=columns[:1])


def detail_tables(record: RunRecord, *, everything: bool) -> list[Table]:
    """Return facts and scores of a run; with `everything` also its configuration and all costs."""
    tables = [_about(record), _figures(record, everything=everything)]
    if everything:
        config = flatten_config(full_config(record.config).to_json())
        non_defaults = non_default_options(record.config)
        settings = [
            (
                key,
                format_setting(config[key]) or "-",
                "" if key in non_defaults or key in LISTED_FIELDS else "default",
            )
            for key in sorted(config, key=lambda key: key not in non_defaults)
        ]
        costs = [
            (name.replace("_", " "), format_figure(name, value))
            for name, value in record.cost.items()
        ]
        tables[1:1] = [
            _pairs_table("configuration", settings, "setting", "value", ""),
            _pairs_table("costs of the run", costs, "cost", "#value"),
        ]
    return tables


def _about(record: RunRecord) -> Table:
    (command, caveat), hardware, model = command_of(record), record.hardware, record.model
    added, checkpoint = record.method.get("parameters"), record.config.get("checkpoint")
    kept = format_kept_share(record.cost.get("kept_share"), budget_of_config(record.config))
    costs = [
        f"{name.replace('_', ' ')} {format_figure(name, value)}"
        for name in SHOWN_COSTS
        if (value := record.cost.get(name)) is not None
    ]
    code, versions = record.code, dict(record.versions)
    changed = ", changed" if code.get("changed") else ""
    commit = f" (commit {str(code['commit'])[:7]}{changed})" if code.get("commit") else ""
    ours = (
        f"{format_minute(record.created)} UTC by ttabench {versions.pop('ttabench', '?')}{commit}"
    )
    facts: dict[str, Sequence[object]] = {
        "what": [_title(record)],
        "command": [command],
        "settings": [describe_options(record) or "defaults"],
        "model": [
            f"{format_count(model.get('parameters'))} parameters",
            f"{model.get('dtype')} on {model.get('device')}",
            added and f"{format_count(added)} added by {record.config.get('method')}",
            checkpoint and f"checkpoint {checkpoint}",
        ],
        "score first": [record.task.get("score_first") and "no text is scored after it was read"],
        "costs": [*costs, kept and f"kept {kept} of the full-context KV cache"],
        "created": [f"{ours}, {', '.join(' '.join(pair) for pair in versions.items())}"],
        "machine": [
            machine_name(hardware, None),
            hardware.get("cores") and f"{hardware['cores']} cores",
            hardware.get("memory_bytes") and format_bytes(hardware["memory_bytes"]),
            hardware.get("system"),
        ],
        "left out": [f"{rows} rows: {reason}" for reason, rows in record.dropped.items()],
        "notes": ["\n".join((*record.notes, *caveat))],
    }
    shown = {key: text for key, parts in facts.items() if (text := _join(parts))}
    columns, row = ("run", *shown), (record.id, *shown.values())
    return Table(title="", columns=columns, rows=(row,), shown_as_blocks=True)


def _join(parts: Iterable[object]) -> str:
    return ", ".join(str(part) for part in parts if part)


def _figures(record: RunRecord, *, everything: bool) -> Table:
    main, chance = record.main_metric, record.task.get("chance")
    figures = record.rows if everything else main_rows(record)
    rows = []
    for row in figures:
        low, high = (
            None if bound is None else format_value(row.metric, bound, None)
            for bound in (row.ci_low, row.ci_high)
        )
        name = ("* " if row.metric == main else "  ") + row_name(row)
        interval = f"[{low}, {high}]" if low and high else "-"
        rows.append((name, format_row(row), interval, f"{row.n:,}"))
    level = f", chance level {format_value(main, chance, None)}" if chance else ""
    return Table(
        title="scores",
        columns=("metric", "#value ± stderr", "#95 % interval", "#n"),
        rows=tuple(rows),
        data=tuple(row.model_dump() for row in figures),
        names=("metric",),
        caption=f"Main metric: {main}{level}.",
    )


def command_of(record: RunRecord) -> tuple[str, tuple[str, ...]]:
    """Return (command, notes) to repeat a run.

    A method, checkpoint or card that is not installed is written as in the record, with a note.
    """
    config, notes = full_config(record.config), list[str]()
    words = ["ttabench", "eval"]
    for name, value in _typed_options(record, config, notes).items():
        words += option_fields(RunRequest)[name].cli_arguments(value)
    words += ["--seed", str(config.seed)] if config.seed else []
    if config.state_of != "own":
        words.append("--swap-state")
        notes.append(f"--swap-state makes three runs: this one has the state: {config.state_of}")
    return join(words), tuple(notes)


def find_changes(record: RunRecord) -> str:
    """Return what a repetition of a run would use differently today: `card, rows`.

    Empty if it would be the same run. A plan is made, and no model is loaded.
    """
    config = full_config(record.config)
    try:
        typed = _typed_options(record, config, [])
        plan = make_plan(RunRequest(**typed, state_of=config.state_of), config.seed)
    except UserError as error:
        return f"cannot be repeated: {error.what}"
    if plan.config.identity() == record.id:
        return ""
    before, now = (
        {**flatten_config(values), **values.get("inputs", {})}
        for values in (config.non_default_values(), plan.config.non_default_values())
    )
    changed = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    return ", ".join(changed) or "version of ttabench"


def _typed_options(record: RunRecord, config: RunConfig, notes: list[str]) -> dict[str, Any]:
    """Return the options that repeat a run, as fields of `RunRequest` without `state_of`."""
    options = {name: getattr(config, name) for name in option_fields(RunFields)}
    for name, base in MODEL_ALIASES.items():
        if base == (config.model, config.base_checkpoint):
            options |= {"model": name, "base_checkpoint": ""}
    options = {"method": config.method, "task": config.task, **options}
    card: Card | None = None
    with suppress(UserError):  # the task is not installed
        card = load_card(config.task)
    if config.source != default_source(card, nano=config.model == NANO):
        options["source"] = config.source
    options |= {**_method_options(config, notes), **_task_options(config, notes)}
    for name in ("settings", "task_options"):  # as texts, like typed ones
        options[name] = {key: format_setting(value) for key, value in options[name].items()}
    if origin := config.inputs.get(f"metric {record.main_metric}"):
        options["metric"] = record.main_metric
        if origin != BUILTIN_ORIGIN:
            file = f"--metric ./FILE.py:{record.main_metric}"
            notes.append(
                f"the metric is defined by {origin}: use {file} if it is not an installed package"
            )
    if config.state:
        options["state"] = Path(config.state)
    return options


def _request(config: RunConfig) -> RunRequest:
    """Return the typed options as a request, without the settings that follow from them."""
    return RunRequest(**{name: getattr(config, name) for name in REQUEST_FIELDS})


def _method_options(config: RunConfig, notes: list[str]) -> dict[str, Any]:
    """Return checkpoint or preset, and the settings that do not follow from them."""
    options, request = dict[str, Any](), _request(config)
    settings = dict(config.defaults.get("settings", {}))  # also those of earlier versions
    if origin := config.inputs.get("method"):
        notes.append(
            f"the method is defined by {origin}: use --method ./FILE.py if it is not an installed package"
        )
    try:
        plain = resolve_method(request, hash_checkpoint=False)
        checkpoint = config.checkpoint or (NO_CHECKPOINT if plain.spec.trainable else "")
        if checkpoint and plain.checkpoint_name() != config.checkpoint:
            options["checkpoint"] = checkpoint
        if config.preset and plain.preset != config.preset and not config.checkpoint:
            options["preset"] = config.preset
        preset = "" if config.checkpoint else config.preset
        given = replace(request, checkpoint=checkpoint, preset=preset)
        settings |= resolve_method(given, hash_checkpoint=False).settings
    except UserError:
        if config.checkpoint:
            options = {"checkpoint": config.checkpoint}
            notes.append(f"checkpoint {config.checkpoint} is missing")
    return {**options, "settings": non_default_values(config.settings, settings)}


def _task_options(config: RunConfig, notes: list[str]) -> dict[str, Any]:
    """Return the task options that differ from its card, and the option of the chat template."""
    given: Mapping[str, Any] = config.task_options
    try:
        card, request = load_card(config.task), _request(config)
        prompt = resolve_prompt(request, card)
        usual = resolve_prompt(replace(request, chat_template=None), card).chat
    except UserError:
        notes.append(f"the card of {config.task} is missing")
        return {"task_options": given}
    synthetic = card.twin if config.source == "mini" else None
    plain = {**config.defaults.get("task_options", {}), **card.protocol}
    plain |= {**synthetic.arguments, **synthetic.protocol} if synthetic else {}
    plain |= prompt.options
    typed = {
        key: value
        for key, value in given.items()
        if key not in plain or _option_parts(value) != _option_parts(plain[key])
    }
    chat = {"chat_template": prompt.chat} if prompt.chat != usual else {}
    return {**chat, "task_options": typed}


def _option_parts(value: Json) -> list[str | int]:
    """Parse an option as typed: `16k` in a card equals 16,384 in a record."""
    return [parse_tokens(part) or part for part in format_setting(value).split(",")]
