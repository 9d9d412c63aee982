"""What every method has, with defaults: an empty state, one piece at a time, no parameters, a training loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from inspect import getmembers_static, isfunction
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeAlias, TypeVar

from torch import nn

from ttabench.core.errors import UserError
from ttabench.core.plugins import FIX, guarded
from ttabench.core.types import Ask, Growth, Json, Observe
from ttabench.lm.forward.ways import require
from ttabench.lm.patch import Patch, State
from ttabench.methods.spec import MethodSpec

if TYPE_CHECKING:
    from ttabench.lm.model import LM


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
    counts: tuple[str, ...] = ("tokens_read",)
    """What `meta` of a state counts, row by row."""
    own_tensors: tuple[str, ...] = ()
    """Tensors of the state that are text in the window: they stay the text's own under `eval --swap-state`."""
    one_reader: bool = False
    """Whether it reads for one reader at a time, as what trains on what it reads: no state of several rows begins."""
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
        return State(rows, meta={name: [0] * rows for name in self.counts})

    def adapt(self, state: State, pieces: Sequence[Sequence[Observe]]) -> State:
        """Read more: each of `pieces` holds one piece a row, in the order in which a row reads them. What is read
        together is what `reads` says, see `session.Session`."""
        raise NotImplementedError

    def combined(self, state: State, other: State) -> State:  # noqa: ARG002  # for methods that can
        """What has read all that one reader of `state` and one of `other` have read, made of the two states alone; a
        UserError where they cannot be put together. Methods whose memories add up override this."""
        fault = f"Two states of {self.name} cannot be put together."
        raise UserError(fault, "Read all texts with one command: --context A B.")

    def patch(self, state: State, asks: Sequence[Ask]) -> Patch:
        """The patch for these queries. A one-row state serves any number of them; one of several rows, one query a
        row. Methods that do not look at the question return parts with one row per state row."""
        raise NotImplementedError

    @property
    def auto(self) -> Mapping[str, Json]:
        """What settings that are "auto" came to under this model."""
        return {}

    def evicts_nothing(self, tokens: int) -> bool:  # noqa: ARG002  # for methods that evict
        """Whether a method that evicts keeps all of a context of so many tokens, so that it is full context."""
        return False

    def parts(self) -> Sequence[BaseMethod[Any]]:
        """The methods that it is made of (`rag+mac`); by default none."""
        return ()

    def modules(self) -> nn.ModuleDict:
        """Modules that are trained and saved."""
        return nn.ModuleDict()


@cache
def guarded_class(cls: type[BaseMethod[Any]]) -> type[BaseMethod[Any]]:
    """A subclass for a method of a file or another package, whose own public functions are `guarded`."""
    if not (isinstance(cls, type) and issubclass(cls, BaseMethod)):
        raise UserError(f"{cls} is not a subclass of BaseMethod.", FIX)
    returns = {"begin": State, "adapt": State, "combined": State, "patch": Patch}
    own = {
        name: guarded(function, returns.get(name, object))
        for name, function in getmembers_static(cls, isfunction)
        if (name[0] != "_" or name == "__init__") and not function.__module__.startswith("ttabench.")
    }
    return type(cls.__name__, (cls,), {**own, "__module__": cls.__module__})


def tokens_read(state: State) -> list[int]:
    """Tokens of context each row has taken in."""
    return list(state.meta["tokens_read"])
