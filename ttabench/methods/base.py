"""What every method has, with defaults: an empty state, one piece at a time, no parameters, a training loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from inspect import getmembers_static, isfunction
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeAlias, TypeVar

from torch import nn

from ttabench.core.deprecation import warn_renamed
from ttabench.core.errors import UserError
from ttabench.core.plugins import FIX_PLUGIN_HINT, guard_plugin_function
from ttabench.core.types import Chunk, Growth, Json, Query
from ttabench.lm.forward.capabilities import require_capabilities
from ttabench.lm.patch import Patch, State
from ttabench.methods.spec import MethodSpec

if TYPE_CHECKING:
    from ttabench.lm.model import LM


SettingsT = TypeVar("SettingsT")
Granularity: TypeAlias = Literal["chunk", "segment", "full"]
OLD_GRANULARITIES = {"pieces": "chunk", "run": "segment", "once": "full"}
RENAMED_ATTRIBUTES: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "reads": ("granularity", lambda value: OLD_GRANULARITIES.get(value, value)),
    "one_reader": ("supports_batching", lambda value: not value),
    "needs": ("required_capabilities", lambda value: value),
    "own_tensors": ("unswapped_tensors", lambda value: value),
    "combined": ("combine_states", lambda value: value),
    "auto": ("resolved_settings", lambda value: value),
    "looks_at_question": ("query_aware", lambda value: value),
}
"""Attributes of methods by the names that earlier versions gave them: present name, and conversion of the value."""


class BaseMethod(Generic[SettingsT]):
    """A way to adapt, with defaults: Mem(t) = adapt(Mem(t-1), c(t)); O(t) ~ f(. | patch(Mem(t), I(t))).

    Made of the frozen base model and an instance of the `Settings` of its spec; a UserError where the base model lacks
    what the method needs.
    """

    spec: ClassVar[MethodSpec]
    """Its description that needs no torch, see `spec`."""
    growth: Growth
    """How the state grows, with these settings."""
    query_aware: bool
    """Whether `patch` depends on what is asked, with these settings."""
    granularity: Granularity = "chunk"
    """How the context may be split across `adapt` calls: "chunk", anywhere, with equal states; "segment", only where a
    query is asked; "full", nowhere, so that no task may ask in between."""
    counts: tuple[str, ...] = ("tokens_read",)
    """What `meta` of a state counts, row by row."""
    unswapped_tensors: tuple[str, ...] = ()
    """Tensors of the state that are text in the window: they stay the text's own under `eval --swap-state`."""
    supports_batching: bool = True
    """Whether a state may have several rows. False: `begin` raises a UserError for more than one."""
    required_capabilities: tuple[str, ...] = ()
    """What the base model must be able to do, in the words of `lm.forward.capabilities.REASONS`; else it is refused."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for old, (new, convert) in RENAMED_ATTRIBUTES.items():
            if old in vars(cls):
                warn_renamed(cls.__name__, old, new)
                setattr(cls, new, convert(vars(cls)[old]))
                delattr(cls, old)

    if not TYPE_CHECKING:  # else a type checker accepts attributes that are not declared

        def __setattr__(self, name: str, value: Any) -> None:
            if name in RENAMED_ATTRIBUTES:
                new, convert = RENAMED_ATTRIBUTES[name]
                warn_renamed(type(self).__name__, name, new)
                name, value = new, convert(value)
            super().__setattr__(name, value)

    def __init__(self, lm: LM, settings: SettingsT) -> None:
        self.lm = lm
        require_capabilities(
            lm, *self.required_capabilities
        )  # how it is run is found out here at the latest, and never while something is measured
        self.settings = settings
        self.growth, self.query_aware = self.spec.growth, self.spec.query_aware

    @property
    def name(self) -> str:
        """As it is typed."""
        return self.spec.name

    def begin(self, rows: int) -> State:
        """An empty state for `rows` independent readers; a UserError for several if not `supports_batching`."""
        if rows > 1 and not self.supports_batching:
            raise UserError(
                f"{self.name} reads for one reader, not {rows}.", "Read one context at a time."
            )
        return State(rows, meta={name: [0] * rows for name in self.counts})

    def adapt(self, state: State, chunks: Sequence[Sequence[Chunk]]) -> State:
        """Read more: each of `chunks` holds one piece a row, in the order in which a row reads them. What is read
        together is what `granularity` says, see `session.Session`."""
        raise NotImplementedError

    def combine_states(self, state: State, other: State) -> State:  # noqa: ARG002  # for methods that can
        """What has read all that one reader of `state` and one of `other` have read, made of the two states alone; a
        UserError where they cannot be put together. Methods whose memories add up override this."""
        fault = f"Two states of {self.name} cannot be put together."
        raise UserError(fault, "Read all texts with one command: --context A B.")

    def patch(self, state: State, queries: Sequence[Query]) -> Patch:
        """The patch for these queries. A one-row state serves any number of them; one of several rows, one query a
        row. Methods that do not look at the question return parts with one row per state row."""
        raise NotImplementedError

    @property
    def resolved_settings(self) -> Mapping[str, Json]:
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
def guard_class(cls: type[BaseMethod[Any]]) -> type[BaseMethod[Any]]:
    """A subclass for a method of a file or another package, whose own public functions are `guarded`."""
    if not (isinstance(cls, type) and issubclass(cls, BaseMethod)):
        raise UserError(f"{cls} is not a subclass of BaseMethod.", FIX_PLUGIN_HINT)
    returns = {"begin": State, "adapt": State, "combine_states": State, "patch": Patch}
    guarded_functions = {
        name: guard_plugin_function(function, returns.get(name, object))
        for name, function in getmembers_static(cls, isfunction)
        if (name[0] != "_" or name == "__init__")
        and not function.__module__.startswith("ttabench.")
    }
    return type(cls.__name__, (cls,), {**guarded_functions, "__module__": cls.__module__})


def tokens_read(state: State) -> list[int]:
    """Tokens of context each row has taken in."""
    return list(state.meta["tokens_read"])
