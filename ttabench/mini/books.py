"""Books of the miniature world, in the schema of PG19: recurring characters and facts that return after long gaps."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice

from ttabench.mini.world import RELATIONS, Fact, draw_entities, entities, facts, rng

Row = dict[str, object]
Sentence = tuple[str, Fact | None]
"""A sentence, with the fact that it tells, if any."""
FILLERS = (
    "The morning was grey and the streets were empty.",
    "Nobody spoke for a while.",
    "Then {e} came in and sat down.",
    "At noon {e} left without a word.",
    "The letter from {e} had not arrived.",
    "Once more {e} thought of {f}.",
    "In the evening {e} met {f} by the gate.",
    "It was late when {e} wrote to {f}.",
)
_TOKENS_PER_SENTENCE = 9
NEWCOMER_PROBABILITY = _TOKENS_PER_SENTENCE / 512
"""How likely a sentence of a growing story brings somebody new: one in about 512 tokens."""


def sentences(
    source: random.Random, split: str, cast: int = 16, *, growing: bool = False
) -> Iterator[Sentence]:
    """An endless story: facts of a slowly changing cast, told again and again in changing words.

    Half of the sentences tell a fact. The character told of is usually a recent one and, one time in four, anybody who
    has appeared since the first page, so that facts come back after hundreds of sentences. A growing story goes on
    bringing new people, if fewer, once its `cast` has appeared, until the split has no more.
    """
    people = draw_entities(
        source, "person", split, len(entities("person", split)) if growing else cast
    )
    facts_by_name, met = dict[str, list[Fact]](), list[str]()
    while True:
        new = 0.04 if len(met) < cast else NEWCOMER_PROBABILITY
        if len(met) < 3 or (len(met) < len(people) and source.random() < new):
            person = people[len(met)]
            met.append(person)
            facts_by_name[person] = facts(
                source, "person", person, min(4, len(RELATIONS["person"]))
            )
        person = source.choice(met[-4:] if source.random() < 0.75 else met)
        if source.random() < 0.5:
            fact = source.choice(facts_by_name[person])
            yield fact.statement(source.randrange(3)), fact
        else:
            yield source.choice(FILLERS).format(e=person, f=source.choice(met)), None


def book(
    source: random.Random, split: str, tokens: int, cast: int = 16, *, growing: bool = False
) -> str:
    """About `tokens` nano tokens of story, in paragraphs of eight sentences; a longer book goes on from a shorter."""
    story = _paragraphs(sentences(source, split, cast, growing=growing), tokens)
    return "\n".join("So " + " ".join(text for text, _ in paragraph) for paragraph in story) + "\n"


def _paragraphs(story: Iterator[Sentence], tokens: int) -> list[list[Sentence]]:
    return [list(islice(story, 8)) for _ in range(max(1, tokens // (8 * _TOKENS_PER_SENTENCE)))]


def pg19(split: str, seed: int, books: int = 4, tokens: int = 16_384) -> list[Row]:
    """Rows {short_book_title, url, text}; `tokens` up to 256k (about 9 nano tokens a sentence).

    A seed has the same books at every length: a longer one begins with the shorter, and new people keep appearing.
    """
    made = list[Row]()
    for number in range(books):
        text = book(rng("pg19", split, seed, number), split, tokens, growing=True)
        made.append(
            {
                "short_book_title": f"The {split} book {seed}-{number}",
                "url": f"mini://{number}",
                "text": text,
            }
        )
    return made


def recall(split: str, seed: int, books: int = 4, tokens: int = 8192) -> list[Row]:
    """The books of `pg19` with every fact that they tell: {title, text, facts}.

    A fact is {key, told, question, begins, options, answer}: whose and which it is, the character at which its sentence
    ends, a question, the beginning of the same sentence in other words where there are any, and the values that its
    relation takes. Facts stand in the order of the text, once for every time that they are told.
    """
    made: list[Row] = []
    for number in range(books):
        text, facts = "", []
        words = rng("recall", split, seed, number)
        for paragraph in _paragraphs(
            sentences(rng("pg19", split, seed, number), split, growing=True), tokens
        ):
            text += "So "
            for place, (sentence, fact) in enumerate(paragraph):
                text += " " * bool(place) + sentence
                if fact is not None:
                    facts.append(_query_row(words, fact) | {"told": len(text)})
            text += "\n"
        made.append({"title": f"The {split} book {seed}-{number}", "text": text, "facts": facts})
    return made


def _query_row(source: random.Random, fact: Fact) -> Row:
    """How a fact is asked."""
    begins, _, _ = fact.statement(source.randrange(3)).rpartition(f" {fact.value}")
    asked = {
        "key": f"{fact.entity}/{fact.relation.name}",
        "question": fact.question(source.randrange(2)),
    }
    return {
        **asked,
        "begins": f"So {begins}",
        "options": list(fact.relation.values),
        "answer": fact.value,
    }
