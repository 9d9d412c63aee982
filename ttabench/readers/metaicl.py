"""MetaICL's held-out tasks: 16 demonstrations are read one by one; after 1, 2, 4, 8 and 16 the same rows are asked.

One episode a task and one pass: the queries after t demonstrations stand at step t. The run's seed 0..4 stands for the
published draws 100, 13, 21, 42 and 87 (the published order is kept: the first t rows of a draw are its demonstrations;
test rows are the same for all). The protocol is that of CCM (arXiv 2312.03414, appendix D): "Input: {x} Output: {y}",
options by mean log-likelihood (`acc_mean`; sums, `acc`, stand beside it), examples of at most 256 tokens, at most 1,024
in all. As in its released code every query is measured beside the context apart: a long query is asked after fewer
demonstrations than a short one. In one pass it is asked once as many were read as fit beside it.

Files are those of facebookresearch/MetaICL:

    config/hr_to_lr.json                      {"train": [...], "test": ["quarel", ...]}
    data/quarel/quarel_16_100_train.jsonl     {"task": "quarel", "input": "...", "output": "...", "options": [...]}
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict

from ttabench.core.errors import UserError
from ttabench.core.files import object_of, reading
from ttabench.core.types import Ask, At, Episode, Json, Observe, Step
from ttabench.mini.world import categories_in
from ttabench.readers.base import Bound, Training, blanks_in_front, in_order, named, other_seeds, shares, spread
from ttabench.readers.cards import Card, ProtocolSettings, Scalar
from ttabench.readers.formats import RawRow, rows
from ttabench.readers.sources import Request, Table, generated, resolve, tops, twin_rows, usable
from ttabench.readers.tokens import Count, StepCounts, TokenLimit, Tokens, counted_by, estimate, fitting

DRAWS = (100, 13, 21, 42, 87)
"""The published draws of demonstrations, by the run's seed; CCM uses the first, and fills it up from the second."""
SHOTS = 16
BETWEEN = " "
"""Between two examples."""


class MetaRow(BaseModel):
    """One row of a MetaICL file, numbered in it."""

    model_config = ConfigDict(frozen=True, str_strip_whitespace=True)

    id: str
    task: str
    input: str
    output: str
    options: Annotated[tuple[str, ...], AfterValidator(lambda options: tuple(dict.fromkeys(options)))]

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


def parse(data: Table) -> list[MetaRow]:
    """Rows in file order; left out are those with an empty text, or without options to choose from."""

    def row_of(raw: RawRow) -> MetaRow | str:
        row = MetaRow.model_validate({**raw.values, "id": str(raw.number)})
        if not row.options:
            return "no options"
        if row.output not in row.options:
            raise ValueError(f"output {row.output!r:.60} is not among the options")
        return row if row.input and row.output and all(row.options) else "empty input, output or option"

    return usable(data, row_of, some=False)


def twin_tasks(
    card: Card, split: str, seed: int, arguments: Mapping[str, Scalar], wanted: str = "all"
) -> list[MetaTask]:
    """Tasks of the miniature world that stands for a split."""
    files = generated(card, split, seed, **arguments)
    made = {name: parse(twin_rows(card, held)) for name, held in files.items()}
    ending = f"_{SHOTS}_{seed}_"
    known = [name.removesuffix(f"{ending}train") for name in made if name.endswith("_train")]
    return [
        MetaTask(name=name, shown=made[f"{name}{ending}train"], asked=made[f"{name}{ending}test"])
        for name in named("MetaICL task", known, wanted)
    ]


def wanted_tasks(card: Card, request: Request, settings: Settings) -> tuple[list[MetaTask], Table]:
    """(tasks of a folder, what is said of them and of those that it lacks)."""
    given = Path(request.source)
    above = [given.absolute().parent] if given.absolute().name == "data" else []
    base = next((place for place in (*tops(given, card.source.folders), *above) if (place / "data").is_dir()), None)
    if base is None:
        raise UserError(f"{given} is no MetaICL folder: it has no folder 'data'.", card.source.how)
    if not 0 <= request.seed < len(DRAWS):
        fault = f"Seed {request.seed} is none of the {len(DRAWS)} published draws ({', '.join(map(str, DRAWS))})."
        raise UserError(fault, "Give seeds 0 to 4.")
    listed, hint = base / "config" / "hr_to_lr.json", "Copy it from facebookresearch/MetaICL."
    with reading(listed, hint):
        configured = object_of(listed, hint)
        known = named("MetaICL task", configured.get("test" if request.split == "test" else "train", []), settings.task)
        paths = {name: _file(base, name, DRAWS[request.seed], "train") for name in known}
    missing = [name for name, path in paths.items() if not path.is_file()]
    if missing and (settings.task != "all" or len(missing) == len(known)):
        raise UserError(f"There is no file {paths[missing[0]]} of {missing[0]}.", card.source.how)
    lacking = f"{len(missing)} of {len(known)} tasks have no files and were left out: {', '.join(missing)}"
    notes = (lacking,) if missing else ()
    made = [_task(base, name, request) for name in known if name not in missing]
    asked = [(task, dropped) for task, dropped in made if task.asked]
    unused = {f"{task.name}: {reason}": n for task, dropped in asked for reason, n in dropped.items()}
    return [task for task, _ in asked], Table(label=f"folder:{given}", notes=notes, unused=Counter(unused))


def _file(base: Path, name: str, draw: int, part: str) -> Path:
    return base / "data" / name / f"{name}_{SHOTS}_{draw}_{part}.jsonl"


def _task(base: Path, name: str, request: Request) -> tuple[MetaTask, Counter[str]]:
    """(a task, its rows that are not used by reason). Test rows are those of draw 100, which serve all draws; a
    training task has none and asks its other draws.
    """
    draws = (DRAWS[request.seed], *(draw for draw in DRAWS if draw != DRAWS[request.seed]))
    files = [path for draw in draws if (path := _file(base, name, draw, "train")).is_file()]
    tables = [Table(rows=list(rows(path))) for path in files]
    shown, *rest = (parse(data) for data in tables)
    others, spare, last = [row for other in rest for row in other], list[MetaRow](), tables[0]
    asked = others
    if request.split == "test":
        last = Table(rows=list(rows(_file(base, name, DRAWS[0], "test"))))
        asked = parse(last)
        spare = [row.model_copy(update={"id": f"other-{row.id}"}) for row in rest[0]] if rest else []
    used = {row.pair for row in shown}
    kept = [row for row in asked if row.pair not in used]
    last.unused["query equal to a demonstration"] += len(asked) - len(kept)
    pool = list({row.pair: row for row in (*shown, *others)}.values())
    numbered = [row.model_copy(update={"id": str(i)}) for i, row in enumerate(kept)]
    return MetaTask(name=name, shown=shown, asked=numbered, spare=spare, pool=pool), +last.unused


class Settings(ProtocolSettings):
    """The protocol part of a card of the reader `metaicl`, and what `--task-set` may change."""

    task: str = "all"
    """Tasks, separated by commas; "all" for every test task of the configuration."""
    steps: StepCounts = (1, 2, 4, 8, 16)
    """Demonstrations after which the rows are asked."""
    max_example_tokens: TokenLimit = 256
    """Demonstrations and queries that are longer, with their answer, are left out; 0 for no limit."""
    max_tokens: TokenLimit = 1024
    """Most tokens of the demonstrations with a query and its longest option; 0 for no limit."""


class Fitted(NamedTuple):
    """A task as it is run."""

    shown: Sequence[MetaRow]
    """Demonstrations in order, at most as many as were wanted."""
    asked: Sequence[MetaRow]
    places: Mapping[tuple[str, int], int]
    """After how many demonstrations a row is asked, by its id and step; those that are not asked are left out."""


@dataclass(frozen=True, kw_only=True)
class MetaIcl(Bound[Settings]):
    """A `readers.Task` of MetaICL tasks."""

    tasks: Sequence[MetaTask]

    def measured(self, tokens: Tokens | None) -> tuple[list[Fitted], dict[str, int]]:
        """(demonstrations and queries under the limits of each task, what they leave out by task and reason)."""
        fits = [self._fitted(task, counted_by(tokens)) for task in self.tasks]
        return [fitted for fitted, _ in fits], {key: number for _, dropped in fits for key, number in dropped.items()}

    def _fitted(self, task: MetaTask, size: Count) -> tuple[Fitted, dict[str, int]]:
        wanted = max(self.settings.steps)
        own, asked = (self._short(rows, size) for rows in (task.shown[:wanted], task.asked))
        taken = {row.pair for row in (*own, *task.asked)}
        spare = [row for row in self._short(task.spare, size) if row.pair not in taken]
        shown = [*own, *spare[: wanted - len(own)]]
        sizes = [size(_text(row) + BETWEEN) for row in shown]
        fit = dict.fromkeys((row.id for row in asked), len(sizes))
        if most := self.settings.max_tokens:
            beside = {row.id: size(_prompt(row)) + max(size(f" {option}") for option in row.options) for row in asked}
            fit = {key: fitting(sizes, most, taking) for key, taking in beside.items()}
        wished = {(row.id, step): min(step, len(shown)) for row in asked for step in self.settings.steps}
        places = {key: min(number, fit[key[0]]) for key, number in wished.items()}
        dropped = {
            "demonstration too long": len(task.shown[:wanted]) - len(own),
            "query too long": len(task.asked) - len(asked),
            "query asked after fewer demonstrations": sum(places[key] < number for key, number in wished.items()),
        }
        counted = {f"{task.name}: {reason}": number for reason, number in dropped.items() if number}
        return Fitted(shown[: max(places.values(), default=0)], asked, places), counted

    def _short(self, rows: Iterable[MetaRow], size: Count) -> list[MetaRow]:
        """The rows that are not longer than an example may be."""
        most = self.settings.max_example_tokens
        return [row for row in rows if not most or size(_text(row)) <= most]

    def laid(self, tokens: Tokens | None) -> Iterator[tuple[Episode, tuple[MetaTask, Fitted]]]:
        """One episode a task; `limit` counts every step of every row."""
        rows = None if self.limit is None else self.limit // len(set(self.settings.steps))
        for task, fits, share in zip(self.tasks, self.fit(tokens), shares(rows, len(self.tasks)), strict=True):
            steps = tuple(blanks_in_front(self._steps(fits, spread(fits.asked, share))))
            if any(isinstance(step, Ask) for step in steps):
                key = f"{self.card.name}/{task.name}/{self.split}/seed{self.seed}"
                yield Episode(key=key, steps=steps), (task, fits)

    def instead(self, own: tuple[MetaTask, Fitted], tokens: Tokens | None) -> Iterator[Observe]:  # noqa: ARG002
        """Demonstrations of another published draw, for a twin those of another rule."""
        task, fits = own
        if self.mini:
            made = (twin_tasks(self.card, self.split, seed, self.arguments) for seed in other_seeds(self.seed))
            alike = (one.shown for tasks in made for one in tasks
                     if len(one.shown[0].options) == len(task.shown[0].options))  # fmt: skip
            fresh = self.apart(_categories([*task.shown, *task.asked]), alike, _categories, at_worst=True)
        else:
            taken = {row.pair for row in (*fits.shown, *task.asked)}
            fresh = [row for row in self._short(task.spare, estimate) if row.pair not in taken]
        return map(self._observe, fresh[: len(fits.shown)])

    def _steps(self, fits: Fitted, rows: Sequence[MetaRow]) -> Iterator[Step]:
        """Demonstrations, and queries after each `step` of them, or as many as fit beside the query."""
        pieces = [self._observe(row) for row in fits.shown]
        keys = [(row, step) for step in sorted(set(self.settings.steps)) for row in rows]
        asked = [(fits.places[row.id, step], row, step) for row, step in keys if (row.id, step) in fits.places]
        yield from in_order(pieces, ((place, self._ask(row, step, f"{row.id}@{step}")) for place, row, step in asked))
        yield from pieces[max((place for place, *_ in asked), default=0) :]

    def _observe(self, row: MetaRow) -> Observe:
        turns = _prompt(row), row.output
        return Observe(text=_text(row), key=f"{row.task}/{row.id}", joiner=BETWEEN, turns=turns)

    def _ask(self, row: MetaRow, step: int, key: str) -> Ask:
        return Ask(
            prompt=_prompt(row),
            key=key,
            want=self.card.prompt.chosen(row.options, row.output),
            joiner=BETWEEN,
            after_turns=True,
            subtask=row.task,
            at=At(step),
        )

    def training_steps(self, training: Training) -> Iterator[tuple[str, Iterator[Step]]]:
        """One task each: `documents` demonstrations, then `questions` other rows of the task.

        Files give the training rows of all published draws of the configuration's training tasks (`split=train`); a
        mini source draws a new rule for every episode.
        """
        pools = [self._short(task.pool, estimate) for task in self.tasks]
        size = {"tasks": 1, "demonstrations": training.documents, "queries": training.questions}
        for number in count():
            if self.mini:
                (task,) = twin_tasks(self.card, self.split, training.draws.getrandbits(48), {**self.arguments, **size})
                demonstrations, asked = task.shown, task.asked
            else:
                demonstrations, asked = training.split(training.draws.choice(pools))
            asks = [self._ask(row, len(demonstrations), f"{row.id}@{number}.{i}") for i, row in enumerate(asked)]
            yield self.split, blanks_in_front([*map(self._observe, demonstrations), *asks])

    def counts(self) -> dict[str, Json]:
        """Rows that may be asked of each task; what is read and asked of all."""
        parts = {task.name: len(task.asked) for task in self.tasks}
        return {"parts": parts, "observed": self.n_observes, "questions": self.n_asks}

    def texts(self) -> Iterator[str]:
        """Every text that may be shown or asked."""
        for task in self.tasks:
            for row in (*task.shown, *task.spare, *task.asked):
                yield from (row.id, row.task, row.input, row.output, *row.options)


def _prompt(row: MetaRow) -> str:
    return f"Input: {row.input} Output:"


def _text(row: MetaRow) -> str:
    """A row as a demonstration."""
    return f"{_prompt(row)} {row.output}"


def _categories(rows: Sequence[MetaRow]) -> set[str]:
    return categories_in(row.input for row in rows)


def read(card: Card, request: Request) -> MetaIcl:
    """Bind a card of this reader to its data; see `readers.load`."""
    settings, arguments = resolve(card, request, Settings)
    if request.source == "mini":
        tasks, data = twin_tasks(card, request.split, request.seed, arguments, settings.task), Table()
    else:
        tasks, data = wanted_tasks(card, request, settings)
    given = min((len(task.shown) for task in tasks), default=0)
    if max(settings.steps) > given:
        fault = f"step {max(settings.steps)} needs more than the {given} demonstrations that tasks of {card.name} have."
        raise UserError(fault, f"Give --task-set steps=N,M up to {given}.")
    return MetaIcl(card=card, request=request, settings=settings, arguments=arguments, data=data, tasks=tasks)
