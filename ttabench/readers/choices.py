"""Rows of multiple-choice tasks, in any layout, as prompts and options of lm-evaluation-harness.

    CB    {"premise": "...", "hypothesis": "...", "label": "contradiction"}     label by name (file)
    CB    {"premise": "...", "hypothesis": "...", "label": 1}                   label by index (hub)
          -> Item(prompt="...\\nQuestion: .... True, False, or Neither?\\nAnswer:",
                  options=(" True", " False", " Neither"), gold=1)

The card's `shape` says how a row becomes options: words for labels (BoolQ, CB, RTE, SST-2), two
alternatives (COPA), two solutions (PIQA), lettered choices (ARC, OpenBookQA), endings (HellaSwag),
a blank to fill (WinoGrande). The texts are those of lm-evaluation-harness 0.4.13; a test compares
them string by string.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from ttabench.core.errors import UserError
from ttabench.core.files import read_text
from ttabench.core.types import Choose
from ttabench.readers.base import make_unique
from ttabench.readers.cards import Card, Scalar, SubTask
from ttabench.readers.formats import RawRow, base_name, require_text, short_repr
from ttabench.readers.sources import (
    RawTable,
    Request,
    archive_roots,
    data_folders,
    find_split_files,
    load_table,
    parse_table,
    run_generator,
    table_of_generated,
)

_HIDDEN_LABELS = (None, "", -1, "-1")
"""Labels of rows with an unpublished answer."""
_FIELD = re.compile(r"\{(\w+)\}")
_BRACKETS = re.compile(r"\[.*?\]")
_CONNECTORS = {"cause": "because", "effect": "therefore"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """A row, ready as a demonstration or a query."""

    id: str
    """Unique in its file: the published id, else the row number; repeats end in #2, #3, ..."""
    prompts: Mapping[str, str]
    """Prompts by template name."""
    want: Choose
    turns: tuple[str, str]
    """The row as a demonstration: (text before the right option, right option)."""

    @property
    def shown(self) -> str:
        """The demonstration as one text."""
        return "".join(self.turns)

    @property
    def identity(self) -> tuple[str, tuple[str, ...]]:
        """Key by which rows are compared for equality."""
        return self.shown, self.want.options


def parse_items(part: SubTask, data: RawTable, delimiter: str = " ") -> list[Item]:
    """Parse items in file order; rows with a hidden label, an empty text or an empty option are
    left out.
    """
    seen = Counter[str]()

    def item_of(raw: RawRow) -> Item | str:
        row = SHAPES[part.shape](part, raw)
        if row.gold is None:
            return "label hidden"
        if not 0 <= row.gold < len(row.options):
            raise ValueError(f"label {row.gold} is not one of the {len(row.options)} options")
        # "before": the sentence may begin with the blank
        texts = [(name, text) for name, text in row.fields.items() if name != "before"]
        texts += [("option", text) for text in (*row.options, *row.option_prefixes)]
        if blank := next((name for name, text in texts if not text.strip()), ""):
            return f"empty {blank}"
        name = next(
            (raw.values[key] for key in ("idx", "id", "qID", "ind") if key in raw.values),
            raw.number,
        )
        prompts = {
            key: _FIELD.sub(lambda match: row.fields[match[1]], text)
            for key, text in part.templates.items()
        }
        options, prefixes = tuple(delimiter + option for option in row.options), row.option_prefixes
        want = Choose(options=options, gold=row.gold, option_prefixes=prefixes, delimiter=delimiter)
        turns = prompts["lm_eval"] + (prefixes[row.gold] if prefixes else ""), options[row.gold]
        return Item(id=make_unique(str(name), seen), prompts=prompts, want=want, turns=turns)

    return parse_table(data, item_of)


@dataclass(frozen=True, kw_only=True)
class Part:
    """One sub-task, its rows in file order."""

    name: str
    pool: Sequence[Item]
    """Rows from which demonstrations are drawn."""
    query_rows: Sequence[Item]
    """Rows that are queried. The same list as `pool` if both are one file: a row is then shown or
    queried.
    """
    data: RawTable
    """Source of the queried rows, with the notes on both lists."""
    shown: Sequence[Item] = ()
    """Demonstrations, after they are drawn."""

    def draw_demonstrations(self, count: int, seed: int) -> Part:
        """Draw `count` demonstrations, and remove them from the queried rows; smaller draws are a
        prefix of larger ones.
        """
        same = self.query_rows is self.pool
        available = len(self.pool) - 1 if same else len(self.pool)
        if count > available:
            raise UserError(
                f"shots={count} is more than the {available} rows of {self.name}.",
                f"Set --task-set shots={available} or fewer, or use a source with more rows.",
            )
        demonstrations = self._shuffled_pool(seed)[:count]
        names = {item.id for item in demonstrations} if same else set()
        return replace(
            self,
            shown=demonstrations,
            query_rows=[item for item in self.query_rows if item.id not in names],
        )

    def _shuffled_pool(self, seed: int) -> list[Item]:
        return random.Random(f"demonstrations {self.name} {seed}").sample(self.pool, len(self.pool))

    def next_demonstrations(self, seed: int) -> list[Item]:
        """Return up to as many further demonstrations, none of them equal to one drawn or to a
        queried row.
        """
        order, count = self._shuffled_pool(seed), len(self.shown)
        taken = {item.identity for item in (*self.shown, *self.query_rows)}
        return [item for item in order[count:] if item.identity not in taken][:count]


def synthetic_part(
    card: Card, name: str, split: str, seed: int, arguments: Mapping[str, Scalar]
) -> Part:
    """Generate a sub-task of the synthetic world for a split."""
    generated = run_generator(card, split, seed, task=name, **arguments)
    return _part(
        card,
        name,
        table_of_generated(card, generated["train"]),
        table_of_generated(card, generated["validation"]),
    )


def load_part(card: Card, request: Request, name: str) -> Part:
    """Load a sub-task from its own folder or from the hub; splits other than `test` query training
    rows that are not shown.
    """
    part = card.parts[name]
    narrowed = _card_of_part(card, part)
    pool = _with_labels(part, load_table(narrowed, replace(request, split="train")))
    if request.split != "test":
        items = parse_items(part, pool, card.prompt.delimiter)
        return Part(name=name, pool=items, query_rows=items, data=pool)
    query_rows = _with_labels(part, load_table(narrowed, request))
    return _part(card, name, pool, replace(query_rows, notes=(*pool.notes, *query_rows.notes)))


def _part(card: Card, name: str, pool: RawTable, query_rows: RawTable) -> Part:
    part, delimiter = card.parts[name], card.prompt.delimiter
    items = parse_items(part, query_rows, delimiter)
    pool_items, queried = parse_items(part, pool, delimiter), {item.identity for item in items}
    kept = [item for item in pool_items if item.identity not in queried]
    if repeated := len(pool_items) - len(kept):
        query_rows.unused["demonstration equal to a query"] = repeated
    query_rows.unused.update(
        {f"demonstration with an {reason}": number for reason, number in pool.unused.items()}
    )
    return Part(name=name, pool=kept, query_rows=items, data=query_rows)


def _with_labels(part: SubTask, data: RawTable) -> RawTable:
    """Add the labels that PIQA and WinoGrande publish in a separate file, one per line
    (valid-labels.lst).
    """
    file = Path(data.location)
    label_file = file.with_name(f"{base_name(file)}-labels.lst")
    column = {"pair": "label", "blank": "answer"}.get(part.shape)
    if not column or column in data.rows[0].values or not label_file.is_file():
        return data
    labels = read_text(label_file).split()
    if len(labels) != len(data.rows):
        fault = f"{label_file} has {len(labels)} labels for {len(data.rows)} rows of {file.name}."
        raise UserError(fault, "Use the published version of both files.")
    rows = [
        RawRow(raw.location, {**raw.values, column: label})
        for raw, label in zip(data.rows, labels, strict=True)
    ]
    return replace(data, rows=rows)


def _card_of_part(card: Card, part: SubTask) -> Card:
    """Return the card with the source of one sub-task, and its files as the splits `train` and
    `test`.
    """
    source = card.source.model_copy(update={"hub": part.hub, "folders": ()})
    return card.model_copy(
        update={"source": source, "splits": {"train": part.train, "test": part.test}}
    )


def find_part_folder(card: Card, name: str, base: Path) -> Path | None:
    """Find the folder of a sub-task; `base` may be any level of the published layout.

    An archive that was unpacked into a folder of the same name (sst2/SST-2) is found, too.
    """
    part, above = card.parts[name], archive_roots(base, card.source.folders)
    folders = [top / folder for top in above for folder in part.folders]
    folders += [place / folder for place in folders for folder in part.folders]
    if len(card.parts) == 1 or base.absolute().name in part.folders:
        folders += above
    return next(
        (
            place
            for place in folders
            if find_split_files(part.test, data_folders(_card_of_part(card, part), place))[0]
        ),
        None,
    )


# --- shapes ---------------------------------------------------------------------------------------


class ShapedRow(NamedTuple):
    """A row as its shape reads it: template fields, options without delimiter, label (None if
    hidden).
    """

    fields: Mapping[str, str]
    options: tuple[str, ...]
    gold: int | None
    option_prefixes: tuple[str, ...] = ()


def _text(part: SubTask, raw: RawRow, field: str) -> str:
    return raw.text(*part.columns.get(field, (field,)))


def _label(part: SubTask, raw: RawRow, field: str = "label") -> int | None:
    """Return the index of the right option, from a number, a boolean, a digit or a name."""
    value = raw.require(part.columns.get(field, (field,)))
    if value in _HIDDEN_LABELS:
        return None
    if value in part.labels:
        return part.labels.index(str(value))
    return int(value) if isinstance(value, bool) else int(str(value))


def _labels(part: SubTask, raw: RawRow) -> ShapedRow:
    fields = {field: _text(part, raw, field) for field in part.columns if field != "label"}
    return ShapedRow(fields, part.options, _label(part, raw))


def _copa(part: SubTask, raw: RawRow) -> ShapedRow:
    """Shape COPA: premise without its full stop, a connector, and alternatives that begin with a
    blank and a small letter.
    """
    connector = _CONNECTORS[_text(part, raw, "question")]
    fields = {"premise": _text(part, raw, "premise").strip()[:-1], "connector": connector}
    choices = [_text(part, raw, name) for name in ("choice1", "choice2")]
    return ShapedRow(
        fields, tuple(f" {text[:1].lower()}{text[1:]}" for text in choices), _label(part, raw)
    )


def _pair(part: SubTask, raw: RawRow) -> ShapedRow:
    goal, *solutions = (_text(part, raw, name) for name in ("goal", "sol1", "sol2"))
    return ShapedRow({"goal": goal}, tuple(solutions), _label(part, raw))


def _letters(part: SubTask, raw: RawRow) -> ShapedRow:
    """Shape lettered choices, in columns of lists (hub) or nested (published files)."""
    question: Any = raw.require(part.columns["question"])
    choices: Any = raw.values.get("choices")
    answer: Any = raw.values.get("answerKey")
    if isinstance(question, dict):
        choices, question = question["choices"], question["stem"]
    if isinstance(choices, list):
        choices = {key: [choice[key] for choice in choices] for key in ("text", "label")}
    letters = choices["label"]
    options = tuple(
        require_text("an option", text) for text, _ in zip(choices["text"], letters, strict=True)
    )
    gold = None if answer in _HIDDEN_LABELS else letters.index(answer.strip())
    return ShapedRow({"question": require_text("question", question)}, options, gold)


def _clean(text: str) -> str:
    """Remove the markup of WikiHow pages from a HellaSwag text."""
    return _BRACKETS.sub("", text.strip().replace(" [title]", ". ")).replace("  ", " ")


def _endings(part: SubTask, raw: RawRow) -> ShapedRow:
    endings: Any = raw.require(part.columns["endings"])
    if not isinstance(endings, list) or len(endings) < 2:
        raise ValueError(f"options must be a list of endings, got {short_repr(endings)}")
    context = f"{_text(part, raw, 'ctx_a')} {_text(part, raw, 'ctx_b').capitalize()}"
    fields = {
        "query": _clean(f"{_text(part, raw, 'activity_label')}: {context}")
        if context.strip()
        else ""
    }
    options = tuple(_clean(require_text("an ending", ending)) for ending in endings)
    return ShapedRow(fields, options, _label(part, raw))


def _blank(part: SubTask, raw: RawRow) -> ShapedRow:
    """Shape WinoGrande: the name in the blank is context, the text after the blank is scored."""
    sentence = _text(part, raw, "sentence")
    before, blank, after = sentence.partition("_")
    if not blank:
        raise ValueError(f"the sentence has no blank (_): {short_repr(sentence)}")
    prefixes = (_text(part, raw, "option1"), _text(part, raw, "option2"))
    answer = _label(part, raw, "answer")
    return ShapedRow(
        {"before": before}, (after.strip(),) * 2, None if answer is None else answer - 1, prefixes
    )


SHAPES: Mapping[str, Callable[[SubTask, RawRow], ShapedRow]] = {
    "labels": _labels,
    "copa": _copa,
    "pair": _pair,
    "letters": _letters,
    "endings": _endings,
    "blank": _blank,
}
"""Conversion of a row into options, by the `shape` on a card."""
