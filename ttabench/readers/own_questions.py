"""Questions of the user's own, typed or in a file: a question a line (.txt), or a table with a column of them.

    own_questions(Path("mine.jsonl"))    [OwnQuestion(key="1", question="Who wrote it?", answers=("Ada Voss",)), ...]

Tables are those of `formats` (.jsonl, .json, .csv, .tsv, .parquet); their columns may have the names on the card `qa`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ttabench.core.errors import UserError
from ttabench.readers.cards import load_card
from ttabench.readers.formats import RawRow, malformed, opened, rows
from ttabench.readers.qa_rows import answers_of

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
    """The questions of a file, in order."""
    if path.name.endswith((LINES, f"{LINES}.gz")):
        with opened(path) as (lines, at):
            questions = [OwnQuestion(key=str(at.line), question=line.strip()) for line in lines if line.strip()]
    else:
        columns = load_card(CARD).columns
        questions = [_question(row, number, columns) for number, row in enumerate(rows(path), start=1)]
    if not questions:
        raise UserError(f"{path} holds no question.", "Give a file with questions.")
    return questions


def _question(row: RawRow, number: int, columns: Mapping[str, tuple[str, ...]]) -> OwnQuestion:
    question = row.needed(columns["question"], "Rename the column of the questions.")
    if not isinstance(question, str) or not question.strip():
        raise malformed(row.place, "the question is empty or no text")
    answers = sorted(answers_of(row.place, row.cell(columns["answers"])), key=len)
    return OwnQuestion(key=str(number), question=question.strip(), answers=tuple(answers))
