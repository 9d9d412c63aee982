"""A context that is read once, in chunks, with many questions about it (SCBench, arXiv 2412.10319).

Modes (`mode`):
    requests   Every question directly after the context: several users query one text.
    turns      Every question after the context and the earlier questions with their right answers,
               which are read like the context: one user continues. The column `step` numbers the
               turns.

    Episode("shared_context/test/0", [Chunk(1), Chunk(2), Query("Where does Ada Voss live?"),
                                      Chunk("Where does Ada Voss live? Selby"),
                                      Query("What pet does ...?"), ...])

Each context is one episode. The sub-tasks of SCBench have their own prompts, answer lengths and
metrics (`SUB_TASKS`, from `scbench/` of github.com/microsoft/MInference). Options are chosen by
their letters, or by their texts (`choices`).

Rows as published, also of MemoryAgentBench (arXiv 2507.05257), BABILong (2406.10149), LongMemEval
(2410.10813), LongHealth (2401.14490) and QuALITY (2112.08608):

    SCBench           {"id": 0, "context": "...",
                       "multi_turns": [{"input": "...", "answer": "...", "options": [...]}]}
    MemoryAgentBench  {"context": "...", "questions": ["..."], "answers": [["..."]],
                       "metadata": {"source": "eventqa"}}
    BABILong          {"input": "...", "question": "Where is Mary?", "target": "kitchen"}
    LongMemEval       {"question_id": "1", "question_type": "multi-session",
                       "question": "...", "answer": "...", "haystack_dates": ["..."],
                       "haystack_sessions": [[{"role": "user", "content": "..."}]]}
    LongHealth        {"patient_01": {"texts": {"text_0": "...", "text_1": "..."},
                                      "questions": [{"question": "...", "answer_a": "...", ...,
                                                     "answer_e": "...", "correct": "..."}]}}
    QuALITY           {"article_id": "20007", "article": "...",
                       "questions": [{"question": "...", "options": ["...", ...],
                                      "gold_label": 1, "difficult": 0}]}

Rows with the same id and text are one context: QuALITY has two rows per article.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from string import ascii_uppercase
from typing import Any, Literal, NamedTuple

from pydantic import PositiveInt

from ttabench.core.errors import UserError, require_known
from ttabench.core.types import Choose, Chunk, Episode, Generate, Json, Query, Step, StreamPosition
from ttabench.mini.world import names_in
from ttabench.readers.base import (
    Task,
    Training,
    divide_limit,
    interleave,
    make_unique,
    pick_evenly,
    sample_rows,
    select_names,
)
from ttabench.readers.cards import Card, ProtocolSettings
from ttabench.readers.formats import RawRow, read_json_lines, require_text, short_repr
from ttabench.readers.sources import RawTable, Request, load_rows, parse_table, resolve_settings
from ttabench.readers.tokens import TokenCount, TokenizedText, TokenLimit, Tokens

SUB_TASK_PREFIX = "scbench_"
"""Start of the published names of sub-tasks."""
ABSTENTION_SUFFIX, JUDGED_KINDS = "_abs", ("single-session-preference",)
"""LongMemEval questions that need a judge: suffix of their ids, and kinds."""
DOCUMENT_SEPARATOR = "\n\n"
QUALITY_FORMATS = dict.fromkeys((".train", ".dev"), read_json_lines)
"""Formats by the suffixes of QuALITY's files."""


class SubTask(NamedTuple):
    """A sub-task of SCBench; its question template on the card has the same name."""

    max_new_tokens: int
    metrics: tuple[str, ...]
    """Metrics, the main one first."""
    lead: str = ""
    """Text before the context."""
    all_of: bool = False
    """True if an answer must contain all gold answers, not any one of them."""


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
    """As published, at least one; for a choice the letter of the right option."""
    options: tuple[str, ...] = ()
    kind: str = ""
    """Its sub-task, if the turns of a context belong to several."""


@dataclass(frozen=True, kw_only=True)
class ContextWithTurns:
    """A context and its questions, in order."""

    id: str
    text: str
    turns: tuple[Turn, ...]
    document_starts: tuple[int, ...] = ()
    """Characters at which a document of the text begins. A chunk holds text of one document."""

    def texts(self) -> tuple[str, ...]:
        """Return every text that is read, queried or compared with."""
        return (
            self.text,
            *(
                text
                for turn in self.turns
                for text in (turn.question, *turn.answers, *turn.options)
            ),
        )


def parse_contexts(card: Card, data: RawTable) -> list[ContextWithTurns]:
    """Parse contexts in file order. Rows with the same id and text are one context; other repeated
    ids end in #2, #3, ...
    """

    def row_of(raw: RawRow) -> ContextWithTurns | str:
        documents = _documents(card, raw)
        turns = tuple(map(_parse_turn, _published_turns(card, raw)))
        name = raw.cell(card.columns["id"])
        if "sessions" in card.columns and (
            str(name).endswith(ABSTENTION_SUFFIX) or turns[0].kind in JUDGED_KINDS
        ):
            return "judged by a language model"
        if not documents or not turns:
            return "no context" if turns else "no question"
        number = raw.location.rpartition(" ")[2]
        sizes = (len(document) + len(DOCUMENT_SEPARATOR) for document in documents[:-1])
        return ContextWithTurns(
            id=number if name is None else str(name),
            text=DOCUMENT_SEPARATOR.join(documents),
            turns=turns,
            document_starts=tuple(accumulate(sizes)),
        )

    merged = dict[tuple[str, str], ContextWithTurns]()
    for context in parse_table(data, row_of):
        earlier = merged.setdefault((context.id, context.text), context)
        if earlier is not context:
            both = replace(context, turns=earlier.turns + context.turns)
            merged[context.id, context.text] = both
    seen = Counter[str]()
    return [replace(context, id=make_unique(context.id, seen)) for context in merged.values()]


def _documents(card: Card, raw: RawRow) -> list[str]:
    """Return the documents of a context that have text; dated sessions of a chat are one."""
    sessions: Any = raw.cell(card.columns.get("sessions", ()))
    if sessions is None:
        texts = raw.require(card.columns["text"])
        named = texts if isinstance(texts, dict) else {card.columns["text"][0]: texts}
        documents = [require_text(name, text) for name, text in named.items()]
    else:
        dates: Any = raw.cell(card.columns["dates"]) or [""] * len(sessions)
        lines = (
            "\n".join(f"{turn['role']}: {turn['content']}" for turn in session)
            for session in sessions
        )
        dated = (f"{date}\n{text}".strip() for date, text in zip(dates, lines, strict=True))
        documents = ["\n\n".join(dated)]
    return [document for document in documents if document.strip()]


def _published_turns(card: Card, raw: RawRow) -> list[dict[str, Any]]:
    """Return the turns in SCBench's format."""
    given: Any = raw.cell(card.columns["turns"])
    if given is not None:
        return [_in_scbench_format(turn) for turn in given]
    questions: Any = raw.require((*card.columns["questions"], *card.columns["turns"]))
    answers: Any = raw.require(card.columns["answers"])
    if isinstance(questions, str):
        questions, answers = [questions], [answers]
    about = raw.cell(card.columns["kind"])
    kind = about.get("source") if isinstance(about, dict) else about
    pairs = zip(questions, answers, strict=True)
    return [{"input": question, "answer": answer, "task": kind} for question, answer in pairs]


def _in_scbench_format(turn: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a question of LongHealth or QuALITY; the hard subset of QuALITY is a sub-task."""
    if "answer_a" in turn:
        options = [turn[f"answer_{letter}"] for letter in "abcde"]
        return {"input": turn["question"], "options": options, "answer": turn["correct"]}
    if "difficult" in turn:
        by_label = dict[object, Any](enumerate(turn["options"], start=1))
        return {
            "input": turn["question"],
            "options": turn["options"],
            "answer": by_label.get(turn.get("gold_label")),
            "task": "hard" if turn["difficult"] else "easy",
        }
    return dict(turn)


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
                f"the answer {short_repr(right)} is not among its {len(options)} options"
            )
        answers = (right,)
    kind = str(given.get("task") or "").removeprefix(SUB_TASK_PREFIX)
    return Turn(question=question, answers=answers, options=options, kind=kind)


def _texts(given: object) -> tuple[str, ...]:
    """Convert a text, a number or a list of them to texts; several answers are all right, or all
    required.
    """
    members = given if isinstance(given, list | tuple) else [] if given is None else [given]
    if not all(isinstance(member, str | int | float) for member in members):
        raise ValueError(f"{short_repr(given)} is neither a text nor a list of texts")
    return tuple(dict.fromkeys(text for member in members if (text := str(member).strip())))


class Settings(ProtocolSettings):
    """Protocol settings of this reader; `--task-set` may change them."""

    mode: Literal["requests", "turns"] = "requests"
    """Position of the questions: all after the context, or one turn after the other."""
    task: str = ""
    """Sub-task of SCBench; by default the one named by the file or its folder, if any."""
    contexts: PositiveInt | None = None
    """Number of contexts, drawn with the seed; None for all."""
    tokens: TokenLimit = 0
    """Maximum tokens of a context; of a longer one, the first and the last half of them are read. 0
    for no limit.
    """
    piece: TokenCount = 512
    """Maximum tokens of a chunk; it ends with a line if one fits."""
    prompt: str = "bare"
    """Name of a question template of the card."""
    choices: Literal["letters", "texts"] = "letters"
    """Scored options of a multiple-choice question: letters, after a list of the texts, or the
    texts themselves.
    """
    kinds: str = "all"
    """Kinds of questions (column `subtask`), separated by commas."""
    max_new_tokens: TokenCount | None = None
    """Maximum tokens of an answer; None for the sub-task's maximum, or 16 without a sub-task."""


@dataclass(frozen=True)
class SharedContext(Task[Settings]):
    """A `Task` over contexts, one episode each."""

    available: Sequence[ContextWithTurns]
    """All contexts of the source, in file order."""
    selected: Sequence[ContextWithTurns]
    """Contexts that are read and queried."""

    def episodes_with_source(
        self, tokens: Tokens | None
    ) -> Iterator[tuple[Episode, ContextWithTurns]]:
        """Yield one episode per queried context."""
        for context, share in divide_limit(self.limit, self.selected):
            every = [self._query(context, number) for number in range(len(context.turns))]
            if queries := pick_evenly(every, share):
                steps = self._steps(context, queries, tokens)
                yield Episode(key=self.episode_key(context.id), steps=steps), context

    def swapped_episodes(self, tokens: Tokens | None = None) -> Iterator[Episode]:
        """Yield each episode with the next context of another text, and its turns; in the synthetic
        world about other people.
        """
        for episode, own in self.episodes_with_source(tokens):
            candidates = self.candidates(
                self.available, own, partial(parse_contexts, self.card), contexts=2
            )
            other = self.first_disjoint(self._contents(own), candidates, self._contents)
            yield Episode(key=episode.key, steps=self._steps(other, episode.queries(), tokens))

    @property
    def _sub_task(self) -> SubTask:
        return SUB_TASKS.get(self.settings.task, SubTask(max_new_tokens=16, metrics=()))

    def _steps(
        self, read: ContextWithTurns, queries: Sequence[Query], tokens: Tokens | None
    ) -> tuple[Step, ...]:
        """Return a context, with questions about this or another one after it, or after as many of
        its turns.
        """
        chunks = list(self._chunks(read, tokens))
        turns = [self._answered_turn(read, number) for number in range(len(read.turns))]
        # the count is 0 if the questions are requests
        queries_by_place = ((len(chunks) + max(0, query.at.count - 1), query) for query in queries)
        return tuple(interleave([*chunks, *turns], queries_by_place))

    def _chunks(self, context: ContextWithTurns, tokens: Tokens | None) -> Iterator[Chunk]:
        cut = TokenizedText.tokenize(self._sub_task.lead + context.text, tokens)
        max_tokens = self.settings.tokens
        size = len(cut)
        parts = [(0, size)]
        if max_tokens and size > max_tokens:
            half = max_tokens // 2
            parts = [(0, max_tokens - half), (size - half, size)]
        begins = [
            bisect_left(cut.starts, len(self._sub_task.lead) + start)
            for start in context.document_starts
        ]
        for first, last in parts:
            inside = (begin for begin in begins if first < begin < last)
            for begin, end in pairwise((first, *inside, last)):
                part = cut.slice_tokens(begin, end)
                yield from part.chunks(self.settings.piece, context.id, begin)

    def _question_text(self, turn: Turn) -> str:
        options = (
            f"\n{letter}. {option}"
            for letter, option in zip(ascii_uppercase, turn.options, strict=False)
            if self.settings.choices == "letters"
        )
        return self.card.prompt.fill_template(
            "".join((turn.question, *options)), self.settings.prompt
        )

    def _answered_turn(self, context: ContextWithTurns, number: int) -> Chunk:
        turn, prompt = context.turns[number], self.card.prompt
        want = self._want(turn)
        answer = want.target if isinstance(want, Generate) else want.answers[0]
        text = f"{self._question_text(turn)}{prompt.delimiter}{answer}"
        return Chunk(text=text, key=f"{context.id}/turn{number + 1}", joiner=prompt.joiner)

    def _want(self, turn: Turn) -> Generate | Choose:
        """Return the target of a question, with the settings of its sub-task."""
        prompt, task = self.card.prompt, SUB_TASKS.get(turn.kind, self._sub_task)
        if turn.options:
            letters = ascii_uppercase[: len(turn.options)]
            options = letters if self.settings.choices == "letters" else turn.options
            return prompt.make_choose(options, options[letters.index(turn.answers[0])])
        max_new_tokens = self.settings.max_new_tokens or task.max_new_tokens
        return replace(prompt.make_generate(turn.answers, max_new_tokens), all_of=task.all_of)

    def _query(self, context: ContextWithTurns, number: int) -> Query:
        turn = context.turns[number]
        return Query(
            prompt=self._question_text(turn),
            question=turn.question,
            key=f"{context.id}/{number + 1}",
            want=self._want(turn),
            joiner=self.card.prompt.joiner,
            subtask=turn.kind,
            at=StreamPosition(number + 1 if self.settings.mode == "turns" else 0),
        )

    def _contents(self, context: ContextWithTurns) -> set[str]:
        return names_in(*context.texts()) if self.is_synthetic else {context.text}

    def training_steps(self, training: Training) -> Iterator[tuple[str, tuple[Step, ...]]]:
        """Yield one context each; a mini source generates a new one, files are read in epochs, each
        in a new order.
        """
        for context in self.iter_training_rows(
            training.rng, self.selected, partial(parse_contexts, self.card), contexts=1
        ):
            queries = [self._query(context, number) for number in range(len(context.turns))]
            yield self.split, self._steps(context, queries, training.tokens)

    def counts(self) -> dict[str, Json]:
        """Count the rows of the source, the contexts and the queries."""
        return {
            "rows": len(self.available),
            "contexts": len(self.selected),
            "questions": self.n_queries,
        }

    def texts(self) -> Iterator[str]:
        """Yield every context with its questions."""
        for context in self.selected:
            yield from (context.id, *context.texts())


def _apply_sub_task(
    card: Card, settings: Settings, is_prompt_set: bool, location: str
) -> tuple[Card, Settings]:
    """Return card and settings of the sub-task that is set, or that the source is named after."""
    # scbench_kv.jsonl, scbench_kv/test.parquet
    parts = (part.split(".")[0] for part in Path(location).parts)
    name = (
        settings.task or next((part for part in parts if part.startswith(SUB_TASK_PREFIX)), "")
    ).removeprefix(SUB_TASK_PREFIX)
    if not name:
        return card, settings
    require_known(f"sub-task of {card.name}", name, SUB_TASKS)
    prompt = name if name in card.prompt.templates and not is_prompt_set else settings.prompt
    return card.with_metrics(*SUB_TASKS[name].metrics), settings.model_copy(
        update={"task": name, "prompt": prompt}
    )


def _select_kinds(contexts: list[ContextWithTurns], kinds: str) -> list[ContextWithTurns]:
    """Select the questions of some kinds, and the contexts that have any."""
    known = sorted({turn.kind for context in contexts for turn in context.turns})
    names = select_names("kind of questions", known, kinds)
    selected = (
        replace(context, turns=tuple(turn for turn in context.turns if turn.kind in names))
        for context in contexts
    )
    return [context for context in selected if context.turns]


def read(card: Card, request: Request) -> SharedContext:
    """Bind a card of this reader to its data; see `readers.load`."""
    settings, arguments = resolve_settings(card, request, Settings)
    arguments_of_rows = {**arguments, "contexts": settings.contexts or 16}
    data = load_rows(card, request, arguments_of_rows, QUALITY_FORMATS)
    if request.source != "mini":
        card, settings = _apply_sub_task(card, settings, "prompt" in request.options, data.location)
    available = parse_contexts(card, data)
    if settings.kinds != "all":
        available = _select_kinds(available, settings.kinds)
    selected = sample_rows(available, settings.contexts, f"contexts {request.seed}")
    has_options = [bool(turn.options) for context in selected for turn in context.turns]
    if any(has_options):
        if not all(has_options):
            raise UserError(
                f"{data.location} has questions with options and others without.",
                "Use separate files for the two.",
            )
        if card.main_metric != "acc":
            card = card.with_metrics("acc", "option_nll", chance=None)
    return SharedContext(card, request, settings, arguments, data, available, selected)
