"""RULER in the miniature world: needles, and people with documents of their own, in the words of its books.

    ruler("test", 0, tasks="niah_single_1")[0]
        {"task": "niah_single_1", "needles": ["Ada Voss lives in Selby."], "haystack": ["Nobody spoke ...", ...],
         "questions": [{"question": "Where does Ada Voss live?", "answers": ["Selby"], "tells": [...]}]}

Of the 13 sub-tasks those that the base model that ships can do where it reads the whole context.
"""

from __future__ import annotations

from random import Random

from ttabench.mini.books import FILLERS, Row
from ttabench.mini.world import RELATIONS, Fact, draw_entities, facts, rng

TASKS = ("niah_single_1", "niah_single_2", "niah_multikey_1", "niah_multikey_2", "qa_1")
MIN_TOKENS_PER_SENTENCE = 5
"""A sentence, at least."""


def ruler(
    split: str,
    seed: int,
    contexts: int = 1,
    tasks: str = TASKS[0],
    questions: int = 1,
    length: int = 4096,
) -> list[Row]:
    """Rows {task, needles, haystack, questions} of one sub-task: what fills `length` nano tokens and more, in order."""
    made = []
    for number in range(contexts):
        source = rng("ruler", split, seed, tasks, number)
        keys = max(questions, 4) if tasks == "niah_multikey_1" else questions
        people = draw_entities(source, "person", split, max(keys + 24, length // 8))
        made.append(
            (_documents if tasks == "qa_1" else _needles)(
                source, tasks, people, keys, questions, length
            )
        )
    return made


def _needles(
    source: Random, task: str, people: list[str], keys: int, questions: int, length: int
) -> Row:
    relations = RELATIONS["person"]
    relation, count = source.choice(relations), length // MIN_TOKENS_PER_SENTENCE
    own = [Fact(name, relation, source.choice(relation.values)) for name in people[:keys]]
    others = people[keys:]
    if (
        task == "niah_multikey_2"
    ):  # facts alone: first of the relation that is asked, then of others
        ranked = [relation, *source.sample(relations, len(relations))]
        pairs = [(name, one) for one in dict.fromkeys(ranked) for name in others][:count]
        haystack = [
            Fact(name, one, source.choice(one.values)).statement(source.randrange(3))
            for name, one in pairs
        ]
    else:
        fillers = [text for text in FILLERS if task != "niah_single_1" or "{" not in text]
        drawn = (
            (source.choice(fillers), source.choice(others), source.choice(others))
            for _ in range(count)
        )
        haystack = [filler.format(e=one, f=another) for filler, one, another in drawn]
    needles = [fact.statement(source.randrange(3)) for fact in own]
    asked = [_question_row(source, fact) for fact in own[:questions]]
    return {"task": task, "needles": needles, "haystack": haystack, "questions": asked}


def _documents(
    source: Random, task: str, people: list[str], keys: int, questions: int, length: int
) -> Row:
    told = [
        facts(source, "person", name, 4)
        for name in people[: keys + length // (4 * MIN_TOKENS_PER_SENTENCE)]
    ]
    texts = [" ".join(fact.statement(source.randrange(3)) for fact in own) for own in told]
    asked = [_question_row(source, source.choice(own)) for own in told[:questions]]
    return {"task": task, "needles": texts[:keys], "haystack": texts[keys:], "questions": asked}


def _question_row(source: Random, fact: Fact) -> Row:
    statements = [fact.statement(phrasing) for phrasing in range(3)]
    return {
        "question": fact.question(source.randrange(2)),
        "answers": [fact.value],
        "tells": statements,
    }
