"""A folder of articles that a user has, one file each: paragraphs by the number of the article and their place in it.

    nyt_corpus/data/1987/01/01/0000042.xml    NITF, as the New York Times Annotated Corpus (LDC2008T19) has it
    articles/42.txt                           text, with blank lines between paragraphs, or else one a line

    paragraphs(folder, ["42_0", "42_7"])      {"42_0": Paragraph("The library reopened on Monday.", "1987-01-01", ...)}

Only files that are asked for are opened. What is before the last "_" of a key is the article, zeros in front aside;
behind it stands the number of the paragraph, from 0 on.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from ttabench.core.bounds import LONGEST_TEXT
from ttabench.core.checked_file import Unreadable, plain
from ttabench.core.errors import UserError
from ttabench.readers.raw import proper

ENDINGS = (".xml", ".txt")
_DAY = re.compile(r"(?:^|/)((?:19|20)\d\d)/(\d\d)/(\d\d)/")
_PUBLISHED = re.compile(r"^((?:19|20)\d\d)(\d\d)(\d\d)")


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A paragraph of an article."""

    text: str
    day: str = ""
    """Of the article, as 1987-01-31; empty where neither the file nor its folders say."""
    article: str = ""
    number: int | None = None


def split_key(key: str) -> tuple[str, int] | None:
    """(article, number of the paragraph); None where a key names none."""
    article, _, number = key.rpartition("_")
    return (article, int(number)) if article and number.isascii() and number.isdigit() and len(number) < 9 else None


def paragraphs(folder: Path, keys: Iterable[str]) -> dict[str, Paragraph]:
    """The paragraphs that these keys name, as far as they are there.

    Raises:
        UserError: no article is there, a file that is wanted stands twice, or cannot be read.
    """
    wanted: dict[str, list[tuple[str, int]]] = {}
    for key in dict.fromkeys(keys):
        place = split_key(key)
        if place is not None:
            wanted.setdefault(_bare(place[0]), []).append((key, place[1]))
    by_article = {}
    for article, file in _files(folder, wanted).items():
        texts, day = _of_xml(file) if file.suffix == ".xml" else (_of_text(file), "")
        day = day or _day_of(file, folder)
        for key, number in wanted[article]:
            if number < len(texts):
                by_article[key] = Paragraph(texts[number], day, article, number)
    return by_article


def _bare(name: str) -> str:
    return name.lstrip("0") or "0"


def _files(folder: Path, wanted: Mapping[str, object]) -> dict[str, Path]:
    """The file of each of these articles, wherever in the folder it lies."""
    files: dict[str, Path] = {}
    any_there = packed = False
    for place, _, names in os.walk(folder):
        for name in names:
            stem, dot, ending = name.rpartition(".")
            ending = dot + ending
            packed |= ending in (".tgz", ".gz", ".tar", ".zip")
            if ending not in ENDINGS:
                continue
            any_there, article = True, _bare(stem)
            if article not in wanted:
                continue
            file = Path(place, name)
            if article in files:
                raise UserError(f"The article {article} stands twice: {files[article]} and {file}.", "Remove one.")
            files[article] = file
    if not any_there:
        hint = "Unpack its archives." if packed else "Put one file an article there, 1234567.xml or 1234567.txt."
        raise UserError(f"{folder} holds no article ({' or '.join(ENDINGS)}).", hint)
    return files


def _day_of(file: Path, folder: Path) -> str:
    match = _DAY.search(file.relative_to(folder).as_posix())
    return "-".join(match.groups()) if match else ""


def _content(file: Path) -> bytes:
    try:
        return plain(file, 4 * LONGEST_TEXT).read_bytes()
    except (OSError, Unreadable) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"Cannot read {file} ({reason}).", "Check the path and its rights.") from None


def _of_text(file: Path) -> list[str]:
    try:
        text = _content(file).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{file} byte {error.start}: not UTF-8 text.", "Save the file as UTF-8.") from None
    parts = re.split(r"\n[^\S\n]*\n", text.replace("\r\n", "\n"))
    parts = [part for part in parts if part.strip()]
    return _clean(file, parts if len(parts) > 1 else text.splitlines())


def _of_xml(file: Path) -> tuple[list[str], str]:
    """(paragraphs of the full text, day of publication)."""
    content = _content(file)
    if b"<!ENTITY" in content:
        raise UserError(f"{file} defines entities of its own, which are not read.", "Give the published file.")
    try:
        root = ElementTree.fromstring(content)  # which fetches nothing
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise UserError(f"{file}: not valid XML ({error}).", "Unpack it again.") from None
    blocks = [block for block in root.iter("block") if block.get("class") == "full_text"]
    texts = ["".join(element.itertext()) for block in blocks for element in block.iter("p")]
    dates = (element.get("date.publication", "") for element in root.iter("pubdata"))
    match = next((published for date in dates if (published := _PUBLISHED.match(date))), None)
    return _clean(file, texts), "-".join(match.groups()) if match else ""


def _clean(file: Path, texts: Iterable[str]) -> list[str]:
    """Blanks and line breaks as one blank; what is empty is no paragraph."""
    lines = (" ".join(text.split()) for text in texts)
    return [proper(str(file), "a paragraph", text) for text in lines if text]
