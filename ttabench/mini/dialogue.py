"""Conversations of the miniature world: Multi-Session Chat with questions, and DailyDialog.

Facts about friends are told in early turns; later turns, later sessions and questions come back to them.
"""

from __future__ import annotations

import random
import re

from ttabench.mini.world import Fact, draw_entities, facts, rng

Row = dict[str, object]
_REPLIES = (
    "That is good to hear.",
    "I did not know that.",
    "Tell me more.",
    "How nice.",
    "You told me once.",
)
_QUESTION_FRAMES = ("Remind me, {q}", "By the way, {q}", "I forgot, {q}")
_ANSWER_FRAMES = ("As I said, {t}", "You know, {t}", "Well, {t}")
MAX_FACTS_PER_FRIEND = 4
"""Facts told of one friend, at most."""


def draw_facts(
    source: random.Random, split: str, friends: int, facts_per_friend: int
) -> list[Fact]:
    """`facts_per_friend` facts about each of `friends` people."""
    people = draw_entities(source, "person", split, friends)
    return [fact for person in people for fact in facts(source, "person", person, facts_per_friend)]


def fact_turns(source: random.Random, fact: Fact, known: list[Fact]) -> list[str]:
    """Two turns about a new fact, or four when an old one is asked for again."""
    turns = _statement_turns(source, fact)
    again = known and source.random() < 0.6
    return turns + _question_turns(source, source.choice(known)) if again else turns


def _statement_turns(source: random.Random, fact: Fact) -> list[str]:
    return [f"I think {fact.spoken_statement()}", source.choice(_REPLIES)]


def _question_turns(source: random.Random, fact: Fact) -> list[str]:
    question = fact.question(source.randrange(2))
    asked = source.choice(_QUESTION_FRAMES).format(q=question[0].lower() + question[1:])
    return [asked, source.choice(_ANSWER_FRAMES).format(t=fact.spoken_statement())]


def session(source: random.Random, facts: list[Fact], known: list[Fact]) -> list[str]:
    """The turns in which `facts` are told, coming back to them and to `known` ones."""
    turns = list[str]()
    for number, fact in enumerate(facts):
        turns += fact_turns(source, fact, known + facts[:number])
    return turns


def recurring_dialogue(source: random.Random, split: str, turns: int) -> list[str]:
    """A dialogue of so many turns that comes back to what was told after every fact, after the first one twice.

    What is said after 1, 2, 4, 8 and 12 turns and a prompt, turns 2, 3, 5, 9 and 13 from 0 on, is a question about
    somebody named before, or an answer told before.
    """
    pending, known, spoken = list[Fact](), list[Fact](), list[str]()
    while len(spoken) < turns:
        if not pending:
            pending = draw_facts(source, split, 3, 3)
            source.shuffle(pending)
        known.append(pending.pop())
        spoken += _statement_turns(source, known[-1]) + _question_turns(
            source, source.choice(known)
        )
        if len(known) == 1:
            spoken += _question_turns(source, known[0])
    return spoken[:turns]


def msc(
    split: str,
    seed: int,
    conversations: int = 32,
    sessions: int = 4,
    facts: int = 4,
    questions: int = 1,
) -> list[Row]:
    """Session-5 rows of Multi-Session Chat with `self_instruct {B: question, A: answer}` (MSC-Self-Instruct)."""
    if min(sessions, facts) < 1:
        raise ValueError(f"{sessions} sessions of {facts} facts tell nothing")
    made, total = list[Row](), sessions * facts
    of_a_friend = min(MAX_FACTS_PER_FRIEND, total)
    for number in range(conversations):
        source = rng("msc", split, seed, number)
        known = draw_facts(source, split, -(-total // of_a_friend) + 1, of_a_friend)
        fresh, told = known[-of_a_friend:], known[:-of_a_friend]
        source.shuffle(told)
        told = told[:total]
        turns = [
            session(source, told[start : start + facts], told[:start])
            for start in range(0, total, facts)
        ]
        goes_on = session(source, fresh[:facts], told)
        row: Row = {
            "dialog": [
                {"text": text, "id": f"Speaker {1 + i % 2}"} for i, text in enumerate(goes_on)
            ],
            "previous_dialogs": [{"dialog": [{"text": text} for text in own]} for own in turns],
            "metadata": {"initial_data_id": f"mini-{split}-{seed}-{number}"},
        }
        for fact in source.sample(told, min(questions, len(told))):
            made.append(
                {**row, "self_instruct": {"B": fact.question(source.randrange(2)), "A": fact.value}}
            )
    return made


def dailydialog(split: str, seed: int, rows: int = 64, turns: int = 15) -> list[Row]:
    """Rows {dialog} with the spaced punctuation of the published text."""
    spoken = (
        recurring_dialogue(rng("dailydialog", split, seed, number), split, turns)
        for number in range(rows)
    )
    return [{"dialog": [re.sub(r"([,?.])", r" \1", turn) for turn in told]} for told in spoken]
