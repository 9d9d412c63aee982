"""KVzip and Attention Matching: settings and specs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ttabench.core.errors import require_at_least
from ttabench.methods.eviction.spec import DEPRECATED_JOIN, GLOBAL, BudgetSettings, eviction_spec
from ttabench.methods.parts.settings import Amount


@dataclass(frozen=True, kw_only=True)
class KVzipSettings(BudgetSettings):
    """Settings of `kvzip` and `attention_matching`; the defaults are the released code's."""

    budget: Amount = 0.2
    """Mean tokens kept per layer and head, or their share of the tokens read."""
    shares: str = GLOBAL
    """Budgets of heads. uniform: the same for all; global: the best slots of all heads together;
    shipped: the bundled ones of this model; or a path with a slash, for those of a state of
    kvzip."""
    repeat_chunk: int = 2048
    """Tokens of the text per repetition; fewer if the model has too few positions."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(1, repeat_chunk=self.repeat_chunk)
        if self.positions != "original":
            raise ValueError(
                f"only positions=original is supported, got positions={self.positions}"
            )


KVZIP = eviction_spec(
    "kvzip",
    "slots with the most attention when the text is repeated, over all layers and heads",
    import_path="ttabench.methods.eviction.kvzip.method:KVzip",
    Settings=KVzipSettings,
    cost=None,
    test_settings=KVzipSettings(budget=12),
    deprecated_settings={
        **DEPRECATED_JOIN,
        "score": "max",
        "uniform": False,
        "sinks": 4,
        "prompt": "\n\nRepeat the previous context exactly.",
        "prompt_later": "\n\nRepeat the part of the previous context exactly, starting with",
    },
    paper="2505.23416",
)
ATTENTION_MATCHING = replace(
    KVZIP,
    name="attention_matching",
    summary="KVzip's slots, with biases and values fitted to the output of full attention",
    import_path="ttabench.methods.eviction.kvzip.method:AttentionMatching",
    deprecated_settings={
        **KVZIP.deprecated_settings,
        "query_tokens": 1024,
        "ridge": 0.001,
        "keys": "kvzip",
        "queries": "repeat",
        "fit_bias": True,
        "fit_values": True,
        "seed": 0,
    },
    paper="2602.16284",
)
