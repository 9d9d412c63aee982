"""The nouns every part of ttabench shares.

A task yields `Episode`s of `Observe` and `Ask` steps. A `Method` turns what it observes into a `State` (a value) and
a state into a `Patch`: all that adaptation may do to the frozen language model.

    Observe("Ada Voss lives in Port Ansel."), Ask("Where does Ada Voss live?", answers=("Port Ansel",))

Shape letters used in tensor names throughout the package:
    B batch rows · P prefix positions · T tokens · H key/value heads · D head size · L layers · R rank ·
    I/O features in and out
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ttabench.attention import Call
    from ttabench.lm import LM

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


@dataclass(frozen=True)
class State:
    """What a method remembers, as a value: `adapt` returns a new one and leaves the old one as it was.

    Everything that lives in memory between `adapt` and `patch` is a tensor here, so `nbytes` is what it costs to keep.
    """

    rows: int
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    meta: Mapping[str, Json] = field(default_factory=dict)
    """JSON values only: document keys, tokens read, truncation, seeds of stochastic rules."""

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.numel() * t.element_size() for t in self.tensors.values())


@dataclass(frozen=True)
class Prefix:
    """Keys and values put in front of the text in every layer, as a cache would hold them."""

    keys_LBHPD: tuple[Tensor, ...]
    """One tensor [B, H, P, D] a layer; B is 1 for a prefix all rows share. Keys are used as they are, never rotated."""
    values_LBHPD: tuple[Tensor, ...]
    next_position_B: Tensor
    """int64 [B]: position id of the first text token after the prefix."""
    mask_BP: Tensor | None = None
    """bool [B, P], false where a slot is padding; None when every slot counts."""
    holds_bos: bool = False
    """True when the prefix was made by reading text that starts with the BOS token (set by `patching`)."""
    eviction: Eviction | None = None
    """Which slots go as text is read on top (H2O); None: all stay."""
    hidden_LBHP: tuple[Tensor, ...] | None = None
    """One bool [B, H, P] a layer, true where a head does not see a slot that others may; None when all see all."""

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values."""
        return sum(t.numel() * t.element_size() for t in (*self.keys_LBHPD, *self.values_LBHPD))


class Eviction(Protocol):
    """What a prefix forgets while text is read on top of it: a value that goes where the prefix goes."""

    def step(self, mask_BT: Tensor) -> EvictionStep:
        """Watch the next tokens being read, of as many rows as this has; false where a row is padded."""
        ...

    def select(self, rows_N: Tensor) -> Eviction:
        """That of these rows, in this order; one row serves any number."""
        ...


class EvictionStep(Protocol):
    """One reading under an `Eviction`."""

    def __call__(self, call: Call) -> None:
        """Sees the attention of one layer."""
        ...

    def left(self, whole: Prefix, *, evict: bool) -> Prefix:
        """What is left of the prefix with the tokens just read behind it, with its eviction; all of it for now if not
        `evict`."""
        ...


@dataclass(frozen=True)
class LowRank:
    """A weight delta of one linear layer: y += (x @ a^T) @ b^T."""

    a_BRI: Tensor
    """[B, R, in]; B may be 1."""
    b_BOR: Tensor
    """[B, out, R]; B may be 1. Any scale is already inside."""
    dropout: Callable[[Tensor, Tensor], Tensor] | None = None
    """dropout(x) @ a^T from x [B, T, in] and a, in place of x @ a^T: while they are trained, never in use."""


@dataclass(frozen=True)
class Dense:
    """A delta of any parameter, added to it: [*shape] for all rows alike, or [1, *shape]."""

    delta: Tensor


Delta: TypeAlias = LowRank | Dense


@dataclass(frozen=True)
class Patch:
    """All that adaptation may do to the frozen LM. The parts combine; their rows are 1 (shared) or the batch size.

    With deltas and tokens together, tokens are read by the *adapted* weights. In the window: prefix, tokens, text.
    """

    tokens_BT: Tensor | None = None
    """int64 [B, T]: token ids kept in the window (no BOS), right-padded."""
    tokens_mask_BT: Tensor | None = None
    prefix: Prefix | None = None
    deltas: Mapping[str, Delta] = field(default_factory=dict)
    """Keyed by module name for `LowRank` ("model.layers.0.mlp.up_proj"), by parameter name for `Dense`."""

    @property
    def nbytes(self) -> int:
        """Bytes of everything in the patch."""
        total = self.prefix.nbytes if self.prefix is not None else 0
        if self.tokens_BT is not None:
            total += self.tokens_BT.numel() * self.tokens_BT.element_size()
        for delta in self.deltas.values():
            parts = (delta.a_BRI, delta.b_BOR) if isinstance(delta, LowRank) else (delta.delta,)
            total += sum(t.numel() * t.element_size() for t in parts)
        return total


class Method(Protocol):
    """A way to adapt: Mem(t) = adapt(Mem(t-1), c(t)); O(t) ~ f(. | patch(Mem(t), I(t))).

    A class is constructed as `Class(lm, settings)`; `settings` is an instance of its frozen dataclass `Class.Settings`.
    `methods/base.py` holds the defaults of everything optional.
    """

    growth: Growth
    looks_at_question: bool
    """Whether `patch` depends on the query (MAC, retrieval). If not, one patch and one encoding serve all queries."""
    trainable: bool

    lm: LM

    def begin(self, rows: int) -> State:
        """An empty state for `rows` independent readers."""
        ...

    def adapt(self, state: State, chunk: Sequence[Observe]) -> State:
        """Read one more piece per row (`len(chunk) == state.rows`)."""
        ...

    def patch(self, state: State, asks: Sequence[Ask]) -> Patch:
        """The patch for these queries. A one-row state serves any number of them; one of several rows, one query a row.

        Methods that do not look at the question return parts with one row per state row.
        """
        ...

    def modules(self) -> nn.ModuleDict:
        """What is trained and saved; empty for methods without parameters."""
        ...
