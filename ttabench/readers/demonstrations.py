"""Demonstration tasks: k labelled rows are read, then every test row is a choice query
(StreamAdapter's protocol).

    task = load("superglue", options={"task": "boolq,cb", "shots": "16"})
    # one episode per sub-task: 16 chunks "...\\nQuestion: ...?\\nAnswer: yes", a Query per test row

The demonstrations of a sub-task are drawn uniformly, without replacement, and are the same for
every method. With one seed, fewer are a prefix of more, so a curve over `shots` nests. The oldest
`ratio` of them is adapted to. The rest stays in the context window of every query, for every method
(arXiv 2411.09289, Table 9), and is read once for all queries. Under full context (`icl`) every
ratio gives the same text, and so the same answers.

Texts, tokens and scores are those of lm-evaluation-harness: breaks and blanks between
demonstrations go to the front of the next (see `move_blanks_forward`).

A folder contains one folder per sub-task, named as published. If queried rows and demonstrations
come from one file (any split but `test` of real data), a row is either shown or queried. Otherwise
rows of the pool that equal a queried row are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Annotated

from pydantic import Field, NonNegativeInt

from ttabench.core.errors import UnknownName, UserError
from ttabench.core.types import (
    Choose,
    Chunk,
    Episode,
    Json,
    Query,
    Step,
    StreamPosition,
    wants_of_kind,
)
from ttabench.mini.world import categories_in
from ttabench.readers.base import (
    Task,
    Training,
    divide_limit,
    move_blanks_forward,
    pick_evenly,
    select_names,
    swap_seeds,
)
from ttabench.readers.cards import Card, ProtocolSettings
from ttabench.readers.choices import Item, Part, find_part_folder, load_part, synthetic_part
from ttabench.readers.sources import RawTable, Request, resolve_settings
from ttabench.readers.tokens import Tokens


class Settings(ProtocolSettings):
    """Protocol settings of this reader; `--task-set` may change them."""

    task: str = "all"
    """Sub-tasks, separated by commas; "all" for every sub-task of the card."""
    shots: NonNegativeInt = 10
    """Number of demonstrations."""
    ratio: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Share of the demonstrations that is adapted to; the newest, at least one, stay in view."""
    template: str = "lm_eval"
    """Template of the queries; demonstrations always use that of lm-evaluation-harness."""

    @property
    def n_in_window(self) -> int:
        """Number of demonstrations that are not adapted to."""
        if self.ratio == 1 or self.shots < 2:
            return self.shots if self.ratio == 0 else 0
        return min(self.shots, max(1, round((1 - self.ratio) * self.shots)))


@dataclass(frozen=True)
class Demonstrations(Task[Settings]):
    """A `Task` of demonstrations and choice queries."""

    parts: Sequence[Part]
    """Sub-tasks with their demonstrations."""

    def episodes_with_source(self, tokens: Tokens | None) -> Iterator[tuple[Episode, Part]]:  # noqa: ARG002
        """Yield one episode per sub-task."""
        for part in self.parts:
            key = f"{self.card.name}/{part.name}/{self.split}/seed{self.seed}"
            shown = [self._chunk(part.name, item) for item in part.shown]
            asked = [self._query(part.name, item, item.id, len(shown)) for item in part.query_rows]
            whole = Episode(key=key, steps=tuple(move_blanks_forward([*shown, *asked])))
            border = len(shown) - self.settings.n_in_window
            chunks, window = whole.steps[:border], tuple(whole.chunks()[border:])
            queries = [replace(query, window=window) for query in whole.queries()]
            if queries:
                yield Episode(key=key, steps=(*chunks, *queries)), part

    def swap_context(self, own: Part, tokens: Tokens | None) -> Iterator[Chunk]:  # noqa: ARG002
        """Return the next demonstrations of the same draw; in the synthetic world those of another
        rule.
        """
        shots, items = len(own.shown), [*own.shown, *own.query_rows]
        if self.is_synthetic:
            arguments, taken = {**self.arguments, "queries": 1}, {item.shown for item in items}
            generated = (
                synthetic_part(self.card, own.name, self.split, seed, arguments)
                for seed in swap_seeds(self.seed)
            )
            pools = (other.draw_demonstrations(len(other.pool), 0).shown for other in generated)
            draws = ([item for item in pool if item.shown not in taken][:shots] for pool in pools)
            others = self.first_disjoint(_categories(items), draws, _categories, allow_overlap=True)
        else:
            others = own.next_demonstrations(self.seed)
        return (self._chunk(own.name, item) for item in others)

    def _chunk(self, part: str, item: Item) -> Chunk:
        prompt = self.card.prompt
        prompt_text, option = item.turns
        turns = prompt_text, option.removeprefix(prompt.delimiter)
        return Chunk(text=item.shown, key=f"{part}/{item.id}", joiner=prompt.joiner, turns=turns)

    def _query(
        self, part: str, item: Item, key: str, demonstrations_read: int, template: str = ""
    ) -> Query:
        prompt = self.card.prompt
        return Query(
            prompt=item.prompts[template or self.settings.template],
            key=key,
            want=item.want,
            joiner=prompt.joiner,
            after_turns=True,
            subtask=part,
            at=StreamPosition(demonstrations_read),
        )

    def training_steps(self, training: Training) -> Iterator[tuple[str, Iterator[Step]]]:
        """Yield one sub-task each: `documents` demonstrations, then `questions` other rows of its
        pool.

        A mini source draws a new rule for every episode; of files only the training rows are used.
        All demonstrations are adapted to, and queries use their template. A smaller pool gives
        smaller episodes.
        """
        size = {
            **self.arguments,
            "demonstrations": training.documents,
            "queries": training.questions,
        }
        for number in count():
            part = training.rng.choice(self.parts)
            if self.is_synthetic:
                generated = synthetic_part(
                    self.card, part.name, self.split, training.rng.getrandbits(48), size
                )
                generated = generated.draw_demonstrations(
                    min(training.documents, len(generated.pool)), 0
                )
                demonstrations, query_rows = generated.shown, generated.query_rows
            else:
                demonstrations, query_rows = training.split(part.pool)
            chunks = [self._chunk(part.name, item) for item in demonstrations]
            queries = [
                self._query(part.name, item, f"{item.id}@{number}.{i}", len(chunks), "lm_eval")
                for i, item in enumerate(query_rows)
            ]
            yield f"{part.name}/{self.split}", move_blanks_forward([*chunks, *queries])

    def counts(self) -> dict[str, Json]:
        """Count the queries of each sub-task, and of all."""
        parts = {one.name: len(one.query_rows) for one in self.parts}
        return {"parts": parts, "observed": self.n_chunks, "questions": self.n_queries}

    def texts(self) -> Iterator[str]:
        """Yield every text shown or queried."""
        for episode in self.episodes():
            yield from (chunk.text for chunk in episode.chunks())
            for query, want in zip(
                episode.queries(), wants_of_kind(episode.queries(), Choose), strict=True
            ):
                yield from (query.key, *(chunk.text for chunk in query.window), query.prompt)
                yield from (*want.option_prefixes, *want.options, str(want.gold))


def _categories(items: Sequence[Item]) -> set[str]:
    return categories_in(text for item in items for text in (item.shown, *item.want.options))


def read(card: Card, request: Request) -> Demonstrations:
    """Bind a card of this reader to its data; see `readers.load`."""
    settings, arguments = resolve_settings(card, request, Settings)
    names, notes = _parts_with_template(card, settings)
    if request.source == "mini":
        loaded_parts = [
            synthetic_part(card, name, request.split, request.seed, arguments) for name in names
        ]
    else:
        loaded_parts, more = _load_parts(card, request, names, settings.task)
        notes += [*more, *(note for part in loaded_parts for note in part.data.notes)]
    unused = {
        f"{part.name}: {reason}": rows
        for part in loaded_parts
        for reason, rows in part.data.unused.items()
    }
    labels = "+".join(dict.fromkeys(part.data.label for part in loaded_parts))
    label = f"folder:{request.source}" if labels.startswith("folder:") else labels
    notes_once = tuple(dict.fromkeys(notes))
    data = RawTable(label=label, notes=notes_once, unused=Counter(unused))
    parts = []
    for part, share in divide_limit(request.limit, loaded_parts):
        part = part.draw_demonstrations(settings.shots, request.seed)
        parts.append(replace(part, query_rows=pick_evenly(part.query_rows, share)))
    return Demonstrations(card, request, settings, arguments, data, parts)


def _load_parts(
    card: Card, request: Request, names: Sequence[str], task: str
) -> tuple[list[Part], list[str]]:
    """Load (sub-tasks from the hub or a folder, notes for the record).

    A missing sub-task is an error if it was requested by name; otherwise it is left out.
    """
    base = Path(request.source)
    places = {
        name: base if request.source == "hub" else find_part_folder(card, name, base)
        for name in names
    }
    missing = [name for name, place in places.items() if place is None]
    if missing and (task != "all" or len(missing) == len(names)):
        expected = ", ".join(folder for name in missing for folder in card.parts[name].folders)
        hint = f"Choose others with --task-set task=NAME: {', '.join(card.parts)}."
        raise UserError(
            f"{base} has no data for {', '.join(missing)} (expected folders: {expected}).", hint
        )
    loaded_parts = [
        load_part(card, replace(request, source=str(place)), name)
        for name, place in places.items()
        if place is not None
    ]
    notes = [f"excluded, because {base} lacks them: {', '.join(missing)}"] if missing else []
    return loaded_parts, notes


def _parts_with_template(card: Card, settings: Settings) -> tuple[list[str], list[str]]:
    """Return (sub-tasks that have the template, notes); others are left out unless requested by
    name.
    """
    names = select_names(f"sub-task of {card.name}", card.parts, settings.task)
    having = [name for name, part in card.parts.items() if settings.template in part.templates]
    if not having:
        known = {template for part in card.parts.values() for template in part.templates}
        raise UnknownName(f"template of task {card.name}", settings.template, sorted(known))
    lacking = [name for name in names if name not in having]
    if lacking and settings.task != "all":
        fault = f"{', '.join(lacking)} of {card.name} has no template={settings.template}."
        raise UserError(fault, f"Use another template, or --task-set task={','.join(having)}.")
    note = f"excluded, because they have no template {settings.template}: {', '.join(lacking)}"
    return [name for name in names if name not in lacking], [note] if lacking else []
