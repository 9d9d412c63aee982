"""MetaICL's tasks, in the folders `config` and `data` of facebookresearch/MetaICL.

config/hr_to_lr.json                      {"train": [...], "test": ["quarel", ...]}
data/quarel/quarel_16_100_train.jsonl     {"task": "quarel", "input": "...", "output": "...", "options": [...]}
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ttabench.core.checked_file import object_of
from ttabench.core.errors import UserError
from ttabench.readers.base import named
from ttabench.readers.cards import Card, Scalar
from ttabench.readers.faults import brief
from ttabench.readers.formats import RawRow, malformed, rows, text_of
from ttabench.readers.layouts import tops
from ttabench.readers.sources import Request, generated, twin_rows

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

    @property
    def pair(self) -> tuple[str, str]:
        """Two rows of one pair are equal."""
        return self.input, self.output


@dataclass(frozen=True, kw_only=True)
class MetaTask:
    """One task: demonstrations in order, and the rows to ask."""

    name: str
    shown: Sequence[MetaRow]
    asked: Sequence[MetaRow]
    spare: Sequence[MetaRow] = ()
    """Demonstrations of another draw, which stand in for those of this one that are too long."""
    pool: Sequence[MetaRow] = ()
    """Demonstrations of all draws, to train on."""
    dropped: Mapping[str, int]


def parse(raw_rows: Sequence[RawRow], choosing: bool = True) -> tuple[list[MetaRow], Counter[str]]:
    """(rows in file order, how many are dropped by reason: an empty text, or no options to choose from)."""
    parsed, dropped = list[MetaRow](), Counter[str]()
    for number, raw in enumerate(raw_rows):
        place = raw.place
        cells = {key: raw.needed([key], "Give MetaICL's own files.") for key in ("task", "input", "output", "options")}
        task, given, output = (text_of(place, key, cells[key]).strip() for key in ("task", "input", "output"))
        options = cells["options"]
        if not isinstance(options, list):
            raise malformed(place, f"options are {brief(options)}, no list")
        words = tuple(dict.fromkeys(text_of(place, "an option", option).strip() for option in options))
        if words and output not in words:
            raise malformed(place, f"output {brief(output)} is not among the options {brief(', '.join(words))}")
        if choosing and not words:
            dropped["no options"] += 1
        elif not (given and output and all(words)):
            dropped["empty input, output or option"] += 1
        else:
            parsed.append(MetaRow(id=str(number), task=task, input=given, output=output, options=words))
    return parsed, dropped


def twin_tasks(
    card: Card, split: str, seed: int, arguments: Mapping[str, Scalar], wanted: str = "all"
) -> list[MetaTask]:
    """Tasks of the miniature world that stands for a split."""
    files = generated(card, dict, split=card.splits[split].twin, seed=seed, **arguments)
    made = {name: parse(twin_rows(card, held, arguments).rows)[0] for name, held in files.items()}
    ending = f"_{SHOTS}_{seed}_"
    known = [name.removesuffix(f"{ending}train") for name in made if name.endswith("_train")]
    return [
        MetaTask(name=name, shown=made[f"{name}{ending}train"], asked=made[f"{name}{ending}test"], dropped={})
        for name in named("MetaICL task", known, wanted)
    ]


def wanted_tasks(card: Card, request: Request, wanted: str, *, choosing: bool) -> tuple[list[MetaTask], list[str]]:
    """(tasks of a folder, notes about what it lacks)."""
    if request.source == "hub":
        raise UserError(f"The task {card.name} is on no hub.", f"{card.source.how} Then give --source DIR.")
    base = _root(card, Path(request.source))
    if not 0 <= request.seed < len(DRAWS):
        fault = f"Seed {request.seed} is none of the {len(DRAWS)} published draws ({', '.join(map(str, DRAWS))})."
        raise UserError(fault, "Give seeds 0 to 4.")
    training = request.split != "test"
    chosen = named("MetaICL task", _configured(base, "train" if training else "test"), wanted)
    paths = {name: _file(base, name, DRAWS[request.seed], "train") for name in chosen}
    missing = [name for name, path in paths.items() if not path.is_file()]
    if missing and (wanted != "all" or len(missing) == len(chosen)):
        raise UserError(f"There is no file {paths[missing[0]]} of {missing[0]}.", f"{card.source.how}")
    notes = [card.splits[request.split].note] if card.splits[request.split].note else []
    if missing:
        notes.append(f"{len(missing)} of {len(chosen)} tasks have no files and were left out: {', '.join(missing)}")
    tasks = [_task(base, name, request.seed, training, choosing) for name in chosen if name not in missing]
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
    path, again = base / "config" / f"{CONFIGURATION}.json", "Copy it from facebookresearch/MetaICL."
    names = object_of(path, again).get(side)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(f"{path} has no list {side!r} of tasks.", again)
    return names


def _file(base: Path, name: str, draw: int, part: str) -> Path:
    return base / "data" / name / f"{name}_{SHOTS}_{draw}_{part}.jsonl"


def _task(base: Path, name: str, seed: int, training: bool, choosing: bool) -> MetaTask:
    """Test rows are those of draw 100, which serve all draws; a training task has none and asks its other draws."""
    draws = (DRAWS[seed], *(draw for draw in DRAWS if draw != DRAWS[seed]))
    files = [path for draw in draws if (path := _file(base, name, draw, "train")).is_file()]
    (shown, unused), *rest = (parse(list(rows(path)), choosing) for path in files)
    others = [row for other, _ in rest for row in other]
    asked, spare = others, list[MetaRow]()
    if not training:
        path = _file(base, name, DRAWS[0], "test")
        if not path.is_file():
            raise UserError(f"There is no file {path}.", "The test rows of every draw are those of draw 100.")
        asked, unused = parse(list(rows(path)), choosing)
        spare = [replace(row, id=f"other-{row.id}") for row in rest[0][0]] if rest else []
    used = {row.pair for row in shown}
    kept = [row for row in asked if row.pair not in used]
    dropped = unused + Counter({"query equal to a demonstration": len(asked) - len(kept)})
    pool = list({row.pair: row for row in (*shown, *others)}.values())
    numbered = [replace(row, id=str(i)) for i, row in enumerate(kept)]
    return MetaTask(name=name, shown=shown, asked=numbered, spare=spare, pool=pool, dropped=dict(dropped))
