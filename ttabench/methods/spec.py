"""Descriptions of methods and of their training, without importing torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Annotated, Any

from ttabench.core.declared import RECIPE_GROUP, OptionInfo
from ttabench.core.deprecation import warn_renamed
from ttabench.core.errors import UserError
from ttabench.core.plugins import FIX_PLUGIN_HINT, plugin_errors_as_user_errors
from ttabench.core.registry import import_object
from ttabench.core.types import Growth, Json
from ttabench.cost import Cost, NoSettings, Shape, Workload
from ttabench.methods.parts.settings import Amount


@dataclass(frozen=True, kw_only=True)
class MethodSpec:
    """Description of a method."""

    name: str
    Settings: type[Any] = NoSettings
    """Frozen dataclass; every field has a default and a docstring. Invalid values: ValueError."""
    presets: Mapping[str, Any] = field(default_factory=dict)
    """Settings by preset name. A preset with the name of the base model is its default."""
    paper: str = ""
    """arXiv id."""
    cost: Callable[[Any, Shape, Workload], Cost | None] | None = None
    """Function (settings, shape, workload) -> cost. None, or a result of None, if unknown."""
    deprecated_settings: Mapping[str, Json] = field(default_factory=dict)
    """Settings of earlier versions with their only remaining value: stored runs contain them."""
    summary: str = ""
    """Text for `list methods`, one line."""
    import_path: str | type[Any] = ""
    """The class, as `package.module:Class` or itself."""
    recipes: Mapping[str, Recipe] = field(default_factory=dict)
    """Training recipes by preset name. Other presets use `Recipe()`."""
    growth: Growth = "none"
    """Growth of the state with the context. Settings may change it."""
    trainable: bool = False
    """True if it has parameters that `ttabench train` trains."""
    shares_checkpoints_with: str = ""
    """Another method with the same parameters, settings and training, and so checkpoints."""
    query_aware: bool = False
    """True if `patch` depends on the query. Settings may change it."""
    keep: Callable[[Amount], Mapping[str, Json]] | None = None
    """Function from a budget to settings that keep it, or None for methods without a budget.

    A budget is a number of tokens (int) or a share of the tokens read (float). The function raises
    ValueError for an impossible budget.
    """
    test_settings: Any = None
    """Settings for `ttabench check` (2 layers, 512 positions), or None for the defaults."""
    family_factory: str = ""
    """Function `(text) -> MethodSpec`, as `package.module:function`, of a family of methods.

    Members of the family are named `family:text`. The function may import an optional package.
    """
    origin: str = ""
    """`package==version` or file digest of a plugin method, "" for a built-in method.

    It is part of the run id.
    """

    def load(self) -> type[Any]:
        """Import the class, a subclass of `Method`. A plugin's class is guarded."""
        if isinstance(self.import_path, type):
            cls: type[Any] = self.import_path
        else:
            if not self.origin:
                return import_object(self.import_path)
            module = self.import_path.partition(":")[0]
            with plugin_errors_as_user_errors(module, f"loading method {self.name}"):
                cls = import_object(self.import_path)
        if not self.origin:
            return cls
        if not hasattr(cls, "guarded"):
            raise UserError(f"{cls} is not a subclass of Method.", FIX_PLUGIN_HINT)
        return cls.guarded()


RENAMED_FIELDS = {
    "where": "import_path",
    "checked": "test_settings",
    "members": "family_factory",
    "retired": "deprecated_settings",
    "trained_as": "shares_checkpoints_with",
    "looks_at_question": "query_aware",
}
"""Present names of the fields of `MethodSpec` by their earlier names."""
_init = MethodSpec.__init__


@wraps(_init)
def _init_renamed(spec: MethodSpec, **values: Any) -> None:
    """Accept fields by their earlier names as well."""
    for old, new in RENAMED_FIELDS.items():
        if old in values:
            warn_renamed("MethodSpec", old, new)
            values[new] = values.pop(old)
    _init(spec, **values)


setattr(MethodSpec, "__init__", _init_renamed)  # noqa: B010  # hides earlier names from type checkers


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Default options of `ttabench train` for a method or a preset."""

    documents: Annotated[
        tuple[int, ...],
        OptionInfo(
            "Chunks per training episode. With a list (8,16,32), each gets an equal share of steps.",
            RECIPE_GROUP,
            kind=str,
            default=False,
        ),
    ] = (16,)
    rounds: Annotated[
        int,
        OptionInfo(
            "Number of passes through the list of --documents.", RECIPE_GROUP, default=False
        ),
    ] = 1
    questions: Annotated[int, OptionInfo("Training queries per chunk.", RECIPE_GROUP)] = 1
    batch_documents: Annotated[
        int,
        OptionInfo(
            "Chunks per optimiser step, over several episodes. 0: one episode per step.",
            RECIPE_GROUP,
        ),
    ] = 0
    steps: Annotated[int, OptionInfo("Total number of optimiser steps.", RECIPE_GROUP)] = 1000
    lr: Annotated[float, OptionInfo("Learning rate after the warm-up.", RECIPE_GROUP)] = 1e-4
    warmup: Annotated[int, OptionInfo("Steps of linear warm-up.", RECIPE_GROUP)] = 0
    schedule: Annotated[
        str, OptionInfo("Learning rate schedule: constant or cosine.", RECIPE_GROUP, default=False)
    ] = "constant"
    optimizer: Annotated[
        str,
        OptionInfo(
            "adam, or muon (muon for matrices, adam for the rest).", RECIPE_GROUP, default=False
        ),
    ] = "adam"
    beta2: Annotated[float, OptionInfo("beta2 of Adam.", RECIPE_GROUP)] = 0.999
    clip: Annotated[float, OptionInfo("Gradient clipping: maximum norm.", RECIPE_GROUP)] = 100.0
    decay: Annotated[float, OptionInfo("Weight decay (AdamW).", RECIPE_GROUP)] = 0.0
    first: Stage | None = None
    """Earlier training stage, skipped if there is a checkpoint to start from or a base checkpoint.

    A stage of another method changes the base model's weights. A stage of the same method provides
    its initial parameters.
    """

    def episodes(self, documents: int) -> int:
        """Return the number of episodes per step for episodes of `documents` chunks."""
        return max(1, self.batch_documents // documents)


CHUNK_WRITER_RECIPE = Recipe(
    documents=(2, 4, 8),
    batch_documents=32,
    steps=400,
    lr=1e-3,
    warmup=20,
    schedule="cosine",
    clip=1.0,
)
"""Recipe of methods that write the memory of each chunk separately."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Earlier training stage on the same task. Its recipe may have a `first`."""

    method: str = "lora"
    """A method that does not read context, or the method that is trained."""
    settings: Mapping[str, Json] = field(default_factory=dict)
    """Settings such as `{"rank": 8}`. For the same method, only differences from the later stage."""
    task_options: Mapping[str, Json] = field(default_factory=dict)
    """Additional options of the task, such as `{"ratio": 1.0}`."""
    recipe: Recipe = field(default_factory=Recipe)
