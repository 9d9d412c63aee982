"""MetaICL's held-out tasks: 16 demonstrations are read one by one; the same rows are queried after
1, 2, 4, 8 and 16.

Each task is one episode and one pass: the queries after t demonstrations are at step t. The run's
seeds 0..4 mean the published draws 100, 13, 21, 42 and 87. The published order is kept: the first t
rows of a draw are its demonstrations, and test rows are the same for all. The protocol is that of
CCM (arXiv 2312.03414, appendix D): "Input: {x} Output: {y}", options by mean log-likelihood
(`acc_mean`; `acc` uses sums), examples of at most 256 tokens, at most 1,024 in all. As in CCM's
released code, a long query follows fewer demonstrations than a short one. In one pass it comes
after as many as fit into the limit with it.

Files are those of facebookresearch/MetaICL:

    config/hr_to_lr.json                      {"train": [...], "test": ["quarel", ...]}
    data/quarel/quarel_16_100_train.jsonl     {"task": "quarel", "input": "...", "output": "...",
                                               "options": [...]}
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
from ttabench.core.files import read_json_object, reading_file
from ttabench.core.types import Chunk, Episode, Json, Query, Step, StreamPosition
from ttabench.mini.world import categories_in
from ttabench.readers.base import (
    Task,
    Training,
    divide_limit,
    interleave,
    move_blanks_forward,
    pick_evenly,
    select_names,
    swap_seeds,
)
from ttabench.readers.cards import Card, ProtocolSettings, Scalar
from ttabench.readers.formats import RawRow
from ttabench.readers.sources import (
    RawTable,
    Request,
    archive_roots,
    parse_table,
    read_table,
    resolve_settings,
    run_generator,
    table_of_generated,
)
from ttabench.readers.tokens import (
    StepCounts,
    TokenCounter,
    TokenLimit,
    Tokens,
    count_fitting,
    estimate_tokens,
    token_counter,
)

PUBLISHED_DRAWS = (100, 13, 21, 42, 87)
"""Published draws of demonstrations, by the run's seed; CCM uses the first, and fills it up from
the second.
"""
SHOTS = 16
EXAMPLE_JOINER = " "
"""Text between two examples."""


class MetaRow(BaseModel):
    """One row of a MetaICL file, numbered in it."""

    model_config = ConfigDict(frozen=True, str_strip_whitespace=True)

    id: str
    task: str
    input: str
    output: str
    options: Annotated[
        tuple[str, ...], AfterValidator(lambda options: tuple(dict.fromkeys(options)))
    ]

    @property
    def pair(self) -> tuple[str, str]:
        """Key by which rows are compared for equality."""
        return self.input, self.output


@dataclass(frozen=True, kw_only=True)
class MetaTask:
    """One task: demonstrations in order, and the rows to query."""

    name: str
    shown: Sequence[MetaRow]
    query_rows: Sequence[MetaRow]
    fallback: Sequence[MetaRow] = ()
    """Demonstrations of another draw, which replace those of this draw that are too long."""
    pool: Sequence[MetaRow] = ()
    """Demonstrations of all draws, for training."""


def parse_meta_rows(data: RawTable) -> list[MetaRow]:
    """Parse rows in file order; rows with an empty text or without options are left out."""

    def row_of(raw: RawRow) -> MetaRow | str:
        row = MetaRow.model_validate({**raw.values, "id": str(raw.number)})
        if not row.options:
            return "no options"
        if row.output not in row.options:
            raise ValueError(f"output {row.output!r:.60} is not among the options")
        return (
            row
            if row.input and row.output and all(row.options)
            else "empty input, output or option"
        )

    return parse_table(data, row_of, require_any=False)


def synthetic_tasks(
    card: Card, split: str, seed: int, arguments: Mapping[str, Scalar], requested: str = "all"
) -> list[MetaTask]:
    """Generate the tasks of the synthetic world for a split."""
    files = run_generator(card, split, seed, **arguments)
    rows_by_file = {
        name: parse_meta_rows(table_of_generated(card, rows)) for name, rows in files.items()
    }
    ending = f"_{SHOTS}_{seed}_"
    known = [
        name.removesuffix(f"{ending}train") for name in rows_by_file if name.endswith("_train")
    ]
    return [
        MetaTask(
            name=name,
            shown=rows_by_file[f"{name}{ending}train"],
            query_rows=rows_by_file[f"{name}{ending}test"],
        )
        for name in select_names("MetaICL task", known, requested)
    ]


def load_tasks(card: Card, request: Request, settings: Settings) -> tuple[list[MetaTask], RawTable]:
    """Load (tasks of a folder, notes on them and on missing tasks)."""
    given = Path(request.source)
    above = [given.absolute().parent] if given.absolute().name == "data" else []
    base = next(
        (
            place
            for place in (*archive_roots(given, card.source.folders), *above)
            if (place / "data").is_dir()
        ),
        None,
    )
    if base is None:
        raise UserError(f"{given} is not a MetaICL folder: it lacks 'data'.", card.source.how)
    if not 0 <= request.seed < len(PUBLISHED_DRAWS):
        draws = ", ".join(map(str, PUBLISHED_DRAWS))
        fault = (
            f"Seed {request.seed} is outside the {len(PUBLISHED_DRAWS)} published draws ({draws})."
        )
        raise UserError(fault, "Use --seed 0 to 4.")
    listed = base / "config" / "hr_to_lr.json"
    hint = "Add it from facebookresearch/MetaICL."
    with reading_file(listed, hint):
        configured = read_json_object(listed, hint)
        known = select_names(
            "MetaICL task",
            configured.get("test" if request.split == "test" else "train", []),
            settings.task,
        )
        paths = {
            name: _file_path(base, name, PUBLISHED_DRAWS[request.seed], "train") for name in known
        }
    missing = [name for name, path in paths.items() if not path.is_file()]
    if missing and (settings.task != "all" or len(missing) == len(known)):
        fault = f"The file {paths[missing[0]]} of {missing[0]} is missing."
        raise UserError(fault, card.source.how)
    lacking = f"{len(missing)} of {len(known)} tasks have no files"
    notes = (f"{lacking} and were excluded: {', '.join(missing)}",) if missing else ()
    tasks, data = list[MetaTask](), RawTable(label=f"folder:{given}", notes=notes)
    for name in known:
        if name not in missing:
            task, unused = _load_task(base, name, request)
            if task.query_rows:
                tasks.append(task)
                data.unused.update({f"{name}: {reason}": n for reason, n in unused.items()})
    return tasks, data


def _file_path(base: Path, name: str, draw: int, part: str) -> Path:
    return base / "data" / name / f"{name}_{SHOTS}_{draw}_{part}.jsonl"


def _load_task(base: Path, name: str, request: Request) -> tuple[MetaTask, Counter[str]]:
    """Load (a task, counts of its unused rows by reason).

    Test rows are those of draw 100, which serve all draws. A training task has none and queries its
    other draws.
    """
    own_draw = PUBLISHED_DRAWS[request.seed]
    draws = sorted(PUBLISHED_DRAWS, key=lambda draw: draw != own_draw)
    files = [path for draw in draws if (path := _file_path(base, name, draw, "train")).is_file()]
    tables = [read_table(path) for path in files]
    shown, *rest = (parse_meta_rows(data) for data in tables)
    others = [row for other in rest for row in other]
    fallback, query_table, query_rows = list[MetaRow](), tables[0], others
    if request.split == "test":
        query_table = read_table(_file_path(base, name, PUBLISHED_DRAWS[0], "test"))
        query_rows = parse_meta_rows(query_table)
        if rest:
            fallback = [row.model_copy(update={"id": f"other-{row.id}"}) for row in rest[0]]
    used = {row.pair for row in shown}
    kept = [row for row in query_rows if row.pair not in used]
    query_table.unused["query equal to a demonstration"] += len(query_rows) - len(kept)
    pool = list({row.pair: row for row in (*shown, *others)}.values())
    numbered = [row.model_copy(update={"id": str(i)}) for i, row in enumerate(kept)]
    return MetaTask(
        name=name, shown=shown, query_rows=numbered, fallback=fallback, pool=pool
    ), +query_table.unused


class Settings(ProtocolSettings):
    """Protocol settings of the reader `metaicl`; `--task-set` may change them."""

    task: str = "all"
    """Tasks, separated by commas; "all" for every test task of the configuration."""
    steps: StepCounts = (1, 2, 4, 8, 16)
    """Numbers of demonstrations after which the rows are queried."""
    max_example_tokens: TokenLimit = 256
    """Longer demonstrations and queries, with their answer, are left out; 0 for no limit."""
    max_tokens: TokenLimit = 1024
    """Maximum tokens of the demonstrations with a query and its longest option; 0 for no limit."""


class FittedTask(NamedTuple):
    """A task within the length limits."""

    task: MetaTask
    shown: Sequence[MetaRow]
    """Demonstrations in order, at most as many as requested."""
    query_rows: Sequence[MetaRow]
    read_counts: Mapping[tuple[str, int], int]
    """Number of demonstrations read before the query, by row id and step."""


@dataclass(frozen=True)
class MetaIcl(Task[Settings]):
    """A `Task` of MetaICL tasks."""

    tasks: Sequence[MetaTask]

    def filter_by_length(self, tokens: Tokens | None) -> tuple[list[FittedTask], dict[str, int]]:
        """Return (demonstrations and queries of each task within the limits, counts of the others
        by task and reason).
        """
        dropped = Counter[str]()
        fits = [self._fit_task(task, token_counter(tokens), dropped) for task in self.tasks]
        return fits, +dropped

    def _fit_task(self, task: MetaTask, size: TokenCounter, dropped: Counter[str]) -> FittedTask:
        requested, max_tokens = max(self.settings.steps), self.settings.max_tokens
        own = self._short_rows(task.shown[:requested], size)
        query_rows = self._short_rows(task.query_rows, size)
        taken = {row.pair for row in (*own, *task.query_rows)}
        fallback = [row for row in self._short_rows(task.fallback, size) if row.pair not in taken]
        shown = [*own, *fallback[: requested - len(own)]]
        sizes = [size(_text(row) + EXAMPLE_JOINER) for row in shown]
        dropped[f"{task.name}: demonstration too long"] = len(task.shown[:requested]) - len(own)
        dropped[f"{task.name}: query too long"] = len(task.query_rows) - len(query_rows)
        read_counts = dict[tuple[str, int], int]()
        for row in query_rows:
            fit = len(shown)
            if max_tokens:
                query_size = size(_prompt(row)) + max(size(f" {option}") for option in row.options)
                fit = count_fitting(sizes, max_tokens, query_size)
            for step in set(self.settings.steps):
                read_counts[row.id, step] = min(step, fit)
                is_asked_earlier = fit < min(step, len(shown))
                dropped[f"{task.name}: query asked after fewer demonstrations"] += is_asked_earlier
        shown = shown[: max(read_counts.values(), default=0)]
        return FittedTask(task, shown, query_rows, read_counts)

    def _short_rows(self, rows: Iterable[MetaRow], size: TokenCounter) -> list[MetaRow]:
        most = self.settings.max_example_tokens
        return [row for row in rows if not most or size(_text(row)) <= most]

    def episodes_with_source(self, tokens: Tokens | None) -> Iterator[tuple[Episode, FittedTask]]:
        """Yield one episode per task; `limit` counts every step of every row."""
        rows = None if self.limit is None else self.limit // len(set(self.settings.steps))
        for fits, share in divide_limit(rows, self.select_fitting(tokens)):
            if queried := pick_evenly(fits.query_rows, share):
                key = f"{self.card.name}/{fits.task.name}/{self.split}/seed{self.seed}"
                steps = tuple(move_blanks_forward(self._steps(fits, queried)))
                yield Episode(key=key, steps=steps), fits

    def swap_context(self, own: FittedTask, tokens: Tokens | None) -> Iterator[Chunk]:  # noqa: ARG002
        """Return demonstrations of another published draw; in the synthetic world those of another
        rule.
        """
        task = own.task
        if self.is_synthetic:
            generated = (
                synthetic_tasks(self.card, self.split, seed, self.arguments)
                for seed in swap_seeds(self.seed)
            )
            same_size = (
                other.shown
                for tasks in generated
                for other in tasks
                if len(other.shown[0].options) == len(task.shown[0].options)
            )
            fresh = self.first_disjoint(
                _categories([*task.shown, *task.query_rows]),
                same_size,
                _categories,
                allow_overlap=True,
            )
        else:
            taken = {row.pair for row in (*own.shown, *task.query_rows)}
            fresh = [
                row
                for row in self._short_rows(task.fallback, estimate_tokens)
                if row.pair not in taken
            ]
        return map(self._chunk, fresh[: len(own.shown)])

    def _steps(self, fits: FittedTask, rows: Sequence[MetaRow]) -> Iterator[Step]:
        """Yield demonstrations, with queries after each `step` of them, or after as many as fit
        with the query.
        """
        chunks = [self._chunk(row) for row in fits.shown]
        queries = [
            (fits.read_counts[row.id, step], self._query(row, step, f"{row.id}@{step}"))
            for step in sorted(set(self.settings.steps))
            for row in rows
        ]
        yield from interleave(chunks, queries)
        yield from chunks[max((n_read for n_read, _ in queries), default=0) :]

    def _chunk(self, row: MetaRow) -> Chunk:
        turns = _prompt(row), row.output
        return Chunk(
            text=_text(row), key=f"{row.task}/{row.id}", joiner=EXAMPLE_JOINER, turns=turns
        )

    def _query(self, row: MetaRow, step: int, key: str) -> Query:
        return Query(
            prompt=_prompt(row),
            key=key,
            want=self.card.prompt.make_choose(row.options, row.output),
            joiner=EXAMPLE_JOINER,
            after_turns=True,
            subtask=row.task,
            at=StreamPosition(step),
        )

    def training_steps(self, training: Training) -> Iterator[tuple[str, Iterator[Step]]]:
        """Yield one task each: `documents` demonstrations, then `questions` other rows of the task.

        Files give the training rows of all published draws of the configuration's training tasks
        (`split=train`). A mini source draws a new rule for every episode.
        """
        pools = [self._short_rows(task.pool, estimate_tokens) for task in self.tasks]
        size = {"tasks": 1, "demonstrations": training.documents, "queries": training.questions}
        for number in count():
            if self.is_synthetic:
                (task,) = synthetic_tasks(
                    self.card, self.split, training.rng.getrandbits(48), {**self.arguments, **size}
                )
                demonstrations, query_rows = task.shown, task.query_rows
            else:
                demonstrations, query_rows = training.split(training.rng.choice(pools))
            queries = [
                self._query(row, len(demonstrations), f"{row.id}@{number}.{i}")
                for i, row in enumerate(query_rows)
            ]
            yield self.split, move_blanks_forward([*map(self._chunk, demonstrations), *queries])

    def counts(self) -> dict[str, Json]:
        """Count the rows that may be queried of each task, and the chunks and queries of all."""
        parts = {task.name: len(task.query_rows) for task in self.tasks}
        return {"parts": parts, "observed": self.n_chunks, "questions": self.n_queries}

    def texts(self) -> Iterator[str]:
        """Yield every text that may be shown or queried."""
        for task in self.tasks:
            for row in (*task.shown, *task.fallback, *task.query_rows):
                yield from (row.id, row.task, row.input, row.output, *row.options)


def _prompt(row: MetaRow) -> str:
    return f"Input: {row.input} Output:"


def _text(row: MetaRow) -> str:
    return f"{_prompt(row)} {row.output}"


def _categories(rows: Sequence[MetaRow]) -> set[str]:
    return categories_in(row.input for row in rows)


def read(card: Card, request: Request) -> MetaIcl:
    """Bind a card of this reader to its data; see `readers.load`."""
    settings, arguments = resolve_settings(card, request, Settings)
    if request.source == "mini":
        tasks = synthetic_tasks(card, request.split, request.seed, arguments, settings.task)
        data = RawTable()
    else:
        tasks, data = load_tasks(card, request, settings)
    available = min((len(task.shown) for task in tasks), default=0)
    if max(settings.steps) > available:
        fault = f"step {max(settings.steps)} exceeds the {available} demonstrations of {card.name}."
        raise UserError(fault, f"Set --task-set steps=N,M up to {available}.")
    return MetaIcl(card, request, settings, arguments, data, tasks)
