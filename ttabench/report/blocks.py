"""Which runs stand in one block of a comparison, how they are pooled, and how the lines of a block are called.

    blocks_of(runs)     one block a task, source, base model and metric, and of what is read and asked (documents=16)
    labels_of(blocks)   icl, mac, mac (theirs: lab-b), snapkv budget=0.1, "templora, another text's state"

Runs of one block that differ in their seed only are one `Group`. A label names the settings in which lines of a method
differ within the block; a configuration that stands in several blocks has one label in all of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ttabench.core.amounts import short
from ttabench.core.digests import hashed
from ttabench.core.types import Json
from ttabench.records.schema import RunRecord
from ttabench.report.finding import lab_of
from ttabench.report.stored import Run, base_of, seed_of, with_defaults
from ttabench.run.budget import settings_kept

STATE_OF = "state of"
STATES = {"own": "", "other": ", another text's state", "none": ", empty state"}
FLOOR, CEILING = "none", "icl"
"""Methods that a block begins with."""
NOT_COMPARED = (
    "state_of", "seed", "checkpoint", "state", "device", "source", "method", "task", "model", "preset",
    "base_checkpoint", "keep", "keep_tokens",
)  # fmt: skip
"""Fields that set no lines apart: runs that differ in these alone are pooled, or told apart by something else."""
DATA_INPUTS = ("rows", "others")
"""Inputs that may differ from seed to seed: which data they are, `source` says."""
BLOCK_INPUTS = ("card", "reader", "template")
"""Inputs that tell blocks apart, as the code of the compared metric does."""
UNNAMED_INPUTS = (*DATA_INPUTS, *BLOCK_INPUTS, "model")
"""Inputs that no label names."""
OF_BLOCKS = ("split", "chat_template", "limit")
"""Fields that a configuration has from its block, and not from its method."""
OF_METHODS = ("method", "checkpoint", "base_checkpoint")
"""Inputs that are the method's own."""
DIGITS = 6
"""Of a digest, where two files of one name are told apart."""
READ_ALIKE = {"ratio": "demonstrations", "tokens": "book"}
"""Options, by their reader, that leave the queries as they are, and all that stands before each: which share of the
demonstrations a method adapts to, and up to which lengths of a text there are figures."""
CHECKPOINT, SEED = "checkpoint file", "seed"
"""What a checkpoint is known by; and the seed that it was trained with, which its name stands for."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """All runs of one configuration, whatever their seed."""

    runs: tuple[Run, ...]
    metric: str
    varying: Mapping[str, Json]
    """Options that set it apart from others of its method, task and model."""
    material: Mapping[str, Json]
    """Options that decide its context and its queries."""
    configured: str
    """Options that tell configurations of methods apart, whatever the block and whose state answered."""
    theirs: str = ""
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
class Place:
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
        return ", ".join([f"{self.task} ({short_source(self.source)})", f"base {self.model}", *self._options])

    @property
    def brief(self) -> str:
        """The task, with what tells it from other blocks of the task."""
        return " ".join([self.task, *self._options])

    @property
    def _options(self) -> list[str]:
        return [f"{key}={told(value)}" for key, value in self.options.items()]


def called(place: Place, places: Sequence[Place]) -> str:
    """A block in few words: without its source and base where no other of these is of the same task and options."""
    return place.brief if [other.brief for other in places].count(place.brief) == 1 else place.name


def told(value: Json) -> str:
    """A setting as it is typed: `16k,32k` for a list of lengths."""
    if isinstance(value, list | tuple):
        return ",".join(short(part) if isinstance(part, int) else str(part) for part in value)
    return str(value)


def short_source(source: str) -> str:
    """The last part of a path: `file:xquad.en.json`."""
    kind, colon, path = source.partition(":")
    return f"{kind}{colon}{Path(path).name}" if colon else source


def blocks_of(runs: Sequence[Run], metric: str = "") -> list[tuple[Place, list[Group]]]:
    """Blocks in the order of their first run, but those of one task together; groups in the order of theirs. The metric
    compared is that by which each task is known where it is empty."""
    groups: dict[str, list[Run]] = {}
    for folder, record in runs:
        named = [record.config.get(key) for key in ("method", "task", "model")]
        settings = sorted((key, repr(value)) for key, value in varying(record).items())
        code = _code(record, metric or record.main_metric), inputs_of(record).get("model")
        key = repr((lab_of(folder), *named, record.source, settings, code))
        groups.setdefault(key, []).append((folder, record))
    by_block: dict[str, dict[str, list[Group]]] = {}
    for own in (part for group in groups.values() for part in without_repeats(group)):
        folder, first = own[0]
        compared, theirs = metric or first.main_metric, lab_of(folder)
        group = Group(
            runs=tuple(own),
            metric=compared,
            varying=varying(first),
            configured=_configured(first, theirs),
            material={**_material(first), **_code(first, compared)},
            theirs=theirs,
        )
        # by the name of a file, wherever it lies: submissions name files without their folders
        task = repr((first.config.get("task"), short_source(first.source), base_of(first), compared))
        by_block.setdefault(task, {}).setdefault(repr(sorted(group.material.items())), []).append(group)
    return [block for alike in by_block.values() for block in _siblings(list(alike.values()))]


def without_repeats(runs: Sequence[Run]) -> list[list[Run]]:
    """Split runs of one configuration so that no part has two of one seed: by the digest of their rows, else by run.

    Two runs of one seed have read a file that changed between them, or were made by versions that name runs otherwise.
    """
    if _unrepeated(runs):
        return [list(runs)]
    parts: dict[str, list[Run]] = {}
    for run in runs:
        parts.setdefault(inputs_of(run[1]).get("rows", ""), []).append(run)
    if all(map(_unrepeated, parts.values())):
        return list(parts.values())
    return [[run] for run in runs]


def _unrepeated(runs: Sequence[Run]) -> bool:
    return len({seed_of(record) for _, record in runs}) == len(runs)


def inputs_of(record: RunRecord) -> dict[str, str]:
    """The digests of what a run read, by name; see `RunConfig.inputs`."""
    return record.config.get("inputs", {})


def _code(record: RunRecord, metric: str) -> dict[str, str]:
    """The first digits of what decides how answers are asked for and judged, where it is not ttabench's own."""
    inputs = inputs_of(record)
    digests = {name: inputs.get(name, "") for name in BLOCK_INPUTS}
    digests["metric"] = hashed(origin)[:DIGITS] if (origin := inputs.get(f"metric {metric}")) else ""
    return {name: value[:DIGITS] if name == "card" else value for name, value in digests.items() if value}


def _configured(record: RunRecord, theirs: str) -> str:
    config = with_defaults(record.config)
    kept = {key: value for key, value in config.items() if key not in (*NOT_COMPARED, *OF_BLOCKS)}
    kept["inputs"] = {key: value for key, value in config["inputs"].items() if key in OF_METHODS}
    kept["task_options"] = {key: value for key, value in config["task_options"].items() if key in READ_ALIKE}
    return repr((theirs, record.config.get("method"), sorted(kept.items(), key=str)))


def _siblings(blocks: Sequence[list[Group]]) -> list[tuple[Place, list[Group]]]:
    """Blocks of one task, source and model, by the options that differ among them, ascending."""
    materials = [block[0].material for block in blocks]
    keys = [key for key in dict.fromkeys(key for material in materials for key in material)
            if len({repr(material.get(key)) for material in materials}) > 1]  # fmt: skip
    placed = []
    for block, material in zip(blocks, materials, strict=True):
        first = block[0].record
        options = {key: material[key] for key in keys if material.get(key) is not None}
        place = Place(task=str(first.config.get("task")), source=first.source, model=first.base,
                      metric=block[0].metric, options=options)  # fmt: skip
        placed.append((place, block))
    return sorted(placed, key=lambda at: [natural(str(at[0].options.get(key))) for key in keys])


def _material(record: RunRecord) -> dict[str, Json]:
    """Options that decide context and queries, seeds and limits aside."""
    reader = record.task.get("reader")
    options = with_defaults(record.config)["task_options"]
    kept = {key: value for key, value in options.items() if key not in READ_ALIKE or READ_ALIKE[key] != reader}
    return {**kept, "split": record.config.get("split"), "chat_template": bool(record.config.get("chat_template"))}


def varying(record: RunRecord) -> dict[str, Json]:
    """Options that set a run apart from others of its method, task and model, seeds aside, in one level."""
    flat: dict[str, Json] = {STATE_OF: record.state_of}
    for key, value in with_defaults(record.config).items():
        if key in NOT_COMPARED:
            continue
        if key == "inputs":
            value = {f"{name} file": item for name, item in value.items()
                     if name not in UNNAMED_INPUTS and not name.startswith("metric ")}  # fmt: skip
        for inner, item in value.items() if isinstance(value, dict) else [(key, value)]:
            # a method and a task may have settings of one name
            flat[f"{key} {inner}" if inner in flat else inner] = item
    return flat


def labels_of(blocks: Sequence[Sequence[Group]]) -> list[list[str]]:
    """The labels of every block's groups; unique in each."""
    keys: dict[tuple[str, str], set[str]] = {}
    for block in blocks:
        for group in block:
            keys.setdefault((group.configured, group.state_of), set()).update(_apart(group, block))
    labels = [[_label(group, block, keys[group.configured, group.state_of]) for group in block] for block in blocks]
    return [
        [f"{label} #{group.record.id[:6]}" if own.count(label) > 1 else label
         for label, group in zip(own, block, strict=True)]
        for own, block in zip(labels, blocks, strict=True)
    ]  # fmt: skip


def natural(label: str) -> list[tuple[bool, float, str]]:
    """For sorting: numbers by their size, so that budget=0.5 stands before budget=16."""
    parts = re.split(r"(\d+(?:\.\d+)?)", label)
    return [(not part[:1].isdigit(), float(part) if part[:1].isdigit() else 0.0, part) for part in parts if part]


def _apart(group: Group, block: Sequence[Group]) -> list[str]:
    """The settings in which it differs from others of its method in the block."""
    alike = [other.varying for other in block if other.method == group.method]
    return [key for key, value in group.varying.items() if any(other.get(key) != value for other in alike)]


def _label(group: Group, block: Sequence[Group], keys: set[str]) -> str:
    """The method with these settings: a checkpoint by its folder, where that tells it from the others of the block."""
    settings = {key: group.varying[key] for key in sorted(keys - {STATE_OF}) if group.varying.get(key) is not None}
    others = [_checkpoint(one) for one in block if one.varying.get(CHECKPOINT) != group.varying.get(CHECKPOINT)]
    if CHECKPOINT in settings and _checkpoint(group) not in ("", *others):
        settings = {"checkpoint" if key == CHECKPOINT else key: _checkpoint(group) if key == CHECKPOINT else value
                    for key, value in settings.items() if key != SEED}  # fmt: skip
    budget, own = settings_kept(group.record.config)
    words = [group.method, *([budget] if own & settings.keys() else [])]
    words += [f"{key}={told(value)[: DIGITS if key.endswith(' file') and '==' not in str(value) else None]}"
              for key, value in settings.items() if key not in own]  # fmt: skip
    state = STATES[group.state_of] if STATE_OF in keys else ""
    return " ".join(words) + state + (f" (theirs: {group.theirs})" if group.theirs else "")


def _checkpoint(group: Group) -> str:
    """The last part of its name, or of its path."""
    name = str(group.record.config.get("checkpoint") or "")
    return name.rstrip("/").rpartition("/")[2].removeprefix("shipped:")
