"""Files of RULER: rows as kvpress publishes them, and what sub-tasks are made of that need more than is here.

    test.parquet, 4096/test-00000-of-00001.parquet      context, question, answer_prefix, answer, task, max_new_tokens
    PaulGrahamEssays.json                               {"text": "..."}, or texts in .txt files
    squad.json, dev-v2.0.json                           SQuAD as published, also as a table of rows
    hotpotqa.json, hotpot_dev_distractor_v1.json        HotpotQA likewise

What one context is asked in several rows is read once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ttabench.core.checked_file import object_of, read_text
from ttabench.core.errors import UserError
from ttabench.readers.cards import Card
from ttabench.readers.formats import RawRow, malformed, parsing, readable, rows, stem, text_of
from ttabench.readers.qa_rows import answers_of
from ttabench.readers.ruler_texts import QA, Asked, Documents, Material, Question, Sample
from ttabench.readers.sources import Request, Table, find, places, table

ESSAYS = "PaulGrahamEssays"
SQUAD, HOTPOTQA = ("squad", "dev-v2.0"), ("hotpotqa", "hotpot_dev_distractor_v1")
GIVE = {
    "essays": f"{ESSAYS}.json or essays as .txt files",
    "squad": "squad.json (dev-v2.0.json)",
    "hotpotqa": "hotpotqa.json (hotpot_dev_distractor_v1.json)",
}
"""What a user who lacks a material is told to give, by its name."""
TOKENS = 128
"""Of an answer, where a row does not say."""


def published(card: Card, request: Request, length: int) -> Table | None:
    """The table of rows that a source holds, in a folder those of this length; None where it holds material."""
    path = Path(request.source)
    if path.is_file():
        return table(card, request) if readable(path) and stem(path) not in (ESSAYS, *SQUAD, *HOTPOTQA) else None
    split, inner = card.splits[request.split], path / str(length)
    own = next((place for place in (inner, path) if find(split, places(card, place))[0]), None)
    return None if own is None and path.is_dir() else table(card, replace(request, source=str(own or path)))


def samples_of(card: Card, held: Table) -> dict[str, list[Sample]]:
    """The samples of published rows by sub-task, in their order."""
    made: dict[str, dict[str, Sample]] = {}
    for row in held.rows:
        with parsing(row.place):
            context, sample = _sample(card, row)
        before = made.setdefault(sample.subtask, {}).setdefault(context, sample)
        if before is not sample:
            made[sample.subtask][context] = replace(before, questions=(*before.questions, *sample.questions))
    return {name: list(own.values()) for name, own in made.items()}


def _sample(card: Card, row: RawRow) -> tuple[str, Sample]:
    names = ("context", "question", "answer_prefix", "task")
    context, text, prefix, task = (text_of(row.place, name, row.needed(card.columns[name])) for name in names)
    answers = answers_of(row.place, row.needed(card.columns["answers"]))
    if not context.strip() or not text.strip() or not answers:
        raise malformed(row.place, "it has no context, no question or no answer")
    most: Any = row.cell(card.columns["max_new_tokens"])
    question = Question(text=text.strip(), prefix=prefix.strip(), answers=answers, tells=answers)
    return context, Sample(
        subtask=task, questions=(question,), max_new_tokens=int(most or TOKENS), all_of=task not in QA,
        write=lambda _: context, most=1,
    )  # fmt: skip


def material_of(path: Path) -> Material:
    """What a file or folder holds of what sub-tasks are made of."""
    files = [path] if path.is_file() else sorted(file for file in path.iterdir() if file.is_file())
    essays = [_essay(file) for file in files if file.suffix == ".txt" or stem(file) == ESSAYS]
    squad, hotpotqa = (next((file for file in files if stem(file) in names), None) for names in (SQUAD, HOTPOTQA))
    held = Material(
        essays=tuple(" ".join(essays).split()),
        squad=None if squad is None else _squad(squad),
        hotpotqa=None if hotpotqa is None else _hotpotqa(hotpotqa),
    )
    if held == Material():
        raise UserError(f"{path} holds nothing that RULER is made of.", f"Give rows, or {', '.join(GIVE.values())}.")
    return held


def _essay(file: Path) -> str:
    return read_text(file) if file.suffix == ".txt" else text_of(str(file), "text", object_of(file).get("text"))


def _squad(file: Path) -> Documents:
    """Paragraphs, and the questions that they answer; those of the same article are near."""
    asked, articles = [], dict[str, dict[str, int]]()
    numbers: dict[str, int] = {}
    for row in rows(file):
        with parsing(row.place):
            text, question = (text_of(row.place, name, row.needed([name])) for name in ("context", "question"))
            title, answers = str(row.cell(["title"]) or ""), answers_of(row.place, row.needed(["answers"]))
        number = numbers.setdefault(text, len(numbers))
        if title:
            articles.setdefault(title, {})[text] = number
        if answers:
            asked.append((question, answers, number, title))
    near = {title: tuple(own.values()) for title, own in articles.items()}
    made = [Asked(question, answers, (own,), near.get(title, ())) for question, answers, own, title in asked]
    return _documents(file, numbers, made)


def _hotpotqa(file: Path) -> Documents:
    """Paragraphs with their titles, and questions about ten of them each."""
    asked, numbers = [], dict[str, int]()
    for row in rows(file):
        with parsing(row.place):
            question, answer = (text_of(row.place, name, row.needed([name])) for name in ("question", "answer"))
            context: Any = row.needed(["context"])
            pairs = zip(context["title"], context["sentences"], strict=True) if isinstance(context, dict) else context
            texts = [f"{title}\n{''.join(told)}" for title, told in pairs]
        asked.append(Asked(question, (answer,), tuple(numbers.setdefault(text, len(numbers)) for text in texts)))
    return _documents(file, numbers, asked)


def _documents(file: Path, texts: Iterable[str], asked: Sequence[Asked]) -> Documents:
    if not asked:
        raise UserError(f"{file} holds no question with an answer.", "Give the published file.")
    return Documents(tuple(texts), tuple(asked))
