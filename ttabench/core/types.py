"""The nouns every part of ttabench shares.

A task yields `Episode`s of `Observe` and `Ask` steps. What a method makes of them stands in `lm/patch.py`.

    Observe("Ada Voss lives in Port Ansel."), Ask("Where does Ada Voss live?", answers=("Port Ansel",))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Growth: TypeAlias = Literal["none", "constant", "linear"]
Mode: TypeAlias = Literal["choose", "generate", "score"]
Json: TypeAlias = Any

JOINER = "\n\n"
"""What stands between two texts in one window unless a task says otherwise."""


@dataclass(frozen=True, kw_only=True)
class Observe:
    """One piece of context: a document, a demonstration, a dialogue turn, a profile entry, a book chunk."""

    text: str
    key: str = ""
    """Stable identity of the piece in its source, kept in memory banks and records."""
    joiner: str = JOINER
    """What stands in front of this piece where other text stands before it in one window."""
    ids: tuple[int, ...] = ()
    """Token ids of the base model, where the reader cut one text by tokens; `text` is what they stand for."""
    turns: tuple[str, str] | None = None
    """A demonstration as what a user says and an assistant answers: what a chat template takes."""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One query. Asking never changes a state."""

    prompt: str
    key: str
    """Stable identity of the query; samples of two runs are paired by it."""
    joiner: str = JOINER
    """What stands in front of the prompt where other text stands before it in one window."""
    after_turns: bool = False
    """Whether what stands before the prompt in the window is demonstrations, which are turns in a chat template."""
    question: str = ""
    """The question alone, where `prompt` has a template around it: what retrieval and MAC look at."""
    mode: Mode = "generate"
    answers: tuple[str, ...] = ()
    """Gold answers (`generate`), or the one gold continuation (`score`)."""
    options: tuple[str, ...] = ()
    """Continuations to choose from (`choose`), each with its leading delimiter."""
    gold: int | None = None
    """Index of the right option (`choose`)."""
    heads: tuple[str, ...] = ()
    """What is read, unscored, between prompt and option, one an option, where options differ in it (WinoGrande)."""
    blank: str = ""
    """The prompt without its question: with one, options are also scored after it alone (`acc_pmi`)."""
    window: tuple[Observe, ...] = ()
    """Pieces that stand in the window in front of the prompt whatever the method is: no method adapts to them."""
    part: str = ""
    """Sub-task of a task that has several (column `part` of the results)."""
    delimiter: str = " "
    """Stands between prompt and answer: the training target is `delimiter + answer`."""
    max_new_tokens: int = 16
    stops: tuple[str, ...] = ()
    """Texts that end a generated answer; blanks in front of the answer do not count."""
    leads: tuple[str, ...] = ()
    """Words that are taken off the front of a generated answer, whatever their case ("Answer:")."""
    step: int = 0
    """How many pieces were observed before this query, or were to be where not all fit; in a task of `lengths`, the
    smallest of them that holds all of the target (column `step` of the results)."""
    about: str = ""
    """Key of the `Observe` that holds the answer, where the source says so (retention, training pairs)."""
    ids: tuple[int, ...] = ()
    """Token ids of `delimiter + answers[0]`, where the reader cut one text by tokens (`score`)."""
    prompt_ids: tuple[int, ...] = ()
    """Token ids of `prompt`, likewise."""
    position: int = 0
    """Tokens of that text in front of the target."""
    words: int = 0
    """Words that begin in the target (`score`), where the task counts them (`ppl_word`)."""

    @property
    def bare(self) -> str:
        """The question without a template."""
        return self.question or self.prompt


Step: TypeAlias = Observe | Ask


@dataclass(frozen=True, kw_only=True)
class Episode:
    """One reader in one order: a sequence of observations and queries."""

    key: str
    steps: tuple[Step, ...]
    start: int = 0
    """Tokens of its text that the episode before it has read in training: their state is carried on."""

    def observes(self) -> list[Observe]:
        """The pieces of context, in reading order."""
        return [step for step in self.steps if isinstance(step, Observe)]

    def asks(self) -> list[Ask]:
        """The queries, in order."""
        return [step for step in self.steps if isinstance(step, Ask)]
