"""Comparison groups, pooled seeds, and labels of method rows.

comparison_groups(runs)   one group per task, source, base model, metric and options (documents=16)
make_labels(groups)       icl, mac, mac (theirs: lab-b), snapkv budget=0.1, templora (swapped state)

Runs of a comparison group that differ only in their seed form a `SeedGroup`, which gets one label.
The label names the settings in which the configurations of a method differ within a group. If a
configuration is in several groups, it has the same label in all of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from ttabench.core.amounts import format_tokens
from ttabench.core.digests import short_hash
from ttabench.core.types import Json
from ttabench.records.schema import RunRecord
from ttabench.report.selection import submission_name
from ttabench.report.stored import StoredRun, base_identity, fill_defaults, seed_of
from ttabench.run.budget import budget_label_and_settings

STATE_OF = "state of"
STATE_SUFFIXES = {"own": "", "other": " (swapped state)", "none": " (empty state)"}
NO_CONTEXT, FULL_CONTEXT = "none", "icl"
"""Methods of the no-context and the full-context baseline."""
BASELINES = (NO_CONTEXT, FULL_CONTEXT)
IGNORED_FIELDS = (
    "state_of",
    "seed",
    "checkpoint",
    "state",
    "device",
    "source",
    "method",
    "task",
    "model",
    "preset",
    "base_checkpoint",
    "keep",
    "keep_tokens",
)
"""Fields that do not distinguish configurations.

Runs that differ in them are pooled, or differ in other keys, too.
"""
DATA_INPUTS = ("rows", "others")
"""Inputs that may differ between seeds; `source` names the data."""
GROUP_INPUTS = ("card", "reader", "template")
"""Inputs that distinguish comparison groups, as does the code of a custom metric."""
UNLABELED_INPUTS = (*DATA_INPUTS, *GROUP_INPUTS, "model")
"""Inputs that labels do not name."""
GROUP_FIELDS = ("split", "chat_template", "limit")
"""Fields of a configuration that belong to its comparison group, not to its method."""
METHOD_INPUTS = ("method", "checkpoint", "base_checkpoint")
"""Inputs that belong to the method."""
DIGEST_DIGITS = 6
"""Digits of a digest that a label shows."""
NON_GROUPING_OPTIONS = {"ratio": "demonstrations", "tokens": "book"}
"""Task options that change neither queries nor context, and the dataset reader with this option.

`ratio` is the share of demonstrations that a method adapts to. `tokens` are the text lengths that
get a score.
"""
CHECKPOINT, SEED = "checkpoint file", "seed"
"""Keys of `distinguishing_options`. In labels, the name of a checkpoint replaces both."""


@dataclass(frozen=True, kw_only=True)
class SeedGroup:
    """All runs of one configuration, over all seeds."""

    runs: tuple[StoredRun, ...]
    metric: str
    distinguishing_options: Mapping[str, Json]
    """Options that distinguish the configuration from others of its method, task and model."""
    context_options: Mapping[str, Json]
    """Options that determine context and queries."""
    configuration_key: str
    """Identity of the configuration, equal in all comparison groups and under all states."""
    submission: str = ""
    """Name of the submission with these runs; empty for local runs."""

    @property
    def records(self) -> list[RunRecord]:
        """Records of the runs."""
        return [record for _, record in self.runs]

    @property
    def record(self) -> RunRecord:
        """Record of the first run."""
        return self.runs[0][1]

    @property
    def method(self) -> str:
        """Name of the method."""
        return str(self.record.config.get("method"))

    @property
    def state_of(self) -> str:
        """State that answered: "own", "other" (swapped) or "none" (empty)."""
        return self.record.state_of

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of the runs, ascending."""
        return tuple(sorted({seed_of(record) for _, record in self.runs}))

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids of the runs."""
        return tuple(record.id for _, record in self.runs)


@dataclass(frozen=True, kw_only=True)
class GroupKey:
    """Properties that all runs of a comparison group share."""

    task: str
    source: str
    model: str
    metric: str
    options: Mapping[str, Json]
    """Options in which groups of the same task, source and model differ."""

    @property
    def name(self) -> str:
        """Full name: `streamingqa (mini), base nano, documents=16`."""
        return ", ".join(
            [f"{self.task} ({short_source(self.source)})", f"base {self.model}", *self._options]
        )

    @property
    def brief(self) -> str:
        """Task and distinguishing options: `streamingqa documents=16`."""
        return " ".join([self.task, *self._options])

    @property
    def _options(self) -> list[str]:
        return [f"{key}={format_option(value)}" for key, value in self.options.items()]


def short_group_names(group_keys: Sequence[GroupKey]) -> list[str]:
    """Return the brief name of each group if it is unique among the groups, else its full name."""
    count = Counter(group_key.brief for group_key in group_keys)
    return [key.brief if count[key.brief] == 1 else key.name for key in group_keys]


def format_option(value: Json) -> str:
    """Format an option as typed: `16k,32k` for a list of lengths."""
    if isinstance(value, list | tuple):
        return ",".join(
            format_tokens(part) if isinstance(part, int) else str(part) for part in value
        )
    return str(value)


def short_source(source: str) -> str:
    """Return a source without the folders of its path: `file:xquad.en.json`."""
    kind, colon, path = source.partition(":")
    return f"{kind}{colon}{Path(path).name}" if colon else source


def comparison_groups(
    runs: Sequence[StoredRun], metric: str = ""
) -> list[tuple[GroupKey, list[SeedGroup]]]:
    """Return the comparison groups and their seed groups, in the order of their first runs.

    Groups of the same task are adjacent. The metric "" is the main metric of each task.
    """
    configurations: dict[str, list[StoredRun]] = {}
    for folder, record in runs:
        identity = [record.config.get(key) for key in ("method", "task", "model")]
        options = sorted((key, repr(item)) for key, item in distinguishing_options(record).items())
        code = _code_digests(record, metric or record.main_metric), inputs_of(record).get("model")
        key = repr((submission_name(folder), *identity, record.source, options, code))
        configurations.setdefault(key, []).append((folder, record))
    tasks: dict[str, dict[str, list[SeedGroup]]] = {}
    for pooled in chain.from_iterable(map(split_repeated_seeds, configurations.values())):
        folder, first = pooled[0]
        compared, submission = metric or first.main_metric, submission_name(folder)
        context = {**_context_options(first), **_code_digests(first, compared)}
        # submissions store file names without folders, so only the names are compared
        source = short_source(first.source)
        task = repr((first.config.get("task"), source, base_identity(first), compared))
        tasks.setdefault(task, {}).setdefault(repr(sorted(context.items())), []).append(
            SeedGroup(
                runs=tuple(pooled),
                metric=compared,
                distinguishing_options=distinguishing_options(first),
                configuration_key=_configuration_key(first, submission),
                context_options=context,
                submission=submission,
            )
        )
    return [
        group for contexts in tasks.values() for group in _with_group_keys([*contexts.values()])
    ]


def split_repeated_seeds(runs: Sequence[StoredRun]) -> list[list[StoredRun]]:
    """Split runs of one configuration so that no seed repeats within a part.

    Parts are the runs with equal data rows, or single runs if that is not enough. Seeds repeat if a
    file changed between runs, or if two versions of ttabench gave a run different ids.
    """
    if _has_distinct_seeds(runs):
        return [list(runs)]
    parts: dict[str, list[StoredRun]] = {}
    for run in runs:
        parts.setdefault(inputs_of(run[1]).get("rows", ""), []).append(run)
    if all(map(_has_distinct_seeds, parts.values())):
        return list(parts.values())
    return [[run] for run in runs]


def _has_distinct_seeds(runs: Sequence[StoredRun]) -> bool:
    return len({seed_of(record) for _, record in runs}) == len(runs)


def inputs_of(record: RunRecord) -> dict[str, str]:
    """Return the digests of the inputs of a run by name, see `RunConfig.inputs`."""
    return record.config.get("inputs", {})


def _code_digests(record: RunRecord, metric: str) -> dict[str, str]:
    """Return the digests of a custom card, dataset reader, template or metric; may be empty."""
    inputs = inputs_of(record)
    digests = {name: inputs.get(name, "") for name in GROUP_INPUTS}
    digests["metric"] = (
        short_hash(origin)[:DIGEST_DIGITS] if (origin := inputs.get(f"metric {metric}")) else ""
    )
    return {
        name: digest[:DIGEST_DIGITS] if name == "card" else digest
        for name, digest in digests.items()
        if digest
    }


def _configuration_key(record: RunRecord, submission: str) -> str:
    config = fill_defaults(record.config)
    kept = {
        key: value for key, value in config.items() if key not in (*IGNORED_FIELDS, *GROUP_FIELDS)
    }
    kept["inputs"] = {key: value for key, value in config["inputs"].items() if key in METHOD_INPUTS}
    kept["task_options"] = {
        key: value for key, value in config["task_options"].items() if key in NON_GROUPING_OPTIONS
    }
    return repr((submission, record.config.get("method"), sorted(kept.items(), key=str)))


def _with_group_keys(groups: Sequence[list[SeedGroup]]) -> list[tuple[GroupKey, list[SeedGroup]]]:
    """Add keys to groups of one task, source and model. Sort them by the options that differ."""
    contexts = [members[0].context_options for members in groups]
    differing = [
        key
        for key in dict.fromkeys(key for context in contexts for key in context)
        if len({repr(context.get(key)) for context in contexts}) > 1
    ]
    keyed = [
        (
            GroupKey(
                task=str(first.record.config.get("task")),
                source=first.record.source,
                model=first.record.base,
                metric=first.metric,
                options={
                    key: value
                    for key in differing
                    if (value := first.context_options.get(key)) is not None
                },
            ),
            [first, *others],
        )
        for first, *others in groups
    ]
    return sorted(
        keyed,
        key=lambda group: [natural_sort_key(str(group[0].options.get(key))) for key in differing],
    )


def _context_options(record: RunRecord) -> dict[str, Json]:
    """Return the options that determine context and queries, except seed and limit."""
    reader = record.task.get("reader")
    options = fill_defaults(record.config)["task_options"]
    kept = {
        key: value
        for key, value in options.items()
        if key not in NON_GROUPING_OPTIONS or NON_GROUPING_OPTIONS[key] != reader
    }
    return {
        **kept,
        "split": record.config.get("split"),
        "chat_template": bool(record.config.get("chat_template")),
    }


def distinguishing_options(record: RunRecord) -> dict[str, Json]:
    """Return the options that distinguish a run from others of its method, task and model.

    Nested options are flattened: each setting of method or task is one item.
    """
    flat: dict[str, Json] = {STATE_OF: record.state_of}
    for key, value in fill_defaults(record.config).items():
        if key in IGNORED_FIELDS:
            continue
        if key == "inputs":
            value = {
                f"{name} file": item
                for name, item in value.items()
                if name not in UNLABELED_INPUTS and not name.startswith("metric ")
            }
        for inner_key, item in value.items() if isinstance(value, dict) else [(key, value)]:
            # a method and a task may have settings of the same name
            flat[f"{key} {inner_key}" if inner_key in flat else inner_key] = item
    return flat


def make_labels(groups: Sequence[Sequence[SeedGroup]]) -> list[list[str]]:
    """Return the labels of the seed groups of each comparison group; unique within a group."""
    keys: dict[tuple[str, str], set[str]] = {}
    for members in groups:
        for own in members:
            keys.setdefault((own.configuration_key, own.state_of), set()).update(
                key
                for key, value in own.distinguishing_options.items()
                for other in members
                if other.method == own.method and other.distinguishing_options.get(key) != value
            )
    labels = []
    for members in groups:
        own_labels = [
            _label(own, members, keys[own.configuration_key, own.state_of]) for own in members
        ]
        labels.append(
            [
                f"{label} #{own.record.id[:6]}" if own_labels.count(label) > 1 else label
                for label, own in zip(own_labels, members, strict=True)
            ]
        )
    return labels


def natural_sort_key(label: str) -> list[tuple[bool, float, str]]:
    """Return a sort key that orders numbers by value: budget=0.5 before budget=16."""
    parts = re.split(r"(\d+(?:\.\d+)?)", label)
    return [
        (not part[:1].isdigit(), float(part) if part[:1].isdigit() else 0.0, part)
        for part in parts
        if part
    ]


def _label(seed_group: SeedGroup, members: Sequence[SeedGroup], keys: set[str]) -> str:
    """Return the label of a seed group, with the settings in `keys`.

    If the name of its checkpoint is unique among `members`, it replaces digest and seed.
    """
    options = seed_group.distinguishing_options
    settings = {
        key: options[key] for key in sorted(keys - {STATE_OF}) if options.get(key) is not None
    }
    others = {
        _checkpoint_name(other)
        for other in members
        if other.distinguishing_options.get(CHECKPOINT) != options.get(CHECKPOINT)
    }
    if CHECKPOINT in settings and (name := _checkpoint_name(seed_group)) not in {"", *others}:
        settings = {
            **{"checkpoint" if key == CHECKPOINT else key: settings[key] for key in settings},
            "checkpoint": name,
        }
        settings.pop(SEED, None)
    budget, budget_settings = budget_label_and_settings(seed_group.record.config)
    parts = [seed_group.method, *([budget] if budget_settings & settings.keys() else [])]
    for key in [key for key in settings if key not in budget_settings]:
        text = format_option(settings[key])
        is_digest = key.endswith(" file") and "==" not in text
        parts.append(f"{key}={text[:DIGEST_DIGITS] if is_digest else text}")
    state = STATE_SUFFIXES[seed_group.state_of] if STATE_OF in keys else ""
    theirs = f" (theirs: {seed_group.submission})" if seed_group.submission else ""
    return " ".join(parts) + state + theirs


def _checkpoint_name(seed_group: SeedGroup) -> str:
    """Return the last component of the name or path of the checkpoint."""
    name = str(seed_group.record.config.get("checkpoint") or "")
    return name.rstrip("/").rpartition("/")[2].removeprefix("shipped:")
