"""What is known of a method before torch is there, the light door of its room: what it is, and how it is trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from importlib import import_module
from typing import Annotated, Any

from ttabench.core.declared import RECIPE_GROUP, OptionInfo
from ttabench.core.deprecation import warn_renamed
from ttabench.core.plugins import plugin_errors_as_user_errors
from ttabench.core.types import Growth, Json
from ttabench.cost import Formula
from ttabench.methods.parts.settings import Amount


@dataclass(frozen=True, kw_only=True)
class MethodSpec(Formula):
    """A method that runs."""

    summary: str = ""
    """One line for `list methods`."""
    import_path: str | type[Any] = ""
    """Where the class is, `package.module:Class`, or the class itself."""
    recipes: Mapping[str, Recipe] = field(default_factory=dict)
    """How presets are trained, by preset name, where that differs from `Recipe()`."""
    growth: Growth = "none"
    """How the state grows with what is read; settings may say otherwise."""
    trainable: bool = False
    """Whether it has parameters, which `ttabench train` trains."""
    shares_checkpoints_with: str = ""
    """Another method of the same parameters and settings that is trained alike: its checkpoints are this one's, too."""
    query_aware: bool = False
    """Whether `patch` depends on what is asked; settings may say otherwise."""
    keep: Callable[[Amount], Mapping[str, Json]] | None = None
    """Settings that keep so much of the context: tokens (int), or a share of the tokens read (float); ValueError where
    it cannot. None: it has no budget."""
    test_settings: Any = None
    """Settings that fit a model of two layers and 512 positions, for `ttabench check`; None: the defaults."""
    family_factory: str = ""
    """Of what stands for a family of methods of an optional package, each named `family:text`: a function `(text) ->
    MethodSpec`, `package.module:function`, which may import the package."""
    origin: str = ""
    """Of a method that is not ttabench's own: `package==version`, or a digest of its file; part of a run's identity."""

    def load(self) -> type[Any]:
        """The class, imported now, a subclass of `BaseMethod`; that of a file or another package `guarded`."""
        if isinstance(self.import_path, type):
            cls: type[Any] = self.import_path
        else:
            module, _, attribute = self.import_path.partition(":")
            if not self.origin:
                return getattr(import_module(module), attribute)
            with plugin_errors_as_user_errors(module, f"loading method {self.name}"):
                cls = getattr(import_module(module), attribute)
        return import_module("ttabench.methods.base").guard_class(cls) if self.origin else cls


RENAMED_FIELDS = {
    "where": "import_path",
    "checked": "test_settings",
    "members": "family_factory",
    "retired": "deprecated_settings",
    "trained_as": "shares_checkpoints_with",
    "looks_at_question": "query_aware",
}
"""Fields of `MethodSpec` by the names that earlier versions gave them."""
_init = MethodSpec.__init__


@wraps(_init)
def _init_renamed(spec: MethodSpec, **values: Any) -> None:
    """Accept fields by their earlier names, too."""
    for old, new in RENAMED_FIELDS.items():
        if old in values:
            warn_renamed("MethodSpec", old, new)
            values[new] = values.pop(old)
    _init(spec, **values)


setattr(MethodSpec, "__init__", _init_renamed)  # noqa: B010  # a type checker sees the present fields


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a method is trained: `ttabench train` with no more said. A method's presets may have their own."""

    documents: Annotated[
        tuple[int, ...],
        OptionInfo(
            "Pieces of context in a training episode; of 8,16,32 each gets an equal part of the steps.",
            RECIPE_GROUP,
            kind=str,
            default=False,
        ),
    ] = (16,)
    rounds: Annotated[
        int,
        OptionInfo(
            "How many times the steps go through the list of --documents.",
            RECIPE_GROUP,
            default=False,
        ),
    ] = 1
    questions: Annotated[int, OptionInfo("Queries about each piece.", RECIPE_GROUP)] = 1
    batch_documents: Annotated[
        int,
        OptionInfo(
            "Pieces in one step, over several episodes; 0: one episode a step.", RECIPE_GROUP
        ),
    ] = 0
    steps: Annotated[int, OptionInfo("Optimiser steps in all.", RECIPE_GROUP)] = 1000
    lr: Annotated[float, OptionInfo("Learning rate after the warm-up.", RECIPE_GROUP)] = 1e-4
    warmup: Annotated[int, OptionInfo("Steps of linear warm-up.", RECIPE_GROUP)] = 0
    schedule: Annotated[str, OptionInfo("constant or cosine.", RECIPE_GROUP, default=False)] = (
        "constant"
    )
    optimizer: Annotated[
        str, OptionInfo("adam, or muon (matrices; adam for the rest).", RECIPE_GROUP, default=False)
    ] = "adam"
    beta2: Annotated[float, OptionInfo("Adam's decay of squared gradients.", RECIPE_GROUP)] = 0.999
    clip: Annotated[float, OptionInfo("Largest norm of the gradient.", RECIPE_GROUP)] = 100.0
    decay: Annotated[float, OptionInfo("Weight decay (AdamW).", RECIPE_GROUP)] = 0.0
    first: Stage | None = None
    """What is trained before, unless there is a checkpoint to begin from or that the base stands on: another method,
    which is added to the base model's weights, or the method itself, whose parameters are trained on."""

    def episodes(self, documents: int) -> int:
        """Episodes of a step whose episodes hold so many documents."""
        return max(1, self.batch_documents // documents)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """An earlier stage of a training, on the same task; its recipe may have a `first`."""

    method: str = "lora"
    """One that reads nothing, or the method that is trained."""
    settings: tuple[str, ...] = ()
    """Settings as they are typed, `rank=8`; of the method itself those that differ from the later stage's."""
    task_options: tuple[str, ...] = ()
    """Options of the task beside those that were typed, `ratio=1.0`."""
    recipe: Recipe = field(default_factory=Recipe)
