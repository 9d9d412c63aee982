"""What readers, methods and the runner share: a task yields `Episode`s of `Chunk` and `Query` steps.

Observe("Ada Voss lives in Port Ansel."), Ask("Where does Ada Voss live?", Generate(answers=("Port Ansel",)))
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
"""Text between two texts in one window unless a task says otherwise."""


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """One piece of context: a document, a demonstration, a dialogue turn, a profile entry, a book chunk."""

    text: str
    key: str = ""
    """Stable identity of the piece in its source, kept in memory banks and records."""
    joiner: str = JOINER
    """Text in front of this piece where other text stands before it in one window."""
    ids: tuple[int, ...] = ()
    """Token ids of the base model, where the reader cut one text by tokens; `text` is what they stand for."""
    turns: tuple[str, str] | None = None
    """A demonstration as what a user says and an assistant answers: what a chat template takes."""


@dataclass(frozen=True, kw_only=True)
class Generate:
    """The model writes an answer."""

    answers: tuple[str, ...] = ()
    """Gold answers, the target first."""
    delimiter: str = " "
    """Stands between prompt and answer: the training target is `delimiter + target`."""
    max_new_tokens: int = 16
    stops: tuple[str, ...] = ()
    """Texts that end a generated answer; blanks in front of the answer do not count."""
    leads: tuple[str, ...] = ()
    """Words that are taken off the front of a generated answer, whatever their case ("Answer:")."""
    prefix: str = ""
    """End of the prompt that begins the answer: under a chat template it stands behind what closes the user's turn."""
    all_of: bool = False
    """All gold answers together are right, and not any one of them."""
    mode: Literal["generate"] = "generate"

    @property
    def target(self) -> str:
        """The text that is trained on and whose likelihood is measured: the first gold answer, or all of them."""
        return ", ".join(self.answers) if self.all_of else self.answers[0]


@dataclass(frozen=True, kw_only=True)
class Choose:
    """The model chooses the likeliest of given options."""

    options: tuple[str, ...]
    """Continuations of the prompt, each with its leading delimiter."""
    gold: int | None = None
    """Index of the right one."""
    delimiter: str = " "
    """Beginning of the options; under a chat template it is taken off."""
    option_prefixes: tuple[str, ...] = ()
    """Text read unscored between prompt and option, one an option, where options differ in it (WinoGrande)."""
    mode: Literal["choose"] = "choose"

    @property
    def answers(self) -> tuple[str, ...]:
        """The right option without surrounding blanks, where one is known."""
        return () if self.gold is None else (self.options[self.gold].strip(),)


@dataclass(frozen=True, kw_only=True)
class Score:
    """The model scores one given continuation of the prompt."""

    continuation: str
    """With all that stands between prompt and continuation."""
    ids: tuple[int, ...] = ()
    """Its token ids, where the reader cut one text by tokens."""
    prompt_ids: tuple[int, ...] = ()
    """Token ids of the prompt, likewise."""
    position: int = 0
    """Tokens of that text in front of the continuation."""
    words: int = 0
    """Words that begin in the continuation, where the task counts them (`ppl_word`)."""
    mode: Literal["score"] = "score"

    @property
    def answers(self) -> tuple[str, ...]:
        """The continuation, where there is one: part of a character is a token without text."""
        return (self.continuation,) if self.continuation or self.ids else ()


Want: TypeAlias = Generate | Choose | Score
WantT = TypeVar("WantT", Generate, Choose, Score)


@dataclass(frozen=True)
class StreamPosition:
    """A place in a stream: how much of it stands before a query, or between a query and its answer."""

    count: int = 0
    unit: Literal["pieces", "tokens", "distance"] = "pieces"
    """pieces: that were observed, or were to be where not all fit; tokens: the smallest of the task's `lengths` that
    holds all of the continuation; distance: the smallest of the task's `distances`, in tokens, within which the answer
    was observed last."""

    def is_counted_at(self, count: int) -> bool:
        """Whether a query at this place counts in the figure at `count`: one of a length counts at greater ones too."""
        return self.count == count or (self.unit == "tokens" and self.count < count)


@dataclass(frozen=True, kw_only=True)
class Query:
    """One query. Asking never changes a state."""

    prompt: str
    key: str
    """Stable identity of the query; samples of two runs are paired by it."""
    want: Want = Generate()
    """The task of the model with the prompt: generate, choose or score."""
    question: str = ""
    """The question alone, where `prompt` has a template around it: what retrieval and MAC look at."""
    joiner: str = JOINER
    """Text in front of the prompt where other text stands before it in one window."""
    after_turns: bool = False
    """Whether what stands before the prompt in the window is demonstrations, which are turns in a chat template."""
    window: tuple[Chunk, ...] = ()
    """Pieces that stand in the window in front of the prompt whatever the method is: no method adapts to them."""
    source_key: str = ""
    """Key of the `Chunk` that holds the answer, where the source says so (retention, training pairs)."""
    subtask: str = ""
    """Sub-task or book, of a task that has several (column `subtask` of the results)."""
    at: StreamPosition = StreamPosition()
    """Where in the stream it is asked (column `step` of the results)."""

    @property
    def mode(self) -> Mode:
        """How it is answered."""
        return self.want.mode

    @property
    def answers(self) -> tuple[str, ...]:
        """Gold answers as texts, the target first; none where none is known."""
        return self.want.answers

    @property
    def question_text(self) -> str:
        """The question without a template."""
        return self.question or self.prompt


def wants_of_kind(queries: Sequence[Query], kind: type[WantT]) -> list[WantT]:
    """The wants of queries of one kind."""
    wants = [query.want for query in queries if isinstance(query.want, kind)]
    assert len(wants) == len(queries), (
        f"a batch of {kind.__name__} mixes modes {sorted({query.mode for query in queries})}"
    )
    return wants


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The model's answer to one query."""

    prediction: str
    """The generated text or the chosen option, without surrounding blanks; nothing where a given text was scored."""
    logprobs: tuple[float, ...] = ()
    """Summed log-probability (natural log) of each option (`Choose`), of the continuation (`Score`) or, where it was
    measured, of the target answer (`Generate`)."""
    tokens: tuple[int, ...] = ()
    """Number of tokens of each of them."""
    ended: bool = True
    """Whether a generated answer came to an end of its own, within the tokens it may have."""


Step: TypeAlias = Chunk | Query


@dataclass(frozen=True, kw_only=True)
class Episode:
    """One reader in one order: a sequence of observations and queries."""

    key: str
    steps: tuple[Step, ...]

    def chunks(self) -> list[Chunk]:
        """The pieces of context, in reading order."""
        return [step for step in self.steps if isinstance(step, Chunk)]

    def queries(self) -> list[Query]:
        """The queries, in order."""
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
"""Called with what is counted, how many are done, how many there are. What stands behind a comma of the first may
change from call to call: "trained, loss 2.31" goes on counting what "trained, loss 2.35" did."""


def no_progress(what: str, done: int, total: int) -> None:
    """A tick that shows nothing."""


def no_log(line: str) -> None:
    """Say nothing."""


if not TYPE_CHECKING:
    __getattr__ = renamed(__name__, {"Ask": "Query", "Observe": "Chunk"})
