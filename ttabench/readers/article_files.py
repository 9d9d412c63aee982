"""Texts that questions only refer to: a companion table beside them, or a folder of articles that a user has.

    articles.csv                              a column of keys and one of texts, named on the card
    nyt_corpus/data/1987/01/01/0000042.xml    NITF, as the New York Times Annotated Corpus (LDC2008T19) has it
    articles/42.txt                           text, with blank lines between paragraphs, or else one a line

    paragraphs(folder, ["42_0", "42_7"])      {"42_0": Paragraph("The library reopened on Monday.", "1987-01-01", ...)}

Of a folder only files that are asked for are opened. What is before the last "_" of a key is the article, zeros in
front aside; behind it stands the number of the paragraph, from 0 on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from ttabench.core.bounds import LONGEST_TEXT
from ttabench.core.checked_file import read_text, reading
from ttabench.core.errors import UserError
from ttabench.readers.cards import Card, Split
from ttabench.readers.formats import malformed, rows
from ttabench.readers.layouts import find
from ttabench.readers.sources import Table

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
    beside = find(Split(files=wanted.files), [folder]) if wanted is not None and folder is not None else None
    if wanted is None or folder is None or beside is None:
        there = [] if wanted is None or folder is None else [folder / name for name in wanted.folders]
        if held := next((place for place in there if place.is_dir()), None):
            return paragraphs(held, keys)
        columns = " or ".join(repr(name) for name in card.columns["text"])
        hint = card.source.how
        if wanted is not None:
            hint += f" Put them beside it as {wanted.files[0]}.csv with columns {wanted.key[0]}, {wanted.text[0]}"
            hint += f", or as a folder {wanted.folders[0]} of one file each." if wanted.folders else "."
        raise UserError(f"{data.where} holds questions without texts (no column {columns}).", hint)
    texts: dict[str, Paragraph] = {}
    for row in (row for path in beside.paths for row in rows(path)):
        key, text = row.cell(wanted.key), row.cell(wanted.text)
        if not isinstance(key, str | int) or not isinstance(text, str):
            raise malformed(row.place, f"needs a column {wanted.key[0]!r} and a text column {wanted.text[0]!r}")
        article, number = split_key(str(key)) or ("", None)
        texts[str(key)] = Paragraph(text, article=article, number=number)
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
