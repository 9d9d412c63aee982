"""Rows of multiple-choice tasks, whatever their layout, as prompts and options in the words of lm-evaluation-harness.

    CB    {"premise": "...", "hypothesis": "...", "label": "contradiction"}     raw file, label by name
    CB    {"premise": "...", "hypothesis": "...", "label": 1}                   hub, label by number
          -> Item(prompt="...\\nQuestion: .... True, False, or Neither?\\nAnswer:",
                  options=(" True", " False", " Neither"), gold=1)

How a row becomes options is its `shape` on the card: words for labels (BoolQ, CB, RTE, SST-2), two alternatives (COPA),
two solutions (PIQA), lettered choices (ARC, OpenBookQA), endings (HellaSwag), a blank to fill (WinoGrande). The texts
are those of lm-evaluation-harness 0.4.13; a test compares them string by string.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ttabench.errors import UserError
from ttabench.readers.cards import SubTask, brief
from ttabench.readers.formats import RawRow, malformed
from ttabench.readers.sources import Table
from ttabench.types import Ask

_FIELD = re.compile(r"\{(\w+)\}")
_BRACKETS = re.compile(r"\[.*?\]")
_CONNECTORS = {"cause": "because", "effect": "therefore"}
HIDDEN = (None, "", -1, "-1")
"""Labels of rows whose answer the publisher keeps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """A row ready to be shown or asked."""

    id: str
    """Unique in its file: the published id, else the number of the row; repeats end in #2, #3, ..."""
    prompts: Mapping[str, str]
    """By template name."""
    options: tuple[str, ...]
    """Each with its leading delimiter."""
    gold: int
    heads: tuple[str, ...] = ()
    """See `types.Ask.heads`."""

    @property
    def shown(self) -> str:
        """The row as a demonstration: prompt and right option."""
        head = self.heads[self.gold] if self.heads else ""
        return self.prompts["lm_eval"] + head + self.options[self.gold]

    def ask(self, key: str, template: str, delimiter: str) -> Ask:
        """The row as a query."""
        return Ask(
            prompt=self.prompts[template],
            key=key,
            mode="choose",
            answers=(self.options[self.gold].strip(),),
            options=self.options,
            gold=self.gold,
            heads=self.heads,
            delimiter=delimiter,
        )


@dataclass(frozen=True)
class _Shaped:
    """What a shape makes of a row: fields for the template, options without delimiter, label (None where hidden)."""

    fields: Mapping[str, str]
    options: tuple[str, ...]
    gold: int | None
    heads: tuple[str, ...] = ()


def parse(part: SubTask, data: Table, delimiter: str = " ", single_blank: bool = False) -> tuple[list[Item], int]:
    """(items in file order, how many rows hide their label).

    Args:
        delimiter: stands before every option.
        single_blank: one blank before COPA's options, where lm-evaluation-harness has two.

    Raises:
        UserError: a row lacks a column, has no options, or a label that is none of them; every label is hidden.
    """
    seen: Counter[str] = Counter()
    items: list[Item] = []
    hidden = 0
    for number, raw in enumerate(data.rows):
        row = _SHAPES[part.shape](part, raw)
        if row.gold is None:
            hidden += 1
            continue
        if not 0 <= row.gold < len(row.options):
            raise malformed(raw.place, f"label {row.gold} is none of its {len(row.options)} options")
        name = str(next((raw.values[key] for key in ("idx", "id", "qID", "ind") if key in raw.values), number))
        seen[name] += 1
        items.append(
            Item(
                id=name if seen[name] == 1 else f"{name}#{seen[name]}",
                prompts={key: _filled(template, row.fields, raw) for key, template in part.templates.items()},
                options=tuple(delimiter + option for option in row.options),
                gold=row.gold,
                heads=row.heads,
            )
        )
    if not items:
        raise UserError(f"{data.where}: the labels of all {hidden} rows are hidden.", "Score another split.")
    if single_blank and part.shape == "copa":
        items = [replace(each, options=tuple(delimiter + option.lstrip() for option in each.options)) for each in items]
    return items, hidden


def _filled(template: str, fields: Mapping[str, str], raw: RawRow) -> str:
    """The template with its fields put in, in one pass: braces in the data mean nothing."""

    def value(match: re.Match[str]) -> str:
        if match[1] not in fields:
            raise malformed(raw.place, f"the template needs {match[1]!r}, the row gives {', '.join(fields)}")
        return fields[match[1]]

    return _FIELD.sub(value, template)


def _cell(part: SubTask, raw: RawRow, field: str) -> object:
    names = part.columns.get(field, (field,))
    for name in names:
        if name in raw.values:
            return raw.values[name]
    wanted = " or ".join(map(repr, names))
    have = brief(", ".join(map(str, raw.values)), 160)
    raise UserError(f"{raw.place} lacks the column {wanted}; it has {have}.", "Give rows in a published layout.")


def text_of(place: str, field: str, value: object) -> str:
    """A cell that must be text.

    Raises:
        UserError: it is not, or holds half a character.
    """
    if not isinstance(value, str):
        raise malformed(place, f"{field} is {brief(value)}, no text")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise malformed(place, f"{field} holds half of a surrogate pair, which is no character") from None
    return value


def _text(part: SubTask, raw: RawRow, field: str) -> str:
    return text_of(raw.place, field, _cell(part, raw, field))


def _label(part: SubTask, raw: RawRow, field: str = "label") -> int | None:
    """The number of the right option, from a number, a truth value, a digit or a name."""
    value = _cell(part, raw, field)
    if isinstance(value, bool):
        return int(value)
    if value in HIDDEN:
        return None
    if isinstance(value, str) and value in part.labels:
        return part.labels.index(value)
    if isinstance(value, int) or (isinstance(value, str) and value.isdecimal() and len(value) < 10):
        return int(value)
    known = f"; known: {', '.join(part.labels)}" if part.labels else ""
    raise malformed(raw.place, f"label {brief(value)} is none{known}")


def _labels(part: SubTask, raw: RawRow) -> _Shaped:
    fields = {field: _text(part, raw, field) for field in part.columns if field != "label"}
    return _Shaped(fields, part.options, _label(part, raw))


def _copa(part: SubTask, raw: RawRow) -> _Shaped:
    """The premise without its full stop, a connector, and the alternatives with a blank and a small first letter."""
    kind = _text(part, raw, "question")
    if kind not in _CONNECTORS:
        raise malformed(raw.place, f"question is {brief(kind)}, neither 'cause' nor 'effect'")
    fields = {"premise": _text(part, raw, "premise").strip()[:-1], "connector": _CONNECTORS[kind]}
    choices = [_text(part, raw, name) for name in ("choice1", "choice2")]
    return _Shaped(fields, tuple(f" {text[:1].lower()}{text[1:]}" for text in choices), _label(part, raw))


def _pair(part: SubTask, raw: RawRow) -> _Shaped:
    return _Shaped(
        {"goal": _text(part, raw, "goal")},
        (_text(part, raw, "sol1"), _text(part, raw, "sol2")),
        _label(part, raw),
    )


def _letters(part: SubTask, raw: RawRow) -> _Shaped:
    """Choices under letters or figures: in columns of lists as the hub has them, or nested as they were published."""
    question: Any = _cell(part, raw, "question")
    choices: Any = raw.values.get("choices")
    if isinstance(question, dict):
        choices, question = question.get("choices"), question.get("stem")
    if isinstance(choices, list):
        nested = [choice for choice in choices if isinstance(choice, dict)]
        if len(nested) == len(choices):
            choices = {key: [choice.get(key) for choice in nested] for key in ("text", "label")}
    columns = choices if isinstance(choices, dict) else {}
    texts, letters = columns.get("text"), columns.get("label")
    if not isinstance(texts, list) or not isinstance(letters, list) or not texts or len(texts) != len(letters):
        raise malformed(raw.place, "options are missing, or not as many as their letters")
    options = tuple(text_of(raw.place, "an option", text) for text in texts)
    answer = raw.values.get("answerKey")
    gold = None if answer in HIDDEN else -1
    if gold is not None:
        key = text_of(raw.place, "answerKey", answer).strip()
        if key not in letters:
            raise malformed(raw.place, f"answer {key!r} is not among the options {', '.join(map(str, letters))}")
        gold = letters.index(key)
    return _Shaped({"question": text_of(raw.place, "question", question)}, options, gold)


def _clean(text: str) -> str:
    """HellaSwag's texts without the marks of WikiHow pages."""
    return _BRACKETS.sub("", text.strip().replace(" [title]", ". ")).replace("  ", " ")


def _endings(part: SubTask, raw: RawRow) -> _Shaped:
    endings = _cell(part, raw, "endings")
    if not isinstance(endings, list) or len(endings) < 2:
        raise malformed(raw.place, f"options are {brief(endings)}, no list of endings")
    context = f"{_text(part, raw, 'ctx_a')} {_text(part, raw, 'ctx_b').capitalize()}"
    fields = {"query": _clean(f"{_text(part, raw, 'activity_label')}: {context}")}
    options = tuple(_clean(text_of(raw.place, "an ending", ending)) for ending in endings)
    hidden = "label" not in raw.values  # the published test file leaves the column out
    return _Shaped(fields, options, None if hidden else _label(part, raw))


def _blank(part: SubTask, raw: RawRow) -> _Shaped:
    """Either name in the blank is context; what follows the blank is scored."""
    sentence = _text(part, raw, "sentence")
    before, blank, after = sentence.partition("_")
    if not blank:
        raise malformed(raw.place, f"the sentence has no blank (_): {brief(sentence)}")
    heads = (_text(part, raw, "option1"), _text(part, raw, "option2"))
    answer = _label(part, raw, "answer")
    if answer not in (None, 1, 2):
        raise malformed(raw.place, f"answer {answer} is neither 1 nor 2")
    return _Shaped({"before": before}, (after.strip(),) * 2, None if answer is None else answer - 1, heads)


_SHAPES: Mapping[str, Callable[[SubTask, RawRow], _Shaped]] = {
    "labels": _labels,
    "copa": _copa,
    "pair": _pair,
    "letters": _letters,
    "endings": _endings,
    "blank": _blank,
}
