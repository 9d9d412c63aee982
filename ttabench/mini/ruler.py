"""RULER in the synthetic world: needles, and documents about one person each, in the sentences of
its books.

    ruler("test", 0, tasks="niah_single_1")[0]
        {"task": "niah_single_1", "needles": ["Ada Voss lives in Selby."],
         "haystack": ["Nobody spoke ...", ...],
         "questions": [{"question": "Where does Ada Voss live?", "answers": ["Selby"],
                        "tells": [...]}]}

Of the 13 sub-tasks these are the ones that the bundled base model can solve with the whole context.
"""

from __future__ import annotations

from random import Random

from ttabench.mini.books import FILLERS, Row
from ttabench.mini.world import RELATIONS, Fact, draw_entities, facts, rng

TASKS = ("niah_single_1", "niah_single_2", "niah_multikey_1", "niah_multikey_2", "qa_1")
MIN_TOKENS_PER_SENTENCE = 5
"""Minimum nano tokens of a sentence."""


def ruler(
    split: str, seed: int, tasks: str = TASKS[0], questions: int = 1, length: int = 4096
) -> list[Row]:
    """Generate one row {task, needles, haystack, questions} of a sub-task; the haystack fills at
    least `length` nano tokens.
    """
    source = rng("ruler", split, seed, tasks, 0)
    keys = max(questions, 4) if tasks == "niah_multikey_1" else questions
    people = draw_entities(source, "person", split, max(keys + 24, length // 8))
    make_row = _documents if tasks == "qa_1" else _needles
    return [make_row(source, tasks, people, keys, questions, length)]


def _needles(
    source: Random, task: str, people: list[str], keys: int, questions: int, length: int
) -> Row:
    relations = RELATIONS["person"]
    relation = source.choice(relations)
    count = length // MIN_TOKENS_PER_SENTENCE
    needle_facts = [Fact(name, relation, source.choice(relation.values)) for name in people[:keys]]
    others = people[keys:]
    if task == "niah_multikey_2":
        # only facts: first of the queried relation, then of others
        ranked = [relation, *source.sample(relations, len(relations))]
        pairs = [(name, item) for item in dict.fromkeys(ranked) for name in others][:count]
        haystack = [
            Fact(name, item, source.choice(item.values)).statement(source.randrange(3))
            for name, item in pairs
        ]
    else:
        fillers = [text for text in FILLERS if task != "niah_single_1" or "{" not in text]
        drawn = (
            (source.choice(fillers), source.choice(others), source.choice(others))
            for _ in range(count)
        )
        haystack = [filler.format(e=item, f=another) for filler, item, another in drawn]
    needles = [fact.statement(source.randrange(3)) for fact in needle_facts]
    question_rows = [_question_row(source, fact) for fact in needle_facts[:questions]]
    return {"task": task, "needles": needles, "haystack": haystack, "questions": question_rows}


def _documents(
    source: Random, task: str, people: list[str], keys: int, questions: int, length: int
) -> Row:
    facts_by_person = [
        facts(source, "person", name, 4)
        for name in people[: keys + length // (4 * MIN_TOKENS_PER_SENTENCE)]
    ]
    texts = [
        " ".join(fact.statement(source.randrange(3)) for fact in own_facts)
        for own_facts in facts_by_person
    ]
    question_rows = [
        _question_row(source, source.choice(own_facts)) for own_facts in facts_by_person[:questions]
    ]
    return {
        "task": task,
        "needles": texts[:keys],
        "haystack": texts[keys:],
        "questions": question_rows,
    }


def _question_row(source: Random, fact: Fact) -> Row:
    statements = [fact.statement(phrasing) for phrasing in range(3)]
    return {
        "question": fact.question(source.randrange(2)),
        "answers": [fact.value],
        "tells": statements,
    }
