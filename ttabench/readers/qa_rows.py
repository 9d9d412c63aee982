"""Rows of question-answering sources, whatever their layout, as one row type.

    CaMeLS/MAC csv   {"text": ..., "question": ..., "answers": "212\\\\212 passengers"}    one backslash between answers
    SQuAD            {"context": ..., "question": ..., "answers": {"text": [...], "answer_start": [...]}}
    MAC's squad csv  the same with the answers as the text of a Python literal
    ArchivalQA csv   {"ans_paragraph": ..., "question": ..., "answer": "Monday"}
    StreamingQA      {"question": ..., "answers": [...], "evidence_id": ...}, texts in a companion file

Which column is which stands on the task card. A row that lacks a text, a question or an answer is counted as dropped;
one that does not have the right shape is an error that names file and line.
"""

from __future__ import annotations

import ast
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime

from ttabench.core.errors import UserError
from ttabench.readers.article_files import Paragraph
from ttabench.readers.cards import Card
from ttabench.readers.description import fingerprint
from ttabench.readers.faults import brief
from ttabench.readers.raw import RawRow, malformed, proper
from ttabench.readers.sources import Table, articles

MAX_LITERAL = 100_000
"""Characters of a Python literal that is parsed; a real answer cell has less than 2,000."""


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
    """(usable rows in file order, dropped rows by reason).

    Args:
        capitalise: raise the first letter of every answer, as CaMeLS and MAC do for SQuAD and ArchivalQA.

    Raises:
        UserError: a needed column is missing, a cell has the wrong shape, or not one row is usable.
    """
    texts = _companion(card, data)
    seen: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    parsed: list[QARow] = []
    for raw in data.rows:
        row = _row(card, raw, texts)
        if not isinstance(row, str) and data.years is not None:
            row = _of_years(row, data.years)
        if isinstance(row, str):
            dropped[row] += 1
            continue
        seen[row.id] += 1
        unique = row.id if seen[row.id] == 1 else f"{row.id}#{seen[row.id]}"
        answers = tuple(answer[:1].upper() + answer[1:] for answer in row.answers) if capitalise else row.answers
        parsed.append(replace(row, id=unique, answers=answers))
    if not parsed:
        reasons = ", ".join(f"{reason}: {count}" for reason, count in dropped.items())
        raise UserError(f"None of the {len(data.rows)} rows of {data.where} is usable ({reasons}).", "Give others.")
    return parsed, dict(dropped)


def _of_years(row: QARow, years: tuple[int, int]) -> QARow | str:
    """The row, or the reason why it is dropped: its article is of other years."""
    if row.timestamp is None:
        return "its article says no date"
    first, last = years
    within = first <= datetime.fromtimestamp(row.timestamp, UTC).year <= last
    return row if within else f"its article is not of {first} to {last}"


def _companion(card: Card, data: Table) -> Mapping[str, Paragraph] | None:
    """Check the columns of the first row; texts by reference where the rows do not hold them."""
    first = data.rows[0].values
    for field in ("question", "answers"):
        if not _names(card, field) & first.keys():
            raise _lacks(card, data.where, field, first)
    if _names(card, "text") & first.keys():
        return None
    if not _names(card, "text_key") & first.keys():
        raise _lacks(card, data.where, "text", first)
    names = card.columns.get("text_key", ())
    keys = (next((row.values[name] for name in names if name in row.values), None) for row in data.rows)
    return articles(card, data, (str(key).strip() for key in keys if isinstance(key, str | int)))


def _names(card: Card, field: str) -> set[str]:
    return set(card.columns.get(field, ()))


def _lacks(card: Card, where: str, field: str, values: Mapping[str, object]) -> UserError:
    wanted = " or ".join(repr(name) for name in card.columns[field])
    hint = f"Rename the column, or write a card with columns.{field}."
    if field == "text" and card.source.hub is None:
        hint += " Questions about other files: `ttabench ask --questions FILE --context TEXT`."
    return UserError(f"{where} lacks the column {wanted}; it has {brief(', '.join(map(str, values)), 160)}.", hint)


def _row(card: Card, raw: RawRow, texts: Mapping[str, Paragraph] | None) -> QARow | str:
    """The row, or the reason why it is dropped."""

    def cell(field: str) -> object:
        return next((raw.values[name] for name in card.columns.get(field, ()) if name in raw.values), None)

    for field in ("question", "answers", *(("text",) if texts is None else ())):
        if not _names(card, field) & raw.values.keys():
            raise _lacks(card, raw.place, field, raw.values)
    question = _text(raw.place, "question", cell("question")).strip()
    answers = answers_of(raw.place, cell("answers"), card.source.answers)
    if texts is None:
        held = Paragraph(_text(raw.place, "text", cell("text")))
    else:
        held = texts.get(_label(raw.place, "text_key", cell("text_key")), Paragraph(""))
    text = held.text
    if not text.strip():
        return "no text" if texts is None else "no article"
    if texts is not None and not _holds(card, raw, text):
        return "its paragraph does not hold the answer"
    if not question or not answers:
        return "no question" if not question else "no answer"
    return QARow(
        id=_label(raw.place, "id", cell("id")) or fingerprint(text, question),
        text=text,
        question=question,
        answers=answers,
        answers_additional=answers_of(raw.place, cell("answers_additional"), "single"),
        timestamp=_timestamp(raw.place, held.day if cell("timestamp") in (None, "") else cell("timestamp")),
        title=_label(raw.place, "title", cell("title")) or (held.article if "title" in card.columns else ""),
        position=held.number if cell("position") is None else _position(raw.place, cell("position")),
    )


def _holds(card: Card, raw: RawRow, text: str) -> bool:
    """Whether a paragraph has the words that the card says, blanks aside; where nothing is said it has."""
    names = card.source.articles.holds if card.source.articles else ()
    words = next((raw.values[name] for name in names if name in raw.values), None)
    return not isinstance(words, str) or " ".join(words.split()) in " ".join(text.split())


def _text(place: str, field: str, value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise malformed(place, f"{field} is {brief(value)}, no text")
    return proper(place, field, value)


def _label(place: str, field: str, value: object) -> str:
    """An id or title: text, or a whole number."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return _text(place, field, value).strip()


def answers_of(place: str, value: object, form: str | None = "single") -> tuple[str, ...]:
    """Answers of any published shape, stripped, without blanks and repeats; see the module's examples.

    Raises:
        UserError: they are no texts, or a literal that is none.
    """
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
    if len(text) > MAX_LITERAL:
        raise malformed(place, f"the answers are a literal of {len(text)} characters, more than {MAX_LITERAL}")
    if text.lstrip()[:1] not in ("{", "["):
        raise malformed(place, f"the answers are no Python dict or list: {brief(text)}")
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise malformed(place, f"the answers are no Python literal: {brief(text)}") from None


def _timestamp(place: str, value: object) -> float | None:
    """Seconds since 1970 UTC from a number of seconds or an ISO date (taken as UTC where it names no zone)."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    try:
        if isinstance(value, str):
            try:
                seconds = float(value)
            except ValueError:
                value = datetime.fromisoformat(value.strip())
        if isinstance(value, date):
            moment = value if isinstance(value, datetime) else datetime(value.year, value.month, value.day)
            seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        elif isinstance(value, int | float):
            seconds = float(value)
        elif not isinstance(value, str):
            raise ValueError
    except (ValueError, OverflowError):
        raise malformed(place, f"timestamp {brief(value)} is neither seconds nor an ISO date") from None
    if math.isnan(seconds):
        return None
    if math.isinf(seconds):
        raise malformed(place, f"timestamp {brief(value)} is not finite")
    return seconds


def _position(place: str, value: object) -> int | None:
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    try:
        if not isinstance(value, str | int | float):
            raise ValueError
        return int(float(value))
    except (ValueError, OverflowError):
        raise malformed(place, f"paragraph number {brief(value)} is no number") from None
