"""What every method has, with defaults: an empty state, one piece at a time, no parameters, a training loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeAlias, TypeVar

from torch import Tensor, nn

from ttabench.core.errors import UserError
from ttabench.core.types import Ask, Growth, Json, Observe
from ttabench.lm.forward.ways import require
from ttabench.lm.patch import Patch, State
from ttabench.methods.spec import MethodSpec

if TYPE_CHECKING:
    from ttabench.lm.model import LM


@dataclass(frozen=True, kw_only=True)
class PieceShares:
    """Shares of the kept pieces in what each question looks at."""

    names: tuple[str, ...]
    """Keys of the pieces, in the order of the state; where an entry was made of several pieces: joined by " + "."""
    shares_QK: Tensor
    """float32 on the CPU, at least 0; every row sums to 1."""
    meaning: str
    """Meaning of a share, in words."""

    def largest(self, question: int, most: int) -> list[int]:
        """Places of at most so many pieces with the largest shares above 0; of equal ones in order."""
        shares = self.shares_QK[question].tolist()
        order = sorted(range(len(shares)), key=lambda place: -shares[place])
        return [place for place in order[:most] if shares[place] > 0]


TRAINED_APART = {
    "passes_over_parts": {True: "trained on earlier and later pieces apart, because they were not read in one go"}
}
"""The label of methods that pass over all that is read between two questions, see `BaseMethod.label_notes`."""
SettingsT = TypeVar("SettingsT")
Reads: TypeAlias = Literal["pieces", "run", "once"]


class BaseMethod(Generic[SettingsT]):
    """A way to adapt, with defaults: Mem(t) = adapt(Mem(t-1), c(t)); O(t) ~ f(. | patch(Mem(t), I(t))).

    Made of the frozen base model and an instance of the `Settings` of its spec; a UserError where the base model lacks
    what the method needs.
    """

    spec: ClassVar[MethodSpec]
    """Its description that needs no torch, see `spec`."""
    growth: Growth
    """How the state grows, with these settings."""
    looks_at_question: bool
    """Whether `patch` depends on what is asked, with these settings."""
    reads: Reads = "pieces"
    """What must stand in one call of `adapt`: "pieces", any number of them, with equal states however they are cut;
    "run", all that is read between two questions; "once", everything, so that no task may ask in between."""
    own_tensors: tuple[str, ...] = ()
    """Tensors of the state that are text in the window: they stay the text's own under `eval --swap-state`."""
    one_reader: bool = False
    """Whether it reads for one reader at a time, as what trains on what it reads: no state of several rows begins."""
    label_notes: ClassVar[Mapping[str, Mapping[bool, str]]] = {}
    """What notes of a run say of a label of its states, by the label's value: a sentence that goes on from the method's
    name. A value without one is not mentioned; a label without any is shown as it stands."""
    needs: tuple[str, ...] = ()
    """What the base model must be able to do, in the words of `lm.forward.ways.REASONS`; else it is refused."""

    def __init__(self, lm: LM, settings: SettingsT) -> None:
        self.lm = lm
        require(lm, *self.needs)  # how it is run is found out here at the latest, and never while something is measured
        self.settings = settings
        self.growth, self.looks_at_question = self.spec.growth, self.spec.looks_at_question

    @property
    def name(self) -> str:
        """As it is typed."""
        return self.spec.name

    def begin(self, rows: int) -> State:
        """An empty state for `rows` independent readers; a UserError for several where the method has `one_reader`."""
        if rows > 1 and self.one_reader:
            raise UserError(f"{self.name} reads for one reader, not {rows}.", "Read one context at a time.")
        return State(rows, meta={"tokens_read": [0] * rows})

    def adapt(self, state: State, pieces: Sequence[Sequence[Observe]]) -> State:
        """Read more: each of `pieces` holds one piece a row, in the order in which a row reads them. What is read
        together is what `reads` says, see `session.Session`."""
        raise NotImplementedError

    def combined(self, state: State, other: State) -> State:  # noqa: ARG002  # for methods that can
        """What has read all that one reader of `state` and one of `other` have read, made of the two states alone; a
        UserError where they cannot be put together. Methods whose memories add up override this."""
        fault = f"Two states of {self.name} cannot be put together."
        raise UserError(fault, "Read all texts with one command: --context A B.")

    def adapt_window(self, state: State, pieces: Sequence[Sequence[Observe]]) -> State:
        """Read what fills `own_tensors` and `meta` as `adapt` does; the other tensors may stay as they were. For
        runs whose answers come from another state (`run.runner`). Methods that can leave work out override this."""
        return self.adapt(state, pieces)

    def patch(self, state: State, asks: Sequence[Ask]) -> Patch:
        """The patch for these queries. A one-row state serves any number of them; one of several rows, one query a
        row. Methods that do not look at the question return parts with one row per state row."""
        raise NotImplementedError

    def piece_shares(self, state: State, asks: Sequence[Ask]) -> PieceShares | None:  # noqa: ARG002  # for some
        """How much of what each question looks at lies in each kept piece of one reader's context. Where the spec
        says that the method tells this (`MethodSpec.piece_shares`), it is None for an empty state alone."""
        return None

    def evicts_nothing(self, tokens: int) -> bool:  # noqa: ARG002  # for methods that evict
        """Whether a method that evicts keeps all of a context of so many tokens, so that it is full context."""
        return False

    def parts(self) -> Sequence[BaseMethod[Any]]:
        """The methods that it is made of (`rag+mac`); by default none."""
        return ()

    def modules(self) -> nn.ModuleDict:
        """Modules that are trained and saved."""
        return nn.ModuleDict()


def labelled(state: State, name: str, holds: bool) -> dict[str, dict[str, Json]]:
    """The labels of a state that goes on from this one, for its `meta`: one more where `holds`."""
    labels = {**state.labels, **({name: True} if holds else {})}
    return {"labels": labels} if labels else {}


def tokens_read(state: State) -> list[int]:
    """Tokens of context each row has taken in."""
    return list(state.meta["tokens_read"])
