"""How a row of each shape becomes fields, options and the number of the right one.

Words for labels (BoolQ, CB, RTE, SST-2), two alternatives (COPA), two solutions (PIQA), lettered choices (ARC,
OpenBookQA), endings (HellaSwag), a blank to fill (WinoGrande).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ttabench.core.errors import UserError
from ttabench.readers.cards import SubTask
from ttabench.readers.faults import brief
from ttabench.readers.raw import RawRow, malformed, proper

_BRACKETS = re.compile(r"\[.*?\]")
_CONNECTORS = {"cause": "because", "effect": "therefore"}
HIDDEN = (None, "", -1, "-1")
"""Labels of rows whose answer the publisher keeps."""


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
        UserError: it is not, or holds what is no character.
    """
    if not isinstance(value, str):
        raise malformed(place, f"{field} is {brief(value)}, no text")
    return proper(place, field, value)


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


def _labels(part: SubTask, raw: RawRow) -> Shaped:
    fields = {field: _text(part, raw, field) for field in part.columns if field != "label"}
    return Shaped(fields, part.options, _label(part, raw))


def _copa(part: SubTask, raw: RawRow) -> Shaped:
    """The premise without its full stop, a connector, and the alternatives with a blank and a small first letter."""
    kind = _text(part, raw, "question")
    if kind not in _CONNECTORS:
        raise malformed(raw.place, f"question is {brief(kind)}, neither 'cause' nor 'effect'")
    fields = {"premise": _text(part, raw, "premise").strip()[:-1], "connector": _CONNECTORS[kind]}
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
    gold = None if answer in HIDDEN else -1
    if gold is not None:
        key = text_of(raw.place, "answerKey", answer).strip()
        if key not in letters:
            raise malformed(raw.place, f"answer {key!r} is not among the options {', '.join(map(str, letters))}")
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
    if answer not in (None, 1, 2):
        raise malformed(raw.place, f"answer {answer} is neither 1 nor 2")
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
