"""What is known of a method before torch is there: the light door of its room."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from ttabench.core.errors import UserError
from ttabench.core.types import Growth, Json
from ttabench.cost import Formula
from ttabench.methods.parts.amount import Amount
from ttabench.methods.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class MethodSpec(Formula):
    """A method that runs."""

    summary: str = ""
    """One line for `list methods`."""
    where: str | type[Any] = ""
    """Where the class is, `package.module:Class`, or the class itself."""
    recipes: Mapping[str, Recipe] = field(default_factory=dict)
    """How presets are trained, by preset name, where that differs from `Recipe()`."""
    growth: Growth = "none"
    """How the state grows with what is read; settings may say otherwise."""
    trainable: bool = False
    """Whether it has parameters, which `ttabench train` trains."""
    trained_as: str = ""
    """Another method of the same parameters and settings that is trained alike: its checkpoints are this one's, too."""
    looks_at_question: bool = False
    """Whether `patch` depends on what is asked; settings may say otherwise."""
    piece_shares: Callable[[Any], bool] = lambda _: False
    """Whether it tells, with these settings, which kept pieces of context a question looks at, see
    `BaseMethod.piece_shares`."""
    keep: Callable[[Amount], Mapping[str, Json]] | None = None
    """Settings that keep so much of the context: tokens (int), or a share of the tokens read (float); ValueError where
    it cannot. None: it has no budget."""
    checked: Any = None
    """Settings that fit a model of two layers and 512 positions, for `ttabench check`; None: the defaults."""
    members: str = ""
    """Of what stands for a family of methods of an optional package, each named `family:text`: a function `(text) ->
    MethodSpec`, `package.module:function`, which may import the package."""
    origin: str = ""
    """Of a method that is not ttabench's own: `package==version`, or a digest of its file; part of a run's identity."""

    def load(self) -> type[Any]:
        """The class, imported now, a subclass of `BaseMethod`; a UserError where that of another package fails."""
        if isinstance(self.where, type):
            return self.where
        module, _, attribute = self.where.partition(":")
        try:
            method_class: type[Any] = getattr(import_module(module), attribute)
        except (Exception, SystemExit) as error:  # whatever another package does when it is imported
            if not self.origin:
                raise
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            fault = f"{self.where}, the class of method {self.name}, cannot be loaded ({reason})."
            raise UserError(fault, f"Mend or uninstall {self.origin}.") from None
        return method_class
