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
from dataclasses import dataclass
from itertools import count
from typing import Any

from ttabench.core.types import Choose
from ttabench.readers.base import told_apart
from ttabench.readers.cards import SubTask
from ttabench.readers.faults import brief
from ttabench.readers.formats import RawRow, malformed, text_of
from ttabench.readers.sources import Table, usable

HIDDEN_LABEL = "label hidden"
"""Reason for which rows are dropped whose answer the publisher keeps."""
_HIDDEN = (None, "", -1, "-1")
"""Labels of such rows."""
_FIELD = re.compile(r"\{(\w+)\}")
_BRACKETS = re.compile(r"\[.*?\]")
_CONNECTORS = {"cause": "because", "effect": "therefore"}


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
    option_prefixes: tuple[str, ...] = ()
    """See `types.Choose`."""

    @property
    def shown(self) -> str:
        """The row as a demonstration: prompt and right option."""
        return self._asked + self.options[self.gold]

    @property
    def told(self) -> tuple[str, tuple[str, ...]]:
        """Two rows of which this is the same are equal."""
        return self.shown, self.options

    def turns(self, delimiter: str) -> tuple[str, str]:
        """The row as a demonstration in a chat template: what the user says, and the right option."""
        return self._asked, self.options[self.gold].removeprefix(delimiter)

    @property
    def _asked(self) -> str:
        """Text before the right option."""
        return self.prompts["lm_eval"] + (self.option_prefixes[self.gold] if self.option_prefixes else "")

    def choose(self, delimiter: str) -> Choose:
        """The want of a query about the row."""
        return Choose(options=self.options, gold=self.gold, option_prefixes=self.option_prefixes, delimiter=delimiter)


def parse(
    part: SubTask, data: Table, delimiter: str = " ", single_blank: bool = False
) -> tuple[list[Item], dict[str, int]]:
    """(items in file order, how many rows are dropped by reason: a hidden label, a text or option without words).

    `single_blank`: one blank before COPA's options, where lm-evaluation-harness has two.
    """
    seen, numbers = Counter[str](), count()
    one_blank = single_blank and part.shape == "copa"

    def item_of(raw: RawRow) -> Item | str:
        row, number = SHAPES[part.shape](part, raw), next(numbers)
        if row.gold is None:
            return HIDDEN_LABEL
        if not 0 <= row.gold < len(row.options):
            raise malformed(raw.place, f"label {row.gold} is none of its {len(row.options)} options")
        if row.empty:
            return f"empty {row.empty}"

        def field(match: re.Match[str]) -> str:  # in one pass: braces in the data mean nothing
            return row.fields[match[1]]

        name = next((raw.values[key] for key in ("idx", "id", "qID", "ind") if key in raw.values), number)
        return Item(
            id=told_apart(str(name), seen),
            prompts={key: _FIELD.sub(field, template) for key, template in part.templates.items()},
            options=tuple(delimiter + (option.lstrip() if one_blank else option) for option in row.options),
            gold=row.gold,
            option_prefixes=row.option_prefixes,
        )

    items, dropped = usable(data, item_of)
    return items, dict(dropped)


# --- shapes -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shaped:
    """What a shape makes of a row: fields for the template, options without delimiter, label (None where hidden)."""

    fields: Mapping[str, str]
    options: tuple[str, ...]
    gold: int | None
    option_prefixes: tuple[str, ...] = ()

    @property
    def empty(self) -> str:
        """The first field, or "option", that holds no text; "" where all do. Nothing stands before some blanks."""
        blank = next((name for name, text in self.fields.items() if name != "before" and not text.strip()), "")
        texts = (*self.options, *self.option_prefixes)
        return blank or ("option" if any(not text.strip() for text in texts) else "")


def _cell(part: SubTask, raw: RawRow, field: str) -> object:
    return raw.needed(part.columns.get(field, (field,)))


def _text(part: SubTask, raw: RawRow, field: str) -> str:
    return text_of(raw.place, field, _cell(part, raw, field))


def _label(part: SubTask, raw: RawRow, field: str = "label") -> int | None:
    """The number of the right option, from a number, a truth value, a digit or a name."""
    value = _cell(part, raw, field)
    if isinstance(value, bool):
        return int(value)
    if value in _HIDDEN:
        return None
    if isinstance(value, str) and value in part.labels:
        return part.labels.index(value)
    return int(str(value))  # raises of what is no whole number


def _labels(part: SubTask, raw: RawRow) -> Shaped:
    fields = {field: _text(part, raw, field) for field in part.columns if field != "label"}
    return Shaped(fields, part.options, _label(part, raw))


def _copa(part: SubTask, raw: RawRow) -> Shaped:
    """The premise without its full stop, a connector, and the alternatives with a blank and a small first letter."""
    connector = _CONNECTORS[_text(part, raw, "question")]
    fields = {"premise": _text(part, raw, "premise").strip()[:-1], "connector": connector}
    choices = [_text(part, raw, name) for name in ("choice1", "choice2")]
    return Shaped(fields, tuple(f" {text[:1].lower()}{text[1:]}" for text in choices), _label(part, raw))


def _pair(part: SubTask, raw: RawRow) -> Shaped:
    return Shaped(
        {"goal": _text(part, raw, "goal")},
        (_text(part, raw, "sol1"), _text(part, raw, "sol2")),
        _label(part, raw),
    )


def _letters(part: SubTask, raw: RawRow) -> Shaped:
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
    gold = None if answer in _HIDDEN else -1
    if gold is not None:
        key = text_of(raw.place, "answerKey", answer).strip()
        gold = letters.index(key)
    return Shaped({"question": text_of(raw.place, "question", question)}, options, gold)


def _clean(text: str) -> str:
    """HellaSwag's texts without the marks of WikiHow pages."""
    return _BRACKETS.sub("", text.strip().replace(" [title]", ". ")).replace("  ", " ")


def _endings(part: SubTask, raw: RawRow) -> Shaped:
    endings = _cell(part, raw, "endings")
    if not isinstance(endings, list) or len(endings) < 2:
        raise malformed(raw.place, f"options are {brief(endings)}, no list of endings")
    context = f"{_text(part, raw, 'ctx_a')} {_text(part, raw, 'ctx_b').capitalize()}"
    fields = {"query": _clean(f"{_text(part, raw, 'activity_label')}: {context}") if context.strip() else ""}
    options = tuple(_clean(text_of(raw.place, "an ending", ending)) for ending in endings)
    hidden = "label" not in raw.values  # the published test file leaves the column out
    return Shaped(fields, options, None if hidden else _label(part, raw))


def _blank(part: SubTask, raw: RawRow) -> Shaped:
    """Either name in the blank is context; what follows the blank is scored."""
    sentence = _text(part, raw, "sentence")
    before, blank, after = sentence.partition("_")
    if not blank:
        raise malformed(raw.place, f"the sentence has no blank (_): {brief(sentence)}")
    prefixes = (_text(part, raw, "option1"), _text(part, raw, "option2"))
    answer = _label(part, raw, "answer")
    return Shaped({"before": before}, (after.strip(),) * 2, None if answer is None else answer - 1, prefixes)


SHAPES: Mapping[str, Callable[[SubTask, RawRow], Shaped]] = {
    "labels": _labels,
    "copa": _copa,
    "pair": _pair,
    "letters": _letters,
    "endings": _endings,
    "blank": _blank,
}
"""How a row becomes options, by the `shape` on a card."""
