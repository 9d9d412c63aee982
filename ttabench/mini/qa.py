"""Question-answering streams of the synthetic world, in the published schemas of their tasks.

A document states a few facts about one entity, and its questions are about some of them. Documents
of a stream are about different entities of the same kind; only the entity's full name distinguishes
them.

    text: "Notes of Monday: Mirel Dovan keeps a goat. The home of Mirel Dovan is in Corwen. ..."
    question: "Which animal does Mirel Dovan look after?"   answers: "goat"
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from ttabench.mini.world import RELATIONS, Fact, Wording, draw_entities, facts, rng

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
    """A text about one entity, and the facts it states."""

    entity: str
    text: str
    facts: tuple[Fact, ...]


def document(source: random.Random, entity: str, facts: list[Fact]) -> Document:
    """Return a document that states every fact of `facts` once, in one of several phrasings."""
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
    wording: Wording = "trained",
) -> list[Document]:
    """Return documents about `count` different entities of one kind.

    `facts_told`: number of facts in each; `relation`: state only the fact of this relation.
    """
    made, relations = [], [one for one in RELATIONS[kind] if one.name == relation]
    for entity in draw_entities(source, kind, split, count):
        stated = [Fact(entity, one, source.choice(one.values)) for one in relations]
        if relation is None:
            number = facts_told if isinstance(facts_told, int) else source.choice(facts_told)
            stated = facts(source, kind, entity, min(number, len(RELATIONS[kind])), wording)
        made.append(document(source, entity, stated))
    return made


def _questions(
    family: str,
    kind: str,
    split: str,
    seed: int,
    count: int,
    questions: int,
    facts_told: int,
    wording: Wording,
) -> Iterator[tuple[str, int, Document, Fact, str]]:
    """Yield (key, document number, document, fact, question), `questions` for each of `count`
    documents.

    Facts are drawn with replacement beyond the number of facts in a document. Training documents
    state one to `facts_told` facts: on documents of one fact, MAC rises above guessing sooner.
    """
    source, numbers = rng(family, split, seed), itertools.count()
    counts = range(1, facts_told + 1) if split == "train" else facts_told
    for number, made in enumerate(documents(source, kind, split, count, counts, wording=wording)):
        drawn = source.sample(made.facts, min(questions, len(made.facts)))
        for fact in drawn + source.choices(made.facts, k=questions - len(drawn)):
            key = f"mini-{split}-{seed}-{number}-{fact.relation.name}-{next(numbers)}"
            yield key, number, made, fact, fact.question(source.randrange(2))


def streamingqa(
    split: str,
    seed: int,
    documents: int = 64,
    questions: int = 1,
    facts: int = 4,
    wording: Wording = "trained",
) -> list[Row]:
    """Generate rows in the CaMeLS/MAC layout (`text, question, answers`) with the official `qa_id`
    and `evidence_ts`.
    """
    items = _questions("streamingqa", "person", split, seed, documents, questions, facts, wording)
    return [
        {
            "qa_id": key,
            "text": made.text,
            "question": question,
            "answers": fact.value,
            "evidence_ts": 1_546_300_800 + 3_600 * number,
        }
        for key, number, made, fact, question in items
    ]


def squad_seq(
    split: str,
    seed: int,
    documents: int = 64,
    questions: int = 1,
    facts: int = 4,
    wording: Wording = "trained",
) -> list[Row]:
    """Generate rows of SQuAD v1.1 as on the hub: id, title, context, question, answers {text}."""
    items = _questions("squad_seq", "place", split, seed, documents, questions, facts, wording)
    return [
        {
            "id": key,
            "title": made.entity.replace(" ", "_"),
            "context": made.text,
            "question": question,
            "answers": {"text": [fact.value]},
        }
        for key, _, made, fact, question in items
    ]


def archivalqa(
    split: str,
    seed: int,
    documents: int = 64,
    questions: int = 1,
    facts: int = 4,
    wording: Wording = "trained",
) -> list[Row]:
    """Generate rows in the layout of the published processing of ArchivalQA (one paragraph per
    document).
    """
    year = {"train": 1993, "validation": 2002, "test": 2004}[split]
    items = _questions("archivalqa", "company", split, seed, documents, questions, facts, wording)
    return [
        {
            "id": key,
            "question": question,
            "answer": fact.value,
            "ans_paragraph": made.text,
            "doc_id": 2_000_000 + number,
            "date": f"{year}-01-01",
        }
        for key, number, made, fact, question in items
    ]


def shared_context(
    split: str, seed: int, contexts: int = 16, people: int = 12, facts: int = 4, turns: int = 8
) -> list[Row]:
    """Generate rows of SCBench: {id, context, multi_turns: [{input, answer, task}]}.

    A context has one document per person. "first" turns are about a new fact; "again" turns repeat
    the question of one earlier turn in other words.
    """
    is_repeated = [turn % 4 > 1 for turn in range(turns)]
    n_fresh = is_repeated.count(False)
    if n_fresh > people * facts:
        raise ValueError(f"{people} people with {facts} facts each are too few for {turns} turns")
    rows: list[Row] = []
    for number in range(contexts):
        source = rng("shared_context", split, seed, number)
        texts = documents(source, "person", split, people, facts)
        fresh = source.sample([fact for made in texts for fact in made.facts], n_fresh)
        unrepeated = list[tuple[Fact, int]]()
        multi_turns = list[Row]()
        for repeats in is_repeated:
            if repeats:
                fact, phrasing = unrepeated.pop(source.randrange(len(unrepeated)))
                phrasing = 1 - phrasing
            else:
                fact, phrasing = fresh.pop(), source.randrange(2)
                unrepeated.append((fact, phrasing))
            kind = "again" if repeats else "first"
            turn: Row = {"input": fact.question(phrasing), "answer": fact.value, "task": kind}
            multi_turns.append(turn)
        context = "\n\n".join(made.text for made in texts)
        key = f"{split}-{seed}-{number}"
        rows.append({"id": key, "context": context, "multi_turns": multi_turns})
    return rows


class Choice(NamedTuple):
    """A multiple-choice question about a fact."""

    question: str
    options: list[str]
    answer: str
    is_hard: bool
    """True if the context states every option, each of another person."""


def _choices(
    task: str,
    split: str,
    seed: int,
    contexts: int,
    people: int,
    facts: int,
    turns: int,
    options: int,
) -> Iterator[tuple[str, list[str], list[Choice]]]:
    """Yield (key, a document per person, choices about their facts). Half of the choices are hard,
    if enough people have a fact of its relation.
    """
    if turns > people * facts:
        raise ValueError(f"{people} people with {facts} facts each are too few for {turns} turns")
    for number in range(contexts):
        source = rng(task, split, seed, number)
        texts = documents(source, "person", split, people, facts)
        stated = [fact for made in texts for fact in made.facts]
        choices = list[Choice]()
        for turn, fact in enumerate(source.sample(stated, turns)):
            seen_values = {other.value for other in stated if other.relation == fact.relation}
            hard = sorted(seen_values - {fact.value})
            easy = sorted(set(fact.relation.values) - seen_values)
            is_hard = turn % 4 > 1 and len(hard) >= options - 1
            wrong = source.sample(hard if is_hard else easy, options - 1)
            shown = source.sample([fact.value, *wrong], options)
            choices.append(Choice(fact.question(source.randrange(2)), shown, fact.value, is_hard))
        yield f"{split}-{seed}-{number}", [made.text for made in texts], choices


def longhealth(
    split: str, seed: int, contexts: int = 16, people: int = 12, facts: int = 4, turns: int = 8
) -> list[Row]:
    """Generate rows of LongHealth: {id, texts {text_0}, questions [{question, answer_a, correct}]}."""
    return [
        {
            "id": key,
            "texts": {f"text_{number}": text for number, text in enumerate(texts)},
            "questions": [
                {
                    "question": choice.question,
                    **dict(zip(map("answer_{}".format, "abcde"), choice.options, strict=True)),
                    "correct": choice.answer,
                }
                for choice in choices
            ],
        }
        for key, texts, choices in _choices(
            "longhealth", split, seed, contexts, people, facts, turns, 5
        )
    ]


def quality(
    split: str, seed: int, contexts: int = 16, people: int = 12, facts: int = 4, turns: int = 8
) -> list[Row]:
    """Generate rows of QuALITY: {article_id, article, questions [{question, options, gold_label,
    difficult}]}.
    """
    return [
        {
            "article_id": key,
            "article": "\n\n".join(texts),
            "questions": [
                {
                    "question": choice.question,
                    "options": choice.options,
                    "gold_label": choice.options.index(choice.answer) + 1,
                    "difficult": int(choice.is_hard),
                }
                for choice in choices
            ],
        }
        for key, texts, choices in _choices(
            "quality", split, seed, contexts, people, facts, turns, 4
        )
    ]


def _other_values(fact: Fact) -> list[str]:
    return [value for value in fact.relation.values if value != fact.value]


def fact_consolidation(
    split: str, seed: int, contexts: int = 16, people: int = 6, facts: int = 4, turns: int = 8
) -> list[Row]:
    """Generate rows of MemoryAgentBench: {context, questions, answers, metadata {source}}.

    A context is a list of numbered facts. Half of them change later, and questions are about these.
    """
    rows: list[Row] = []
    for number in range(contexts):
        source = rng("fact_consolidation", split, seed, number)
        old = [
            fact
            for made in documents(source, "person", split, people, facts)
            for fact in made.facts
        ]
        if turns > len(old) // 2:
            raise ValueError(f"{len(old) // 2} facts that change are too few for {turns} turns")
        changed = {
            fact: replace(fact, value=source.choice(_other_values(fact)))
            for fact in source.sample(old, len(old) // 2)
        }
        order = source.sample([*old, *changed], len(old) + len(changed))
        stated = list[Fact]()
        for fact in order:
            stated.append(changed[fact] if fact in stated else fact)
        statements = (fact.statement(source.randrange(3)) for fact in stated)
        lines = (f"{serial}. {statement}" for serial, statement in enumerate(statements))
        queried = source.sample(list(changed), turns)
        rows.append(
            {
                "context": "\n".join(lines),
                "questions": [fact.question(source.randrange(2)) for fact in queried],
                "answers": [[changed[fact].value] for fact in queried],
                "metadata": {"source": "factconsolidation_sh"},
            }
        )
    return rows
