"""MyName: settings and spec of the method. This module does not import torch."""

from __future__ import annotations

from dataclasses import dataclass

from ttabench.extend import Cost, MethodSpec, Recipe, Shape, Workload, require_at_least, reread_cost


@dataclass(frozen=True, kw_only=True)
class MyNameSettings:
    """Settings of `my_name`."""

    tokens: int = 64
    """Number of last tokens kept in the window."""
    rank: int = 2
    """Rank of the trained delta."""

    def __post_init__(self) -> None:
        require_at_least(1, tokens=self.tokens, rank=self.rank)


def cost(settings: MyNameSettings, shape: Shape, work: Workload) -> Cost:
    """Return the cost of the last tokens, read once."""
    return reread_cost(shape, work, min(settings.tokens, work.tokens))


MY_NAME = MethodSpec(
    name="my_name",
    summary="keep the last tokens, with a trained delta of one linear map",
    import_path="my_name.method:MyName",
    Settings=MyNameSettings,
    presets={"short": MyNameSettings(tokens=16)},
    recipes={"": Recipe(documents=(2,), steps=2, lr=1e-2)},
    growth="constant",
    trainable=True,
    test_settings=MyNameSettings(tokens=16),
    cost=cost,
)
