"""Types shared by dataset readers, methods and the runner.

An `Episode` has `Chunk` and `Query` steps:

Chunk(text="Ada Voss lives in Port Ansel.")
Query(prompt="Where does Ada Voss live?", key="1", want=Generate(answers=("Port Ansel",)))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from ttabench.core.deprecation import renamed, warn_renamed

Growth: TypeAlias = Literal["none", "constant", "linear"]
Mode: TypeAlias = Literal["choose", "generate", "score"]
Json: TypeAlias = Any

JOINER = "\n\n"
"""Default text between two texts in one window."""


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Unit of context that is read at once, such as a document, demonstration or dialogue turn."""

    text: str
    key: str = ""
    """Stable id in the source, kept in memory banks and records."""
    joiner: str = JOINER
    """Text before this chunk if other text precedes it in one window."""
    ids: tuple[int, ...] = ()
    """Token ids of the base model that decode to `text`, if the reader split a text by tokens."""
    turns: tuple[str, str] | None = None
    """Demonstration as (user message, assistant message), for chat templates."""


@dataclass(frozen=True, kw_only=True)
class Generate:
    """Task of writing an answer."""

    answers: tuple[str, ...] = ()
    """Gold answers; the first is the target."""
    delimiter: str = " "
    """Text between prompt and answer: the training target is `delimiter + target`."""
    max_new_tokens: int = 16
    stops: tuple[str, ...] = ()
    """Texts that end a generated answer. Leading blanks of the answer do not count."""
    leads: tuple[str, ...] = ()
    """Words removed from the start of a generated answer, ignoring case ("Answer:")."""
    prefix: str = ""
    """End of the prompt that starts the answer. A chat template places it in the assistant turn."""
    all_of: bool = False
    """True if all gold answers together are correct, instead of any one."""
    mode: Literal["generate"] = "generate"

    @property
    def target(self) -> str:
        """Text for training and likelihood: the first gold answer, or all of them (`all_of`)."""
        return ", ".join(self.answers) if self.all_of else self.answers[0]


@dataclass(frozen=True, kw_only=True)
class Choose:
    """Task of choosing the most likely of given options."""

    options: tuple[str, ...]
    """Continuations of the prompt, each with its leading delimiter."""
    gold: int | None = None
    """Index of the correct option."""
    delimiter: str = " "
    """Start of every option. A chat template removes it."""
    option_prefixes: tuple[str, ...] = ()
    """Unscored text between prompt and option, one per option, if it differs (WinoGrande)."""
    mode: Literal["choose"] = "choose"

    @property
    def answers(self) -> tuple[str, ...]:
        """Correct option without surrounding blanks, if known."""
        return () if self.gold is None else (self.options[self.gold].strip(),)


@dataclass(frozen=True, kw_only=True)
class Score:
    """Task of scoring a given continuation of the prompt."""

    continuation: str
    """Text including everything between prompt and continuation."""
    ids: tuple[int, ...] = ()
    """Token ids, if the dataset reader split a text by tokens."""
    prompt_ids: tuple[int, ...] = ()
    """Token ids of the prompt, in the same case."""
    position: int = 0
    """Tokens of that text before the continuation."""
    words: int = 0
    """Words that start in the continuation, if the task counts them (`ppl_word`)."""
    mode: Literal["score"] = "score"

    @property
    def answers(self) -> tuple[str, ...]:
        """Continuation, if there is one. A part of a character is a token without text."""
        return (self.continuation,) if self.continuation or self.ids else ()


Want: TypeAlias = Generate | Choose | Score
WantT = TypeVar("WantT", Generate, Choose, Score)


@dataclass(frozen=True)
class StreamPosition:
    """Position in a stream: amount before a query, or between a query and its answer."""

    count: int = 0
    unit: Literal["pieces", "tokens", "distance"] = "pieces"
    """Unit of `count`.

    "pieces": chunks read, or due where not all fit. "tokens": the smallest of the task's `lengths`
    that covers the continuation. "distance": the smallest of the task's `distances`, in tokens,
    within which the answer was read last."""

    def is_counted_at(self, count: int) -> bool:
        """True if the query counts in the figure at `count`. Lengths also count at greater ones."""
        return self.count == count or (self.unit == "tokens" and self.count < count)


@dataclass(frozen=True, kw_only=True)
class Query:
    """Question or task for the model. A query never changes a state."""

    prompt: str
    key: str
    """Stable id of the query. Samples of two runs are paired by it."""
    want: Want = Generate()
    """Task: generate, choose or score."""
    question: str = ""
    """Question without the template of `prompt`; retrieval and MAC use it."""
    joiner: str = JOINER
    """Text before the prompt if other text precedes it in one window."""
    after_turns: bool = False
    """True if demonstrations precede the prompt in the window; a chat template makes them turns."""
    window: tuple[Chunk, ...] = ()
    """Chunks before the prompt in the window for every method. No method adapts to them."""
    source_key: str = ""
    """Key of the `Chunk` that contains the answer, if known (retention, training pairs)."""
    subtask: str = ""
    """Sub-task or book of a task with several (column `subtask` of the results)."""
    at: StreamPosition = StreamPosition()
    """Position in the stream (column `step` of the results)."""

    @property
    def mode(self) -> Mode:
        """Answer mode."""
        return self.want.mode

    @property
    def answers(self) -> tuple[str, ...]:
        """Gold answers as texts, the target first; empty if unknown."""
        return self.want.answers

    @property
    def question_text(self) -> str:
        """Question without a template."""
        return self.question or self.prompt


def wants_of_kind(queries: Sequence[Query], kind: type[WantT]) -> list[WantT]:
    """Return the `want` of every query. All must be of one kind."""
    wants = [query.want for query in queries if isinstance(query.want, kind)]
    assert len(wants) == len(queries), (
        f"a batch of {kind.__name__} mixes modes {sorted({query.mode for query in queries})}"
    )
    return wants


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Answer of the model to one query."""

    prediction: str
    """Generated text or chosen option, without surrounding blanks; empty for `Score`."""
    logprobs: tuple[float, ...] = ()
    """Summed natural-log probabilities: of each option (`Choose`), of the continuation (`Score`),
    or, if measured, of the target answer (`Generate`)."""
    tokens: tuple[int, ...] = ()
    """Number of tokens of each."""
    ended: bool = True
    """True if a generated answer ended by itself, within its token limit."""


Step: TypeAlias = Chunk | Query


@dataclass(frozen=True, kw_only=True)
class Episode:
    """Ordered sequence of chunks and queries, starting from an empty state."""

    key: str
    steps: tuple[Step, ...]

    def chunks(self) -> list[Chunk]:
        """Return the chunks, in order."""
        return [step for step in self.steps if isinstance(step, Chunk)]

    def queries(self) -> list[Query]:
        """Return the queries, in order."""
        return [step for step in self.steps if isinstance(step, Query)]

    def observes(self) -> list[Chunk]:
        """Deprecated: use `chunks`."""
        warn_renamed("Episode", "observes", "chunks")
        return self.chunks()

    def asks(self) -> list[Query]:
        """Deprecated: use `queries`."""
        warn_renamed("Episode", "asks", "queries")
        return self.queries()


ProgressCallback: TypeAlias = Callable[[str, int, int], None]
"""Callback with (what is counted, number done, total). The text after a comma may change per call:
"trained, loss 2.31" and "trained, loss 2.35" count the same thing."""


def no_progress(what: str, done: int, total: int) -> None:
    """Progress callback that shows nothing."""


def no_log(line: str) -> None:
    """Log callback that writes nothing."""


if not TYPE_CHECKING:
    __getattr__ = renamed(__name__, {"Ask": "Query", "Observe": "Chunk"})
