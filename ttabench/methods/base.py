"""Base class for adaptation methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from inspect import getmembers_static, isfunction
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Self, TypeAlias, TypeVar

from torch import nn

from ttabench.core.deprecation import renamed, warn_renamed
from ttabench.core.errors import UserError
from ttabench.core.plugins import guard_plugin_function
from ttabench.core.types import Chunk, Growth, Json, Query
from ttabench.lm.forward.capabilities import require_capabilities
from ttabench.lm.patch import Patch, State
from ttabench.methods.spec import MethodSpec

if TYPE_CHECKING:
    from ttabench.lm.model import LM


SettingsT = TypeVar("SettingsT")
Granularity: TypeAlias = Literal["chunk", "segment", "full"]
OLD_GRANULARITIES = {"pieces": "chunk", "run": "segment", "once": "full"}
RENAMED_ATTRIBUTES = {
    "reads": "granularity",
    "one_reader": "supports_batching",
    "needs": "required_capabilities",
    "own_tensors": "unswapped_tensors",
    "combined": "combine_states",
    "auto": "resolved_settings",
    "looks_at_question": "query_aware",
}
"""Present names of method attributes by their earlier names."""


def _present_attribute(owner: str, old: str, value: Any) -> tuple[str, Any]:
    """Return the present name and value of an attribute with an earlier name, and warn."""
    warn_renamed(owner, old, RENAMED_ATTRIBUTES[old])
    if old == "reads":
        value = OLD_GRANULARITIES.get(value, value)
    elif old == "one_reader":
        value = not value
    return RENAMED_ATTRIBUTES[old], value


class Method(Generic[SettingsT]):
    """Base class for methods: Mem(t) = adapt(Mem(t-1), c(t)); O(t) ~ f(. | patch(Mem(t), I(t))).

    Subclasses override `adapt` and `patch`.

    Args:
        lm: frozen base model.
        settings: an instance of the `Settings` of the spec.

    Raises:
        UserError: the base model lacks a required capability.
    """

    spec: ClassVar[MethodSpec]
    """Description that is available without importing torch."""
    growth: Growth
    """Growth of the state with the context, for these settings."""
    query_aware: bool
    """True if `patch` depends on the query, for these settings."""
    granularity: Granularity = "chunk"
    """Allowed splits of the context across `adapt` calls.

    "chunk": anywhere, with equal states. "segment": only where a query follows. "full": nowhere, so
    that no task may put queries in between.
    """
    counts: tuple[str, ...] = ("tokens_read",)
    """Counters in the `meta` of a state, with one value per row."""
    unswapped_tensors: tuple[str, ...] = ()
    """State tensors that are text in the window. `eval --swap-state` does not swap them."""
    supports_batching: bool = True
    """True if a state may have several rows. If False, `begin` rejects more than one."""
    bits: int | None = None
    """Bits of the numbers in the keys and values of states; None if they are not quantised."""
    required_capabilities: tuple[str, ...] = ()
    """Base model capabilities: keys of `lm.forward.capabilities.MISSING_CAPABILITY_REASONS`."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for old in RENAMED_ATTRIBUTES:
            if old in vars(cls):
                setattr(cls, *_present_attribute(cls.__name__, old, vars(cls)[old]))
                delattr(cls, old)

    if not TYPE_CHECKING:  # else a type checker accepts attributes that are not declared

        def __setattr__(self, name: str, value: Any) -> None:
            if name in RENAMED_ATTRIBUTES:
                name, value = _present_attribute(type(self).__name__, name, value)
            super().__setattr__(name, value)

    def __init__(self, lm: LM, settings: SettingsT) -> None:
        self.lm = lm
        # probes the model here at the latest, so that no measurement includes the probe
        require_capabilities(lm, *self.required_capabilities)
        self.settings = settings
        self.growth = self.spec.growth
        self.query_aware = self.spec.query_aware

    @property
    def name(self) -> str:
        """Name of the method on the command line."""
        return self.spec.name

    def begin(self, rows: int) -> State:
        """Return an empty state for `rows` independent sequences.

        Raises:
            UserError: several rows without `supports_batching`.
        """
        if rows > 1 and not self.supports_batching:
            raise UserError(
                f"{self.name} does not support batching, got {rows} sequences.",
                "Use one context at a time.",
            )
        if rows > 1:
            require_capabilities(self.lm, "rows")
        return State(rows, meta={name: [0] * rows for name in self.counts})

    def adapt(self, state: State, chunks: Sequence[Sequence[Chunk]]) -> State:
        """Adapt to more chunks: each item of `chunks` holds one chunk per row, in reading order.

        `granularity` determines which chunks one call gets, see `session.Session`.
        """
        raise NotImplementedError

    def combine_states(self, state: State, other: State) -> State:  # noqa: ARG002
        """Merge two one-row states into the state of both contexts.

        Methods with additive memories override this.

        Raises:
            UserError: the states cannot be merged.
        """
        fault = f"{self.name} cannot merge two states."
        raise UserError(fault, "Use one command for all texts: --context A B.")

    def patch(self, state: State, queries: Sequence[Query]) -> Patch:
        """Build the patch for these queries.

        A one-row state serves any number of queries, a state of several rows one query per row.
        Methods that are not `query_aware` return parts with one row per state row.
        """
        raise NotImplementedError

    @property
    def resolved_settings(self) -> Mapping[str, Json]:
        """Values for this model of the settings that are "auto"."""
        return {}

    def evicts_nothing(self, tokens: int) -> bool:  # noqa: ARG002  # for methods that evict
        """Return True if an evicting method keeps every token of a context of this length."""
        return False

    def parts(self) -> Sequence[Method[Any]]:
        """Return the methods that this one combines (`rag+mac`), none by default."""
        return ()

    def modules(self) -> nn.ModuleDict:
        """Return the modules that are trained and saved."""
        return nn.ModuleDict()

    @classmethod
    @cache
    def guarded(cls) -> type[Self]:
        """Return a subclass in which the public functions of a plugin are guarded."""
        returns = {"begin": State, "adapt": State, "combine_states": State, "patch": Patch}
        guarded_functions = {
            name: guard_plugin_function(function, returns.get(name, object))
            for name, function in getmembers_static(cls, isfunction)
            if (name[0] != "_" or name == "__init__")
            and not function.__module__.startswith("ttabench.")
        }
        return type(cls.__name__, (cls,), {**guarded_functions, "__module__": cls.__module__})


def tokens_read(state: State) -> list[int]:
    """Return the number of context tokens that each row has read."""
    return list(state.meta["tokens_read"])


if not TYPE_CHECKING:  # else a type checker accepts any name of this module
    __getattr__ = renamed(__name__, {"BaseMethod": "Method"})
