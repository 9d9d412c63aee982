"""A package of somebody else: one method and one task family, offered through entry points."""

from __future__ import annotations

from dataclasses import dataclass

from ttabench.extend import Cost, MethodSpec, Recipe, Shape, Workload, require_at_least, reread_cost


@dataclass(frozen=True, kw_only=True)
class NotebookSettings:
    """Settings of `notebook`."""

    tokens: int = 64
    """Last tokens that stay in the window."""
    rank: int = 2
    """Of the trained delta."""

    def __post_init__(self) -> None:
        require_at_least(1, tokens=self.tokens, rank=self.rank)


def cost(settings: NotebookSettings, shape: Shape, work: Workload) -> Cost:
    """The last tokens, read once."""
    return reread_cost(shape, work, min(settings.tokens, work.tokens))


NOTEBOOK = MethodSpec(
    name="notebook",
    summary="keep the last tokens, under a trained delta of one linear map",
    import_path="notebook.method:Notebook",
    Settings=NotebookSettings,
    presets={"short": NotebookSettings(tokens=16)},
    recipes={"": Recipe(documents=(2,), steps=2, lr=1e-2)},
    growth="constant",
    trainable=True,
    cost=cost,
)
