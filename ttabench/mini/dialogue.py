"""Conversations of the miniature world: Multi-Session Chat with questions, and DailyDialog.

Facts about friends are told in early turns; later turns, later sessions and questions come back to them.
"""

from __future__ import annotations

import random

from ttabench.mini.world import Fact, draw_entities, facts, rng

Row = dict[str, object]
_REPLIES = ("That is good to hear.", "I did not know that.", "Tell me more.", "How nice.", "You told me once.")
_ASKS = ("Remind me, {q}", "By the way, {q}", "I forgot, {q}")
_ANSWERS = ("As I said, {t}", "You know, {t}", "Well, {t}")


def tell(source: random.Random, split: str, friends: int, each: int) -> list[Fact]:
    """`each` facts about each of `friends` people."""
    people = draw_entities(source, "person", split, friends)
    return [fact for person in people for fact in facts(source, "person", person, each)]


def _exchange(source: random.Random, fact: Fact, known: list[Fact]) -> list[str]:
    """Two turns about a new fact, or four when an old one is asked for again."""
    turns = [f"I think {fact.told()}", source.choice(_REPLIES)]
    if known and source.random() < 0.6:
        old = source.choice(known)
        question = old.question(source.randrange(2))
        turns += [
            source.choice(_ASKS).format(q=question[0].lower() + question[1:]),
            source.choice(_ANSWERS).format(t=old.told()),
        ]
    return turns


def session(source: random.Random, told: list[Fact], known: list[Fact]) -> list[str]:
    """The turns in which the facts of `told` are told, coming back to them and to those of `known`."""
    turns: list[str] = []
    known = list(known)
    for fact in told:
        turns += _exchange(source, fact, known)
        known.append(fact)
    return turns


def conversation(source: random.Random, split: str, turns: int, friends: int = 3) -> list[str]:
    """A dialogue of at least `turns` turns that keeps coming back to what was told."""
    pending, known, spoken = tell(source, split, friends, 3), list[Fact](), list[str]()
    source.shuffle(pending)
    while len(spoken) < turns:
        if not pending:
            pending = tell(source, split, friends, 3)
        fact = pending.pop()
        spoken += _exchange(source, fact, known)
        known.append(fact)
    return spoken[:turns]


def msc(split: str, seed: int, rows: int = 32, sessions: int = 4, facts: int = 4) -> list[Row]:
    """Session-5 rows of Multi-Session Chat with `self_instruct {B: question, A: answer}` (MSC-Self-Instruct)."""
    made: list[Row] = []
    for number in range(rows):
        source = rng("msc", split, seed, number)
        told = tell(source, split, 4, max(1, sessions * facts // 4))
        source.shuffle(told)
        previous = []
        for start in range(0, sessions * facts, facts):
            turns = session(source, told[start : start + facts], told[:start])
            dialog = [{"text": text} for text in turns]
            previous.append(
                {"personas": [], "dialog": dialog, "time_num": 1, "time_unit": "days", "time_back": "1 day"}
            )
        asked = source.choice(told[: sessions * facts])
        made.append(
            {
                "personas": [[], []],
                "init_personas": [[], []],
                "dialog": [{"text": "Good to see you again.", "id": "Speaker 1"}],
                "previous_dialogs": previous,
                "metadata": {"initial_data_id": f"mini-{split}-{seed}-{number}", "session_id": sessions},
                "self_instruct": {"B": asked.question(source.randrange(2)), "A": asked.value},
            }
        )
    return made


def dailydialog(split: str, seed: int, rows: int = 64, turns: int = 15) -> list[Row]:
    """Rows {dialog, act, emotion} with the spaced punctuation of the published text."""
    made: list[Row] = []
    for number in range(rows):
        spoken = conversation(rng("dailydialog", split, seed, number), split, turns)
        spaced = [turn.replace(",", " ,").replace("?", " ?").replace(".", " .") for turn in spoken]
        made.append({"dialog": spaced, "act": [1] * len(spaced), "emotion": [0] * len(spaced)})
    return made
