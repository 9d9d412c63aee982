"""What is known of a method before torch is there, the light door of its room: what it is, and how it is trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Annotated, Any

from ttabench.core.declared import RECIPE, Declared
from ttabench.core.plugins import calling
from ttabench.core.types import Growth, Json
from ttabench.cost import Formula
from ttabench.methods.parts.settings import Amount


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
        """The class, imported now, a subclass of `BaseMethod`; that of a file or another package `guarded`."""
        if isinstance(self.where, type):
            cls: type[Any] = self.where
        else:
            module, _, attribute = self.where.partition(":")
            if not self.origin:
                return getattr(import_module(module), attribute)
            with calling(module, f"loading method {self.name}"):
                cls = getattr(import_module(module), attribute)
        return import_module("ttabench.methods.base").guarded_class(cls) if self.origin else cls


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a method is trained: `ttabench train` with no more said. A method's presets may have their own."""

    documents: Annotated[
        tuple[int, ...],
        Declared("Pieces of context in a training episode; of 8,16,32 each gets an equal part of the steps.", RECIPE,
                 kind=str, default=False),
    ] = (16,)  # fmt: skip
    rounds: Annotated[
        int, Declared("How many times the steps go through the list of --documents.", RECIPE, default=False)
    ] = 1
    questions: Annotated[int, Declared("Queries about each piece.", RECIPE)] = 1
    batch_documents: Annotated[
        int, Declared("Pieces in one step, over several episodes; 0: one episode a step.", RECIPE)
    ] = 0
    steps: Annotated[int, Declared("Optimiser steps in all.", RECIPE)] = 1000
    lr: Annotated[float, Declared("Learning rate after the warm-up.", RECIPE)] = 1e-4
    warmup: Annotated[int, Declared("Steps of linear warm-up.", RECIPE)] = 0
    schedule: Annotated[str, Declared("constant or cosine.", RECIPE, default=False)] = "constant"
    optimizer: Annotated[str, Declared("adam, or muon (matrices; adam for the rest).", RECIPE, default=False)] = "adam"
    beta2: Annotated[float, Declared("Adam's decay of squared gradients.", RECIPE)] = 0.999
    clip: Annotated[float, Declared("Largest norm of the gradient.", RECIPE)] = 100.0
    decay: Annotated[float, Declared("Weight decay (AdamW).", RECIPE)] = 0.0
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
