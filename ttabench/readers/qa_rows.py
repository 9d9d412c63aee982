"""Questions about texts, of any published layout, and questions of the user's own.

CaMeLS/MAC csv   {"text": ..., "question": ..., "answers": "212\\\\212 passengers"}    one backslash between answers
SQuAD            {"context": ..., "question": ..., "answers": {"text": [...], "answer_start": [...]}}
ArchivalQA csv   {"ans_paragraph": ..., "question": ..., "answer": "Monday"}
StreamingQA      {"question": ..., "answers": [...], "evidence_id": ...}, texts in a companion file

A companion is a table beside the questions, articles.csv say, with columns of keys and texts that the card names.
What is before the last "_" of a key is the article, behind it the number of the paragraph: "42_7".
"""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from ttabench.core.errors import UserError
from ttabench.readers.base import fingerprint, told_apart
from ttabench.readers.cards import Card, Split, load_card
from ttabench.readers.formats import RawRow, brief, opened, parsing, rows, text_of
from ttabench.readers.sources import Table, find, usable

MAX_LITERAL = 100_000
"""Characters of a Python literal that is parsed; a real answer cell has less than 2,000."""
LISTED = re.compile(r"\[\s*['\"\[].*\]|\[[\s\d.,-]*\]|\{\s*['\"].*\}", re.DOTALL)
"""A cell that is a list of answers, or an object with one, as text."""
ARRAY = re.compile(r"(?<=: )array\((\[[^]]*\])(?:, dtype=\w+)?\)")
UNPARTED = re.compile(r"['\"]\s+['\"]")
"""Texts that Python would make one of, as numpy prints them."""


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
    title: str = ""
    position: int | None = None
    """Number of the paragraph under its title."""


def parse(card: Card, data: Table, capitalise: bool = False) -> list[QARow]:
    """Usable rows in file order; `capitalise` raises the first letter of every answer, as CaMeLS and MAC do for SQuAD
    and ArchivalQA.
    """
    texts, seen = _companion(card, data), Counter[str]()

    def row_of(raw: RawRow) -> QARow | str:
        cells = {field: raw.cell(names) for field, names in card.columns.items()}
        question = _text("question", _needed(card, raw, "question")).strip()
        answers = answers_of(_needed(card, raw, "answers"), card.source.answers)
        key, title = _label(cells.get("text_key")), _label(cells.get("title"))
        text = _text("text", _needed(card, raw, "text")) if texts is None else texts.get(key, "")
        if not text.strip():
            return "no text" if texts is None else "no article"
        if not question or not answers:
            return "no question" if not question else "no answer"
        position: Any = cells.get("position")
        article, _, number = key.rpartition("_")
        if texts is not None and article and "title" in card.columns and number.isdecimal():
            title, position = title or article, number if position is None else position
        return QARow(
            id=told_apart(_label(cells.get("id")) or fingerprint(text, question), seen),
            text=text,
            question=question,
            answers=tuple(answer[:1].upper() + answer[1:] for answer in answers) if capitalise else answers,
            answers_additional=answers_of(cells.get("answers_additional"), "single"),
            title=title,
            position=int(float(position)) if _label(position) else None,
        )

    return usable(data, row_of)


def _text(field: str, cell: object) -> str:
    return "" if cell is None else text_of(field, cell)


def _needed(card: Card, raw: RawRow, field: str) -> object:
    hint = f"Rename the column, or name it in columns.{field} of a card of yours."
    if field == "text" and card.source.hub is None:
        hint += " Questions about other files: `ttabench ask --questions FILE --context TEXT`."
    return raw.needed(card.columns[field], hint)


def _companion(card: Card, data: Table) -> dict[str, str] | None:
    """Texts by reference where the rows do not hold them; the columns of the first row are looked at."""
    first = RawRow(data.where, data.rows[0].values)
    for field in ("question", "answers"):
        _needed(card, first, field)
    names, wanted = card.columns.get("text_key", ()), card.source.articles
    if first.values.keys().isdisjoint(names) or not first.values.keys().isdisjoint(card.columns["text"]):
        _needed(card, first, "text")
        return None
    if wanted is None or data.folder is None or not (files := find(Split(files=wanted.files), [data.folder])[0]):
        place = f" Put them beside it as {wanted.files[0]}.csv: {wanted.key[0]}, {wanted.text[0]}." if wanted else ""
        raise UserError(f"{data.where} holds questions without texts.", card.source.how + place)
    texts = {}
    for row in (row for path in files for row in rows(path)):
        with parsing(row.place):
            texts[str(row.needed(wanted.key))] = row.text(*wanted.text)
    return texts


def _label(value: object) -> str:
    """An id or title: text, or a number."""
    return "" if value is None else str(value).strip()


def answers_of(value: object, form: str | None = "single") -> tuple[str, ...]:
    """Answers of any published shape, stripped, without blanks and repeats; see the module's examples."""
    cell = value.strip() if isinstance(value, str) else ""
    if cell and (form == "literal" or (form == "single" and LISTED.fullmatch(cell))):
        value = _parsed(cell)
        json.dumps(value, ensure_ascii=False, default=str).encode("utf-8")  # half a surrogate pair is no text
    if isinstance(value, dict):
        value = value.get("text", value)
    if isinstance(value, str | int | float):
        value = value.split("\\") if isinstance(value, str) and form == "joined" else [value]
    if not isinstance(value, list | tuple | None):
        raise ValueError(f"answers are {brief(value)}, no list of texts")
    answers = (member.get("text", member) if isinstance(member, dict) else member for member in value or ())
    written = (
        str(answer).removesuffix(".0") if type(answer) in (int, float) and isfinite(answer) else answer
        for answer in answers
    )
    texts = (text_of("an answer", "" if answer is None else answer).strip() for answer in written)
    return tuple(dict.fromkeys(text for text in texts if text))


def _parsed(cell: str) -> object:
    """The value of a cell that is JSON or a Python literal, in which pandas writes `array([...])` for a list."""
    fault = f"the answers are no Python dict or list: {brief(cell)}"
    if len(cell) > MAX_LITERAL or cell[:1] not in ("{", "["):
        raise ValueError(fault)
    with suppress(ValueError):
        return json.loads(cell)
    if UNPARTED.search(cell):
        raise ValueError(f"the answers have no commas between them: {brief(cell)}")
    try:
        return ast.literal_eval(ARRAY.sub(r"\1", cell))  # runs nothing; the parser's memory grows with the length
    except (ValueError, SyntaxError):
        raise ValueError(fault) from None


# --- questions of the user's own -------------------------------------------------------------------------------------


class OwnQuestion(NamedTuple):
    """A question, and what is right if that is known."""

    key: str
    question: str
    answers: tuple[str, ...] = ()
    """The shortest first, as tasks have them."""


def typed_questions(texts: Sequence[str]) -> list[OwnQuestion]:
    """Questions as they were typed."""
    if not all(text.strip() for text in texts):
        raise UserError("The question is empty.", 'Write it in quotation marks: ttabench ask "Who wrote it?"')
    return [OwnQuestion(key=str(number), question=text.strip()) for number, text in enumerate(texts, start=1)]


def own_questions(path: Path) -> list[OwnQuestion]:
    """The questions of a file, in order: one a line (.txt), or a table with a column of them, named as on card `qa`."""
    if path.name.endswith((".txt", ".txt.gz")):
        with opened(path) as (lines, at):
            questions = [OwnQuestion(key=str(at.line), question=line.strip()) for line in lines if line.strip()]
    else:
        table = Table(rows=list(rows(path)), where=str(path))
        questions = usable(table, partial(_question, load_card("qa").columns), some=False)
    if not questions:
        raise UserError(f"{path} holds no question.", "Give a file with questions.")
    return questions


def _question(columns: Mapping[str, tuple[str, ...]], row: RawRow) -> OwnQuestion:
    question = row.needed(columns["question"], "Rename the column of the questions.")
    if not isinstance(question, str) or not question.strip():
        raise ValueError("the question is empty or no text")
    answers = sorted(answers_of(row.cell(columns["answers"])), key=len)
    return OwnQuestion(key=str(row.number + 1), question=question.strip(), answers=tuple(answers))
