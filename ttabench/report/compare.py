"""Compare runs: quality beside cost, and whether the differences could be chance.

Runs that differ in their seed only are pooled. Every pair of groups on one task and source gets the difference over the
queries both answered (`pairing`), with the interval of `stats.estimate`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from ttabench.core.errors import UnknownName, UserError
from ttabench.core.types import Json
from ttabench.methods.registry import known_settings
from ttabench.readers.cards import load_card
from ttabench.readers.defaults import defaults as task_defaults
from ttabench.records.schema import Row, RunRecord, load_record
from ttabench.report.pairing import Values, answered, kind_of, steps_of
from ttabench.run.config import RunConfig
from ttabench.stats import aggregation
from ttabench.stats.aggregation import Ratio, Unit, estimated, paired_difference
from ttabench.stats.metrics import METRICS

COSTS = ("adapt_seconds", "ask_ms", "state_bytes", "peak_memory_bytes")
STATE_OF = "state of"
NOT_COMPARED = (
    "state_of", "seed", "checkpoint", "state", "device", "source", "method", "task", "model", "preset",
    "base_checkpoint",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of a comparison: all runs of one configuration, whatever their seed."""

    label: str
    method: str
    task: str
    source: str
    model: str
    seeds: tuple[int, ...]
    metric: str
    value: float
    stderr: float | None
    n: int
    costs: Mapping[str, float | None]
    """Means over the runs: adapt_seconds, ask_ms, state_bytes, peak_memory_bytes."""
    runs: tuple[str, ...]
    steps: Mapping[int, tuple[float, float | None, int]] = field(default_factory=dict)
    """(mean, standard error, n) by the pieces observed before the query, where the runs asked at several points."""
    state_of: str = "own"
    """Whose state answered, see `swapping`."""
    lengths: bool = False
    """Whether the steps are lengths of a text in tokens, each of them with all that stands before it."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """`left` minus `right` on the queries both answered, with a 95 % interval (None where a single one shows none)."""

    left: str
    right: str
    task: str
    metric: str
    value: float
    ci_low: float | None
    ci_high: float | None
    p: float | None
    n: int
    """Queries."""
    units: int
    """What varies among them: documents, draws of a sub-task, books; see `stats.estimate`."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Entries in the order given, and the differences of all their pairs."""

    entries: tuple[Entry, ...]
    differences: tuple[Difference, ...]
    unpaired: tuple[tuple[str, str], ...] = ()
    """Labels of pairs on one task and source whose perplexities are of other stretches of text, or of other bases."""


def compare(folders: Sequence[Path], metric: str = "") -> Comparison:
    """Compare the runs in these folders.

    Args:
        folders: run folders, see `records.find_runs`.
        metric: which metric; each task's own main metric by default.

    Raises:
        UserError: no runs, a corrupted record, or a metric a run does not have.
    """
    if not folders:
        raise UserError("There are no runs to compare.", "Run `ttabench eval` first, or give paths or ids.")
    records = [(folder, load_record(folder)) for folder in folders]
    groups: dict[str, list[tuple[Path, RunRecord]]] = {}
    for folder, record in records:
        groups.setdefault(_group_key(record), []).append((folder, record))
    members = list(groups.values())
    labels = _labels([group[0][1] for group in members])
    chosen = [metric or group[0][1].main_metric for group in members]
    for name, group in zip(chosen, members, strict=True):
        _check(name, [record for _, record in group])
    values = [answered([folder for folder, _ in group], name) for group, name in zip(members, chosen, strict=True)]
    entries = [
        _entry(label, group, name, own) for label, group, name, own in zip(labels, members, chosen, values, strict=True)
    ]
    pairs = list(combinations(zip(entries, values, strict=True), 2))
    differences = [found for left, right in pairs if (found := _difference(left, right))]
    unpaired = [(left[0].label, right[0].label) for left, right in pairs if _score_other_texts(left, right)]
    return Comparison(entries=tuple(entries), differences=tuple(differences), unpaired=tuple(unpaired))


def _varying(record: RunRecord) -> dict[str, Json]:
    """What sets a run apart from others of its method, task and model, seeds aside, in one level."""
    flat: dict[str, Json] = {STATE_OF: record.state_of}
    for key, value in _whole(record.config).items():
        if key in NOT_COMPARED:
            continue
        if isinstance(value, dict):
            # the digest of the rows differs from seed to seed; which data they are, `source` says
            named = {f"{inner} file": item for inner, item in value.items() if inner not in ("rows", "others")}
            for inner, item in (named if key == "inputs" else value).items():
                # a method and a task may have settings of one name
                flat[f"{key} {inner}" if inner in flat else inner] = item
        else:
            flat[key] = value
    return flat


def _whole(config: Mapping[str, Json]) -> dict[str, Json]:
    """A configuration with the defaults of what it does not name: earlier versions knew fewer settings."""
    whole = {**RunConfig(method=str(config.get("method"))).to_json(), **config}
    with suppress(UserError):  # of a method that is not here
        known = known_settings(str(whole["method"]), whole["inputs"].get("method", ""))
        whole["settings"] = {**known, **whole["settings"]}
    with suppress(UserError):  # of a card that is not here
        options = task_defaults(load_card(str(whole["task"])), str(whole["source"]))
        whole["task_options"] = {**options, **whole["task_options"]}
    return whole


def _group_key(record: RunRecord) -> str:
    named = [str(record.config.get(key)) for key in ("method", "task", "model")]
    return repr([*named, record.source, sorted((key, repr(value)) for key, value in _varying(record).items())])


def _labels(records: Sequence[RunRecord]) -> list[str]:
    """Method names, with the settings in which groups of one method differ; made unique if need be."""
    labels: list[str] = []
    for record in records:
        mine = _varying(record)
        alike = [_varying(other) for other in records if other.config.get("method") == record.config.get("method")]
        differing = [
            f"{key}: {value}" if key == STATE_OF else f"{key}={value[:6] if key.endswith(' file') else value}"
            for key, value in sorted(mine.items())
            if value is not None and any(other.get(key) != value for other in alike)
        ]
        labels.append(" ".join([str(record.config.get("method")), *differing]))
    places = [(record.config.get("task"), record.source, record.config.get("model")) for record in records]
    if len(set(zip(labels, places, strict=True))) < len(labels):
        return [f"{label} #{record.id[:6]}" for label, record in zip(labels, records, strict=True)]
    return labels


def _check(metric: str, records: Sequence[RunRecord]) -> None:
    for record in records:
        if record.value(metric) is None:
            raise UnknownName(f"metric of run {record.id}", metric, sorted({row.metric for row in record.rows}))


def _entry(label: str, group: Sequence[tuple[Path, RunRecord]], name: str, answered: Values) -> Entry:
    records = [record for _, record in group]
    rows = [row for record in records if (row := record.value(name)) is not None]
    value, stderr, n = over_runs(rows, list(answered.values()))
    return Entry(
        label=label,
        method=rows[0].method,
        task=rows[0].task,
        source=rows[0].source,
        model=rows[0].model,
        seeds=tuple(sorted({row.seed for row in rows})),
        metric=name,
        value=value,
        stderr=stderr,
        n=n,
        costs={cost: _mean([record.cost.get(cost) for record in records]) for cost in COSTS},
        runs=tuple(record.id for record in records),
        steps=_by_step(group, name, answered),
        state_of=records[0].state_of,
        lengths=bool(records[0].task.get("lengths")),
    )


def _by_step(
    group: Sequence[tuple[Path, RunRecord]], metric: str, answered: Values
) -> dict[int, tuple[float, float | None, int]]:
    rows: dict[int, list[Row]] = {}
    for row in (row for _, record in group for row in record.rows):
        if row.metric == metric and row.step is not None and row.subtask is None:
            rows.setdefault(row.step, []).append(row)
    if not rows:
        return {}
    at, lengths = steps_of([folder for folder, _ in group]), bool(group[0][1].task.get("lengths"))
    own = [(at[query[:3]], value) for query, value in answered.items()]
    return {
        step: over_runs(rows[step], [value for mine, value in own if mine == step or (lengths and mine < step)])
        for step in sorted(rows)
    }


def over_runs(rows: Sequence[Row], values: Sequence[Any], *, draws: bool = False) -> tuple[float, float | None, int]:
    """(value, standard error, n) of one metric over runs that differ in their seed.

    Args:
        rows: theirs.
        values: what their queries add to it, see `answered`; the error is over all that varies among them. Without any
            it is that of the rows, see `aggregation.pooled`.
        draws: each run is one draw of what varies.
    """
    told = estimated(kind_of(rows[0].metric), values) if values else None
    return (told.mean, told.stderr, told.n) if told else pooled(rows, draws=draws)


def pooled(rows: Sequence[Row], *, draws: bool = False) -> tuple[float, float | None, int]:
    """(mean, standard error, n) over all queries of several runs, which are independent; see `aggregation.pooled`."""
    figures = [(row.value, row.stderr, row.weight or row.n) for row in rows]
    value, stderr = aggregation.pooled(figures, _ratio_of(rows[0].metric), draws=draws)
    return value, stderr, sum(row.n for row in rows)


def _ratio_of(metric: str) -> Ratio | None:
    return METRICS[metric].ratio if metric in METRICS else None


def _mean(values: Sequence[float | int | None]) -> float | None:
    known = [float(value) for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _alike(ours: Entry, theirs: Entry) -> bool:
    return (ours.task, ours.source, ours.metric) == (theirs.task, theirs.source, theirs.metric)


def _score_other_texts(left: tuple[Entry, Values], right: tuple[Entry, Values]) -> bool:
    scored = any(isinstance(value, Unit) for value in left[1].values())
    return scored and _alike(left[0], right[0]) and not set(left[1]) & set(right[1])


def _difference(left: tuple[Entry, Values], right: tuple[Entry, Values]) -> Difference | None:
    """None where the two have no query in common, or another task, source or metric."""
    ours, theirs = left[0], right[0]
    if not _alike(ours, theirs):
        return None
    shared = sorted(set(left[1]) & set(right[1]))
    if not shared:
        return None
    found = paired_difference(
        kind_of(ours.metric), [[values[query] for query in shared] for values in (left[1], right[1])]
    )
    if found is None:
        return None
    return Difference(
        left=ours.label,
        right=theirs.label,
        task=ours.task,
        metric=ours.metric,
        value=found.value,
        ci_low=found.ci_low,
        ci_high=found.ci_high,
        p=found.p,
        n=len(shared),
        units=found.units,
    )
