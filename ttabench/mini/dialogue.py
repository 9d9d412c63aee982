"""Conversations of the synthetic world: Multi-Session Chat with questions, and DailyDialog.

Early turns state facts about friends; later turns, later sessions and questions return to them.
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
"""Maximum number of facts about one friend."""


def draw_facts(
    source: random.Random, split: str, friends: int, facts_per_friend: int
) -> list[Fact]:
    """Draw `facts_per_friend` facts about each of `friends` people."""
    people = draw_entities(source, "person", split, friends)
    return [fact for person in people for fact in facts(source, "person", person, facts_per_friend)]


def fact_turns(source: random.Random, fact: Fact, known: list[Fact]) -> list[str]:
    """Return two turns about a new fact, or four if they also return to a known one."""
    turns = _statement_turns(source, fact)
    again = known and source.random() < 0.6
    return turns + _question_turns(source, source.choice(known)) if again else turns


def _statement_turns(source: random.Random, fact: Fact) -> list[str]:
    return [f"I think {fact.spoken_statement()}", source.choice(_REPLIES)]


def _question_turns(source: random.Random, fact: Fact) -> list[str]:
    question = fact.question(source.randrange(2))
    framed = source.choice(_QUESTION_FRAMES).format(q=question[0].lower() + question[1:])
    return [framed, source.choice(_ANSWER_FRAMES).format(t=fact.spoken_statement())]


def session(source: random.Random, facts: list[Fact], known: list[Fact]) -> list[str]:
    """Return the turns that state `facts`, with returns to them and to `known` ones."""
    turns = list[str]()
    for number, fact in enumerate(facts):
        turns += fact_turns(source, fact, known + facts[:number])
    return turns


def recurring_dialogue(source: random.Random, split: str, turns: int) -> list[str]:
    """Return a dialogue of `turns` turns that returns to a known fact after every new one, after
    the first one twice.

    The scored turn after 1, 2, 4, 8 and 12 turns and a prompt (turns 2, 3, 5, 9 and 13, counted
    from 0) is a question about somebody named before, or an answer stated before.
    """
    pending = list[Fact]()
    known = list[Fact]()
    spoken = list[str]()
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
    """Generate session-5 rows of Multi-Session Chat with `self_instruct {B: question, A: answer}`
    (MSC-Self-Instruct).
    """
    if min(sessions, facts) < 1:
        raise ValueError(f"sessions={sessions} and facts={facts} must be at least 1")
    made = list[Row]()
    total = sessions * facts
    facts_per_friend = min(MAX_FACTS_PER_FRIEND, total)
    for number in range(conversations):
        source = rng("msc", split, seed, number)
        known = draw_facts(source, split, -(-total // facts_per_friend) + 1, facts_per_friend)
        fresh, old = known[-facts_per_friend:], known[:-facts_per_friend]
        source.shuffle(old)
        old = old[:total]
        turns = [
            session(source, old[start : start + facts], old[:start])
            for start in range(0, total, facts)
        ]
        current = session(source, fresh[:facts], old)
        row: Row = {
            "dialog": [
                {"text": text, "id": f"Speaker {1 + i % 2}"} for i, text in enumerate(current)
            ],
            "previous_dialogs": [
                {"dialog": [{"text": text} for text in turn_texts]} for turn_texts in turns
            ],
            "metadata": {"initial_data_id": f"mini-{split}-{seed}-{number}"},
        }
        for fact in source.sample(old, min(questions, len(old))):
            made.append(
                {**row, "self_instruct": {"B": fact.question(source.randrange(2)), "A": fact.value}}
            )
    return made


def dailydialog(split: str, seed: int, rows: int = 64, turns: int = 15) -> list[Row]:
    """Generate rows {dialog} with the spaced punctuation of the published text."""
    spoken = (
        recurring_dialogue(rng("dailydialog", split, seed, number), split, turns)
        for number in range(rows)
    )
    return [{"dialog": [re.sub(r"([,?.])", r" \1", turn) for turn in texts]} for texts in spoken]
