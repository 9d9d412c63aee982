"""Questions about texts, of any published layout.

CaMeLS/MAC csv   {"text": ..., "question": ..., "answers": "212\\\\212 passengers"}    one backslash between answers
SQuAD            {"context": ..., "question": ..., "answers": {"text": [...], "answer_start": [...]}}
ArchivalQA csv   {"ans_paragraph": ..., "question": ..., "answer": "Monday"}
StreamingQA      {"question": ..., "answers": [...], "evidence_id": ...}, texts in a companion file

Texts that questions only refer to are in a companion table beside them, or in a folder of articles that a user has:

articles.csv                              a column of keys and one of texts, named on the card
nyt_corpus/data/1987/01/01/0000042.xml    NITF, as the New York Times Annotated Corpus (LDC2008T19) has it
articles/42.txt                           text, with blank lines between paragraphs, or else one a line

Of a folder only files that are asked for are opened. What is before the last "_" of a key is the article, zeros in
front aside; behind it stands the number of the paragraph, from 0 on: "42_7".
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from pydantic import TypeAdapter

from ttabench.core.bounds import LONGEST_TEXT
from ttabench.core.checked_file import read_text, reading
from ttabench.core.errors import UserError
from ttabench.readers.base import fingerprint, told_apart
from ttabench.readers.cards import Articles, Card, Split
from ttabench.readers.faults import brief
from ttabench.readers.formats import RawRow, malformed, rows, text_of
from ttabench.readers.sources import Table, find, usable

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
        if data.years is not None:
            if row.timestamp is None:
                return "its article says no date"
            first, last = data.years
            if not first <= datetime.fromtimestamp(row.timestamp, UTC).year <= last:
                return f"its article is not of {first} to {last}"
        answers = tuple(answer[:1].upper() + answer[1:] for answer in row.answers) if capitalise else row.answers
        return replace(row, id=told_apart(row.id, seen), answers=answers)

    return usable(data, row_of)


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


def _position(value: Any) -> int | None:
    return None if isinstance(value, str) and not value.strip() else math.trunc(float(value))


# --- texts that questions refer to ---------------------------------------------------------------------------------


_DAY = re.compile(r"(?:^|/)((?:19|20)\d\d)/(\d\d)/(\d\d)/")
_PUBLISHED = re.compile(r"^((?:19|20)\d\d)(\d\d)(\d\d)")


class Paragraph(NamedTuple):
    """A paragraph of an article."""

    text: str
    day: str = ""
    """Of the article, as 1987-01-31; empty where neither the file nor its folders say."""
    article: str = ""
    number: int | None = None


def articles(card: Card, data: Table, keys: Iterable[str]) -> dict[str, Paragraph]:
    """Texts by reference, from the companion beside the questions that the card's `source.articles` names; of a folder
    only those of these keys are opened.
    """
    wanted, folder = card.source.articles, data.folder
    there = list[Path]()
    if wanted is not None and folder is not None:
        there = [folder / name for name in wanted.folders if (folder / name).is_dir()]
        if beside := find(Split(files=wanted.files), [folder])[0]:
            return _of_table(wanted, (row for path in beside for row in rows(path)))
    if there:
        return paragraphs(there[0], keys)
    columns = " or ".join(repr(name) for name in card.columns["text"])
    hint = card.source.how
    if wanted is not None:
        hint += f" Put them beside it as {wanted.files[0]}.csv with columns {wanted.key[0]}, {wanted.text[0]}"
        hint += f", or as a folder {wanted.folders[0]} of one file each." if wanted.folders else "."
    raise UserError(f"{data.where} holds questions without texts (no column {columns}).", hint)


def _of_table(wanted: Articles, raw_rows: Iterable[RawRow]) -> dict[str, Paragraph]:
    texts = {}
    for row in raw_rows:
        key, text = str(row.needed(wanted.key)), row.needed(wanted.text)
        article, number = split_key(key) or ("", None)
        texts[key] = Paragraph(text_of(row.place, wanted.text[0], text), article=article, number=number)
    return texts


def split_key(key: str) -> tuple[str, int] | None:
    """(article, number of the paragraph); None where a key names none."""
    article, _, number = key.rpartition("_")
    return (article, int(number)) if article and re.fullmatch("[0-9]{1,8}", number) else None


def paragraphs(folder: Path, keys: Iterable[str]) -> dict[str, Paragraph]:
    """The paragraphs that these keys name, as far as they are there."""
    wanted: dict[str, list[tuple[str, int]]] = {}
    for key in dict.fromkeys(keys):
        if place := split_key(key):
            wanted.setdefault(_bare(place[0]), []).append((key, place[1]))
    by_key = {}
    for article, file in _files(folder, wanted).items():
        texts, day = _of_xml(file) if file.suffix == ".xml" else (_of_text(file), "")
        match = _DAY.search(file.relative_to(folder).as_posix())
        day = day or ("-".join(match.groups()) if match else "")
        for key, number in wanted[article]:
            if number < len(texts):
                by_key[key] = Paragraph(texts[number], day, article, number)
    return by_key


def _bare(name: str) -> str:
    return name.lstrip("0") or "0"


def _files(folder: Path, wanted: Mapping[str, object]) -> dict[str, Path]:
    """The file of each of these articles, wherever in the folder it lies."""
    every = [file for file in folder.rglob("*") if file.suffix in (".xml", ".txt")]
    if not every:
        hint = "Put one file an article there, 1234567.xml or 1234567.txt."
        raise UserError(f"{folder} holds no article (.xml or .txt).", hint)
    files: dict[str, Path] = {}
    for file in every:
        article = _bare(file.stem)
        if article in files and article in wanted:
            raise UserError(f"The article {article} stands twice: {files[article]} and {file}.", "Remove one.")
        files[article] = file
    return {article: file for article, file in files.items() if article in wanted}


def _of_text(file: Path) -> list[str]:
    text = read_text(file, 4 * LONGEST_TEXT).removeprefix("\ufeff")
    parts = [part for part in re.split(r"\n[^\S\n]*\n", text.replace("\r\n", "\n")) if part.strip()]
    return _clean(parts if len(parts) > 1 else text.splitlines())


def _of_xml(file: Path) -> tuple[list[str], str]:
    """(paragraphs of the full text, day of publication)."""
    with reading(file, most=4 * LONGEST_TEXT):
        root = ElementTree.fromstring(file.read_bytes())  # which fetches nothing
    blocks = [block for block in root.iter("block") if block.get("class") == "full_text"]
    texts = ["".join(element.itertext()) for block in blocks for element in block.iter("p")]
    dates = (_PUBLISHED.match(element.get("date.publication", "")) for element in root.iter("pubdata"))
    match = next(filter(None, dates), None)
    return _clean(texts), "-".join(match.groups()) if match else ""


def _clean(texts: Iterable[str]) -> list[str]:
    """Blanks and line breaks as one blank; what is empty is no paragraph."""
    return [line for text in texts if (line := " ".join(text.split()))]
