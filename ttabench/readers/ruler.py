"""RULER (Hsieh et al. 2024, arXiv 2404.06654): 13 sub-tasks in contexts of any length, one episode
per context.

    Episode("ruler/test/niah_single_1/0/seed0", [Chunk(tokens 0..511), Chunk(512..1023), ...,
            Query("What is the special magic number for calm-river ...? The special ... is")])

A context is as large as fits into `length` tokens of the base model, minus the prompt, the tokens
around both, and the answer. It is made by `ruler_texts`, or by the synthetic version in the
synthetic world. Contexts for different tokenizers differ only in size. Some sub-tasks need material
from files:

    PaulGrahamEssays.json                               {"text": "..."}
    squad.json, dev-v2.0.json                           SQuAD as published, also as a table of rows
    hotpotqa.json, hotpot_dev_distractor_v1.json        HotpotQA, in the same forms

Other files are rows with contexts of their own length, as in simonjegou/ruler, which kvpress uses:

    {"task": "niah_single_1", "context": "A special magic number ...", "question": "What is ...",
     "answer_prefix": "The special ... is", "answer": ["2461"], "max_new_tokens": 128}
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, NonNegativeInt, PositiveInt
from scipy.optimize import brentq

from ttabench.core.errors import UserError
from ttabench.core.files import read_json_object
from ttabench.core.types import Chunk, Episode, Json, Query, Step, StreamPosition
from ttabench.readers.base import Task, Training, divide_limit, select_names, swap_seeds
from ttabench.readers.cards import Card, ProtocolSettings
from ttabench.readers.formats import RawRow, base_name, report_row_errors, require_text
from ttabench.readers.qa_rows import parse_answers
from ttabench.readers.ruler_texts import (
    QA_SUBTASKS,
    REQUIRED_MATERIAL,
    SUBTASKS,
    DocumentQuestion,
    Documents,
    Question,
    RulerSample,
    draw_sample,
    insert_needles,
    numbered,
)
from ttabench.readers.sources import (
    GENERATED_SOURCE,
    RawTable,
    Request,
    load_table,
    parse_table,
    read_table,
    resolve_settings,
    run_generator,
)
from ttabench.readers.tokens import (
    TokenCount,
    TokenizedText,
    Tokens,
    estimate_tokens,
    token_counter,
)

SENTENCES_PER_LINE = 8
"""Sentences per line of the synthetic version, as in its books."""


class Settings(ProtocolSettings):
    """Protocol settings of this reader; `--task-set` may change them."""

    tasks: str = "all"
    """Sub-tasks, separated by commas; "all" for those with available material."""
    length: Annotated[TokenCount, Field(le=2**20)] = 4096
    """Tokens of context, prompt and answer, as the base model counts them; k means 1,024."""
    contexts: PositiveInt = 500
    """Maximum number of contexts per sub-task."""
    questions: Annotated[int, Field(gt=0, le=1000)] = 1
    """Questions per context, if a sub-task has several (cwe and fwe do not)."""
    piece: TokenCount = 512
    """Maximum tokens of a chunk, if lines are no longer."""
    prompt: str = "published"
    """Name of a question template of the card."""
    examples: NonNegativeInt = 0
    """Worked examples of the card before every question."""
    max_new_tokens: TokenCount | None = None
    """Maximum tokens of an answer; None for the sub-task's own maximum."""


@dataclass(frozen=True)
class Ruler(Task[Settings]):
    """A `Task` over contexts of sub-tasks."""

    contexts: Mapping[str, int]
    """Number of contexts by sub-task."""
    draw_sample: Callable[[str, int, int], RulerSample]
    """Draws the sample of (sub-task, seed, number)."""
    _sizes: dict[tuple[int, str], int] = field(init=False, default_factory=dict, compare=False)

    def samples(self) -> Iterator[tuple[str, RulerSample]]:
        """Yield (key, sample) of every queried context, its questions after `limit`."""
        for name, left in divide_limit(self.limit, self.contexts):
            for place in range(self.contexts[name]):
                if left == 0:
                    break
                sample = self.draw_sample(name, self.seed, place)
                questions = sample.questions[:left]
                left = None if left is None else left - len(questions)
                yield f"{name}/{place}/seed{self.seed}", replace(sample, questions=questions)

    def episodes_with_source(
        self, tokens: Tokens | None
    ) -> Iterator[tuple[Episode, tuple[str, RulerSample]]]:
        """Yield one episode per context."""
        for key, sample in self.samples():
            steps = tuple(self._steps(key, sample, tokens))
            yield Episode(key=f"{self.card.name}/{self.split}/{key}", steps=steps), (key, sample)

    def _steps(self, key: str, sample: RulerSample, tokens: Tokens | None) -> Iterator[Step]:
        text = self._text(key, sample, tokens)
        max_new_tokens = self.settings.max_new_tokens or sample.max_new_tokens
        want = self.card.prompt.make_generate(max_new_tokens=max_new_tokens)
        want = replace(want, all_of=sample.all_of)
        body = text.rstrip()
        yield from self._chunks(key, body, tokens)
        for number, question in enumerate(sample.questions):
            yield Query(
                prompt=self._prompt(question),
                question=question.text,
                key=f"{key}/{number}",
                want=replace(want, answers=question.answers, prefix=question.prefix),
                joiner=text[len(body) :],
                source_key=key,
                subtask=sample.subtask,
                at=StreamPosition(self.chunks_per_context),
            )

    def _chunks(self, key: str, text: str, tokens: Tokens | None) -> Iterator[Chunk]:
        chunks = TokenizedText.tokenize(text, tokens).chunks(self.settings.piece, key)
        return (replace(chunk, key=chunk.key.removesuffix("@0")) for chunk in chunks)

    def _prompt(self, question: Question) -> str:
        prompt = self.card.prompt.fill_template(
            question.text, self.settings.prompt, self.settings.examples
        )
        return f"{prompt} {question.prefix}".rstrip()

    def _text(self, key: str, sample: RulerSample, tokens: Tokens | None) -> str:
        """Return the largest context that fits with every question and its answer."""
        size_key = id(tokens), key
        if size_key not in self._sizes:
            self._sizes[size_key] = self._size(sample, tokens)
        return sample.write(self._sizes[size_key])

    def _size(self, sample: RulerSample, tokens: Tokens | None) -> int:
        """Return the units of that context, by interpolation, because counting tokens is slow."""
        count = token_counter(tokens)
        frame_tokens = 0 if tokens is None else tokens.frame_tokens
        question_tokens = max(
            count(f"\n\n{self._prompt(question)}") for question in sample.questions
        )
        budget = (
            self.settings.length
            - frame_tokens
            - question_tokens
            - (self.settings.max_new_tokens or sample.max_new_tokens)
        )
        count_at = cache(lambda size: count(sample.write(size)))

        def excess_tokens(size: float) -> float:
            return count_at(math.floor(size)) - budget - 0.5

        low = high = sample.min_units
        if low == sample.max_units:
            return low
        if (over := excess_tokens(low)) > 0:
            if tokens is None:
                return low  # an estimate cannot refuse a length
            min_length = self.settings.length + math.ceil(over)
            fault = f"length={self.settings.length} is too small for {sample.subtask}: "
            fault += f"it needs {min_length} tokens."
            raise UserError(
                fault, "Set a larger --task-set length=N, or remove it from --task-set tasks=NAMES."
            )
        while excess_tokens(high) < 0:
            if high == sample.max_units:
                return high
            low, high = (
                high,
                2 * high if sample.max_units is None else min(sample.max_units, 2 * high),
            )
        return int(brentq(excess_tokens, low, high, xtol=0.2) + 0.5) - 1

    def swap_context(self, own: tuple[str, RulerSample], tokens: Tokens | None) -> Iterator[Chunk]:
        """Return the chunks of another context of the same sub-task, without the answers to the
        questions.
        """
        key, sample = own
        evidence = [text for question in sample.questions for text in question.evidence]

        def other_texts() -> Iterator[str]:
            for seed in swap_seeds(self.seed):
                drawn = self.draw_sample(sample.subtask, seed, 0)
                if drawn.write is sample.write:  # of published rows
                    continue
                other = replace(drawn, questions=sample.questions)
                yield self._text(f"{seed} for {key}", other, tokens).rstrip()

        text = self.first_disjoint(
            set(evidence),
            other_texts(),
            lambda text: {item for item in evidence if item in text},
            allow_overlap=True,
        )
        return self._chunks(f"{key}/other", text, tokens)

    def training_steps(self, training: Training) -> Iterator[tuple[str, Iterator[Step]]]:
        """Yield new contexts of sub-tasks in random order."""
        while True:
            name = training.rng.choice(list(self.contexts))
            seed = training.rng.getrandbits(48)
            sample = self.draw_sample(name, seed, 0)
            yield self.split, self._steps(f"{name}/{seed}", sample, training.tokens)

    @property
    def chunks_per_context(self) -> int:
        """Approximate number of chunks per context."""
        return -(-self.settings.length // self.settings.piece)

    @cached_property
    def n_chunks(self) -> int:
        """Approximate number of chunks over all episodes."""
        return self.chunks_per_context * sum(1 for _ in self.samples())

    @cached_property
    def n_queries(self) -> int:
        """Number of queries over all episodes."""
        return sum(len(sample.questions) for _, sample in self.samples())

    def counts(self) -> dict[str, Json]:
        """Count sub-tasks, contexts and questions."""
        contexts = sum(1 for _ in self.samples())
        return {"subtasks": list(self.contexts), "contexts": contexts, "questions": self.n_queries}

    def texts(self) -> Iterator[str]:
        """Yield every question with its answers, and every context at its smallest size, which
        shows how it was drawn.
        """
        for key, sample in self.samples():
            yield from (key, sample.write(sample.min_units))
            for question in sample.questions:
                yield from (question.text, question.prefix, *question.answers)


def load_material(path: Path) -> dict[str, Any]:
    """Load the material of sub-tasks from a file or folder; empty if there is none."""
    material = dict[str, Any]()
    files = [path] if path.is_file() else sorted(file for file in path.glob("*") if file.is_file())
    for kind, (names, _, contents) in MATERIAL_FILES.items():
        if file := next((file for file in files if base_name(file) in names), None):
            material[kind] = contents(file)
    return material


def _parse_sample(card: Card, row: RawRow) -> RulerSample:
    """Parse a published row."""
    context, question, prefix, name = (
        row.text(*card.columns[field]) for field in ("context", "question", "answer_prefix", "task")
    )
    answers = parse_answers(row.require(card.columns["answers"]))
    if not answers:
        raise ValueError("the question has no answer")
    max_new_tokens: Any = row.require(card.columns["max_new_tokens"])
    return RulerSample(
        subtask=name,
        questions=(
            Question(
                text=question.strip(), prefix=prefix.strip(), answers=answers, evidence=answers
            ),
        ),
        max_new_tokens=int(max_new_tokens),
        all_of=name not in QA_SUBTASKS,
        write=lambda _: context,
        max_units=1,
    )


def _read_rows(card: Card, request: Request, settings: Settings) -> Ruler:
    """Bind the card to published rows; another seed draws one of the rows of a sub-task."""
    if fixed := {"length", "questions"} & request.options.keys():
        fault = f"{min(fixed)} does not apply to published rows."
        raise UserError(fault, f"Remove --task-set {min(fixed)}, or use --source generated.")
    data = load_table(card, request)
    samples = parse_table(data, partial(_parse_sample, card))
    rows_by_name = dict[str, list[RulerSample]]()
    for sample in samples:
        rows_by_name.setdefault(sample.subtask, []).append(sample)
    names = select_names("sub-task of these rows", rows_by_name, settings.tasks)

    def draw_row(name: str, seed: int, number: int) -> RulerSample:
        rows = rows_by_name[name]
        return rows[number] if seed == request.seed else random.Random(seed).choice(rows)

    contexts = {name: min(settings.contexts, len(rows_by_name[name])) for name in names}
    longest = max(estimate_tokens(sample.write(1)) for sample in samples)
    settings = settings.model_copy(update={"length": longest})
    return Ruler(card, request, settings, {}, data, contexts, draw_row)


def _read_essays(file: Path) -> tuple[str, ...]:
    with report_row_errors(str(file)):
        return tuple(require_text("text", read_json_object(file).get("text")).split())


def _read_squad(file: Path) -> Documents:
    """Read paragraphs, and their questions; paragraphs of the same article are near."""
    numbers = dict[str, int]()
    articles = dict[str, dict[str, int]]()

    def question_of(row: RawRow) -> tuple[str, tuple[str, ...], int, str] | str:
        text, question = map(row.text, ("context", "question"))
        title, answers = str(row.cell(["title"]) or ""), parse_answers(row.require(["answers"]))
        number = numbers.setdefault(text, len(numbers))
        if title:
            articles.setdefault(title, {})[text] = number
        return (question, answers, number, title) if answers else "no answer"

    rows = parse_table(read_table(file), question_of)
    near = {title: tuple(paragraphs.values()) for title, paragraphs in articles.items()}
    questions = [
        DocumentQuestion(question, answers, (number,), near.get(title, ()))
        for question, answers, number, title in rows
    ]
    return Documents(tuple(numbers), tuple(questions))


def _read_hotpotqa(file: Path) -> Documents:
    """Read paragraphs with their titles, and questions about ten of them each."""
    numbers = dict[str, int]()

    def question_of(row: RawRow) -> DocumentQuestion:
        question, answer = map(row.text, ("question", "answer"))
        context: Any = row.require(["context"])
        pairs = (
            zip(context["title"], context["sentences"], strict=True)
            if isinstance(context, dict)
            else context
        )
        texts = [f"{title}\n{''.join(sentences)}" for title, sentences in pairs]
        return DocumentQuestion(
            question, (answer,), tuple(numbers.setdefault(text, len(numbers)) for text in texts)
        )

    questions = parse_table(read_table(file), question_of)
    return Documents(tuple(numbers), tuple(questions))


HOTPOT = "hotpot_dev_distractor_v1"
MATERIAL_FILES: Mapping[str, tuple[set[str], str, Callable[[Path], Any]]] = {
    "essays": ({"PaulGrahamEssays"}, "PaulGrahamEssays.json", _read_essays),
    "squad": ({"squad", "dev-v2.0"}, "squad.json (dev-v2.0.json)", _read_squad),
    "hotpotqa": ({"hotpotqa", HOTPOT}, f"hotpotqa.json ({HOTPOT}.json)", _read_hotpotqa),
}
"""Files by material: names without suffix, names in messages, and the function that reads them."""


def _synthetic_sample(
    card: Card, split: str, settings: Settings, name: str, seed: int, number: int
) -> RulerSample:
    sample_seed = random.Random(f"{seed} {number}").getrandbits(48)
    questions, length = settings.questions, settings.length
    (row,) = run_generator(card, split, sample_seed, tasks=name, questions=questions, length=length)
    needles, haystack, has_documents = row["needles"], row["haystack"], name in QA_SUBTASKS

    def write(size: int) -> str:
        units = haystack[:size]
        units = (
            insert_needles(units, needles, str(sample_seed))
            if len(units) >= len(needles)
            else [*units, *needles]
        )
        if has_documents:
            return f"{numbered(units)}\n"
        lines = (
            units[first : first + SENTENCES_PER_LINE]
            for first in range(0, len(units), SENTENCES_PER_LINE)
        )
        return "\n".join("So " + " ".join(line) for line in lines) + "\n"

    return RulerSample(
        subtask=name,
        questions=tuple(
            Question(
                text=one["question"],
                prefix="",
                answers=tuple(one["answers"]),
                evidence=tuple(one["tells"]),
            )
            for one in row["questions"]
        ),
        max_new_tokens=8,
        all_of=not has_documents,
        write=write,
        min_units=len(needles),
        max_units=len(haystack),
    )


def read(card: Card, request: Request) -> Ruler:
    """Bind a card of this reader to its data; see `readers.load`."""
    settings, arguments = resolve_settings(card, request, Settings)
    if request.source == "mini":
        from ttabench.mini.ruler import TASKS

        names = select_names("sub-task of the synthetic ruler", TASKS, settings.tasks)
        draw_synthetic = partial(_synthetic_sample, card, request.split, settings)
        contexts = dict.fromkeys(names, settings.contexts)
        return Ruler(card, request, settings, arguments, RawTable(), contexts, draw_synthetic)
    path, material, label = Path(request.source), dict[str, Any](), GENERATED_SOURCE
    if request.source != GENERATED_SOURCE:
        material, label = load_material(path), f"{'file' if path.is_file() else 'folder'}:{path}"
        if not material:
            return _read_rows(card, request, settings)
    names, notes = select_names("sub-task of ruler", SUBTASKS, settings.tasks), tuple[str, ...]()
    if lacking := [
        name
        for name in names
        if name in REQUIRED_MATERIAL and not material.get(REQUIRED_MATERIAL[name])
    ]:
        needed = ", ".join(
            dict.fromkeys(MATERIAL_FILES[REQUIRED_MATERIAL[name]][1] for name in lacking)
        )
        if settings.tasks != "all":
            fault = f"{lacking[0]} of {card.name} needs files that are missing."
            raise UserError(fault, f"Use --source DIR with {needed}.")
        names = [name for name in names if name not in lacking]
        notes = (f"excluded: {', '.join(lacking)} (they need --source DIR with {needed})",)

    def draw_numbered(name: str, seed: int, number: int) -> RulerSample:
        place = f"{request.split} {seed} {number}"
        return draw_sample(
            name, place, material, questions=settings.questions, length=settings.length
        )

    data = RawTable(label=label, notes=notes)
    contexts = dict.fromkeys(names, settings.contexts)
    return Ruler(card, request, settings, arguments, data, contexts, draw_numbered)
