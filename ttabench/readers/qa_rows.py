"""Questions about texts, in any published layout, and the user's own questions.

CaMeLS/MAC csv   {"text": ..., "question": ..., "answers": "212\\\\212 passengers"}    one backslash
between answers SQuAD            {"context": ..., "question": ..., "answers": {"text": [...],
"answer_start": [...]}} ArchivalQA csv   {"ans_paragraph": ..., "question": ..., "answer": "Monday"}
StreamingQA      {"question": ..., "answers": [...], "evidence_id": ...}, texts in a companion file

A companion is a table in the same folder as the questions, e.g. articles.csv, with columns of keys
and texts that the card names. A key is the article, "_", and the number of the paragraph: "42_7".
"""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from ttabench.core.errors import UserError
from ttabench.readers.base import fingerprint, make_unique
from ttabench.readers.cards import Card, Split, load_card
from ttabench.readers.formats import (
    RawRow,
    open_lines,
    read_document,
    read_rows,
    report_row_errors,
    require_text,
    short_repr,
)
from ttabench.readers.sources import RawTable, find_split_files, parse_table, read_table

FILE_COLUMN = "file"
"""Column with the path of a text or chat, in tables without texts."""
MAX_LITERAL_CHARS = 100_000
"""Maximum length of a Python literal to parse; real answer cells have below 2,000 characters."""
LIST_LITERAL = re.compile(r"\[\s*['\"\[].*\]|\[[\s\d.,-]*\]|\{\s*['\"].*\}", re.DOTALL)
"""Matches a cell that is a list of answers, or an object with one, as text."""
NUMPY_ARRAY = re.compile(r"(?<=: )array\((\[[^]]*\])(?:, dtype=\w+)?\)")
MISSING_COMMA = re.compile(r"['\"]\s+['\"]")
"""Matches adjacent texts, as numpy prints them; Python would join them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QARow:
    """A question about a text."""

    id: str
    """Unique in its source: the published id, else a hash of text and question; repeats end in #2,
    #3, ...
    """
    text: str
    question: str
    answers: tuple[str, ...]
    """As published, stripped, without repeats; at least one."""
    answers_additional: tuple[str, ...] = ()
    title: str = ""
    position: int | None = None
    """Number of the paragraph under its title."""


def parse_qa_rows(card: Card, data: RawTable, capitalise: bool = False) -> list[QARow]:
    """Parse the usable rows in file order.

    `capitalise` raises the first letter of every answer, as CaMeLS and MAC do for SQuAD and
    ArchivalQA.
    """
    data = _with_texts_of_files(card, data)
    texts, seen = _load_companion_texts(card, data), Counter[str]()

    def row_of(raw: RawRow) -> QARow | str:
        cells = {field: raw.cell(names) for field, names in card.columns.items()}
        question = _text("question", _require(card, raw, "question")).strip()
        answers = parse_answers(_require(card, raw, "answers"), card.source.answers)
        key, title = _to_label(cells.get("text_key")), _to_label(cells.get("title"))
        text = _text("text", _require(card, raw, "text")) if texts is None else texts.get(key, "")
        if not text.strip():
            return "no text" if texts is None else "no article"
        if not question or not answers:
            return "no question" if not question else "no answer"
        position: Any = cells.get("position")
        article, _, number = key.rpartition("_")
        if texts is not None and article and "title" in card.columns and number.isdecimal():
            title, position = title or article, number if position is None else position
        return QARow(
            id=make_unique(_to_label(cells.get("id")) or fingerprint(text, question), seen),
            text=text,
            question=question,
            answers=tuple(answer[:1].upper() + answer[1:] for answer in answers)
            if capitalise
            else answers,
            answers_additional=parse_answers(cells.get("answers_additional"), "single"),
            title=title,
            position=int(float(position)) if _to_label(position) else None,
        )

    return parse_table(data, row_of)


def _with_texts_of_files(card: Card, data: RawTable) -> RawTable:
    """Return the rows, with texts for those that name a text file in a column `file` instead.

    Paths are relative to the folder of the table, and inside it: a table of others cannot read
    private files.
    """
    if data.folder is None:
        return data
    names, folder = card.columns["text"], data.folder.resolve()
    text_columns = {*names, *card.columns.get("text_key", ())}

    @cache
    def read(name: str) -> str:
        path = (folder / name).resolve()
        if not path.is_relative_to(folder) or not path.is_file():
            raise ValueError(f"{FILE_COLUMN} {name!r} is not a file in {folder}")
        return read_document(path)

    rows = []
    for row in data.rows:
        if FILE_COLUMN in row.values and text_columns.isdisjoint(row.values):
            with report_row_errors(row.location):
                text = read(row.text(FILE_COLUMN))
            row = row._replace(values={**row.values, names[0]: text})
        rows.append(row)
    return replace(data, rows=rows)


def _text(field: str, cell: object) -> str:
    return "" if cell is None else require_text(field, cell)


def _require(card: Card, raw: RawRow, field: str) -> object:
    hint = f"Rename the column, or add it to columns.{field} of your own card."
    if field == "text" and card.source.hub is None:
        hint += " For other files use `ttabench ask --questions FILE --context TEXT`."
    return raw.require(card.columns[field], hint)


def _load_companion_texts(card: Card, data: RawTable) -> dict[str, str] | None:
    """Load texts by reference if the rows do not contain them, as the columns of the first row
    show.
    """
    first = RawRow(data.location, data.rows[0].values)
    for field in ("question", "answers"):
        _require(card, first, field)
    names, companion = card.columns.get("text_key", ()), card.source.articles
    if first.values.keys().isdisjoint(names) or not first.values.keys().isdisjoint(
        card.columns["text"]
    ):
        _require(card, first, "text")
        return None
    if (
        companion is None
        or data.folder is None
        or not (files := find_split_files(Split(files=companion.files), [data.folder])[0])
    ):
        place = (
            f" Add {companion.files[0]}.csv to its folder, "
            f"with columns {companion.key[0]}, {companion.text[0]}."
            if companion
            else ""
        )
        raise UserError(f"{data.location} has questions without texts.", card.source.how + place)
    texts = {}
    for path in files:
        for row in read_rows(path):
            with report_row_errors(row.location):
                texts[str(row.require(companion.key))] = row.text(*companion.text)
    return texts


def _to_label(value: object) -> str:
    """Return an id or title, text or number, as text."""
    return "" if value is None else str(value).strip()


def parse_answers(value: object, form: str | None = "single") -> tuple[str, ...]:
    """Parse answers of any published shape: stripped, without blanks and repeats; see the module's
    examples.
    """
    cell = value.strip() if isinstance(value, str) else ""
    if cell and (form == "literal" or (form == "single" and LIST_LITERAL.fullmatch(cell))):
        value = _parse_literal(cell)
        # raises for half of a surrogate pair
        json.dumps(value, ensure_ascii=False, default=str).encode("utf-8")
    if isinstance(value, dict):
        value = value.get("text", value)
    if isinstance(value, str | int | float):
        value = value.split("\\") if isinstance(value, str) and form == "joined" else [value]
    if not isinstance(value, list | tuple | None):
        raise ValueError(f"answers must be a list of texts, got {short_repr(value)}")
    texts = dict[str, None]()
    for answer in value or ():
        if isinstance(answer, dict):
            answer = answer.get("text", answer)
        if type(answer) in (int, float) and isfinite(answer):
            answer = str(answer).removesuffix(".0")
        if text := require_text("an answer", "" if answer is None else answer).strip():
            texts[text] = None
    return tuple(texts)


def _parse_literal(cell: str) -> object:
    """Parse a cell that is JSON or a Python literal, in which pandas writes `array([...])` for a
    list.
    """
    fault = f"the answers must be a Python dict or list, got {short_repr(cell)}"
    if len(cell) > MAX_LITERAL_CHARS or cell[:1] not in ("{", "["):
        raise ValueError(fault)
    with suppress(ValueError):
        return json.loads(cell)
    if MISSING_COMMA.search(cell):
        raise ValueError(f"the answers have no commas between them: {short_repr(cell)}")
    try:
        # runs no code; the parser's memory grows with the length
        return ast.literal_eval(NUMPY_ARRAY.sub(r"\1", cell))
    except (ValueError, SyntaxError):
        raise ValueError(fault) from None


# --- questions of the user's own ------------------------------------------------------------------


class UserQuestion(NamedTuple):
    """A question, and its right answers if they are known."""

    key: str
    question: str
    answers: tuple[str, ...] = ()
    """Shortest first, as in tasks."""


def questions_of_texts(texts: Sequence[str]) -> list[UserQuestion]:
    """Return typed questions, numbered."""
    if not all(text.strip() for text in texts):
        raise UserError(
            "The question is empty.", 'Use quotation marks: ttabench ask "Who wrote it?"'
        )
    return [
        UserQuestion(key=str(number), question=text.strip())
        for number, text in enumerate(texts, start=1)
    ]


def read_questions(path: Path) -> list[UserQuestion]:
    """Read the questions of a file, in order: one per line (.txt), or a table with a column named
    as on card `qa`.
    """
    if path.name.endswith((".txt", ".txt.gz")):
        with open_lines(path) as (lines, position):
            questions = [
                UserQuestion(key=str(position.line), question=line.strip())
                for line in lines
                if line.strip()
            ]
    else:
        parse = partial(_parse_question, load_card("qa").columns)
        questions = parse_table(read_table(path), parse, require_any=False)
    if not questions:
        raise UserError(f"{path} has no question.", "Use a file with questions.")
    return questions


def _parse_question(columns: Mapping[str, tuple[str, ...]], row: RawRow) -> UserQuestion:
    question = row.require(columns["question"], "Rename the column of the questions.")
    if not isinstance(question, str) or not question.strip():
        raise ValueError("the question is empty or not text")
    answers = sorted(parse_answers(row.cell(columns["answers"])), key=len)
    return UserQuestion(key=str(row.number + 1), question=question.strip(), answers=tuple(answers))
