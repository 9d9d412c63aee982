"""MetaICL's files: which tasks a configuration names, and the rows of one task and draw.

    wanted_tasks(card, request, "quarel", choosing=True)  ->  ([MetaTask(name="quarel", ...)], notes)

The folder is laid out as facebookresearch/MetaICL writes it (module docstring of `readers.metaicl`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ttabench.core.checked_file import json_of
from ttabench.core.errors import UnknownName, UserError
from ttabench.readers.cards import Card, Scalar
from ttabench.readers.choice_shapes import text_of
from ttabench.readers.faults import brief
from ttabench.readers.formats import rows
from ttabench.readers.generators import generated
from ttabench.readers.layouts import tops
from ttabench.readers.raw import RawRow, malformed, proper
from ttabench.readers.sources import Request

DRAWS = (100, 13, 21, 42, 87)
"""The published draws of demonstrations, by the run's seed; CCM uses the first, and fills it up from the second."""
CONFIGURATION = "hr_to_lr"
SHOTS = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class MetaRow:
    """One row of a MetaICL file."""

    id: str
    task: str
    input: str
    output: str
    options: tuple[str, ...]
    """Empty where the answer is free."""


@dataclass(frozen=True, kw_only=True)
class MetaTask:
    """One task: demonstrations in order, and the rows to ask."""

    name: str
    shown: tuple[MetaRow, ...]
    asked: tuple[MetaRow, ...]
    spare: tuple[MetaRow, ...] = ()
    """Demonstrations of another draw, which stand in for those of this one that are too long."""
    pool: tuple[MetaRow, ...] = ()
    """Demonstrations of all draws, to train on."""
    dropped: Mapping[str, int]


def parse(raw_rows: list[RawRow], choosing: bool = True) -> tuple[list[MetaRow], Counter[str]]:
    """(rows in file order, how many are dropped by reason: an empty text, or no options where a choice is to be made).

    Raises:
        UserError: a cell is missing or has the wrong shape; the output is not among the options.
    """
    parsed: list[MetaRow] = []
    dropped: Counter[str] = Counter()
    for number, (place, values) in enumerate(raw_rows):
        for column in ("task", "input", "output", "options"):
            if column not in values:
                have = brief(", ".join(map(str, values)), 160)
                raise UserError(f"{place} lacks the column {column!r}; it has {have}.", "Give MetaICL's own files.")
        task, given, output = (text_of(place, key, values[key]).strip() for key in ("task", "input", "output"))
        options = values["options"]
        if not isinstance(options, list):
            raise malformed(place, f"options are {brief(options)}, no list")
        words = tuple(dict.fromkeys(text_of(place, "an option", option).strip() for option in options))
        if words and output not in words:
            raise malformed(place, f"output {brief(output)} is not among the options {brief(', '.join(words))}")
        if choosing and not words:
            dropped["no options"] += 1
            continue
        if not (given and output and all(words)):
            dropped["empty input, output or option"] += 1
            continue
        parsed.append(MetaRow(id=str(number), task=task, input=given, output=output, options=words))
    return parsed, dropped


def twin_tasks(
    card: Card, place: tuple[str, int], arguments: Mapping[str, Scalar], wanted: str = "all"
) -> list[MetaTask]:
    """Tasks of the miniature world; `place` is its split there and its seed.

    Raises:
        UserError: the generator refuses its arguments, they leave no rows, or a wanted task is not among those made.
    """
    split, seed = place
    files = generated(card, dict, split=split, seed=seed, **arguments)
    made = {name: [RawRow(f"mini {name} row {i}", row) for i, row in enumerate(held)] for name, held in files.items()}
    known = [name.removesuffix(f"_{SHOTS}_{seed}_train") for name in made if name.endswith("_train")]
    tasks = []
    for name in _chosen(known, wanted):
        demonstrations, asked = (parse(made[f"{name}_{SHOTS}_{seed}_{part}"])[0] for part in ("train", "test"))
        if not asked:
            raise UserError(f"The twin of {card.name} gives no rows with {dict(arguments)}.", "Change --task-set.")
        tasks.append(MetaTask(name=name, shown=tuple(demonstrations), asked=tuple(asked), dropped={}))
    if not tasks:
        raise UserError(f"The twin of {card.name} gives no rows with {dict(arguments)}.", "Change --task-set.")
    return tasks


def wanted_tasks(card: Card, request: Request, wanted: str, *, choosing: bool) -> tuple[list[MetaTask], list[str]]:
    """(tasks of a folder, notes about what it lacks).

    Raises:
        UserError: there is no such folder, configuration or task, or a row cannot be read.
    """
    if request.source == "hub":
        raise UserError(f"The task {card.name} is on no hub.", f"{card.source.how} Then give --source DIR.")
    base = _root(card, Path(request.source))
    if not 0 <= request.seed < len(DRAWS):
        draws = ", ".join(map(str, DRAWS))
        raise UserError(
            f"Seed {request.seed} is none of the {len(DRAWS)} published draws ({draws}).", "Give seeds 0 to 4."
        )
    names = _configured(base, "test" if request.split == "test" else "train")
    chosen = _chosen(names, wanted)
    training = request.split != "test"
    there = [name for name in chosen if _file(base, name, DRAWS[request.seed], "train").is_file()]
    missing = [name for name in chosen if name not in there]
    if missing and (wanted != "all" or not there):
        path = _file(base, missing[0], DRAWS[request.seed], "train")
        raise UserError(f"There is no file {path} of {missing[0]}.", f"{card.source.how}")
    notes = [card.splits[request.split].note] if card.splits[request.split].note else []
    if missing:
        notes.append(f"{len(missing)} of {len(chosen)} tasks have no files and were left out: {', '.join(missing)}")
    tasks = [_task(base, name, request.seed, training, choosing) for name in there]
    free = [task.name for task in tasks if not task.asked]
    if free and (wanted != "all" or len(free) == len(tasks)):
        raise UserError(f"{', '.join(free)} has no options to choose from.", "Use --task-set answer=generate.")
    return [task for task in tasks if task.asked], notes


def _root(card: Card, given: Path) -> Path:
    """The folder that holds `data` and `config`: what is given, the top folder in it, or the one around `data`."""
    above = given.absolute()
    roots = [place for place in tops(given, card.source.folders) if (place / "data").is_dir()]
    if not roots and above.name == "data" and above.is_dir():
        roots = [above.parent]
    if not roots:
        raise UserError(f"{given} is no MetaICL folder: it has no folder 'data'.", card.source.how)
    return roots[0]


def _configured(base: Path, side: str) -> list[str]:
    path = base / "config" / f"{CONFIGURATION}.json"
    try:
        names = json_of(path)[side]
    except (OSError, ValueError, KeyError, TypeError):
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) and _plain(name) for name in names):
        raise UserError(
            f"{path} is missing or has no list {side!r} of tasks.", "Copy it from facebookresearch/MetaICL."
        )
    return [proper(str(path), "the name of a task", name) for name in names]


def _plain(name: str) -> bool:
    """Whether a name is that of one folder, and of none above or elsewhere."""
    return name not in ("", ".", "..") and not set(name) & set("/\\\0")


def _chosen(known: list[str], wanted: str) -> list[str]:
    names = known if wanted == "all" else [name.strip() for name in wanted.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise UnknownName("MetaICL task", name, known)
    return list(dict.fromkeys(names))


def _file(base: Path, name: str, draw: int, part: str) -> Path:
    return base / "data" / name / f"{name}_{SHOTS}_{draw}_{part}.jsonl"


def _task(base: Path, name: str, seed: int, training: bool, choosing: bool) -> MetaTask:
    """Test rows are those of draw 100, which serve all draws; a training task has none and asks its other draws."""
    draws = (DRAWS[seed], *(draw for draw in DRAWS if draw != DRAWS[seed]))
    files = [path for draw in draws if (path := _file(base, name, draw, "train")).is_file()]
    held = [list(rows(path)) for path in files]
    demonstrations, unused = parse(held[0], choosing)
    rest = [parse(other_row, choosing)[0] for other_row in held[1:]]
    others = [row for other_row in rest for row in other_row]
    path = _file(base, name, DRAWS[0], "test")
    if training:
        asked = others
    elif path.is_file():
        asked, unused = parse(list(rows(path)), choosing)
    else:
        raise UserError(f"There is no file {path}.", "The test rows of every draw are those of draw 100.")
    used = {(row.input, row.output) for row in demonstrations}
    kept = [row for row in asked if (row.input, row.output) not in used]
    counts = {**unused, "query equal to a demonstration": len(asked) - len(kept)}
    unique = {(row.input, row.output): row for row in (*demonstrations, *others)}
    pool = tuple(unique.values())
    numbered = tuple(replace(row, id=str(i)) for i, row in enumerate(kept))
    dropped = {reason: count for reason, count in counts.items() if count}
    spare = [] if training or not rest else [replace(row, id=f"other-{row.id}") for row in rest[0]]
    return MetaTask(
        name=name, shown=tuple(demonstrations), asked=numbered, spare=tuple(spare), pool=pool, dropped=dropped
    )
