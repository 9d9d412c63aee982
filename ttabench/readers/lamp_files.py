"""LaMP's files: the users of one sub-task, each with a query, its right answer and a profile of entries in words.

LaMP_2/dev_questions.json     [{"id": "200", "input": "Which tag ...? ... description: A council bans sleep.",
                                "profile": [{"id": "1000", "tag": "comedy", "description": "..."}, ...]}, ...]
LaMP_2/dev_outputs.json       {"task": "LaMP_2", "golds": [{"id": "200", "output": "dystopia"}, ...]}

users(card, part, request)    ([User(id="200", input="A council bans sleep.", output="dystopia", ...)], ...)
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ttabench.core.errors import UserError
from ttabench.readers.cards import Card, Profile, Scalar
from ttabench.readers.choice_shapes import text_of
from ttabench.readers.faults import brief
from ttabench.readers.formats import rows, stem
from ttabench.readers.generators import generated
from ttabench.readers.layouts import find
from ttabench.readers.raw import RawRow, malformed
from ttabench.readers.sources import Request, Table, table

_FIELD = re.compile(r"\{(\w+)\}")
_QUESTIONS, _OUTPUTS = "questions", "outputs"
_ANOTHER = "it may be of another sub-task (--task-set task=NAME)"
_TENTH = 10
"""One row of so many of the published training rows validates."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One entry of a profile."""

    id: str
    text: str
    """In the words of its sub-task."""
    about: str = ""
    """The query about it; empty where it could not be asked."""
    answer: str = ""
    """The answer to that."""


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


def twin_users(card: Card, part: Profile, place: tuple[str, int], arguments: Mapping[str, Scalar]) -> list[User]:
    """Users of the miniature world; `place` is its split there and its seed.

    Raises:
        UserError: the generator refuses its arguments, or they leave no users.
    """
    split, seed = place
    questions, outputs = generated(card, tuple, split=split, seed=seed, **arguments)
    if not questions:
        raise UserError(f"The twin of {card.name} gives no users with {dict(arguments)}.", "Change --task-set.")
    asked, golds = (
        [RawRow(f"mini {name} row {i}", row) for i, row in enumerate(content)]
        for name, content in ((_QUESTIONS, questions), (_OUTPUTS, outputs["golds"]))
    )
    return _users(part, asked, _answers(golds), f"the twin of {card.name}")[0]


def users(card: Card, part: Profile, request: Request) -> tuple[list[User], dict[str, int], Table]:
    """(users in file order, how many rows were dropped by reason, the table of their questions).

    Raises:
        UserError: nothing is there, questions have no outputs beside them, or a row cannot be read.
    """
    folders = (*part.folders, *(f"{top}/{folder}" for top in card.source.folders for folder in part.folders))
    source = card.source.model_copy(update={"folders": folders})
    raw_rows = table(card.model_copy(update={"source": source}), request)
    golds = _answers(rows(_beside(Path(raw_rows.where), card)))
    kept = [row for number, row in enumerate(raw_rows.rows) if _belongs(request.split, number)]
    if not kept:
        raise UserError(f"{raw_rows.where} has no row for split {request.split!r}: every tenth one.", "Give more rows.")
    made, dropped = _users(part, kept, golds, raw_rows.where)
    return made, dropped, raw_rows


def _belongs(split: str, number: int) -> bool:
    """Whether a row is of a split: training rows and those that validate are of one file."""
    return split == "test" or (split == "validation") == (number % _TENTH == _TENTH - 1)


def _beside(questions: Path, card: Card) -> Path:
    """The file of right answers."""
    name = stem(questions)
    wanted = name.replace(_QUESTIONS, _OUTPUTS)
    split = card.splits["test"].model_copy(update={"files": (wanted,)})
    files = find(split, [questions.parent]) if wanted != name else None
    if files is None:
        hint = "Copy it there; the outputs of LaMP's own test rows are not published: ask the dev rows."
        raise UserError(f"{questions} has no right answers beside it ({wanted}.json).", hint)
    return files.paths[0]


def _answers(golds: Sequence[RawRow] | Iterator[RawRow]) -> dict[str, tuple[str, str]]:
    """(place, right answer) by the id of the query."""
    answers: dict[str, tuple[str, str]] = {}
    for place, values in golds:
        key = _id(place, values)
        if key in answers:
            raise malformed(place, f"the id {brief(key)} stands twice")
        answers[key] = place, _cell(place, values, "output")
    return answers


def _users(
    part: Profile, asked: Sequence[RawRow], golds: Mapping[str, tuple[str, str]], where: str
) -> tuple[list[User], dict[str, int]]:
    dropped: Counter[str] = Counter()
    made: dict[str, User] = {}
    for raw in asked:
        key = _id(raw.place, raw.values)
        if key in made:
            raise malformed(raw.place, f"the id {brief(key)} stands twice")
        if key not in golds:
            raise malformed(raw.place, f"the id {brief(key)} has no right answer in the file of outputs")
        made[key] = _user(part, raw, key, golds[key])
    if not any(user.entries for user in made.values()):
        raise UserError(f"{where}: no user has a profile.", "Give LaMP's own files.")
    kept = [user for user in made.values() if user.entries and user.input and user.output]
    dropped["user without a profile, query or answer"] = len(made) - len(kept)
    return kept, {reason: count for reason, count in dropped.items() if count}


def _user(part: Profile, raw: RawRow, key: str, gold: tuple[str, str]) -> User:
    place, output = gold
    asked = _cell(raw.place, raw.values, "input")
    head, marker, given = asked.partition(part.marker)
    if not marker:
        raise malformed(raw.place, f"input {brief(asked)} does not hold {part.marker!r}: {_ANOTHER}")
    options = _options(part, raw)
    if options and output not in options:
        raise malformed(place, f"output {brief(output)} is none of the options {brief(', '.join(options), 200)}")
    profile = raw.values.get("profile")
    if not isinstance(profile, list):
        raise malformed(raw.place, f"profile is {brief(profile)}, no list")
    entries = [_entry(part, f"{raw.place} profile[{i}]", raw_entry, i) for i, raw_entry in enumerate(profile)]
    user = User(
        id=key, instruction=head + marker, input=given.strip(), output=output, options=options, entries=tuple(entries)
    )
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


def _entry(part: Profile, place: str, values: object, number: int) -> Entry:
    if not isinstance(values, dict):
        raise malformed(place, f"an entry was expected, not {brief(values)}")

    def value(match: re.Match[str]) -> str:
        return _cell(place, values, match[1])

    text = _FIELD.sub(value, part.entry)
    about, answer = (_cell(place, values, name) if name else "" for name in (part.text, part.output))
    return Entry(id=_id(place, values) if "id" in values else str(number), text=text, about=about, answer=answer)


def _cell(place: str, values: Mapping[str, object], name: str) -> str:
    """A cell as text without blanks around it; scores may be numbers."""
    if name not in values:
        have = brief(", ".join(map(str, values)), 160)
        raise malformed(place, f"lacks {name!r}; it has {have}: {_ANOTHER}")
    cell = values[name]
    return text_of(place, name, str(cell) if isinstance(cell, int) else cell).strip()


def _id(place: str, values: Mapping[str, object]) -> str:
    key = _cell(place, values, "id")
    if not key:
        raise malformed(place, "its id is empty")
    return key
