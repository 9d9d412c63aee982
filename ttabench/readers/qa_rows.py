"""Questions about texts, of any published layout.

CaMeLS/MAC csv   {"text": ..., "question": ..., "answers": "212\\\\212 passengers"}    one backslash between answers
SQuAD            {"context": ..., "question": ..., "answers": {"text": [...], "answer_start": [...]}}
ArchivalQA csv   {"ans_paragraph": ..., "question": ..., "answer": "Monday"}
StreamingQA      {"question": ..., "answers": [...], "evidence_id": ...}, texts in a companion file
"""

from __future__ import annotations

import ast
import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pydantic import TypeAdapter

from ttabench.readers.article_files import Paragraph, articles
from ttabench.readers.base import fingerprint, told_apart
from ttabench.readers.cards import Card
from ttabench.readers.faults import brief
from ttabench.readers.formats import RawRow, malformed, text_of
from ttabench.readers.sources import Table, usable

MAX_LITERAL = 100_000
"""Characters of a Python literal that is parsed; a real answer cell has less than 2,000."""
_MOMENT: TypeAdapter[datetime] = TypeAdapter(datetime)


@dataclass(frozen=True, kw_only=True, slots=True)
class QARow:
    """A question about a text."""

    id: str
    """Unique in its source: the published id, else a hash of text and question; repeats end in #2, #3, ..."""
    text: str
    question: str
    answers: tuple[str, ...]
    """As published, stripped, without repeats; at least one."""
    answers_additional: tuple[str, ...] = ()
    timestamp: float | None = None
    """Seconds since 1970 UTC."""
    title: str = ""
    position: int | None = None
    """Number of the paragraph under its title."""

    @property
    def target(self) -> str:
        """The shortest answer (the first of them), which is what the papers train on and score against."""
        return min(self.answers, key=len)


def parse(card: Card, data: Table, capitalise: bool = False) -> tuple[list[QARow], dict[str, int]]:
    """(usable rows in file order, dropped rows by reason); `capitalise` raises the first letter of every answer, as
    CaMeLS and MAC do for SQuAD and ArchivalQA.
    """
    texts, seen = _companion(card, data), Counter[str]()

    def row_of(raw: RawRow) -> QARow | str:
        row = _row(card, raw, texts)
        if isinstance(row, str):
            return row
        if data.years is not None and (fault := _of_other_years(row, data.years)):
            return fault
        answers = tuple(answer[:1].upper() + answer[1:] for answer in row.answers) if capitalise else row.answers
        return replace(row, id=told_apart(row.id, seen), answers=answers)

    return usable(data, row_of)


def _of_other_years(row: QARow, years: tuple[int, int]) -> str:
    """Why a row is dropped whose article is of other years; empty for one of these."""
    if row.timestamp is None:
        return "its article says no date"
    first, last = years
    within = first <= datetime.fromtimestamp(row.timestamp, UTC).year <= last
    return "" if within else f"its article is not of {first} to {last}"


def _needed(card: Card, raw: RawRow, field: str) -> object:
    hint = f"Rename the column, or write a card with columns.{field}."
    if field == "text" and card.source.hub is None:
        hint += " Questions about other files: `ttabench ask --questions FILE --context TEXT`."
    return raw.needed(card.columns[field], hint)


def _companion(card: Card, data: Table) -> Mapping[str, Paragraph] | None:
    """Texts by reference where the rows do not hold them; the columns of the first row are looked at."""
    first = RawRow(data.where, data.rows[0].values)
    for field in ("question", "answers"):
        _needed(card, first, field)
    names = card.columns.get("text_key", ())
    if first.values.keys().isdisjoint(names) or not first.values.keys().isdisjoint(card.columns["text"]):
        _needed(card, first, "text")
        return None
    keys = (row.cell(names) for row in data.rows)
    return articles(card, data, (str(key).strip() for key in keys if isinstance(key, str | int)))


def _row(card: Card, raw: RawRow, texts: Mapping[str, Paragraph] | None) -> QARow | str:
    """The row, or the reason why it is dropped."""
    place, cells = raw.place, {field: raw.cell(names) for field, names in card.columns.items()}
    question = _text(place, "question", _needed(card, raw, "question")).strip()
    answers = answers_of(place, _needed(card, raw, "answers"), card.source.answers)
    if texts is None:
        held = Paragraph(_text(place, "text", _needed(card, raw, "text")))
    else:
        held = texts.get(_label(place, "text_key", cells.get("text_key")), Paragraph(""))
    text = held.text
    if not text.strip():
        return "no text" if texts is None else "no article"
    words = raw.cell(card.source.articles.holds) if texts is not None and card.source.articles else None
    if isinstance(words, str) and " ".join(words.split()) not in " ".join(text.split()):
        return "its paragraph does not hold the answer"
    if not question or not answers:
        return "no question" if not question else "no answer"
    moment, position = cells.get("timestamp"), cells.get("position")
    return QARow(
        id=_label(place, "id", cells.get("id")) or fingerprint(text, question),
        text=text,
        question=question,
        answers=answers,
        answers_additional=answers_of(place, cells.get("answers_additional"), "single"),
        timestamp=_timestamp(held.day if moment in (None, "") else moment),
        title=_label(place, "title", cells.get("title")) or (held.article if "title" in card.columns else ""),
        position=held.number if position is None else _position(position),
    )


def _text(place: str, field: str, value: object) -> str:
    return "" if value is None else text_of(place, field, value)


def _label(place: str, field: str, value: object) -> str:
    """An id or title: text, or a whole number."""
    number = isinstance(value, int) and not isinstance(value, bool)
    return _text(place, field, str(value) if number else value).strip()


def answers_of(place: str, value: object, form: str | None = "single") -> tuple[str, ...]:
    """Answers of any published shape, stripped, without blanks and repeats; see the module's examples."""
    if isinstance(value, str) and form == "literal" and value.strip():
        value = _literal(place, value)
    if isinstance(value, dict):
        value = value.get("text", value)
    if value is None:
        answers: list[object] = []
    elif isinstance(value, str):
        answers = list(value.split("\\")) if form == "joined" else [value]
    elif isinstance(value, list | tuple):
        answers = [member.get("text", member) if isinstance(member, dict) else member for member in value]
    else:
        raise malformed(place, f"answers are {brief(value)}, no list of texts")
    texts = (_text(place, "an answer", member).strip() for member in answers)
    return tuple(dict.fromkeys(text for text in texts if text))


def _literal(place: str, text: str) -> object:
    """A Python dict or list read without running anything, of bounded length (the parser's memory grows with it)."""
    if len(text) > MAX_LITERAL or text.lstrip()[:1] not in ("{", "["):
        raise malformed(place, f"the answers are no Python dict or list: {brief(text)}")
    value = ast.literal_eval(text.strip())
    json.dumps(value, ensure_ascii=False, default=str).encode("utf-8")  # half a surrogate pair is no text
    return value


def _timestamp(value: object) -> float | None:
    """Seconds since 1970 UTC from a number of seconds or an ISO date (taken as UTC where it names no zone)."""
    if isinstance(value, str):
        value = value.strip()
    if value in (None, "") or str(value).lower() == "nan":
        return None
    moment = _MOMENT.validate_python(value)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _position(value: object) -> int | None:
    if isinstance(value, str) and not value.strip():
        return None
    return math.trunc(float(value))  # type: ignore[arg-type]  # what is no number raises
