"""Questions of the user's own, typed or in a file: a question a line (.txt), or a table with a column of them.

    own_questions(Path("mine.jsonl"))    [OwnQuestion(key="1", question="Who wrote it?", answers=("Ada Voss",)), ...]

Tables are those of `formats` (.jsonl, .json, .csv, .tsv, .parquet); their columns may have the names on the card `qa`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ttabench.core.errors import UserError
from ttabench.readers.cards import load_card
from ttabench.readers.faults import brief
from ttabench.readers.formats import READABLE, readable, rows
from ttabench.readers.qa_rows import answers_of
from ttabench.readers.raw import RawRow, malformed, opened, proper

CARD = "qa"
"""The task of one's own texts, questions and answers."""
LINES = ".txt"


@dataclass(frozen=True, kw_only=True)
class OwnQuestion:
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
    """The questions of a file, in order.

    Raises:
        UserError: the file cannot be read, holds no question, or lacks a column of them; a row is malformed.
    """
    if not path.is_file():
        raise UserError(f"There is no file {path}.", "Check the path of --questions.")
    if path.name.endswith((LINES, f"{LINES}.gz")):
        questions = list(_lines(path))
    elif readable(path):
        columns = load_card(CARD).columns
        questions = [_question(row, number, columns) for number, row in enumerate(rows(path), start=1)]
    else:
        known = ", ".join([LINES, *READABLE])
        raise UserError(f"Cannot tell the format of {path}.", f"Its name must end in {known} (.gz too).")
    if not questions:
        raise UserError(f"{path} holds no question.", "Give a file with questions.")
    return questions


def _lines(path: Path) -> Iterator[OwnQuestion]:
    with opened(path) as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield OwnQuestion(
                    key=str(number), question=proper(f"{path} line {number}", "the question", line.strip())
                )


def _question(row: RawRow, number: int, columns: Mapping[str, tuple[str, ...]]) -> OwnQuestion:
    def cell(field: str) -> object:
        return next((row.values[name] for name in columns[field] if name in row.values), None)

    if not row.values.keys() & set(columns["question"]):
        wanted = " or ".join(map(repr, columns["question"]))
        has = brief(", ".join(map(str, row.values)), 160)
        raise UserError(f"{row.place}: no column {wanted}; it has {has}.", "Rename the column of the questions.")
    question = cell("question")
    if not isinstance(question, str) or not question.strip():
        raise malformed(row.place, "the question is empty or no text")
    answers = sorted(answers_of(row.place, cell("answers")), key=len)
    text = proper(row.place, "the question", question.strip())
    return OwnQuestion(key=str(number), question=text, answers=tuple(answers))
