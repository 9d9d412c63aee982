"""Which runs stand in one block of a comparison, how they are pooled, and how the lines of a block are called.

    blocks_of(runs)     one block a task, source, base model and metric, and of what is read and asked (documents=16)
    labels_of(blocks)   icl, mac, mac (theirs: lab-b), snapkv budget=0.1, "templora (swapped state)"

Runs of one block that differ in their seed only are one `SeedGroup`. A label names the settings in which lines of a method
differ within the block; a configuration that stands in several blocks has one label in all of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
"""Methods that a block begins with."""
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
"""Fields that set no lines apart: runs that differ in these alone are pooled, or told apart by something else."""
DATA_INPUTS = ("rows", "others")
"""Inputs that may differ from seed to seed: which data they are, `source` says."""
GROUP_INPUTS = ("card", "reader", "template")
"""Inputs that tell blocks apart, as the code of the compared metric does."""
UNLABELED_INPUTS = (*DATA_INPUTS, *GROUP_INPUTS, "model")
"""Inputs that no label names."""
GROUP_FIELDS = ("split", "chat_template", "limit")
"""Fields that a configuration has from its block, and not from its method."""
METHOD_INPUTS = ("method", "checkpoint", "base_checkpoint")
"""Inputs that are the method's own."""
DIGEST_DIGITS = 6
"""Of a digest, where two files of one name are told apart."""
NON_GROUPING_OPTIONS = {"ratio": "demonstrations", "tokens": "book"}
"""Options, by their reader, that leave the queries as they are, and all that stands before each: which share of the
demonstrations a method adapts to, and up to which lengths of a text there are figures."""
CHECKPOINT, SEED = "checkpoint file", "seed"
"""What a checkpoint is known by; and the seed that it was trained with, which its name stands for."""


@dataclass(frozen=True, kw_only=True)
class SeedGroup:
    """All runs of one configuration, whatever their seed."""

    runs: tuple[StoredRun, ...]
    metric: str
    distinguishing_options: Mapping[str, Json]
    """Options that set it apart from others of its method, task and model."""
    context_options: Mapping[str, Json]
    """Options that decide its context and its queries."""
    configuration_key: str
    """Options that tell configurations of methods apart, whatever the block and whose state answered."""
    submission: str = ""
    """Name of the submission that its runs are from; empty for runs of ours."""

    @property
    def records(self) -> list[RunRecord]:
        """Those of its runs."""
        return [record for _, record in self.runs]

    @property
    def record(self) -> RunRecord:
        """Of its first run."""
        return self.runs[0][1]

    @property
    def method(self) -> str:
        """Its name."""
        return str(self.record.config.get("method"))

    @property
    def state_of(self) -> str:
        """Whose state answered, see `run.runner`."""
        return self.record.state_of

    @property
    def seeds(self) -> tuple[int, ...]:
        """Those of its runs, in order."""
        return tuple(sorted({seed_of(record) for _, record in self.runs}))

    @property
    def ids(self) -> tuple[str, ...]:
        """Those of its runs."""
        return tuple(record.id for _, record in self.runs)


@dataclass(frozen=True, kw_only=True)
class GroupKey:
    """Where a block stands: what all its runs have in common."""

    task: str
    source: str
    model: str
    metric: str
    options: Mapping[str, Json]
    """Options that tell it from the other blocks of its task, source and model."""

    @property
    def name(self) -> str:
        """`streamingqa (mini), base nano, documents=16`."""
        return ", ".join(
            [f"{self.task} ({short_source(self.source)})", f"base {self.model}", *self._options]
        )

    @property
    def brief(self) -> str:
        """The task, with what tells it from other blocks of the task."""
        return " ".join([self.task, *self._options])

    @property
    def _options(self) -> list[str]:
        return [f"{key}={format_option(value)}" for key, value in self.options.items()]


def short_group_name(group_key: GroupKey, group_keys: Sequence[GroupKey]) -> str:
    """A block in few words: without its source and base where no other of these is of the same task and options."""
    return (
        group_key.brief
        if [other.brief for other in group_keys].count(group_key.brief) == 1
        else group_key.name
    )


def format_option(value: Json) -> str:
    """A setting as it is typed: `16k,32k` for a list of lengths."""
    if isinstance(value, list | tuple):
        return ",".join(
            format_tokens(part) if isinstance(part, int) else str(part) for part in value
        )
    return str(value)


def short_source(source: str) -> str:
    """The last part of a path: `file:xquad.en.json`."""
    kind, colon, path = source.partition(":")
    return f"{kind}{colon}{Path(path).name}" if colon else source


def comparison_groups(
    runs: Sequence[StoredRun], metric: str = ""
) -> list[tuple[GroupKey, list[SeedGroup]]]:
    """Blocks in the order of their first run, but those of one task together; groups in the order of theirs. The metric
    compared is that by which each task is known where it is empty."""
    seed_groups: dict[str, list[StoredRun]] = {}
    for folder, record in runs:
        identity = [record.config.get(key) for key in ("method", "task", "model")]
        settings = sorted(
            (key, repr(value)) for key, value in distinguishing_options(record).items()
        )
        code = _code_digests(record, metric or record.main_metric), inputs_of(record).get("model")
        key = repr((submission_name(folder), *identity, record.source, settings, code))
        seed_groups.setdefault(key, []).append((folder, record))
    groups_by_task: dict[str, dict[str, list[SeedGroup]]] = {}
    for own in (
        part for seed_group in seed_groups.values() for part in split_repeated_seeds(seed_group)
    ):
        folder, first = own[0]
        compared, submission = metric or first.main_metric, submission_name(folder)
        seed_group = SeedGroup(
            runs=tuple(own),
            metric=compared,
            distinguishing_options=distinguishing_options(first),
            configuration_key=_configuration_key(first, submission),
            context_options={**_context_options(first), **_code_digests(first, compared)},
            submission=submission,
        )
        # by the name of a file, wherever it lies: submissions name files without their folders
        task = repr(
            (first.config.get("task"), short_source(first.source), base_identity(first), compared)
        )
        groups_by_task.setdefault(task, {}).setdefault(
            repr(sorted(seed_group.context_options.items())), []
        ).append(seed_group)
    return [
        members
        for alike in groups_by_task.values()
        for members in _with_group_keys(list(alike.values()))
    ]


def split_repeated_seeds(runs: Sequence[StoredRun]) -> list[list[StoredRun]]:
    """Split runs of one configuration so that no part has two of one seed: by the digest of their rows, else by run.

    Two runs of one seed have read a file that changed between them, or were made by versions that name runs otherwise.
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
    """The digests of what a run read, by name; see `RunConfig.inputs`."""
    return record.config.get("inputs", {})


def _code_digests(record: RunRecord, metric: str) -> dict[str, str]:
    """The first digits of what decides how answers are asked for and judged, where it is not ttabench's own."""
    inputs = inputs_of(record)
    digests = {name: inputs.get(name, "") for name in GROUP_INPUTS}
    digests["metric"] = (
        short_hash(origin)[:DIGEST_DIGITS] if (origin := inputs.get(f"metric {metric}")) else ""
    )
    return {
        name: value[:DIGEST_DIGITS] if name == "card" else value
        for name, value in digests.items()
        if value
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
    """Blocks of one task, source and model, by the options that differ among them, ascending."""
    contexts = [members[0].context_options for members in groups]
    keys = [
        key
        for key in dict.fromkeys(key for context_options in contexts for key in context_options)
        if len({repr(context_options.get(key)) for context_options in contexts}) > 1
    ]
    keyed = []
    for members, context_options in zip(groups, contexts, strict=True):
        first = members[0].record
        options = {
            key: context_options[key] for key in keys if context_options.get(key) is not None
        }
        group_key = GroupKey(
            task=str(first.config.get("task")),
            source=first.source,
            model=first.base,
            metric=members[0].metric,
            options=options,
        )
        keyed.append((group_key, members))
    return sorted(
        keyed, key=lambda at: [natural_sort_key(str(at[0].options.get(key))) for key in keys]
    )


def _context_options(record: RunRecord) -> dict[str, Json]:
    """Options that decide context and queries, seeds and limits aside."""
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
    """Options that set a run apart from others of its method, task and model, seeds aside, in one level."""
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
        for inner, item in value.items() if isinstance(value, dict) else [(key, value)]:
            # a method and a task may have settings of one name
            flat[f"{key} {inner}" if inner in flat else inner] = item
    return flat


def make_labels(groups: Sequence[Sequence[SeedGroup]]) -> list[list[str]]:
    """The labels of every block's groups; unique in each."""
    keys: dict[tuple[str, str], set[str]] = {}
    for members in groups:
        for seed_group in members:
            keys.setdefault((seed_group.configuration_key, seed_group.state_of), set()).update(
                _distinguishing_keys(seed_group, members)
            )
    labels = [
        [
            _label(seed_group, members, keys[seed_group.configuration_key, seed_group.state_of])
            for seed_group in members
        ]
        for members in groups
    ]
    return [
        [
            f"{label} #{seed_group.record.id[:6]}" if own.count(label) > 1 else label
            for label, seed_group in zip(own, members, strict=True)
        ]
        for own, members in zip(labels, groups, strict=True)
    ]


def natural_sort_key(label: str) -> list[tuple[bool, float, str]]:
    """For sorting: numbers by their size, so that budget=0.5 stands before budget=16."""
    parts = re.split(r"(\d+(?:\.\d+)?)", label)
    return [
        (not part[:1].isdigit(), float(part) if part[:1].isdigit() else 0.0, part)
        for part in parts
        if part
    ]


def _distinguishing_keys(seed_group: SeedGroup, members: Sequence[SeedGroup]) -> list[str]:
    """The settings in which it differs from others of its method in the block."""
    alike = [other.distinguishing_options for other in members if other.method == seed_group.method]
    return [
        key
        for key, value in seed_group.distinguishing_options.items()
        if any(other.get(key) != value for other in alike)
    ]


def _label(seed_group: SeedGroup, members: Sequence[SeedGroup], keys: set[str]) -> str:
    """The method with these settings: a checkpoint by its folder, where that tells it from the others of the block."""
    settings = {
        key: seed_group.distinguishing_options[key]
        for key in sorted(keys - {STATE_OF})
        if seed_group.distinguishing_options.get(key) is not None
    }
    others = [
        _checkpoint_name(one)
        for one in members
        if one.distinguishing_options.get(CHECKPOINT)
        != seed_group.distinguishing_options.get(CHECKPOINT)
    ]
    if CHECKPOINT in settings and _checkpoint_name(seed_group) not in ("", *others):
        settings = {
            "checkpoint" if key == CHECKPOINT else key: _checkpoint_name(seed_group)
            if key == CHECKPOINT
            else value
            for key, value in settings.items()
            if key != SEED
        }
    budget, own = budget_label_and_settings(seed_group.record.config)
    words = [seed_group.method, *([budget] if own & settings.keys() else [])]
    words += [
        f"{key}={format_option(value)[: DIGEST_DIGITS if key.endswith(' file') and '==' not in str(value) else None]}"
        for key, value in settings.items()
        if key not in own
    ]
    state = STATE_SUFFIXES[seed_group.state_of] if STATE_OF in keys else ""
    return (
        " ".join(words)
        + state
        + (f" (theirs: {seed_group.submission})" if seed_group.submission else "")
    )


def _checkpoint_name(seed_group: SeedGroup) -> str:
    """The last part of its name, or of its path."""
    name = str(seed_group.record.config.get("checkpoint") or "")
    return name.rstrip("/").rpartition("/")[2].removeprefix("shipped:")
