"""Expected Attention: settings, spec and cost."""

from __future__ import annotations

from dataclasses import dataclass

from ttabench.core.errors import require_at_least
from ttabench.cost import Shape
from ttabench.methods.eviction.spec import BudgetSettings, eviction_spec


@dataclass(frozen=True, kw_only=True)
class ExpectedAttentionSettings(BudgetSettings):
    """Settings of `expected_attention`; the defaults are kvpress's."""

    n_sink: int = 4
    """First tokens of the text that are always kept. Their queries are not used."""
    future: int = 512
    """Number of next positions over which rotations of queries are averaged."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(0, n_sink=self.n_sink)
        require_at_least(1, future=self.future)


def score_flops(
    settings: ExpectedAttentionSettings, shape: Shape, part: int, kept: int, read: int
) -> int:
    """Compute the operations of the covariance of new queries, and of scores of all slots."""
    if part + kept <= settings.kept_tokens(read):
        return 0
    size = shape.head_dim
    return 2 * shape.layers * shape.heads * size * (size * part + (size + 1) * (part + kept))


EXPECTED_ATTENTION = eviction_spec(
    "expected_attention",
    "slots with the most attention expected from the next queries",
    import_path="ttabench.methods.eviction.expected_attention.method:ExpectedAttention",
    Settings=ExpectedAttentionSettings,
    presets={"stream": ExpectedAttentionSettings(budget=512, chunk=512, positions="auto")},
    score_flops=score_flops,
    paper="2510.00636",
)
