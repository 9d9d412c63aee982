"""Question-answering streams of the miniature world, in the published schemas of their tasks.

One document tells a few facts of one entity; its questions ask for some of them. Documents of one stream are about
different entities of the same kind, so only the entity's full name tells them apart.

    text: "Notes of Monday: Mirel Dovan keeps a goat. The home of Mirel Dovan is in Corwen. ..."
    question: "Which animal does Mirel Dovan look after?"   answers: "goat"
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import NamedTuple

from ttabench.mini.world import RELATIONS, Fact, draw_entities, facts, rng

Row = dict[str, object]
_LEADS = ("Notes of {d}:", "Report of {d}:", "In brief,", "Heard on {d}:", "From our files:")
_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
_DISTRACTORS = (
    "The rest of the day was calm.",
    "Nobody else was asked.",
    "More will be told soon.",
    "The meeting lasted an hour.",
    "It rained in the afternoon.",
)


class Document(NamedTuple):
    """A text about one entity, and the facts it tells."""

    entity: str
    text: str
    facts: tuple[Fact, ...]


def document(source: random.Random, entity: str, facts: list[Fact]) -> Document:
    """One document that states every fact of `facts` once, in one of several phrasings."""
    sentences = [fact.statement(source.randrange(3)) for fact in facts]
    if source.random() < 0.5:
        sentences.insert(source.randint(1, len(sentences)), source.choice(_DISTRACTORS))
    lead = source.choice(_LEADS).format(d=source.choice(_DAYS))
    return Document(entity, " ".join([lead, *sentences]), tuple(facts))


def documents(
    source: random.Random,
    kind: str,
    split: str,
    count: int,
    facts_told: int | range,
    relation: str | None = None,
) -> list[Document]:
    """`count` documents about different entities of one kind, each telling so many facts; or one of one relation."""
    made, named = [], [one for one in RELATIONS[kind] if one.name == relation]
    for entity in draw_entities(source, kind, split, count):
        told = [Fact(entity, one, source.choice(one.values)) for one in named]
        if relation is None:
            number = facts_told if isinstance(facts_told, int) else source.choice(facts_told)
            told = facts(source, kind, entity, min(number, len(RELATIONS[kind])))
        made.append(document(source, entity, told))
    return made


def _questions(
    family: str, kind: str, split: str, seed: int, count: int, questions: int, facts_told: int
) -> Iterator[tuple[str, int, Document, Fact, str]]:
    """(key, document number, document, fact, question) of so many documents, with so many questions about each, drawn
    with replacement beyond the number of facts it tells.

    Documents for training tell from one fact to so many: MAC's answers leave guessing sooner on documents of one fact.
    """
    source, numbers = rng(family, split, seed), itertools.count()
    counts = range(1, facts_told + 1) if split == "train" else facts_told
    for number, made in enumerate(documents(source, kind, split, count, counts)):
        asked = source.sample(made.facts, min(questions, len(made.facts)))
        for fact in asked + source.choices(made.facts, k=questions - len(asked)):
            key = f"mini-{split}-{seed}-{number}-{fact.relation.name}-{next(numbers)}"
            yield key, number, made, fact, fact.question(source.randrange(2))


def streamingqa(
    split: str, seed: int, documents: int = 64, questions: int = 1, facts: int = 4
) -> list[Row]:
    """Rows in the CaMeLS/MAC layout (`text, question, answers`) with the official `qa_id` and `evidence_ts`."""
    asked = _questions("streamingqa", "person", split, seed, documents, questions, facts)
    return [
        {
            "qa_id": key,
            "text": made.text,
            "question": question,
            "answers": fact.value,
            "evidence_ts": 1_546_300_800 + 3_600 * number,
        }
        for key, number, made, fact, question in asked
    ]


def squad_seq(
    split: str, seed: int, documents: int = 64, questions: int = 1, facts: int = 4
) -> list[Row]:
    """Rows as the hub has SQuAD v1.1: id, title, context, question, answers {text}."""
    asked = _questions("squad_seq", "place", split, seed, documents, questions, facts)
    return [
        {
            "id": key,
            "title": made.entity.replace(" ", "_"),
            "context": made.text,
            "question": question,
            "answers": {"text": [fact.value]},
        }
        for key, _, made, fact, question in asked
    ]


def archivalqa(
    split: str, seed: int, documents: int = 64, questions: int = 1, facts: int = 4
) -> list[Row]:
    """Rows in the layout of the published processing of ArchivalQA (one paragraph a document)."""
    year = {"train": 1993, "validation": 2002, "test": 2004}[split]
    asked = _questions("archivalqa", "company", split, seed, documents, questions, facts)
    return [
        {
            "id": key,
            "question": question,
            "answer": fact.value,
            "ans_paragraph": made.text,
            "doc_id": 2_000_000 + number,
            "date": f"{year}-01-01",
        }
        for key, number, made, fact, question in asked
    ]


def shared_context(
    split: str, seed: int, contexts: int = 16, people: int = 12, facts: int = 4, turns: int = 8
) -> list[Row]:
    """Rows of SCBench: {id, context, multi_turns: [{input, answer, task}]}.

    A context is a document a person. Turns that are called "first" ask what none before has asked, those called "again"
    ask in other words what one turn before has asked.
    """
    again = [turn % 4 > 1 for turn in range(turns)]
    if again.count(False) > people * facts:
        raise ValueError(f"{people} people with {facts} facts each do not fill {turns} turns")
    rows: list[Row] = []
    for number in range(contexts):
        source = rng("shared_context", split, seed, number)
        told = documents(source, "person", split, people, facts)
        fresh = source.sample([fact for made in told for fact in made.facts], again.count(False))
        once, asked = list[tuple[Fact, int]](), list[Row]()
        for later in again:
            if later:
                fact, other = once.pop(source.randrange(len(once)))
                words = 1 - other
            else:
                fact, words = fresh.pop(), source.randrange(2)
                once.append((fact, words))
            kind = "again" if later else "first"
            asked.append({"input": fact.question(words), "answer": fact.value, "task": kind})
        context = "\n\n".join(made.text for made in told)
        rows.append({"id": f"{split}-{seed}-{number}", "context": context, "multi_turns": asked})
    return rows
