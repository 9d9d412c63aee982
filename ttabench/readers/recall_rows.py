"""Texts with the facts that they tell, and where: rows of any table, of the hub or of the miniature world.

    {"title": "A book", "text": "So Ada Voss lives in Selby. It rained.\\n",
     "facts": [{"key": "Ada Voss/home", "told": 27, "question": "Where does Ada Voss live?",
                "begins": "So the home of Ada Voss is in", "options": ["Selby", "Yarm"], "answer": "Selby"}]}

`told` is the number of characters up to the end of what tells the fact. A fact that is told several times stands there
as often.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from ttabench.readers.cards import Card
from ttabench.readers.faults import brief
from ttabench.readers.raw import RawRow, malformed, proper
from ttabench.readers.sources import Request, table


class Fact(BaseModel):
    """One telling of a fact."""

    model_config = ConfigDict(frozen=True, strict=True)

    key: str
    """The same wherever the same fact is told."""
    told: int = Field(gt=0)
    """Characters of the text up to the end of what tells it."""
    question: str
    begins: str = ""
    """The beginning of a sentence that the answer ends."""
    options: tuple[str, ...] = Field(min_length=2)
    answer: str


@dataclass(frozen=True, kw_only=True)
class Story:
    """A text and the facts it tells, in the order of the text."""

    id: str
    text: str
    facts: tuple[Fact, ...]


_FACTS = TypeAdapter(list[Fact])


def stories(card: Card, request: Request) -> tuple[list[Story], str, tuple[str, ...]]:
    """(texts of a file, a folder or the hub, label of the source, notes).

    Raises:
        UserError: the source is not there, or a row lacks a text or facts.
    """
    rows = table(card, request)
    return of_rows(card, rows.rows), rows.label, rows.notes


def of_rows(card: Card, rows: Sequence[RawRow]) -> list[Story]:
    """The texts of these rows; those of one title are told apart by their number.

    Raises:
        UserError: a row lacks a text or facts, or tells a fact where its text has ended.
    """
    made: list[Story] = []
    for number, row in enumerate(rows):
        text, facts = _text(card, row), _facts(card, row)
        for fact in facts:
            if fact.told > len(text):
                raise malformed(row.place, f"{fact.key!r} is told at {fact.told} of {len(text)} characters")
            if fact.answer not in fact.options:
                raise malformed(row.place, f"{fact.key!r}: its answer {brief(fact.answer)} is none of its options")
        title = proper(row.place, "its title", str(_cell(card, "title", row.values) or ""))
        ordered = tuple(sorted(facts, key=lambda fact: fact.told))
        made.append(Story(id=f"{number} {title}".strip(), text=text, facts=ordered))
    return made


def _text(card: Card, row: RawRow) -> str:
    text = _cell(card, "text", row.values)
    if not isinstance(text, str) or not text.strip():
        raise malformed(row.place, f"its text is {brief(text)}, and not a text to read")
    return proper(row.place, "its text", text)


def _facts(card: Card, row: RawRow) -> list[Fact]:
    given = _cell(card, "facts", row.values)
    listed = (
        [dict(given_fact) if isinstance(given_fact, Mapping) else given_fact for given_fact in given]
        if isinstance(given, list)
        else given
    )
    try:
        facts = _FACTS.validate_json(_FACTS_JSON.dump_json(listed), strict=True)
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(map(str, fault["loc"])) or "facts"
        raise malformed(row.place, f"facts: {where}: {fault['msg']}, not {brief(fault['input'])}") from None
    for fact in facts:
        for words in (fact.key, fact.question, fact.begins, *fact.options):
            proper(row.place, "a fact", words)
    return facts


_FACTS_JSON: TypeAdapter[object] = TypeAdapter(object)
"""By way of JSON, strict mode takes lists for tuples."""


def _cell(card: Card, field: str, values: Mapping[str, object]) -> object:
    return next((values[column] for column in card.columns.get(field, ()) if column in values), None)
