"""Books of the synthetic world, in the schema of PG19: recurring characters, and facts that return
after long gaps.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice

from ttabench.mini.world import Fact, draw_entities, entities, facts, rng

Row = dict[str, object]
Sentence = tuple[str, Fact | None]
"""A sentence, with the fact that it states, if any."""
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
"""Probability that a sentence of a growing story introduces a new character: one in about 512
tokens.
"""


def sentences(
    source: random.Random, split: str, cast: int = 16, *, growing: bool = False
) -> Iterator[Sentence]:
    """Yield an endless story: facts of a slowly changing cast, repeated in changing words.

    Half of the sentences state a fact. Its character is usually a recent one and, one time in four,
    any character so far, so facts return after hundreds of sentences. Once its `cast` has appeared,
    a growing story still introduces new characters, but fewer, until the split has no more.
    """
    people = draw_entities(
        source, "person", split, len(entities("person", split)) if growing else cast
    )
    facts_by_name = dict[str, list[Fact]]()
    met = list[str]()
    while True:
        new = 0.04 if len(met) < cast else NEWCOMER_PROBABILITY
        if len(met) < 3 or (len(met) < len(people) and source.random() < new):
            person = people[len(met)]
            met.append(person)
            facts_by_name[person] = facts(source, "person", person, 4)
        person = source.choice(met[-4:] if source.random() < 0.75 else met)
        if source.random() < 0.5:
            fact = source.choice(facts_by_name[person])
            yield fact.statement(source.randrange(3)), fact
        else:
            yield source.choice(FILLERS).format(e=person, f=source.choice(met)), None


def book(
    source: random.Random, split: str, tokens: int, cast: int = 16, *, growing: bool = False
) -> str:
    """Write about `tokens` nano tokens of story, in paragraphs of eight sentences; a longer book
    continues a shorter one.
    """
    story = _paragraphs(sentences(source, split, cast, growing=growing), tokens)
    return "\n".join("So " + " ".join(text for text, _ in paragraph) for paragraph in story) + "\n"


def _paragraphs(story: Iterator[Sentence], tokens: int) -> list[list[Sentence]]:
    return [list(islice(story, 8)) for _ in range(max(1, tokens // (8 * _TOKENS_PER_SENTENCE)))]


def pg19(split: str, seed: int, books: int = 4, tokens: int = 16_384) -> list[Row]:
    """Generate rows {short_book_title, url, text}; `tokens` up to 256k (about 9 nano tokens per
    sentence).

    A seed has the same books at every length: a longer book begins with the shorter, and new
    characters keep appearing.
    """
    return [
        {
            "short_book_title": f"The {split} book {seed}-{number}",
            "url": f"mini://{number}",
            "text": book(rng("pg19", split, seed, number), split, tokens, growing=True),
        }
        for number in range(books)
    ]


def recall(split: str, seed: int, books: int = 4, tokens: int = 8192) -> list[Row]:
    """Generate the books of `pg19` with every fact that they state: {title, text, facts}.

    A fact is {key, told, question, begins, options, answer}: its entity and relation, the character
    at which its sentence ends, a question, the beginning of the same sentence in another phrasing
    if there is one, and the values of its relation. Facts are in the order of the text, once per
    mention.
    """
    made: list[Row] = []
    for number in range(books):
        text = ""
        facts = []
        words = rng("recall", split, seed, number)
        for paragraph in _paragraphs(
            sentences(rng("pg19", split, seed, number), split, growing=True), tokens
        ):
            text += "So "
            for place, (sentence, fact) in enumerate(paragraph):
                text += f" {sentence}" if place else sentence
                if fact is not None:
                    facts.append(_query_row(words, fact) | {"told": len(text)})
            text += "\n"
        made.append({"title": f"The {split} book {seed}-{number}", "text": text, "facts": facts})
    return made


def _query_row(source: random.Random, fact: Fact) -> Row:
    """Return a fact's query in several forms."""
    begins, _, _ = fact.statement(source.randrange(3)).rpartition(f" {fact.value}")
    return {
        "key": f"{fact.entity}/{fact.relation.name}",
        "question": fact.question(source.randrange(2)),
        "begins": f"So {begins}",
        "options": list(fact.relation.values),
        "answer": fact.value,
    }
