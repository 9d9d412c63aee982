"""Which documents of a question-answering source are read, in which order: the protocol settings and `arrange`.

    arrange(rows, Settings(documents=16, order="random"), seed=0)   # 16 documents, each with its questions

With one seed, fewer documents are the first of more documents, so a curve over their number nests.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from ttabench.core.errors import UserError
from ttabench.readers.description import fingerprint
from ttabench.readers.protocol_options import ProtocolSettings, TokenCount
from ttabench.readers.qa_rows import QARow


def _all_is_none(value: object) -> object:
    return None if value == "all" else value


class Settings(ProtocolSettings):
    """The protocol part of a card of this reader, and what `--task-set` may change."""

    kind: Literal["stream", "grouped", "retention"] = "stream"
    documents: Annotated[int | None, Field(gt=0), BeforeValidator(_all_is_none)] = 1665
    """How many documents (rows, with downsample=rows) are read; "all" for every one."""
    articles: Annotated[str, Field(pattern=r"^(\d+:\d+)?$")] = ""
    """Only the documents of these titles, counted from 0 as the source has them: 0:12 for the first twelve."""
    order: Literal["random", "chronological", "titles", "file"] = "random"
    """titles: titles in random order, the paragraphs under a title in theirs."""
    downsample: Literal["contexts", "rows"] = "contexts"
    """contexts: that many texts with all their questions (CaMeLS); rows: that many questions with their texts (MAC)."""
    dedupe: bool = True
    """Observe a text once however many questions it has; false observes it once a question, as released code does."""
    capitalise: bool = False
    """Raise the first letter of answers."""
    prompt: str = "bare"
    """Name of a question template of the card."""
    examples: Annotated[int, Field(ge=0)] = 0
    """Worked examples of the card in front of every question, in the words of its template."""
    max_new_tokens: TokenCount = 16
    window: bool = False
    """The documents stand in the window in front of every question, whatever the method is: none adapts to them."""
    group_tokens: TokenCount = 1024
    """Grouped: tokens a group holds, on average."""
    probe: Annotated[int, Field(gt=0)] = 200
    """Retention: the first documents, whose questions are asked again and again."""
    every: Annotated[int, Field(gt=0)] = 200
    """Retention: documents between two passes over the questions."""
    document_tokens: TokenCount = 512
    """The papers' limit for whoever reads a document; texts are passed on whole."""
    question_tokens: TokenCount = 128
    answer_tokens: TokenCount = 24


@dataclass(frozen=True, kw_only=True)
class Document:
    """A text to observe and the questions about it."""

    key: str
    text: str
    rows: tuple[QARow, ...]


def of_articles(rows: Sequence[QARow], wanted: str) -> list[QARow]:
    """The rows whose title is among the wanted ones, see `Settings.articles`.

    Raises:
        UserError: a row has no title, or no title is left.
    """
    if not wanted:
        return list(rows)
    untitled = next((row.id for row in rows if not row.title), None)
    if untitled is not None:
        raise UserError(f"articles={wanted} needs titles: question {untitled} has none.", "Leave articles out.")
    titles = list(dict.fromkeys(row.title for row in rows))
    first, last = map(int, wanted.split(":"))
    kept = set(titles[first:last])
    if not kept:
        raise UserError(f"articles={wanted} leaves none of {len(titles)} titles.", "Give first:last, counted from 0.")
    return [row for row in rows if row.title in kept]


def arrange(rows: Sequence[QARow], settings: Settings, seed: int) -> list[Document]:
    """The documents to read, in reading order, each with its questions in file order.

    Raises:
        UserError: the order needs timestamps or titles that the source does not have.
    """
    by_rows = settings.downsample == "rows"
    units = _ordered(documents_of(rows, settings.dedupe and not by_rows), settings.order, random.Random(seed))
    kept = units[: settings.documents]
    if by_rows and settings.dedupe:
        return documents_of([row for unit in kept for row in unit.rows], True)
    return kept


def documents_of(rows: Sequence[QARow], dedupe: bool) -> list[Document]:
    """One document a text (`dedupe`) or a row, by first appearance; keys are hashes of the text, repeats end in #2."""
    by_text: dict[str, list[QARow]] = {}
    for row in rows:
        by_text.setdefault(row.text, []).append(row)
    if dedupe:
        return [Document(key=fingerprint(text), text=text, rows=tuple(same)) for text, same in by_text.items()]
    keys: dict[str, str] = {}
    for text, same in by_text.items():
        plain = fingerprint(text)
        keys.update({row.id: plain if number == 1 else f"{plain}#{number}" for number, row in enumerate(same, 1)})
    return [Document(key=keys[row.id], text=row.text, rows=(row,)) for row in rows]


def _ordered(units: list[Document], order: str, source: random.Random) -> list[Document]:
    if order == "random":
        return source.sample(units, len(units))
    if order == "chronological":
        return sorted(units, key=_moment)
    if order == "titles":
        titles: dict[str, list[Document]] = {}
        for unit in units:
            if not unit.rows[0].title:
                raise UserError(f"order=titles needs titles: question {unit.rows[0].id} has none.", "Use order=random.")
            titles.setdefault(unit.rows[0].title, []).append(unit)
        shuffled = source.sample(list(titles), len(titles))
        return [unit for title in shuffled for unit in sorted(titles[title], key=_paragraph)]
    return units


def _moment(unit: Document) -> float:
    moments = [row.timestamp for row in unit.rows if row.timestamp is not None]
    if not moments:
        raise UserError(f"order=chronological needs dates: question {unit.rows[0].id} has none.", "Use order=random.")
    return min(moments)


def _paragraph(unit: Document) -> int:
    return unit.rows[0].position or 0
