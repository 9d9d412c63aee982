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
from ttabench.core.types import Chunk, Episode, Generate, Json, Query, Step, StreamPosition
from ttabench.mini.world import names_in
from ttabench.readers.base import (
    Task,
    Training,
    interleave,
    make_unique,
    pick_evenly,
    sample_rows,
    split_limit,
)
from ttabench.readers.cards import Card, ProtocolSettings
from ttabench.readers.formats import RawRow, short_repr
from ttabench.readers.sources import RawTable, Request, load_rows, parse_table, resolve_settings
from ttabench.readers.tokens import TokenCount, TokenizedText, TokenLimit, Tokens

SUB_TASK_PREFIX = "scbench_"
"""Of the published names of sub-tasks."""
ABSTENTION_SUFFIX, JUDGED_KINDS = "_abs", ("single-session-preference",)
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
        40,
        ("string_match", "f1_max"),
        "Read the book and answer the question. Be very concise in your answer.\n\n",
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
class ContextWithTurns:
    """A context and the questions about it, in order."""

    id: str
    text: str
    turns: tuple[Turn, ...]

    def texts(self) -> tuple[str, ...]:
        """All that is read, asked or compared with."""
        return (
            self.text,
            *(
                text
                for turn in self.turns
                for text in (turn.question, *turn.answers, *turn.options)
            ),
        )


def parse_contexts(card: Card, data: RawTable) -> list[ContextWithTurns]:
    """Contexts in file order; of one id the later ones end in #2, #3 ..."""
    seen = Counter[str]()

    def row_of(raw: RawRow) -> ContextWithTurns | str:
        text = _context_text(card, raw)
        turns = tuple(map(_parse_turn, _published_turns(card, raw)))
        name = raw.cell(card.columns["id"])
        if "sessions" in card.columns and (
            str(name).endswith(ABSTENTION_SUFFIX) or turns[0].kind in JUDGED_KINDS
        ):
            return "judged by a language model"
        if not text.strip() or not turns:
            return "no context" if turns else "no question"
        number = raw.location.rpartition(" ")[2]
        return ContextWithTurns(
            id=make_unique(number if name is None else str(name), seen), text=text, turns=turns
        )

    return parse_table(data, row_of)


def _context_text(card: Card, raw: RawRow) -> str:
    """What is read: a text, or dated sessions of a chat as one."""
    sessions: Any = raw.cell(card.columns.get("sessions", ()))
    if sessions is None:
        return raw.text(*card.columns["text"])
    dates: Any = raw.cell(card.columns["dates"]) or [""] * len(sessions)
    lines = (
        "\n".join(f"{turn['role']}: {turn['content']}" for turn in session) for session in sessions
    )
    return "\n\n".join(f"{date}\n{text}".strip() for date, text in zip(dates, lines, strict=True))


def _published_turns(card: Card, raw: RawRow) -> list[dict[str, Any]]:
    """Its turns as SCBench has them."""
    given: Any = raw.cell(card.columns["turns"])
    if given is not None:
        return [dict(turn) for turn in given]
    questions: Any = raw.require((*card.columns["questions"], *card.columns["turns"]))
    answers: Any = raw.require(card.columns["answers"])
    if isinstance(questions, str):
        questions, answers = [questions], [answers]
    about = raw.cell(card.columns["kind"])
    kind = about.get("source") if isinstance(about, dict) else about
    pairs = zip(questions, answers, strict=True)
    return [{"input": question, "answer": answer, "task": kind} for question, answer in pairs]


def _parse_turn(given: Mapping[str, Any]) -> Turn:
    question = str(given.get("input") or "").strip()
    answers, options = _texts(given.get("answer")), _texts(given.get("options"))
    if not question or not answers:
        raise ValueError(f"a turn has no {'answer' if question else 'question'}")
    if options:
        letters = ascii_uppercase[: len(options)]
        right = dict(zip(options, letters, strict=True)).get(answers[0], answers[0])
        if right not in tuple(letters):
            raise ValueError(
                f"the answer {short_repr(right)} is none of its {len(options)} options"
            )
        answers = (right,)
    kind = str(given.get("task") or "").removeprefix(SUB_TASK_PREFIX)
    return Turn(question=question, answers=answers, options=options, kind=kind)


def _texts(given: object) -> tuple[str, ...]:
    """A text, a number, or a list of them, as texts; several answers to a question are all right, or all wanted."""
    members = given if isinstance(given, list | tuple) else [] if given is None else [given]
    if not all(isinstance(member, str | int | float) for member in members):
        raise ValueError(f"{short_repr(given)} is no text and no list of texts")
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
class SharedContext(Task[Settings]):
    """A `readers.Task` over contexts, one episode each."""

    available: Sequence[ContextWithTurns]
    """All of the source, in file order."""
    selected: Sequence[ContextWithTurns]
    """Those that are read and asked about."""

    def episodes_with_source(
        self, tokens: Tokens | None
    ) -> Iterator[tuple[Episode, ContextWithTurns]]:
        """One episode a context that is asked about."""
        for context, share in zip(
            self.selected, split_limit(self.limit, len(self.selected)), strict=True
        ):
            if queries := pick_evenly(
                [self._query(context, number) for number in range(len(context.turns))], share
            ):
                yield (
                    Episode(
                        key=self.episode_key(context.id),
                        steps=self._steps(context, queries, tokens),
                    ),
                    context,
                )

    def swapped_episodes(self, tokens: Tokens | None = None) -> Iterator[Episode]:
        """Each with the next context of another text, and its turns, in place of its own; of a twin about others."""
        for episode, own in self.episodes_with_source(tokens):
            candidates = self.candidates(
                self.available, own, partial(parse_contexts, self.card), contexts=2
            )
            other = self.first_disjoint(self._contents(own), candidates, self._contents)
            yield Episode(key=episode.key, steps=self._steps(other, episode.queries(), tokens))

    def _steps(
        self, read: ContextWithTurns, queries: Sequence[Query], tokens: Tokens | None
    ) -> tuple[Step, ...]:
        """A context, and questions about this or another one: behind it, or behind as many of its turns."""
        chunks = list(self._chunks(read, tokens))
        places = [
            len(chunks) + (query.at.count - 1 if self.settings.mode == "turns" else 0)
            for query in queries
        ]
        chunks_and_turns = [
            *chunks,
            *(self._answered_turn(read, number) for number in range(len(read.turns))),
        ]
        return tuple(interleave(chunks_and_turns, zip(places, queries, strict=True)))

    def _chunks(self, context: ContextWithTurns, tokens: Tokens | None) -> Iterator[Chunk]:
        task = SUB_TASKS.get(self.settings.task)
        cut = TokenizedText.tokenize((task.lead if task else "") + context.text, tokens)
        most, size = self.settings.tokens, len(cut)
        parts = (
            [(0, size)]
            if not most or size <= most
            else [(0, most - most // 2), (size - most // 2, size)]
        )
        for first, last in parts:
            yield from cut.slice_tokens(first, last).chunks(self.settings.piece, context.id, first)

    def _question_text(self, turn: Turn) -> str:
        """A question, with its options, in the words of its template."""
        options = (
            f"\n{letter}. {option}"
            for letter, option in zip(ascii_uppercase, turn.options, strict=False)
        )
        return self.card.prompt.fill_template(
            "".join((turn.question, *options)), self.settings.prompt
        )

    def _answered_turn(self, context: ContextWithTurns, number: int) -> Chunk:
        """A turn that was answered right."""
        turn, prompt = context.turns[number], self.card.prompt
        text = f"{self._question_text(turn)}{prompt.delimiter}{self._generate_want(turn).target}"
        return Chunk(text=text, key=f"{context.id}/turn{number + 1}", joiner=prompt.joiner)

    def _generate_want(self, turn: Turn) -> Generate:
        """The want of a question without options, as its sub-task has it."""
        own = SUB_TASKS.get(turn.kind) or SUB_TASKS.get(self.settings.task)
        most = self.settings.max_new_tokens or (own.max_new_tokens if own else 16)
        return replace(
            self.card.prompt.make_generate(turn.answers, most), all_of=bool(own and own.all_of)
        )

    def _query(self, context: ContextWithTurns, number: int) -> Query:
        turn, prompt = context.turns[number], self.card.prompt
        letters = ascii_uppercase[: len(turn.options)]
        return Query(
            prompt=self._question_text(turn),
            question=turn.question,
            key=f"{context.id}/{number + 1}",
            want=prompt.make_choose(letters, turn.answers[0])
            if letters
            else self._generate_want(turn),
            joiner=prompt.joiner,
            subtask=turn.kind,
            at=StreamPosition(number + 1 if self.settings.mode == "turns" else 0),
        )

    def _contents(self, context: ContextWithTurns) -> set[str]:
        return (
            {name for text in context.texts() for name in names_in(text)}
            if self.is_synthetic
            else {context.text}
        )

    def training_steps(self, training: Training) -> Iterator[tuple[str, tuple[Step, ...]]]:
        """One context each; a mini source writes a new one, files are read in epochs, each in a new order."""
        for context in self.iter_training_rows(
            training.rng, self.selected, partial(parse_contexts, self.card), contexts=1
        ):
            queries = [self._query(context, number) for number in range(len(context.turns))]
            yield self.split, self._steps(context, queries, training.tokens)

    def counts(self) -> dict[str, Json]:
        """Counts of the source, and of the queries asked."""
        return {
            "rows": len(self.available),
            "contexts": len(self.selected),
            "questions": self.n_queries,
        }

    def texts(self) -> Iterator[str]:
        """Every context with its questions."""
        for context in self.selected:
            yield from (context.id, *context.texts())


def _apply_sub_task(
    card: Card, settings: Settings, typed: bool, where: str
) -> tuple[Card, Settings]:
    """Card and settings of the sub-task that is asked for, or that the source is named after."""
    parts = (
        part.split(".")[0] for part in Path(where).parts
    )  # scbench_kv.jsonl, scbench_kv/test.parquet
    name = (
        settings.task or next((part for part in parts if part.startswith(SUB_TASK_PREFIX)), "")
    ).removeprefix(SUB_TASK_PREFIX)
    if not name:
        return card, settings
    if name not in SUB_TASKS:
        raise UnknownName(f"sub-task of {card.name}", name, list(SUB_TASKS))
    prompt = name if name in card.prompt.templates and not typed else settings.prompt
    return card.with_metrics(*SUB_TASKS[name].metrics), settings.model_copy(
        update={"task": name, "prompt": prompt}
    )


def read(card: Card, request: Request) -> SharedContext:
    """Bind a card of this reader to its data; see `readers.load`."""
    settings, arguments = resolve_settings(card, request, Settings)
    data = load_rows(card, request, {**arguments, "contexts": settings.contexts or 16})
    if request.source != "mini":
        card, settings = _apply_sub_task(card, settings, "prompt" in request.options, data.location)
    available = parse_contexts(card, data)
    selected = sample_rows(available, settings.contexts, f"contexts {request.seed}")
    choosing = [bool(turn.options) for context in selected for turn in context.turns]
    if any(choosing):
        if not all(choosing):
            raise UserError(
                f"{data.location} has questions with options and others without.",
                "Give them apart.",
            )
        card = card.with_metrics("acc", "option_nll", chance=None)
    return SharedContext(
        card=card,
        request=request,
        settings=settings,
        arguments=arguments,
        data=data,
        available=available,
        selected=selected,
    )
