"""A context that is read once, in pieces, and many questions about it (SCBench, arXiv 2412.10319).

Modes (`mode`):
    requests   Every question alone behind the context: several users ask about one text.
    turns      Every question behind the context and the questions before it with their right answers, which are read
               like the context: one user goes on asking. The column `step` tells the turns apart.

    Episode("shared_context/test/0", [Observe(piece 1), Observe(piece 2), Ask("Where does Ada Voss live?"),
                                      Observe("Where does Ada Voss live? Selby"), Ask("What pet does ...?"), ...])

One context is one episode. The sub-tasks of SCBench have prompts, lengths of answers and metrics of their own
(`SUB_TASKS`, from `scbench/` of github.com/microsoft/MInference); options are chosen among by their letters.

Rows as published, of MemoryAgentBench (arXiv 2507.05257), BABILong (2406.10149) and LongMemEval (2410.10813) too:

    SCBench           {"id": 0, "context": "...", "multi_turns": [{"input": "...", "answer": "...", "options": [...]}]}
    MemoryAgentBench  {"context": "...", "questions": ["..."], "answers": [["..."]], "metadata": {"source": "eventqa"}}
    BABILong          {"input": "...", "question": "Where is Mary?", "target": "kitchen"}
    LongMemEval       {"question_id": "1", "question_type": "multi-session", "question": "...", "answer": "...",
                       "haystack_dates": ["..."], "haystack_sessions": [[{"role": "user", "content": "..."}]]}
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from string import ascii_uppercase
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from ttabench.core.errors import UnknownName, UserError
from ttabench.core.types import Ask, At, Episode, Generate, Json, Observe, Step
from ttabench.mini.world import names_in
from ttabench.readers.base import Bound, Training, drawn, in_order, shares, spread, told_apart
from ttabench.readers.cards import Card, ProtocolSettings
from ttabench.readers.formats import RawRow, brief
from ttabench.readers.sources import Request, Table, resolve, rows_of, usable
from ttabench.readers.tokens import CutText, TokenCount, TokenLimit, Tokens

PREFIX = "scbench_"
"""Of the published names of sub-tasks."""
ABSTAINS, JUDGED = "_abs", ("single-session-preference",)
"""Questions of LongMemEval whose answers no string tells to be right: end of their ids, and kinds."""


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


def contexts_of(card: Card, data: Table) -> list[Shared]:
    """Contexts in file order; of one id the later ones end in #2, #3 ..."""
    seen = Counter[str]()

    def row_of(raw: RawRow) -> Shared | str:
        text = _context(card, raw)
        turns = tuple(map(_turn, _given(card, raw)))
        name = raw.cell(card.columns["id"])
        if "sessions" in card.columns and (str(name).endswith(ABSTAINS) or turns[0].kind in JUDGED):
            return "judged by a language model"
        if not text.strip() or not turns:
            return "no context" if turns else "no question"
        number = raw.place.rpartition(" ")[2]
        return Shared(id=told_apart(number if name is None else str(name), seen), text=text, turns=turns)

    return usable(data, row_of)


def _context(card: Card, raw: RawRow) -> str:
    """What is read: a text, or dated sessions of a chat as one."""
    sessions: Any = raw.cell(card.columns.get("sessions", ()))
    if sessions is None:
        return raw.text(*card.columns["text"])
    dates: Any = raw.cell(card.columns["dates"]) or [""] * len(sessions)
    lines = ("\n".join(f"{turn['role']}: {turn['content']}" for turn in session) for session in sessions)
    return "\n\n".join(f"{date}\n{text}".strip() for date, text in zip(dates, lines, strict=True))


def _given(card: Card, raw: RawRow) -> list[dict[str, Any]]:
    """Its turns as SCBench has them."""
    given: Any = raw.cell(card.columns["turns"])
    if given is not None:
        return [dict(turn) for turn in given]
    questions: Any = raw.needed((*card.columns["questions"], *card.columns["turns"]))
    answers: Any = raw.needed(card.columns["answers"])
    if isinstance(questions, str):
        questions, answers = [questions], [answers]
    about = raw.cell(card.columns["kind"])
    kind = about.get("source") if isinstance(about, dict) else about
    pairs = zip(questions, answers, strict=True)
    return [{"input": question, "answer": answer, "task": kind} for question, answer in pairs]


def _turn(given: Mapping[str, Any]) -> Turn:
    question = str(given.get("input") or "").strip()
    answers, options = _texts(given.get("answer")), _texts(given.get("options"))
    if not question or not answers:
        raise ValueError(f"a turn has no {'answer' if question else 'question'}")
    if options:
        letters = ascii_uppercase[: len(options)]
        right = dict(zip(options, letters, strict=True)).get(answers[0], answers[0])
        if right not in tuple(letters):
            raise ValueError(f"the answer {brief(right)} is none of its {len(options)} options")
        answers = (right,)
    kind = str(given.get("task") or "").removeprefix(PREFIX)
    return Turn(question=question, answers=answers, options=options, kind=kind)


def _texts(given: object) -> tuple[str, ...]:
    """A text, a number, or a list of them, as texts; several answers to a question are all right, or all wanted."""
    members = given if isinstance(given, list | tuple) else [] if given is None else [given]
    if not all(isinstance(member, str | int | float) for member in members):
        raise ValueError(f"{brief(given)} is no text and no list of texts")
    return tuple(dict.fromkeys(text for member in members if (text := str(member).strip())))


class Settings(ProtocolSettings):
    """The protocol part of a card of this reader, and what `--task-set` may change."""

    mode: Literal["requests", "turns"] = "requests"
    task: str = ""
    """The sub-task of SCBench; where none is given, the one that the name of the file or its folder says, if any."""
    contexts: Annotated[int, Field(gt=0)] | None = None
    """How many, drawn by the seed; None for all of them."""
    tokens: TokenLimit = 0
    """Of a context, at most: of a longer one the first and the last half of so many are read; 0 for no limit."""
    piece: TokenCount = 512
    """Tokens of a piece, at most; it ends with a line where one fits."""
    prompt: str = "bare"
    """Name of a question template of the card."""
    max_new_tokens: TokenCount | None = None
    """None for what the sub-task says, 16 where none is known."""


@dataclass(frozen=True, kw_only=True)
class SharedContext(Bound[Settings]):
    """A `readers.Task` over contexts, one episode each."""

    found: Sequence[Shared]
    """All of the source, in file order."""
    chosen: Sequence[Shared]
    """Those that are read and asked about."""

    def laid(self, tokens: Tokens | None) -> Iterator[tuple[Episode, Shared]]:
        """One episode a context that is asked about."""
        for shared, share in zip(self.chosen, shares(self.limit, len(self.chosen)), strict=True):
            if asks := spread([self._ask(shared, number) for number in range(len(shared.turns))], share):
                yield Episode(key=self.key(shared.id), steps=self._steps(shared, asks, tokens)), shared

    def others(self, tokens: Tokens | None = None) -> Iterator[Episode]:
        """Each with the next context of another text, and its turns, in place of its own; of a twin about others."""
        for episode, own in self.laid(tokens):
            candidates = self.around(self.found, own, partial(contexts_of, self.card), contexts=2)
            other = self.apart(self._about(own), candidates, self._about)
            yield Episode(key=episode.key, steps=self._steps(other, episode.asks(), tokens))

    def _steps(self, read: Shared, asks: Sequence[Ask], tokens: Tokens | None) -> tuple[Step, ...]:
        """A context, and questions about this or another one: behind it, or behind as many of its turns."""
        pieces = list(self._pieces(read, tokens))
        places = [len(pieces) + (ask.at.count - 1 if self.settings.mode == "turns" else 0) for ask in asks]
        told = [*pieces, *(self._told(read, number) for number in range(len(read.turns)))]
        return tuple(in_order(told, zip(places, asks, strict=True)))

    def _pieces(self, shared: Shared, tokens: Tokens | None) -> Iterator[Observe]:
        task = SUB_TASKS.get(self.settings.task)
        cut = CutText.of((task.lead if task else "") + shared.text, tokens)
        most, size = self.settings.tokens, len(cut)
        parts = [(0, size)] if not most or size <= most else [(0, most - most // 2), (size - most // 2, size)]
        for first, last in parts:
            yield from cut.range(first, last).pieces(self.settings.piece, shared.id, first)

    def _worded(self, turn: Turn) -> str:
        """A question, with its options, in the words of its template."""
        options = (f"\n{letter}. {option}" for letter, option in zip(ascii_uppercase, turn.options, strict=False))
        return self.card.prompt.asked("".join((turn.question, *options)), self.settings.prompt)

    def _told(self, shared: Shared, number: int) -> Observe:
        """A turn that was answered right."""
        turn, prompt = shared.turns[number], self.card.prompt
        text = f"{self._worded(turn)}{prompt.delimiter}{self._generated(turn).target}"
        return Observe(text=text, key=f"{shared.id}/turn{number + 1}", joiner=prompt.joiner)

    def _generated(self, turn: Turn) -> Generate:
        """The want of a question without options, as its sub-task has it."""
        own = SUB_TASKS.get(turn.kind) or SUB_TASKS.get(self.settings.task)
        most = self.settings.max_new_tokens or (own.max_new_tokens if own else 16)
        return replace(self.card.prompt.generated(turn.answers, most), all_of=bool(own and own.all_of))

    def _ask(self, shared: Shared, number: int) -> Ask:
        turn, prompt = shared.turns[number], self.card.prompt
        letters = ascii_uppercase[: len(turn.options)]
        return Ask(
            prompt=self._worded(turn),
            question=turn.question,
            key=f"{shared.id}/{number + 1}",
            want=prompt.chosen(letters, turn.answers[0]) if letters else self._generated(turn),
            joiner=prompt.joiner,
            subtask=turn.kind,
            at=At(number + 1 if self.settings.mode == "turns" else 0),
        )

    def _about(self, shared: Shared) -> set[str]:
        return {name for text in shared.texts() for name in names_in(text)} if self.mini else {shared.text}

    def training_steps(self, training: Training) -> Iterator[tuple[str, tuple[Step, ...]]]:
        """One context each; a mini source writes a new one, files are read in epochs, each in a new order."""
        for shared in self.epochs(training.draws, self.chosen, partial(contexts_of, self.card), contexts=1):
            asks = [self._ask(shared, number) for number in range(len(shared.turns))]
            yield self.split, self._steps(shared, asks, training.tokens)

    def counts(self) -> dict[str, Json]:
        """Counts of the source, and of the queries asked."""
        return {"rows": len(self.found), "contexts": len(self.chosen), "questions": self.n_asks}

    def texts(self) -> Iterator[str]:
        """Every context with its questions."""
        for shared in self.chosen:
            yield from (shared.id, *shared.texts())


def _of_sub_task(card: Card, settings: Settings, typed: bool, where: str) -> tuple[Card, Settings]:
    """Card and settings of the sub-task that is asked for, or that the source is named after."""
    parts = (part.split(".")[0] for part in Path(where).parts)  # scbench_kv.jsonl, scbench_kv/test.parquet
    name = (settings.task or next((part for part in parts if part.startswith(PREFIX)), "")).removeprefix(PREFIX)
    if not name:
        return card, settings
    if name not in SUB_TASKS:
        raise UnknownName(f"sub-task of {card.name}", name, list(SUB_TASKS))
    prompt = name if name in card.prompt.templates and not typed else settings.prompt
    return card.measured(*SUB_TASKS[name].metrics), settings.model_copy(update={"task": name, "prompt": prompt})


def read(card: Card, request: Request) -> SharedContext:
    """Bind a card of this reader to its data; see `readers.load`."""
    settings, arguments = resolve(card, request, Settings)
    data = rows_of(card, request, {**arguments, "contexts": settings.contexts or 16})
    if request.source != "mini":
        card, settings = _of_sub_task(card, settings, "prompt" in request.options, data.where)
    found = contexts_of(card, data)
    chosen = drawn(found, settings.contexts, f"contexts {request.seed}")
    choosing = [bool(turn.options) for shared in chosen for turn in shared.turns]
    if any(choosing):
        if not all(choosing):
            raise UserError(f"{data.where} has questions with options and others without.", "Give them apart.")
        card = card.measured("acc", "option_nll", chance=None)
    return SharedContext(
        card=card, request=request, settings=settings, arguments=arguments, data=data, found=found, chosen=chosen
    )
