"""MetaICL's tasks, in the folders `config` and `data` of facebookresearch/MetaICL.

config/hr_to_lr.json                      {"train": [...], "test": ["quarel", ...]}
data/quarel/quarel_16_100_train.jsonl     {"task": "quarel", "input": "...", "output": "...", "options": [...]}
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict

from ttabench.core.checked_file import object_of
from ttabench.core.errors import UserError
from ttabench.readers.base import named
from ttabench.readers.cards import Card, Scalar
from ttabench.readers.formats import RawRow, parsing, rows
from ttabench.readers.sources import Request, generated, tops, twin_rows

DRAWS = (100, 13, 21, 42, 87)
"""The published draws of demonstrations, by the run's seed; CCM uses the first, and fills it up from the second."""
CONFIGURATION = "hr_to_lr"
SHOTS = 16


class MetaRow(BaseModel):
    """One row of a MetaICL file, numbered in it."""

    model_config = ConfigDict(frozen=True, str_strip_whitespace=True)

    id: str
    task: str
    input: str
    output: str
    options: Annotated[tuple[str, ...], AfterValidator(lambda options: tuple(dict.fromkeys(options)))]
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


def parse(raw_rows: Iterable[RawRow], choosing: bool = True) -> tuple[list[MetaRow], Counter[str]]:
    """(rows in file order, how many are dropped by reason: an empty text, or no options to choose from)."""
    parsed, dropped = list[MetaRow](), Counter[str]()
    for number, raw in enumerate(raw_rows):
        with parsing(raw.place):
            row = MetaRow.model_validate({**raw.values, "id": str(number)})
            if row.options and row.output not in row.options:
                raise ValueError(f"output {row.output!r:.60} is not among the options")
        if choosing and not row.options:
            dropped["no options"] += 1
        elif not (row.input and row.output and all(row.options)):
            dropped["empty input, output or option"] += 1
        else:
            parsed.append(row)
    return parsed, dropped


def twin_tasks(
    card: Card, split: str, seed: int, arguments: Mapping[str, Scalar], wanted: str = "all"
) -> list[MetaTask]:
    """Tasks of the miniature world that stands for a split."""
    files = generated(card, split=card.splits[split].twin, seed=seed, **arguments)
    made = {name: parse(twin_rows(card, held).rows)[0] for name, held in files.items()}
    ending = f"_{SHOTS}_{seed}_"
    known = [name.removesuffix(f"{ending}train") for name in made if name.endswith("_train")]
    return [
        MetaTask(name=name, shown=made[f"{name}{ending}train"], asked=made[f"{name}{ending}test"], dropped={})
        for name in named("MetaICL task", known, wanted)
    ]


def wanted_tasks(card: Card, request: Request, wanted: str, *, choosing: bool) -> tuple[list[MetaTask], list[str]]:
    """(tasks of a folder, notes about what it lacks)."""
    given = Path(request.source)
    above = [given.absolute().parent] if given.absolute().name == "data" else []
    base = next((place for place in (*tops(given, card.source.folders), *above) if (place / "data").is_dir()), None)
    if base is None:
        raise UserError(f"{given} is no MetaICL folder: it has no folder 'data'.", card.source.how)
    if not 0 <= request.seed < len(DRAWS):
        fault = f"Seed {request.seed} is none of the {len(DRAWS)} published draws ({', '.join(map(str, DRAWS))})."
        raise UserError(fault, "Give seeds 0 to 4.")
    training = request.split != "test"
    configured = object_of(base / "config" / f"{CONFIGURATION}.json", "Copy it from facebookresearch/MetaICL.")
    chosen = named("MetaICL task", configured.get("train" if training else "test", []), wanted)
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


def _file(base: Path, name: str, draw: int, part: str) -> Path:
    return base / "data" / name / f"{name}_{SHOTS}_{draw}_{part}.jsonl"


def _task(base: Path, name: str, seed: int, training: bool, choosing: bool) -> MetaTask:
    """Test rows are those of draw 100, which serve all draws; a training task has none and asks its other draws."""
    draws = (DRAWS[seed], *(draw for draw in DRAWS if draw != DRAWS[seed]))
    files = [path for draw in draws if (path := _file(base, name, draw, "train")).is_file()]
    (shown, unused), *rest = (parse(rows(path), choosing) for path in files)
    others = [row for other, _ in rest for row in other]
    asked, spare = others, list[MetaRow]()
    if not training:
        asked, unused = parse(rows(_file(base, name, DRAWS[0], "test")), choosing)
        spare = [row.model_copy(update={"id": f"other-{row.id}"}) for row in rest[0][0]] if rest else []
    used = {row.pair for row in shown}
    kept = [row for row in asked if row.pair not in used]
    dropped = unused + Counter({"query equal to a demonstration": len(asked) - len(kept)})
    pool = list({row.pair: row for row in (*shown, *others)}.values())
    numbered = [row.model_copy(update={"id": str(i)}) for i, row in enumerate(kept)]
    return MetaTask(name=name, shown=shown, asked=numbered, spare=spare, pool=pool, dropped=dict(dropped))
