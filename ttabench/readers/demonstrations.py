"""Demonstration tasks: k labelled rows are read, then every test row is asked as a choice (StreamAdapter's protocol).

    task = load("superglue", options={"task": "boolq,cb", "shots": "16"})
    # one episode a sub-task: 16 x Observe("...\\nQuestion: ...?\\nAnswer: yes"), then Ask(mode="choose") a test row

The demonstrations of a sub-task are drawn once a seed, uniformly and without replacement, and are the same for every
method; with one seed fewer are the first of more, so a curve over `shots` nests. Of them the oldest `ratio` are adapted
to, the rest stand in the window in front of every query whatever the method does (arXiv 2411.09289, Table 9), read once
for all queries. Under full context (`icl`) every ratio gives the same text and so the same answers.

Texts and tokens are lm-evaluation-harness's, and so is every score: breaks and blanks between demonstrations go to the
front of the next (see `stream`).

A folder holds one folder a sub-task, named as published. Where the asked rows come from the file demonstrations are
drawn from (any split but `test` of real data, or a single file), a row is either shown or asked; otherwise rows of the
pool that are equal to an asked row are left out.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import count
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from ttabench.core.checked_file import read_text
from ttabench.core.errors import UnknownName, UserError
from ttabench.core.types import Ask, At, Choose, Episode, Json, Observe, Step, wanted
from ttabench.mini.world import categories_in
from ttabench.readers.base import Bound, Training, blanks_in_front, first_apart, named, other_seeds, shares, spread
from ttabench.readers.cards import Card, Scalar, SubTask
from ttabench.readers.choices import HIDDEN_LABEL, Item, parse
from ttabench.readers.formats import RawRow, malformed, stem
from ttabench.readers.layouts import folder_of, narrow, sized
from ttabench.readers.protocol_options import ProtocolSettings, resolve
from ttabench.readers.sources import Request, Table, generated, table, twin_rows
from ttabench.readers.tokens import Tokens

POOL, ASKED = "train", "validation"
"""Names of the two lists of rows that a generator of the miniature world makes."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One sub-task, its rows in file order."""

    name: str
    pool: Sequence[Item]
    """Rows that demonstrations are drawn from."""
    asked: Sequence[Item]
    same: bool
    """Both are the same rows: what is shown must not be asked."""
    label: str
    """The source, for records."""
    dropped: Mapping[str, int]
    notes: tuple[str, ...] = ()
    """Notes on the rows for a record."""

    def draw(self, count: int, seed: int) -> tuple[Sequence[Item], Sequence[Item]]:
        """(`count` demonstrations, the rows to ask); fewer demonstrations are the first of more."""
        enough = len(self.pool) - self.same
        if count > enough:
            raise UserError(
                f"shots={count} demonstrations of {self.name} are more than the {enough} rows to draw them from.",
                f"Give --task-set shots={enough} or fewer, or a source with more rows.",
            )
        demonstrations = self._order(seed)[:count]
        names = {item.id for item in demonstrations} if self.same else set()
        return demonstrations, [item for item in self.asked if item.id not in names]

    def _order(self, seed: int) -> list[Item]:
        return random.Random(f"demonstrations {self.name} {seed}").sample(self.pool, len(self.pool))

    def others(self, count: int, seed: int, asked: Sequence[Item]) -> list[Item]:
        """At most `count` demonstrations behind those of `draw`, none of them like one of these or a row asked."""
        order = self._order(seed)
        taken = {item.told for item in (*order[:count], *asked)}
        return [item for item in order[count:] if item.told not in taken][:count]


Words = Callable[[SubTask, Table], tuple[list[Item], dict[str, int]]]
"""How rows are put in words: `choices.parse` for a card."""


def twin_part(card: Card, name: str, split: str, seed: int, arguments: Mapping[str, Scalar], words: Words) -> Part:
    """A sub-task of the miniature world that stands for a split."""
    made = generated(card, dict, task=name, split=card.splits[split].twin, seed=seed, **arguments)
    pool, asked = (twin_rows(card, made[part], arguments) for part in (POOL, ASKED))
    return _part(card.parts[name], name, pool, asked, words)


def parts(
    card: Card, request: Request, names: Sequence[str], settings: Settings, words: Words
) -> tuple[list[Part], list[str]]:
    """(sub-tasks from the hub, a folder or a file, notes for the record). A missing one is an error where it was asked
    for by its name; else what the folder lacks is left out.
    """
    base = Path(request.source)
    if request.source == "hub" or not base.is_dir():
        if request.source != "hub" and len(names) > 1:
            hint = "Give the folder that holds one folder a sub-task, or choose one with --task-set task=NAME."
            raise UserError(f"{request.source!r} is no folder of {', '.join(names)}.", hint)
        sources = dict.fromkeys(names, request.source)
    else:
        alone = len(card.parts) == 1 or len(names) == 1
        folders = {name: folder_of(card, name, base, alone=alone) for name in names}
        sources = {name: str(folder) for name, folder in folders.items() if folder is not None}
    missing = [name for name in names if name not in sources]
    if missing and (settings.task != "all" or not sources):
        looked = ", ".join(folder for name in missing for folder in card.parts[name].folders)
        hint = f"Choose what is there with --task-set task=NAME: {', '.join(card.parts)}."
        raise UserError(f"{base} holds no data of {', '.join(missing)} (looked for the folders {looked}).", hint)
    held = [
        _real(card, replace(request, source=source), name, settings.size, words) for name, source in sources.items()
    ]
    notes = [card.splits[request.split].note] if card.splits[request.split].note else []
    notes += [f"not in {base}, so left out: {', '.join(missing)}"] if missing else []
    return held, list(dict.fromkeys([*notes, *(note for part in held for note in part.notes)]))


def _real(card: Card, request: Request, name: str, size: str, words: Words) -> Part:
    """A sub-task from its own folder, from a file, or from the hub."""
    part, notes = sized(card, name, request.source, size)
    narrowed = narrow(card, part, request.split)
    one_file = request.source != "hub" and Path(request.source).is_file()
    same = request.split != "test" or one_file
    pool = None if same else _with_labels(part, table(narrowed, replace(request, split=POOL)))
    asked = _with_labels(part, table(narrowed, request))
    notes += (*(pool.notes if pool else ()), *asked.notes)
    if one_file:
        notes += (f"demonstrations and queries are rows of one file, {request.source}, none of them both",)
    return replace(_part(part, name, pool, asked, words), notes=notes)


def _part(part: SubTask, name: str, pool: Table | None, asked: Table, words: Words) -> Part:
    """A sub-task from the rows of the pool (None: the asked rows themselves) and the asked rows."""
    items, dropped = words(part, asked)
    if pool is None:
        return Part(name=name, pool=items, asked=items, same=True, label=asked.label, dropped=dropped)
    held, unshown = words(part, pool)
    taken = {item.told for item in items}
    kept = [item for item in held if item.told not in taken]
    if len(kept) < len(held):
        dropped["demonstration equal to a query"] = len(held) - len(kept)
    dropped |= {f"demonstration with an {reason}": count for reason, count in unshown.items() if reason != HIDDEN_LABEL}
    return Part(name=name, pool=kept, asked=items, same=False, label=asked.label, dropped=dropped)


_BESIDE = {"pair": ("label", ("0", "1", "-1")), "blank": ("answer", ("1", "2"))}
"""Shapes whose labels are published in a file of their own: column, labels."""


def _with_labels(part: SubTask, data: Table) -> Table:
    """PIQA's and WinoGrande's published layout: labels in a file of their own, one a line (valid-labels.lst)."""
    file = Path(data.where)
    beside = file.with_name(f"{stem(file)}-labels.lst")
    column, known = _BESIDE.get(part.shape, ("", ()))
    if not column or column in data.rows[0].values or not beside.is_file():
        return data
    labels = read_text(beside).split()
    if len(labels) != len(data.rows):
        fault = f"{beside} has {len(labels)} labels for {len(data.rows)} rows of {file.name}."
        raise UserError(fault, "Get both anew.")
    for number, label in enumerate(labels, start=1):
        if label not in known:
            raise malformed(f"{beside} line {number}", f"label {label[:20]!r} is neither {known[0]} nor {known[1]}")
    rows = [RawRow(raw.place, {**raw.values, column: int(x)}) for raw, x in zip(data.rows, labels, strict=True)]
    return replace(data, rows=rows)


OTHER_ROWS = "the other demonstrations are other rows of the same task: what they tell of the task, the own tell too"


class Settings(ProtocolSettings):
    """The protocol part of a card of this reader, and what `--task-set` may change."""

    task: str = "all"
    """Sub-tasks, separated by commas; "all" for every one of the card."""
    shots: Annotated[int, Field(ge=0)] = 10
    """Demonstrations."""
    ratio: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Share of the demonstrations that is adapted to; the newest others stay in the window, at least one of them."""
    template: str = "lm_eval"
    """Words of the queries; demonstrations always use those of lm-evaluation-harness."""
    copa_single_blank: bool = False
    """One blank before COPA's options; lm-evaluation-harness has two."""
    size: str = ""
    """Of the training rows that are published in several sizes (WinoGrande: xs, s, m, l, xl); the largest one there."""

    @model_serializer(mode="wrap")
    def _without_the_usual_size(self, handler: SerializerFunctionWrapHandler) -> dict[str, Json]:
        values: dict[str, Json] = handler(self)
        return {key: value for key, value in values.items() if key != "size" or value}

    @property
    def kept(self) -> int:
        """Demonstrations that are not adapted to."""
        if self.ratio == 1 or self.shots < 2:
            return self.shots if self.ratio == 0 else 0
        return min(self.shots, max(1, round((1 - self.ratio) * self.shots)))


class Drawn(NamedTuple):
    """A sub-task with its demonstrations drawn."""

    part: Part
    shown: Sequence[Item]
    asked: Sequence[Item]


@dataclass(frozen=True, kw_only=True)
class Demonstrations(Bound[Settings]):
    """A `readers.Task` of demonstrations and choices."""

    drawn: Sequence[Drawn]

    def laid(self, tokens: Tokens | None) -> Iterator[tuple[Episode, Part]]:  # noqa: ARG002  # what readers take
        """One episode a sub-task."""
        for one in self.drawn:
            name = one.part.name
            pieces = [self._observe(name, item) for item in one.shown]
            border = len(pieces) - self.settings.kept
            asks = [self._ask(name, item, item.id, len(pieces)) for item in one.asked]
            text = list(blanks_in_front([*pieces, *asks]))
            window = tuple(step for step in text[border : len(pieces)] if isinstance(step, Observe))
            asked = [replace(step, window=window) for step in text[len(pieces) :] if isinstance(step, Ask)]
            if asked:
                key = f"{self.card.name}/{name}/{self.split}/seed{self.seed}"
                yield Episode(key=key, steps=(*text[:border], *asked)), one.part

    def instead(self, own: Part, tokens: Tokens | None) -> Iterator[Observe]:  # noqa: ARG002  # what readers take
        """The next demonstrations of the same draw, for a twin those of another rule."""
        return (self._observe(own.name, item) for item in self._next[own.name][0])

    @cached_property
    def _next(self) -> Mapping[str, tuple[Sequence[Item], bool]]:
        return {one.part.name: self._other_items(one) for one in self.drawn if one.asked}

    def _other_items(self, one: Drawn) -> tuple[Sequence[Item], bool]:
        """(at most as many demonstrations as are shown, whether they follow another rule as far as is known)."""
        shots, part = len(one.shown), one.part
        if self.mini:
            arguments, taken = {**self.arguments, "queries": 1}, {item.shown for item in (*one.shown, *one.asked)}
            made = (self._written(part.name, seed, arguments) for seed in other_seeds(self.seed))
            pools = (other.draw(len(other.pool), 0)[0] for other in made)
            draws = ([item for item in pool if item.shown not in taken][:shots] for pool in pools)
            return first_apart(_categories((*one.shown, *one.asked)), draws, _categories)
        items = part.others(shots, self.seed, one.asked)
        if shots and not items:
            fault = f"All rows of {part.name} in {self.source} are shown or asked: there is no other context."
            raise UserError(fault, "Ask fewer (--limit N), or show fewer (--task-set shots=N).")
        return items, False

    def remarks_on_others(self) -> list[str]:
        """Notes on the other contexts."""
        found = {name: (self.settings.shots, *rows) for name, rows in self._next.items()}
        return remarks_on_rows(found, mini=self.mini)

    def _written(self, name: str, seed: int, arguments: Mapping[str, Json]) -> Part:
        """A sub-task of the miniature world."""
        return twin_part(self.card, name, self.split, seed, arguments, _words(self.card, self.settings))

    def _observe(self, part: str, item: Item) -> Observe:
        prompt = self.card.prompt
        turns = item.turns(prompt.delimiter)
        return Observe(text=item.shown, key=f"{part}/{item.id}", joiner=prompt.joiner, turns=turns)

    def _ask(self, part: str, item: Item, key: str, demonstrations_read: int, template: str = "") -> Ask:
        prompt = self.card.prompt
        return Ask(
            prompt=item.prompts[template or self.settings.template],
            key=key,
            want=item.choose(prompt.delimiter),
            joiner=prompt.joiner,
            after_turns=True,
            subtask=part,
            at=At(demonstrations_read),
        )

    def training_steps(self, training: Training) -> Iterator[tuple[str, Iterator[Step]]]:
        """One sub-task each: `documents` demonstrations, then `questions` other rows of its pool.

        A mini source draws a new rule for every episode; of files only the training rows are used. All demonstrations
        are adapted to, and queries have the words of the demonstrations. A smaller pool gives smaller episodes.
        """
        size = {"demonstrations": training.documents, "queries": training.questions}
        for number in count():
            part = training.draws.choice([one.part for one in self.drawn])
            if self.mini:
                made = self._written(part.name, training.draws.getrandbits(48), {**self.arguments, **size})
                demonstrations, asked = made.draw(min(training.documents, len(made.pool)), 0)
            else:
                demonstrations, asked = training.split(part.pool)
            pieces = [self._observe(part.name, item) for item in demonstrations]
            asks = [
                self._ask(part.name, item, f"{item.id}@{number}.{i}", len(pieces), "lm_eval")
                for i, item in enumerate(asked)
            ]
            yield f"{part.name}/{self.split}", blanks_in_front([*pieces, *asks])

    def counts(self) -> dict[str, Json]:
        """Queries of each sub-task, and of all."""
        return {
            "parts": {one.part.name: len(one.asked) for one in self.drawn},
            "observed": self.n_observes,
            "questions": self.n_asks,
        }

    def texts(self) -> Iterator[str]:
        """Every text shown or asked."""
        return (text for episode in self.episodes() for step in episode.steps for text in _texts(step))


def _texts(step: Observe | Ask) -> list[str]:
    if isinstance(step, Observe):
        return [step.text]
    (want,) = wanted([step], Choose)
    window = (piece.text for piece in step.window)
    return [step.key, *window, step.prompt, *want.option_prefixes, *want.options, str(want.gold)]


def _categories(items: Sequence[Item]) -> set[str]:
    """Of all words of rows, those of wrong options too."""
    return categories_in(text for item in items for text in (item.shown, *item.options))


def remarks_on_rows(found: Mapping[str, tuple[int, Sequence[object], bool]], *, mini: bool) -> list[str]:
    """Notes on other demonstrations, by sub-task: (how many are wanted, those found, whether of another rule)."""
    few = [f"{name} has {len(rows)}, not {shots}" for name, (shots, rows, _) in found.items() if len(rows) < shots]
    notes = [f"demonstrations of another context: {', '.join(few)}"] if few else []
    if not mini:
        return [*notes, OTHER_ROWS]
    alike = [name for name, (*_, apart) in found.items() if not apart]
    same = "no draw of other categories of words was found: the other demonstrations may follow the same rule"
    return notes + ([f"{same} ({', '.join(alike)})"] if alike else [])


def _words(card: Card, settings: Settings) -> Words:
    return partial(parse, delimiter=card.prompt.delimiter, single_blank=settings.copa_single_blank)


def read(card: Card, request: Request) -> Demonstrations:
    """Bind a card of this reader to its data; see `readers.load`."""
    settings, arguments = resolve(card, request, Settings)
    names, notes = _with_template(card, settings)
    words = _words(card, settings)
    if request.source == "mini":
        if settings.size:
            raise UserError(f"size={settings.size}: the miniature world has one size.", "Ask for demonstrations=N.")
        held = [twin_part(card, name, request.split, request.seed, arguments, words) for name in names]
    else:
        held, more = parts(card, request, names, settings, words)
        notes += more
    kind = held[0].label.partition(":")[0]
    labels = "+".join(dict.fromkeys(part.label for part in held))
    drawn = [Drawn(part, *part.draw(settings.shots, request.seed)) for part in held]
    limited = zip(drawn, shares(request.limit, len(drawn)), strict=True)
    return Demonstrations(
        card=card,
        request=request,
        settings=settings,
        arguments=arguments,
        source=f"{kind}:{request.source}" if kind in ("folder", "file") else labels,
        drawn=[one._replace(asked=spread(one.asked, share)) for one, share in limited],
        data_notes=tuple(notes),
        unused={f"{part.name}: {reason}": rows for part in held for reason, rows in part.dropped.items()},
    )


def _with_template(card: Card, settings: Settings) -> tuple[list[str], list[str]]:
    """(sub-tasks that have the wanted words, notes); those that lack them are left out unless they were asked for."""
    names = named(f"sub-task of {card.name}", card.parts, settings.task)
    known = {template for part in card.parts.values() for template in part.templates}
    if settings.template not in known:
        raise UnknownName(f"template of task {card.name}", settings.template, sorted(known))
    lacking = [name for name in names if settings.template not in card.parts[name].templates]
    if lacking and settings.task != "all":
        having = [name for name, part in card.parts.items() if settings.template in part.templates]
        raise UserError(
            f"template={settings.template} has no words for {', '.join(lacking)}.", f"It has for {', '.join(having)}."
        )
    note = f"template {settings.template} has no words for {', '.join(lacking)}, so left out"
    return [name for name in names if name not in lacking], [note] if lacking else []
