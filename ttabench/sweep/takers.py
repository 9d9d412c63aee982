"""What a suite says of all its runs and only some of them take: who does, and who does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ttabench.core.errors import UnknownName, UserError
from ttabench.core.types import Json
from ttabench.methods.settings import key_of
from ttabench.methods.spec import MethodSpec
from ttabench.sweep.options import ASSIGNED

SETTING = {"set": "method", "task_set": "task"}
"""Options of several keys, and whose keys they are."""
MOST_NAMED = 6
"""Settings in a remark."""
BUDGETS = ("keep", "keep_tokens")
LACKS = {
    "set": "has settings", "task_set": "has settings", "preset": "has presets", "checkpoint": "is trained",
    **dict.fromkeys(BUDGETS, "has a budget"),
}  # fmt: skip
"""What is not true of those that do not take what was said of all, by the option."""


@dataclass(frozen=True, kw_only=True)
class Known:
    """The settings and options that a method and a task of a grid have."""

    spec: MethodSpec
    task: str
    keys: Mapping[str, Sequence[str] | None]
    """Of `set` and `task_set`; None where nobody knows."""

    def fits(self, name: str, key: str, value: Json) -> bool:
        """Whether what was said of all goes to this method or task; of a list one value is enough."""
        if name in ASSIGNED:
            known = self.keys[name]
            return known is None or key_of(key, known) in known
        if name == "preset":
            return any(preset in self.spec.presets for preset in (value if isinstance(value, list) else [value]))
        return self._keeps(0.5 if name == "keep" else 1024) if name in BUDGETS else self.spec.trainable

    def _keeps(self, amount: float) -> bool:
        """Whether the method has a budget of this kind, a share or tokens."""
        try:
            return self.spec.keep is not None and bool(self.spec.keep(amount))
        except ValueError:
            return False


@dataclass(frozen=True, kw_only=True)
class ForSome:
    """Something that was said of all, and goes to those that know it."""

    name: str
    """The option."""
    word: str
    takers: dict[str, Known] = field(default_factory=dict)
    """By the name of the method or task."""
    others: dict[str, Known] = field(default_factory=dict)

    @property
    def remark(self) -> str:
        """Who takes it, and who does not; empty where all do, or none does."""
        if not self.others or not self.takers:
            return ""
        once = ", which run once without it" if self.name in BUDGETS else ""
        lacking = ", ".join(f"{name}{self._in_place(known)}" for name, known in self.others.items())
        return f"{self.word} goes to {', '.join(self.takers)}; not to {lacking}{once}."

    def _in_place(self, known: Known) -> str:
        """The first settings, options or presets that a method or task has; those of its budget before others."""
        keys = sorted(known.spec.presets) if self.name == "preset" else list(known.keys.get(self.name) or ())
        if self.name == "set" and known.spec.keep and known._keeps(0.5):
            keys = list(dict.fromkeys([*known.spec.keep(0.5), *keys]))
        return f" ({', '.join(keys[:MOST_NAMED])}{', ...' if len(keys) > MOST_NAMED else ''})" if keys else ""

    def fault(self) -> UserError:
        """What is wrong where none takes it; the closest one that is known is named."""
        preset, whose = self.name == "preset", f"{SETTING.get(self.name, 'method')}s"
        known = {
            key
            for other in self.others.values()
            for key in (other.spec.presets if preset else other.keys.get(self.name) or ())
        }
        if known:
            kind = "preset" if preset else "setting"
            return UnknownName(f"{kind} of these {whose}", self.word.removeprefix("preset "), sorted(known))
        fault = f"None of these {whose} {LACKS[self.name]}, so {self.word} means nothing."
        return UserError(fault, "Leave it out.")
