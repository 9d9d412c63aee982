"""Users of LaMP and their profiles, as published.

LaMP_2/dev_questions.json     [{"id": "200", "input": "Which tag ...? ... description: A council bans sleep.",
                                "profile": [{"id": "1000", "tag": "comedy", "description": "..."}, ...]}, ...]
LaMP_2/dev_outputs.json       {"task": "LaMP_2", "golds": [{"id": "200", "output": "dystopia"}, ...]}
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ttabench.core.errors import UserError
from ttabench.readers.cards import Card, Profile, Scalar
from ttabench.readers.faults import brief
from ttabench.readers.formats import RawRow, malformed, parsing, rows, stem, text_of
from ttabench.readers.layouts import find
from ttabench.readers.sources import Request, Table, generated, table, twin_rows

_FIELD = re.compile(r"\{(\w+)\}")
_ANOTHER = "It may be of another sub-task (--task-set task=NAME)."
_TENTH = 10
"""One row of so many of the published training rows validates."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One entry of a profile."""

    id: str
    text: str
    about: str = ""
    """The query about it; empty where it could not be asked."""
    answer: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class User:
    """A user: a query and a profile."""

    id: str
    instruction: str
    input: str
    output: str
    options: tuple[str, ...]
    """Empty where the answer is written."""
    entries: tuple[Entry, ...]


def twin_users(card: Card, split: str, seed: int, arguments: Mapping[str, Scalar]) -> list[User]:
    """Users of the miniature world that stands for a split, of the first sub-task."""
    questions, outputs = generated(card, tuple, split=card.splits[split].twin, seed=seed, **arguments)
    asked, golds = (twin_rows(card, made, arguments) for made in (questions, outputs["golds"]))
    return _users(next(iter(card.profiles.values())), asked.rows, golds.rows, asked.where)[0]


def users(card: Card, part: Profile, request: Request) -> tuple[list[User], dict[str, int], Table]:
    """(users in file order, how many rows were dropped by reason, the table of their questions)."""
    folders = (*part.folders, *(f"{top}/{folder}" for top in card.source.folders for folder in part.folders))
    source = card.source.model_copy(update={"folders": folders})
    held = table(card.model_copy(update={"source": source}), request)
    golds = rows(_beside(Path(held.where), card))
    kept, validates = held.rows, request.split == "validation"
    if request.split != "test":  # training rows and those that validate are of one file
        kept = [row for number, row in enumerate(kept, 1) if (number % _TENTH == 0) == validates]
    if not kept:
        raise UserError(f"{held.where} has no row for split {request.split!r}: every tenth one.", "Give more rows.")
    return *_users(part, kept, golds, held.where), held


def _beside(questions: Path, card: Card) -> Path:
    """The file of right answers."""
    wanted = stem(questions).replace("questions", "outputs")
    split = card.splits["test"].model_copy(update={"files": (wanted,)})
    files = find(split, [questions.parent]) if wanted != stem(questions) else None
    if files is None:
        hint = "Copy it there; the outputs of LaMP's own test rows are not published: ask the dev rows."
        raise UserError(f"{questions} has no right answers beside it ({wanted}.json).", hint)
    return files.paths[0]


def _by_id(raw_rows: Iterable[RawRow]) -> dict[str, RawRow]:
    by_id: dict[str, RawRow] = {}
    for row in raw_rows:
        key = _cell(row, "id")
        if not key or key in by_id:
            raise malformed(row.place, f"the id {brief(key)} stands twice" if key else "its id is empty")
        by_id[key] = row
    return by_id


def _users(
    part: Profile, asked: Sequence[RawRow], golds: Iterable[RawRow], where: str
) -> tuple[list[User], dict[str, int]]:
    answers, made = _by_id(golds), []
    for key, row in _by_id(asked).items():
        with parsing(row.place):
            if key not in answers:
                raise ValueError(f"the id {brief(key)} has no right answer in the file of outputs")
            made.append(_user(part, row, key, answers[key]))
    if not any(user.entries for user in made):
        raise UserError(f"{where}: no user has a profile.", "Give LaMP's own files.")
    kept = [user for user in made if user.entries and user.input and user.output]
    unused = Counter({"user without a profile, query or answer": len(made) - len(kept)})
    return kept, dict(+unused)


def _user(part: Profile, raw: RawRow, key: str, gold: RawRow) -> User:
    asked, output = _cell(raw, "input"), _cell(gold, "output")
    head, marker, given = asked.partition(part.marker)
    if not marker:
        raise UserError(f"{raw.place}: input {brief(asked)} does not hold {part.marker!r}.", _ANOTHER)
    options = _options(part, raw)
    if options and output not in options:
        raise malformed(gold.place, f"output {brief(output)} is none of the options {brief(', '.join(options), 200)}")
    profile = raw.values.get("profile")
    if not isinstance(profile, list):
        raise malformed(raw.place, f"profile is {brief(profile)}, no list")
    entries = [_entry(part, f"{raw.place} profile[{i}]", values, i) for i, values in enumerate(profile)]
    user = User(id=key, instruction=head + marker, input=given.strip(), output=output, options=options, entries=())
    return replace(user, entries=tuple(entry for entry in entries if not _told(entry, user)))


def _options(part: Profile, raw: RawRow) -> tuple[str, ...]:
    """Those that a row has itself, as rows of the miniature world do, or else those of its sub-task."""
    if not part.options or "options" not in raw.values:
        return part.options
    listed = raw.values["options"]
    if not isinstance(listed, list) or not listed:
        raise malformed(raw.place, f"options are {brief(listed)}, no list of options")
    return tuple(dict.fromkeys(text_of(raw.place, "an option", option).strip() for option in listed))


def _told(entry: Entry, user: User) -> bool:
    """Whether an entry is the very thing that is asked about."""
    return entry.about == user.input or (not entry.about and entry.text in (f'"{user.input}"', ""))


def _entry(part: Profile, place: str, values: dict[str, object], number: int) -> Entry:
    raw = RawRow(place, values)
    text = _FIELD.sub(lambda match: _cell(raw, match[1]), part.entry)
    about, answer = (_cell(raw, name) if name else "" for name in (part.text, part.output))
    return Entry(id=_cell(raw, "id") if "id" in values else str(number), text=text, about=about, answer=answer)


def _cell(raw: RawRow, name: str) -> str:
    """A cell as text without blanks around it; scores may be numbers."""
    cell = raw.needed([name], _ANOTHER)
    return text_of(raw.place, name, str(cell) if isinstance(cell, int) else cell).strip()
