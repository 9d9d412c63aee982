"""Which runs stand in one block of a comparison, how they are pooled, and what tells them apart there.

    blocks_of(runs)     one block a task, source, base model and metric, and of what is read and asked (documents=16)

Runs of one block that differ in their seed only are one `Group`. A block names what tells it from the others of its
task: runs that read or ask other things are never in one block.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ttabench.core.sizes import short
from ttabench.core.types import Json
from ttabench.records.schema import RunRecord
from ttabench.records.submission import file_of
from ttabench.report.configuration import with_defaults
from ttabench.report.pairing import Run, base_of
from ttabench.report.submissions import name_in, names_of

STATE_OF = "state of"
FLOOR, CEILING = "none", "icl"
"""Methods that a block begins with."""
NOT_COMPARED = (
    "state_of", "seed", "checkpoint", "state", "device", "source", "method", "task", "model", "preset",
    "base_checkpoint",
)  # fmt: skip
TOLD_ELSEWHERE = ("rows", "others", "model", "card", "reader")
"""Inputs that set no line apart: rows differ from seed to seed (which data they are, `source` says), the base and the
card tell blocks apart, and earlier versions took other digests of the base, or none of the card."""
DIGITS = 6
"""Of a card's digest, where two cards of one name are told apart."""
READ_ALIKE = {"ratio": "demonstrations", "tokens": "book"}
"""Options, by their reader, that leave the queries as they are, and all that stands before each: which share of the
demonstrations a method adapts to, and up to which lengths of a text there are figures."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """All runs of one configuration, whatever their seed."""

    runs: tuple[Run, ...]
    metric: str
    varying: Mapping[str, Json]
    """Options that set it apart from others of its method, task and model."""
    material: Mapping[str, Json]
    """Options that decide its context and its queries."""
    theirs: str = ""
    """Name of the submission that its runs are from; empty for runs of ours."""

    @property
    def record(self) -> RunRecord:
        """Of its first run."""
        return self.runs[0][1]

    @property
    def method(self) -> str:
        """Its name."""
        return str(self.record.config.get("method"))

    @property
    def seeds(self) -> tuple[int, ...]:
        """Those of its runs, in order."""
        return tuple(sorted({int(record.config.get("seed", 0)) for _, record in self.runs}))


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
        apart = "".join(f", {key}={told(value)}" for key, value in self.options.items())
        return f"{self.task} ({short_source(self.source)}), base {self.model}{apart}"

    @property
    def brief(self) -> str:
        """The task, with what tells it from other blocks of the task."""
        return " ".join([self.task, *(f"{key}={told(value)}" for key, value in self.options.items())])


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
    """Blocks in the order of their first run, but those of one task together; groups in the order of theirs.

    Args:
        runs: folders and records.
        metric: the metric compared; that by which each task is known where it is empty.
    """
    cards, names = _cards(runs), _submissions(runs)
    sources = {record.source for folder, record in runs if not name_in(names, folder)}
    groups: dict[str, list[Run]] = {}
    for folder, record in runs:
        key = repr((name_in(names, folder), _group_key(record), cards[record.id]))
        groups.setdefault(key, []).append((folder, record))
    by_block: dict[str, dict[str, list[Group]]] = {}
    for own in groups.values():
        first = own[0][1]
        material = {**_material(first), **({"card": cards[first.id]} if cards[first.id] else {})}
        theirs = name_in(names, own[0][0])
        group = Group(runs=tuple(own), metric=metric or first.main_metric, varying=varying(first), material=material,
                      theirs=theirs)  # fmt: skip
        source = _as_here(first.source, sources) if theirs else first.source
        task = repr((first.config.get("task"), source, base_of(first), group.metric))
        by_block.setdefault(task, {}).setdefault(repr(sorted(material.items())), []).append(group)
    return [block for alike in by_block.values() for block in _siblings(list(alike.values()))]


def _submissions(runs: Sequence[Run]) -> dict[Path, str]:
    return names_of([file for folder, _ in runs if (file := file_of(folder)) is not None])


def _as_here(source: str, ours: Collection[str]) -> str:
    """The source of others' runs as ours have it: submissions name files without their folders."""
    alike = [label for label in ours if short_source(label) == source]
    return alike[0] if len(alike) == 1 else source


def _cards(runs: Sequence[Run]) -> dict[str, str]:
    """Digest of the card by run; of a run that names none, that of the others of its task where they have one."""
    named = {record.id: str(record.config.get("inputs", {}).get("card", ""))[:DIGITS] for _, record in runs}
    known: dict[str, set[str]] = {}
    for _, record in runs:
        known.setdefault(str(record.config.get("task")), set()).update(filter(None, [named[record.id]]))
    return {
        record.id: named[record.id] or (min(own) if len(own := known[str(record.config.get("task"))]) == 1 else "")
        for _, record in runs
    }


def _siblings(blocks: Sequence[list[Group]]) -> list[tuple[Place, list[Group]]]:
    """Blocks of one task, source and model, by the options that differ among them, ascending."""
    materials = [block[0].material for block in blocks]
    keys = [key for key in dict.fromkeys(key for own_material in materials for key in own_material)
            if len({repr(own_material.get(key)) for own_material in materials}) > 1]  # fmt: skip
    placed = []
    for block, material in zip(blocks, materials, strict=True):
        first = block[0].record
        options = {key: material[key] for key in keys if material.get(key) is not None}
        place = Place(task=str(first.config.get("task")), source=first.source, model=first.base,
                      metric=block[0].metric, options=options)  # fmt: skip
        placed.append((place, block))
    return sorted(placed, key=lambda material: [_ascending(material[0].options.get(key)) for key in keys])


def _ascending(value: Json) -> tuple[bool, float, str]:
    number = isinstance(value, int | float)
    return not number, float(value) if number else 0.0, "" if number else str(value)


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
        if isinstance(value, dict):
            named = {f"{inner} file": item for inner, item in value.items() if inner not in TOLD_ELSEWHERE}
            for inner, item in (named if key == "inputs" else value).items():
                # a method and a task may have settings of one name
                flat[f"{key} {inner}" if inner in flat else inner] = item
        else:
            flat[key] = value
    return flat


def _group_key(record: RunRecord) -> str:
    named = [str(record.config.get(key)) for key in ("method", "task", "model")]
    return repr([*named, record.source, sorted((key, repr(value)) for key, value in varying(record).items())])
