"""Contexts that many questions share, as published, and how the sub-tasks of SCBench are asked and scored.

    SCBench           {"id": 0, "context": "...", "multi_turns": [{"input": "...", "answer": "...", "options": [...]}]}
    MemoryAgentBench  {"context": "...", "questions": ["..."], "answers": [["..."]], "metadata": {"source": "eventqa"}}

Sources: arXiv 2412.10319 with `scbench/` of github.com/microsoft/MInference; arXiv 2507.05257.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase
from typing import NamedTuple

from ttabench.readers.base import told_apart
from ttabench.readers.cards import Card
from ttabench.readers.faults import brief
from ttabench.readers.formats import RawRow, malformed, text_of
from ttabench.readers.sources import Table, usable

PREFIX = "scbench_"
"""Of the published names of sub-tasks."""


class SubTask(NamedTuple):
    """A sub-task of SCBench; a template of its name on the card has the words of its questions."""

    max_new_tokens: int
    metrics: tuple[str, ...]
    """The first is the main one."""
    lead: str = ""
    """Stands in front of the context."""
    all_of: bool = False
    """Whether an answer holds all gold answers, and not one of them."""


_VALUE = "Extract the value corresponding to the specified key in the JSON object below.\n\n"
_FUNCTION = (
    "Based on the function description and code context, please retrieve and repeat the exact described function from "
    "the code context in a code block wrapped by ```:\n\n"
)
SUB_TASKS = {
    "kv": SubTask(150, ("string_match", "em"), _VALUE),
    "prefix_suffix": SubTask(150, ("string_match", "em")),
    "vt": SubTask(30, ("string_match",), all_of=True),
    "repoqa": SubTask(1024, ("rougeL",), _FUNCTION),
    "qa_eng": SubTask(
        40, ("string_match", "f1_max"), "Read the book and answer the question. Be very concise in your answer.\n\n"
    ),
    "qa_chn": SubTask(40, ("f1_characters",), "阅读以下书籍然后回答问题。\n\n"),
    "choice_eng": SubTask(40, ("acc",), "Read the book and answer the question.\n\n"),
    "mf": SubTask(5, ("first_number",)),
    "many_shot": SubTask(10, ("string_match", "em")),
    "summary": SubTask(200, ("rougeLsum",)),
    "summary_with_needles": SubTask(800, ("rougeLsum", "first_number")),
    "repoqa_and_kv": SubTask(1024, ("rougeL", "string_match")),
    "passkey": SubTask(15, ("first_number",)),  # turns of summary_with_needles
}


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A question about a context."""

    question: str
    answers: tuple[str, ...]
    """As published, at least one; of a choice the letter of the right option."""
    options: tuple[str, ...] = ()
    kind: str = ""
    """Its sub-task, where the turns of a context are of several."""


@dataclass(frozen=True, kw_only=True)
class Shared:
    """A context and the questions about it, in order."""

    id: str
    text: str
    turns: tuple[Turn, ...]

    def texts(self) -> tuple[str, ...]:
        """All that is read, asked or compared with."""
        return (self.text, *(text for turn in self.turns for text in (turn.question, *turn.answers, *turn.options)))


def sub_task_of(where: str) -> str:
    """The sub-task of SCBench that a path names ("scbench_kv.jsonl", "scbench_kv/test.parquet"), or ""."""
    names = (part.split(".")[0] for part in reversed(Path(where).parts))
    return next((name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX)), "")


def contexts_of(card: Card, data: Table) -> tuple[list[Shared], dict[str, int]]:
    """(contexts in file order, dropped rows by reason); of one id the later ones end in #2, #3 ..."""
    seen = Counter[str]()

    def row_of(raw: RawRow) -> Shared | str:
        text = text_of(raw.place, "the context", raw.needed(card.columns["text"]))
        turns = _turns(card, raw)
        if not text.strip() or not turns:
            return "no context" if turns else "no question"
        name = raw.cell(card.columns["id"])
        number = raw.place.rpartition(" ")[2]
        return Shared(id=told_apart(number if name is None else str(name), seen), text=text, turns=turns)

    return usable(data, row_of)


def _turns(card: Card, raw: RawRow) -> tuple[Turn, ...]:
    given = raw.cell(card.columns["turns"])
    if given is not None:
        if not isinstance(given, list) or not all(isinstance(turn, dict) for turn in given):
            raise malformed(raw.place, f"its turns are {brief(given)}, no list of {{input, answer}}")
        return tuple(_turn(f"{raw.place} turn {number}", turn) for number, turn in enumerate(given, start=1))
    questions = raw.needed((*card.columns["questions"], *card.columns["turns"]))
    answers = raw.needed(card.columns["answers"])
    if not isinstance(questions, list) or not isinstance(answers, list) or len(questions) != len(answers):
        raise malformed(raw.place, "its questions and answers are no lists of one length")
    about = raw.cell(card.columns["kind"])
    kind = about.get("source") if isinstance(about, dict) else about
    return tuple(
        _turn(f"{raw.place} question {number}", {"input": question, "answer": answer, "task": kind})
        for number, (question, answer) in enumerate(zip(questions, answers, strict=True), start=1)
    )


def _turn(place: str, given: Mapping[str, object]) -> Turn:
    question = text_of(place, "the question", given.get("input")).strip()
    answers, options = _texts(place, given.get("answer")), _texts(place, given.get("options"))
    if not question or not answers:
        raise malformed(place, f"it has no {'answer' if question else 'question'}")
    if options:
        letters = ascii_uppercase[: len(options)]
        right = next((letter for letter, option in zip(letters, options, strict=False) if option in answers), "")
        if len(options) > len(letters) or not (right or answers[0] in tuple(letters)):
            raise malformed(place, f"its answer {brief(answers[0])} is none of its {len(options)} options")
        answers = (right or answers[0],)
    kind = given.get("task")
    return Turn(
        question=question, answers=answers, options=options, kind="" if kind is None else str(kind).removeprefix(PREFIX)
    )


def _texts(place: str, given: object) -> tuple[str, ...]:
    """A text, a number, or a list of them, as texts; several answers to a question are all right, or all wanted."""
    members = given if isinstance(given, list | tuple) else [] if given is None else [given]
    if not all(isinstance(member, str | int | float) and not isinstance(member, bool) for member in members):
        raise malformed(place, f"{brief(given)} is no text and no list of texts")
    return tuple(dict.fromkeys(text for member in members if (text := str(member).strip())))
